"""Tokenization of texts with given mentions (marks), such that no token is partly inside a mention.

As LUKE's own tokenizer does, the text is split at both ends of every mark before it is tokenized. A text that is too
long becomes several windows without losing a mark: a mark that would be split goes whole into the next window, and a
window with too many marks ends early. If that is not enough (chains of overlapping marks, or too many at one place),
additional windows repeat the text for the remaining marks. Marks that cannot fit (no token, or more than a window
has) are returned with the reason.

    text       Beyoncé lives in Los Angeles.
    marks      └─────┘          └─────────┘
    tokens     <s> Bey on cé │ Ġlives Ġin │ ĠLos ĠAngeles │ . </s>
    positions      1   2  3                 6    7
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
from wellread.text.tokenization import Mark, Tokenization, encode_many, owners, trim_blanks, with_unknown
from wellread.text.words import split

_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MentionWindow(Tokenization):
    """Tokenized input in which every mark consists of whole tokens."""

    mark_tokens: Int64[np.ndarray, "mark 2"]
    """First token of each mark, and the one after its last."""


@dataclass(frozen=True, slots=True)
class DroppedMention:
    """Mark that is in no window, and the reason."""

    mark: Mark
    reason: str


@dataclass(frozen=True, slots=True)
class MentionWindows:
    """Windows of one or two texts, and the marks that are in none of them.

    A mark is in several windows if these share its tokens.
    """

    windows: tuple[MentionWindow, ...]
    dropped: tuple[DroppedMention, ...] = ()


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens of one text, without special tokens."""

    text: str
    ids: NDArray[np.int64]
    spans: NDArray[np.int64]
    word_spans: NDArray[np.int64]
    word_of: NDArray[np.int64]
    positions: dict[int, int]
    """Number of tokens before each border of a mark."""

    def __len__(self) -> int:
        return len(self.ids)


