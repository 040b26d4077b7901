"""Variants of the words of a text: words they are forms of, or misspellings of, and "and" for "&"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wellread.mentions.compiled_names import ALL_KINDS, NAME
from wellread.mentions.matcher import Matcher
from wellread.mentions.typos import SHORTEST, SHORTEST_NAME, folded
from wellread.text.characters import is_capital, text_of
from wellread.text.frequency import is_english
from wellread.text.inflection import regular_forms
from wellread.text.key_table import KeyTable, differ
from wellread.text.transliteration import transliterations
from wellread.text.words import Keys, Offsets, Words, follow, keys, word_hash

EDIT, FORM, SIGN, LETTER = 1, 1 << 4, 1 << 8, 1 << 12
"""Units of the sum of variants: edits, word forms, skipped signs; above them the letters that edits add or remove."""

Marks = NDArray[np.int32]
Reading = tuple[Offsets, Keys, NDArray[np.uint8], Marks]

_MOST_EDITS = 2
_MOST_CORRECTIONS = 12
"""Maximum corrections of one misspelt word, nearest first."""

_MOST_MET = 1 << 14
"""Maximum words that are cached; then the cache is emptied."""

_FEW_WORDS = 64
"""Number of distinct words up to which the regular forms of words are cached."""

_SHORTEST_HALF = 3
"""Minimum letters of a word that may be run together with another."""

_AND, _AMPERSAND = np.uint64(word_hash("and")), np.uint64(word_hash("&"))


@dataclass(frozen=True, slots=True)
class States:
    """Spans that are names or prefixes of names: first word, last word so far, node, kinds of forms in it, variants."""

    begins: Offsets
    at: Offsets
    nodes: Keys
    kinds: NDArray[np.uint8]
    marks: Marks

    @classmethod
    def none(cls) -> States:
        """Return no states."""
        places = np.zeros(0, np.int64)
        return cls(places, places, np.zeros(0, np.uint64), *_plain(0, 0))

    def take(self, which: NDArray[np.bool_] | Offsets) -> States:
        """Return some of the states."""
        return States(self.begins[which], self.at[which], self.nodes[which], self.kinds[which], self.marks[which])


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways of finding names that are switched on."""

    inflected: bool = True
    punctuation: bool = True
    typos: bool = True
    word_order: bool = True


