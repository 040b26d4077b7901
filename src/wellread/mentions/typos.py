"""Index of a knowledge base's words for the correction of misspelt words.

A word of 4 to 8 letters may have one edit, a longer one two; an edit is a letter inserted, left out or replaced, or two
neighbours swapped (optimal string alignment). The index is SymSpell's (Garbe 2012): the first letters of each word with
up to two of them left out, as sorted 32-bit fingerprints. Words with the same fingerprint are compared letter by letter
with rapidfuzz, so a fingerprint never decides alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import OSA

from wellread.text.key_table import KeyTable
from wellread.text.words import Keys, Offsets, fold, mix

SHORTEST = 4
"""Minimum letters of a word that is corrected."""

LONG = 9
"""Letters from which on a word or name may have two edits."""

SHORTEST_NAME = 5
"""Minimum letters of a name that may have an edit."""

_PREFIX = 9
_CHUNK = 50_000


def allowed_edits(letters: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the maximum edits of names with these numbers of letters."""
    return (letters >= SHORTEST_NAME).astype(np.int64) + (letters >= LONG)


def folded(word: str) -> str:
    """Return a word's letters without case and diacritics."""
    return word.lower() if word.isascii() else "".join(map(fold, word))


def is_correctable(word: str) -> bool:
    """Return True for a folded word that may be misspelt: letters only ("1998" is not a misspelt "1999")."""
    return len(word) >= SHORTEST and word.isalpha()


