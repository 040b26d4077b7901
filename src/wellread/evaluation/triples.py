"""Scores of link prediction: the rank of the right object of (subject, relation, ?) among all entities.

Filtered (Bordes et al. 2013): other right objects are not counted as errors. Entities with the same score as the right
one share the mean of their ranks, so a constant model ranks neither first nor last. Free of torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError, TrainingError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FactScores:
    """Mean reciprocal rank, hits at k and mean rank over some queries."""

    mrr: float
    hits: Mapping[int, float]
    mean_rank: float
    queries: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, for JSON."""
        return asdict(self)

    def flat(self) -> dict[str, float]:
        """Return the scores by name: mrr, hits@1, …"""
        return {"mrr": self.mrr, **{f"hits@{k}": share for k, share in self.hits.items()}}


def filtered_ranks(scores: ArrayLike, gold: ArrayLike, known: ArrayLike = (), known_of: ArrayLike = ()) -> Floats:
    """Return ranks from 1 of the gold entities; `scores` are (query, entity).

    `known` are other right entities, and `known_of` their queries; gold entities may be among them.
    """
    values, right = np.asarray(scores), np.asarray(gold, np.int64)
    others, rows = np.asarray(known, np.int64), np.asarray(known_of, np.int64)
    if values.ndim != 2 or right.shape != values.shape[:1] or others.shape != rows.shape:
        raise InputError(
            f"scores of shape {values.shape}, gold entities of {right.shape}, known ones of {others.shape} for queries "
            f"of {rows.shape}; give (query, entity), (query), and two of equal shape"
        )
    own = values[np.arange(len(right)), right]
    if np.isnan(values).any():
        raise TrainingError(
            "the score of a fact is NaN; the training diverged: try a lower learning_rate, or more warmup"
        )
    above = np.count_nonzero(values > own[:, None], axis=1)
    not_below = np.count_nonzero(values >= own[:, None], axis=1)
    # Known entities are subtracted instead of masked, since they are few and the scores are many.
    distinct = np.unique(np.stack([rows, others], axis=1), axis=0)
    distinct = distinct[distinct[:, 1] != right[distinct[:, 0]]]
    other_scores, gold_score = values[distinct[:, 0], distinct[:, 1]], own[distinct[:, 0]]
    above = above - np.bincount(distinct[other_scores > gold_score, 0], minlength=len(right))
    not_below = not_below - np.bincount(distinct[other_scores >= gold_score, 0], minlength=len(right))
    return np.asarray((above + 1 + not_below) / 2, np.float64)


def score_ranks(ranks: ArrayLike, *, at: Sequence[int] = (1, 3, 10)) -> FactScores:
    """Return the scores of ranks; NaN without any."""
    values = np.asarray(ranks, np.float64)
    if not len(values):
        return FactScores(math.nan, dict.fromkeys(at, math.nan), math.nan, 0)
    hits = {k: float((values <= k).mean()) for k in at}
    return FactScores(float((1 / values).mean()), hits, float(values.mean()), len(values))


def score_by(names: Sequence[str], ranks: ArrayLike, *, at: Sequence[int] = (1, 3, 10)) -> dict[str, FactScores]:
    """Return the scores by name (a relation, a direction), the most frequent first."""
    values = np.asarray(ranks, np.float64)
    if len(names) != len(values):
        raise InputError(f"{len(names)} names for {len(values)} ranks; give the name of each query")
    kinds, which, counts = np.unique(np.asarray(names, object).astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable").tolist()
    return {str(kinds[kind]): score_ranks(values[which == kind], at=at) for kind in order}
