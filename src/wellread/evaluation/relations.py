"""Scores of relations between two entities of a text, by the rules of the official scorers.

- TACRED (Zhang et al. 2017): micro precision, recall and F1 over all relations but `no_relation`. Where nothing but
  `no_relation` is predicted, precision is 1 and F1 is 0, as in the authors' script.
- SemEval-2010 task 8 (Hendrickx et al. 2010): F1 of each of the nine relations, and their mean ("macro"), without
  `Other`. Its official score counts both directions of a relation as one class, in which an answer with the wrong
  direction is wrong: neither right for its recall nor for its precision ("(9+1)-way, directionality taken into
  account"). The script prints two more, which are here by `direction`. As there, the mean is over the relations that
  the gold labels have, and an example without an answer counts as `Other`.
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
"""What TACRED calls pairs that are in none of its relations."""
OTHER = "Other"
"""The same in SemEval-2010 task 8."""
Direction = Literal["counted", "ignored", "apart"]

_DIRECTION = re.compile(r"\(e[12],e[12]\)$")


@dataclass(frozen=True, slots=True)
class F1Score:
    """Precision, recall, and F1, which is made of both."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, right: int, predicted: int, gold: int, *, silent: float = 0.0) -> F1Score:
        """By counts; `silent` is the precision of who predicts nothing."""
        precision = right / predicted if predicted else silent
        recall = right / gold if gold else 0.0
        return cls(precision, recall, harmonic(precision, recall))


@dataclass(frozen=True, slots=True)
class RelationScores:
    """`macro` is the mean over relations (its F1 is the mean of F1s), `micro` is over all that is predicted."""

    macro: F1Score
    micro: F1Score
    relations: Mapping[str, F1Score]
    accuracy: float
    """The share of all examples that is right, those of the left-out class too."""


def score_tacred(
    gold: Sequence[str], predicted: Sequence[str | None], *, negative: str = NO_RELATION
) -> dict[str, float]:
    """Micro `precision`, `recall` and `f1` of all relations but the negative one; None counts as that."""
    _check(gold, predicted)
    told = [negative if label is None else label for label in predicted]
    right = sum(one == other != negative for one, other in zip(gold, told, strict=True))
    found = F1Score.of(
        right, sum(label != negative for label in told), sum(label != negative for label in gold), silent=1.0
    )
    return {"f1": found.f1, "precision": found.precision, "recall": found.recall}


def score_semeval2010(
    gold: Sequence[str], predicted: Sequence[str | None], *, direction: Direction = "counted", other: str = OTHER
) -> RelationScores:
    """Scores of labels such as "Cause-Effect(e2,e1)"; `direction` = "counted" is official.

    "ignored" looks at relations only, "apart" makes each direction a relation of its own ((2*9+1)-way).
    """
    _check(gold, predicted)
    told = [other if label is None else label for label in predicted]
    if direction == "ignored":
        gold, told = [undirected(label) for label in gold], [undirected(label) for label in told]
    # With direction = "counted" an answer of the wrong direction has its relation's name, and is not right.
    name = undirected if direction == "counted" else str
    asked, answered = Counter(map(name, gold)), Counter(map(name, told))
    right = Counter(name(one) for one, same in zip(gold, told, strict=True) if one == same)
    names = sorted(asked.keys() - {other})
    if not names:
        raise InputError(f"all gold relations are {other!r}; there is no relation to score")
    each = {label: F1Score.of(right[label], answered[label], asked[label]) for label in names}
    micro = F1Score.of(*(sum(counts[label] for label in names) for counts in (right, answered, asked)))
    macro = F1Score(*(_mean([getattr(one, part) for one in each.values()]) for part in ("precision", "recall", "f1")))
    return RelationScores(macro, micro, each, right.total() / len(gold))


def undirected(label: str) -> str:
    """A label without its direction: "Cause-Effect(e2,e1)" -> "Cause-Effect"."""
    return _DIRECTION.sub("", label)


def harmonic(precision: float, recall: float) -> float:
    """F1; 0 where both are."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _check(gold: Sequence[str], predicted: Sequence[str | None]) -> None:
    if len(gold) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(gold)} examples; give one for each")
    if not gold:
        raise InputError("there is nothing to score; is the file empty, or was every example skipped?")
