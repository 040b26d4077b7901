"""A part of an input: windows of its first text around what a task asks about, where all of it would be too long."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.text.segments import Omission, Segmented


def window_around(one: Segmented, first: int, last: int, room: int) -> NDArray[np.int64]:
    """The pieces to keep: all that are not of the first text, and a window of it around pieces first … last - 1.

    They are in its middle, unless the text begins or ends nearby; where they are too many, their beginning stays.
    """
    own, others, room = _room(one, room)
    low, high = first - own[0], last - own[0]
    spare = room - (high - low)
    begin = low if spare < 0 else int(np.clip(low - spare // 2, 0, max(len(own) - room, 0)))
    return np.sort(np.concatenate((others, own[begin : begin + room])))


def windows_around(one: Segmented, mentions: Sequence[tuple[int, int]], room: int) -> NDArray[np.int64]:
    """The same with a window around each of some mentions (first … last - 1), for those that are far apart.

    Mentions stay whole if they can, and the rest is what is nearest to them; where they are too many pieces, the
    beginning of each stays.
    """
    own, others, room = _room(one, room)
    longest = max(last - first for first, last in mentions)
    rank = np.full(len(own), len(one) + longest)
    for first, last in mentions:
        away = np.maximum(first - own, own - last + 1)  # 1 for those beside it
        rank = np.minimum(rank, np.where((own >= first) & (own < last), own - first, longest + away))
    return np.sort(np.concatenate((others, own[np.argsort(rank, kind="stable")[:room]])))


def keep_tokens(one: Segmented, kept: NDArray[np.int64]) -> Segmented:
    """An input of fewer pieces, those of its first text windows of it; words of which nothing is left go."""
    spans, segment_of = one.spans[kept], one.segment_of[kept]
    here = np.flatnonzero(segment_of == 0)
    low, high = spans[here[0], 0], spans[here[-1], 1]
    first_text, starts, ends = one.word_segment == 0, one.word_spans[:, 0], one.word_spans[:, 1]
    gone = first_text & ((ends <= low) | (starts >= high))
    omitted = []
    for before in here[:-1][np.diff(kept[here]) > 1].tolist():
        start, end = int(spans[before, 1]), int(spans[before + 1, 0])
        lost = first_text & (starts >= start) & (ends <= end)
        omitted.append(Omission(start, end, int((first_text & ~gone & (starts < start)).sum()), int(lost.sum())))
        gone |= lost
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
        omitted=tuple(omitted),
    )


def _room(one: Segmented, room: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The pieces of the first text, all others, and how many of the first there is room for."""
    own = np.flatnonzero(one.segment_of == 0)
    others = np.setdiff1d(np.arange(len(one)), own)
    if room <= len(others):
        raise UsageError(f"inputs have no room for text beside {len(others)} other pieces; let longest be more")
    return own, others, room - len(others)
