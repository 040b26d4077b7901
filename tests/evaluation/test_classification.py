"""Scores of labels and numbers against what loops over the examples say, one by one."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wellread.errors import InputError
from wellread.evaluation.classification import (
    METRICS,
    accuracy,
    f1,
    macro_f1,
    matthews,
    pearson,
    score_labels,
    spearman,
)

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
# Few distinct numbers, so that there are ties.
NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=30)


def split(pairs):
    return [first for first, _ in pairs], [second for _, second in pairs]


def naive_pearson(first, second):
    n = len(first)
    mean, other = math.fsum(first) / n, math.fsum(second) / n
    shared = math.fsum((a - mean) * (b - other) for a, b in zip(first, second, strict=True))
    spread = math.fsum((a - mean) ** 2 for a in first) * math.fsum((b - other) ** 2 for b in second)
    return shared / math.sqrt(spread)


def naive_ranks(values):
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def naive_f1(pairs, positive):
    hits = sum(gold == guess == positive for gold, guess in pairs)
    found, expected = sum(guess == positive for _, guess in pairs), sum(gold == positive for gold, _ in pairs)
    precision, recall = hits / found if found else 0.0, hits / expected if expected else 0.0
    return 2 * precision * recall / (precision + recall) if hits else 0.0


@given(LABELS)
def test_labels_score_as_in_a_loop(pairs):
    gold, guess = split(pairs)
    assert accuracy(gold, guess) == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert f1(gold, guess) == pytest.approx(naive_f1(pairs, 1))
    classes = set(gold) | set(guess)
    assert macro_f1(gold, guess) == pytest.approx(sum(naive_f1(pairs, each) for each in classes) / len(classes))


@given(LABELS)
def test_matthews_is_pearson_of_two_classes(pairs):
    gold, guess = split([(int(a > 1), int(b > 1)) for a, b in pairs])
    expected = 0.0 if len(set(gold)) < 2 or len(set(guess)) < 2 else naive_pearson(gold, guess)
    assert matthews(gold, guess) == pytest.approx(expected, abs=1e-12)


@given(LABELS)
def test_matthews_of_many_classes_is_the_correlation_of_their_indicators(pairs):
    gold, guess = split(pairs)

    def covariance(first, second):
        return sum(
            np.cov([value == each for value in first], [value == each for value in second], bias=True)[0, 1]
            for each in range(4)
        )

    spread = covariance(gold, gold) * covariance(guess, guess)
    expected = covariance(gold, guess) / math.sqrt(spread) if spread > 1e-12 else 0.0
    assert matthews(gold, guess) == pytest.approx(expected, abs=1e-9)


def test_matthews_of_a_known_table():
    gold = [1] * 6 + [0] * 3 + [1] * 2 + [0] * 1  # of cats and dogs, 6 found, 2 missed, 1 taken for one, 3 not
    guess = [1] * 6 + [0] * 3 + [0] * 2 + [1] * 1
    assert matthews(gold, guess) == pytest.approx(0.478, abs=5e-4)


@given(NUMBERS)
def test_correlations_are_those_of_a_loop(pairs):
    first, second = split(pairs)
    if len(set(first)) < 2 or len(set(second)) < 2:
        assert math.isnan(pearson(first, second))
        assert math.isnan(spearman(first, second))
        return
    assert pearson(first, second) == pytest.approx(naive_pearson(first, second), abs=1e-12)
    assert spearman(first, second) == pytest.approx(naive_pearson(naive_ranks(first), naive_ranks(second)), abs=1e-12)


@given(NUMBERS, st.sampled_from([1e-200, 1e-3, 1e200]), st.integers(-3, 3))
def test_correlations_do_not_change_with_scale(pairs, scale, shift):
    first, second = split(pairs)
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    scaled = [scale * (value + shift) for value in second]
    assert pearson(first, scaled) == pytest.approx(pearson(first, second), abs=1e-9)


def test_a_constant_has_no_correlation_whatever_its_digits():
    assert math.isnan(pearson([1, 2, 3], [0.1, 0.1, 0.1]))
    assert math.isnan(pearson([0.3], [0.3]))


def test_f1_of_a_class_that_is_nowhere_is_zero():
    assert f1([0, 0], [0, 0]) == 0
    assert matthews([1, 1], [1, 1]) == 0
    assert f1([0, 1], [0, 1], positive=0) == 1


def test_the_score_is_the_mean_of_the_metrics():
    scores = score_labels([1, 1, 0, 0], [1, 0, 0, 0], ("accuracy", "f1"))
    assert scores == {"accuracy": 0.75, "f1": pytest.approx(2 / 3), "score": pytest.approx((0.75 + 2 / 3) / 2)}


@pytest.mark.parametrize("metric", METRICS)
def test_what_cannot_be_scored_is_refused_with_a_reason(metric):
    with pytest.raises(InputError, match="one for each example"):
        METRICS[metric]([1, 0], [1])
    with pytest.raises(InputError, match="nothing to score"):
        METRICS[metric]([], [])
    with pytest.raises(InputError, match=r"class numbers|finite"):
        METRICS[metric]([0.0, 1.0], [0.5, math.nan])
