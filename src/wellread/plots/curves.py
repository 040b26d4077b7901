"""Plots of training and evaluation: loss and scores, precision and recall, calibration, comparisons.

Drawn without pyplot, which has global state. Colours are Okabe and Ito's, safe for colour-blind readers; lines also
differ by their dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from wellread.io.files import write_atomically

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", ":")
_INK, _SOFT, _RULE = "#22252a", "#666a70", "#e3dfd6"


def draw_curves(log: Sequence[Mapping[str, Any]], *, title: str = "Training") -> Figure:
    """Plot losses (above) and development scores (below) over steps; `log` are the lines of a run's log.jsonl."""
    figure = _figure(6.4, 5.6)
    losses, scores = figure.subplots(2, sharex=True)
    named = _series(log, "losses")
    if len(named) > 1:
        named = {"total": [(line["step"], line["loss"]) for line in log if line.get("losses")], **named}
    _draw_lines(losses, named, marker="")
    _draw_lines(scores, _series(log, "dev"), marker="o")
    _dress(losses, title, "", "training loss")
    _dress(scores, "", "step", "development score")
    scores.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_pr_curve(
    recall: ArrayLike,
    precision: ArrayLike,
    *,
    best: tuple[float, float, float] | None = None,
    title: str = "Precision and recall",
) -> Figure:
    """Plot precision against recall with lines of equal F1; `best` is a (threshold, recall, precision) to mark."""
    figure = _figure(5.4, 5.0)
    axes = figure.subplots()
    for f1 in np.arange(0.1, 1.0, 0.1):
        xs = np.linspace(f1 / (2 - f1), 1, 200)
        axes.plot(xs, f1 * xs / (2 * xs - f1), color=_RULE, linewidth=0.8, zorder=1)
        axes.annotate(f"F1 {f1:.1f}", (1.0, f1 / (2 - f1)), (-3, 2), textcoords="offset points",
                      ha="right", fontsize=7, color=_SOFT)  # fmt: skip
    recall, precision = np.asarray(recall, dtype=float), np.asarray(precision, dtype=float)
    axes.plot(recall, precision, color=_COLOURS[0], linewidth=2, drawstyle="steps-pre", zorder=3)
    if best is not None and np.isfinite(best[0]):
        threshold, right, up = best
        f1 = 2 * right * up / (right + up) if right + up else 0.0
        axes.plot([right], [up], "o", color=_COLOURS[1], markersize=8, zorder=4)
        axes.annotate(f"F1 {f1:.3f}\nat threshold {threshold:.2f}", (right, up), (-10, -10), textcoords="offset points",
                      ha="right", va="top", color=_INK, fontsize=9, zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2})  # fmt: skip
    if not len(recall):
        _say_nothing(axes)
    _dress(axes, title, "recall", "precision")
    axes.grid(visible=False)  # instead of a grid: the lines of equal F1
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
    return figure


def draw_reliability(
    confidence: ArrayLike, accuracy: ArrayLike, count: ArrayLike, *, title: str = "Calibration"
) -> Figure:
    """Plot the share of right links against their score, per bin, and the number of links per bin."""
    figure = _figure(5.4, 5.8)
    above, below = figure.subplots(2, sharex=True, gridspec_kw={"height_ratios": [3.2, 1]})
    confidence, accuracy, count = (np.asarray(each, dtype=float) for each in (confidence, accuracy, count))
    above.plot([0, 1], [0, 1], color=_SOFT, linewidth=1, linestyle="--", label="as sure as right")
    above.vlines(confidence, np.minimum(confidence, accuracy), np.maximum(confidence, accuracy),
                 color=_COLOURS[1], linewidth=3, alpha=0.45, label="too sure, or not sure enough")  # fmt: skip
    above.plot(confidence, accuracy, "o-", color=_COLOURS[0], linewidth=2, markersize=6, label="links")
    if len(count):
        error = float((count * np.abs(confidence - accuracy)).sum() / count.sum())
        title = f"{title} (expected error {error:.3f})"
        above.legend(frameon=False, fontsize=9, loc="upper left")
        below.bar(confidence, count, width=0.03, color=_COLOURS[0])
    else:
        _say_nothing(above)
    _dress(above, title, "", "share that is right")
    _dress(below, "", "score", "links")
    above.set(xlim=(0, 1), ylim=(0, 1.02))
    return figure


def draw_comparison(table: Mapping[str, Any], *, title: str = "") -> Figure:
    """Plot for each task the difference of every arm to the first, with its interval and a dot per seed.

    `table` is the content of a comparison's table.json. Runs without a score have no dot, and their arm no mean: a "–".
    """
    arms, against = table["arms"], table["against"]
    columns = list(arms[against])
    figure = _figure(1.6 + 2.5 * len(columns), 1.4 + 0.36 * len(arms))
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    plain = {column: np.asarray(arms[against][column]["scores"], dtype=float) for column in columns}
    for panel, column in zip(panels, columns, strict=True):
        for row, (_, cells) in enumerate(arms.items()):
            colour = _SOFT if not row else _COLOURS[0]
            cell = cells[column]
            steps = 100 * (np.asarray(cell["scores"], dtype=float) - plain[column])
            panel.plot(steps, np.full(len(steps), row), "o", color=colour, markersize=4, alpha=0.45, zorder=2)
            result = cell["difference"]
            if result is not None and result["low"] is not None:
                panel.hlines(row, 100 * result["low"], 100 * result["high"], color=colour, linewidth=2, zorder=3)
            if np.isnan(steps).any():
                panel.text(0, row, "–", color=colour, ha="center", va="center", fontsize=14, zorder=4)
            else:
                panel.plot([steps.mean()], [row], "D", color=colour, markersize=6, zorder=4)
        panel.axvline(0, color=_SOFT, linewidth=1, zorder=1)
        mean = 100 * plain[column].mean()
        _dress(panel, column, f"points over {against} ({'–' if np.isnan(mean) else f'{mean:.1f}'})", "")
    panels[0].set_yticks(range(len(arms)), list(arms))
    panels[0].invert_yaxis()
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=_INK)
    return figure


