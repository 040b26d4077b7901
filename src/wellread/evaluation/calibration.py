"""Is a score of 0.8 right eight times in ten, and where is the best threshold? Numpy, never torch.

Calibration error is told in two ways. `width`: bins of equal width, as in most papers; the bins near 1 hold nearly all
links of a sure linker, so it says little of the rest. `mass`: bins of about equally many predictions. Equal scores are
always in the same bin, so that the order of the predictions does not matter.

Recall counts the gold links that were never predicted: it is over all gold links, not over the predictions that are
right. Of a threshold, the predictions with that score or more are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Binning = Literal["width", "mass"]

_RIDGE = 1e-4
"""The pull towards scale 1 and bias 0, as heavy as a ten-thousandth of an example: without it, a perfect separation has
no best scale."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scores of predicted links from 0 to 1, which of them are right, and how many gold links there are."""

    scores: ArrayLike
    right: ArrayLike
    gold: int

    def __post_init__(self) -> None:
        scores, right = _checked(self.scores, self.right)
        if right.sum() > self.gold:
            raise InputError(
                f"{right.sum()} predictions are right of {self.gold} gold links; count each gold link once"
            )
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "right", right)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Bins that hold a prediction, from low to high: how many, how sure on average, how often right."""

    count: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of confidence and accuracy; 0 without predictions."""
        total = self.count.sum()
        return float((self.count * np.abs(self.confidence - self.accuracy)).sum() / total) if total else 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """What a threshold gives."""

    threshold: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, eq=False)
class PrCurve:
    """Precision and recall for every threshold that makes a difference, the highest first."""

    threshold: Floats
    precision: Floats
    recall: Floats
    f1: Floats
    gold: int

    @property
    def best(self) -> Point:
        """The point with the most F1, of equal ones the highest threshold; infinite where no link is best."""
        if not self.gold or not len(self.f1):
            perfect = float(not self.gold)  # nothing to find and nothing found is perfect, as in `score_linking`
            return Point(math.inf, perfect, perfect, perfect)
        at = int(np.argmax(self.f1))
        return Point(*(float(each[at]) for each in (self.threshold, self.precision, self.recall, self.f1)))

    @property
    def average_precision(self) -> float:
        """The area under the curve as steps: precision, weighted by the recall that each threshold adds."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())


def reliability(scores: ArrayLike, right: ArrayLike, *, bins: int = 10, by: Binning = "width") -> Reliability:
    """Predictions in bins by their score; bins that hold none are left out."""
    scores, right = _checked(scores, right)
    if by == "width":
        place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    else:
        # The rank of the first that scores the same: equal scores stay together.
        place = np.searchsorted(np.sort(scores), scores) * bins // max(1, len(scores))
    _, place, count = np.unique(place, return_inverse=True, return_counts=True)
    confidence = np.bincount(place, scores, minlength=len(count)) / count
    accuracy = np.bincount(place, right, minlength=len(count)) / count
    return Reliability(count.astype(np.int64), confidence, accuracy)


def fit_temperature(logits: ArrayLike, right: ArrayLike, *, rounds: int = 100) -> tuple[float, float]:
    """Scale and bias so that sigmoid(scale · logit + bias) is as likely as can be (Platt 1999), by Newton's method.

    Few right ones, or a perfect separation, keep a finite scale; without predictions it is (1, 0).
    """
    x, y = _checked(logits, right, share=False)
    columns = np.stack([x, np.ones_like(x)], axis=1)
    start = np.array([1.0, 0.0])
    weights, loss = start, _log_loss(columns @ start, y)
    for _ in range(rounds):
        chance = 0.5 * (1 + np.tanh(0.5 * (columns @ weights)))
        slope = columns.T @ (chance - y) + _RIDGE * (weights - start)
        curve = (columns * (chance * (1 - chance))[:, None]).T @ columns + _RIDGE * np.eye(2)
        move = np.linalg.solve(curve, slope)
        size = 1.0
        while size > 1e-9:  # half the way as often as the loss would grow
            tried = weights - size * move
            new = _log_loss(columns @ tried, y) + 0.5 * _RIDGE * float(((tried - start) ** 2).sum())
            if new <= loss:
                break
            size /= 2
        else:
            break
        weights, loss = tried, new
        if np.abs(size * move).max() < 1e-10:
            break
    return float(weights[0]), float(weights[1])


def pr_curve(predictions: Predictions) -> PrCurve:
    """Precision, recall and F1 at each score that a prediction has."""
    scores, right = _checked(predictions.scores, predictions.right)
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], right[order]
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)[: len(scores)])
    kept, hits = last + 1, np.cumsum(right)[last]
    recall = hits / predictions.gold if predictions.gold else np.zeros(len(last))
    return PrCurve(scores[last], hits / kept, recall, 2 * hits / (kept + predictions.gold), predictions.gold)


def calibrate(predictions: Predictions) -> dict[str, Any]:
    """All of the above in figures, for JSON."""
    curve = pr_curve(predictions)
    best = curve.best
    return {
        "predicted": len(_checked(predictions.scores, predictions.right)[0]),
        "gold": predictions.gold,
        "average_precision": curve.average_precision,
        "best_threshold": best.threshold if math.isfinite(best.threshold) else None,
        "best_f1": best.f1,
        "error_by_width": reliability(predictions.scores, predictions.right).error,
        "error_by_mass": reliability(predictions.scores, predictions.right, by="mass").error,
    }


def _log_loss(logits: Floats, right: Bools) -> float:
    return float(np.logaddexp(0.0, np.where(right, -logits, logits)).sum())


def _checked(scores: ArrayLike, right: ArrayLike, *, share: bool = True) -> tuple[Floats, Bools]:
    """Arrays of one length, without what is not a number."""
    values, hits = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=np.bool_)
    if values.ndim != 1 or values.shape != hits.shape:
        raise InputError(
            f"{values.shape} scores and {hits.shape} answers; give one answer, right or not, for each score"
        )
    wrong = values[~(np.isfinite(values) if not share else (values >= 0) & (values <= 1))]
    if len(wrong):
        expected = "from 0 to 1; make shares of logits with a sigmoid" if share else "a finite number"
        raise InputError(f"a score is {wrong[0]}; expected {expected}")
    return values, hits
