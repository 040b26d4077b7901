"""Texts of any length in overlapping windows, so that nothing is cut off and no mention is cut in two.

Each window owns the pieces up to the middle of what it shares with the next. A mention belongs to the window that owns
its first piece, and since half of what is shared holds the longest mention, that window sees all of it.

    pieces   0 1 2 3 4 5 6 7 8 9
    window   └─────────┘
    window           └─────────┘      owned: 0-4, 5-9 (width 6, shared 2)

Small windows have no room for that on both sides: `behind` is how many of the shared pieces follow what a window owns,
the rest precede what the next one owns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from wellread.errors import UsageError
from wellread.text.tokenization import encode_many
from wellread.text.words import Offsets

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text as an encoder takes it: special pieces around `spans`-long real ones."""

    text: int
    """The number of its text in the batch."""
    ids: NDArray[np.int64]
    spans: Offsets
    """(start, end) in characters of the text for each piece; special pieces have (0, 0)."""
    begins_mask: Flags
    """True where a mention may begin: on the first piece of a word, owned by this window."""
    ends_mask: Flags
    """True where a mention may end: on the last piece of a word."""
    owned: int = 0
    """The first piece that this window owns, also where no mention may begin there."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def special_mask(self) -> Flags:
        """True for pieces that stand for nothing in the text."""
        return np.asarray(self.spans[:, 1] <= self.spans[:, 0])

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and last piece that a span of characters touches; None when it touches none."""
        touched = np.flatnonzero((self.spans[:, 0] < end) & (self.spans[:, 1] > start))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


class WindowTokenizer:
    """Cuts texts into windows of at most `width` pieces, of which neighbours share `shared`."""

    def __init__(
        self,
        tokenizer: Tokenizer | Any,
        *,
        width: int = 192,
        shared: int = 24,
        behind: int | None = None,
        whole_words: bool = True,
    ) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.tokenizer = Tokenizer.from_str(backend.to_str())  # a copy: the user's own keeps its truncation
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        around = self.tokenizer.encode("")
        some = self.tokenizer.encode("a")
        first = int(np.argmin(some.special_tokens_mask))
        self._before = around.ids[:first]
        self._after = around.ids[first:]
        self._room = width - len(around.ids)
        self._shared = shared
        self._behind = shared // 2 if behind is None else behind
        self._whole_words = whole_words
        if behind is None and shared < 2:
            raise UsageError(f"windows cannot share {shared} pieces; let them share 2 or more")
        if behind is not None and not (0 <= behind <= shared < self._room):
            raise UsageError(
                f"windows of {width} pieces cannot share {shared} with {behind} of them behind; let behind be at most "
                f"shared, and shared less than {self._room}"
            )
        if behind is None and self._room < 2 * shared:
            raise UsageError(
                f"windows of {width} pieces cannot share {shared}; choose a width of at least "
                f"{2 * shared + len(around.ids)}"
            )

    def tokenize(self, texts: Sequence[str]) -> Iterator[list[Window]]:
        """The windows of each text; a text without a piece has none."""
        codes = encode_many(self.tokenizer, texts, special=False)
        for number, code in enumerate(codes):
            yield list(self._windows(number, texts[number], code))

    def _windows(self, number: int, text: str, code: Encoding) -> Iterator[Window]:
        ids = np.array(code.ids, np.int64)
        if not len(ids):
            return
        spans = np.array(code.offsets, np.int64).reshape(-1, 2)
        solid = np.flatnonzero(~_trim(text, spans))
        begins, ends = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
        begins[solid] = ends[solid] = True
        if self._whole_words:
            words = np.array([-1 if word is None else word for word in code.word_ids], np.int64)[solid]
            changes = words[1:] != words[:-1]
            begins[solid[1:]], ends[solid[:-1]] = changes, changes
        for first, last, owned, not_owned in self._cuts(len(ids)):
            mine = begins[first:last].copy()
            mine[: owned - first] = False
            mine[not_owned - first :] = False
            yield Window(
                number,
                np.concatenate((self._before, ids[first:last], self._after)).astype(np.int64),
                self._around(spans[first:last]),
                self._around(mine),
                self._around(ends[first:last]),
                len(self._before) + owned - first,
            )

    def _cuts(self, tokens: int) -> Iterator[tuple[int, int, int, int]]:
        """(first, last + 1) of each window and of what it owns."""
        step = self._room - self._shared
        first, owned = 0, 0
        while first + self._room < tokens:
            not_owned = first + self._room - self._behind
            yield first, first + self._room, owned, not_owned
            first, owned = first + step, not_owned
        yield first, tokens, owned, tokens

    def _around(self, part: NDArray[Any]) -> NDArray[Any]:
        """A row (of zeros, or False) for each special piece before and behind."""
        before, after = ((len(side), *part.shape[1:]) for side in (self._before, self._after))
        return np.concatenate((np.zeros(before, part.dtype), part, np.zeros(after, part.dtype)))


def _trim(text: str, spans: Offsets) -> Flags:
    """Leave the blank out that byte-level and SentencePiece tokenizers count to the word behind it.

    True for pieces that are nothing but that: a mention neither begins nor ends with them.
    """
    hollow_mask = np.asarray(spans[:, 1] <= spans[:, 0])
    for row in np.flatnonzero([text[start : start + 1].isspace() for start in spans[:, 0].tolist()]).tolist():
        start, end = spans[row].tolist()
        while end - start > 1 and text[start].isspace():
            start += 1
        spans[row, 0] = start
        hollow_mask[row] |= text[start : start + 1].isspace()
    return hollow_mask
