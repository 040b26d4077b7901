"""Strings are mapped to entities, with probabilities and the way they were found."""

import numpy as np
import pytest

from wellread.errors import InputError, UsageError
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.mapping import scorer
from wellread.mapping.features import FEATURES
from wellread.mapping.scorer import NameScorer, choice_probabilities, packaged


@pytest.mark.parametrize(
    ("text", "entity", "found_by"),
    [
        ("Siemens", "m1", "exact"),
        ("SIEMENS", "m1", "case"),
        ("koln", "c1", "case"),
        ("Dr Martens", "m3", "punctuation"),
        ("Curie, Marie", "p1", "order"),
        ("Mraie Curie", "p1", "typo"),
        ("Simens AG", "m1", "typo"),
        ("UN", "m4", "initials"),
        ("Intl. Business Machines", "m5", "words"),
        ("Galaxy S22", "g2", "exact"),
        ("galaxy-s21", "g1", "punctuation"),
        ("C++", "x1", "exact"),
        ("東京", "x2", "exact"),
        (" Siemens  ", "m1", "exact"),
    ],
)
def test_a_string_is_mapped_however_it_is_written(mapper, text, entity, found_by):
    (found,) = mapper.map([text])
    assert (found.text, found.entity, found.found_by) == (text, entity, found_by)
    assert 0.5 <= found.score <= 1


@pytest.mark.parametrize("text", ["", "   ", "Volkswagen", "!?", "q" * 10_000, "\0", "🦊", "\ud800"])
def test_other_strings_are_unmatched(mapper, text):
    (found,) = mapper.map([text])
    assert (found.text, found.entity, found.title, found.score, found.found_by) == (text, None, None, None, None)


def test_namesakes_share_the_probability(mapper):
    (found,) = mapper.map(["John Smith"], best=5)
    assert [match.entity for match in found.matches[:2]] == ["p2", "p3"]
    assert sum(match.score for match in found.matches) <= 1 + 1e-6
    (only,) = mapper.map(["John Smith"])
    assert only.matches == found.matches[:1]


def test_the_threshold_decides_what_is_matched(mapper):
    low, high = (next(mapper.map(["Siemens Corp"], threshold=threshold)) for threshold in (0.0, 1.0))
    assert low.entity == "m1"
    assert high.entity is None
    assert low.matches == high.matches


def test_results_do_not_depend_on_the_batch(mapper):
    texts = ["Siemens", "Simens AG", "John Smith", "", "Galaxy S2", "Bosch"] * 3
    together = list(mapper.map(texts, best=3))
    assert together == [next(mapper.map([text], best=3)) for text in texts]


def test_results_are_plain_data(mapper):
    found = next(mapper.map(["Siemens"], best=2)).to_dict()
    assert (found["text"], found["entity"], found["title"], found["found_by"]) == (
        "Siemens",
        "m1",
        "Siemens AG",
        "exact",
    )
    assert found["candidates"][0]["name"] == "Siemens"


def test_the_context_tells_namesakes_apart(meaning_mapper):
    texts = ["John Smith", "John Smith"]
    found = list(meaning_mapper.map(texts, ["sailing to Virginia", "cinema actor"], best=2))
    assert [one.matches[0].entity for one in found] == ["p2", "p3"]


def test_meaning_finds_what_no_name_does(meaning_mapper):
    (found,) = meaning_mapper.map(["shoes"], best=3, threshold=0)
    assert ("m3", "meaning") in [(match.entity, match.found_by) for match in found.matches]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strings": "Siemens"}, "several strings"),
        ({"strings": ["a", None]}, "NoneType"),
        ({"strings": ["a"], "best": 0}, "best=0"),
        ({"strings": ["a"], "threshold": 2}, "threshold=2"),
        ({"strings": ["a"], "context": "b"}, "one text for each"),
        ({"strings": ["a"], "context": ["b"]}, "needs an entity encoder"),
    ],
)
def test_wrong_arguments_are_refused(mapper, arguments, message):
    with pytest.raises(UsageError, match=message):
        list(mapper.map(**arguments))


def test_a_context_must_be_text_and_as_long_as_the_strings(meaning_mapper):
    with pytest.raises(UsageError, match="int among its texts"):
        list(meaning_mapper.map(["a"], [3]))
    for context in ([], ["b", "c"]):
        with pytest.raises(UsageError, match="one for each string"):
            list(meaning_mapper.map(["a"], context))
    assert len(list(meaning_mapper.map(["Siemens"], [None]))) == 1


def test_a_linker_maps_and_follows_changes(tmp_path, names_kb):
    path = tmp_path / "changing.kb"
    path.write_bytes(names_kb.read_bytes())
    with Linker.load(path, "prior") as linker:
        assert [one.entity for one in linker.map(["Siemens", "Zorblax"])] == ["m1", None]
        linker.kb.add(Entity("z1", "Zorblax", "new"))
        assert [one.entity for one in linker.map(["Siemens", "Zorblax"])] == ["m1", "z1"]
        linker.kb.remove("z1")
        assert [one.entity for one in linker.map(["Zorblax"])] == [None]


def test_choices_of_a_group_and_none_sum_to_one():
    found = choice_probabilities(np.array([0.0, 0.0, 800.0, -900.0]), np.array([0, 0, 1, 2]), 4)
    assert found[:2] == pytest.approx([1 / 3, 1 / 3])
    assert found[2] == pytest.approx(1)
    assert found[3] == pytest.approx(0)
    assert len(choice_probabilities(np.zeros(0), np.zeros(0, np.int64), 2)) == 0


def test_a_scorer_is_saved_and_loaded(tmp_path):
    packaged().save(tmp_path / "scorer.json")
    again = NameScorer.load(tmp_path / "scorer.json")
    assert all((again.weights[kind] == packaged().weights[kind]).all() for kind in packaged().weights)
    for broken in ("{}", "nonsense", (tmp_path / "scorer.json").read_text().replace('"cosine"', '"cosines"')):
        (tmp_path / "broken.json").write_text(broken)
        with pytest.raises(InputError, match="is not a name scorer"):
            NameScorer.load(tmp_path / "broken.json")


def test_the_packaged_scorer_prefers_what_people_would():
    weights = dict(zip(FEATURES, scorer.packaged().weights["names"], strict=True))
    assert weights["both_covered"] > 0
    assert weights["log_prior"] > 0
    assert weights["exact"] > 0
    assert weights["one"] < 0


def test_a_kb_without_entities_maps_nothing(tmp_path):
    from wellread.kb.build import Origin, build
    from wellread.mapping.mapper import NameMapper

    build(lambda tally: iter(()), tmp_path / "empty.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "empty.kb") as kb:
        assert [one.entity for one in NameMapper.load(kb).map(["Siemens", ""])] == [None, None]
