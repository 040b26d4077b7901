"""Which pieces of a text go into which window, so that words and marks stay whole.

A text is here the word of each of its pieces (-1: of none), a mark its first piece and the one behind its last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def trim(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """So much of one text, or of two, of which the longer loses its end first."""
    if len(lengths) == 1:
        return [(0, min(lengths[0], room))]
    first, second = lengths
    if min(first, second) <= room // 2:
        first, second = (first, room - first) if first <= second else (room - second, second)
    else:
        first, second = room - room // 2, room // 2
    return [(0, first), (0, second)]


def split_ranges(
    words: NDArray[np.int64], marks: NDArray[np.int64], room: int, most: int | None, shared: int
) -> Iterator[tuple[int, int]]:
    """Pieces (first, last + 1) of windows that end between words and cut no mark in two."""
    tokens = len(words)
    whole, apart = _between_words(words), np.ones(tokens + 1, np.bool_)
    for first, last in marks.tolist():
        if last - first <= room:
            apart[first + 1 : last] = False
    fine = [np.flatnonzero(places) for places in (whole & apart, apart)]
    begin = 0
    while True:
        full = min(begin + room, tokens)
        least = full if most is None else _with_room(begin, full, marks, most)
        found = (_last(places, begin, end) for end in dict.fromkeys((least, full)) for places in fine)
        end = next((place for place in found if place is not None), full)
        yield begin, end
        if end >= tokens:
            return
        again = _last(fine[0], begin, end - shared) if shared and least == full else end
        begin = begin + 1 if again is None else again


def _between_words(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a window may begin or end, as no word is cut there."""
    whole = np.ones(len(words) + 1, np.bool_)
    whole[1 : len(words)] = (words[1:] != words[:-1]) | (words[1:] < 0)
    return whole


def range_around(words: NDArray[np.int64], first: int, last: int, room: int) -> tuple[int, int]:
    """The pieces of a window with a mark in its middle, and whole words beside it."""
    low = max(0, min(first - (room - last + first) // 2, len(words) - room))
    high = min(low + room, len(words))
    whole = np.flatnonzero(_between_words(words))
    before, behind = whole[(whole >= low) & (whole <= first)], whole[(whole >= last) & (whole <= high)]
    return int(before[0]) if len(before) else first, int(behind[-1]) if len(behind) else last


def _last(places: NDArray[np.int64], begin: int, end: int) -> int | None:
    """The last of ascending places that is behind `begin` and not behind `end`."""
    at = int(np.searchsorted(places, end, side="right")) - 1
    return int(places[at]) if at >= 0 and places[at] > begin else None


def _with_room(begin: int, end: int, marks: NDArray[np.int64], most: int) -> int:
    """An end that leaves no more than so many marks inside."""
    inside = np.sort(marks[(marks[:, 0] >= begin) & (marks[:, 1] <= end), 1])
    if len(inside) <= most:
        return end
    return int(inside[most]) - 1
