"""Tests of significance against enumeration, closed forms and tables of Student's t."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.errors import InputError
from wellread.evaluation.significance import (
    bootstrap_interval,
    compare,
    holm,
    paired_t,
    permutation_test,
    summarise,
)

PAIRS = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=7)


def split(pairs):
    return [first for first, _ in pairs], [second for _, second in pairs]


@given(PAIRS)
def test_few_pairs_are_tried_with_all_signs(pairs):
    differences = [a - b for a, b in pairs]
    flips = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=len(pairs))
    ]
    expected = sum(abs(flip) >= abs(sum(differences)) for flip in flips) / len(flips)
    assert permutation_test(*split(pairs)) == expected


def test_five_seeds_never_reach_five_per_cent():
    assert permutation_test([0.71, 0.72, 0.74, 0.73, 0.75], [0.1] * 5) == 2 / 32


def test_sums_that_differ_in_their_last_bits_are_equal():
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 are different floats; all signs alike must still count both ways.
    assert permutation_test([0.1, 0.2, 0.3], [0, 0, 0]) == 2 / 8


def test_many_pairs_are_drawn_and_near_the_exact():
    draw = np.random.default_rng(5)
    ours = draw.normal(0.3, 1, 13)
    signs = 1 - 2 * ((np.arange(1 << 13)[:, None] >> np.arange(13)) & 1)
    exact = float((np.abs(signs @ ours) >= abs(ours.sum()) - 1e-9).mean())
    found = permutation_test(ours, np.zeros(13), draws=20_000, seed=1)
    assert found == permutation_test(ours, np.zeros(13), draws=20_000, seed=1)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


def test_a_drawn_p_is_never_zero():
    assert permutation_test(np.ones(40), np.zeros(40), draws=99) == 1 / 100
    assert permutation_test(np.zeros(40), np.zeros(40), draws=99) == 1


# The differences -1, 1 around a mean give any t; with 1 and 2 degrees of freedom its p is known in closed form.
@given(st.floats(0.01, 50))
def test_p_of_t_is_the_closed_form(mean):
    t, p = paired_t([mean - 1, mean + 1], [0, 0])
    assert t == pytest.approx(mean)
    assert p == pytest.approx(1 - 2 / math.pi * math.atan(mean), abs=1e-12)
    t, p = paired_t([mean - 1, mean, mean + 1], [0, 0, 0])
    assert t == pytest.approx(mean * math.sqrt(3))
    assert p == pytest.approx(1 - t / math.sqrt(t * t + 2), abs=1e-12)


@pytest.mark.parametrize(
    ("count", "t", "p"),
    [(5, 2.7764451, 0.05), (11, 2.2281389, 0.05), (11, 3.1692727, 0.01), (31, 2.0422725, 0.05), (101, 1.9839715, 0.05)],
)
def test_p_of_t_is_that_of_the_tables(count, t, p):
    differences = np.random.default_rng(count).normal(size=count)
    differences = (differences - differences.mean()) / (differences.std(ddof=1) / math.sqrt(count)) + t
    found, chance = paired_t(differences, np.zeros(count))
    assert found == pytest.approx(t)
    assert chance == pytest.approx(p, abs=1e-7)
    assert paired_t(np.zeros(count), differences) == (pytest.approx(-t), pytest.approx(p, abs=1e-7))


def test_t_of_pairs_without_spread():
    assert all(map(math.isnan, paired_t([1, 2], [1, 2])))
    assert all(map(math.isnan, paired_t([3], [1])))
    assert paired_t([2, 3], [1, 2]) == (math.inf, 0)
    assert paired_t([1, 2], [2, 3]) == (-math.inf, 0)


def test_a_summary_has_the_spread_of_a_sample():
    summary = summarise([1, 2, 3, 4])
    assert (summary.mean, summary.count) == (2.5, 4)
    assert summary.deviation == pytest.approx(math.sqrt(5 / 3))
    assert summary.error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert str(summary) == "2.500 ± 1.291"
    assert str(summarise([0.5])) == "0.500"
    assert math.isnan(summarise([0.5]).error)


def test_a_bootstrap_interval_is_about_that_of_the_normal():
    values = np.random.default_rng(0).normal(3, 2, 400)
    low, high = bootstrap_interval(values)
    error = summarise(values).error
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    narrow = bootstrap_interval(values, level=0.5)
    assert low < narrow[0] < narrow[1] < high
    assert bootstrap_interval([0.7]) == (0.7, 0.7)
    assert bootstrap_interval(values, seed=1) != (low, high)


def test_a_comparison_tells_who_wins():
    found = compare([3, 2, 5, 4], [1, 2, 1, 5])
    assert found.difference.mean == 1.25
    assert (found.wins, found.losses) == (2, 1)
    assert found.permutation_p == permutation_test([3, 2, 5, 4], [1, 2, 1, 5])
    assert found.low <= 1.25 <= found.high
    assert found.to_dict()["difference"]["count"] == 4


def test_holm_corrects_for_the_other_comparisons():
    assert holm([0.01, 0.04]) == [0.02, 0.04]
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []
    assert holm([math.nan, 0.04])[1] == 0.04


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match="2 numbers and 1; expected pairs"):
        compare([1, 2], [1])
    with pytest.raises(InputError, match="at least one number"):
        summarise([])
    with pytest.raises(InputError, match="finite"):
        summarise([1, math.nan])
    with pytest.raises(InputError, match="level"):
        bootstrap_interval([1, 2], level=95)
