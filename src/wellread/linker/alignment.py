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
    owned = np.array([_first_owned(window) for window in windows], np.int64)
    found = np.searchsorted(owned, text_of * _TEXT + proposals.starts, "right") - 1
    same = np.array([window.text for window in windows], np.int64)[found] == text_of
    return np.where((found >= 0) & same, found, -1)


def _first_owned(window: Window) -> int:
    owned = np.flatnonzero(window.begins_mask)
    if not len(owned):
        return window.text * _TEXT + int(window.spans[1:2, 0].min(initial=0))
    # The first window of a text owns everything from its beginning on.
    first = 0 if window.spans[owned[0], 0] == window.spans[1, 0] else int(window.spans[owned[0], 0])
    return window.text * _TEXT + first


def tokens_of(windows: Sequence[Window], window_of: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return (first, last) of the tokens that spans cover, counted over all windows end to end.

    A span that reaches beyond its window ends with the window's last token.
    """
    lengths = np.array([len(window) for window in windows], np.int64)
    bases = np.cumsum(lengths) - lengths
    begins = np.concatenate([window.spans[:, 0] for window in windows])
    is_special = np.concatenate([window.special_mask for window in windows])
    number = np.repeat(np.arange(len(windows)), lengths)
    position = np.arange(len(begins)) - bases[number]
    begins = np.where(is_special, np.where(position == 0, -1, _TEXT - 1), begins) + number * _TEXT
    first = np.searchsorted(begins, window_of * _TEXT + starts, "right") - 1
    last = np.searchsorted(begins, window_of * _TEXT + ends, "left") - 1
    low, high = bases[window_of] + 1, bases[window_of] + lengths[window_of] - 2
    first = np.clip(first, low, high)
    return first, np.clip(last, first, high)
