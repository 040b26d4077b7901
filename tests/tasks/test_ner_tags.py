"""Names by tags of words: valid sequences, windows, names that cannot be found, the loss for few names."""

import itertools

import numpy as np
import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, learner, teach, tiny_encoder
from tests.tasks.test_ner import LABELS, SENTENCES, sentence
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import UsageError
from wellread.evaluation.chunks import Chunk
from wellread.models.luke.config import LukeConfig
from wellread.tasks.learner import TaskLearner
from wellread.tasks.ner import NamedEntities, NerOptions
from wellread.tasks.ner_heads import IGNORED, names_loss, sample_negatives, start_at
from wellread.tasks.ner_tags import best_tags, chunks_of_window, tagged_words, tags_of_words
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.task import EncoderWithHead, make_batch
from wellread.text.tokenization import TextTokenizer

TOKEN = NerOptions(head="token", longest=4)


def answers_of_gold(one, segmenter):
    """The answers to a sentence's inputs if the scores are those of its gold tags."""
    task = NamedEntities(LABELS, TOKEN)
    (inputs,) = task.tokenize(segmenter, [one], learning=False)
    gold = tags_of_words(len(one.words), [(start, end, LABELS.index(label)) for start, end, label in one.chunks])
    answers = []
    for part in inputs:
        scores = np.log(np.full((len(tagged_words(part)), 5), 0.01))
        scores[np.arange(len(scores)), gold[tagged_words(part) + part.first]] = np.log(0.96)
        answers.append(list(chunks_of_window(part, scores, LABELS, len(one.words), 4)))
    return answers


def test_the_best_tags_are_those_of_the_best_valid_sequence():
    generator = np.random.default_rng(0)
    for words in (1, 2, 4):
        for _ in range(20):
            scores = generator.normal(size=(words, 5))
            valid = [
                tags
                for tags in itertools.product(range(5), repeat=words)
                if all(tag in (0, 1, 3) or was in (tag, tag - 1) for was, tag in zip((0, *tags), tags, strict=False))
            ]
            expected = max(valid, key=lambda tags: sum(scores[word, tag] for word, tag in enumerate(tags)))
            assert tuple(best_tags(scores)) == expected
    assert best_tags(np.zeros((0, 5))).tolist() == []


def test_the_longest_of_overlapping_names_is_tagged():
    assert tags_of_words(6, [(1, 2, 1), (0, 3, 0), (4, 5, 1), (5, 6, 1)]).tolist() == [1, 2, 2, 0, 3, 3]


@pytest.mark.parametrize("room", [None, 48, 14, 10])
def test_names_are_found_once_and_whole_however_long_a_sentence_is(room):
    names = [(0, 2, "who"), (2, 3, "who"), (5, 9, "place"), (11, 12, "who"), (12, 15, "place"), (18, 20, "who")]
    one = sentence("the mayor of avon wrote of a new old city near the old river of cork in genoa where who", *names)
    answers = answers_of_gold(one, TextTokenizer(TOKENIZER, longest=room))
    assert len(answers) == 1 or room in (14, 10)
    assert sorted(found.chunk for some in answers for found in some) == sorted(one.chunks)


def test_a_name_with_a_word_too_long_for_a_window_is_missed(capsys):
    long = "z" * 30  # a token a letter
    one = sentence(f"avon wrote to {long} cork is old", (0, 1, "place"), (3, 5, "who"))
    found = [name.chunk for some in answers_of_gold(one, TextTokenizer(TOKENIZER, longest=12)) for name in some]
    assert found == [Chunk(0, 1, "place")]
    assert "too short for 1 of 7 words and 1 of 2 gold names" in capsys.readouterr().err


def test_words_without_tokens_belong_to_the_name_around_them():
    one = sentence("avon \u200d brno is \u200d", (0, 3, "place"))
    ((found,),) = answers_of_gold(one, SEGMENTER)
    assert found.chunk == Chunk(0, 3, "place")


def test_each_word_is_trained_in_one_window():
    task = NamedEntities(LABELS, TOKEN)
    one = sentence("the mayor of avon wrote of a new old city near the old river of cork", (0, 2, "who"))
    tokenized = task.tokenize(TextTokenizer(TOKENIZER, longest=12), [one], learning=True)
    classes = task.prepare(make_batch([one], tokenized, {}), learning=True).target["classes"]
    assert len(tokenized[0]) > 1
    assert classes[classes != IGNORED].tolist() == [3, 4, *[0] * 14]


@pytest.mark.parametrize("infusion", ["plain", "kam", "luke"])
def test_names_are_learned_by_tags(infusion):
    task = NamedEntities(LABELS, TOKEN)
    made = learner(task, SENTENCES, knowing=infusion == "kam")
    if infusion == "luke":
        encoder = infuse(tiny_encoder(), [LukeConfig(entities=4, dim=8)])
        made = TaskLearner(task, EncoderWithHead(encoder, task.head(encoder)), SEGMENTER, SENTENCES, SENTENCES)
    assert made.evaluate()["f1"] < 1
    teach(made, 40, rate=1e-2)
    assert made.evaluate()["f1"] == 1


def test_the_loss_has_the_share_of_names_that_is_wanted():
    scores, classes = torch.randn(6, 3), torch.tensor([0, 0, 1, 0, IGNORED, 2])
    each = -scores.log_softmax(1)[torch.arange(6), classes.clamp(min=0)]
    names, others = each[[2, 5]].mean(), each[[0, 1, 3]].mean()
    assert torch.allclose(names_loss(scores, classes, 0.7), 0.7 * names + 0.3 * others)
    assert torch.allclose(names_loss(scores, classes, None), each[[0, 1, 2, 3, 5]].mean())
    assert torch.allclose(names_loss(scores[:2], classes[:2], 0.7), others * 0 + each[:2].mean())
    assert names_loss(scores[4:5], classes[4:5], None) == 0


def test_negatives_are_sampled_per_name_and_the_prior_is_the_initial_probability():
    classes = torch.tensor([0] * 50 + [1, 2])
    sampled = sample_negatives(classes, 3)
    assert sampled[50:].tolist() == [1, 2]
    assert sampled[:50].tolist().count(0) == 6
    assert sampled[:50].tolist().count(IGNORED) == 44
    assert sample_negatives(torch.zeros(5, dtype=torch.long), 9).tolist() == [0] * 5
    bias = torch.zeros(4)
    start_at(bias, 0.02)
    assert torch.allclose(bias.softmax(0)[1:].sum(), torch.tensor(0.02))


def test_options_that_contradict_are_refused():
    with pytest.raises(UsageError, match="negatives is for spans"):
        NerOptions(head="token", negatives=3)
    for name in ("balance", "prior"):
        with pytest.raises(UsageError, match=f"{name} is 1.5; expected a number between 0 and 1"):
            NerOptions(**{name: 1.5})


def test_the_texts_of_tags_are_linked_for_luke_and_those_of_spans_are_not():
    assert TaskRecipe("ner").own_entities
    assert not TaskRecipe("ner", ner=TOKEN).own_entities
    assert not TaskRecipe("wic-tsv").own_entities
