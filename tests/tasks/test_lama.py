"""The LAMA probe: the rank of a fact's object among words that all models know."""

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tests.task_models import FACTS, SEGMENTER, TOKENIZER, learner, provider, teach, tiny_network
from wellread.data.readers.lama import MaskedFact, common_vocabulary
from wellread.errors import InputError
from wellread.tasks.lama import Probing, probe
from wellread.tasks.learner import ask
from wellread.tasks.lm_head import words_of
from wellread.text.tokenization import TextTokenizer


def byte_pairs():
    """As RoBERTa's: a word has the blank before it, the mask swallows one; cased."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "R"), ("ĠR", "o"), ("ĠRo", "m"), ("ĠRom", "e")]
    vocabulary = ["<s>", "</s>", *letters, *(a + b for a, b in merges)]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(vocabulary)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True), "<s>", "</s>"])
    return made


def test_ranks_are_those_of_loops_over_the_vocabulary():
    vocabulary = ["Paris", "rome", "dover", "avon", "unknownword"]
    task = Probing(TOKENIZER, vocabulary)
    assert task.words.keys() == {"paris", "rome", "dover", "avon"}
    model = tiny_network(task).double()
    usable = task.usable(FACTS)
    found = ask(task, model, SEGMENTER, usable)
    for fact, (rank,) in zip(usable, found, strict=True):
        one = SEGMENTER.tokenize(fact.sentence)
        (place,) = np.flatnonzero(one.ids == TOKENIZER.token_to_id("[MASK]"))
        with torch.no_grad():
            state = model.encoder(input_ids=torch.from_numpy(one.ids)[None]).last_hidden_state[0, place]
            scores = model.head(state[None])[0]
        own = scores[task.words[fact.object]]
        assert rank == sum(bool(scores[id] >= own) for id in task.words.values())
    assert probe(model, SEGMENTER, FACTS, vocabulary) == task.report(usable, found)


def test_facts_outside_the_vocabulary_are_not_asked_and_capitals_do_not_matter_to_whom_knows_none():
    skipped = []
    task = Probing(TOKENIZER, ["Paris", "Dover"])
    usable = task.usable(FACTS, skipped=skipped)
    assert [fact.object for fact in usable] == ["paris", "dover"]
    assert skipped == ["rome"]
    assert usable[1].sentence == "cork was born in [MASK] , near the river"
    with pytest.raises(InputError, match="keep only `usable` facts"):
        task.tokenize(SEGMENTER, FACTS, learning=False)
    with pytest.raises(InputError, match="none of the 2 words"):
        Probing(TOKENIZER, ["zzyzx", "qwertz"])


def test_models_are_asked_for_words_that_both_know():
    other = byte_pairs()
    assert words_of(other).keys() == {"R", "Ro", "Rom", "Rome"}
    assert common_vocabulary([words_of(TOKENIZER), {word.lower() for word in words_of(other)}]) == {"r", "rome"}


def test_a_tokenizer_with_another_mask_and_capitals_is_asked_in_its_way():
    tokenizer = byte_pairs()
    task = Probing(tokenizer)
    assert not task.uncased
    (fact,) = task.usable(FACTS)
    assert fact.object == "Rome"
    ((one,),) = task.tokenize(TextTokenizer(tokenizer), [fact], learning=False)
    assert [tokenizer.id_to_token(id) for id in one.ids[one.places]] == ["<mask>"]
    assert [tokenizer.id_to_token(id) for id in one.gold] == ["ĠRome"]


def test_the_mask_is_not_a_word_for_a_knowledge_provider():
    task = Probing(TOKENIZER)
    ((one,),) = task.tokenize(SEGMENTER, task.usable(FACTS)[:1], learning=False)
    assert "mask" not in [word.lower() for word in one.words]
    assert one.word_of[one.places].tolist() == [-1]
    assert not provider().build_inputs([one]).maps[0, 0, one.places[0]].any()


def test_the_first_of_several_masks_counts_and_all_are_masked():
    fact = MaskedFact("0", "r", "avon", "rome", "[MASK] is near [MASK]")
    ((one,),) = Probing(TOKENIZER).tokenize(SEGMENTER, [fact], learning=False)
    assert one.places.tolist() == [1]
    assert one.word_of[[1, 4]].tolist() == [-1, -1]


def test_an_object_whose_mask_was_cut_off_is_not_found():
    long = MaskedFact("9", "born", "avon", "rome", "the river of " * 30 + "[MASK]")
    task = Probing(TOKENIZER)
    facts = [*task.usable(FACTS), long]
    answers = ask(task, tiny_network(task), SEGMENTER, facts)
    assert answers[-1] == []
    assert task.report(facts, answers).relations["born"].facts == 2
    with pytest.raises(InputError, match="no facts to score"):
        probe(tiny_network(task), SEGMENTER, [], None)


@pytest.mark.parametrize("knowing", [False, True])
def test_facts_that_were_learned_are_known_by_relation(knowing):
    task = Probing(TOKENIZER)
    made = learner(task, task.usable(FACTS), knowing=knowing)
    provided = provider() if knowing else None
    assert probe(made.model, SEGMENTER, FACTS, provider=provided).micro.precision < 1
    teach(made, 20, rate=1e-2)
    found = probe(made.model, SEGMENTER, FACTS, provider=provided)
    assert found.micro.precision == found.macro.precision == found.relations["capital"].precision == 1
    assert made.evaluate() == {"precision": 1, "macro": 1, "mrr": 1, "precision@10": 1}