class WordVariantFinder:
    """Finds the words of a KB's names that words of a text may stand for."""

    def __init__(self, matcher: Matcher, ways: Ways, stops: KeyTable | None, *, senses: bool) -> None:
        self.matcher, self.ways, self.stops, self.senses = matcher, ways, stops, senses
        self._variants = [names.variants for names in matcher.both()]
        self._met: dict[int, _Meant] = {}
        self._formed: dict[int, tuple[tuple[int, bool], ...]] = {}

    def read(self, words: Words, signs: NDArray[np.bool_]) -> tuple[WordVariants, States]:
        """Return the variants of the words of a text, and names that it writes without their blank."""
        readings = list(self._of_every_word(words))
        together = States.none()
        if self.ways.typos or (self.ways.inflected and not self.senses):
            distinct = _Distinct.of(words, signs)
            if self.ways.inflected and not self.senses:
                readings.append(self._forms(words, distinct))
            if self.ways.typos:
                unknown = self._unknown(words, distinct)
                readings.append(self._corrections(words, distinct, unknown))
                together = self._run_together(distinct, unknown)
        return WordVariants.of(len(words.starts), readings), together

    def _of_every_word(self, words: Words) -> Iterator[Reading]:
        """Yield the word forms of WordNet, "&" for "and", and "ue" for "ü"."""
        if self.ways.inflected and self.senses:
            for names in self.matcher.both():
                place, hashes, kinds = names.forms.find(words.hashes)
                yield place, hashes, kinds, np.full(len(place), FORM, np.int32)
        place, hashes = transliterations(words)
        yield place, hashes, *_plain(len(place), 0)
        if self.ways.punctuation:
            for this, other in ((_AND, _AMPERSAND), (_AMPERSAND, _AND)):
                place = np.flatnonzero(words.hashes == this)
                yield place, np.full(len(place), other, np.uint64), *_plain(len(place), SIGN)

    def _forms(self, words: Words, distinct: _Distinct) -> Reading:
        """Return the words whose regular forms the words of the text are, or that are forms of them."""
        if len(distinct.hashes) <= _FEW_WORDS and words.codes.dtype == np.uint8:
            which, hashes, verbs = self._cached_forms(words, distinct)
        else:
            which, hashes, verbs = self._new_forms(words, distinct.first, distinct.hashes)
        place, rows = distinct.occurrences(which)
        small = ~is_capital(words.codes[words.starts[place]])
        place, rows = (column[small | ~verbs[rows]] for column in (place, rows))
        return place, hashes[rows], *_plain(len(rows), FORM)

    def _new_forms(self, words: Words, places: Offsets, of: Keys) -> tuple[Offsets, Keys, NDArray[np.bool_]]:
        """Return (row of `of`, word, is a verb) for the regular forms of words, whose sorted hashes are `of`."""
        if self.stops is not None:
            places = places[self.stops.find(words.hashes[places]) == 0]
        of_word, hashes, verbs = regular_forms(words, self._known, places)
        return np.searchsorted(of, words.hashes[of_word]), hashes, verbs

    def _cached_forms(self, words: Words, distinct: _Distinct) -> tuple[Offsets, Keys, NDArray[np.bool_]]:
        """Return the same for few words, from a cache; of ASCII words, which the hash determines but for their case."""
        if len(self._formed) > _MOST_MET:
            self._formed = {}
        known, hashes = self._formed, distinct.hashes.tolist()  # another thread may empty the cache
        fresh = [number for number, hash in enumerate(hashes) if hash not in known]
        if fresh:
            rows, forms, verbs = self._new_forms(words, distinct.first[fresh], distinct.hashes[fresh])
            made: list[list[tuple[int, bool]]] = [[] for _ in fresh]
            for row, form, verb in zip(rows.tolist(), forms.tolist(), verbs.tolist(), strict=True):
                made[row].append((form, verb))
            known.update((hashes[number], tuple(some)) for number, some in zip(fresh, made, strict=True))
        found = [(number, *form) for number, hash in enumerate(hashes) for form in known[hash]]
        return (
            np.array([number for number, _, _ in found], np.int64),
            np.array([form for _, form, _ in found], np.uint64),
            np.array([verb for _, _, verb in found], np.bool_),
        )

    def _known(self, hashes: Keys) -> NDArray[np.bool_]:
        known = self._variants[0].words.known(hashes)
        for variants in self._variants[1:]:
            known |= variants.words.known(hashes)
        return known

    def _unknown(self, words: Words, distinct: _Distinct) -> list[tuple[int, _Meant]]:
        """Return (number of a distinct word, its meanings) of words that neither the KB nor English has."""
        unknown = ~self._known(distinct.hashes) & ~is_english(distinct.hashes)
        if self.senses:
            for names in self.matcher.both():
                unknown &= names.forms.table.find(distinct.hashes) == 0
        numbers = np.flatnonzero(unknown)
        hashes = distinct.hashes[numbers].tolist()
        if len(self._met) > _MOST_MET:
            self._met = {}
        met = self._met  # another thread may empty the cache
        fresh = [place for place, hash in enumerate(hashes) if hash not in met]
        met.update(self._looked_at(words, distinct.first[numbers[fresh]]))
        meant = ((number, met[hash]) for number, hash in zip(numbers.tolist(), hashes, strict=True))
        return [(number, some) for number, some in meant if some is not _NOTHING]

    def _looked_at(self, words: Words, places: Offsets) -> dict[int, _Meant]:
        """Return hash -> meanings of unknown words; none for forms of known words, numbers and acronyms."""
        found = dict.fromkeys(words.hashes[places].tolist(), _NOTHING)
        if not found:
            return found
        for known in (self._known, is_english):
            formed, _, _ = regular_forms(words, known, places, reverse=False)
            places = np.setdiff1d(places, formed)
        texts = [(int(words.hashes[place]), text_of(words, place)) for place in places.tolist()]
        asked = {
            hash: folded(text)
            for hash, text in texts
            if text.isalpha() and not (len(text) < SHORTEST_NAME and text.isupper())
        }
        corrected: dict[int, list[tuple[int, int, int]]] = {hash: [] for hash in asked}
        owners = list(asked)
        for variants in self._variants:
            index = variants.words
            which, row, edits = index.find(list(asked.values()))
            columns = (which, edits, index.hashes[row], index.sizes[row])
            for at, edit, hash, size in zip(*(column.tolist() for column in columns), strict=True):
                corrected[owners[at]].append((edit, hash, size))
        halves = [
            (hash, f"{word[:half]} {word[half:]}")
            for hash, word in asked.items()
            for half in range(_SHORTEST_HALF, len(word) - _SHORTEST_HALF + 1)
        ]
        names: dict[int, list[int]] = {}
        nodes = keys([half for _, half in halves])
        for at in np.flatnonzero(self.matcher.flags(nodes) & NAME).tolist():
            names.setdefault(halves[at][0], []).append(int(nodes[at]))
        for hash, some in corrected.items():
            if some or hash in names:
                found[hash] = _Meant(tuple(sorted(some)[:_MOST_CORRECTIONS]), tuple(names.get(hash, ())))
        return found

    @staticmethod
    def _corrections(words: Words, distinct: _Distinct, unknown: list[tuple[int, _Meant]]) -> Reading:
        """Return the words of the KB that unknown words may be misspellings of."""
        rows = [(number, *one) for number, meant in unknown for one in meant.words]
        which = np.array([number for number, _, _, _ in rows], np.int64)
        edits = np.array([edit for _, edit, _, _ in rows], np.int64)
        hashes = np.array([hash for _, _, hash, _ in rows], np.uint64)
        sizes = np.array([size for _, _, _, size in rows], np.int64)
        marks = (edits * EDIT + (sizes - words.sizes[distinct.first[which]]) * LETTER).astype(np.int32)
        place, of = distinct.occurrences(which)
        return place, hashes[of], _plain(len(of), 0)[0], marks[of]

    @staticmethod
    def _run_together(distinct: _Distinct, unknown: list[tuple[int, _Meant]]) -> States:
        """Return unknown words that are names of two words without the blank between them ("southdakota")."""
        rows = [(number, node) for number, meant in unknown for node in meant.names]
        place, of = distinct.occurrences(np.array([number for number, _ in rows], np.int64))
        nodes = np.array([node for _, node in rows], np.uint64)
        return States(place, place, nodes[of], *_plain(len(of), EDIT))


