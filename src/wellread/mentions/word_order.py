"""Names with words in another order or form: "contractures of the elbows" for "Elbow contracture".

A name is reduced to the multiset of its word stems, without articles and prepositions. Its key is the sum of the stems'
hashes, which does not depend on the order, and the key of a span of a text is the difference of two prefix sums. So all
spans of a text are looked up with a few array operations per length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from wellread.text.characters import is_letter_or_digit
from wellread.text.frequency import common
from wellread.text.words import Keys, Offsets, Words, mix, without_ending, word_hash

MAX_STEMS = 6
"""Maximum stems of a name that is found in any order."""
MAX_WORDS = 8
"""Maximum words of a span, articles and prepositions included."""

_SIGN, _SKIPPED, _LETTER, _STEM, _ALONE = range(5)
"""Classes of words: not a word, article or preposition, single letter (which does not count), word, word that may be
found alone."""
_CLASS = np.uint64(7)
_STEMS = (1 << 32) - 1
_COUNTED = np.array([1 << 32, 0, 0, 1, 1], np.int64)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SKIPPED_WORDS = np.array([word_hash(word) for word in ("of", "the", "in", "a", "an", "on", "at")], np.uint64)
_ENDINGS = sorted(
    (
        *("ations", "ation", "ically", "ative", "ities", "ments", "ening", "encies"),
        *("ions", "ment", "ness", "ical", "ally", "oses", "osis", "otic", "ency", "ence", "ance", "ancy", "ened"),
        *("ity", "ies", "ing", "ion", "ous", "ias", "tic", "ent", "ant", "ary"),
        *("al", "ic", "ia", "es", "ed", "ar", "en", "ly", "um", "us", "s", "e", "y", "a"),
    ),
    key=len,
    reverse=True,
)
_SHORTEST_STEM = 4
_SHORTEST_ALONE = 6
"""Minimum letters of the stem of a one-word name, which must be a rare word: "hypotonic" -> "Hypotonia"."""
_ROUNDS = 2
"""Maximum endings removed from one word: "abnormalities" -> "abnormal" -> "abnorm"."""


def stem_hashes(words: Words, places: Offsets) -> tuple[Keys, Offsets]:
    """Return hashes and letters of the stems of some words: "hypoplasia" and "hypoplastic" have the same."""
    hashes, sizes = words.hashes[places].copy(), words.sizes[places].copy()
    ends = words.ends[places].copy()
    for _ in range(_ROUNDS):
        going = np.ones(len(places), np.bool_)
        for ending in _ENDINGS:
            rows = np.flatnonzero(going & (sizes >= len(ending) + _SHORTEST_STEM))
            for back, letter in enumerate(reversed(ending), 1):
                # Not before the first character: a folded letter may have been written as several.
                codes = words.codes[np.maximum(ends[rows] - back, 0)]
                rows = rows[codes | 0x20 == ord(letter)]
            if len(rows):
                hashes[rows] = without_ending(hashes[rows], sizes[rows], ending)
                sizes[rows] -= len(ending)
                ends[rows] -= len(ending)
                going[rows] = False
    return mix(hashes), sizes


class _StemCache:
    """Cache of stems in a table of fixed size with vectorised look-up.

    A row holds a stem and the stem XOR its word, so that a row that another thread is writing does not match any word.
    The lowest three bits of a stem are its word's class.
    """

    def __init__(self, bits: int = 16) -> None:
        self._shift = np.uint64(64 - bits)
        self._stems, self._checks = np.zeros((2, 1 << bits), np.uint64)

    def find(self, words: Words) -> Keys:
        """Return the stem of each word with its class."""
        rows = (words.hashes * _SPREAD) >> self._shift
        stems = self._stems.take(rows.view(np.int64))
        missed = np.flatnonzero(stems ^ self._checks.take(rows.view(np.int64)) != words.hashes)
        if len(missed):
            hashes, first, number = np.unique(words.hashes[missed], return_index=True, return_inverse=True)
            first = missed[first]
            fresh, sizes = stem_hashes(words, first)
            alone = (sizes >= _SHORTEST_ALONE) & ~common(hashes)
            classes = np.where(alone, _ALONE, _STEM)
            classes[words.sizes[first] == 1] = _LETTER
            classes[np.isin(hashes, _SKIPPED_WORDS)] = _SKIPPED
            classes[~is_letter_or_digit(words.codes[words.starts[first]])] = _SIGN
            fresh = (fresh & ~_CLASS) | classes.astype(np.uint64)
            self._stems[rows[first]], self._checks[rows[first]] = fresh, fresh ^ hashes
            stems[missed] = fresh[number]
        return stems


_cache = _StemCache()


class StemSums:
    """Prefix sums over the words of a text: key and number of the stems of any span."""

    def __init__(self, words: Words) -> None:
        stems = _cache.find(words)
        classes = stems & _CLASS
        self._is_stem, self._is_alone = classes >= _LETTER, classes == _ALONE
        stems &= ~_CLASS
        stems *= self._is_stem
        self._keys = np.zeros(len(stems) + 1, np.uint64)  # sums wrap around, and so do their differences
        np.cumsum(stems, out=self._keys[1:])
        self._counts = np.zeros(len(stems) + 1, np.int64)
        """Number of stems so far, with the number of signs so far in the upper half."""
        np.cumsum(_COUNTED[classes.view(np.int64)], out=self._counts[1:])

    def keys(self, first: Offsets, after: Offsets) -> Keys:
        """Return the keys of spans of words; 0 for too many stems, or for a single one that is short or common."""
        stems = (self._counts[after] - self._counts[first]) & _STEMS
        found = self._keys[after] - self._keys[first]
        fits = (stems > 1) & (stems <= MAX_STEMS)
        alone = np.flatnonzero((stems == 1) & (after - first == 1))
        fits[alone] = self._is_alone[first[alone]]
        found *= fits
        return found

    def spans(self, passing: Callable[[Keys], Offsets]) -> Iterator[tuple[Offsets, Offsets, Keys]]:
        """Yield (first word, last word, key) of spans without punctuation whose key may be that of a name."""
        starts = np.flatnonzero(self._is_stem)
        for width in range(1, MAX_WORDS + 1):
            starts = starts[: np.searchsorted(starts, len(self._is_stem) - width, "right")]
            starts = starts[self._counts[starts + width] - self._counts[starts] <= _STEMS]
            first = starts[self._is_stem[starts + width - 1]]
            keys = self.keys(first, first + width)
            there = passing(keys)
            there = there[keys[there] != 0]
            yield first[there], first[there] + width - 1, keys[there]


def name_keys(words: Words, first: Offsets) -> Keys:
    """Return the key of the stems of each name, whose words begin at `first`; 0 for a name without stems."""
    return StemSums(words).keys(first, np.append(first[1:], len(words.starts)))
