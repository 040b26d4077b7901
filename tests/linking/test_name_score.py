"""Score of a name: more for rare, capitalised, longer and unambiguous names."""

import numpy as np
import pytest

from tests.toy_models import write_kb
from wellread import Linker
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity, Form
from wellread.kb.store import KnowledgeBase
from wellread.linking.name_score import name_score, starts_sentence
from wellread.models.elq.linker import _has_word


def score(name, prior=1.0, *, start=False, lower=False):
    return name_score(prior, name, sentence_start=start, lower_text=lower)


def test_a_rare_name_is_more_certain_than_a_common_word():
    assert score("Nutella") > 0.8 > score("Shell") > score("shell")
    assert score("always") < 0.2
    assert score("Marie Curie") > score("Curie")


def test_a_capital_counts_only_where_it_says_something():
    assert score("Always") > score("Always", start=True) == score("always")
    assert score("iPhone") == score("iPhone", start=True)
    assert score("paris", lower=True) > score("paris")


def test_an_ambiguous_name_is_less_certain():
    scores = [score("Curie", prior) for prior in (1.0, 0.7, 0.4, 0.1, 0.0)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < one < 1 for one in scores)


@pytest.mark.parametrize("name", ["", "+", "東京", "😀", "a" * 300])
def test_any_text_has_a_score(name):
    assert 0 < score(name) < 1


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [("a b", 0, True), ("a b", 2, False), ("a. B", 3, True), ("a\nB", 2, True), ("a “B”", 3, True), ("  b", 2, True)],
)
def test_the_first_word_of_a_sentence(text, start, expected):
    assert starts_sentence(text, start) is expected


@pytest.fixture
def kb(tmp_path):
    entities = [
        Entity("P1", "Always Ultra", "pads", "", 1, {"Always": 1}),
        Entity("P2", "Nutella", "a spread"),
        Entity("P3", "Smiley 😀", "a sign", "", 1, {"😀": 1}),
    ]
    with write_kb(tmp_path / "shop.kb", entities) as kb:
        yield kb


def test_prior_scores_names_and_keeps_all_links_at_its_default(kb: KnowledgeBase):
    text = "I always buy Nutella."
    always, nutella = Linker.load(kb, "prior").link(text).links
    assert (always.entity, nutella.entity) == ("P1", "P2")
    assert always.score < 0.2 < 0.8 < nutella.score
    assert always.candidates[0].prior == 1.0
    assert [link.entity for link in Linker.load(kb, "prior", threshold=0.5).link(text).links] == ["P2"]


def test_a_given_span_keeps_the_prior(kb: KnowledgeBase):
    (link,) = next(Linker.load(kb, "prior").link_given(["I always buy it."], [[(2, 8)]])).links
    assert (link.entity, link.score) == ("P1", 1.0)


def test_a_word_sense_keeps_the_prior(tmp_path):
    records = [Entity("w1", "river", "a stream of water"), Form("rivers", "river", "n")]
    build(lambda tally: iter(records), tmp_path / "w.kb", origin=Origin("test", extra={"inflection": "wordnet"}))
    (link,) = Linker.load(tmp_path / "w.kb", "prior").link("the river").links
    assert (link.entity, link.score) == ("w1", 1.0)


def test_an_emoji_is_linked_only_as_a_name_of_the_kb(kb: KnowledgeBase):
    assert [link.entity for link in Linker.load(kb, "prior").link("so good 😀 🎉").links] == []  # one sign: too short
    found = _has_word(["so 😀 a"], np.array([0, 0, 0]), np.array([[0, 2], [3, 4], [3, 6]]))
    assert found.tolist() == [True, False, True]
