"""Texts with marks (mentions that are given: by the data, or by a linker) in pieces, each mark in pieces of its own.

A text is cut at both ends of every mark first, and then into pieces, so that no piece is partly in a mark: the pieces
that LUKE's own tokenizer makes. What is too long becomes several windows, and no mark is lost on the way: one that
would be cut in two goes wholly into the next window, a window with too many marks ends early. Where that is not
enough (marks that overlap one after the other, or too many at one place) more windows show the same pieces again, for
the marks that are left. What cannot fit (no piece, or more than a window has) is told.

    text     Beyoncé lives in Los Angeles.
    marks    └─────┘          └─────────┘
    pieces   <s> Bey on cé │ Ġlives Ġin │ ĠLos ĠAngeles │ . </s>
    places       1  2  3                  6    7
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from wellread.document import short
from wellread.errors import UsageError
from wellread.models.luke.window_ranges import range_around, split_ranges, trim
from wellread.text.tokenization import Mark, Tokenization, encode_many, owners, trim_blanks, with_unknown
from wellread.text.words import split

_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked(Tokenization):
    """An input whose marks are made of whole pieces."""

    mark_tokens: Int64[np.ndarray, "mark 2"]
    """The first piece of each mark, and the one behind its last."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A mark that is in no window, and why."""

    mark: Mark
    why: str


@dataclass(frozen=True, slots=True)
class MentionWindows:
    """One or two texts as inputs of an encoder.

    Every mark is in one of them (in several, where they share its pieces), or among those that are lost.
    """

    windows: tuple[Marked, ...]
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class _Segment:
    """One text in pieces, without special ones."""

    text: str
    ids: NDArray[np.int64]
    spans: NDArray[np.int64]
    word_spans: NDArray[np.int64]
    word_of: NDArray[np.int64]
    places: dict[int, int]
    """Of a border of marks, the number of pieces before it."""

    def __len__(self) -> int:
        return len(self.ids)


