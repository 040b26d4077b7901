"""Table of a comparison of arms on the same tasks, data and seeds.

Every arm is compared with the first, paired by seed: the mean difference, its 95 % interval (Student), and two tests
(paired t, and the exact sign-flip test, whose smallest p with five seeds is 0.0625), each also corrected for the number
of arms in its column (Holm). With several tasks there is a column of their mean, computed per seed. Scores are shown ×
100.

A missing score (a failed run, or a score that is not a number) is NaN, and so is every mean that includes it; it is
shown as "–". So is an arm that does not apply to a task, such as an infusion without knowledge there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wellread.errors import InputError
from wellread.evaluation.significance import Summary, holm, paired_t, permutation_test, summarise
from wellread.training.compare.comparison import MEAN, NOTHING, ComparisonTable, Grid, reasons


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of an arm to the first, over seeds: mean, 95 % interval, and p of two tests, plain and after Holm."""

    mean: float
    low: float
    high: float
    t_p: float
    t_p_holm: float
    flip_p: float
    flip_p_holm: float
    wins: int
    losses: int


@dataclass(frozen=True, slots=True)
class Cell:
    """Result of an arm in one column."""

    scores: tuple[float, ...]
    """Scores by seed; NaN where missing."""
    summary: Summary
    difference: Difference | None
    """Difference to the first arm; None for the first."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an arm on one task: numbers of weights, seconds per training step, bytes."""

    parameters: int
    trained: int
    added: int
    """Weights of the infusions, beside the plain encoder and the head."""
    step_seconds: float
    """Median over steps, measured in turn with the other arms."""
    memory: int
    """Bytes of weights, gradients, optimizer state and saved activations."""
    activations: int
    """Bytes that the forward pass saves for the backward pass."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Run without a score, and the reason."""

    arm: str
    task: str
    seed: int
    why: str

    def __str__(self) -> str:
        return f"{self.task}, {self.arm}, seed {self.seed}: {self.why}"


@dataclass(frozen=True, slots=True)
class Unfit:
    """Arm that does not apply to a task, and the reason."""

    arm: str
    task: str
    why: str

    def __str__(self) -> str:
        return f"{self.task}, {self.arm}: {self.why}"


