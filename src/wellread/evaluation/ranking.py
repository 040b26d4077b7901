"""Scores of an order: ROC-AUC, NDCG by query, and how early the first hit comes. Numpy, never torch.

Ties never depend on the order of the examples. AUC counts a tied pair half. NDCG gives examples with the same score
their mean gain, which is the mean over all orders of them (McSherry and Najork 2008; as scikit-learn does).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError, TrainingError
from wellread.evaluation.classification import average_ranks

Floats = NDArray[np.float64]
Gainless = Literal["zero", "skip"]

ESCI_GAINS: Mapping[str, float] = {"E": 1.0, "S": 0.1, "C": 0.01, "I": 0.0}
"""Exact, substitute, complement, irrelevant: what the Shopping Queries benchmark (Reddy et al. 2022) gains by each."""


def roc_auc(right: ArrayLike, scores: ArrayLike) -> float:
    """The chance that a right one scores above a wrong one, ties half; NaN if all are right or all are wrong."""
    right, values = np.asarray(right, dtype=np.bool_), _scores(scores, np.shape(right))
    good = int(right.sum())
    bad = len(right) - good
    if not good or not bad:
        return math.nan
    return float((average_ranks(values)[right].sum() - good * (good + 1) / 2) / (good * bad))


def ndcg(gains: ArrayLike, scores: ArrayLike, *, k: int | None = None) -> float:
    """Discounted gain of the order that the scores give, over that of the best order; 0 where nothing gains."""
    gains = np.asarray(gains, dtype=np.float64)
    if (gains < 0).any():
        raise InputError(f"a gain is {gains.min()}; expected 0 or more")
    if k is not None and k < 1:
        raise InputError(f"NDCG at {k} is asked for; expected 1 or more, or no limit")
    values = _scores(scores, gains.shape)
    discounts = 1 / np.log2(np.arange(len(gains)) + 2.0)
    if k is not None:
        discounts[k:] = 0
    best = float(discounts @ np.sort(gains)[::-1])
    if not best:
        return 0.0
    # The highest score first; equal scores are one group that shares the group's discounts.
    _, group, times = np.unique(-values, return_inverse=True, return_counts=True)
    mean_gains = np.bincount(group, gains) / times
    sums = np.add.reduceat(discounts, np.cumsum(times) - times)
    return float(mean_gains @ sums) / best


def mean_ndcg(
    queries: Sequence[Hashable],
    gains: ArrayLike,
    scores: ArrayLike,
    *,
    k: int | None = None,
    gainless: Gainless = "zero",
) -> float:
    """The mean NDCG of the queries; those where nothing gains count 0, or (`skip`) not at all. NaN if none counts."""
    gains = np.asarray(gains, dtype=np.float64)
    values = _scores(scores, gains.shape)
    if len(queries) != len(gains):
        raise InputError(f"{len(queries)} queries for {len(gains)} gains; give the query of each example")
    places: dict[Hashable, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query, []).append(place)
    found = [
        ndcg(gains[some], values[some], k=k) for some in places.values() if gainless == "zero" or gains[some].any()
    ]
    return math.fsum(found) / len(found) if found else math.nan


def recall_at(hits: Sequence[Sequence[bool]], k: int) -> float:
    """The share of questions with a hit among their first `k`; `hits` are in ranked order. NaN without questions."""
    return sum(any(some[:k]) for some in hits) / len(hits) if hits else math.nan


def first_hits(hits: Sequence[Sequence[bool]]) -> list[int | None]:
    """The rank of each question's first hit, from 1; None where there is none."""
    return [next((rank for rank, hit in enumerate(some, 1) if hit), None) for some in hits]


def mean_reciprocal_rank(ranks: Sequence[int | None]) -> float:
    """The mean of 1 / rank, where None (not found) counts 0; NaN without ranks."""
    return math.fsum(1 / rank for rank in ranks if rank is not None) / len(ranks) if ranks else math.nan


def ranked(scores: ArrayLike) -> NDArray[np.int64]:
    """Places from the highest score to the lowest; of equal ones the earlier first."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable").astype(np.int64)


def _scores(scores: ArrayLike, shape: tuple[int, ...]) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.shape != shape:
        raise InputError(f"scores of shape {values.shape} for examples of {shape}; give one score for each example")
    if np.isnan(values).any():
        raise TrainingError("a score is NaN; the training diverged: try a lower learning_rate, or more warmup")
    return values
