"""Attention with and without knowledge, the infused maps and auxiliary terms: numbers, and PNG and SVG plots of them.

`wellread.inference.explain` runs a model; `Seen` holds the resulting arrays, without torch. `by_words` merges the
tokens of a word: attention from it is the mean over its tokens, attention to it their sum, so rows still sum to one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from wellread.document import short
from wellread.plots.curves import save

_INK, _SOFT, _RULE = "#22252a", "#666a70", "#e3dfd6"
_SEEN, _MORE, _LESS, _KNOWN = "#0f6f78", "#b4540a", "#2563a8", "#7a4fb0"
_ABREAST = 40
"""Maximum positions for panels side by side; longer texts have them stacked."""
NOTICED = 5e-4
"""Smallest change of attention that is reported (0.1 %); less is rounding."""
ABOUT = {
    "entity": "words of one and the same named entity",
    "phrase": "words of one and the same phrase",
    "correlation": "words that meet more often than by chance",
    "graph": "words whose entities are joined by a fact",
}
"""Score of a map for a pair of words."""


@dataclass(frozen=True, slots=True)
class Term:
    """An auxiliary term: its mean relevance to the text, and the words it is relevant to, best first."""

    word: str
    relevance: float
    by: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Change of the attention from one position to another."""

    row: int
    column: int
    without: float
    infused: float

    @property
    def difference(self) -> float:
        """Attention with knowledge minus without."""
        return self.infused - self.without


@dataclass(frozen=True)
class Seen:
    """Attention of one text; positions are its tokens (or words), then the tokens of its auxiliary terms."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    """Words of the text, then auxiliary terms."""
    word_of: NDArray[np.int64]
    """Word of every position; -1 for none."""
    segment_of: NDArray[np.int64]
    """Segment of every position; -1 for special and auxiliary tokens."""
    without: Float32[np.ndarray, "layer head row row"]
    infused: Float32[np.ndarray, "layer head row total"]
    maps: Mapping[str, Float32[np.ndarray, "total total"]]
    terms: tuple[Term, ...] = ()
    model: str = ""
    notes: tuple[str, ...] = ()
    """Notes shown with the plots, as sentences."""

    @property
    def rows(self) -> int:
        """Number of positions of the text itself."""
        return int(self.without.shape[-1])

    @property
    def layers(self) -> int:  # noqa: D102
        return int(self.without.shape[0])

    @property
    def heads(self) -> int:  # noqa: D102
        return int(self.without.shape[1])

    @property
    def special_mask(self) -> NDArray[np.bool_]:
        """Mask of special tokens."""
        return np.asarray(self.segment_of[: self.rows] < 0)

    def attention(
        self, layer: int, head: int | Literal["mean"]
    ) -> tuple[Float32[np.ndarray, "row total"], Float32[np.ndarray, "row total"]]:
        """Return attention without and with knowledge; without it, auxiliary terms get none."""
        some = slice(None) if head == "mean" else slice(head, head + 1)
        infused = self.infused[layer, some].mean(0)
        without = np.zeros_like(infused)
        without[:, : self.rows] = self.without[layer, some].mean(0)
        return without, infused

    @cached_property
    def moved(self) -> NDArray[np.float64]:
        """Share of attention moved by knowledge, per layer: of the mean of all heads, then of each head."""
        found = np.zeros((self.layers, self.heads + 1))
        for layer in range(self.layers):
            for column, head in enumerate(("mean", *range(self.heads))):
                without, infused = self.attention(layer, head)
                found[layer, column] = np.abs(infused - without).sum(-1).mean() / 2
        return found

    @property
    def best_layer(self) -> int:
        """Layer with the largest change, in the mean of all heads."""
        return int(np.where(self.moved[:, 0] < NOTICED, 0, self.moved[:, 0]).argmax())

    def changes(self, layer: int, head: int | Literal["mean"], most: int = 10) -> list[Change]:
        """Return the pairs with the largest change of attention, without special tokens."""
        without, infused = self.attention(layer, head)
        size = np.abs(infused - without)
        special = self.special_mask
        size[special] = 0
        size[:, : self.rows][:, special] = 0
        order = np.argsort(-size, axis=None, kind="stable")[:most]
        pairs = [divmod(int(at), size.shape[1]) for at in order if size.flat[at] >= NOTICED]
        return [Change(row, column, float(without[row, column]), float(infused[row, column])) for row, column in pairs]


def by_words(seen: Seen) -> Seen:
    """Merge the tokens of each word into one position; tokens without a word are kept."""
    unit_of = units(seen.word_of)
    firsts = np.unique(unit_of, return_index=True)[1]
    sums = (unit_of == np.arange(len(firsts))[:, None]).astype(np.float32)
    means = sums / sums.sum(1, keepdims=True)
    rows = int(unit_of[seen.rows - 1]) + 1
    row_means, row_sums = means[:rows, : seen.rows], sums[:rows, : seen.rows]
    words = [
        seen.words[word] if word >= 0 else seen.labels[first]
        for first, word in zip(firsts, seen.word_of[firsts], strict=True)
    ]
    return replace(
        seen,
        labels=tuple(words),
        word_of=seen.word_of[firsts],
        segment_of=seen.segment_of[firsts],
        without=row_means @ seen.without @ row_sums.T,
        infused=row_means @ seen.infused @ sums.T,
        maps={name: means @ scores @ means.T for name, scores in seen.maps.items()},
    )


def units(word_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the groups of adjacent tokens of one word: [-1, 0, 1, 1, -1, -1] -> [0, 1, 2, 2, 3, 4]."""
    new = np.ones(len(word_of), np.int64)
    new[1:] = (word_of[1:] != word_of[:-1]) | (word_of[1:] < 0)
    return np.asarray(np.cumsum(new) - 1)


