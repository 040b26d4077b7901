"""Ranking metrics: ROC-AUC, NDCG by query, recall and reciprocal rank; free of torch.

Ties do not depend on the order of the examples. AUC counts a tied pair half. NDCG gives examples with the same score
their mean gain, which is the mean over all orders of them (McSherry and Najork 2008; as in scikit-learn, whose function
takes milliseconds per query and does not accept a single example).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError, TrainingError

Floats = NDArray[np.float64]
Gainless = Literal["zero", "skip"]

ESCI_GAINS: Mapping[str, float] = {"E": 1.0, "S": 0.1, "C": 0.01, "I": 0.0}
"""Gains of exact, substitute, complement and irrelevant in the Shopping Queries benchmark (Reddy et al. 2022)."""


def roc_auc(right: ArrayLike, scores: ArrayLike) -> float:
    """Return the probability that a right example scores above a wrong one; NaN if all are right or all wrong."""
    from scipy.stats import rankdata

    right, values = np.asarray(right, dtype=np.bool_), _scores(scores, np.shape(right))
    good = int(right.sum())
    bad = len(right) - good
    if not good or not bad:
        return math.nan
    return float((rankdata(values)[right].sum() - good * (good + 1) / 2) / (good * bad))


def ndcg(gains: ArrayLike, scores: ArrayLike, *, k: int | None = None) -> float:
    """Return the discounted gain of the order by score, relative to the best order; 0 if all gains are 0."""
    gains = np.asarray(gains, dtype=np.float64)
    if (gains < 0).any():
        raise InputError(f"a gain is {gains.min()}; expected 0 or more")
    if k is not None and k < 1:
        raise InputError(f"k is {k}; expected 1 or more, or None for no limit")
    values = _scores(scores, gains.shape)
    discounts = 1 / np.log2(np.arange(len(gains)) + 2.0)
    if k is not None:
        discounts[k:] = 0
    best = float(discounts @ np.sort(gains)[::-1])
    if not best:
        return 0.0
    # Highest score first; a group of equal scores shares its discounts.
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
    """Return the mean NDCG of the queries; those without gain count 0 or are skipped. NaN if none is left."""
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
    """Return the share of questions with a hit among their first `k` ranked results; NaN without questions."""
    return sum(any(some[:k]) for some in hits) / len(hits) if hits else math.nan


def first_hits(hits: Sequence[Sequence[bool]]) -> list[int | None]:
    """Return the rank of each question's first hit, from 1; None if there is none."""
    return [next((rank for rank, hit in enumerate(some, 1) if hit), None) for some in hits]


def mean_reciprocal_rank(ranks: Sequence[int | None]) -> float:
    """Return the mean of 1 / rank; None (not found) counts 0; NaN without ranks."""
    return math.fsum(1 / rank for rank in ranks if rank is not None) / len(ranks) if ranks else math.nan


def ranked(scores: ArrayLike) -> NDArray[np.int64]:
    """Return indices by descending score; the earlier first on ties."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable").astype(np.int64)


def _scores(scores: ArrayLike, shape: tuple[int, ...]) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.shape != shape:
        raise InputError(f"scores of shape {values.shape} for examples of {shape}; give one score for each example")
    if np.isnan(values).any():
        raise TrainingError("a score is NaN; the training diverged: try a lower learning_rate, or more warmup")
    return values
