"""Filtered ranks against a sorting loop; ties, filters and invalid numbers."""

import math

import numpy as np
import pytest

from wellread.errors import InputError, TrainingError
from wellread.evaluation.triples import filtered_ranks, score_by, score_ranks


def naive_rank(row, gold, known):
    """The mean place of the gold entity over all ways to order equals."""
    rivals = [score for entity, score in enumerate(row) if entity != gold and entity not in known]
    first = 1 + sum(score > row[gold] for score in rivals)
    last = first + sum(score == row[gold] for score in rivals)
    return sum(range(first, last + 1)) / (last - first + 1)


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_ranks_are_those_of_a_loop_with_many_ties(kind):
    chance = np.random.default_rng(0)
    scores = chance.integers(0, 5, (60, 12)).astype(kind)
    gold = chance.integers(0, 12, 60)
    known = [set(chance.integers(0, 12, count).tolist()) for count in chance.integers(0, 6, 60)]
    flat = [(entity, query) for query, of in enumerate(known) for entity in of]
    ranks = filtered_ranks(scores, gold, *zip(*flat, strict=True))
    wanted = [naive_rank(row, g, of) for row, g, of in zip(scores.tolist(), gold.tolist(), known, strict=True)]
    assert ranks.tolist() == wanted
    assert any(rank % 1 for rank in wanted)


def test_a_model_that_says_the_same_of_all_stands_in_the_middle():
    assert filtered_ranks(np.zeros((2, 5)), [0, 4]).tolist() == [3, 3]
    assert filtered_ranks(np.zeros((2, 5)), [0, 4], [0, 1, 2], [0, 0, 0]).tolist() == [2, 3]


def test_known_objects_are_no_mistakes_and_the_gold_one_does_not_filter_itself():
    scores = [[0.9, 0.5, 0.7, 0.1]]
    assert filtered_ranks(scores, [1]).tolist() == [3]
    assert filtered_ranks(scores, [1], [0], [0]).tolist() == [2]
    assert filtered_ranks(scores, [1], [0, 1, 2, 2, 3], [0] * 5).tolist() == [1]


def test_infinite_scores_are_ranked_and_nan_is_refused():
    assert filtered_ranks([[math.inf, 0.0, -math.inf]], [1]).tolist() == [2]
    with pytest.raises(TrainingError, match="NaN"):
        filtered_ranks([[math.nan, 0.0]], [1])


def test_shapes_that_do_not_fit_are_refused():
    for arguments in (([0.5, 0.1], [0]), ([[0.5, 0.1]], [0, 1]), ([[0.5, 0.1]], [0], [1], [0, 0])):
        with pytest.raises(InputError, match="scores of shape"):
            filtered_ranks(*arguments)


def test_scores_are_means_over_queries():
    score = score_ranks([1, 2, 4, 10.5])
    assert score.mrr == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 10.5) / 4)
    assert score.hits == {1: 0.25, 3: 0.5, 10: 0.75}
    assert (score.mean_rank, score.queries) == (4.375, 4)
    assert list(score.flat()) == ["mrr", "hits@1", "hits@3", "hits@10"]
    assert math.isnan(score_ranks([]).mrr)


def test_scores_by_relation_begin_with_the_most_frequent():
    found = score_by(["in", "of", "of"], [1, 2, 4])
    assert {name: (score.mrr, score.queries) for name, score in found.items()} == {"of": (0.375, 2), "in": (1.0, 1)}
    assert list(found) == ["of", "in"]
    with pytest.raises(InputError, match="2 names for 1 ranks"):
        score_by(["in", "of"], [1])
