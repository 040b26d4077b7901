"""Text ⇄ words ⇄ tokens of any tokenizer, with exact character offsets into the original text.

An input has one segment (a sentence) or two (a query and a product, a question and a passage). Words are numbered
through all segments; spans of words and tokens are characters of their own segment's text.

    texts     ("buy glipizide",      "Fred Meyer")
    words       buy glipizide         Fred Meyer
    tokens    [CLS] buy gli ##pi ##zi ##de [SEP] fred meyer [SEP]
    word_of    -1    0   1   1    1    1    -1    2    3     -1

Works with a fast Hugging Face tokenizer or a `tokenizers.Tokenizer`, whose own truncation and padding are switched off.
Inputs that are too long are truncated, the longest segment first (`longest`), or split into windows
(`tokenize_windows`, `text.windows`). A word without a token left in the input is not a word of the input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, models

from wellread.document import refuse_halves, short
from wellread.errors import UsageError
from wellread.text.words import Offsets, split

if TYPE_CHECKING:
    from jaxtyping import Int64

_BATCH = 1024
"""Inputs per call of the tokenizer: its encodings take more memory than a `Tokenization`."""

_IS_BLANK = np.array([chr(code).isspace() for code in range(0x3002)])
"""`str.isspace` by code point; no character above U+3000 is white space."""

_UNKNOWN = "<unk>"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mention given by the data: a span of a segment's text, with its lemma, kind and gold entities if known."""

    segment: int
    start: int
    end: int
    lemma: str | None = None
    """Name to look up instead of the span's own text."""
    kind: str | None = None
    """Kind that candidates must have; for WordNet the part of speech."""
    gold: tuple[str, ...] = ()
    """Ids of the right entities, if known; any of them is right."""


@dataclass(frozen=True, slots=True)
class Omission:
    """A range of characters left out of the middle of an input's first text."""

    start: int
    end: int
    place: int
    """Number of the input's words that begin before it."""
    words: int
    """Number of words of the text that lie inside it; they are not words of the input."""


@dataclass(frozen=True, slots=True)
class Tokenization:
    """One input: texts, words and tokens. Special tokens have no word and no segment (-1), and the span (0, 0)."""

    texts: tuple[str, ...]
    ids: Int64[np.ndarray, " token"]
    types: Int64[np.ndarray, " token"]
    """Token type ids; not every model uses them for segments."""
    spans: Int64[np.ndarray, "token 2"]
    segment_of: Int64[np.ndarray, " token"]
    word_of: Int64[np.ndarray, " token"]
    """Word with the largest overlap, the first of equals; -1 for tokens of white space."""
    words: tuple[str, ...]
    word_spans: Int64[np.ndarray, "word 2"]
    word_segment: Int64[np.ndarray, " word"]
    first_words: tuple[int, ...]
    """For each segment, the number of its first word in the whole text: more than 0 in a later window."""
    marks: tuple[Mark, ...] = ()
    hidden: tuple[int, ...] = ()
    """Masked tokens without a word, such as the "-" of "rock-and-roll"; masked words are empty strings."""
    omitted: tuple[Omission, ...] = ()
    """Omissions in the first text, in order."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def special_mask(self) -> NDArray[np.bool_]:
        """True for special tokens, which are not part of a text."""
        return np.asarray(self.segment_of < 0)

    def covering(self, start: int, end: int, segment: int = 0) -> tuple[int, int] | None:
        """Return the tokens (first, last + 1) that overlap a span of characters; None if none does."""
        touched = np.flatnonzero((self.segment_of == segment) & (self.spans[:, 0] < end) & (self.spans[:, 1] > start))
        return (int(touched[0]), int(touched[-1]) + 1) if len(touched) else None

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the characters (start, end) from token `first` up to, not including, token `last`."""
        return int(self.spans[first:last, 0].min()), int(self.spans[first:last, 1].max())

    def of_word(self, word: int) -> Offsets:
        """Return the tokens of a word."""
        return np.flatnonzero(self.word_of == word)


