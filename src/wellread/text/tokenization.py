"""Text ⇄ words ⇄ pieces of any tokenizer, with exact character offsets into the original text.

Works with a fast Hugging Face tokenizer or a `tokenizers.Tokenizer`. Nothing is cut off: a tokenizer's own truncation
and padding are switched off, what is too long is the business of whoever makes windows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, models

from wellread.document import refuse_halves, short
from wellread.errors import UsageError
from wellread.text.words import Offsets, split

_IS_BLANK = np.array([chr(code).isspace() for code in range(0x3002)])
"""Whether a character is a blank to Python; there is none above U+3000."""
_UNKNOWN = "<unk>"


@dataclass(frozen=True, slots=True)
class TokenizedText:
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


class TextTokenizer:
    """Cuts texts into pieces with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer | Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.tokenizer = Tokenizer.from_str(backend.to_str())  # a copy: the user's own keeps its truncation
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def tokenize(self, text: str) -> TokenizedText:
        """One text in pieces, with the special pieces its model expects."""
        return self.tokenize_many([text])[0]

    def tokenize_many(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Many texts at once, on all cores."""
        return [_tokens(text, code) for text, code in zip(texts, encode_many(self.tokenizer, texts), strict=True)]


def encode_many(
    tokenizer: Tokenizer, inputs: Sequence[str | tuple[str, ...]], *, special: bool = True
) -> list[Encoding]:
    """What a tokenizer makes of texts, or pairs of texts; what it takes for no text is an error that says why."""
    try:
        return tokenizer.encode_batch(list(inputs), add_special_tokens=special)
    except TypeError:
        for text in (text for given in inputs for text in ((given,) if isinstance(given, str) else given)):
            if not isinstance(text, str):
                raise UsageError(f"{short(repr(text), 40)} is no text; give a str") from None
            refuse_halves(text, f"the text {short(text, 40)!r}")
        raise


def _tokens(text: str, code: Encoding) -> TokenizedText:
    special = np.array(code.special_tokens_mask, np.bool_)
    spans = trim_blanks(text, np.array(code.offsets, np.int64).reshape(-1, 2))
    words = split(text)
    word_spans = np.stack((words.starts, words.ends), axis=1)
    word_of = owners(spans, word_spans)
    word_of[special] = -1
    return TokenizedText(text, np.array(code.ids, np.int64), spans, special, word_spans, word_of)


def trim_blanks(text: str, spans: Offsets) -> Offsets:
    """Leave the blank out that byte-level and SentencePiece tokenizers count to the word behind it.

    A span of nothing but blanks keeps one; an empty span stays as it is.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    blank = _IS_BLANK[np.minimum(codes, len(_IS_BLANK) - 1)]
    starts, ends = spans[:, 0], spans[:, 1]
    at_fault = np.flatnonzero(starts + 1 < ends)
    at_fault = at_fault[blank[starts[at_fault]] | blank[ends[at_fault] - 1]]
    if not len(at_fault):
        return spans
    places = np.arange(len(codes))
    next_solid = np.minimum.accumulate(np.where(blank, len(codes), places)[::-1])[::-1]
    last_solid = np.maximum.accumulate(np.where(blank, -1, places))
    trimmed = spans.copy()
    trimmed[at_fault, 0] = np.minimum(next_solid[starts[at_fault]], ends[at_fault] - 1)
    trimmed[at_fault, 1] = np.maximum(last_solid[ends[at_fault] - 1], trimmed[at_fault, 0]) + 1
    return trimmed


def owners(spans: Offsets, others: Offsets) -> Offsets:
    """The span among `others` that each span overlaps most, the first of equals; -1 where it overlaps none.

    Starts and ends of `others` must both ascend, as those of words do: owners([[0, 2], [2, 9]], [[0, 3], [4, 7]]) ->
    [0, 1].
    """
    found = np.full(len(spans), -1, np.int64)
    first = np.searchsorted(others[:, 1], spans[:, 0], side="right")
    counts = np.searchsorted(others[:, 0], spans[:, 1], side="left") - first
    counts[spans[:, 1] <= spans[:, 0]] = 0
    rows = np.flatnonzero(counts > 0)
    if not len(rows):
        return found
    counts = counts[rows]
    begins = np.cumsum(counts) - counts
    row = np.repeat(rows, counts)
    other = np.arange(len(row)) - np.repeat(begins - first[rows], counts)
    overlap = np.minimum(spans[row, 1], others[other, 1]) - np.maximum(spans[row, 0], others[other, 0])
    best = np.flatnonzero(overlap == np.repeat(np.maximum.reduceat(overlap, begins), counts))[::-1]
    found[row[best]] = other[best]  # backwards, so that the first of equals is written last
    return found


def with_unknown(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose unknown letters are <unk>: mLUKE's own, as transformers makes it, has them as row 0, <s>.

    Told of entities transformers itself says <unk> there; what is no Unigram model, or has it right, stays what it is.
    """
    if not isinstance(tokenizer.model, models.Unigram):
        return tokenizer
    told = json.loads(tokenizer.to_str())
    tokens = [token for token, _ in told["model"]["vocab"]]
    if _UNKNOWN not in tokens or (right := tokens.index(_UNKNOWN)) == told["model"]["unk_id"]:
        return tokenizer
    told["model"]["unk_id"] = right
    return Tokenizer.from_str(json.dumps(told))


def with_one_type(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that tells no second text by the type of its pieces: mLUKE's own does, but its encoder has one type.

    What frames two texts must be a template, as it is there; another tokenizer stays what it is.
    """
    if not any(tokenizer.encode("a", "a").type_ids):
        return tokenizer
    told = json.loads(tokenizer.to_str())
    frame = told["post_processor"] or {}
    for one in frame.get("processors", [frame]):
        for part in [*one.get("single", ()), *one.get("pair", ())]:
            for token in part.values() if isinstance(part, dict) else ():
                token["type_id"] = 0
    return Tokenizer.from_str(json.dumps(told))
