"""One or two segments of text, cut into the pieces that a model expects, with the words that the pieces belong to.

A sentence is one segment; a query and an advertisement, or a question and a passage, are two. Words are numbered
through all segments, their spans and those of pieces are characters of their own segment's text.

    texts     ("buy glipizide",      "Fred Meyer")
    words       buy glipizide         Fred Meyer
    pieces    [CLS] buy gli ##pi ##zi ##de [SEP] fred meyer [SEP]
    word_of    -1    0   1   1    1    1    -1    2    3     -1

What is too long is cut from the longest segment first (`longest`), or a passage is read in windows that share pieces
(`tokenize_windows`). Words of which nothing is left are not words of the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from wellread.document import short
from wellread.errors import UsageError
from wellread.text.tokenization import encode_many, owners, trim_blanks
from wellread.text.words import split

_AT_ONCE = 1024
"""Inputs that are encoded together; what the tokenizer says of a piece takes more memory than what is kept."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mention that the data itself names: characters of a segment's text, and what is known of it."""

    segment: int
    start: int
    end: int
    lemma: str | None = None
    """What it is looked up by, if not by its own characters."""
    kind: str | None = None
    """The kind that an entity must have, for WordNet the part of speech."""
    gold: tuple[str, ...] = ()
    """The ids of what it means, if that is known; any of them is right."""


@dataclass(frozen=True, slots=True)
class Omission:
    """What was left out of the middle of an input's first text."""

    start: int
    end: int
    """Its characters."""
    place: int
    """How many of the input's words begin before it."""
    words: int
    """How many words of the text are wholly in it; they are none of the input's."""


