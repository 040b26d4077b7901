"""Inputs of named entity recognition: the words of a sentence with their tokens, in windows with their context."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from wellread.data.readers.conll import Span
from wellread.evaluation.chunks import Chunk
from wellread.text.tokenization import Tokenization
from wellread.text.windows import keep_tokens, window_around

LOST = -2
"""Last token of a word that is longer than an input; no span ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInput(Tokenization):
    """Words of a sentence with their context, and the spans to classify."""

    first: int
    """Index of its first word in the sentence."""
    edges: Int64[np.ndarray, "own 2"]
    """First and last token of each word; for a word without tokens, the token behind and the one before it."""
    seen: int = 0
    """Number of words at the start that the previous window contains too."""
    part: Span | None = None
    """Range of the spans to classify; None for all."""

    def chunks(self, longest: int) -> Int64[np.ndarray, "span 2"]:
        """Return the words (start, end) of each span, relative to its first word."""
        count = len(self.edges)
        many = np.minimum(longest, count - np.arange(count))
        starts = np.repeat(np.arange(count), many)
        ends = np.arange(len(starts)) - np.repeat(np.cumsum(many) - many, many) + starts + 1
        there = (ends > self.seen) & (self.edges[starts, 0] <= self.edges[ends - 1, 1])
        found: Int64[np.ndarray, "span 2"] = np.stack((starts, ends), axis=1)[there]
        return found if self.part is None else found[slice(*self.part)]


def named_input(one: Tokenization) -> NamedInput:
    """Return the input as the `NamedInput` that the task made."""
    assert isinstance(one, NamedInput)
    return one


def is_whole(chunk: Chunk, windows: Sequence[NamedInput]) -> bool:
    """Return True if one window contains all words of a name, none of them too long."""
    for window in windows:
        start, end = chunk.start - window.first, chunk.end - window.first
        if start >= 0 and end <= len(window.edges) and (window.edges[start:end, 1] != LOST).all():
            return True
    return False


def word_edges(one: Tokenization, words: Int64[np.ndarray, "own 2"]) -> Int64[np.ndarray, "own 2"]:
    """Return first and last token of each word; without tokens, the first behind and the last before it."""
    own = np.flatnonzero(one.segment_of == 0)
    spans = one.spans[own]
    first = np.searchsorted(spans[:, 1], words[:, 0], side="right")
    last = np.searchsorted(spans[:, 0], words[:, 1], side="left") - 1
    before = own[0] if len(own) else 0
    return np.stack((first, last), axis=1) + before


def sentence_windows(
    one: Tokenization, edges: Int64[np.ndarray, "own 2"], longest: int | None, words: int
) -> Iterator[NamedInput]:
    """Yield the sentence with its context, or if too long, windows that overlap by the longest span minus one word."""
    if longest is None or len(one) <= longest:
        yield _input(one, None, edges, 0, 0)
        return
    size = longest - int((one.segment_of != 0).sum())
    low, high = int(edges[:, 0].min()), int(edges[:, 1].max()) + 1
    if high - low <= size:
        yield _input(one, window_around(one, low, high, longest), edges, 0, 0)
        return
    first = seen = 0
    while first < len(edges):
        last = first + 1
        while last < len(edges) and edges[last, 1] - edges[first, 0] < size:
            last += 1
        some = edges[first:last]
        kept = window_around(one, int(some[0, 0]), int(some[-1, 1]) + 1, longest)
        yield _input(one, kept, some, first, seen)
        if last == len(edges):
            return
        begin = max(first + 1, last - words + 1)
        seen, first = last - begin, begin


def _input(
    one: Tokenization, kept: NDArray[np.int64] | None, edges: Int64[np.ndarray, "own 2"], first: int, seen: int
) -> NamedInput:
    if kept is not None:
        one = keep_tokens(one, kept)
        lost = (edges[:, 0] <= edges[:, 1]) & ~np.isin(edges, kept).all(1)
        edges = np.stack(
            (np.searchsorted(kept, edges[:, 0]), np.searchsorted(kept, edges[:, 1], side="right") - 1), axis=1
        )
        edges[lost, 1] = LOST
    values = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
    return NamedInput(**values, first=first, edges=edges, seen=seen)
