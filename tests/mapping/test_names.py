"""Normal forms, 3-grams and the index of names."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wellread.mapping.name_index import NamedEntity, NameIndex, deletions
from wellread.mapping.ngrams import NgramIndex
from wellread.mapping.normal_form import normal_words, numbers, word_similarity


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Dr. Martens®", "dr martens"),
        ("Köln", "koln"),
        ("C++", "c + +"),
        ("O’Neil's", "oneils"),
        ("  New\tYork ", "new york"),
        ("AT&T", "at t"),
        ("well-known", "well known"),
        ("!!!", "! ! !"),
        ("", ""),
        ("東京", "東 京"),
    ],
)
def test_names_have_a_normal_form(name, form):
    assert " ".join(normal_words(name)) == form


@given(st.text(max_size=20))
@example("ß")
@example("\u0301")
@example("ǅ")
def test_the_normal_form_of_a_normal_form_is_itself(name):
    form = " ".join(normal_words(name))
    assert " ".join(normal_words(form)) == form


def test_numbers_tell_products_apart():
    assert numbers("wh1000xm5") == ("1000", "5")
    assert numbers("ii") == ("ii",)
    assert numbers("007") == ("7",)
    assert numbers("mix") == numbers("i") == ()


def test_words_are_similar_by_typos_and_abbreviations():
    assert word_similarity("siemesn", "siemens") > 0.8
    assert word_similarity("intl", "international") > 0.4
    assert word_similarity("m", "marie") > 0.4
    assert word_similarity("1998", "1999") == 0
    assert word_similarity("cat", "dog") == 0


def test_the_nearest_name_shares_most_rare_grams():
    index = NgramIndex.build(["siemens ag", "bosch ag", "otto ag", "curie"])
    vectors = index.encode(["simens", "currie", "zzz", ""])
    found = index.nearest(vectors, 2)
    assert [row[:1].tolist() for row in found] == [[0], [3], [], []]
    cosines = index.cosines(index.encode(["siemens ag"]), np.array([0, 0]), np.array([0, 3]))
    assert cosines[0] == pytest.approx(1)
    assert cosines[1] == 0


def test_an_index_without_names_finds_nothing():
    index = NameIndex.build([])
    assert len(index) == 0
    assert index.rows_of(["paris"]) == {}
    assert [row.tolist() for row in index.ngrams.nearest(index.ngrams.encode(["paris"]), 3)] == [[]]


def test_rows_are_found_by_letters_order_initials_and_typos():
    names = ["United Nations", "Wi-Fi", "Marie Curie", "Rome", "UNICEF"]
    index = NameIndex.build(NamedEntity(name, name, 0, "", []) for name in names)

    def found(text):
        return [index.forms[row] for row in index.rows_of(normal_words(text))]

    assert found("curie marie") == ["marie curie"]
    assert found("wifi") == ["wi fi"]
    assert found("UN") == ["united nations"]
    assert found("Rmoe") == found("Rom") == found("Romme") == ["rome"]
    assert found("Lisbon") == []
    assert deletions("ab") == {"ab", "a", "b"}


def test_names_of_two_entities_share_the_prior():
    index = NameIndex.build(
        [
            NamedEntity("a", "Paris", 9, "", [("Paris", 8.5)]),
            NamedEntity("b", "Paris (Texas)", 1, "", [("paris", 0.5)]),
        ]
    )
    holders = index.bearers[index.by_form["paris"]]
    assert [(holder.entity, round(holder.prior, 2), holder.is_title) for holder in holders] == [
        (0, 0.9, True),
        (1, 0.1, False),
    ]
