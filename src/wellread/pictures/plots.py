"""Plots of trainings: losses and scores over the steps, precision against recall, confidence against truth, arms.

Drawn without pyplot, so that there is no state and no window. Colours are Okabe and Ito's, which colour-blind people
tell apart; lines also differ by their dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from wellread.files import write_atomically

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", ":")
_INK, _SOFT, _RULE = "#22252a", "#666a70", "#e3dfd6"


def draw_curves(log: Sequence[Mapping[str, Any]], *, title: str = "Training") -> Figure:
    """Losses above, development scores below, over the steps; `log` are the lines of a run's log.jsonl."""
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
    """Precision against recall, thin lines of equal F1 behind; `best` is (threshold, recall, precision) to mark."""
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
    axes.grid(visible=False)  # the lines of equal F1 are grid enough
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
    return figure


def draw_reliability(
    confidence: ArrayLike, accuracy: ArrayLike, count: ArrayLike, *, title: str = "Calibration"
) -> Figure:
    """How often links are right against how sure they were, bin by bin, and how many links a bin holds."""
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
    """A panel for each task: every arm's difference to the first, with its interval, and a dot for each seed.

    `table` is what a comparison's table.json holds. Runs without a score have no dot, and their arm no mean: a "–".
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
            told = cell["difference"]
            if told is not None and told["low"] is not None:
                panel.hlines(row, 100 * told["low"], 100 * told["high"], color=colour, linewidth=2, zorder=3)
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


def save(figure: Figure, path: str | Path) -> tuple[Path, Path]:
    """Write a figure as path.png and path.svg; the same figure gives the same bytes."""
    path = Path(path)
    png, svg = path.with_name(path.name + ".png"), path.with_name(path.name + ".svg")
    from matplotlib import rc_context

    with write_atomically(png) as file:
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
    with write_atomically(svg) as file, rc_context({"svg.hashsalt": "wellread"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "wellread"})
    return png, svg


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _series(log: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[tuple[float, float]]]:
    """Points by name of what the lines of a log tell under `key`."""
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