@dataclass(frozen=True, slots=True)
class _Meant:
    """Meanings of an unknown word: (edits, hash, letters) of corrections, and keys of two-word names run together."""

    words: tuple[tuple[int, int, int], ...] = ()
    names: tuple[int, ...] = ()


_NOTHING = _Meant()


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The distinct words of a text, in order of their hashes."""

    hashes: Keys
    first: Offsets
    """Index of one occurrence of each word."""
    places: Offsets
    """Indices of all occurrences, those of one word in a row."""
    heads: Offsets
    """Start of each word in `places`."""

    @classmethod
    def of(cls, words: Words, signs: NDArray[np.bool_]) -> _Distinct:
        places = np.flatnonzero(~signs & (words.sizes >= SHORTEST - 1))
        places = places[np.argsort(words.hashes[places])]
        heads = np.flatnonzero(differ(words.hashes[places]))
        return cls(words.hashes[places[heads]], places[heads], places, heads)

    def occurrences(self, which: Offsets) -> tuple[Offsets, Offsets]:
        """Return (index, row of `which`) of every occurrence of some words."""
        counts = np.diff(np.append(self.heads, len(self.places)))[which]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.places[np.repeat(self.heads[which], counts) + within], np.repeat(np.arange(len(which)), counts)


@dataclass(frozen=True, slots=True)
class WordVariants:
    """Variants of the words of a text, in text order; `begins` and `counts` are per word."""

    begins: Offsets
    counts: Offsets
    hashes: Keys
    kinds: NDArray[np.uint8]
    marks: NDArray[np.int32]

    @classmethod
    def of(cls, count: int, parts: Iterable[Reading]) -> WordVariants:
        """Build from the variants of a text that has `count` words."""
        empty = np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.int32)
        places, hashes, kinds, marks = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=count)
        return cls(np.cumsum(counts) - counts, counts, hashes[order], kinds[order], marks[order])

    def spread(self, hashes: Keys, states: States) -> States:
        """Return every state after its word as written, then after the variants of the word."""
        plain = follow(states.nodes, hashes[states.at])
        counts = self.counts[states.at]
        some = np.flatnonzero(counts)
        if not len(some):
            return replace(states, nodes=plain)
        counts = counts[some]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(self.begins[states.at[some]], counts) + within
        which = np.repeat(some, counts)
        marks = states.marks[which] + self.marks[rows]
        few = np.flatnonzero(marks & 15 <= _MOST_EDITS)
        which, rows = which[few], rows[few]
        return States(
            np.append(states.begins, states.begins[which]),
            np.append(states.at, states.at[which]),
            np.append(plain, follow(states.nodes[which], self.hashes[rows])),
            np.append(states.kinds, states.kinds[which] & self.kinds[rows]),
            np.append(states.marks, marks[few]),
        )


def _plain(count: int, mark: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return kinds and variant sums that are the same for all."""
    return np.full(count, ALL_KINDS, np.uint8), np.full(count, mark, np.int32)
