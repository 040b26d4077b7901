"""Words in context: the files of WiC, SuperGLUE and WiC-TSV, and the task with either kind of encoder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.sense_data import Offering, write_vectors
from tests.task_models import SEGMENTER, TOKENIZER, teach, tiny_encoder, tiny_network
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import InputError
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.tasks.learner import TaskLearner, ask
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.registry import TASKS
from wellread.tasks.task import EncoderWithHead
from wellread.tasks.wic import WordInContext, WordPair, read_wic, read_wic_tsv, split_wic
from wellread.text.tokenization import Mark, TextTokenizer

SHARED = Path(__file__).parents[3] / "shared/data/wic_tsv"
WIC = "bank\tN\t4-1\tthe river near the bank\tthe banks are old\nrun\tV\t0-2\trun !\twho can run ?\n"
PAIRS = [
    WordPair("0", "bank", "n", ("the river near the bank", "old bank of a river"), ((19, 23), (4, 8)), True),
    WordPair("1", "bank", "n", ("buy the bank", "near the bank of the river"), ((8, 12), (9, 13)), False),
    WordPair("2", "run", "v", ("run near the city", "who is to run ?"), ((0, 3), (10, 13)), False),
    WordPair("3", "run", "v", ("run the city", "run paris"), ((0, 3), (0, 3)), True),
]
EXPLAINED = [
    WordPair("0", "bank", "n", ("buy the bank", "bank: a planet"), ((8, 12), None), False),
    WordPair("1", "bank", "n", ("river bank", "bank: near a river"), ((6, 10), None), True),
]


def write_wic(folder, data=WIC, gold="T\nF\n"):
    path = folder / "train.data.txt"
    path.write_text(data)
    if gold is not None:
        (folder / "train.gold.txt").write_text(gold)
    return path


def write_tsv(folder, **changes):
    files = {
        "examples": "bank\t2\tbuy the bank\nrun\t1\tA run .\n",
        "definitions": "money is there\nan act\n",
        "hypernyms": "financial_institution\thouse\n\n",
        "labels": "T\nF\n",
    } | changes
    for name, text in files.items():
        if text is not None:
            (folder / f"dev_{name}.txt").write_text(text)
    return folder


def words(pair):
    return [text[slice(*span)] for text, span in zip(pair.texts, pair.spans, strict=True) if span is not None]


def test_wic_names_words_by_their_places(tmp_path):
    first, second = read_wic(write_wic(tmp_path))
    assert (first.word, first.kind, first.label, words(first)) == ("bank", "n", True, ["bank", "banks"])
    assert (second.id, second.kind, second.label, words(second)) == ("1", "v", False, ["run", "run"])


def test_wic_without_its_gold_file_has_no_labels(tmp_path):
    assert [pair.label for pair in read_wic(write_wic(tmp_path, gold=None))] == [None, None]


def test_superglue_names_words_by_their_characters(tmp_path):
    line = {"word": "bank", "sentence1": "the bank", "sentence2": "banks", "idx": 7, "label": True}
    line |= {"start1": 4, "end1": 8, "start2": 0, "end2": 5, "version": 1.1}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(line | {"end1": 99}) + "\n")
    skipped = []
    (pair,) = read_wic(path, skipped=skipped)
    assert pair == WordPair("7", "bank", None, ("the bank", "banks"), ((4, 8), (0, 5)), True)
    assert len(skipped) == 1
    assert "line 2: the word is from 4 to 99 in a text of 8 characters" in skipped[0]


@pytest.mark.parametrize(
    ("data", "gold", "message"),
    [
        (WIC, "T\n", "has 2 lines, but .* has 1"),
        (WIC, "T\nX\n", "line 2: the label is 'X'"),
        (WIC.replace("4-1", "9-1"), "T\nF\n", "line 1: expected a word index below 5, got '9'"),
        (WIC.replace("4-1", "41"), "T\nF\n", "line 1: 'N' and '41'"),
        (WIC.replace("\tV", ""), "T\nF\n", "line 2: 4 cells, expected 5"),
    ],
    ids=["lines", "label", "place", "places", "cells"],
)
def test_what_is_broken_in_wic_says_where(tmp_path, data, gold, message):
    with pytest.raises(InputError, match=message):
        list(read_wic(write_wic(tmp_path, data, gold)))


def test_wic_tsv_tells_meanings_by_definitions_and_hypernyms(tmp_path):
    first, second = read_wic_tsv(write_tsv(tmp_path))
    assert first.texts == ("buy the bank", "bank: money is there; financial institution, house")
    assert (first.spans, first.kind, first.label) == (((8, 12), None), "n", True)
    assert (second.texts[1], second.label) == ("run: an act", False)
    examples = tmp_path / "dev_examples.txt"
    assert next(read_wic_tsv(examples, given="definition")).texts[1] == "bank: money is there"
    assert next(read_wic_tsv(examples, given="hypernyms")).texts[1] == "bank: financial institution, house"


def test_wic_tsv_asks_for_the_files_it_needs_only(tmp_path):
    folder = write_tsv(tmp_path, hypernyms=None, labels=None)
    assert [pair.label for pair in read_wic_tsv(folder, given="definition")] == [None, None]
    with pytest.raises(InputError, match=r"has no hypernyms beside it; put dev_hypernyms\.txt there"):
        read_wic_tsv(folder)
    with pytest.raises(InputError, match="has 0 files"):
        read_wic_tsv(tmp_path.parent)
    (tmp_path / "dev_examples.txt").write_text("bank 2 buy the bank\nrun\t1\tA run .\n")
    with pytest.raises(InputError, match="line 1: 1 cells, expected 3"):
        list(read_wic_tsv(folder, given="definition"))


def test_pairs_of_a_word_stay_on_one_side():
    rest, dev = split_wic(PAIRS, 1)
    assert {pair.word for pair in rest} | {pair.word for pair in dev} == {"bank", "run"}
    assert not {pair.word for pair in rest} & {pair.word for pair in dev}


# the task


def test_the_word_is_marked_in_both_texts_with_its_kind():
    (one,) = WordInContext().tokenize(SEGMENTER, PAIRS[:1], learning=True)[0]
    assert one.marks == (Mark(0, 19, 23, "bank", "n"), Mark(1, 4, 8, "bank", "n"))
    (one,) = WordInContext().tokenize(SEGMENTER, EXPLAINED[:1], learning=True)[0]
    assert one.marks == (Mark(0, 8, 12, "bank", "n"),)


def test_a_word_that_was_cut_off_is_not_learned_but_answered():
    task, short = WordInContext(), TextTokenizer(TOKENIZER, longest=8)
    long = replace(PAIRS[0], texts=("the old river near the bank", PAIRS[0].texts[1]), spans=((23, 27), (4, 8)))
    assert task.tokenize(short, [long], learning=True) == [[]]
    ((chance,),) = ask(task, tiny_network(task), short, [long])
    assert 0 < chance < 1


def test_what_is_compared_is_the_word_and_the_word_or_the_meaning():
    task = WordInContext()
    for pair, expected in ((PAIRS[0], ["bank", "bank"]), (EXPLAINED[0], ["bank", "bank: a planet"])):
        made = TaskLearner(task, tiny_network(task), SEGMENTER, [pair], [pair], batch=1)
        batch = made.batches(0)[0]
        spans = batch.inputs[0].spans
        sides = enumerate(batch.target["spans"][0].tolist())
        assert [pair.texts[side][spans[first, 0] : spans[last, 1]] for side, (first, last) in sides] == expected


@pytest.mark.parametrize("pairs", [PAIRS, EXPLAINED], ids=["wic", "wic-tsv"])
def test_a_plain_encoder_learns_to_tell(pairs):
    task = WordInContext()
    made = TaskLearner(task, tiny_network(task), SEGMENTER, pairs, pairs, batch=4)
    teach(made, 25, rate=1e-2)
    assert made.evaluate() == {"accuracy": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}


def test_an_encoder_that_links_is_offered_the_word_s_senses_and_another_is_spared(tmp_path):
    vectors, task = write_vectors(tmp_path), WordInContext()
    encoder = tiny_encoder()
    encoder = infuse(encoder, [KnowBertConfig(layer=0, raw=6, dim=8, heads=2, inner=8, dropout=0.0)])
    encoder.infusions[0].take(EntityTable.of(vectors))
    for network in (EncoderWithHead(encoder, task.head(encoder)), tiny_network(task)):
        made = TaskLearner(task, network, SEGMENTER, PAIRS, PAIRS, provider=Offering(vectors), batch=4)
        loss = made.loss(made.batches(0)[0])
        assert set(loss) == {"label"}  # WiC does not say which sense it is
        loss["label"].backward()
    assert encoder.infusions[0].back.weight.grad.any()


def test_scores_are_those_of_the_official_scorer():
    task = WordInContext()
    scores = task.scores(PAIRS, [[0.9], [0.6], [0.4], [0.5]])
    assert scores == {"accuracy": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5}
    nobody = task.scores(PAIRS, [[0.1]] * 4)
    assert nobody == {"accuracy": 0.5, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    with pytest.raises(InputError, match="no label to score against"):
        task.scores([replace(PAIRS[0], label=None)], [[0.1]])


def test_a_test_file_cannot_be_learned_from():
    task, secret = WordInContext(), replace(PAIRS[0], label=None)
    made = TaskLearner(task, tiny_network(task), SEGMENTER, [secret], PAIRS, batch=1)
    with pytest.raises(InputError, match="no label to train on"):
        made.batches(0)[0]
    torch.manual_seed(0)
    assert len(ask(task, made.model.eval(), SEGMENTER, [secret])) == 1


def test_the_rows_read_and_write_the_official_files(tmp_path):
    settings = TaskRecipe("wic-tsv").settings
    assert len(list(TASKS["wic"].read(settings, {}, str(write_wic(tmp_path)), []))) == 2
    pairs = list(TASKS["wic-tsv"].read(settings, {}, str(write_tsv(tmp_path)), []))
    assert "financial institution" in pairs[0].texts[1]
    TASKS["wic-tsv"].write(tmp_path / "answers.txt", WordInContext(), pairs, [[0.7], [0.2]])
    assert (tmp_path / "answers.txt").read_text() == "T\nF\n"


@pytest.mark.skipif(not SHARED.exists(), reason="the data of ../shared/data/wic_tsv is not here")
def test_the_published_files_are_read_whole():
    for part, count in (("Training", 2828), ("Development", 389)):
        pairs = list(read_wic_tsv(SHARED / part))
        assert len(pairs) == count
        assert all(words(pair)[0].lower().startswith(pair.word[:3].lower()) for pair in pairs)
