"""Metrics of labels and numbers: accuracy, F1, Matthews', Pearson's and Spearman's correlation; free of torch.

Undefined values are those of scikit-learn and scipy: F1 is 0 if the class is neither predicted nor gold, Matthews'
correlation is 0 if either side has only one class, Pearson's and Spearman's are NaN if either side has no variance (or
fewer than two numbers). Both libraries are imported on first use, since this takes a second.
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
    """Return the share of right predictions."""
    gold, predicted = _labels(gold, predicted)
    return float((gold == predicted).mean())


def f1(gold: ArrayLike, predicted: ArrayLike, *, positive: int = 1) -> float:
    """Return F1 of one class."""
    from sklearn.metrics import f1_score

    return float(f1_score(*_labels(gold, predicted), labels=[positive], average=None, zero_division=0.0)[0])


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean F1 of the classes that are gold or predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(*_labels(gold, predicted), average="macro", zero_division=0.0))


def matthews(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Matthews' correlation of two or more classes (Gorodkin 2004)."""
    from sklearn.metrics import matthews_corrcoef

    gold, predicted = _labels(gold, predicted)
    if (gold == gold[0]).all() or (predicted == predicted[0]).all():  # scikit-learn warns of a single class
        return 0.0
    return float(matthews_corrcoef(gold, predicted))


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Pearson's correlation; NaN if either side has no variance."""
    from scipy.stats import pearsonr

    first, second = _numbers(gold, predicted)
    return math.nan if _constant(first, second) else float(pearsonr(first, second).statistic)


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Spearman's rank correlation, with mean ranks of ties; NaN if either side has no variance."""
    from scipy.stats import spearmanr

    first, second = _numbers(gold, predicted)
    return math.nan if _constant(first, second) else float(spearmanr(first, second).statistic)


METRICS: dict[Metric, Callable[[ArrayLike, ArrayLike], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def score_labels(gold: ArrayLike, predicted: ArrayLike, metrics: Sequence[Metric]) -> dict[str, float]:
    """Return each metric by its name, and their mean as `score`, which GLUE reports for a task."""
    scores: dict[str, float] = {name: METRICS[name](gold, predicted) for name in metrics}
    return {**scores, "score": float(np.mean(list(scores.values())))}


def _constant(first: Floats, second: Floats) -> bool:
    return len(first) < 2 or bool((first == first[0]).all() or (second == second[0]).all())


def _labels(gold: ArrayLike, predicted: ArrayLike) -> tuple[Ints, Ints]:
    pair = np.asarray(gold), np.asarray(predicted)
    if any(each.dtype.kind not in "iub" for each in pair) and pair[0].size:
        raise InputError(f"labels are {pair[0].dtype} and {pair[1].dtype}; give class numbers")
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