def save_pictures(seen: Seen, folder: str | Path, *, layer: int, head: int | Literal["mean"]) -> list[Path]:
    """Write plots of attention, maps, terms and moved attention as PNG and SVG; skip empty ones."""
    drawn = {"attention": draw_attention(seen, layer, head), "moved": draw_moved(seen)}
    if seen.maps:
        drawn["maps"] = draw_maps(seen)
    if seen.terms:
        drawn["terms"] = draw_terms(seen.terms)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # missing glyphs are drawn as boxes
        return [path for name, figure in drawn.items() for path in save(figure, Path(folder) / name)]


def draw_attention(seen: Seen, layer: int, head: int | Literal["mean"]) -> Figure:
    """Plot attention without knowledge, with it, and the difference; rows attend to columns."""
    without, infused = seen.attention(layer, head)
    rows, total = infused.shape
    most = float(max(without.max(), infused.max())) or 1.0
    change = float(np.abs(infused - without).max())
    cell = _cell(total)
    if total <= _ABREAST:
        figure = _figure((rows + 2 * total) * cell + 5.2, rows * cell + 2.0)
        panels = figure.subplots(1, 3, width_ratios=(rows, total, total))
    else:
        figure = _figure(total * cell + 2.6, 3 * (rows * cell + 1.6))
        panels = figure.subplots(3, 1)
    for axes, scores, title in (
        (panels[0], without[:, :rows], "without knowledge"),
        (panels[1], infused, "with knowledge"),
    ):
        axes.imshow(scores, cmap=_shades(_SEEN), vmin=0, vmax=most)
        _dress(axes, seen, scores, title)
    reach = change if change >= NOTICED else 1.0
    panels[2].imshow(infused - without, cmap=_diverging(), vmin=-reach, vmax=reach)
    _dress(panels[2], seen, infused, "difference" if change >= NOTICED else "no difference")
    _scale(figure, panels[:2], "attention")
    _scale(figure, panels[2:], "difference")
    which = "mean of all heads" if head == "mean" else f"head {head}"
    _title(figure, f"Layer {layer}, {which}", seen)
    return figure


def draw_maps(seen: Seen) -> Figure:
    """Plot all maps, from 0 to 1."""
    total = len(seen.labels)
    cell = _cell(total)
    count = len(seen.maps)
    if total <= _ABREAST:
        figure = _figure(count * (total * cell + 1.3) + 0.9, total * cell + 2.0)
        panels = figure.subplots(1, count, squeeze=False).ravel()
    else:
        figure = _figure(total * cell + 2.6, count * (total * cell + 1.6))
        panels = figure.subplots(count, 1, squeeze=False).ravel()
    for axes, (name, scores) in zip(panels, seen.maps.items(), strict=True):
        axes.imshow(scores, cmap=_shades(_KNOWN), vmin=0, vmax=1)
        _dress(axes, seen, scores, name if scores.any() else f"{name}: nothing found")
    _scale(figure, panels, "relevance")
    _title(figure, "Maps", seen)
    return figure