class TextTokenizer:
    """Tokenizes inputs of one or two texts; `longest` is the maximum number of tokens, special ones included."""

    def __init__(self, tokenizer: Tokenizer | Any, *, longest: int | None = None) -> None:
        self.tokenizer = untruncated(tokenizer)
        self.longest = longest
        self._truncating = self.tokenizer
        if longest is not None:
            special = self.tokenizer.num_special_tokens_to_add(True)
            if longest <= special:
                raise UsageError(
                    f"inputs of {longest} tokens cannot hold text beside {special} special tokens; "
                    f"let longest be more than {special}"
                )
            self._truncating = untruncated(self.tokenizer)
            self._truncating.enable_truncation(longest, strategy="longest_first")

    def tokenize(self, *texts: str) -> Tokenization:
        """Tokenize one input: `tokenize("a sentence")`, `tokenize("a query", "a document")`."""
        return self.tokenize_many([texts])[0]

    def tokenize_many(self, inputs: Sequence[tuple[str, ...]]) -> list[Tokenization]:
        """Tokenize many inputs at once, on all cores."""
        return [_tokenization(texts, code) for texts, code in _encoded(self._truncating, inputs)]

    def tokenize_windows(
        self, question: str, passage: str, *, longest: int = 384, stride: int = 128
    ) -> list[Tokenization]:
        """Tokenize a question with each window of a passage; windows overlap by `stride` tokens of the passage."""
        return self.tokenize_windows_many([(question, passage)], longest=longest, stride=stride)[0]

    def tokenize_windows_many(
        self, pairs: Sequence[tuple[str, str]], *, longest: int = 384, stride: int = 128
    ) -> list[list[Tokenization]]:
        """Tokenize many pairs by `tokenize_windows`; a question too long for a window is a `UsageError`."""
        special = self.tokenizer.num_special_tokens_to_add(True)
        questions = list(dict.fromkeys(question for question, _ in pairs))
        for question, code in zip(questions, encode_many(self.tokenizer, questions, special=False), strict=True):
            free = longest - special - len(code)
            if free <= stride:
                raise UsageError(
                    f"windows of {longest} tokens that overlap by {stride} have {max(free, 0)} for the passage beside "
                    f"the {len(code)} tokens of the question {short(question, 60)!r}; use longer windows, a smaller "
                    "overlap, or a shorter question"
                )
        windowing = untruncated(self.tokenizer)
        windowing.enable_truncation(longest, stride=stride, strategy="only_second")
        return [
            [_tokenization(texts, window, truncated=True) for window in (code, *code.overflowing)]
            for texts, code in _encoded(windowing, pairs)
        ]

    def token_ids_of(self, words: Iterable[str]) -> list[list[int]]:
        """Return the ids of each word as in the middle of a text: ["glipizide"] -> [[1043, 11514, …]]."""
        # Byte-level tokenizers recognise the middle of a text by the space before a word; others ignore it.
        codes = encode_many(self.tokenizer, [f" {word}" for word in words], special=False)
        return [code.ids for code in codes]