class MentionTokenizer:
    """Cuts texts with marks by one tokenizer, in inputs of at most `longest` pieces and `most` marks."""

    def __init__(self, tokenizer: Tokenizer | Any, *, longest: int | None = None, most: int | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        # a copy: the user's own keeps its truncation
        self.tokenizer = with_unknown(Tokenizer.from_str(backend.to_str()))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.longest, self.most = longest, most
        self._frames = {1: _Frame.of(self.tokenizer.encode("a")), 2: _Frame.of(self.tokenizer.encode("a", "a"))}
        if most is not None and most < 1:
            raise UsageError(f"windows of {most} marks have room for none; let most be 1 or more")
        if longest is not None and longest <= len(self._frames[2]):
            raise UsageError(
                f"inputs of {longest} pieces have no room for text beside {len(self._frames[2])} special pieces; "
                f"let longest be more than {len(self._frames[2])}"
            )

    def tokenize(
        self, *texts: str, marks: Sequence[Mark] = (), around: Sequence[int] = (), windows: bool = True, shared: int = 0
    ) -> MentionWindows:
        """One input: `cut("Beyoncé lives in Los Angeles.", marks=[Mark(0, 0, 7), Mark(0, 17, 28)])`."""
        return self.tokenize_many([(texts, marks)], around=around, windows=windows, shared=shared)[0]

    def tokenize_many(
        self,
        inputs: Sequence[tuple[Sequence[str], Sequence[Mark]]],
        *,
        around: Sequence[int] = (),
        windows: bool = True,
        shared: int = 0,
    ) -> list[MentionWindows]:
        """Many at once, on all cores; each of one or two texts.

        `around` are ids of special pieces that stand before and behind the first mark, the second, … (and count as
        part of it). Without `windows` there is one input, of what fits. Of two texts the first is whole in every
        window, neighbouring windows share so many pieces of the text that is cut.
        """
        made: list[MentionWindows] = []
        for begin in range(0, len(inputs), _AT_ONCE):
            some = [(_checked(texts, marks), marks) for texts, marks in inputs[begin : begin + _AT_ONCE]]
            for (texts, marks), segments in zip(some, self._segments(some), strict=True):
                made.append(self._cut(texts, segments, marks, around, windows, shared))
        return made

    def _segments(self, inputs: Sequence[tuple[tuple[str, ...], Sequence[Mark]]]) -> Iterator[list[_Segment]]:
        borders = [
            [_borders(text, [mark for mark in marks if mark.segment == number]) for number, text in enumerate(texts)]
            for texts, marks in inputs
        ]
        parts = [
            text[begin:end]
            for (texts, _), some in zip(inputs, borders, strict=True)
            for text, cuts in zip(texts, some, strict=True)
            for begin, end in _parts(text, cuts)
        ]
        codes = iter(encode_many(self.tokenizer, parts, special=False))
        for (texts, _), some in zip(inputs, borders, strict=True):
            yield [_join(text, cuts, codes) for text, cuts in zip(texts, some, strict=True)]

    def _cut(
        self,
        texts: tuple[str, ...],
        segments: Sequence[_Segment],
        marks: Sequence[Mark],
        around: Sequence[int],
        windows: bool,
        shared: int,
    ) -> MentionWindows:
        frame = self._frames[len(texts)]
        spans = np.array(
            [[segments[mark.segment].places[border] for border in (mark.start, mark.end)] for mark in marks], np.int64
        ).reshape(-1, 2)
        of = np.array([mark.segment for mark in marks], np.int64)
        around = around[: len(marks)]
        parts = [(0, len(segment)) for segment in segments]
        room = None if self.longest is None else self.longest - len(frame) - 2 * len(around)
        cut_off = np.zeros(len(marks), np.bool_)
        if room is not None and sum(map(len, segments)) > room and not windows:
            parts, cut_off = _trim_marked(segments, spans, of, len(around), room)
        last = len(segments) - 1
        free = len(segments[last]) if room is None else room - sum(len(segment) for segment in segments[:last])
        ranges: list[tuple[int, int]] = [parts[last]]
        if windows:
            if free <= shared and len(segments[last]) > free:
                raise UsageError(
                    f"inputs of {self.longest} pieces that share {shared} have {max(free, 0)} for a text beside "
                    f"{short(texts[0], 60)!r}; let longest be more, or shared less"
                )
            inside = spans[(of == last) & (spans[:, 1] > spans[:, 0])]
            before = int((of < last).sum())
            most = None if self.most is None else max(1, self.most - before)
            ranges = list(split_ranges(segments[last].word_of, inside, free, most, shared))
        counts = spans[:, 1] - spans[:, 0]
        fits = (counts > 0) & ((of < last) | (counts <= free))
        made, taken = [], np.zeros(len(marks), np.bool_)

        def open_window(low: int, high: int, wanted: NDArray[np.bool_]) -> None:
            here = [*parts[:last], (low, high)]
            lows, highs = np.array(here, np.int64).T
            inside = (spans[:, 0] >= lows[of]) & (spans[:, 1] <= highs[of])
            mine = np.flatnonzero(inside & wanted)[: self.most]
            taken[mine] = True
            own = [(marks[at], spans[at]) for at in mine.tolist()]
            # what stands around a mark is by its number among all, whichever are in this window
            edges = {place: around[at] for place, at in enumerate(mine.tolist()) if at < len(around)}
            made.append(_window(texts, segments, here, frame, own, edges))

        for low, high in ranges:
            open_window(low, high, (counts > 0) & ~cut_off)
        while windows and (fits & ~taken).any():
            first = int((fits & ~taken).argmax())
            begin, end = spans[first].tolist() if of[first] == last else (0, 0)
            open_window(*range_around(segments[last].word_of, begin, end, free), fits & ~taken)
        lost = (_why(marks[at], spans[at], free) for at in np.flatnonzero(~taken).tolist())
        return MentionWindows(tuple(made), tuple(lost))


def _trim_marked(
    segments: Sequence[_Segment], spans: NDArray[np.int64], of: NDArray[np.int64], around: int, room: int
) -> tuple[list[tuple[int, int]], NDArray[np.bool_]]:
    """The tokens of each text that fit, and which of the first `around` marks do not fit with special tokens.

    A mark that is cut off takes no special tokens: their places go to the text, as in the authors' inputs.
    """
    cut_off = np.zeros(len(spans), np.bool_)
    while True:
        free = room + 2 * int(cut_off.sum())
        lengths = [len(segment) for segment in segments]
        parts = trim(lengths, free) if sum(lengths) > free else [(0, length) for length in lengths]
        ends = np.array([end for _, end in parts], np.int64)
        new = spans[:around, 1] > ends[of[:around]]
        if not (new & ~cut_off[:around]).any():
            return parts, cut_off
        cut_off[:around] |= new


def _why(mark: Mark, span: NDArray[np.int64], room: int) -> Lost:
    tokens = int(span[1] - span[0])
    if not tokens:
        return Lost(mark, "it has no piece")
    if tokens > room:
        return Lost(mark, f"it has {tokens} pieces, and an input has room for {room}")
    return Lost(mark, "an input has no room for it beside the others")


def _checked(texts: Sequence[str], marks: Sequence[Mark]) -> tuple[str, ...]:
    if isinstance(texts, str) or not 1 <= len(texts) <= 2:
        raise UsageError("an input is one or two texts; give them as ('a text',) or ('a question', 'a passage')")
    for mark in marks:
        if not 0 <= mark.segment < len(texts) or not 0 <= mark.start < mark.end <= len(texts[mark.segment]):
            raise UsageError(
                f"the mark {mark.start}:{mark.end} of text {mark.segment} is not inside it; marks are characters from "
                "0, end exclusive, of text 0 or 1"
            )
    return tuple(texts)


def _borders(text: str, marks: Sequence[Mark]) -> list[tuple[int, int]]:
    """Where marks begin and end, and where the text is cut for it: a blank belongs to what follows."""
    ends = sorted({border for mark in marks for border in (mark.start, mark.end)})
    return [(border, border - 1 if border and text[border - 1] == " " else border) for border in ends]


def _parts(text: str, borders: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    cuts = [0, *(begin for _, begin in borders), len(text)]
    return [(begin, end) for begin, end in pairwise(cuts) if begin < end]


def _join(text: str, borders: Sequence[tuple[int, int]], codes: Iterator[Encoding]) -> _Segment:
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    before = {0: 0}
    for begin, end in _parts(text, borders):
        code = next(codes)
        ids += code.ids
        offsets += [(begin + first, begin + last) for first, last in code.offsets]
        before[end] = len(ids)
    spans = np.array(offsets, np.int64).reshape(-1, 2)
    spans = trim_blanks(text, spans) if len(spans) else spans
    words = split(text)
    word_spans = np.stack((words.starts, words.ends), axis=1)
    places = {border: before[begin] for border, begin in borders}
    return _Segment(text, np.array(ids, np.int64), spans, word_spans, owners(spans, word_spans), places)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The special pieces before, between and behind the texts of an input, and the types of all."""

    ids: tuple[NDArray[np.int64], ...]
    types: tuple[NDArray[np.int64], ...]
    own: tuple[int, ...]
    """The types of each text's pieces."""

    def __len__(self) -> int:
        return sum(map(len, self.ids))

    @classmethod
    def of(cls, code: Encoding) -> _Frame:
        segments = [-1 if segment is None else segment for segment in code.sequence_ids]
        count = max(segments) + 1
        ids: list[list[int]] = [[] for _ in range(count + 1)]
        types: list[list[int]] = [[] for _ in range(count + 1)]
        own, at = [0] * count, 0
        for id, kind, segment in zip(code.ids, code.type_ids, segments, strict=True):
            if segment < 0:
                ids[at].append(id)
                types[at].append(kind)
            else:
                own[segment], at = kind, segment + 1
        return cls(
            tuple(np.array(some, np.int64) for some in ids),
            tuple(np.array(some, np.int64) for some in types),
            tuple(own),
        )


def _window(
    texts: tuple[str, ...],
    segments: Sequence[_Segment],
    ranges: Sequence[tuple[int, int]],
    frame: _Frame,
    marks: Sequence[tuple[Mark, NDArray[np.int64]]],
    around: Mapping[int, int],
) -> Marked:
    ids, types = [frame.ids[0]], [frame.types[0]]
    blank = (np.zeros((len(frame.ids[0]), 2), np.int64), np.full(len(frame.ids[0]), -1, np.int64))
    spans, segment_of, word_of = [blank[0]], [blank[1]], [blank[1]]
    words: list[str] = []
    word_spans: list[NDArray[np.int64]] = []
    first_words, offsets, length = [], [], len(frame.ids[0])
    for number, (segment, (low, high)) in enumerate(zip(segments, ranges, strict=True)):
        own = segment.word_of[low:high]
        known = own[own >= 0]
        first, last = (int(known.min()), int(known.max()) + 1) if len(known) else (0, 0)
        behind = len(frame.ids[number + 1])
        ids += [segment.ids[low:high], frame.ids[number + 1]]
        types += [np.full(high - low, frame.own[number], np.int64), frame.types[number + 1]]
        spans += [segment.spans[low:high], np.zeros((behind, 2), np.int64)]
        segment_of += [np.full(high - low, number, np.int64), np.full(behind, -1, np.int64)]
        word_of += [np.where(own < 0, -1, own - first + len(words)), np.full(behind, -1, np.int64)]
        word_spans.append(segment.word_spans[first:last])
        words += [texts[number][start:end] for start, end in word_spans[-1].tolist()]
        first_words.append(first)
        offsets.append(length - low)
        length += high - low + behind
    places = np.array([span + offsets[mark.segment] for mark, span in marks], np.int64).reshape(-1, 2)
    told = {
        "ids": np.concatenate(ids),
        "types": np.concatenate(types),
        "spans": np.concatenate(spans),
        "segment_of": np.concatenate(segment_of),
        "word_of": np.concatenate(word_of),
    }
    if around:
        told, places = _put_around(told, places, around)
    return Marked(
        texts,
        **told,
        words=tuple(words),
        word_spans=np.concatenate(word_spans),
        word_segment=np.repeat(np.arange(len(word_spans)), [len(part) for part in word_spans]),
        first_words=tuple(first_words),
        marks=tuple(mark for mark, _ in marks),
        hidden=(),
        omitted=(),
        mark_tokens=places,
    )


def _put_around(
    told: dict[str, NDArray[np.int64]], places: NDArray[np.int64], around: Mapping[int, int]
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """Special pieces before and behind marks, which become part of them; at one place the end of a mark comes first."""
    put = [
        (int(place), side, number)
        for number in around
        for side, place in ((1, places[number, 0]), (0, places[number, 1]))
    ]
    put.sort()
    at = np.array([place for place, _, _ in put], np.int64)
    fill = {"ids": np.array([around[number] for _, _, number in put], np.int64), "types": told["types"][at - 1]}
    made = {
        name: np.insert(part, at, fill.get(name, np.int64(0 if name == "spans" else -1)), axis=0)
        for name, part in told.items()
    }
    moved = places.copy()
    for number, (first, last) in enumerate(places.tolist()):
        moved[number, 0] += int((at < first).sum())
        moved[number, 1] += int((at < last).sum())
        for order, (place, side, owner) in enumerate(put):
            if owner == number:
                moved[number, 1 - side] = place + order + (0 if side else 1)
    return made, moved