def draw_moved(seen: Seen) -> Figure:
    """Plot the share of attention moved by knowledge, per layer and head."""
    figure = _figure(0.42 * (seen.heads + 1) + 1.8, 0.34 * seen.layers + 1.5)
    axes = figure.subplots()
    percent = 100 * seen.moved
    most = max(float(percent.max()), 1.0)
    axes.imshow(percent, cmap=_shades(_MORE), vmin=0, vmax=most, aspect="auto")
    for (layer, head), value in np.ndenumerate(percent):
        colour = "white" if value > 0.6 * most else _INK
        axes.text(head, layer, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(seen.heads + 1), ["mean", *map(str, range(seen.heads))], fontsize=8)
    axes.set_yticks(range(seen.layers), [str(layer) for layer in range(seen.layers)], fontsize=8)
    axes.axvline(0.5, color="white", linewidth=3)
    _plain(axes)
    axes.set_xlabel("head", color=_INK)
    axes.set_ylabel("layer", color=_INK)
    axes.set_title("Attention that knowledge moves, in percent", loc="left", fontsize=11, color=_INK)
    return figure


def draw_terms(terms: Sequence[Term]) -> Figure:
    """Plot the mean relevance of every auxiliary term, with the words it is relevant to."""
    figure = _figure(6.4, 0.36 * len(terms) + 1.2)
    axes = figure.subplots()
    axes.barh(range(len(terms)), [term.relevance for term in terms], height=0.55, color=_KNOWN)
    most = max(term.relevance for term in terms) or 1.0
    for place, term in enumerate(terms):
        result = "  ".join(f"{word} {score:.2f}" for word, score in term.by[:3])
        axes.text(term.relevance + 0.015 * most, place, result, va="center", fontsize=8, color=_SOFT, parse_math=False)
    axes.set_yticks(range(len(terms)), [term.word for term in terms], fontsize=10, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.9 * most)
    _plain(axes)
    axes.set_xlabel("mean relevance to the words of the text", color=_INK, fontsize=9)
    axes.set_title("Auxiliary terms", loc="left", fontsize=11, color=_INK)
    return figure


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(max(width, 4.0), max(height, 2.0)), layout="constrained", facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    return figure


def _cell(total: int) -> float:
    """Return inches per position: larger for few positions, never so small that labels overlap."""
    return float(np.clip(7.0 / total, 0.15, 0.32))


def _dress(axes: Axes, seen: Seen, scores: NDArray[Any], title: str) -> None:
    rows, columns = scores.shape
    labels = [short(label, 16) for label in seen.labels]
    size = 9 if columns <= 40 else 7
    axes.set_xticks(range(columns), labels[:columns], rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(rows), labels[:rows], fontsize=size, parse_math=False)
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False)
    for place, (across, _) in enumerate(zip(axes.xaxis.get_major_ticks(), labels, strict=False)):
        across.label2.set_color(_colour(seen, place))
    for place, (down, _) in enumerate(zip(axes.yaxis.get_major_ticks(), labels, strict=False)):
        down.label1.set_color(_colour(seen, place))
    axes.set_title(title, loc="left", fontsize=11, color=_INK, pad=8)
    axes.set_anchor("W")
    if columns > seen.rows:
        axes.axvline(seen.rows - 0.5, color=_KNOWN, linewidth=1)
    if rows > seen.rows:
        axes.axhline(seen.rows - 0.5, color=_KNOWN, linewidth=1)
    _plain(axes)
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(_RULE)


def _colour(seen: Seen, place: int) -> str:
    if place >= seen.rows:
        return _KNOWN
    return _SOFT if seen.segment_of[place] < 0 else _INK


def _scale(figure: Figure, panels: Any, result: str) -> None:
    """Add the colour bar of the last panel."""
    bar = figure.colorbar(panels[-1].images[0], ax=list(panels), shrink=0.8, aspect=22, pad=0.02)
    bar.set_label(result, color=_INK, fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=_SOFT)


def _plain(axes: Axes) -> None:
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _title(figure: Figure, title: str, seen: Seen) -> None:
    said = " · ".join(short(text, 70) for text in seen.texts)
    figure.suptitle(f"{title}: {said}", x=0.01, ha="left", fontsize=12, color=_INK, parse_math=False)


def _shades(colour: str) -> Colormap:
    return LinearSegmentedColormap.from_list("shades", ["#ffffff", colour])


def _diverging() -> Colormap:
    return LinearSegmentedColormap.from_list("difference", [_LESS, "#ffffff", _MORE])