class MentionTokenizer:
    """Tokenizer of texts with marks, for inputs of at most `longest` tokens and `most` marks."""

    def __init__(self, tokenizer: Tokenizer | Any, *, longest: int | None = None, most: int | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        # a copy, so that the truncation settings of the caller's tokenizer stay
        self.tokenizer = with_unknown(Tokenizer.from_str(backend.to_str()))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.longest, self.most = longest, most
        self._frames = {1: _Frame.of(self.tokenizer.encode("a")), 2: _Frame.of(self.tokenizer.encode("a", "a"))}
        if most is not None and most < 1:
            raise UsageError(f"most is {most}; expected 1 mark per window or more")
        if longest is not None and longest <= len(self._frames[2]):
            raise UsageError(
                f"inputs of {longest} tokens have no capacity for text beside {len(self._frames[2])} special tokens; "
                f"set longest to more than {len(self._frames[2])}"
            )

    def tokenize(
        self, *texts: str, marks: Sequence[Mark] = (), around: Sequence[int] = (), windows: bool = True, shared: int = 0
    ) -> MentionWindows:
        """Tokenize one input: `tokenize("Beyoncé lives in Los Angeles.", marks=[Mark(0, 0, 7), Mark(0, 17, 28)])`."""
        return self.tokenize_many([(texts, marks)], around=around, windows=windows, shared=shared)[0]

    def tokenize_many(
        self,
        inputs: Sequence[tuple[Sequence[str], Sequence[Mark]]],
        *,
        around: Sequence[int] = (),
        windows: bool = True,
        shared: int = 0,
    ) -> list[MentionWindows]:
        """Tokenize many inputs of one or two texts each, in parallel.

        `around` are ids of special tokens to insert before and after the first mark, the second, … (they become part of
        it). With `windows=False` each input is truncated to one window. Of two texts the first is whole in every
        window; the second is split into windows that overlap by `shared` tokens.
        """
        tokenized: list[MentionWindows] = []
        for begin in range(0, len(inputs), _AT_ONCE):
            batch = [(_checked(texts, marks), marks) for texts, marks in inputs[begin : begin + _AT_ONCE]]
            for (texts, marks), segments in zip(batch, self._segments(batch), strict=True):
                tokenized.append(self._split(texts, segments, marks, around, windows, shared))
        return tokenized

    def _segments(self, inputs: Sequence[tuple[tuple[str, ...], Sequence[Mark]]]) -> Iterator[list[_Segment]]:
        bordered = [
            [
                (text, _borders(text, [mark for mark in marks if mark.segment == number]))
                for number, text in enumerate(texts)
            ]
            for texts, marks in inputs
        ]
        parts = [
            text[begin:end] for pairs in bordered for text, borders in pairs for begin, end in _parts(text, borders)
        ]
        encodings = iter(encode_many(self.tokenizer, parts, special=False))
        for pairs in bordered:
            yield [_join(text, borders, encodings) for text, borders in pairs]

    def _split(
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
            [[segments[mark.segment].positions[border] for border in (mark.start, mark.end)] for mark in marks],
            np.int64,
        ).reshape(-1, 2)
        of = np.array([mark.segment for mark in marks], np.int64)
        around = around[: len(marks)]
        parts = [(0, len(segment)) for segment in segments]
        capacity = None if self.longest is None else self.longest - len(frame) - 2 * len(around)
        cut_off = np.zeros(len(marks), np.bool_)
        if capacity is not None and sum(map(len, segments)) > capacity and not windows:
            parts, cut_off = _trim_marked(segments, spans, of, len(around), capacity)
        last = len(segments) - 1
        free = len(segments[last]) if capacity is None else capacity - sum(len(segment) for segment in segments[:last])
        ranges: list[tuple[int, int]] = [parts[last]]
        if windows:
            if free <= shared and len(segments[last]) > free:
                raise UsageError(
                    f"inputs of {self.longest} tokens that share {shared} have {max(free, 0)} for a text beside "
                    f"{short(texts[0], 60)!r}; increase longest, or decrease shared"
                )
            inside = spans[(of == last) & (spans[:, 1] > spans[:, 0])]
            before = int((of < last).sum())
            most = None if self.most is None else max(1, self.most - before)
            ranges = list(split_ranges(segments[last].word_of, inside, free, most, shared))
        counts = spans[:, 1] - spans[:, 0]
        fits = (counts > 0) & ((of < last) | (counts <= free))
        found, taken = [], np.zeros(len(marks), np.bool_)

        def open_window(low: int, high: int, wanted: NDArray[np.bool_]) -> None:
            here = [*parts[:last], (low, high)]
            lows, highs = np.array(here, np.int64).T
            inside = (spans[:, 0] >= lows[of]) & (spans[:, 1] <= highs[of])
            chosen = np.flatnonzero(inside & wanted)[: self.most]
            taken[chosen] = True
            own = [(marks[at], spans[at]) for at in chosen.tolist()]
            # the special tokens of a mark depend on its number among all marks, not among those of this window
            edges = {place: around[at] for place, at in enumerate(chosen.tolist()) if at < len(around)}
            found.append(_window(texts, segments, here, frame, own, edges))

        for low, high in ranges:
            open_window(low, high, (counts > 0) & ~cut_off)
        while windows and (fits & ~taken).any():
            first = int((fits & ~taken).argmax())
            begin, end = spans[first].tolist() if of[first] == last else (0, 0)
            open_window(*range_around(segments[last].word_of, begin, end, free), fits & ~taken)
        dropped = (_drop(marks[at], spans[at], free) for at in np.flatnonzero(~taken).tolist())
        return MentionWindows(tuple(found), tuple(dropped))


def _trim_marked(
    segments: Sequence[_Segment], spans: NDArray[np.int64], of: NDArray[np.int64], around: int, capacity: int
) -> tuple[list[tuple[int, int]], NDArray[np.bool_]]:
    """Return the token range of each text that fits, and a mask of the first `around` marks that were cut off.

    A mark that is cut off gets no special tokens; the text uses their positions, as in the authors' inputs.
    """
    cut_off = np.zeros(len(spans), np.bool_)
    while True:
        free = capacity + 2 * int(cut_off.sum())
        lengths = [len(segment) for segment in segments]
        parts = trim(lengths, free) if sum(lengths) > free else [(0, length) for length in lengths]
        ends = np.array([end for _, end in parts], np.int64)
        new = spans[:around, 1] > ends[of[:around]]
        if not (new & ~cut_off[:around]).any():
            return parts, cut_off
        cut_off[:around] |= new


def _drop(mark: Mark, span: NDArray[np.int64], capacity: int) -> DroppedMention:
    tokens = int(span[1] - span[0])
    if not tokens:
        return DroppedMention(mark, "it has no token")
    if tokens > capacity:
        return DroppedMention(mark, f"it has {tokens} tokens, but a window has capacity for {capacity}")
    return DroppedMention(mark, "a window has no capacity for it beside the others")


def _checked(texts: Sequence[str], marks: Sequence[Mark]) -> tuple[str, ...]:
    if isinstance(texts, str) or not 1 <= len(texts) <= 2:
        raise UsageError("an input is one or two texts; give them as ('a text',) or ('a question', 'a passage')")
    for mark in marks:
        if not 0 <= mark.segment < len(texts) or not 0 <= mark.start < mark.end <= len(texts[mark.segment]):
            raise UsageError(
                f"the mark {mark.start}:{mark.end} of text {mark.segment} is not inside it; expected character "
                "offsets from 0, end exclusive, of text 0 or 1"
            )
    return tuple(texts)


def _borders(text: str, marks: Sequence[Mark]) -> list[tuple[int, int]]:
    """Return each border of a mark, and where to split the text for it: a space belongs to what follows it."""
    ends = sorted({border for mark in marks for border in (mark.start, mark.end)})
    return [(border, border - 1 if border and text[border - 1] == " " else border) for border in ends]


def _parts(text: str, borders: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    splits = [0, *(begin for _, begin in borders), len(text)]
    return [(begin, end) for begin, end in pairwise(splits) if begin < end]


def _join(text: str, borders: Sequence[tuple[int, int]], encodings: Iterator[Encoding]) -> _Segment:
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    before = {0: 0}
    for begin, end in _parts(text, borders):
        encoding = next(encodings)
        ids += encoding.ids
        offsets += [(begin + first, begin + last) for first, last in encoding.offsets]
        before[end] = len(ids)
    spans = np.array(offsets, np.int64).reshape(-1, 2)
    spans = trim_blanks(text, spans) if len(spans) else spans
    words = split(text)
    word_spans = np.stack((words.starts, words.ends), axis=1)
    positions = {border: before[begin] for border, begin in borders}
    return _Segment(text, np.array(ids, np.int64), spans, word_spans, owners(spans, word_spans), positions)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Special tokens before, between and after the texts of an input, and the token types of all."""

    ids: tuple[NDArray[np.int64], ...]
    types: tuple[NDArray[np.int64], ...]
    own: tuple[int, ...]
    """Token type of each text."""

    def __len__(self) -> int:
        return sum(map(len, self.ids))

    def tokens(self, at: int) -> tuple[NDArray[np.int64], ...]:
        """Return ids, types, character spans, segments and words of the special tokens before text `at`."""
        none = np.full(len(self.ids[at]), -1, np.int64)
        return self.ids[at], self.types[at], np.zeros((len(none), 2), np.int64), none, none

    @classmethod
    def of(cls, encoding: Encoding) -> _Frame:
        segments = [-1 if segment is None else segment for segment in encoding.sequence_ids]
        count = max(segments) + 1
        ids: list[list[int]] = [[] for _ in range(count + 1)]
        types: list[list[int]] = [[] for _ in range(count + 1)]
        own, at = [0] * count, 0
        for id, type, segment in zip(encoding.ids, encoding.type_ids, segments, strict=True):
            if segment < 0:
                ids[at].append(id)
                types[at].append(type)
            else:
                own[segment], at = type, segment + 1
        return cls(
            tuple(np.array(part, np.int64) for part in ids),
            tuple(np.array(part, np.int64) for part in types),
            tuple(own),
        )


def _window(
    texts: tuple[str, ...],
    segments: Sequence[_Segment],
    ranges: Sequence[tuple[int, int]],
    frame: _Frame,
    marks: Sequence[tuple[Mark, NDArray[np.int64]]],
    around: Mapping[int, int],
) -> MentionWindow:
    columns = [frame.tokens(0)]
    words: list[str] = []
    word_spans: list[NDArray[np.int64]] = []
    first_words, offsets, length = [], [], len(frame.ids[0])
    for number, (segment, (low, high)) in enumerate(zip(segments, ranges, strict=True)):
        own = segment.word_of[low:high]
        known = own[own >= 0]
        first, last = (int(known.min()), int(known.max()) + 1) if len(known) else (0, 0)
        types, segment_of = (np.full(high - low, value, np.int64) for value in (frame.own[number], number))
        word_of = np.where(own < 0, -1, own - first + len(words))
        columns.append((segment.ids[low:high], types, segment.spans[low:high], segment_of, word_of))
        columns.append(frame.tokens(number + 1))
        word_spans.append(segment.word_spans[first:last])
        words += [texts[number][start:end] for start, end in word_spans[-1].tolist()]
        first_words.append(first)
        offsets.append(length - low)
        length += high - low + len(frame.ids[number + 1])
    positions = np.array([span + offsets[mark.segment] for mark, span in marks], np.int64).reshape(-1, 2)
    names = ("ids", "types", "spans", "segment_of", "word_of")
    arrays = dict(zip(names, map(np.concatenate, zip(*columns, strict=True)), strict=True))
    if around:
        arrays, positions = _insert_around(arrays, positions, around)
    return MentionWindow(
        texts,
        **arrays,
        words=tuple(words),
        word_spans=np.concatenate(word_spans),
        word_segment=np.repeat(np.arange(len(word_spans)), [len(part) for part in word_spans]),
        first_words=tuple(first_words),
        marks=tuple(mark for mark, _ in marks),
        hidden=(),
        omitted=(),
        mark_tokens=positions,
    )


def _insert_around(
    arrays: dict[str, NDArray[np.int64]], positions: NDArray[np.int64], around: Mapping[int, int]
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """Insert special tokens before and after marks, as part of them; at one position the end of a mark comes first."""
    put = [
        (int(place), side, number)
        for number in around
        for side, place in ((1, positions[number, 0]), (0, positions[number, 1]))
    ]
    put.sort()
    at = np.array([place for place, _, _ in put], np.int64)
    fill = {"ids": np.array([around[number] for _, _, number in put], np.int64), "types": arrays["types"][at - 1]}
    inserted = {
        name: np.insert(part, at, fill.get(name, np.int64(0 if name == "spans" else -1)), axis=0)
        for name, part in arrays.items()
    }
    moved = positions.copy()
    for number, (first, last) in enumerate(positions.tolist()):
        moved[number, 0] += int((at < first).sum())
        moved[number, 1] += int((at < last).sum())
        for order, (place, side, owner) in enumerate(put):
            if owner == number:
                moved[number, 1 - side] = place + order + (0 if side else 1)
    return inserted, moved


def trim(lengths: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Return the range to keep of one text, or of two, of which the longer is truncated first."""
    if len(lengths) == 1:
        return [(0, min(lengths[0], capacity))]
    first, second = lengths
    if min(first, second) <= capacity // 2:
        first, second = (first, capacity - first) if first <= second else (capacity - second, second)
    else:
        first, second = capacity - capacity // 2, capacity // 2
    return [(0, first), (0, second)]


def split_ranges(
    words: NDArray[np.int64], marks: NDArray[np.int64], capacity: int, most: int | None, shared: int
) -> Iterator[tuple[int, int]]:
    """Yield token ranges (start, end) of windows that split neither a word nor a mark.

    `words` has the word of each token (-1 for none), `marks` the token range of each mark.
    """
    tokens = len(words)
    whole, apart = _between_words(words), np.ones(tokens + 1, np.bool_)
    for first, last in marks.tolist():
        if last - first <= capacity:
            apart[first + 1 : last] = False
    fine = [np.flatnonzero(positions) for positions in (whole & apart, apart)]
    begin = 0
    while True:
        full = min(begin + capacity, tokens)
        least = full if most is None else _with_most(begin, full, marks, most)
        found = (_last(positions, begin, end) for end in dict.fromkeys((least, full)) for positions in fine)
        end = next((place for place in found if place is not None), full)
        yield begin, end
        if end >= tokens:
            return
        again = _last(fine[0], begin, end - shared) if shared and least == full else end
        begin = begin + 1 if again is None else again


def _between_words(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the token borders that are not inside a word."""
    whole = np.ones(len(words) + 1, np.bool_)
    whole[1 : len(words)] = (words[1:] != words[:-1]) | (words[1:] < 0)
    return whole


def range_around(words: NDArray[np.int64], first: int, last: int, capacity: int) -> tuple[int, int]:
    """Return the token range of a window with a mark in its middle and whole words on both sides."""
    low = max(0, min(first - (capacity - last + first) // 2, len(words) - capacity))
    high = min(low + capacity, len(words))
    whole = np.flatnonzero(_between_words(words))
    before, behind = whole[(whole >= low) & (whole <= first)], whole[(whole >= last) & (whole <= high)]
    return int(before[0]) if len(before) else first, int(behind[-1]) if len(behind) else last


def _last(positions: NDArray[np.int64], begin: int, end: int) -> int | None:
    """Return the last of ascending `positions` in (begin, end], or None."""
    at = int(np.searchsorted(positions, end, side="right")) - 1
    return int(positions[at]) if at >= 0 and positions[at] > begin else None


def _with_most(begin: int, end: int, marks: NDArray[np.int64], most: int) -> int:
    """Return the largest end such that at most `most` marks are inside."""
    inside = np.sort(marks[(marks[:, 0] >= begin) & (marks[:, 1] <= end), 1])
    if len(inside) <= most:
        return end
    return int(inside[most]) - 1
