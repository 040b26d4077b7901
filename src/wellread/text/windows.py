"""Overlapping windows of texts of any length, so that nothing is truncated and no mention is split.

Each window owns the tokens up to the middle of its overlap with the next, so that every token is owned once. A mention
belongs to the window that owns its first token; as half of the overlap holds the longest mention, that window contains
all of it.

    tokens   0 1 2 3 4 5 6 7 8 9
    window   └─────────┘
    window           └─────────┘      owned: 0-4, 5-9 (width 6, overlap 2)

Texts may also be split into sentences first (`TextWindowTokenizer`); only sentences longer than a window overlap.

An input that must stay one input is shortened to a window around the mentions of a task (`window_around`,
`windows_around`, `keep_tokens`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from wellread.errors import UsageError
from wellread.text.tokenization import (
    Omission,
    Tokenization,
    blank_mask,
    encode_many,
    owners,
    spans_of_words,
    special_ids,
    trim_blanks,
    untruncated,
)
from wellread.text.words import Offsets

Flags = NDArray[np.bool_]

_END = re.compile(r"""[.!?…]["'”’)\]]*(\s+)(?=["'“‘(\[]*[A-Z0-9])|(\n\s*\n)""")
_NO_END = re.compile(r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Sen|Rep|Jr|Sr|vs|No|cf|e\.g|i\.e))\.$")
"""Initials and titles, whose full stop does not end a sentence."""


def sliding_windows(
    count: int, width: int, *, overlap: int, after: int | None = None, start: int = 0
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first, end, first owned, end of owned) of windows over the tokens `start` … `count` - 1.

    Windows have at most `width` tokens and overlap by `overlap`, of which `after` (half of them, if None) follow the
    tokens that a window owns.

    >>> list(sliding_windows(10, 6, overlap=2))
    [(0, 6, 0, 5), (4, 10, 5, 10)]
    """
    after = overlap // 2 if after is None else after
    first, owned = start, start
    while first + width < count:
        end_owned = first + width - after
        yield first, first + width, owned, end_owned
        first, owned = first + width - overlap, end_owned
    yield first, count, owned, count


def sentence_starts(text: str) -> list[int]:
    """Return the starts of sentences, the first at 0: "It rained. We left." -> [0, 11]; empty lines end one too."""
    starts = [0]
    for end in _END.finditer(text):
        if end[2] is None and _NO_END.search(text, max(0, end.start() - 6), end.start() + 1):
            continue
        starts.append(end.end())
    return starts


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a text for span detection: token ids with special tokens, spans, and where mentions may begin."""

    text: int
    """Number of its text in the batch."""
    ids: NDArray[np.int64]
    spans: Offsets
    """(start, end) in characters of the text for each token; special tokens have (0, 0)."""
    begins_mask: Flags
    """True where a mention may begin: on the first token of a word, owned by this window."""
    ends_mask: Flags
    """True where a mention may end: on the last token of a word."""
    owned: int = 0
    """First token that this window owns, even if no mention may begin there."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def special_mask(self) -> Flags:
        """True for tokens that cover no character of the text."""
        return np.asarray(self.spans[:, 1] <= self.spans[:, 0])

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token that overlap a span of characters; None if none does."""
        touched = np.flatnonzero((self.spans[:, 0] < end) & (self.spans[:, 1] > start))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


