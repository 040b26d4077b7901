"""Mentions with candidates and priors, for names and for word senses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder, Reading


def shown(mentions):
    return [(mention.text, [candidate.entity for candidate in mention.candidates]) for mention in mentions]


def test_mentions_carry_the_candidates_of_their_name(names_kb):
    found = CandidateFinder(names_kb).mentions("She left new york for Tokyo.")
    assert [(m.start, m.end, m.text) for m in found] == [(9, 17, "new york"), (22, 27, "Tokyo")]
    assert shown(found)[0][1] == ["Q1384", "Q60"]
    assert all(sum(c.prior for c in mention.candidates) == pytest.approx(1) for mention in found)


def test_a_form_keeps_to_the_part_of_speech_that_made_it(senses_kb):
    found = dict(shown(CandidateFinder(senses_kb).mentions("He ran after the runs and had a run with axes.")))
    assert found["ran"] == ["run-v"]
    assert found["runs"] == ["run-v", "run-n"]
    assert found["run"] == ["run-v", "run-n"]
    assert found["axes"] == ["axis-n", "axe-v"]  # the exception list knows the noun only as a form of "axis"


def test_a_tag_decides_the_part_of_speech(senses_kb):
    finder = CandidateFinder(senses_kb)
    assert shown(finder.mentions("a run", tags={(2, 5): "n"})) == [("run", ["run-n"])]
    assert shown(finder.mentions("a run", tags={(2, 5): "v"})) == [("run", ["run-v"])]
    assert shown(finder.mentions("a run", tags={(2, 5): "r"})) == []


def test_priors_are_shares_of_the_counts(senses_kb):
    (mention,) = CandidateFinder(senses_kb).mentions("run")
    assert [(c.entity, c.prior) for c in mention.candidates] == [("run-v", 9 / 14), ("run-n", 5 / 14)]


def test_a_stricter_policy_leaves_only_candidates_spelled_so(names_kb):
    finder = CandidateFinder(names_kb, Reading(case="exact"))
    assert shown(finder.mentions("Apple and apple and APPLE")) == [("Apple", ["Q312"]), ("apple", ["Q89"])]


def test_at_most_so_many_candidates_with_priors_made_whole(tmp_path):
    many = [Entity(f"e{n:02}", "Smith", popularity=n) for n in range(40)]
    build(lambda tally: iter(many), tmp_path / "x.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        (mention,) = CandidateFinder(kb).mentions("Smith")
        assert len(mention.candidates) == 30
        assert mention.candidates[0].entity == "e39"
        assert sum(c.prior for c in mention.candidates) == pytest.approx(1)
        (mention,) = CandidateFinder(kb, Reading(limit=3)).mentions("Smith")
        assert [c.prior for c in mention.candidates] == pytest.approx([1 / 3] * 3)


TEXTS = st.lists(st.text(st.sampled_from("New York City apple US 東京\n.-👩\u200d\u0301"), max_size=30), max_size=8)


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_many_texts_together_give_what_each_gives_alone(finder_of_names, texts):
    together = list(finder_of_names.mentions_of_many(texts))
    assert together == [finder_of_names.mentions(text) for text in texts]


@pytest.fixture(scope="module")
def finder_of_names(tmp_path_factory):
    from tests.mentions.conftest import NAMES, entity

    path = tmp_path_factory.mktemp("kb") / "names.kb"
    build(lambda tally: map(entity, NAMES), path, origin=Origin("test"))
    with KnowledgeBase.open(path) as kb:
        yield CandidateFinder(kb)


def test_names_do_not_run_from_one_text_into_the_next(names_kb):
    assert [shown(found) for found in CandidateFinder(names_kb).mentions_of_many(["New", "York", "City"])] == [
        [],
        [],
        [],
    ]


def test_a_finder_follows_its_kb(names_kb):
    finder = CandidateFinder(names_kb)
    assert shown(finder.mentions("Gotham, NYC")) == [("NYC", ["Q60"])]
    with KnowledgeBase.open(names_kb.path, writable=True) as elsewhere:
        elsewhere.add([Entity("g", "Gotham", aliases={"NYC": 5})])
    assert shown(finder.mentions("Gotham, NYC")) == [("Gotham", ["g"]), ("NYC", ["g", "Q60"])]


def test_a_change_of_one_word_leaves_the_priors_of_its_forms_as_they_were(senses_kb):
    finder = CandidateFinder(senses_kb)
    before = finder.mentions("axes and runs")
    senses_kb.update(senses_kb.get("axe-v"))
    assert finder.mentions("axes and runs") == before
    assert CandidateFinder(senses_kb).mentions("axes and runs") == before


def test_a_tag_may_be_any_kind_of_entity(names_kb):
    finder = CandidateFinder(names_kb)
    assert shown(finder.mentions("New York", tags={(0, 8): "city"})) == [("New York", ["Q60"])]
    assert shown(finder.mentions("New York", tags={(0, 8): "company"})) == []
