"""Scores of relation classification, by the rules of the official scorers.

- TACRED (Zhang et al. 2017): micro precision, recall and F1 over all relations except `no_relation`. If only
  `no_relation` is predicted, precision is 1 and F1 is 0, as in the authors' script.
- SemEval-2010 task 8 (Hendrickx et al. 2010): F1 of each of the nine relations, and their mean ("macro"), without
  `Other`. The official score treats both directions of a relation as one class, in which an answer with the wrong
  direction is wrong for precision and recall ("(9+1)-way, directionality taken into account"). The script's two other
  scores are available by `direction`. As there, the mean is over the relations in the gold labels, and a missing
  answer counts as `Other`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wellread.errors import InputError

NO_RELATION = "no_relation"
"""TACRED's label of pairs without a relation."""
OTHER = "Other"
"""Label of pairs without a relation in SemEval-2010 task 8."""
Direction = Literal["counted", "ignored", "apart"]

_DIRECTION = re.compile(r"\(e[12],e[12]\)$")


@dataclass(frozen=True, slots=True)
class F1Score:
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, right: int, predicted: int, gold: int, *, silent: float = 0.0) -> F1Score:
        """Compute the scores from counts; `silent` is the precision without predictions."""
        precision = right / predicted if predicted else silent
        recall = right / gold if gold else 0.0
        return cls(precision, recall, harmonic(precision, recall))


@dataclass(frozen=True, slots=True)
class RelationScores:
    """Macro (mean over relations, also of F1) and micro (over all predictions) scores."""

    macro: F1Score
    micro: F1Score
    relations: Mapping[str, F1Score]
    accuracy: float
    """Share of all examples that is right, including the negative class."""


def score_tacred(
    gold: Sequence[str], predicted: Sequence[str | None], *, negative: str = NO_RELATION
) -> dict[str, float]:
    """Return micro `precision`, `recall` and `f1` of all relations except the negative one; None counts as negative."""
    _check(gold, predicted)
    labels = [negative if label is None else label for label in predicted]
    right = sum(one == other != negative for one, other in zip(gold, labels, strict=True))
    found = F1Score.of(
        right, sum(label != negative for label in labels), sum(label != negative for label in gold), silent=1.0
    )
    return {"f1": found.f1, "precision": found.precision, "recall": found.recall}


def score_semeval2010(
    gold: Sequence[str], predicted: Sequence[str | None], *, direction: Direction = "counted", other: str = OTHER
) -> RelationScores:
    """Score labels such as "Cause-Effect(e2,e1)"; `direction` = "counted" is official.

    "ignored" compares relations without direction, "apart" makes each direction its own class ((2*9+1)-way).
    """
    _check(gold, predicted)
    labels = [other if label is None else label for label in predicted]
    if direction == "ignored":
        gold, labels = [undirected(label) for label in gold], [undirected(label) for label in labels]
    # With direction = "counted", an answer with the wrong direction counts for its relation, but not as right.
    name = undirected if direction == "counted" else str
    wanted, answered = Counter(map(name, gold)), Counter(map(name, labels))
    right = Counter(name(one) for one, same in zip(gold, labels, strict=True) if one == same)
    names = sorted(wanted.keys() - {other})
    if not names:
        raise InputError(f"all gold relations are {other!r}; there is no relation to score")
    each = {label: F1Score.of(right[label], answered[label], wanted[label]) for label in names}
    micro = F1Score.of(*(sum(counts[label] for label in names) for counts in (right, answered, wanted)))
    macro = F1Score(*(_mean([getattr(one, part) for one in each.values()]) for part in ("precision", "recall", "f1")))
    return RelationScores(macro, micro, each, right.total() / len(gold))


def undirected(label: str) -> str:
    """Return a label without its direction: "Cause-Effect(e2,e1)" -> "Cause-Effect"."""
    return _DIRECTION.sub("", label)


def harmonic(precision: float, recall: float) -> float:
    """Return F1; 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _check(gold: Sequence[str], predicted: Sequence[str | None]) -> None:
    if len(gold) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(gold)} examples; give one for each")
    if not gold:
        raise InputError("there is nothing to score; is the file empty, or was every example skipped?")
