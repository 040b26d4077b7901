"""All spans of packed windows at once, in numpy: their scores, the best of each window, their mean states.

A span is (first token, width - 1): row i, column w of a (token, width) array is the span of tokens i … i + w.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.runtime.weights import Floats

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedWindows:
    """Positions of windows of `lengths` tokens in one sequence of `sum(lengths)` tokens."""

    lengths: Ints
    starts: Ints
    window_of: Ints
    """The number of each token's window."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> PackedWindows:
        """Return the positions of windows with so many tokens each."""
        counts = np.array(lengths, np.int64)
        return cls(counts, np.cumsum(counts) - counts, np.repeat(np.arange(len(counts)), counts))

    def __len__(self) -> int:
        return len(self.window_of)


def span_mask(
    packed: PackedWindows,
    special_mask: Flags,
    longest: int,
    *,
    begins_mask: Flags | None = None,
    ends_mask: Flags | None = None,
) -> Flags:
    """Return True for spans of at most `longest` tokens that stay in their window and hold no special token.

    `begins_mask` and `ends_mask` leave only those whose first and last token may be one, e.g. to keep words whole.
    """
    firsts, lasts = _firsts_and_lasts(len(packed), longest)
    specials = np.append(0, np.cumsum(special_mask))
    ends = (packed.starts + packed.lengths)[packed.window_of][:, None]
    mask = lasts < ends
    lasts = np.minimum(lasts, len(packed) - 1)
    mask &= specials[lasts + 1] == specials[firsts]
    if begins_mask is not None:
        mask &= begins_mask[:, None]
    return mask if ends_mask is None else mask & ends_mask[lasts]


def span_scores(start: Floats, end: Floats, inside: Floats, longest: int) -> Floats:
    """Return `start_i + end_j + sum(inside_i … inside_j)` for every span (ELQ, section 4.1).

    The sums run over the whole batch in double precision, so that a window's scores do not depend on its neighbours.
    Spans that cross the end of a window have numbers without a meaning; `span_mask` tells which ones are real.
    """
    firsts, lasts = _firsts_and_lasts(len(start), longest)
    lasts = np.minimum(lasts, len(start) - 1)
    sums = np.append(0.0, np.cumsum(inside, dtype=np.float64))
    within = (sums[lasts + 1] - sums[firsts]).astype(start.dtype)
    return np.asarray(start[:, None] + end[lasts] + within)


def scores_of(start: Floats, end: Floats, inside: Floats, firsts: Ints, lasts: Ints) -> NDArray[np.float64]:
    """Return the same score for given spans of any width, in double precision."""
    sums = np.append(0.0, np.cumsum(inside, dtype=np.float64))
    return np.asarray(start[firsts].astype(np.float64) + end[lasts] + (sums[lasts + 1] - sums[firsts]))


def best_spans(scores: Floats, mask: Flags, window_of: Ints, *, floor: float, most: int) -> tuple[Ints, Ints]:
    """Return (first token, width - 1) of the `most` best spans of each window.

    They are taken from the mask and need a log p above the floor, where p is the sigmoid of the score.
    """
    least = np.inf if floor >= 0 else floor - np.log1p(-np.exp(floor))
    firsts, widths = np.nonzero(mask & (scores > least))
    windows = window_of[firsts]
    order = np.lexsort((-scores[firsts, widths], windows))
    rank = np.arange(len(order)) - np.searchsorted(windows, windows[order])
    kept = np.sort(order[rank < most])
    return firsts[kept], widths[kept]


def span_means(states: Floats, firsts: Ints, lasts: Ints) -> Floats:
    """Return the mean state of tokens first … last of each span."""
    if not len(firsts):
        return np.zeros((0, states.shape[1]), states.dtype)
    widths = lasts - firsts + 1
    begins = np.cumsum(widths) - widths
    tokens = np.arange(int(widths.sum())) + np.repeat(firsts - begins, widths)
    sums = np.add.reduceat(states[tokens].astype(np.float64), begins, axis=0)
    return np.asarray((sums / widths[:, None]).astype(states.dtype))


def _firsts_and_lasts(tokens: int, longest: int) -> tuple[Ints, Ints]:
    firsts = np.arange(tokens)[:, None]
    return firsts, firsts + np.arange(longest)
