"""Which words make a phrase: the trees of all texts of a dataset at once (Bai et al. 2022, eq. 6).

- `chunks`: spaCy's noun chunks; a word outside of them is a phrase by itself.
- `constituency`: a preterminal has level 0, an inner node 1 + the highest of its children; a word's phrase is its
  highest ancestor of at most the level asked for.
- `dependency`: a word without dependents has height 0, another 1 + the highest of them; from a word one walks up while
  the next head is at most as high as the level, and where two walks end together is one phrase.

Trees stand over a parser's own words, the leaves. A word of ours belongs to the leaf that it overlaps most ("U.S." is
one leaf to spaCy and four words to us, which so share a phrase); a word without a leaf is a phrase by itself.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from wellread.errors import InputError
from wellread.mentions.annotation_cache import Annotations, Ragged
from wellread.text.words import Offsets

Reading = Literal["chunks", "constituency", "dependency"]


def phrases(notes: Annotations, source: str, reading: Reading, level: int) -> Offsets:
    """For every word of all texts the number of its phrase."""

    def find() -> Offsets:
        leaves = notes.marks(source, "leaves")
        trees = notes.marks(source, "constituents" if reading == "constituency" else "heads")
        if len(leaves.values) and not len(trees.values):
            needed = "constituency" if reading == "constituency" else "dependency"
            raise InputError(
                f"{source} gave no {needed} trees, which the reading {reading!r} needs; give a model that has a parser"
                " for them, or choose another reading: chunks, constituency or dependency"
            )
        if reading == "chunks":
            phrase_of = notes.owners(source, "chunks")
        else:
            find_phrases = dependency_phrases if reading == "dependency" else constituency_phrases
            leaf = notes.owners(source, "leaves")
            phrase_of = np.append(find_phrases(leaves.offsets, trees, level), -1)[leaf]
        return np.where(phrase_of < 0, -1 - np.arange(len(phrase_of)), phrase_of)

    return notes.once((source, reading, level), find)


def dependency_phrases(leaves: Offsets, heads: Ragged, level: int) -> Offsets:
    """The leaf at which the walk up from each leaf ends; `leaves` says where the leaves of each text begin."""
    head = heads.values[:, 0].astype(np.int64) + leaves[heads.owners()]
    own = np.arange(len(head))
    below = np.flatnonzero(head != own)
    height, before = np.zeros(len(head), np.int64), None
    while before is None or not np.array_equal(height, before):  # as often as the highest tree is high
        before = height.copy()
        np.maximum.at(height, head[below], height[below] + 1)
    place = np.where(height[head] <= level, head, own)
    while not np.array_equal(place, further := place[place]):
        place = further
    return place


def constituency_phrases(leaves: Offsets, nodes: Ragged, level: int) -> Offsets:
    """For each leaf the first leaf of its phrase."""
    phrase_of = np.arange(leaves[-1])
    spans = nodes.values[:, :2].astype(np.int64) + leaves[nodes.owners(), None]
    spans = spans[nodes.values[:, 2] <= level]
    spans = spans[np.lexsort((-spans[:, 1], spans[:, 0]))]
    if not len(spans):
        return phrase_of
    # Nodes lie in each other or apart: one that ends behind all that began before it is in none of them.
    ends = np.maximum.accumulate(spans[:, 1])
    spans = spans[np.append(True, spans[1:, 1] > ends[:-1])]
    lengths = spans[:, 1] - spans[:, 0]
    begins = np.repeat(spans[:, 0], lengths)
    phrase_of[begins + np.arange(len(begins)) - np.repeat(np.cumsum(lengths) - lengths, lengths)] = begins
    return phrase_of
