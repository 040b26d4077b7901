"""Mentions with candidates and priors, for names and for word senses."""

from collections import defaultdict
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mentions.conftest import SENSES
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase, rank
from wellread.mentions import candidates as candidates_module
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.mentions.compiled_names import ALL_KINDS, KIND_BITS
from wellread.text.words import CASES, as_signed, key


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
    finder = CandidateFinder(names_kb, MatchOptions(case="exact"))
    assert shown(finder.mentions("Apple and apple and APPLE")) == [("Apple", ["Q312"]), ("apple", ["Q89"])]


def test_at_most_so_many_candidates_with_priors_made_whole(tmp_path):
    many = [Entity(f"e{n:02}", "Smith", popularity=n) for n in range(40)]
    build(lambda tally: iter(many), tmp_path / "x.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        (mention,) = CandidateFinder(kb).mentions("Smith")
        assert len(mention.candidates) == 30
        assert mention.candidates[0].entity == "e39"
        assert sum(c.prior for c in mention.candidates) == pytest.approx(1)
        (mention,) = CandidateFinder(kb, MatchOptions(limit=3)).mentions("Smith")
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


# the same as arrays


def as_objects(found, texts):
    """The arrays of `CandidateFinder.find` as (start, end, candidates) of each text."""
    spans = list(zip(found.starts.tolist(), found.ends.tolist(), found.numbers.tolist(), strict=True))
    return [
        [(start, end, found.lists.lists[number]) for start, end, number in spans[first:last]]
        for first, last in zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True)
    ]


def slowly(finder, text):
    """Every span that the matcher finds looked up by itself, as it is spelled."""
    reading, kb = finder.reading, finder.kb
    found = finder.matcher.find(
        text,
        overlaps=reading.overlaps,
        case=reading.case,
        stop_words=finder.stop_words,
        min_chars=reading.min_chars,
        max_words=reading.max_words,
    )
    stands = defaultdict(list)
    for start, end, node, kinds in zip(*(getattr(found, name).tolist() for name in COLUMNS), strict=True):
        stands[start, end].append((node, kinds))
    mentions = []
    for (start, end), several in stands.items():
        name = text[start:end]
        rows = [
            row
            for node, kinds in dict.fromkeys(several)
            for row in kb.named(as_signed(node))
            if (kinds == ALL_KINDS or KIND_BITS.get(row[5], 0) & kinds)
            and key(row[0], reading.case) == key(name if reading.case != "folded" else row[0], reading.case)
        ]
        if ranked := rank(rows, reading.limit, spelled=name):
            mentions.append((start, end, tuple(ranked)))
    return mentions


COLUMNS = ("starts", "ends", "keys", "kinds")
SPELLED = [
    Entity("month", "March", kind="n", aliases={"March": 2, "march": 1}),
    Entity("walk", "march", kind="n", aliases={"march": 3}),
    Entity("walk-v", "march", kind="v", aliases={"march": 3}),
    Entity("Polish", "Polish", kind="n", popularity=5, aliases={"Polish": 1}),
    Entity("polish", "polish", kind="v", aliases={"polish": 1}),
    *SENSES,
]
SOME = (
    "march March MARCH marches Polish polish polishing ran run runs axes Axes run out of the be was WA US IT it".split()
)
SENTENCES = st.lists(st.lists(st.sampled_from(SOME), max_size=8).map(" ".join), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def spelled_kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("kb") / "spelled.kb"
    build(lambda tally: iter(SPELLED), path, origin=Origin("test", extra={"inflection": "wordnet"}))
    with KnowledgeBase.open(path) as kb:
        yield kb


@pytest.fixture(scope="module")
def finders(spelled_kb):
    readings = [MatchOptions(overlaps, case) for overlaps in ("all", "longest") for case in CASES]
    return [
        CandidateFinder(spelled_kb, reading) for reading in [*readings, MatchOptions("all", limit=2, stop_words=())]
    ]


@settings(max_examples=50, deadline=None)
@given(SENTENCES, st.integers(0, 6))
def test_arrays_objects_and_a_look_up_for_each_span_are_the_same(finders, texts, which):
    finder = finders[which]
    expected = [slowly(finder, text) for text in texts]
    assert as_objects(finder.find(texts), texts) == expected
    objects = [[(m.start, m.end, m.candidates) for m in some] for some in finder.mentions_of_many(texts)]
    assert objects == expected


FORMS = {
    "axes": [("axis", "n"), ("axe", "v")],
    "axed": [("axe", "v")],
    "ran": [("run", "v")],
    "geese": [("goose", "n")],
    "runs": [("run", "n"), ("run", "v")],
    "happiest": [("happy", "a")],
    "attorneys": [("attorney", "n")],
    "was": [("be", "v")],
    "glasses": [("glass", "n")],
}
"""Results of morphy, worked out by hand."""
WORDS = [
    *FORMS,
    "axis",
    "axe",
    "run",
    "out",
    "happy",
    "attorney",
    "general",
    "be",
    "the",
    "glass",
    "Washington",
    "goose",
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=9), st.sampled_from([" ", "-", "_", "  ", ", "]))
def test_candidates_are_those_of_a_reading_by_hand(senses_finder, chosen, between):
    text = between.join(chosen)
    aliases = {
        (tuple(alias.lower().split()), one.kind): (one.id, count)
        for one in ENTITIES
        for alias, count in one.aliases.items()
    }
    expected = {}
    for first in range(len(chosen)):
        for last in range(first + 1, min(first + 3, len(chosen) + 1)):
            if last - first > 1 and between == ", ":
                continue  # a comma is a word too
            start = len(between.join([*chosen[:first], ""])) if first else 0
            end = start + len(between.join(chosen[first:last]))
            counts = {}
            readings = product(*([(word.lower(), None), *FORMS.get(word, [])] for word in chosen[first:last]))
            for reading in readings:
                kinds = {kind for _, kind in reading} - {None}
                for kind in "nvar":
                    known = aliases.get((tuple(word for word, _ in reading), kind))
                    if known and kinds <= {kind}:
                        counts[known[0]] = known[1]
            if counts:
                expected[start, end] = {id: count / sum(counts.values()) for id, count in counts.items()}
    (found,) = as_objects(senses_finder.find([text]), [text])
    assert {(start, end): {c.entity: pytest.approx(c.prior) for c in some} for start, end, some in found} == expected
    assert all([c.prior for c in some] == sorted((c.prior for c in some), reverse=True) for *_, some in found)


