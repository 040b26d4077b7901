"""Short texts give the same matches and mentions in plain Python as with arrays."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.mentions.conftest import NAMES, SENSES, entity
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity, Form
from wellread.kb.store import KnowledgeBase
from wellread.mentions import candidates
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.mentions.matcher import Matcher, hash_set
from wellread.mentions.short_texts import ShortTextMatcher
from wellread.text.stopwords import STOP_WORDS
from wellread.text.words import split, word_spans

WORDS = st.sampled_from(
    [
        *("New York", "new", "York", "CITY", "big apple", "US", "U.S.", "C++", "Beyonce\u0301", "東京", "Tokyo"),
        *("axes", "ax", "ran", "runs", "run", "out", "attorneys", "general", "was", "geese", "WA", "Wa", "glasses"),
        *("don't", "Don", "the", "The", "who", "Who", "it", "of", "happiest", "-", ".", "x", "é", "👩\u200d🚀"),
    ]
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", "", "-", "\n", "_", " \u0301"])), max_size=25).map(
    lambda parts: "".join(word + join for word, join in parts)
)
ADDED = [
    Entity("who", "The Who", aliases={"The Who": 1, "don": 1, "New York Tokyo": 2, "x": 1}),
    Entity("geese-v", "geese", kind="v", aliases={"goose": 2, "glass ran": 1}),
]


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    """Return KBs of names and of senses, as built and with changes laid over the compiled names."""
    found = []
    for name, origin, records in (
        ("names", Origin("test"), [*map(entity, NAMES), ADDED[0]]),
        ("senses", Origin("test", extra={"inflection": "wordnet"}), [*SENSES, ADDED[0], Form("geese", "glass", "n")]),
    ):
        path = tmp_path_factory.mktemp("kb") / f"{name}.kb"
        build(lambda tally, records=records: iter(records), path, origin=origin)
        kb = KnowledgeBase.open(path, writable=True)
        compiled = Matcher.of(kb)
        found.append((kb, compiled))
        kb.remove(["run-v" if name == "senses" else "Q1384"])
        kb.add([ADDED[1]])
        found.append((kb, compiled.refresh(kb)))
    yield found
    for kb, _ in found[::2]:
        kb.close()


OPTIONS = {
    "overlaps": st.sampled_from(["longest", "all"]),
    "min_chars": st.integers(1, 4),
    "max_words": st.sampled_from([None, 0, 1, 2]),
}


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(0, 3), st.booleans(), st.fixed_dictionaries(OPTIONS))
@example("I don't run out of New-York's", 3, True, {"overlaps": "all", "min_chars": 1, "max_words": None})
@example("it ran, Apple", 3, False, {"overlaps": "all", "min_chars": 1, "max_words": None})
@example("State of New York", 1, False, {"overlaps": "all", "min_chars": 1, "max_words": None})
@example("who is The Who?", 0, True, {"overlaps": "longest", "min_chars": 2, "max_words": None})
def test_a_short_text_has_the_same_matches_in_plain_python_as_with_arrays(kbs, text, number, stopped, options):
    matcher = kbs[number][1]
    stops = hash_set(STOP_WORDS) if stopped else None
    found = matcher.find(text, stop_words=STOP_WORDS if stopped else (), **options)
    borders = [*found.heads().tolist(), len(found)]
    expected = [
        (int(found.starts[head]), int(found.ends[head]), found.stands(head, after)) for head, after in pairwise(borders)
    ]
    assert ShortTextMatcher(matcher, stops).find(text, **options) == expected


@settings(max_examples=100, deadline=None)
@given(
    TEXTS,
    st.integers(0, 1),
    st.sampled_from([(), ("who", "York", "'t")]),
    st.sampled_from([None, "all", "longest"]),
    st.booleans(),
)
@example("axes and a run, New York", 1, (), "all", True)
def test_mentions_of_a_short_text_are_those_of_arrays(kbs, text, number, edges, overlaps, tagged):
    finder = CandidateFinder(kbs[2 * number][0], MatchOptions(edge_words=edges))
    tags = [{span: "nv"[row % 2] for row, span in enumerate(word_spans(text))}] if tagged else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "SHORT", -1)
        expected = list(finder.mentions_of_many([text], tags=tags, overlaps=overlaps))
    assert list(finder.mentions_of_many([text], tags=tags, overlaps=overlaps)) == expected


@given(st.text(st.sampled_from("aZ1 -_'.\n\x7fé\u0301\u200d東👩\ufffe"), max_size=30))
@example("-a-b--c")
def test_words_have_the_same_borders_one_by_one_as_at_once(text):
    found = split(text)
    assert word_spans(text) == list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def test_a_finder_follows_its_kb_between_short_texts(names_kb):
    finder = CandidateFinder(names_kb)
    assert [mention.text for mention in finder.mentions("Gotham, NYC")] == ["NYC"]
    names_kb.add([Entity("g", "Gotham")])
    names_kb.remove("Q60")
    assert [mention.text for mention in finder.mentions("Gotham, NYC")] == ["Gotham"]