@dataclass(frozen=True, slots=True)
class WordIndex:
    """All words of a KB's names, and for those that may be misspelt the fingerprints of their prefixes."""

    table: KeyTable
    """Hash of a word -> its row + 1."""
    hashes: Keys
    sizes: NDArray[np.uint8]
    """Letters of a row's word, 0 if it is not corrected."""
    begins: NDArray[np.uint32]
    """First byte of a row's word in `letters`, with one more at the end."""
    letters: NDArray[np.uint8]
    """The words in UTF-8."""
    fingerprints: NDArray[np.uint32]
    """Sorted."""
    rows: NDArray[np.uint32]
    """Row of each fingerprint."""
    buckets: NDArray[np.uint32]
    """Starts of fingerprints with the same first bits, about one for each value."""

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def build(cls, words: Mapping[int, str]) -> WordIndex:
        """Build from hashes of words and their folded letters; "" for words that are known but not corrected."""
        hashes = np.fromiter(words, np.uint64, len(words))
        texts = list(words.values())
        encoded = [text.encode() for text in texts]
        begins = np.zeros(len(texts) + 1, np.uint32)
        np.cumsum(np.fromiter(map(len, encoded), np.uint32, len(encoded)), out=begins[1:])
        sizes = np.minimum(np.fromiter(map(len, texts), np.int64, len(texts)), 255).astype(np.uint8)
        entries: list[Keys] = []
        for deep in (False, True):
            some = np.flatnonzero((sizes >= LONG) if deep else (sizes > 0) & (sizes < LONG))
            for place in range(0, len(some), _CHUNK):
                part = some[place : place + _CHUNK]
                prints = _fingerprints([texts[row] for row in part.tolist()], deep=deep)
                entries.append(np.unique(prints.astype(np.uint64) << np.uint64(32) | part.astype(np.uint64)[:, None]))
        joined = np.concatenate(entries) if entries else np.zeros(0, np.uint64)
        entries.clear()
        joined.sort()
        prints, rows = (joined >> np.uint64(32)).astype(np.uint32), joined.astype(np.uint32)
        del joined
        bits = len(prints).bit_length()
        borders = np.arange(1 << bits, dtype=np.uint32) << np.uint32(32 - bits) if bits else np.zeros(1, np.uint32)
        return cls(
            KeyTable.build(hashes, np.arange(1, len(hashes) + 1, dtype=np.uint32)),
            hashes,
            sizes,
            begins,
            np.frombuffer(b"".join(encoded), np.uint8),
            prints,
            rows,
            np.append(np.searchsorted(prints, borders).astype(np.uint32), np.uint32(len(prints))),
        )

    def known(self, hashes: Keys) -> NDArray[np.bool_]:
        """Return which words (by hash) are words of a name."""
        known: NDArray[np.bool_] = self.table.find(hashes) != 0
        return known

    def word(self, row: int) -> str:
        """Return the letters of a row's word."""
        return self.letters[self.begins[row] : self.begins[row + 1]].tobytes().decode()

    def words(self) -> dict[int, str]:
        """Return the words given to `build`."""
        text, begins = self.letters.tobytes(), self.begins.tolist()
        return {
            hash: text[begin:end].decode()
            for hash, begin, end in zip(self.hashes.tolist(), begins[:-1], begins[1:], strict=True)
        }

    def find(self, words: Sequence[str]) -> tuple[Offsets, Offsets, Offsets]:
        """Return (index in `words`, row, edits) of words of the KB that folded words may be misspellings of."""
        sizes = np.fromiter(map(len, words), np.int64, len(words))
        pairs = []
        for deep in (False, True):
            some = np.flatnonzero((sizes >= LONG) if deep else (sizes >= SHORTEST - 1) & (sizes < LONG))
            if len(some):
                pairs.append(self._sharing([words[place] for place in some.tolist()], sizes[some], some, deep=deep))
        joined = np.concatenate(pairs) if pairs else np.zeros(0, np.int64)
        places, rows = joined >> 32, joined & 0xFFFFFFFF
        if not len(places):
            return places, rows, places
        edits = process.cpdist(
            [words[place] for place in places.tolist()],
            [self.word(row) for row in rows.tolist()],
            scorer=OSA.distance,
            score_cutoff=2,
            dtype=np.int64,
        )
        near = np.flatnonzero(edits <= 1 + (self.sizes[rows] >= LONG))
        return places[near], rows[near], edits[near]

    def _sharing(self, words: list[str], sizes: Offsets, places: Offsets, *, deep: bool) -> Offsets:
        """Return index << 32 | row of pairs that share a fingerprint and have similar lengths."""
        prints = _fingerprints(words, deep=deep)
        wanted = prints.ravel()
        bits = (len(self.buckets) - 1).bit_length() - 1
        bucket = wanted >> np.uint32(32 - bits) if bits else np.zeros(len(wanted), np.uint32)
        left = self.buckets[bucket].astype(np.int64)
        counts = self.buckets[bucket + np.uint32(1)] - left
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(left, counts) + within
        asked = np.repeat(np.arange(len(wanted)), counts)
        hits = np.flatnonzero(self.fingerprints[at] == wanted[asked])
        rows, owners = self.rows[at[hits]].astype(np.int64), asked[hits] // prints.shape[1]
        lengths = self.sizes[rows].astype(np.int64)
        fits = np.abs(lengths - np.minimum(sizes[owners], 255)) <= 1 + (lengths >= LONG)
        found: Offsets = np.unique(places[owners[fits]] << 32 | rows[fits])
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `of_arrays` takes."""
        return {
            "word_slots": self.table.slots,
            "word_rows": self.table.values,
            "word_hashes": self.hashes,
            "word_sizes": self.sizes,
            "word_begins": self.begins,
            "word_letters": self.letters,
            "typo_prints": self.fingerprints,
            "typo_rows": self.rows,
            "typo_buckets": self.buckets,
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> WordIndex:
        """Return the index over (mapped) arrays."""
        return cls(
            KeyTable(arrays["word_slots"], arrays["word_rows"]),
            arrays["word_hashes"],
            arrays["word_sizes"],
            arrays["word_begins"],
            arrays["word_letters"],
            arrays["typo_prints"],
            arrays["typo_rows"],
            arrays["typo_buckets"],
        )

    def joined_with(self, others: Iterable[WordIndex]) -> WordIndex:
        """Return one index of the words of all."""
        words = self.words()
        for other in others:
            words.update(other.words())
        return WordIndex.build(words)


def _masks(most: int) -> NDArray[np.uint64]:
    """Return per way of omitting letters of a prefix the factor of each letter: 0, or a power by its new position."""
    rows = []
    for count in range(most + 1):
        for gone in combinations(range(_PREFIX), count):
            kept = [place for place in range(_PREFIX) if place not in gone]
            row = np.zeros(_PREFIX, np.uint64)
            row[kept] = [pow(0x2545F4914F6CDD1D, rank, 1 << 64) for rank in range(len(kept))]
            rows.append(row)
    return np.array(rows)


_ONE, _TWO = _masks(1), _masks(2)


def _fingerprints(words: Sequence[str], *, deep: bool) -> NDArray[np.uint32]:
    """Return per word the fingerprints of its prefix with up to one letter (`deep`: two) left out."""
    padded = "".join(word[:_PREFIX].ljust(_PREFIX, "\0") for word in words)
    codes = np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), np.uint32).reshape(-1, _PREFIX)
    weights = mix((codes + np.uint32(1)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    weights[codes == 0] = 0
    masks = _TWO if deep else _ONE
    sums = np.zeros((len(words), len(masks)), np.uint64)
    for place in range(_PREFIX):
        sums += weights[:, place, None] * masks[None, :, place]
    return (mix(sums) >> np.uint64(32)).astype(np.uint32)