def untruncated(tokenizer: Tokenizer | Any) -> Tokenizer:
    """Return a copy of a tokenizer without truncation and padding; the caller's own keeps its settings."""
    copy = Tokenizer.from_str(getattr(tokenizer, "backend_tokenizer", tokenizer).to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def special_ids(tokenizer: Tokenizer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of the special tokens before and after a single text."""
    ids = tokenizer.encode("").ids
    first = int(np.argmin(tokenizer.encode("a").special_tokens_mask))
    return np.array(ids[:first], np.int64), np.array(ids[first:], np.int64)


def encode_many(
    tokenizer: Tokenizer, inputs: Sequence[str | tuple[str, ...]], *, special: bool = True
) -> list[Encoding]:
    """Encode texts or pairs of texts; an input that is not Unicode text is an error that names it."""
    try:
        return tokenizer.encode_batch(list(inputs), add_special_tokens=special)
    except TypeError:
        for text in (text for given in inputs for text in ((given,) if isinstance(given, str) else given)):
            if not isinstance(text, str):
                raise UsageError(f"{short(repr(text), 40)} is not a text; give a str") from None
            refuse_halves(text, f"the text {short(text, 40)!r}")
        raise


def _encoded(tokenizer: Tokenizer, inputs: Sequence[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], Encoding]]:
    for begin in range(0, len(inputs), _BATCH):
        batch = [_checked(texts) for texts in inputs[begin : begin + _BATCH]]
        codes = encode_many(tokenizer, [texts if len(texts) == 2 else texts[0] for texts in batch])
        yield from zip(batch, codes, strict=True)


def _checked(texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise UsageError(f"an input is one or two texts, not a bare text; give ({short(texts, 40)!r},)")
    if not 1 <= len(texts) <= 2:
        raise UsageError(f"an input has one or two segments, this one has {len(texts)}; join some of them")
    return tuple(texts)


def _tokenization(texts: tuple[str, ...], code: Encoding, *, truncated: bool = False) -> Tokenization:
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
        word_spans = spans_of_words(text)
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
    return Tokenization(
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


def spans_of_words(text: str) -> Offsets:
    """Return (start, end) of each word of a text (`text.words.split`), one row per word."""
    found = split(text)
    return np.stack((found.starts, found.ends), axis=1)


def blank_mask(text: str) -> NDArray[np.bool_]:
    """True for white-space characters of a text, with one False at the end."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.append(_IS_BLANK[np.minimum(codes, len(_IS_BLANK) - 1)], False)


def trim_blanks(text: str, spans: Offsets, *, trailing: bool = True) -> Offsets:
    """Exclude white space before and (`trailing`) after a token, which some tokenizers include in its span.

    Byte-level and SentencePiece tokenizers count the space before a word to it. A span of white space only keeps one
    character; an empty span stays as it is.
    """
    blank = blank_mask(text)[:-1]
    starts, ends = spans[:, 0], spans[:, 1]
    untrimmed = np.flatnonzero(starts + 1 < ends)
    untrimmed = untrimmed[blank[starts[untrimmed]] | (blank[ends[untrimmed] - 1] & trailing)]
    if not len(untrimmed):
        return spans
    characters = np.arange(len(blank))
    next_solid = np.minimum.accumulate(np.where(blank, len(blank), characters)[::-1])[::-1]
    trimmed = spans.copy()
    trimmed[untrimmed, 0] = np.minimum(next_solid[starts[untrimmed]], ends[untrimmed] - 1)
    if trailing:
        last_solid = np.maximum.accumulate(np.where(blank, -1, characters))
        trimmed[untrimmed, 1] = np.maximum(last_solid[ends[untrimmed] - 1], trimmed[untrimmed, 0]) + 1
    return trimmed


def owners(spans: Offsets, others: Offsets) -> Offsets:
    """Return the row of `others` that each span overlaps most, the first of equals; -1 where it overlaps none.

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
    """Return a tokenizer that maps unknown characters to <unk>.

    mLUKE's tokenizer, as transformers converts it, maps them to row 0, which is <s>. Tokenizers that are not Unigram
    models, or that are right already, are returned unchanged.
    """
    if not isinstance(tokenizer.model, models.Unigram):
        return tokenizer
    state = json.loads(tokenizer.to_str())
    tokens = [token for token, _ in state["model"]["vocab"]]
    if _UNKNOWN not in tokens or (right := tokens.index(_UNKNOWN)) == state["model"]["unk_id"]:
        return tokenizer
    state["model"]["unk_id"] = right
    return Tokenizer.from_str(json.dumps(state))


def with_one_type(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that gives both texts of a pair the token type 0.

    mLUKE's tokenizer gives the second text type 1, but its encoder has one type only. The special tokens must come from
    a template, as they do there; other tokenizers are returned unchanged.
    """
    if not any(tokenizer.encode("a", "a").type_ids):
        return tokenizer
    state = json.loads(tokenizer.to_str())
    template = state["post_processor"] or {}
    for processor in template.get("processors", [template]):
        for part in [*processor.get("single", ()), *processor.get("pair", ())]:
            for token in part.values() if isinstance(part, dict) else ():
                token["type_id"] = 0
    return Tokenizer.from_str(json.dumps(state))
