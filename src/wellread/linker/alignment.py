"""Proposed spans of texts as tokens of the windows that an encoder reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wellread.linker.decoding import Ints
from wellread.mentions.proposals import Proposals
from wellread.mentions.windows import Window

_TEXT = 1 << 40
"""Larger than any offset in a text: orders (text, offset) pairs as one number."""


def windows_of(windows: Sequence[Window], proposals: Proposals) -> Ints:
    """Return the place in `windows` of the window that owns the first character of each proposal; -1 for none.

    `windows` are in the order of their texts.
    """
    text_of = np.repeat(np.arange(len(proposals.offsets) - 1), np.diff(proposals.offsets))
    if not windows:
        return np.full(len(text_of), -1)
    window_text = np.array([window.text for window in windows], np.int64)
    owned = np.array([_first_owned(window) for window in windows], np.int64)
    owned[np.append(True, window_text[1:] != window_text[:-1])] = 0  # a text's first window owns what precedes it too
    found = np.searchsorted(window_text * _TEXT + owned, text_of * _TEXT + proposals.starts, "right") - 1
    return np.where((found >= 0) & (window_text[found] == text_of), found, -1)


def _first_owned(window: Window) -> int:
    """Return the first character whose first token the window owns: a character may have several tokens."""
    starts, owned = window.spans[:, 0], window.owned
    shared = owned > 0 and starts[owned - 1] == starts[owned] and not window.special_mask[owned - 1]
    return int(starts[owned] + shared)


def tokens_of(windows: Sequence[Window], window_of: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return (first, last) of the tokens that spans cover, counted over all windows end to end.

    A span that reaches beyond its window ends with the window's last token.
    """
    lengths = np.array([len(window) for window in windows], np.int64)
    bases = np.cumsum(lengths) - lengths
    spans = np.concatenate([window.spans for window in windows])
    real = np.flatnonzero(spans[:, 1] > spans[:, 0])  # special tokens and those that stand for nothing cover nothing
    shift = np.repeat(np.arange(len(windows)) * _TEXT, lengths)[real]
    begins, stops = spans[real, 0] + shift, spans[real, 1] + shift
    at = window_of * _TEXT
    low = np.searchsorted(real, bases[window_of])
    high = np.searchsorted(real, bases[window_of] + lengths[window_of]) - 1
    first = np.clip(np.searchsorted(stops, at + starts, "right"), low, high)
    last = np.clip(np.searchsorted(begins, at + ends, "left") - 1, first, high)
    return real[first], real[last]
