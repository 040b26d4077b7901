"""A linker that is asked for senses answers as the encoder it was made of does."""

import json

import pytest
import torch

from tests.infused_models import shake
from tests.sense_data import AGED, ENTITIES, MONEY, SHORE, TEXTS, Hashing, keys, sense_text
from tests.toy_models import tokenizer, write_encoder, write_kb
from wellread.data.readers.raganato import join_sentences, read_gold, write_lines_of_senses
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.inference.sense_evaluation import answer_senses
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.linking.sense_answers import answer_as_linked
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.saving import shrink
from wellread.tasks.learner import ask
from wellread.tasks.senses import SenseOptions, Senses
from wellread.tasks.task import EncoderWithHead
from wellread.text.tokenization import TextTokenizer

SIZES = {"dim": 8, "heads": 2, "inner": 8, "prior_width": 4, "raw": 6}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with `senses.kb`, its vectors, `encoder` and `model`, and `small`, the linker made of it."""
    return write_home(tmp_path_factory.mktemp("home"), layer=0)


def write_home(folder, **layer):
    write_encoder(folder / "encoder")
    model = infuse(load_encoder(str(folder / "encoder")), [KnowBertConfig(kb="senses", **layer, **SIZES)])
    shake(model.infusions[0], 2.0)
    model.save_pretrained(folder / "model")
    tokenizer().save(str(folder / "model" / "tokenizer.json"))
    with write_kb(folder / "senses.kb", ENTITIES) as kb:
        EntityVectors.build(kb, Hashing())
        shrink(folder / "model", kb, folder / "small", base=str(folder / "encoder"))
    return folder


def test_it_answers_as_its_encoder_does(home):
    model = load_encoder(str(home / "model"))
    with KnowledgeBase.open(home / "senses.kb") as kb:
        vectors = EntityVectors.of_kb(kb)
        model.infusions[0].take_of(kb, vectors)
        task = Senses(keys(), vectors, SenseOptions(kb="senses"))
        network = EncoderWithHead(model, task.head(model))
        provider = KnowBertProvider([("senses", kb, vectors)])
        answers = ask(task, network, TextTokenizer(tokenizer(), longest=32), TEXTS, provider=provider)
        for made in ("model", "small"):
            chosen, scores = answer_senses(home / made, kb, keys(), TEXTS)
            assert chosen == task.chosen(TEXTS, answers)
            assert scores == task.scores(TEXTS, answers)
    assert len({key for some in chosen.values() for key in some}) > 3


@pytest.mark.parametrize("reads", [1, 2])
def test_it_scores_candidates_by_as_many_layers_as_it_has_learned_with(tmp_path, monkeypatch, reads):
    home = write_home(tmp_path, layer=1, reads=reads)
    scored = []
    plain = Senses._scores
    monkeypatch.setattr(Senses, "_scores", lambda *given: scored.append(plain(*given)) or scored[-1])
    model = load_encoder(str(home / "model"))
    with KnowledgeBase.open(home / "senses.kb") as kb:
        vectors = EntityVectors.of_kb(kb)
        model.infusions[0].take_of(kb, vectors)
        task = Senses(keys(), vectors, SenseOptions(kb="senses"))
        provider = KnowBertProvider([("senses", kb, vectors)])
        ask(
            task,
            EncoderWithHead(model, task.head(model)),
            TextTokenizer(tokenizer(), longest=32),
            TEXTS,
            provider=provider,
        )
        answer_senses(home / "model", kb, keys(), TEXTS)
    wanted, found = scored
    assert wanted.isfinite().sum() == 16
    torch.testing.assert_close(found, wanted)


def test_the_command_scores_files_and_writes_keys(home, tmp_path, monkeypatch, wellread):
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    write_lines_of_senses(tmp_path / "some.jsonl", TEXTS)
    given = [str(tmp_path / "some.jsonl"), "--model", str(home / "small"), "--kb", str(home / "senses.kb")]
    result = wellread("evaluate", "senses", *given, "--format", "json")
    with KnowledgeBase.open(home / "senses.kb") as kb:
        chosen, scores = answer_senses(home / "small", kb, keys(), TEXTS)
    found = json.loads(result.out)["scores"]
    assert (found["f1"], found["first_sense"]) == (scores["f1"], scores["first_sense"])
    answers = tmp_path / "answers.txt"
    assert "first_sense" in wellread("evaluate", "senses", *given, "--predictions", answers).out
    assert sorted(answers.read_text().splitlines()) == sorted(f"{id} {key}" for id, (key,) in chosen.items())


def test_as_linked_a_link_answers_for_the_word_that_has_its_characters(home):
    longer = sense_text("f.1", "the old banks", bank=SHORE, old=AGED)  # nothing that is linked is just "bank"
    silent = sense_text("f.2", "the river", river=SHORE)
    texts = [*TEXTS, longer, silent]
    documents = list(join_sentences(TEXTS, 9))
    with Linker.load(home / "senses.kb", home / "small", precision="fp32") as linker:
        links = {document.text: linker.link(document.text).links for document in documents}
        chosen, scores = answer_as_linked(linker, keys(), texts)
    marks = {mark.instance.id: (text, mark) for text in texts for mark in text.marks}
    assert chosen.keys() == marks.keys() - {"f.2.t000"}  # a word that has no sense has no first one either
    for one in documents:
        for mark in one.marks:
            [entity] = [link.entity for link in links[one.text] if (link.start, link.end) == (mark.start, mark.end)]
            assert chosen[mark.instance.id] == (keys().key(mark.instance.lemma, entity),)
    assert chosen["f.1.t000"] == (MONEY,)  # the first sense
    right = sum(key in marks[id][1].instance.gold for id, (key,) in chosen.items())
    assert scores["answered"] == 9 / 11
    assert scores["f1"] == pytest.approx(2 * right / (10 + 11))


def test_the_command_scores_links_of_plain_text(home, tmp_path, monkeypatch, wellread):
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    write_lines_of_senses(tmp_path / "some.jsonl", TEXTS)
    given = [tmp_path / "some.jsonl", "--as-linked", "--kb", home / "senses.kb", "--format", "json"]
    scores = {}
    for model in (home / "small", "prior"):
        scores[model] = json.loads(wellread("evaluate", "senses", *given, "--model", model).out)["scores"]
    assert scores["prior"]["answered"] == 1
    assert scores["prior"]["f1"] == scores["prior"]["first_sense"] == 0.5
    with Linker.load(home / "senses.kb", home / "small") as linker:
        assert scores[home / "small"] == answer_as_linked(linker, keys(), TEXTS)[1]


def test_a_file_whose_keys_are_secret_is_answered_and_not_scored(home, tmp_path, monkeypatch, wellread):
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    secret = [sense_text(text.id, text.text, **{m.instance.lemma: () for m in text.marks}) for text in TEXTS]
    write_lines_of_senses(tmp_path / "some.jsonl", secret)
    given = [tmp_path / "some.jsonl", "--model", home / "small", "--kb", home / "senses.kb"]
    result = wellread("evaluate", "senses", *given, "--predictions", tmp_path / "keys.txt")
    assert (result.code, result.out) == (0, "")
    assert "not all texts have gold keys" in result.err
    assert len(read_gold(tmp_path / "keys.txt")) == 8


def test_files_whose_ids_start_alike_are_scored_as_each_alone(home, tmp_path, monkeypatch, wellread):
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    parts = {"one": TEXTS[:4], "two": TEXTS[4:]}
    alone = {}
    with KnowledgeBase.open(home / "senses.kb") as kb:
        for name, texts in parts.items():
            again = [
                sense_text(f"d.{number}", text.text, name, **{m.instance.lemma: m.instance.gold for m in text.marks})
                for number, text in enumerate(texts)
            ]
            write_lines_of_senses(tmp_path / f"{name}.jsonl", again)
            alone[name] = answer_senses(home / "small", kb, keys(), again)
    files = [tmp_path / f"{name}.jsonl" for name in parts]
    given = [*files, "--model", home / "small", "--kb", home / "senses.kb", "--predictions", tmp_path / "keys.txt"]
    found = json.loads(wellread("evaluate", "senses", *given, "--format", "json").out)["scores"]
    counts = {name: len(chosen) for name, (chosen, _) in alone.items()}
    assert counts == {"one": 6, "two": 2}
    for name in ("f1", "first_sense"):
        pooled = sum(counts[part] * scores[name] for part, (_, scores) in alone.items()) / 8
        assert found[name] == pytest.approx(pooled)
    assert {part: found[f"f1_{part}"] for part in parts} == {part: scores["f1"] for part, (_, scores) in alone.items()}
    wanted = {f"{part}.{id}": keys for part, (chosen, _) in alone.items() for id, keys in chosen.items()}
    assert read_gold(tmp_path / "keys.txt") == wanted


def test_what_has_no_knowledge_layer_is_refused(home):
    with KnowledgeBase.open(home / "senses.kb") as kb, pytest.raises(UsageError, match="has no knowledge layer"):
        answer_senses(home / "encoder", kb, keys(), TEXTS)
