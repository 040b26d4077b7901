"""Misspelt words lead to all words within so many edits, as a comparison with every word does."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from wellread.mentions.typos import LONG, SHORTEST, WordIndex, allowed_edits, folded, is_correctable
from wellread.text.words import word_hash

WORDS = st.text("abcd", min_size=1, max_size=14)


def index_of(words):
    return WordIndex.build({word_hash(word): word if is_correctable(word) else "" for word in words})


def naive(index, query):
    """Compare with every word."""
    found = set()
    for row in range(len(index)):
        word = index.word(row)
        if len(word) >= SHORTEST:
            edits = OSA.distance(query, word)
            if edits <= (2 if len(word) >= LONG else 1):
                found.add((word, edits))
    return found


@settings(max_examples=300, deadline=None)
@given(st.sets(WORDS, min_size=1, max_size=30), WORDS)
@example({"abcd"}, "abc")
@example({"abcd"}, "abcda")
@example({"abcda"}, "bcda")
@example({"abcdabcd"}, "abcdabcda")
@example({"abcdabcda"}, "abcdabc")  # nine letters, two left out
@example({"abcdabcda"}, "abcdabcdabc")  # nine letters, two more
@example({"abcdabcd"}, "abcdab")  # eight letters: one edit only
@example({"abcdabcdab"}, "badcabcdab")  # two swaps
@example({"abcdabcdabcd"}, "abcdabcdabdc")  # behind the prefix
@example({"abcdabcda"}, "bcdabcdab")
@example({"abcdabcdd"}, "abcdabcaad")
def test_the_index_finds_what_comparing_with_every_word_finds(words, query):
    index = index_of(words)
    places, rows, edits = index.find([query])
    got = {(index.word(row), edit) for row, edit in zip(rows.tolist(), edits.tolist(), strict=True)}
    expected = naive(index, query) if len(query) >= SHORTEST - 1 else set()
    assert got == expected
    assert not places.any()


@settings(max_examples=100, deadline=None)
@given(st.sets(st.text("abcé中", min_size=4, max_size=12), min_size=1, max_size=10), st.data())
def test_every_single_edit_of_a_word_leads_back_to_it(words, data):
    index = index_of({folded(word) for word in words})
    word = data.draw(st.sampled_from(sorted(filter(is_correctable, map(folded, words))) or ["abcd"]))
    place = data.draw(st.integers(0, len(word) - 1))
    letter = data.draw(st.sampled_from("xyz"))
    for changed in (word[:place] + letter + word[place:], word[:place] + letter + word[place + 1 :]):
        _, rows, _ = index.find([changed])
        if is_correctable(word) and word_hash(word) in index.hashes.tolist():
            assert word in {index.word(row) for row in rows.tolist()}


def test_only_words_of_letters_are_corrected():
    assert [is_correctable(word) for word in ("abcd", "abc", "1998", "wh1000xm4", "straße", "")] == [
        *(True, False, False, False, True, False),
    ]
    index = index_of(["abc", "2024", "abcde"])
    assert index.known(np.array([word_hash("abc"), word_hash("xyz")], np.uint64)).tolist() == [True, False]
    assert [index.word(row) for row in index.find(["abd", "2025", "abcdx"])[1].tolist()] == ["abcde"]


@pytest.mark.parametrize(("letters", "edits"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (100, 2)])
def test_edits_by_the_letters_of_a_name(letters, edits):
    assert allowed_edits(np.array([letters])).tolist() == [edits]


def test_joined_indexes_know_the_words_of_both():
    joined = index_of(["alpha", "beta"]).joined_with([index_of(["gamma", "ab"])])
    assert sorted(joined.words().values()) == ["", "alpha", "beta", "gamma"]
    assert [joined.word(row) for row in joined.find(["gammx"])[1].tolist()] == ["gamma"]


def test_an_empty_index_finds_nothing():
    places, rows, edits = WordIndex.build({}).find(["abcde", "abcdefghijk"])
    assert len(places) == len(rows) == len(edits) == 0
    assert len(index_of(["abcde"]).find([])[0]) == 0
