"""Calibration of link scores, and the best threshold; free of torch.

Calibration error is computed in two ways. `width`: bins of equal width, as in most papers; the bins near 1 contain
nearly all links of a confident linker, so it says little about the rest. `mass`: bins of about equally many
predictions. Equal scores are always in the same bin, so the order of the predictions does not matter.

Recall is over all gold links, including those never predicted. A threshold keeps predictions with that score or more.
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
"""Regularisation towards scale 1 and bias 0, with the weight of a ten-thousandth of an example: without it, perfectly
separable data has no best scale.
"""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scores of predicted links from 0 to 1, which of them are right, and the number of gold links."""

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
    """Non-empty bins in ascending order: count, mean confidence, accuracy."""

    count: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of confidence and accuracy; 0 without predictions."""
        total = self.count.sum()
        return float((self.count * np.abs(self.confidence - self.accuracy)).sum() / total) if total else 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """Precision, recall and F1 at a threshold."""

    threshold: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, eq=False)
class PrCurve:
    """Precision and recall at every distinct threshold, the highest first."""

    threshold: Floats
    precision: Floats
    recall: Floats
    f1: Floats
    gold: int

    @property
    def best(self) -> Point:
        """Point with the highest F1, at the highest threshold among equals; infinite if no link is best."""
        if not self.gold or not len(self.f1):
            perfect = float(not self.gold)  # as in `score_linking`
            return Point(math.inf, perfect, perfect, perfect)
        at = int(np.argmax(self.f1))
        return Point(*(float(each[at]) for each in (self.threshold, self.precision, self.recall, self.f1)))

    @property
    def average_precision(self) -> float:
        """Area under the curve as steps: precision weighted by the recall that each threshold adds."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())


def reliability(scores: ArrayLike, right: ArrayLike, *, bins: int = 10, by: Binning = "width") -> Reliability:
    """Group predictions into bins by score; empty bins are omitted."""
    scores, right = _checked(scores, right)
    if by == "width":
        place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    else:
        # Rank of the first equal score, so that equal scores stay together.
        place = np.searchsorted(np.sort(scores), scores) * bins // max(1, len(scores))
    _, place, count = np.unique(place, return_inverse=True, return_counts=True)
    confidence = np.bincount(place, scores, minlength=len(count)) / count
    accuracy = np.bincount(place, right, minlength=len(count)) / count
    return Reliability(count.astype(np.int64), confidence, accuracy)


def fit_temperature(logits: ArrayLike, right: ArrayLike, *, rounds: int = 100) -> tuple[float, float]:
    """Fit scale and bias of sigmoid(scale · logit + bias) by maximum likelihood (Platt 1999), with Newton's method.

    The scale stays finite for few positives or separable data; without predictions the result is (1, 0).
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
        while size > 1e-9:  # halve the step while the loss increases
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
    """Return precision, recall and F1 at each distinct score."""
    scores, right = _checked(predictions.scores, predictions.right)
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], right[order]
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)[: len(scores)])
    kept, hits = last + 1, np.cumsum(right)[last]
    recall = hits / predictions.gold if predictions.gold else np.zeros(len(last))
    return PrCurve(scores[last], hits / kept, recall, 2 * hits / (kept + predictions.gold), predictions.gold)


def calibrate(predictions: Predictions) -> dict[str, Any]:
    """Return average precision, best threshold and calibration errors, for JSON."""
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
    """Return arrays of equal length after checking their range."""
    values, hits = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=np.bool_)
    if values.ndim != 1 or values.shape != hits.shape:
        raise InputError(
            f"{values.shape} scores and {hits.shape} answers; give one answer, right or not, for each score"
        )
    wrong = values[~(np.isfinite(values) if not share else (values >= 0) & (values <= 1))]
    if len(wrong):
        expected = "from 0 to 1; apply a sigmoid to logits" if share else "a finite number"
        raise InputError(f"a score is {wrong[0]}; expected {expected}")
    return values, hits
