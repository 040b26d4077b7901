"""Names by spans: which are asked, what they are judged by, which are taken, and what is learned."""

import math

import numpy as np
import pytest
import torch

from tests.map_data import byte_level
from tests.task_models import SEGMENTER, TOKENIZER, learner, teach, tiny_encoder, tiny_network
from wellread.data.readers.conll import NamedText
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk
from wellread.tasks.learner import ask
from wellread.tasks.ner import Found, NamedEntities, NerOptions
from wellread.tasks.ner_heads import ChunkHead
from wellread.tasks.task import make_batch
from wellread.text.tokenization import TextTokenizer

LABELS = ("place", "who")


def sentence(text, *chunks, id="0"):
    return NamedText.of_words(id, text.split(), [Chunk(*chunk) for chunk in chunks])


SENTENCES = [
    sentence("the mayor of avon was born in brno", (0, 2, "who"), (3, 4, "place"), (7, 8, "place")),
    sentence("where is the old river"),
    sentence("the mayor of the old city is near cork", (0, 2, "who"), (8, 9, "place")),
    sentence("who wrote to dover and essen", (3, 4, "place"), (5, 6, "place")),
]


def asked_in(task, one, segmenter=SEGMENTER):
    """The words (start, end) of every span that is asked, over all inputs of a sentence."""
    ((*inputs,),) = task.tokenize(segmenter, [one], learning=False)
    return [tuple((some + part.first).tolist()) for part in inputs for some in part.chunks(task.longest)]


def all_spans(words, longest):
    return [(start, end) for start in range(words) for end in range(start + 1, min(words, start + longest) + 1)]


@pytest.mark.parametrize("longest", [1, 3, 16])
@pytest.mark.parametrize("room", [None, 48, 14])
def test_every_span_is_asked_once_however_long_a_sentence_is(longest, room):
    task = NamedEntities(LABELS, NerOptions(longest=longest))
    one = sentence("the mayor of avon wrote of fargo and me near the old river of cork in genoa where who was born")
    reach = min(longest, 6)  # words that windows of 14 pieces surely hold
    found = asked_in(task, one, TextTokenizer(TOKENIZER, longest=room))
    assert len(found) == len(set(found))
    wanted = all_spans(len(one.words), longest if room != 14 else reach)
    assert set(wanted) <= set(found) <= set(all_spans(len(one.words), longest))


@pytest.mark.parametrize("tokenizer", [TOKENIZER, byte_level()], ids=["word pieces", "bytes"])
@pytest.mark.parametrize("room", [None, 20])
def test_a_spans_pieces_have_its_characters(tokenizer, room):
    one = sentence("The mayor of Ävon , 東京 — near Brno !")
    other = sentence("Genoa is old . " * 3)
    document = (other.text, one.text, "who wrote to me ?")
    one = NamedText(one.id, one.text, one.words, one.chunks, document, 1)
    task = NamedEntities(LABELS)
    for part in task.tokenize(TextTokenizer(tokenizer, longest=room), [one], learning=False)[0]:
        assert len(part) <= (room or 1000)
        for start, end in part.chunks(16).tolist():
            first, last = part.edges[start, 0], part.edges[end - 1, 1]
            text = part.texts[0][part.spans[first, 0] : part.spans[last, 1]]
            low, high = one.words[start + part.first][0], one.words[end - 1 + part.first][1]
            assert text == one.text[low:high]


def test_the_document_is_read_around_its_sentence():
    document = tuple(f"{name} is near the river" for name in ("avon", "brno", "cork", "dover", "essen"))
    one = NamedText.of_words("1", document[2].split(), ())
    one = NamedText(one.id, one.text, one.words, (), document, 2)
    for room, there in ((48, document), (17, document[1:4]), (7, document[2:3])):
        ((tokenized,),) = NamedEntities(LABELS).tokenize(TextTokenizer(TOKENIZER, longest=room), [one], learning=False)
        words = {name for name in document if name.split()[0] in tokenized.words}
        assert words == set(there)
        assert TOKENIZER.decode(tokenized.ids[tokenized.edges[0, 0] : tokenized.edges[-1, 1] + 1]) == one.text
    ((alone,),) = NamedEntities(LABELS, NerOptions(context=False)).tokenize(SEGMENTER, [one], learning=False)
    assert alone.texts == (one.text,)


def test_words_without_pieces_belong_to_the_span_around_them():
    one = sentence("avon \u200d is \u200d")
    found = asked_in(NamedEntities(LABELS), one)
    assert set(all_spans(4, 16)) - set(found) == {(1, 2), (3, 4)}
    assert asked_in(NamedEntities(LABELS), sentence("\u200d")) == []
    assert NamedEntities(LABELS).tokenize(SEGMENTER, [NamedText.of_text("1", " ")], learning=False) == [[]]


