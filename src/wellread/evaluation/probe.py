"""Scores of fact probes (LAMA, Petroni et al. 2019): the rank of the gold object.

Ranks are within a vocabulary that all compared models share, so that a smaller vocabulary is not easier. Words with the
same score as the gold word rank before it, so constant scores do not help.

`macro`, the mean over relations, is what the authors report for T-REx and Google-RE; `micro` is over all facts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError, TrainingError
from wellread.evaluation.ranking import mean_reciprocal_rank


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """Precision at 1, precision at k and mean reciprocal rank over some facts."""

    precision: float
    at: Mapping[int, float]
    mrr: float
    facts: int


@dataclass(frozen=True, slots=True)
class ProbeScores:
    """Scores of one dataset; relations are in the order of their first fact."""

    micro: ProbeScore
    macro: ProbeScore
    relations: Mapping[str, ProbeScore]

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON."""
        return asdict(self)


def gold_ranks(scores: ArrayLike, gold_ids: ArrayLike, *, known_mask: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return ranks from 1 of the gold words: `scores` are (fact, word), `known_mask` the allowed answers."""
    values, gold = np.asarray(scores), np.asarray(gold_ids)
    mask = np.ones(values.shape[-1], np.bool_) if known_mask is None else np.asarray(known_mask, dtype=np.bool_)
    if values.ndim != 2 or gold.shape != values.shape[:1] or mask.shape != values.shape[1:]:
        raise InputError(
            f"scores of shape {values.shape}, gold words of {gold.shape} and a vocabulary of {mask.shape}; "
            "give (fact, word), (fact) and (word)"
        )
    if len(gold) and not mask[gold].all():
        raise InputError(
            f"the gold word {gold[~mask[gold]][0]} is not in the vocabulary; remove such facts first (see `within`)"
        )
    if np.isnan(values).any():
        raise TrainingError(
            "a score of a word is NaN; the training diverged: try a lower learning_rate, or more warmup"
        )
    own = np.take_along_axis(values, gold[:, None], axis=1)
    return np.asarray(((values >= own) & mask).sum(axis=1), dtype=np.int64)


def score_probe(
    relations: Sequence[str], ranks: Sequence[int | None] | NDArray[np.int64], *, at: Sequence[int] = (10,)
) -> ProbeScores:
    """Score the ranks of gold words by relation; None means not found."""
    if len(relations) != len(ranks):
        raise InputError(f"{len(ranks)} ranks for {len(relations)} facts; give the rank of each")
    if not len(ranks):
        raise InputError("there are no facts to score; is the file empty, or the vocabulary too small?")
    found = [None if rank is None else int(rank) for rank in ranks]
    by_relation: dict[str, list[int | None]] = {}
    for relation, rank in zip(relations, found, strict=True):
        by_relation.setdefault(relation, []).append(rank)
    scores = {relation: _score(some, at) for relation, some in by_relation.items()}
    each = list(scores.values())
    macro = ProbeScore(
        _mean([one.precision for one in each]),
        {k: _mean([one.at[k] for one in each]) for k in at},
        _mean([one.mrr for one in each]),
        len(found),
    )
    return ProbeScores(_score(found, at), macro, scores)


def _score(ranks: Sequence[int | None], at: Sequence[int]) -> ProbeScore:
    precision = {k: _mean([rank is not None and rank <= k for rank in ranks]) for k in (1, *at)}
    return ProbeScore(precision[1], {k: precision[k] for k in at}, mean_reciprocal_rank(ranks), len(ranks))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
