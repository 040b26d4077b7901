"""Paired significance tests over seeds or examples, and intervals of a mean; free of torch.

The permutation test flips the signs of the differences at random, and counts how often their sum is at least as far
from 0. It has no other assumption, but its smallest p with n pairs is 2 / 2ⁿ: five seeds never reach p < 0.05.
Student's t can, but assumes normal differences. Correct several comparisons in one table (`holm`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wellread.errors import InputError

Floats = NDArray[np.float64]

MOST_EXACT = 12
"""Largest number of pairs for which all sign combinations are enumerated."""
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, sample standard deviation and standard error; the last two are NaN for a single number."""

    mean: float
    deviation: float
    error: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.deviation:.3f}" if self.count > 1 else f"{self.mean:.3f}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of pairs (ours minus theirs), their 95 % bootstrap interval, and p of two tests."""

    difference: Summary
    low: float
    high: float
    permutation_p: float
    t: float
    t_p: float
    wins: int
    losses: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON."""
        return asdict(self)


def summarise(values: ArrayLike) -> Summary:
    """Return mean and spread of numbers."""
    numbers = _numbers(values)
    deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Summary(float(numbers.mean()), deviation, deviation / math.sqrt(len(numbers)), len(numbers))


def compare(ours: ArrayLike, theirs: ArrayLike, *, draws: int = 10_000, seed: int = 0) -> Comparison:
    """Compare two systems by pairs: the same seeds, or the same examples."""
    differences = _differences(ours, theirs)
    t, t_p = paired_t(ours, theirs)
    low, high = bootstrap_interval(differences, draws=draws, seed=seed)
    return Comparison(
        summarise(differences),
        low,
        high,
        permutation_test(ours, theirs, draws=draws, seed=seed),
        t,
        t_p,
        int((differences > 0).sum()),
        int((differences < 0).sum()),
    )


def permutation_test(ours: ArrayLike, theirs: ArrayLike, *, draws: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p of the sign-flip test: exact up to `MOST_EXACT` pairs, else from `draws` random flips.

    The observed signs are counted as one of the draws, so p is never 0. `scipy.stats.permutation_test` doubles a
    one-sided p instead of counting |sum|, and takes ten times as long.
    """
    differences = _differences(ours, theirs)
    # Sums in another order may differ in their last bits, and must still count as equal.
    bar = abs(float(differences.sum())) - 1e-12 * float(np.abs(differences).sum())
    count = len(differences)
    if count <= MOST_EXACT:
        places = np.arange(1 << count)[:, None] >> np.arange(count)
        return float((np.abs((1.0 - 2 * (places & 1)) @ differences) >= bar).mean())
    draw = np.random.default_rng(seed)
    size = max(1, _CHUNK // count)
    reached = 0
    for done in range(0, draws, size):
        signs = draw.integers(0, 2, (min(size, draws - done), count), dtype=np.int8)
        reached += int((np.abs((1.0 - 2 * signs) @ differences) >= bar).sum())
    return (1 + reached) / (1 + draws)


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of the mean over resamples; a single number is its own interval."""
    from scipy.stats import bootstrap

    numbers = _numbers(values)
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; expected a share between 0 and 1, such as 0.95")
    if len(numbers) == 1:
        return float(numbers[0]), float(numbers[0])
    found = bootstrap(
        (numbers,),
        np.mean,
        n_resamples=draws,
        batch=max(1, _CHUNK // len(numbers)),
        vectorized=True,
        confidence_level=level,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def paired_t(ours: ArrayLike, theirs: ArrayLike) -> tuple[float, float]:
    """Return Student's t of the pairs and its two-sided p.

    (NaN, NaN) for fewer than two pairs or if all differences are 0, (±inf, 0) if they are all equal.
    """
    from scipy.stats import ttest_1samp

    differences = _differences(ours, theirs)
    if len(differences) < 2 or not differences.any():
        return math.nan, math.nan
    if (differences == differences[0]).all():
        return math.copysign(math.inf, differences[0]), 0.0
    found = ttest_1samp(differences, 0.0)
    return float(found.statistic), float(found.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct the p of several comparisons (Holm 1979): [0.01, 0.04] -> [0.02, 0.04]; NaN is not counted."""
    order = sorted((place for place, p in enumerate(ps) if not math.isnan(p)), key=lambda place: ps[place])
    corrected, highest = [math.nan] * len(ps), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * ps[place]))
        corrected[place] = highest
    return corrected


def _differences(ours: ArrayLike, theirs: ArrayLike) -> Floats:
    first, second = _numbers(ours), _numbers(theirs)
    if first.shape != second.shape:
        raise InputError(f"{len(first)} numbers and {len(second)}; expected pairs")
    return first - second


def _numbers(values: ArrayLike) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"cannot compare {numbers!r}; give a list of at least one number, all of them finite")
    return numbers
