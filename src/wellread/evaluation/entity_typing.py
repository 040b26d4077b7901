"""Scores of entity types, several for each mention: macro, micro and strict, as the ultra-fine scorer has them.

- macro: precision is the mean over mentions that anything is predicted for, recall the mean over mentions that have a
  type; F1 is made of these two (Ling and Weld's loose macro; what is reported for ultra-fine types).
- micro: over all types of all mentions together (what is reported for the nine general types of Open Entity).
- strict: the share of mentions all of whose types are right and no other is predicted.

Where nothing is predicted, precision is 0.
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
    """The three ways to count."""

    macro: F1Score
    micro: F1Score
    strict: float

    def to_dict(self) -> dict[str, float]:
        """By the names that a table has: micro_f1, macro_precision, strict, …"""
        told = {
            f"{way}_{part}": getattr(getattr(self, way), part)
            for way in ("micro", "macro")
            for part in ("f1", "precision", "recall")
        }
        return told | {"strict": self.strict}


def score_types(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], *, only: Collection[str] | None = None
) -> TypeScores:
    """Score the types of each mention; `only` looks at some types alone, as for `GENERAL` among ultra-fine ones."""
    if len(gold) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(gold)} mentions; give one for each, empty or not")
    if not gold:
        raise InputError("there is nothing to score; is the file empty, or was every mention skipped?")
    kept = None if only is None else set(only)
    asked, told = ([set(some) if kept is None else set(some) & kept for some in side] for side in (gold, predicted))
    shared = [len(one & other) for one, other in zip(asked, told, strict=True)]
    precision = _mean([right / len(some) for right, some in zip(shared, told, strict=True) if some])
    recall = _mean([right / len(some) for right, some in zip(shared, asked, strict=True) if some])
    return TypeScores(
        F1Score(precision, recall, harmonic(precision, recall)),
        F1Score.of(sum(shared), sum(map(len, told)), sum(map(len, asked))),
        _mean([one == other for one, other in zip(asked, told, strict=True)]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
