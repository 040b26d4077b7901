"""Scores of labels and of numbers: accuracy, F1, Matthews' and the two usual correlations. Numpy, never torch.

Where a score is not defined, it is what scikit-learn and scipy say: F1 is 0 when the class is neither predicted nor
gold, Matthews' correlation is 0 when either side has one class only, Pearson's and Spearman's are NaN when either side
has no variance (or fewer than two numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError

Metric = Literal["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The share that is right."""
    gold, predicted = _labels(gold, predicted)
    return float((gold == predicted).mean())


def f1(gold: ArrayLike, predicted: ArrayLike, *, positive: int = 1) -> float:
    """F1 of one class: twice what is rightly found, over what is predicted and what is gold."""
    gold, predicted = _labels(gold, predicted)
    asked, found = gold == positive, predicted == positive
    whole = asked.sum() + found.sum()
    return float(2 * (asked & found).sum() / whole) if whole else 0.0


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The mean F1 of the classes that are gold or predicted."""
    gold, predicted = _labels(gold, predicted)
    classes = np.union1d(gold, predicted).tolist()
    return float(np.mean([f1(gold, predicted, positive=each) for each in classes]))


def matthews(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Matthews' correlation, of two classes or more (Gorodkin 2004); 0 if either side has one class only."""
    gold, predicted = _labels(gold, predicted)
    classes, flat = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
    width = len(classes)
    counts = np.bincount(flat[: len(gold)] * width + flat[len(gold) :], minlength=width * width)
    table = counts.reshape(width, width).astype(np.float64)
    total, asked, found = table.sum(), table.sum(axis=1), table.sum(axis=0)
    shared = float(np.trace(table) * total - asked @ found)
    spread = float(total**2 - asked @ asked) * float(total**2 - found @ found)
    return shared / math.sqrt(spread) if spread else 0.0


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Pearson's correlation; NaN if either side has no variance."""
    return _correlation(*_numbers(gold, predicted))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal numbers sharing the mean of theirs."""
    first, second = _numbers(gold, predicted)
    return _correlation(average_ranks(first), average_ranks(second))


def average_ranks(values: ArrayLike) -> Floats:
    """Ranks from 1, the lowest first; equal values share their mean rank: [5, 7, 5] -> [1.5, 3, 1.5]."""
    _, place, times = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(times)
    return np.asarray((ends - (times - 1) / 2)[place], dtype=np.float64)


METRICS: dict[Metric, Callable[[ArrayLike, ArrayLike], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def score_labels(gold: ArrayLike, predicted: ArrayLike, metrics: Sequence[Metric]) -> dict[str, float]:
    """Each metric by its name, and as `score` their mean: the one figure that GLUE reports for a task."""
    scores: dict[str, float] = {name: METRICS[name](gold, predicted) for name in metrics}
    return {**scores, "score": float(np.mean(list(scores.values())))}


def _correlation(first: Floats, second: Floats) -> float:
    # A constant has no variance, but its computed deviations need not be exactly 0.
    if len(first) < 2 or (first == first[0]).all() or (second == second[0]).all():
        return math.nan
    first, second = first - first.mean(), second - second.mean()
    # Scaled first, so that the squares of tiny or huge numbers stay numbers.
    first, second = first / np.abs(first).max(), second / np.abs(second).max()
    value = float(first @ second) / math.sqrt(float(first @ first) * float(second @ second))
    return max(-1.0, min(1.0, value))


def _labels(gold: ArrayLike, predicted: ArrayLike) -> tuple[Ints, Ints]:
    pair = np.asarray(gold), np.asarray(predicted)
    if any(each.dtype.kind not in "iub" for each in pair) and pair[0].size:
        raise InputError(f"labels are {pair[0].dtype} and {pair[1].dtype}; give the whole numbers of classes")
    _check_shapes(*pair)
    return pair[0].astype(np.int64), pair[1].astype(np.int64)


def _numbers(gold: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats]:
    pair = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    _check_shapes(*pair)
    for each in pair:
        if not np.isfinite(each).all():
            raise InputError(f"a number to score is {each[~np.isfinite(each)][0]}; give finite numbers only")
    return pair


def _check_shapes(gold: NDArray[np.generic], predicted: NDArray[np.generic]) -> None:
    if gold.ndim != 1 or gold.shape != predicted.shape:
        raise InputError(f"predictions of shape {predicted.shape} for gold of {gold.shape}; give one for each example")
    if not len(gold):
        raise InputError("there is nothing to score; is the file empty, or was every example skipped?")