def draw_costs(table: Mapping[str, Any]) -> Figure:
    """Plot time and memory of a training step of every arm: the median over tasks, as in the table."""
    known = {
        arm: costs
        for arm, cells in table["arms"].items()
        if (costs := [cell["cost"] for cell in cells.values() if cell["cost"] is not None])
    }
    figure = _figure(7.6, 1.4 + 0.36 * len(known))
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (name, factor, title, unit) in zip(
        panels, (("step_seconds", 1e3, "Time", "ms a step"), ("memory", 1e-6, "Memory", "MB a step")), strict=True
    ):
        values = [factor * float(np.median([cost[name] for cost in costs])) for costs in known.values()]
        _draw_bars(panel, values, "{:,.0f}")
        _dress(panel, title, unit, "")
    panels[0].set_yticks(range(len(known)), list(known))
    panels[0].invert_yaxis()
    return figure


def draw_linkers(table: Mapping[str, Any]) -> Figure:
    """Plot for each data set the F1 of every linker, by overlap with its interval and by exact spans; then the costs.

    `table` is the content of a linker comparison's table.json. A linker without links there has a "–".
    """
    linkers, data = table["linkers"], list(table["data"])
    figure = _figure(4.4 + 2.5 * len(data), 1.6 + 0.4 * len(linkers))
    *panels, last = figure.subplots(1, len(data) + 1, sharey=True)
    for panel, name in zip(panels, data, strict=True):
        for row, cells in enumerate(linkers.values()):
            cell = cells.get(name)
            if cell is None or not cell["gold"]:
                panel.text(0.5, row, "–", color=_SOFT, ha="center", va="center", fontsize=14)
                continue
            overlap, exact = cell["overlap"]["f1"], cell["exact"]["f1"]["value"]
            if overlap["low"] is not None:
                panel.hlines(row, overlap["low"], overlap["high"], color=_COLOURS[0], linewidth=2, zorder=3)
            panel.plot([overlap["value"]], [row], "D", color=_COLOURS[0], markersize=6, zorder=4, label="overlap")
            panel.plot(
                [exact], [row], "|", color=_COLOURS[1], markersize=11, markeredgewidth=2, zorder=5, label="exact"
            )
        _dress(panel, name, "F1", "")
        panel.set_xlim(-0.04, 1.04)  # do not clip markers at the ends
        panel.set_xticks((0, 0.2, 0.4, 0.6, 0.8, 1), ("0", ".2", ".4", ".6", ".8", "1"))
    spent = []
    for cells in linkers.values():
        costs = [cell["cost"] for cell in cells.values()]
        texts = sum(cost["texts"] for cost in costs)
        spent.append(1e3 * sum(cost["cpu_seconds"] for cost in costs) / texts if texts else float("nan"))
    _draw_bars(last, spent, "{:.3g}", log=True)
    _dress(last, "Cost", "processor ms a text", "")
    panels[0].set_yticks(range(len(linkers)), list(linkers))
    panels[0].set_ylim(len(linkers) - 0.4, -0.6)  # keep the row of an arm without scores
    marks = {name: mark for panel in panels for mark, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    if marks:
        figure.legend(marks.values(), marks.keys(), loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    return figure


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG, reproducibly to the byte."""
    from matplotlib import rc_context

    file = BytesIO()
    with rc_context({"svg.hashsalt": "wellread"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "wellread"})
    return file.getvalue()


def save(figure: Figure, path: str | Path) -> tuple[Path, Path]:
    """Write a figure as path.png and path.svg, reproducibly to the byte."""
    path = Path(path)
    png, svg = path.with_name(path.name + ".png"), path.with_name(path.name + ".svg")
    with write_atomically(png) as file:
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
    with write_atomically(svg) as file:
        file.write(to_svg(figure))
    return png, svg


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _series(log: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[tuple[float, float]]]:
    """Return (step, value) points by name, from the entries of a log under `key`."""
    series: dict[str, list[tuple[float, float]]] = {}
    for line in log:
        for name, value in line.get(key, {}).items():
            series.setdefault(name, []).append((line["step"], value))
    return series


def _draw_lines(axes: Axes, series: Mapping[str, Sequence[tuple[float, float]]], *, marker: str) -> None:
    for number, (name, points) in enumerate(series.items()):
        colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, marker=marker, markersize=4, label=name)
    if series:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
    else:
        _say_nothing(axes)


def _draw_bars(axes: Axes, values: Sequence[float], form: str, *, log: bool = False) -> None:
    """Draw horizontal bars with their numbers; the first, the baseline, is paler."""
    there = [value for value in values if np.isfinite(value) and value > 0]
    if log and there:
        axes.set_xscale("log")
        axes.set_xlim(min(there) / 3, max(there) * 6)
    elif there:
        axes.set_xlim(0, max(there) * 1.25)
    for row, value in enumerate(values):
        if not np.isfinite(value):
            continue
        axes.barh([row], [value], height=0.55, color=_SOFT if not row else _COLOURS[0], alpha=0.75, zorder=2)
        axes.annotate(form.format(value), (value, row), (4, 0), textcoords="offset points", va="center", fontsize=8,
                      color=_INK)  # fmt: skip


def _say_nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center", va="center", color=_SOFT)


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=_INK)
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.grid(color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, labelcolor=_INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_SOFT)
