"""Words that a word of a text may stand for: those it is a form of, those it is a misspelling of, "and" for "&"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wellread.kb.names import Keys, Offsets, Words, follow, word_hash
from wellread.mentions.compiled import ALL_KINDS
from wellread.mentions.frequency import common
from wellread.mentions.letters import is_capital, text_of
from wellread.mentions.match import Matcher
from wellread.mentions.regular import regular_forms
from wellread.mentions.table import KeyTable, differ
from wellread.mentions.typos import SHORTEST, folded

EDIT, FORM, SIGN, LETTER = 1, 1 << 4, 1 << 8, 1 << 12
"""Counted in marks: edits, word forms, signs passed over; above them the letters that edits add or take away."""

Marks = NDArray[np.int32]
Reading = tuple[Offsets, Keys, NDArray[np.uint8], Marks]

_MOST_EDITS = 2
_MOST_CORRECTIONS = 12
"""Words of the KB that one misspelt word is read as, nearest first."""

_COMMON = 0.0
"""log10 per million from which on a word of general English is not taken for a misspelling."""

_AND, _AMPERSAND = np.uint64(word_hash("and")), np.uint64(word_hash("&"))


@dataclass(frozen=True, slots=True)
class States:
    """Spans that are names or begin names: first word, last word so far, node, kinds of forms in it, marks."""

    begins: Offsets
    at: Offsets
    nodes: Keys
    kinds: NDArray[np.uint8]
    marks: Marks

    def take(self, which: NDArray[np.bool_] | Offsets) -> States:
        """Return some of the states."""
        return States(self.begins[which], self.at[which], self.nodes[which], self.kinds[which], self.marks[which])


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways of finding names that are switched on."""

    inflected: bool = True
    punctuation: bool = True
    typos: bool = True


class WordReader:
    """Finds the words of a KB's names that words of a text may stand for."""

    def __init__(self, matcher: Matcher, ways: Ways, stops: KeyTable | None, *, senses: bool) -> None:
        self.matcher, self.ways, self.stops, self.senses = matcher, ways, stops, senses
        self._variants = [names.variants for names in matcher.both()]

    def read(self, words: Words, signs: NDArray[np.bool_]) -> Iterator[Reading]:
        """Yield other words that words of the text may stand for: (place, hash, kinds, marks).

        Each distinct word is looked up once.
        """
        if self.ways.inflected and self.senses:
            for names in self.matcher.both():
                place, hashes, kinds = names.forms.find(words.hashes)
                yield place, hashes, kinds, np.full(len(place), FORM, np.int32)
        if self.ways.punctuation:
            for this, other in ((_AND, _AMPERSAND), (_AMPERSAND, _AND)):
                place = np.flatnonzero(words.hashes == this)
                yield place, np.full(len(place), other, np.uint64), *_plain(len(place), SIGN)
        if not (self.ways.typos or (self.ways.inflected and not self.senses)):
            return
        places = np.flatnonzero(~signs & (words.sizes >= SHORTEST - 1))
        order = places[np.argsort(words.hashes[places], kind="stable")]
        heads = np.flatnonzero(differ(words.hashes[order]))
        occurring = _Occurrences(order, heads)
        distinct = order[heads]
        has_form = np.zeros(len(distinct), np.bool_)
        if self.ways.inflected and not self.senses:
            eligible = np.arange(len(distinct))
            if self.stops is not None:
                eligible = np.flatnonzero(self.stops.find(words.hashes[distinct]) == 0)
            of_word, hashes, verbs = regular_forms(words, self._known, distinct[eligible])
            which = np.searchsorted(words.hashes[distinct], words.hashes[of_word])
            has_form[which] = True
            place, rows = occurring.of(which)
            small = ~is_capital(words.codes[words.starts[place]])
            place, rows = (column[small | ~verbs[rows]] for column in (place, rows))
            yield place, hashes[rows], *_plain(len(rows), FORM)
        if self.ways.typos:
            which, hashes, marks = self._corrections(words, distinct, ~has_form)
            place, rows = occurring.of(which)
            yield place, hashes[rows], _plain(len(rows), 0)[0], marks[rows]

    def _known(self, hashes: Keys) -> NDArray[np.bool_]:
        known = self._variants[0].words.known(hashes)
        for variants in self._variants[1:]:
            known |= variants.words.known(hashes)
        return known

    def _corrections(
        self, words: Words, distinct: Offsets, eligible: NDArray[np.bool_]
    ) -> tuple[Offsets, Keys, NDArray[np.int32]]:
        """(number of a distinct word, hash, marks): words of the KB for words that neither it nor English knows."""
        hashes = words.hashes[distinct]
        if self.senses:
            for names in self.matcher.both():
                eligible = eligible & (names.forms.table.find(hashes) == 0)
        unknown = np.flatnonzero(eligible & ~self._known(hashes) & ~common(hashes, at_least=_COMMON))
        texts = ((place, text_of(words, distinct[place])) for place in unknown.tolist())
        asked = [(place, text) for place, text in texts if text.isalpha() and not (len(text) < 5 and text.isupper())]
        plain = [folded(text) for _, text in asked]
        numbers = np.array([place for place, _ in asked], np.int64)
        parts = []
        for variants in self._variants:
            place, row, edits = variants.words.find(plain)
            parts.append(
                (numbers[place], variants.words.hashes[row], edits, variants.words.sizes[row].astype(np.int64))
            )
        which, meant, edits, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((edits, which))
        counts = np.bincount(which, minlength=len(distinct))
        near = order[np.arange(len(which)) - (np.cumsum(counts) - counts)[which[order]] < _MOST_CORRECTIONS]
        marks = edits[near] * EDIT + (sizes[near] - words.sizes[distinct[which[near]]]) * LETTER
        return which[near], meant[near], marks.astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """Places of words in order of their hashes, and where among them each distinct word begins."""

    places: Offsets
    heads: Offsets

    def of(self, which: Offsets) -> tuple[Offsets, Offsets]:
        """Return (place, row of `which`) of every occurrence of distinct words."""
        counts = np.diff(np.append(self.heads, len(self.places)))[which]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.places[np.repeat(self.heads[which], counts) + within], np.repeat(np.arange(len(which)), counts)


@dataclass(frozen=True, slots=True)
class Readings:
    """Other words that the words of a text may stand for, in order of the place; `begins` and `counts` by place."""

    begins: Offsets
    counts: Offsets
    hashes: Keys
    kinds: NDArray[np.uint8]
    marks: NDArray[np.int32]

    @classmethod
    def of(cls, count: int, parts: Iterable[Reading]) -> Readings:
        """From the readings of words of a text that has `count` words."""
        empty = np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.int32)
        places, hashes, kinds, marks = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=count)
        return cls(np.cumsum(counts) - counts, counts, hashes[order], kinds[order], marks[order])

    def spread(self, hashes: Keys, states: States) -> States:
        """Return every state after its word as it is written, then after the other readings of the word."""
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
    """Kinds and marks of readings that are the same for all."""
    return np.full(count, ALL_KINDS, np.uint8), np.full(count, mark, np.int32)
