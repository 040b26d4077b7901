"""Words, folding and keys: the rules in `text/words.py`, and the two ways to compute them held to each other."""

import gc
import tracemalloc
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.text import words as names

TRICKY = st.text(
    st.sampled_from("aAbß éÉe\u0301ﬁ-–_'’\t\r\n.3½東京กำ\u200d\u200c\u00ad👩🚀🏽\ufe0f☺한\u1112\u1161ा\u0915İı"),
    max_size=12,
)
ANY = st.one_of(TRICKY, st.text(max_size=30))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The U.S. economy", ["The", "U", ".", "S", ".", "economy"]),
        ("Jean-Paul's C++", ["Jean", "Paul", "'", "s", "C", "+", "+"]),
        ("well_known - -5 x-", ["well", "known", "-", "-", "5", "x", "-"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("Cafe\u0301 noir", ["Cafe\u0301", "noir"]),
        ("tab\there\r\nthere", ["tab", "here", "there"]),
        ("go 👩\u200d🚀!", ["go", "👩\u200d🚀", "!"]),
        ("thumbs 👍🏽 up", ["thumbs", "👍🏽", "up"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("", []),
        (" \u0301 ", []),
    ],
)
def test_words_are_what_a_reader_would_call_words(text, expected):
    assert names.words(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "same_under"),
    [
        ("New York", "new  york", {"folded", "title"}),
        ("New York", "NEW YORK", {"folded"}),
        ("US", "us", {"folded"}),
        ("May", "may", {"folded", "title"}),
        ("Beyoncé", "Beyonce", {"folded"}),
        ("Café", "Cafe\u0301", {"folded", "title", "exact"}),
        ("Straße", "strasse", {"folded"}),
        ("well-known", "well known", {"folded", "title", "exact"}),
        ("O’Brien", "O'Brien", {"folded"}),
        ("Bill", "Billing", set()),
        ("ab c", "a bc", set()),
        ("a b", "b a", set()),
        ("दिन", "दीन", set()),
    ],
)
def test_names_are_the_same_under_the_policies_that_say_so(one, other, same_under):
    assert {case for case in names.CASES if names.key(one, case) == names.key(other, case)} == same_under


@given(ANY)
def test_the_whole_text_at_once_gives_the_same_words_as_one_by_one(text):
    expected = names.words(text)
    for case in names.CASES:
        found = names.split(text, case)
        assert [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == expected
        assert found.hashes.tolist() == [names.word_hash(word, case) for word in expected]


@given(st.text(st.characters(max_codepoint=127), max_size=30))
def test_the_ascii_pattern_keeps_the_general_rules(text):
    assert names.words(text) == names.words(text + " é")[:-1]


@given(st.lists(ANY, max_size=8))
def test_many_keys_at_once_are_the_keys_one_by_one(many):
    for case in names.CASES:
        assert names.keys(many, case).tolist() == [names.key(name.replace("\n", " "), case) for name in many]


@given(ANY)
def test_canonically_equal_spellings_have_one_key(text):
    decomposed = unicodedata.normalize("NFD", text)
    assert names.key(text) == names.key(decomposed)


@given(ANY)
def test_nothing_but_blanks_is_lost_between_words(text):
    found = names.split(text)
    assert all(a < b for a, b in zip(found.starts, found.ends, strict=True))
    assert all(end <= start for end, start in zip(found.ends[:-1], found.starts[1:], strict=True))
    left_out = list(text)
    for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
        left_out[start:end] = [""] * (end - start)
    assert not any(letter.isalnum() for letter in left_out)


def test_prefixes_are_the_inner_nodes_of_the_names():
    keys, inner = names.prefix_keys(["New York City", "New Delhi", "York"])
    assert keys.tolist() == [names.key("new york city"), names.key("new delhi"), names.key("york")]
    assert [set(level.tolist()) for level in inner] == [{names.key("new")}, {names.key("new york")}, set()]


def test_a_name_without_words_has_the_key_zero():
    assert names.key(" \t_") == 0
    assert names.keys(["", "x", "_"]).tolist() == [0, names.key("X"), 0]


def test_a_key_fits_the_signed_integers_of_sqlite():
    for name in ("a", "b", "c", "d", "New York"):
        assert -(2**63) <= names.as_signed(names.key(name)) < 2**63
        assert names.as_signed(names.key(name)) % 2**64 == names.key(name)


def test_texts_with_many_different_characters_keep_no_memory():
    texts = ["".join(map(chr, range(first, first + 10_000))) for first in range(0x10000, 0x1E000, 10_000)]
    found = [
        names.split(text, case) for text in ("a é", *texts[:1]) for case in names.CASES
    ]  # tables and code are there
    tracemalloc.start()
    try:
        for text in texts:
            for case in names.CASES:
                found = names.split(text, case)
            assert len(found.starts) == len(names.words(text))
            names.key(text[:2_000])
        del found
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 12_000_000


def test_characters_that_were_forgotten_keep_their_keys():
    spelled = ["Āryabhaṭa", "ﬁsh", "東京"]
    before = [names.key(name, case) for name in spelled for case in names.CASES]
    for first in range(0x4E00, 0x4E00 + 20_000, 500):
        for case in names.CASES:
            names.key("".join(map(chr, range(first, first + 500))), case)
    assert [names.key(name, case) for name in spelled for case in names.CASES] == before


def test_threads_with_texts_of_many_lengths_agree():
    texts = ["ab é " * length for length in (1, 7_000, 300, 25_000, 60_000, 1_000)]
    want = [names.split(text).hashes[0] for text in texts]
    for _ in range(5):
        names._tables.powers = names._tables.inverses = np.ones(1, np.uint64)
        with ThreadPoolExecutor(6) as pool:
            assert [found.hashes[0] for found in pool.map(names.split, texts)] == want
