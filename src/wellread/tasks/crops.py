"""A part of an input: a window of its first text around what a task asks about, where all of it would be too long."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.mentions.segments import Segmented


def window_around(one: Segmented, first: int, last: int, room: int) -> NDArray[np.int64]:
    """The pieces to keep: all that are not of the first text, and a window of it around pieces first … last - 1.

    They are in its middle, unless the text begins or ends nearby; where they are too many, their beginning stays.
    """
    own = np.flatnonzero(one.segment_of == 0)
    others = np.setdiff1d(np.arange(len(one)), own)
    room -= len(others)
    if room < 1:
        raise UsageError(f"inputs have no room for text beside {len(others)} other pieces; let longest be more")
    low, high = first - own[0], last - own[0]
    spare = room - (high - low)
    begin = low if spare < 0 else int(np.clip(low - spare // 2, 0, max(len(own) - room, 0)))
    return np.sort(np.concatenate((others, own[begin : begin + room])))


def keep_pieces(one: Segmented, kept: NDArray[np.int64]) -> Segmented:
    """An input of fewer pieces, those of its first text a window of it; words of which nothing is left go."""
    spans, segment_of = one.spans[kept], one.segment_of[kept]
    here = np.flatnonzero(segment_of == 0)
    low, high = spans[here[0], 0], spans[here[-1], 1]
    gone = (one.word_segment == 0) & ((one.word_spans[:, 1] <= low) | (one.word_spans[:, 0] >= high))
    stay = np.flatnonzero(~gone)
    number = np.full(len(one.words) + 1, -1, np.int64)  # the last is that of pieces without a word
    number[stay] = np.arange(len(stay))
    first = int(((one.word_segment == 0) & (one.word_spans[:, 1] <= low)).sum())
    return dataclasses.replace(
        one,
        ids=one.ids[kept],
        types=one.types[kept],
        spans=spans,
        segment_of=segment_of,
        word_of=number[one.word_of[kept]],
        words=tuple(one.words[word] for word in stay.tolist()),
        word_spans=one.word_spans[stay],
        word_segment=one.word_segment[stay],
        first_words=(first + one.first_words[0], *one.first_words[1:]),
    )