class WindowTokenizer:
    """Tokenizes texts into `Window`s of at most `width` tokens that overlap by `shared`.

    Small windows are too narrow for half of the overlap on both sides: `behind` is the number of overlapping tokens
    that follow what a window owns, the others precede what the next one owns.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | Any,
        *,
        width: int = 192,
        shared: int = 24,
        behind: int | None = None,
        whole_words: bool = True,
    ) -> None:
        self.tokenizer = untruncated(tokenizer)
        self._before, self._after = special_ids(self.tokenizer)
        special = len(self._before) + len(self._after)
        self._width = width - special
        self._shared = shared
        self._behind = behind
        self._whole_words = whole_words
        if behind is None and shared < 2:
            raise UsageError(f"windows cannot overlap by {shared} tokens; let them share 2 or more")
        if behind is not None and not (0 <= behind <= shared < self._width):
            raise UsageError(
                f"windows of {width} tokens cannot share {shared} with {behind} of them behind; let behind be at most "
                f"shared, and shared less than {self._width}"
            )
        if behind is None and self._width < 2 * shared:
            raise UsageError(
                f"windows of {width} tokens cannot share {shared}; choose a width of at least {2 * shared + special}"
            )

    def tokenize(self, texts: Sequence[str]) -> Iterator[list[Window]]:
        """Yield the windows of each text; a text without a token has none."""
        codes = encode_many(self.tokenizer, texts, special=False)
        for number, code in enumerate(codes):
            yield list(self._windows(number, texts[number], code))

    def _windows(self, number: int, text: str, code: Encoding) -> Iterator[Window]:
        ids = np.array(code.ids, np.int64)
        if not len(ids):
            return
        spans = trim_blanks(text, np.array(code.offsets, np.int64).reshape(-1, 2), trailing=False)
        # A mention neither begins nor ends with a token of white space.
        solid = np.flatnonzero((spans[:, 1] > spans[:, 0]) & ~blank_mask(text)[spans[:, 0]])
        begins, ends = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
        begins[solid] = ends[solid] = True
        if self._whole_words:
            words = np.array([-1 if word is None else word for word in code.word_ids], np.int64)[solid]
            changes = words[1:] != words[:-1]
            begins[solid[1:]], ends[solid[:-1]] = changes, changes
        for first, last, owned, not_owned in sliding_windows(
            len(ids), self._width, overlap=self._shared, after=self._behind
        ):
            own_begins = begins[first:last].copy()
            own_begins[: owned - first] = False
            own_begins[not_owned - first :] = False
            yield Window(
                number,
                np.concatenate((self._before, ids[first:last], self._after)),
                self._padded(spans[first:last]),
                self._padded(own_begins),
                self._padded(ends[first:last]),
                len(self._before) + owned - first,
            )

    def _padded(self, part: NDArray[Any]) -> NDArray[Any]:
        """Add a row of zeros (or False) for each special token."""
        before, after = ((len(side), *part.shape[1:]) for side in (self._before, self._after))
        return np.concatenate((np.zeros(before, part.dtype), part, np.zeros(after, part.dtype)))


@dataclass(frozen=True, slots=True)
class TextWindow:
    """A window of a text as a `Tokenization`; it owns the tokens `first` up to, not including, `last`."""

    text: int
    """Number of its text."""
    input: Tokenization
    first: int
    last: int

    def __len__(self) -> int:
        return len(self.input)


class TextWindowTokenizer:
    """Tokenizes texts into `TextWindow`s of at most `width` tokens.

    A window has up to `sentences` whole sentences; a longer sentence, or with `sentences=0` the whole text, is split
    into windows that overlap by `shared` tokens.
    """

    def __init__(self, tokenizer: Tokenizer | Any, *, width: int = 192, shared: int = 24, sentences: int = 0) -> None:
        self.tokenizer = untruncated(tokenizer)
        self._before, self._after = special_ids(self.tokenizer)
        special = len(self._before) + len(self._after)
        self._width, self._shared, self._sentences = width - special, shared, sentences
        if shared < 2 or self._width < 2 * shared:
            raise UsageError(
                f"windows of {width} tokens cannot share {shared}; let them share 2 or more, and be at least "
                f"{2 * max(shared, 2) + special} wide"
            )

    def tokenize(self, texts: Sequence[str], *, words: bool = True) -> list[list[TextWindow]]:
        """Return the windows of each text, none for a text without a token; `words=False` saves the split in words."""
        codes = encode_many(self.tokenizer, texts, special=False)
        made = []
        for number, (text, code) in enumerate(zip(texts, codes, strict=True)):
            ids = np.array(code.ids, np.int64)
            spans = trim_blanks(text, np.array(code.offsets, np.int64).reshape(-1, 2)) if len(ids) else ids
            made.append(list(self._windows(number, text, ids, spans, words)) if len(ids) else [])
        return made

    def _windows(
        self, number: int, text: str, ids: NDArray[np.int64], spans: Offsets, words: bool
    ) -> Iterator[TextWindow]:
        word_spans, word_of = np.zeros((0, 2), np.int64), np.full(len(ids), -1, np.int64)
        if words:
            word_spans = spans_of_words(text)
            word_of = owners(spans, word_spans)
        before, after = len(self._before), len(self._after)
        for low, high, first, last in self._ranges(text, spans):
            own = word_of[low:high]
            known = own[own >= 0]
            begin, end = (int(known.min()), int(known.max()) + 1) if len(known) else (0, 0)
            size = high - low + before + after
            inside = slice(before, before + high - low)
            segment_of, own_words = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
            segment_of[inside], own_words[inside] = 0, np.where(own < 0, -1, own - begin)
            own_spans = np.zeros((size, 2), np.int64)
            own_spans[inside] = spans[low:high]
            window = Tokenization(
                (text,),
                np.concatenate((self._before, ids[low:high], self._after)),
                np.zeros(size, np.int64),
                own_spans,
                segment_of,
                own_words,
                tuple(text[start:stop] for start, stop in word_spans[begin:end].tolist()),
                word_spans[begin:end],
                np.zeros(end - begin, np.int64),
                (begin,),
            )
            yield TextWindow(number, window, before + first - low, before + last - low)

    def _ranges(self, text: str, spans: Offsets) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first, end) of the tokens of each window, and of those that it owns."""
        for low, high in self._sentence_groups(text, spans):
            yield from sliding_windows(high, self._width, overlap=self._shared, start=low)

    def _sentence_groups(self, text: str, spans: Offsets) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the tokens of sentences that share a window, at most `sentences` of them."""
        if not self._sentences:
            yield 0, len(spans)
            return
        borders = np.unique(np.append(np.searchsorted(spans[:, 0], sentence_starts(text)), len(spans))).tolist()
        low, high, count = 0, 0, 0
        for border in borders:
            if border == 0:
                continue
            if count and (count == self._sentences or border - low > self._width):
                yield low, high
                low, count = high, 0
            high, count = border, count + 1
        yield low, high


def window_around(one: Tokenization, first: int, last: int, longest: int) -> NDArray[np.int64]:
    """Return the tokens to keep of an input: a window of its first text around tokens first … last - 1, and all others.

    `longest` is the number of tokens to keep. The window is centred, unless the text begins or ends nearby; where it is
    too narrow for the given tokens, it has the first of them.
    """
    own, others, free = _free_tokens(one, longest)
    low, high = first - own[0], last - own[0]
    spare = free - (high - low)
    begin = low if spare < 0 else int(np.clip(low - spare // 2, 0, max(len(own) - free, 0)))
    return np.sort(np.concatenate((others, own[begin : begin + free])))


def windows_around(one: Tokenization, mentions: Sequence[tuple[int, int]], longest: int) -> NDArray[np.int64]:
    """Return the tokens to keep of an input, with a window of its first text around each mention (first, last + 1).

    Whole mentions come first, then the tokens nearest to them; where mentions are too long, the beginning of each.
    """
    own, others, free = _free_tokens(one, longest)
    longest_mention = max(last - first for first, last in mentions)
    rank = np.full(len(own), len(one) + longest_mention)
    for first, last in mentions:
        distance = np.maximum(first - own, own - last + 1)  # 1 for the tokens beside it
        rank = np.minimum(rank, np.where((own >= first) & (own < last), own - first, longest_mention + distance))
    return np.sort(np.concatenate((others, own[np.argsort(rank, kind="stable")[:free]])))


def keep_tokens(one: Tokenization, kept: NDArray[np.int64]) -> Tokenization:
    """Return an input with some of its tokens; words of its first text without a token left are dropped."""
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
    number = np.full(len(one.words) + 1, -1, np.int64)  # the last row is for tokens without a word
    number[stay] = np.arange(len(stay))
    first = int((first_text & (ends <= low)).sum())
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


def _free_tokens(one: Tokenization, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the tokens of the first text, all others, and the number of the first text's tokens that fit."""
    own = np.flatnonzero(one.segment_of == 0)
    others = np.setdiff1d(np.arange(len(one)), own)
    if longest <= len(others):
        raise UsageError(f"inputs have no room for text beside {len(others)} other tokens; let longest be more")
    return own, others, longest - len(others)
