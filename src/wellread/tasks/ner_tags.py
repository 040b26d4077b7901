"""Tags of words for named entities: begin and inside per label, and the best valid sequence of them.

    words     the mayor of avon        tags    O  B-place  I-place  B-who  I-who
    classes    3    4   0   1                  0     1        2       3      4

I-x follows only B-x or I-x, so that every sequence is a list of chunks (`evaluation.chunks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from wellread.evaluation.chunks import Chunk
from wellread.tasks.ner_inputs import LOST, NamedInput


class TaggedChunk(NamedTuple):
    """Chunk of a tag sequence, with the mean log-probability of its tags."""

    score: float
    chunk: Chunk


def tagged_words(one: NamedInput) -> Int64[np.ndarray, " word"]:
    """Return the indices of the words that have tokens, all within the input."""
    return np.flatnonzero(one.edges[:, 0] <= one.edges[:, 1])


def tags_of_words(count: int, chunks: Sequence[tuple[int, int, int]]) -> Int64[np.ndarray, " word"]:
    """Return the tag of each word, given (start, end, label number); of overlapping chunks the longest is kept."""
    tags = np.zeros(count, np.int64)
    for start, end, label in sorted(chunks, key=lambda one: (one[0] - one[1], one)):
        if not tags[start:end].any():
            tags[start:end] = 2 + 2 * label
            tags[start] = 1 + 2 * label
    return tags


def best_tags(scores: Float[np.ndarray, "word tag"]) -> Int64[np.ndarray, " word"]:
    """Return the valid tag sequence with the highest sum of log-probabilities (Viterbi)."""
    count, width = scores.shape
    if not count:
        return np.zeros(0, np.int64)
    inside = np.arange(2, width, 2)
    total = scores[0].astype(np.float64)
    total[inside] = -np.inf
    came = np.zeros((count, width), np.int64)
    for word in range(1, count):
        came[word] = total.argmax()
        came[word, inside] = np.where(total[inside - 1] >= total[inside], inside - 1, inside)
        total = total[came[word]] + scores[word]
    tags = np.zeros(count, np.int64)
    tags[-1] = total.argmax()
    for word in range(count - 1, 0, -1):
        tags[word - 1] = came[word, tags[word]]
    return tags


def chunks_of_window(
    one: NamedInput, scores: Float[np.ndarray, "word tag"], labels: Sequence[str], words: int, longest: int
) -> Iterator[TaggedChunk]:
    """Yield the chunks of one window of a sentence of `words` words, from the log-probabilities of `tagged_words`.

    A word without tokens belongs to the chunk around it; a word that is too long for the window ends every chunk.
    Windows share `longest` - 1 words: a chunk that reaches the end of a window may go on, and is left to the next one
    if that contains it; a chunk that ends before the new words of a window is left to the window before.
    """
    numbers = np.flatnonzero((one.edges[:, 0] <= one.edges[:, 1]) | (one.edges[:, 1] == LOST))
    has_tokens_mask = one.edges[numbers, 0] <= one.edges[numbers, 1]
    rows = np.full((len(numbers), 1 + 2 * len(labels)), -np.inf)
    rows[:, 0] = 0.0
    rows[has_tokens_mask] = scores
    tags = best_tags(rows)
    next_first = max(1, len(one.edges) - longest + 1)
    begins = np.flatnonzero(tags % 2 == 1)
    for begin in begins.tolist():
        end = begin + 1
        while end < len(tags) and tags[end] == tags[begin] + 1:
            end += 1
        start, stop = int(numbers[begin]), int(numbers[end - 1]) + 1
        goes_on = stop == len(one.edges) and one.first + stop < words and start >= next_first
        if stop < one.seen or goes_on:
            continue
        score = float(rows[np.arange(begin, end), tags[begin:end]].mean())
        label = labels[int(tags[begin]) // 2]
        yield TaggedChunk(score, Chunk(start + one.first, stop + one.first, label))
