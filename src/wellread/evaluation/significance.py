"""Is one better than the other, or is it chance? Paired tests over seeds or examples, and intervals of a mean.

The permutation test asks how often differences at least as far from 0 come about when each one's sign is a coin's. It
assumes nothing but that, and with n pairs it cannot say less than 2 / 2ⁿ: five seeds never reach p < 0.05. Student's t
can, but assumes that differences are normal. With several comparisons in one table, correct them (`holm`).
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
"""Up to so many pairs all signs are tried."""
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, standard deviation (of a sample) and standard error; the last two are NaN for a single number."""

    mean: float
    deviation: float
    error: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.deviation:.3f}" if self.count > 1 else f"{self.mean:.3f}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of pairs (ours less theirs), their 95 % bootstrap interval and what two tests say of them."""

    difference: Summary
    low: float
    high: float
    permutation_p: float
    t: float
    t_p: float
    wins: int
    losses: int

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, for JSON."""
        return asdict(self)


def summarise(values: ArrayLike) -> Summary:
    """Mean and spread of some numbers."""
    numbers = _numbers(values)
    deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Summary(float(numbers.mean()), deviation, deviation / math.sqrt(len(numbers)), len(numbers))


def compare(ours: ArrayLike, theirs: ArrayLike, *, draws: int = 10_000, seed: int = 0) -> Comparison:
    """All about pairs: the same seeds, or the same examples, with one system and with the other."""
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
    """The two-sided p of the paired sign-flip test: exact up to `MOST_EXACT` pairs, else by `draws` random signs.

    Drawn signs count with the observed ones among them, so that p is never 0.
    """
    differences = _differences(ours, theirs)
    # What is added up in another order may differ in its last bits, and is still as far from 0.
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
    """Percentile interval of the mean over resamples with replacement; a single number is its own interval."""
    numbers = _numbers(values)
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; expected a share between 0 and 1, such as 0.95")
    draw = np.random.default_rng(seed)
    size = max(1, _CHUNK // len(numbers))
    means = np.concatenate(
        [
            numbers[draw.integers(0, len(numbers), (min(size, draws - done), len(numbers)))].mean(axis=1)
            for done in range(0, draws, size)
        ]
    )
    low, high = np.percentile(means, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def paired_t(ours: ArrayLike, theirs: ArrayLike) -> tuple[float, float]:
    """Student's t of the pairs and its two-sided p.

    As in scipy: (NaN, NaN) for fewer than two pairs or when all differences are 0, (±inf, 0) when all are the same.
    """
    differences = _differences(ours, theirs)
    if len(differences) < 2 or not differences.any():
        return math.nan, math.nan
    mean = float(differences.mean())
    if (differences == differences[0]).all():
        return math.copysign(math.inf, mean), 0.0
    t = mean / summarise(differences).error
    freedom = len(differences) - 1
    return t, _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def holm(ps: Sequence[float]) -> list[float]:
    """The p of several comparisons, each corrected for the others (Holm 1979): [0.01, 0.04] -> [0.02, 0.04].

    NaN stays NaN, and is no comparison.
    """
    order = sorted((place for place, p in enumerate(ps) if not math.isnan(p)), key=lambda place: ps[place])
    corrected, highest = [math.nan] * len(ps), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * ps[place]))
        corrected[place] = highest
    return corrected


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below, and the function is symmetric
        return 1.0 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / _apart(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _apart(1 + term * d, tiny)
            c = _apart(1 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value / a


def _apart(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def _differences(ours: ArrayLike, theirs: ArrayLike) -> Floats:
    first, second = _numbers(ours), _numbers(theirs)
    if first.shape != second.shape:
        raise InputError(f"{len(first)} numbers against {len(second)}; pairs need one of each")
    return first - second


def _numbers(values: ArrayLike) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"cannot compare {numbers!r}; give a list of at least one number, all of them finite")
    return numbers