def test_words_and_names_longer_than_a_window_are_counted(capsys):
    long = "z" * 30  # a piece a letter
    names = [(0, 1, "who"), (2, 3, "who"), (3, 5, "place"), (6, 7, "place"), (7, 9, "who")]
    one, other = sentence(f"avon wrote {long} to {long} {long} brno zzzzzz zzzzzz", *names), sentence("who is old")
    task = NamedEntities(LABELS, NerOptions(longest=3))
    tokenized = task.tokenize(TextTokenizer(TOKENIZER, longest=12), [one, other], learning=False)
    spans_found = {tuple((span + part.first).tolist()) for part in tokenized[0] for span in part.chunks(3)}
    assert spans_found == {(0, 1), (1, 2), (0, 2), (3, 4), (6, 7), (6, 8), (7, 8), (8, 9)}
    assert capsys.readouterr().err == (
        "inputs of 12 tokens are too short for 3 of 12 words and 3 of 5 gold names, which cannot be found; "
        "raise encoder.longest\n"
    )
    task.tokenize(TextTokenizer(TOKENIZER, longest=12), [sentence(long, (0, 1, "who"))], learning=True)
    assert "too short for 1 of 1 words and 1 of 1 gold names" in capsys.readouterr().err
    task.tokenize(TextTokenizer(TOKENIZER, longest=130), [one, other], learning=False)
    assert capsys.readouterr().err == ""


def test_scores_are_those_of_a_dense_layer_on_first_last_and_mean():
    torch.manual_seed(0)
    head, states = ChunkHead(6, 3, entities=False).double().eval(), torch.randn(9, 6, dtype=torch.float64)
    firsts, lasts = torch.tensor([0, 2, 4, 8]), torch.tensor([0, 3, 8, 8])
    naive = [
        head.out(torch.nn.functional.gelu(head.dense(torch.cat((states[a], states[b], states[a : b + 1].mean(0))))))
        for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]
    assert torch.allclose(head(states, firsts, lasts), torch.stack(naive))
    head, spans = ChunkHead(6, 3, entities=True).double().eval(), torch.randn(4, 6, dtype=torch.float64)
    assert torch.allclose(
        head(states, firsts, lasts, spans), head.out(torch.cat((states[firsts], states[lasts], spans), 1))
    )


def test_the_loss_is_the_mean_over_all_spans_and_gold_ones_have_their_class():
    task = NamedEntities(LABELS, NerOptions(longest=3))
    batch = task.prepare(make_batch(SENTENCES, task.tokenize(SEGMENTER, SENTENCES, learning=True), {}), learning=True)
    classes = batch.target["classes"].tolist()
    assert (classes.count(1), classes.count(2)) == (5, 2)
    assert len(classes) == sum(len(all_spans(len(one.words), 3)) for one in SENTENCES)
    model = tiny_network(task)
    states, batch, _ = model.read(batch)
    scores = model.head(states, *batch.target["spans"].unbind(1))
    expected = -scores.log_softmax(1)[torch.arange(len(classes)), classes].mean()
    assert torch.allclose(task.loss(model.head, states, batch)["names"], expected)


def test_the_best_are_taken_first_and_what_overlaps_is_left():
    def found(score, start, end, label="who"):
        return Found(score, Chunk(start, end, label), start, end)

    task = NamedEntities(LABELS)
    answers = [
        [found(-0.5, 0, 3), found(-0.1, 2, 5)],
        [found(-0.2, 4, 6), found(-0.3, 5, 6, "place"), found(-2.0, 0, 2)],
    ]
    assert [one.chunk for one in task.choose(answers)] == [
        Chunk(0, 2, "who"),
        Chunk(2, 5, "who"),
        Chunk(5, 6, "place"),
    ]
    assert task.chosen([answers, []]) == [[Chunk(0, 2, "who"), Chunk(2, 5, "who"), Chunk(5, 6, "place")], []]
    assert task.show(answers)[1] == {"start": 2, "end": 5, "label": "who", "score": round(math.exp(-0.1), 4)}


@pytest.mark.parametrize("knowing", [False, True])
def test_names_are_learned(knowing):
    task = NamedEntities(LABELS)
    made = learner(task, SENTENCES, knowing=knowing)
    assert made.evaluate()["f1"] < 1
    teach(made, 40, rate=1e-2)
    found = made.evaluate()
    assert found == dict.fromkeys(("f1", "precision", "recall", "f1_place", "f1_who"), 1)
    assert next(iter(found)) == task.score


def test_windows_and_neighbours_have_no_say_in_an_answer_where_nothing_is_cut():
    task = NamedEntities(LABELS)
    made = learner(task, SENTENCES)
    teach(made, 5)
    together = ask(task, made.model, SEGMENTER, SENTENCES)
    for one, some in zip(SENTENCES, together, strict=True):
        ((alone,),) = ask(task, made.model, SEGMENTER, [one])
        assert [found[1:] for found in alone] == [found[1:] for found in some[0]]
        assert np.allclose([found.score for found in alone], [found.score for found in some[0]], atol=1e-5)


def test_what_cannot_be_learned_or_scored_is_refused():
    task = NamedEntities(LABELS)
    secret = NamedText.of_text("1", "who is it")
    with pytest.raises(InputError, match="no tags to score against; is this a test file"):
        task.scores([secret], [[]])
    with pytest.raises(InputError, match="no tags to train on"):
        list(learner(task, [secret]).batches(0))
    with pytest.raises(InputError, match="the label 'x' is not one of place, who"):
        list(learner(task, [sentence("a b", (0, 1, "x"))]).batches(0))
    with pytest.raises(InputError, match="expected one or more, each once"):
        NamedEntities(("a", "a"))
    with pytest.raises(UsageError, match="longest is 0; expected 1 or more"):
        NerOptions(longest=0)
    assert task.head(tiny_encoder()).out.out_features == 3
