"""Gold documents made harder."""

import random

import pytest
from benchmarks.variants import add_typo, lowercase, misspell
from hypothesis import given
from hypothesis import strategies as st

from wellread.document import Document, Link


def document(text, *places, **meta):
    return Document(text, tuple(Link(start, end, text[start:end], entity) for start, end, entity in places), "d", meta)


def distance(one, other):
    """Edit distance with swaps of neighbours as one edit."""
    rows = {(i, 0): i for i in range(len(one) + 1)} | {(0, j): j for j in range(len(other) + 1)}
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            rows[i, j] = min(rows[i - 1, j] + 1, rows[i, j - 1] + 1, rows[i - 1, j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                rows[i, j] = min(rows[i, j], rows[i - 2, j - 2] + 1)
    return rows[len(one), len(other)]


@given(st.text("abcdeA -7", min_size=8, max_size=12).map(lambda text: f"ab{text.strip()}cde"), st.integers(0, 999))
def test_a_typo_is_one_edit(word, seed):
    made = add_typo(word, random.Random(seed))
    assert distance(word, made) == 1
    assert made.strip() == made


def test_all_edits_happen_and_the_first_letter_changes_less_than_half_the_time():
    made = [add_typo("marathon", random.Random(seed)) for seed in range(400)]
    assert {len(word) for word in made} == {7, 8, 9}
    assert any(sorted(word) == sorted("marathon") for word in made)
    changed = sum(word[0] != "m" for word in made)
    assert 0 < changed < 100


def test_each_long_mention_has_a_typo_and_everything_else_stays():
    text = "did justin bieber meet ada in stockholm today?"
    gold = document(text, (4, 17, "Q1"), (23, 26, "Q2"), (30, 39, "Q3"), optional=[[40, 45]], evaluate=[[0, 46]])
    (made,) = misspell([gold])
    assert [link.entity for link in made.links] == ["Q1", "Q2", "Q3"]
    assert [
        distance(*pair)
        for pair in zip(("justin bieber", "ada", "stockholm"), (x.text for x in made.links), strict=True)
    ] == [1, 0, 1]
    assert all(made.text[link.start : link.end] == link.text for link in made.links)
    ((start, end),) = made.meta["optional"]
    assert made.text[start:end] == "today"
    assert made.meta["evaluate"] == [[0, len(made.text)]]
    assert made.text.startswith("did ")


def test_the_same_seed_makes_the_same_typos():
    gold = [document("justin bieber", (0, 13, "Q1"))] * 5
    assert misspell(gold) == misspell(gold)
    assert len({made.text for made in misspell(gold)}) > 1


def test_nested_mentions_share_one_typo():
    gold = document("the university of london", (4, 24, "Q1"), (18, 24, "Q2"))
    (made,) = misspell([gold])
    assert distance(gold.text, made.text) == 1
    assert all(made.text[link.start : link.end] == link.text for link in made.links)


@pytest.mark.parametrize("text", ["Ada in ROME", "İstanbul and Rome"])
def test_lower_case_does_not_move_spans(text):
    (made,) = lowercase([document(text, (len(text) - 4, len(text), "Q1"))])
    assert len(made.text) == len(text)
    assert made.links[0].text == "rome"
