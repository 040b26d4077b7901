"""Scores of a probe for facts against loops."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.errors import InputError, TrainingError
from wellread.evaluation.probe import gold_ranks, score_probe

RANKS = st.lists(
    st.tuples(st.sampled_from(["P19", "P20", "P36"]), st.none() | st.integers(1, 30)), min_size=1, max_size=30
)


def test_words_outside_the_vocabulary_do_not_take_ranks():
    scores = [[9.0, 5.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]]
    assert gold_ranks(scores, [1, 3]).tolist() == [4, 1]
    assert gold_ranks(scores, [1, 3], known_mask=[False, True, False, True]).tolist() == [2, 1]


def test_a_model_that_says_the_same_of_all_words_knows_nothing():
    assert gold_ranks(np.zeros((2, 50)), [0, 49]).tolist() == [50, 50]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_ranks_are_those_of_a_loop(scores, data):
    gold = data.draw(st.integers(0, len(scores) - 1))
    known = [data.draw(st.booleans()) or place == gold for place in range(len(scores))]
    better = sum(known[place] and value >= scores[gold] for place, value in enumerate(scores) if place != gold)
    assert gold_ranks([scores], [gold], known_mask=known).tolist() == [1 + better]


@given(RANKS)
def test_precision_is_reported_over_facts_and_over_relations(pairs):
    scores = score_probe([name for name, _ in pairs], [rank for _, rank in pairs], at=(5, 10))
    ranks = [rank or math.inf for _, rank in pairs]
    assert scores.micro.precision == pytest.approx(sum(rank == 1 for rank in ranks) / len(ranks))
    assert scores.micro.at[5] == pytest.approx(sum(rank <= 5 for rank in ranks) / len(ranks))
    assert scores.micro.mrr == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))
    by_relation = {}
    for name, rank in pairs:
        by_relation.setdefault(name, []).append(rank or math.inf)
    assert list(scores.relations) == list(by_relation)
    firsts = [sum(rank == 1 for rank in some) / len(some) for some in by_relation.values()]
    assert scores.macro.precision == pytest.approx(sum(firsts) / len(firsts))
    assert [one.precision for one in scores.relations.values()] == pytest.approx(firsts)
    assert sum(one.facts for one in scores.relations.values()) == scores.macro.facts == len(pairs)
    assert json.loads(json.dumps(scores.to_dict()))["micro"]["facts"] == len(pairs)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(InputError, match="no facts"):
        score_probe([], [])
    with pytest.raises(InputError, match="rank of each"):
        score_probe(["P19"], [1, 2])
    with pytest.raises(InputError, match="word 1 is not in the vocabulary"):
        gold_ranks([[1.0, 2.0]], [1], known_mask=[True, False])
    with pytest.raises(InputError, match="give"):
        gold_ranks([[1.0, 2.0]], [1, 0])
    with pytest.raises(TrainingError, match="NaN; the training diverged"):
        gold_ranks([[1.0, math.nan]], [0])