@dataclass(frozen=True, slots=True)
class Segmented:
    """One example's input in pieces. Special pieces have no word and no segment (-1), and the span (0, 0)."""

    texts: tuple[str, ...]
    ids: Int64[np.ndarray, " token"]
    types: Int64[np.ndarray, " token"]
    """Token type ids, as the model expects them; not every model tells segments apart by them."""
    spans: Int64[np.ndarray, "token 2"]
    segment_of: Int64[np.ndarray, " token"]
    word_of: Int64[np.ndarray, " token"]
    """The word that a piece overlaps most, the first of equals; -1 also for pieces of blanks."""
    words: tuple[str, ...]
    word_spans: Int64[np.ndarray, "word 2"]
    word_segment: Int64[np.ndarray, " word"]
    first_words: tuple[int, ...]
    """The number that each segment's first word has in its whole text: more than 0 in a later window."""
    marks: tuple[Mark, ...] = ()
    """Mentions that the data names."""
    hidden: tuple[int, ...] = ()
    """Pieces of no word that are hidden, as the "-" of "rock-and-roll"; hidden words are empty."""
    omitted: tuple[Omission, ...] = ()
    """Where the first text has holes, in their order."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def special_mask(self) -> NDArray[np.bool_]:
        """True for pieces that stand for nothing in a text."""
        return np.asarray(self.segment_of < 0)


class Segmenter:
    """Cuts inputs of one or two segments with one tokenizer; `longest` is the most pieces, special ones included."""

    def __init__(self, tokenizer: Tokenizer | Any, *, longest: int | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.tokenizer = Tokenizer.from_str(backend.to_str())  # a copy: the user's own keeps its truncation
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.longest = longest
        self._cutting = self.tokenizer
        if longest is not None:
            special = self.tokenizer.num_special_tokens_to_add(True)
            if longest <= special:
                raise UsageError(
                    f"inputs of {longest} pieces have no room for text beside {special} special pieces; "
                    f"let longest be more than {special}"
                )
            self._cutting = Tokenizer.from_str(self.tokenizer.to_str())
            self._cutting.enable_truncation(longest, strategy="longest_first")

    def tokenize(self, *texts: str) -> Segmented:
        """One input: `cut("a sentence")`, `cut("a query", "a document")`."""
        return self.tokenize_many([texts])[0]

    def tokenize_many(self, inputs: Sequence[tuple[str, ...]]) -> list[Segmented]:
        """Many inputs at once, on all cores."""
        return [_segmented(texts, code) for texts, code in _encoded(self._cutting, inputs)]

    def tokenize_windows(
        self, question: str, passage: str, *, longest: int = 384, stride: int = 128
    ) -> list[Segmented]:
        """A question with each window of a passage; neighbouring windows share `stride` pieces of the passage."""
        return self.tokenize_windows_many([(question, passage)], longest=longest, stride=stride)[0]

    def tokenize_windows_many(
        self, pairs: Sequence[tuple[str, str]], *, longest: int = 384, stride: int = 128
    ) -> list[list[Segmented]]:
        """Tokenize many pairs by `tokenize_windows`; a question without room for its passage is a `UsageError`."""
        special = self.tokenizer.num_special_tokens_to_add(True)
        questions = list(dict.fromkeys(question for question, _ in pairs))
        for question, code in zip(questions, encode_many(self.tokenizer, questions, special=False), strict=True):
            room = longest - special - len(code)
            if room <= stride:
                raise UsageError(
                    f"windows of {longest} pieces that share {stride} have {max(room, 0)} for the passage beside the "
                    f"{len(code)} pieces of the question {short(question, 60)!r}; make windows longer, let them share "
                    "less, or shorten the question"
                )
        cutting = Tokenizer.from_str(self.tokenizer.to_str())
        cutting.enable_truncation(longest, stride=stride, strategy="only_second")
        return [
            [_segmented(texts, window, truncated=True) for window in (code, *code.overflowing)]
            for texts, code in _encoded(cutting, pairs)
        ]

    def token_ids_of(self, words: Iterable[str]) -> list[list[int]]:
        """The ids of words as they stand in the middle of a text, each alone: ["glipizide"] -> [[1043, 11514, …]]."""
        # The blank before a word is what byte-level tokenizers tell the middle of a text by; to others it is nothing.
        codes = encode_many(self.tokenizer, [f" {word}" for word in words], special=False)
        return [code.ids for code in codes]


def _encoded(tokenizer: Tokenizer, inputs: Sequence[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], Encoding]]:
    for begin in range(0, len(inputs), _AT_ONCE):
        some = [_checked(texts) for texts in inputs[begin : begin + _AT_ONCE]]
        codes = encode_many(tokenizer, [texts if len(texts) == 2 else texts[0] for texts in some])
        yield from zip(some, codes, strict=True)


def _checked(texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise UsageError(f"an input is one or two texts, not a bare text; give ({short(texts, 40)!r},)")
    if not 1 <= len(texts) <= 2:
        raise UsageError(f"an input has one or two segments, this one has {len(texts)}; join some of them")
    return tuple(texts)


def _segmented(texts: tuple[str, ...], code: Encoding, *, truncated: bool = False) -> Segmented:
    segment_of = np.array([-1 if segment is None else segment for segment in code.sequence_ids], np.int64)
    spans = np.array(code.offsets, np.int64).reshape(-1, 2)
    word_of = np.full(len(spans), -1, np.int64)
    truncated = truncated or bool(code.overflowing)
    words: list[str] = []
    parts: list[NDArray[np.int64]] = []
    first_words: list[int] = []
    for segment, text in enumerate(texts):
        here = np.flatnonzero(segment_of == segment)
        spans[here] = trim_blanks(text, spans[here])
        found = split(text)
        word_spans = np.stack((found.starts, found.ends), axis=1)
        first, last = 0, len(word_spans)
        if truncated:
            low, high = (spans[here[0], 0], spans[here[-1], 1]) if len(here) else (0, 0)
            first = int(np.searchsorted(word_spans[:, 1], low, side="right"))
            last = max(first, int(np.searchsorted(word_spans[:, 0], high, side="left")))
        word_spans = word_spans[first:last]
        own = owners(spans[here], word_spans)
        word_of[here] = np.where(own < 0, -1, own + len(words))
        words += [text[start:end] for start, end in word_spans.tolist()]
        parts.append(word_spans)
        first_words.append(first)
    return Segmented(
        texts,
        np.array(code.ids, np.int64),
        np.array(code.type_ids, np.int64),
        spans,
        segment_of,
        word_of,
        tuple(words),
        np.concatenate(parts),
        np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        tuple(first_words),
    )