@dataclass(frozen=True, slots=True)
class Table(ComparisonTable):
    """Arms by columns, and their costs."""

    arms: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: Mapping[tuple[str, str], Cell]
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Name of the score in each column."""
    costs: Mapping[tuple[str, str], Cost] = field(default_factory=dict)
    """Costs by arm and task."""
    failed: tuple[Failure, ...] = ()
    """Runs without a score."""
    unfit: tuple[Unfit, ...] = ()
    """Arms that do not apply to a task."""
    command: str = ""
    """Command line that made the table."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON; numbers that are not finite become None."""
        cells = {
            arm: {
                column: _finite(asdict(self.cells[arm, column]))
                | {"cost": _finite(asdict(self.costs[arm, column])) if (arm, column) in self.costs else None}
                for column in self.columns
            }
            for arm in self.arms
        }
        return {
            "against": self.arms[0],
            "seeds": list(self.seeds),
            "metrics": dict(self.metrics),
            "arms": cells,
            "failed": [asdict(failure) for failure in self.failed],
            "unfit": [asdict(one) for one in self.unfit],
            "command": self.command,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Table:
        """Restore a table from `to_dict`."""
        arms: dict[str, dict[str, Any]] = data["arms"]
        cells, costs = {}, {}
        for arm, columns in arms.items():
            for column, cell in columns.items():
                scores = tuple(map(_or_nan, cell["scores"]))
                difference = None if cell["difference"] is None else Difference(**_numbers(cell["difference"]))
                cells[arm, column] = Cell(scores, Summary(**_numbers(cell["summary"])), difference)
                if cell["cost"] is not None:
                    costs[arm, column] = Cost(**cell["cost"])
        return cls(
            tuple(arms),
            tuple(next(iter(arms.values()))),
            tuple(data["seeds"]),
            cells,
            data["metrics"],
            costs,
            tuple(Failure(**one) for one in data["failed"]),
            tuple(Unfit(**one) for one in data.get("unfit", ())),
            data.get("command", ""),
        )

    def header(self) -> tuple[str, ...]:
        """Return the column names of `rows`."""
        return ("arm", *(name for column in self.columns for name in (column, f"Δ {column}")))

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text per arm: mean ± deviation, and the difference with its interval and p."""
        return [(arm, *(part for cell in self._cells(arm) for part in _in_two(cell))) for arm in self.arms]

    def screen(self) -> Grid:
        """Return a narrower header and rows for the terminal: difference and tests below the mean."""
        rows = [
            (arm, *("\n".join(dict.fromkeys(filter(None, _texts(cell)))) for cell in self._cells(arm)))
            for arm in self.arms
        ]
        return ("arm", *self.columns), rows

    def brief(self) -> Grid:
        """Return header and rows for a README: mean ± deviation, difference, and relative costs."""
        costs = {row[0]: (row[5], row[7]) for row in self.cost_rows()}
        header = ("arm", *self.columns, *(("× time", "× memory") if costs else ()))
        none = (NOTHING, NOTHING) if costs else ()
        rows = [(arm, *map(_in_brief, self._cells(arm)), *costs.get(arm, none)) for arm in self.arms]
        return header, rows

    cost_header: ClassVar[tuple[str, ...]] = ("arm", "weights", "learned", "added", "ms/step", "×", "MB/step", "×")
    """Column names of `cost_rows`."""

    def cost_rows(self) -> list[tuple[str, ...]]:
        """Return a row of costs per arm, over tasks."""
        return [(arm, *self._costs(arm)) for arm in self.arms if any(arm == one for one, _ in self.costs)]

    def _cells(self, arm: str) -> list[Cell]:
        return [self.cells[arm, column] for column in self.columns]

    def _costs(self, arm: str) -> tuple[str, ...]:
        tasks = [column for column in self.columns if (arm, column) in self.costs]
        ours = [self.costs[arm, task] for task in tasks]
        plain = [self.costs.get((self.arms[0], task)) for task in tasks]
        slower = _geometric([_times(a, b, "step_seconds") for a, b in zip(ours, plain, strict=True)])
        larger = _geometric([_times(a, b, "memory") for a, b in zip(ours, plain, strict=True)])
        return (
            f"{ours[0].parameters:,}",
            f"{ours[0].trained:,}",
            f"{ours[0].added:,}",
            f"{1000 * _middle([cost.step_seconds for cost in ours]):.1f}",
            _shown(slower),
            f"{_middle([float(cost.memory) for cost in ours]) / 1e6:.0f}",
            _shown(larger),
        )

    def legend(self) -> list[str]:
        """Return the explanation of the columns."""
        shown = ", ".join(f"{column}: {metric}" for column, metric in self.metrics.items())
        count = len(self.seeds)
        return [
            f"Scores × 100 on validation data{f' ({shown})' * bool(shown)}: mean ± standard deviation over {count} "
            f"seed{'s' * (count > 1)} ({', '.join(map(str, self.seeds))}).",
            f'Δ: against "{self.arms[0]}", paired by seed, with the 95 % interval (Student); p by paired t and by '
            "exact sign flips, each as it is / after Holm's correction for the arms of the column.",
            *self.gaps(),
        ]

    def gaps(self) -> list[str]:
        """Return the reasons for missing scores."""
        count = len(self.failed)
        failed = f"{NOTHING}: no score, because {count} run{'s' * (count > 1)} failed:"
        some = ((f"{NOTHING}: does not apply to the task:", self.unfit), (failed, self.failed))
        return reasons(some)

    def save_picture(self, path: Path) -> None:
        """Draw the differences to the first arm."""
        from wellread.plots.curves import draw_comparison, save

        save(draw_comparison(self.to_dict()), path)

    def cost_legend(self) -> str:
        """Return the explanation of the cost columns."""
        return (
            "Training steps of the arms, measured in turn on the same batches: median over tasks; ×: against the first "
            "arm, geometric mean over tasks. MB: weights, gradients, AdamW's state, and saved activations."
        )


def make_table(
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    seeds: Sequence[int],
    *,
    metrics: Mapping[str, str] | None = None,
    costs: Mapping[tuple[str, str], Cost] | None = None,
    failed: Sequence[Failure] = (),
    unfit: Sequence[Unfit] = (),
) -> Table:
    """Make the table of scores[arm][task], a list over seeds; the other arms are compared with the first.

    A missing score is NaN.

    >>> table = make_table({"plain": {"RTE": [0.5, 0.6]}, "kam": {"RTE": [0.6, 0.6]}}, [0, 1])
    >>> round(table.cells["kam", "RTE"].difference.mean, 3)
    0.05
    """
    arms = tuple(scores)
    if not arms:
        raise InputError("there is no arm to compare; give one or more")
    tasks = tuple(scores[arms[0]])
    for arm in arms:
        wrong = [task for task in tasks if len(scores[arm].get(task, ())) != len(seeds)]
        if wrong or tuple(scores[arm]) != tasks:
            raise InputError(
                f"the arm {arm!r} lacks scores of some of the {len(seeds)} seeds of {wrong[0] if wrong else tasks}; "
                "let every run finish"
            )
    full = {arm: {task: list(map(_number, scores[arm][task])) for task in tasks} for arm in arms}
    columns = tasks
    if len(tasks) > 1:
        columns = (*tasks, MEAN)
        for arm in arms:
            full[arm][MEAN] = [math.fsum(row) / len(tasks) for row in zip(*full[arm].values(), strict=True)]
    cells: dict[tuple[str, str], Cell] = {}
    for column in columns:
        differences = _differences([full[arm][column] for arm in arms])
        for arm, difference in zip(arms, differences, strict=True):
            cells[arm, column] = Cell(tuple(full[arm][column]), _summary(full[arm][column]), difference)
    more = (dict(metrics or {}), dict(costs or {}), tuple(failed), tuple(unfit))
    return Table(arms, columns, tuple(seeds), cells, *more)


def _summary(scores: Sequence[float]) -> Summary:
    return summarise(scores) if _whole(scores) else Summary(math.nan, math.nan, math.nan, len(scores))


def _whole(scores: Sequence[float]) -> bool:
    """Return True if no score is missing."""
    return not any(map(math.isnan, scores))


def _differences(rows: Sequence[Sequence[float]]) -> list[Difference | None]:
    """Return the difference of each row to the first, with p corrected over all rows."""
    plain, others = rows[0], rows[1:]
    whole = [_whole(row) and _whole(plain) for row in others]
    t_ps = [paired_t(row, plain)[1] if there else math.nan for row, there in zip(others, whole, strict=True)]
    flips = [permutation_test(row, plain) if there else math.nan for row, there in zip(others, whole, strict=True)]
    ps = zip(t_ps, holm(t_ps), flips, holm(flips), strict=True)
    return [None, *(_against(row, plain, each) for row, each in zip(others, ps, strict=True))]


def _against(row: Sequence[float], plain: Sequence[float], ps: tuple[float, float, float, float]) -> Difference:
    steps = [ours - theirs for ours, theirs in zip(row, plain, strict=True)]
    summary = _summary(steps)
    reach = student(summary.count - 1) * summary.error if summary.count > 1 else math.nan
    wins, losses = sum(step > 0 for step in steps), sum(step < 0 for step in steps)
    return Difference(summary.mean, summary.mean - reach, summary.mean + reach, *ps, wins, losses)


def student(freedom: int, level: float = 0.95) -> float:
    """Return the half-width of a mean's interval in standard errors: 2.776 for 4 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _texts(cell: Cell) -> tuple[str, str, str]:
    """Return the mean of a cell, its difference and the tests of the difference as text."""
    if math.isnan(cell.summary.mean):
        return NOTHING, "" if cell.difference is None else NOTHING, ""
    spread = f" ± {100 * cell.summary.deviation:.2f}" if cell.summary.count > 1 else ""
    return f"{100 * cell.summary.mean:.2f}{spread}", *_difference(cell.difference)


def _in_two(cell: Cell) -> tuple[str, str]:
    mean, *difference = _texts(cell)
    return mean, ", ".join(filter(None, difference))


def _difference(difference: Difference | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    if math.isnan(difference.mean):
        return NOTHING, ""
    shown = f"{100 * difference.mean:+.2f}"
    if math.isnan(difference.low):
        return shown, ""
    shown += f" [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
    tests = (("t", difference.t_p, difference.t_p_holm), ("flips", difference.flip_p, difference.flip_p_holm))
    return shown, ", ".join(f"{name} {_p(p)} / {_p(corrected)}" for name, p, corrected in tests if not math.isnan(p))


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _in_brief(cell: Cell) -> str:
    shown, *_ = _texts(cell)
    if cell.difference is None or math.isnan(cell.difference.mean):
        return shown
    return f"{shown} ({100 * cell.difference.mean:+.2f})"


def _times(cost: Cost, plain: Cost | None, name: str) -> float:
    """Return the cost relative to the first arm; NaN if that was not measured."""
    return math.nan if plain is None else float(getattr(cost, name) / getattr(plain, name))


def _shown(factor: float) -> str:
    return NOTHING if math.isnan(factor) else f"{factor:.2f}"


def _number(score: float) -> float:
    """Return the score, or NaN if it is not finite."""
    return float(score) if math.isfinite(score) else math.nan


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _numbers(values: Mapping[str, float | None]) -> dict[str, Any]:
    return {name: _or_nan(value) for name, value in values.items()}


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
