"""Text ⇄ words ⇄ pieces of any tokenizer, with exact character offsets into the original text.

Works with a fast Hugging Face tokenizer or a `tokenizers.Tokenizer`. Nothing is cut off: a tokenizer's own truncation
and padding are switched off, what is too long is the business of whoever makes windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from wellread.kb.names import Offsets, split


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text in pieces. Rows of `spans` are (start, end) of each piece; special pieces have no word (-1)."""

    text: str
    ids: NDArray[np.int64]
    spans: Offsets
    special_mask: NDArray[np.bool_]
    word_spans: Offsets
    word_of: Offsets

    def __len__(self) -> int:
        return len(self.ids)

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """The pieces (first, last + 1) that a span of characters touches; None when it touches none."""
        touched = np.flatnonzero(~self.special_mask & (self.spans[:, 0] < end) & (self.spans[:, 1] > start))
        return (int(touched[0]), int(touched[-1]) + 1) if len(touched) else None

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The characters (start, end) from piece `first` up to, not including, piece `last`."""
        return int(self.spans[first:last, 0].min()), int(self.spans[first:last, 1].max())

    def of_word(self, word: int) -> Offsets:
        """The pieces that belong to a word."""
        return np.flatnonzero(self.word_of == word)


class Cutter:
    """Cuts texts into pieces with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer | Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.tokenizer = Tokenizer.from_str(backend.to_str())  # a copy: the user's own keeps its truncation
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def cut(self, text: str) -> Pieces:
        """One text in pieces, with the special pieces its model expects."""
        return _pieces(text, self.tokenizer.encode(text))

    def cut_many(self, texts: Sequence[str]) -> list[Pieces]:
        """Many texts at once, on all cores."""
        return [_pieces(text, code) for text, code in zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True)]


def _pieces(text: str, code: Encoding) -> Pieces:
    spans = np.array(code.offsets, np.int64).reshape(-1, 2)
    special = np.array(code.special_tokens_mask, np.bool_)
    _trim(text, spans, special)
    words = split(text)
    word_spans = np.stack((words.starts, words.ends), axis=1)
    return Pieces(text, np.array(code.ids, np.int64), spans, special, word_spans, _words_of(spans, special, word_spans))


def _trim(text: str, spans: Offsets, special: NDArray[np.bool_]) -> None:
    """Leave the blank out that byte-level and SentencePiece tokenizers count to the word behind it."""
    for row in np.flatnonzero(~special).tolist():
        start, end = spans[row].tolist()
        while end - start > 1 and text[start].isspace():
            start += 1
        while end - start > 1 and text[end - 1].isspace():
            end -= 1
        spans[row] = start, end


def _words_of(spans: Offsets, special: NDArray[np.bool_], word_spans: Offsets) -> Offsets:
    """The word that each piece overlaps most, the first of equals; -1 for special pieces and for blanks."""
    word_of = np.full(len(spans), -1, np.int64)
    first = np.searchsorted(word_spans[:, 1], spans[:, 0], side="right")
    last = np.searchsorted(word_spans[:, 0], spans[:, 1], side="left")
    for row in np.flatnonzero(~special & (first < last)).tolist():
        words = range(int(first[row]), int(last[row]))
        word_of[row] = max(words, key=lambda word: (_overlap(spans[row], word_spans[word]), -word))
    return word_of


def _overlap(one: Iterable[int], other: Iterable[int]) -> int:
    (start, end), (begin, finish) = one, other
    return int(min(end, finish) - max(start, begin))
