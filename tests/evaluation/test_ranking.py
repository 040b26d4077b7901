"""Scores of an order against loops over all pairs and all orders of ties."""

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.errors import InputError, TrainingError
from wellread.evaluation.ranking import (
    ESCI_GAINS,
    first_hits,
    mean_ndcg,
    mean_reciprocal_rank,
    ndcg,
    ranked,
    recall_at,
    roc_auc,
)

SCORED = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=30)
GRADED = st.lists(st.tuples(st.sampled_from(list(ESCI_GAINS.values())), st.integers(0, 2)), min_size=1, max_size=6)


def split(pairs):
    return [first for first, _ in pairs], [second for _, second in pairs]


@given(SCORED)
def test_auc_is_the_share_of_pairs_in_order(pairs):
    good, bad = ([score for right, score in pairs if right is side] for side in (True, False))
    value = roc_auc(*split(pairs))
    if not good or not bad:
        assert math.isnan(value)
    else:
        won = sum((a > b) + (a == b) / 2 for a in good for b in bad)
        assert value == pytest.approx(won / (len(good) * len(bad)))


def discounted(gains, k):
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains[:k]))


@given(GRADED, st.sampled_from([None, 1, 3]))
def test_ndcg_is_the_mean_over_all_orders_of_ties(pairs, k):
    best = discounted(sorted((gain for gain, _ in pairs), reverse=True), k)
    orders = [
        discounted([gain for gain, _ in order], k)
        for order in permutations(pairs)
        if all(order[i][1] >= order[i + 1][1] for i in range(len(order) - 1))
    ]
    expected = sum(orders) / len(orders) / best if best else 0.0
    assert ndcg(*split(pairs), k=k) == pytest.approx(expected)


def test_ndcg_of_a_known_order():
    # Gains 3 2 3 0 1 2 in ranked order, the usual worked example.
    gains = [3, 2, 3, 0, 1, 2]
    assert ndcg(gains, [6, 5, 4, 3, 2, 1]) == pytest.approx(6.861 / 7.141, abs=2e-4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("ESCI"), st.integers(0, 3)), min_size=1, max_size=20))
def test_the_order_of_lines_does_not_matter(lines):
    def scores(some):
        queries, labels, values = zip(*some, strict=True)
        gains = [ESCI_GAINS[label] for label in labels]
        auc = roc_auc([label == "E" for label in labels], values)
        return [auc, mean_ndcg(queries, gains, values), mean_ndcg(queries, gains, values, k=2, gainless="skip")]

    assert scores(lines) == pytest.approx(scores(lines[::-1]), nan_ok=True)


def test_queries_are_scored_each_by_itself():
    queries, gains = ["a", "b", "a", "b"], [1.0, 0.0, 0.0, 1.0]
    scores = [9, 8, 1, 2]  # right for a, wrong for b
    assert mean_ndcg(queries, gains, scores) == pytest.approx((1 + 1 / math.log2(3)) / 2)


def test_a_query_where_nothing_gains_counts_zero_or_not_at_all():
    queries, gains, scores = ["a", "a", "b"], [1.0, 0.0, 0.0], [2, 1, 1]
    assert mean_ndcg(queries, gains, scores) == 0.5
    assert mean_ndcg(queries, gains, scores, gainless="skip") == 1
    assert math.isnan(mean_ndcg(["b"], [0.0], [1], gainless="skip"))


def test_recall_counts_questions_with_an_early_hit():
    hits = [[False, True, True], [True], [], [False, False, False]]
    assert [recall_at(hits, k) for k in (1, 2, 3)] == [0.25, 0.5, 0.5]
    assert first_hits(hits) == [2, 1, None, None]
    assert mean_reciprocal_rank(first_hits(hits)) == pytest.approx(1.5 / 4)
    assert math.isnan(recall_at([], 1))
    assert math.isnan(mean_reciprocal_rank([]))


def test_equal_scores_are_ranked_by_place():
    assert ranked([1, 3, 3, 2]).tolist() == [1, 2, 3, 0]


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(InputError, match="one score for each"):
        roc_auc([True, False], [1])
    with pytest.raises(TrainingError, match="a score is NaN; the training diverged"):
        ndcg([1, 0], [1, math.nan])
    with pytest.raises(InputError, match="0 or more"):
        ndcg([-1, 0], [1, 2])
    with pytest.raises(InputError, match="k is 0; expected 1 or more"):
        ndcg([1, 0], [1, 2], k=0)
    with pytest.raises(InputError, match="query of each"):
        mean_ndcg("q", [1, 0], [1, 2])