ENTITIES = [one for one in SENSES if isinstance(one, Entity)]


@pytest.fixture(scope="module")
def senses_finder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kb") / "senses.kb"
    build(lambda tally: iter(SENSES), path, origin=Origin("test", extra={"inflection": "wordnet"}))
    with KnowledgeBase.open(path) as kb:
        yield CandidateFinder(kb, MatchOptions("all"))


def test_a_list_that_many_mentions_have_is_there_once(senses_finder):
    found = senses_finder.find(["a run and a Run", "RUN or run", "no"])
    assert found.offsets.tolist() == [0, 2, 4, 4]
    assert len(set(found.numbers.tolist())) == 1


def test_when_too_much_was_met_one_begins_anew(senses_finder, monkeypatch):
    before = senses_finder.find(["a run and geese"])
    assert senses_finder.find(["geese"]).lists is before.lists
    monkeypatch.setattr("wellread.mentions.candidates._MOST_MET", 1)
    after = senses_finder.find(["a run and geese"])
    assert after.lists is not before.lists
    assert as_objects(after, [""]) == as_objects(before, [""])


def test_arrays_of_no_texts_are_empty(senses_finder):
    assert len(senses_finder.find([])) == 0
    assert senses_finder.find([]).offsets.tolist() == [0]
    assert senses_finder.find([""]).offsets.tolist() == [0, 0]


def test_texts_beyond_what_is_matched_as_one_are_found_all_the_same(senses_finder, monkeypatch):
    texts = ["a run", "the geese", "", "axes", "be happy"] * 3
    whole, progress = senses_finder.find(texts), []
    monkeypatch.setattr("wellread.mentions.candidates._TOGETHER", 12)
    parts = senses_finder.find(texts, tell=progress.append)
    assert as_objects(parts, texts) == as_objects(whole, texts)
    assert len(progress) > 3
    assert progress[-1] == len(texts)


def test_arrays_follow_the_kb(names_kb):
    finder = CandidateFinder(names_kb)
    assert len(finder.find(["Gotham"])) == 0
    names_kb.add(Entity("g", "Gotham"))
    assert len(finder.find(["Gotham"])) == 1


def test_what_an_open_change_says_is_not_remembered(names_kb):
    finder = CandidateFinder(names_kb)
    with suppress(ZeroDivisionError), names_kb.change() as change:
        change.add(Entity("g", "Tokyo", aliases={"Tokyo": 3}))
        finder.find(["Tokyo"])
        1 / 0  # noqa: B018
    assert shown(finder.mentions("Tokyo")) == [("Tokyo", ["Q1490"])]


def test_meanings_are_those_of_a_whole_span(senses_finder):
    assert [c.entity for c in senses_finder.meanings("axes")] == ["axis-n", "axe-v"]
    assert [c.entity for c in senses_finder.meanings(" ran ", "v")] == ["run-v"]
    assert senses_finder.meanings("ran", "n") == senses_finder.meanings("ran home") == senses_finder.meanings("") == ()


def test_the_word_before_t_is_an_auxiliary(tmp_path):
    build(lambda tally: iter([Entity("don", "Don"), Entity("can", "can")]), tmp_path / "x.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        finder = CandidateFinder(kb, MatchOptions(stop_words={"the"}))
        found = finder.mentions("Don and can: Don't, don’t, can't, DON'T, Don 't, can' t, can'ts")
        assert [(m.start, m.text) for m in found] == [(0, "Don"), (8, "can"), (41, "Don"), (49, "can"), (57, "can")]


def test_spellings_are_kept_for_a_bounded_number_of_names(names_kb, monkeypatch):
    monkeypatch.setattr(candidates_module, "_MOST_NAMES", 3)
    finder = CandidateFinder(names_kb)
    asked = []
    monkeypatch.setattr(finder.kb, "named", lambda key: asked.append(key) or ())
    for name in ("a", "b", "c", "d", "d", "a"):
        assert finder.found_by(name) == "inflected"
    assert len({*asked}) == 4
    assert len(asked) == 2 * 5  # "a" was forgotten; each name is looked for as it is, and transliterated
