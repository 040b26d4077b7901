"""Alignment of proposed spans, in characters, with the tokens of the encoder's windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.linking.decoding import Ints
from wellread.mentions.proposals import Proposals
from wellread.models.elq.candidate_pool import Named, Pool
from wellread.text.windows import Window

_TEXT_STRIDE = 1 << 40
"""Larger than any offset in a text: orders (text, offset) pairs as one number."""


@dataclass(frozen=True, slots=True)
class NamedSpans:
    """Spans proposed by names of the KB, sorted by window."""

    window_of: Ints
    starts: Ints
    ends: Ints
    ways: NDArray[np.uint8]
    edits: NDArray[np.uint8]
    candidates: Sequence[Named]

    @classmethod
    def of_proposals(cls, found: Proposals, windows: Sequence[Window], pool: Pool) -> NamedSpans:
        """Assign each proposal to the window that owns its first character, and look up its candidates in the pool.

        Proposals without a window are dropped, and those without a candidate in a pool restricted to some entities.
        """
        window_of = windows_of(windows, found)
        distinct, number_of = np.unique(found.numbers, return_inverse=True)
        candidates = [pool.listed(found.lists, number) for number in distinct.tolist()]
        has_candidates = np.array([len(rows) > 0 for rows, _ in candidates], np.bool_)
        rows = np.flatnonzero((window_of >= 0) & has_candidates[number_of])
        rows = rows[np.argsort(window_of[rows], kind="stable")]
        return cls(
            window_of[rows],
            found.starts[rows],
            found.ends[rows],
            found.ways[rows],
            found.edits[rows],
            [candidates[number] for number in number_of[rows].tolist()],
        )

    def inside(self, batch: Sequence[int]) -> NamedSpans:
        """Return the spans of the windows in a batch; `window_of` then counts windows of the batch."""
        places = np.asarray(batch)
        low, high = np.searchsorted(self.window_of, places, "left"), np.searchsorted(self.window_of, places, "right")
        rows = np.concatenate([np.arange(start, end) for start, end in zip(low, high, strict=True)])
        window_of = np.repeat(np.arange(len(places)), high - low)
        columns = (self.starts[rows], self.ends[rows], self.ways[rows], self.edits[rows])
        return NamedSpans(window_of, *columns, [self.candidates[row] for row in rows.tolist()])


def windows_of(windows: Sequence[Window], proposals: Proposals) -> Ints:
    """Return the index of the window that owns the first character of each proposal; -1 for none.

    `windows` must be sorted by text.
    """
    text_of = np.repeat(np.arange(len(proposals.offsets) - 1), np.diff(proposals.offsets))
    if not windows:
        return np.full(len(text_of), -1)
    window_text = np.array([window.text for window in windows], np.int64)
    owned = np.array([_first_owned(window) for window in windows], np.int64)
    owned[np.append(True, window_text[1:] != window_text[:-1])] = 0  # the first window of a text owns its begin
    found = np.searchsorted(window_text * _TEXT_STRIDE + owned, text_of * _TEXT_STRIDE + proposals.starts, "right") - 1
    return np.where((found >= 0) & (window_text[found] == text_of), found, -1)


def _first_owned(window: Window) -> int:
    """Return the first character whose first token the window owns; a character can have several tokens."""
    starts, owned = window.spans[:, 0], window.owned
    shared = owned > 0 and starts[owned - 1] == starts[owned] and not window.special_mask[owned - 1]
    return int(starts[owned] + shared)


def tokens_of(windows: Sequence[Window], window_of: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the (first, last) token of each span, counted over the concatenated windows.

    A span that exceeds its window is truncated to the window's last token.
    """
    lengths = np.array([len(window) for window in windows], np.int64)
    bases = np.cumsum(lengths) - lengths
    spans = np.concatenate([window.spans for window in windows])
    real = np.flatnonzero(spans[:, 1] > spans[:, 0])  # special and empty tokens cover no character
    shift = np.repeat(np.arange(len(windows)) * _TEXT_STRIDE, lengths)[real]
    begins, stops = spans[real, 0] + shift, spans[real, 1] + shift
    at = window_of * _TEXT_STRIDE
    low = np.searchsorted(real, bases[window_of])
    high = np.searchsorted(real, bases[window_of] + lengths[window_of]) - 1
    first = np.clip(np.searchsorted(stops, at + starts, "right"), low, high)
    last = np.clip(np.searchsorted(begins, at + ends, "left") - 1, first, high)
    return real[first], real[last]
