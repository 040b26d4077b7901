"""Scores of entity types (several per mention): macro, micro and strict, as the ultra-fine scorer computes them.

- macro: precision is the mean over mentions with a prediction, recall the mean over mentions with a gold type, F1 their
  harmonic mean (Ling and Weld's loose macro; reported for ultra-fine types).
- micro: over all types of all mentions (reported for the nine general types of Open Entity).
- strict: the share of mentions whose predicted types are exactly the gold types.

Precision is 0 without predictions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wellread.errors import InputError
from wellread.evaluation.relations import F1Score, harmonic

GENERAL = ("entity", "event", "group", "location", "object", "organization", "person", "place", "time")
"""The nine general types of Open Entity (Choi et al. 2018)."""


@dataclass(frozen=True, slots=True)
class TypeScores:
    """Macro, micro and strict scores."""

    macro: F1Score
    micro: F1Score
    strict: float

    def to_dict(self) -> dict[str, float]:
        """Return the scores by name: micro_f1, macro_precision, strict, …"""
        scores = {
            f"{way}_{part}": getattr(getattr(self, way), part)
            for way in ("micro", "macro")
            for part in ("f1", "precision", "recall")
        }
        return scores | {"strict": self.strict}


def score_types(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], *, only: Collection[str] | None = None
) -> TypeScores:
    """Score the types of each mention; `only` restricts the types, for example to `GENERAL`."""
    if len(gold) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(gold)} mentions; give one for each, empty or not")
    if not gold:
        raise InputError("there is nothing to score; is the file empty, or was every mention skipped?")
    kept = None if only is None else set(only)
    wanted, found = ([set(some) if kept is None else set(some) & kept for some in side] for side in (gold, predicted))
    shared = [len(one & other) for one, other in zip(wanted, found, strict=True)]
    precision = _mean([right / len(some) for right, some in zip(shared, found, strict=True) if some])
    recall = _mean([right / len(some) for right, some in zip(shared, wanted, strict=True) if some])
    return TypeScores(
        F1Score(precision, recall, harmonic(precision, recall)),
        F1Score.of(sum(shared), sum(map(len, found)), sum(map(len, wanted))),
        _mean([one == other for one, other in zip(wanted, found, strict=True)]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
