"""Walk a text over the names of a knowledge base, reading each word in all the ways it may be meant.

The walk is that of `match`: at all words at once, one word a step. Beside the word itself a step may take a word that
it is a form of, or a word that it is a misspelling of; and punctuation between two words may be passed over. What was
done on the way adds up in one number per state (`_EDIT`, `_FORM`, `_SIGN`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce

import numpy as np
from numpy.typing import NDArray

from wellread.kb.names import Keys, Offsets, Words, follow, glued, rehashed, split, word_hash
from wellread.mentions.compiled import ALL_KINDS, INNER, KINDS_AT, LOOSE_INNER, LOOSE_NAME, NAME
from wellread.mentions.frequency import common
from wellread.mentions.match import Matcher
from wellread.mentions.regular import regular_forms
from wellread.mentions.table import KeyTable, differ
from wellread.mentions.typos import SHORTEST, allowed_edits, folded
from wellread.mentions.variants import CAPITAL, MOST_PARTS, UPPER, are_signs

WAYS = ("exact", "case", "inflected", "punctuation", "abbreviation", "short name", "typo")
EXACT, CASE, INFLECTED, PUNCTUATION, ABBREVIATION, SHORT_NAME, TYPO = range(len(WAYS))

_EDIT, _FORM, _SIGN, _LETTER = 1, 1 << 4, 1 << 8, 1 << 12
"""Counted in a state's marks: edits, word forms, signs passed over; above them the letters that edits add or take."""

_MOST_EDITS = 2
_MOST_SIGNS = 7
_MOST_CORRECTIONS = 12
"""Words of the KB that one misspelt word is read as, nearest first."""

_COMMON = 0.0
"""log10 per million from which on a word of general English is not taken for a misspelling."""

_AND, _AMPERSAND = np.uint64(word_hash("and")), np.uint64(word_hash("&"))
_APOSTROPHE, _S, _DOT = (np.uint64(word_hash(word)) for word in ("'", "s", "."))
_INNER_SIGNS = np.array([word_hash(sign) for sign in ".'!/&-–·*:"], np.uint64)
_MARKS = np.array([word_hash(sign) for sign in "®™-*"], np.uint64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Spans of a block by first and last word, the keys of the names they stand for, and how they were found."""

    starts: Offsets
    ends: Offsets
    keys: Keys
    kinds: NDArray[np.uint8]
    ways: NDArray[np.uint8]
    edits: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, which: NDArray[np.bool_] | Offsets) -> Rows:
        """Return some of the rows."""
        return Rows(*(getattr(self, column)[which] for column in self.__slots__))

    @classmethod
    def concatenated(cls, parts: list[Rows]) -> Rows:
        """Return the rows of all parts."""
        return cls(*(np.concatenate([getattr(part, column) for part in parts]) for column in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways of finding names that are switched on."""

    inflected: bool = True
    punctuation: bool = True
    typos: bool = True


class Walker:
    """Finds spans of a text that are names or variants of names, with one matcher."""

    def __init__(self, matcher: Matcher, ways: Ways, stops: KeyTable | None, *, senses: bool) -> None:
        self.matcher, self.ways, self.stops, self.senses = matcher, ways, stops, senses
        self._variants = [names.variants for names in matcher.both()]

    def walk(self, text: str) -> tuple[Rows, Words, Keys]:
        """Return the rows of a text, its words, and their hashes under the `exact` policy."""
        words = split(text)
        exact = rehashed(words, "exact").hashes
        signs = are_signs(words)
        readings = _Readings.of(len(words.starts), self._readings(words, signs))
        found = list(self._steps(words, signs, readings))
        if self.ways.punctuation:
            found += self._glued(words, signs)
        begins, ends, keys, kinds, marks = (np.concatenate(column) for column in zip(*found, strict=True))
        there = self.matcher.not_all_stops(words, begins, ends, self.stops)
        there &= self._within_edits(words, signs, begins, ends, marks)
        begins, ends, keys, kinds, marks = (column[there] for column in (begins, ends, keys, kinds, marks))
        ways = np.full(len(begins), CASE, np.uint8)
        plain = np.flatnonzero(marks == 0)
        known = self.matcher.known_as(exact, "exact", begins[plain], ends[plain], keys[plain])
        ways[plain[known]] = EXACT
        ways[marks >> 4 & 15 > 0] = INFLECTED
        ways[marks >> 8 & 15 > 0] = PUNCTUATION
        edits = (marks & 15).astype(np.uint8)
        ways[edits > 0] = TYPO
        return Rows(words.starts[begins], words.ends[ends], keys, kinds, ways, edits), words, exact

    def _steps(self, words: Words, signs: NDArray[np.bool_], readings: _Readings) -> Iterator[_Found]:
        count = len(words.starts)
        one, two = _passed_over(words, signs) if self.ways.punctuation else (None, None)
        begins = np.arange(count)
        at = begins
        nodes = np.zeros(count, np.uint64)
        kinds = np.full(count, ALL_KINDS, np.uint8)
        marks = np.zeros(count, np.int32)
        inner = INNER | LOOSE_INNER if self.ways.punctuation else INNER
        while len(begins):
            begins, at, nodes, kinds, marks = readings.spread(words.hashes, begins, at, nodes, kinds, marks)
            flags = self.matcher.flags(nodes)
            fits = (kinds == ALL_KINDS) | (flags >> KINDS_AT & kinds != 0)
            named = np.flatnonzero((flags & NAME != 0) & fits)
            yield begins[named], at[named], nodes[named], kinds[named], marks[named]
            if self.ways.punctuation:
                loose = np.flatnonzero((flags & LOOSE_NAME != 0) & (kinds == ALL_KINDS))
                yield from self._loose(words, begins[loose], at[loose], nodes[loose], marks[loose])
            alive = np.flatnonzero((flags & inner != 0) & (at + 1 < count) & (kinds != 0))
            begins, at, nodes, kinds, marks = begins[alive], at[alive] + 1, nodes[alive], kinds[alive], marks[alive]
            if one is not None and two is not None and len(at):
                over_one = np.flatnonzero(one[at])
                over_two = np.flatnonzero(two[at])
                if len(over_one) or len(over_two):
                    some = np.concatenate((np.arange(len(at)), over_one, over_two))
                    jumps = np.repeat([0, 1, 2], [len(at), len(over_one), len(over_two)])
                    begins, at, nodes, kinds = begins[some], at[some] + jumps, nodes[some], kinds[some]
                    marks = marks[some] + _SIGN * (jumps > 0).astype(np.int32)
                    few = np.flatnonzero(marks >> 8 & 15 <= _MOST_SIGNS)
                    begins, at, nodes, kinds, marks = (column[few] for column in (begins, at, nodes, kinds, marks))

    def _loose(
        self, words: Words, begins: Offsets, ends: Offsets, nodes: Keys, marks: NDArray[np.int32]
    ) -> list[_Found]:
        """Names whose own punctuation is missing in the text."""
        found = []
        for place, keys, how in self._looked_up("loose", nodes):
            capital = is_capital(words.codes[words.starts[begins[place]]])
            good = (how & CAPITAL == 0) | capital
            place, keys = place[good], keys[good]
            found.append(
                (begins[place], ends[place], keys, np.full(len(place), ALL_KINDS, np.uint8), marks[place] + _SIGN)
            )
        return found

    def _looked_up(self, table: str, keys: Keys) -> Iterator[tuple[Offsets, Keys, NDArray[np.uint8]]]:
        for number, variants in enumerate(self._variants):
            place, names, how = getattr(variants, table).find(keys)
            if number == 0 and len(self.matcher.changed):
                there = ~np.isin(names, self.matcher.changed)
                place, names, how = place[there], names[there], how[there]
            if len(place):
                yield place, names, how

    def _glued(self, words: Words, signs: NDArray[np.bool_]) -> Iterator[_Found]:
        """Names that the text, or the KB, writes as one word."""
        places = np.flatnonzero(~signs)  # words in a row but for the signs between them
        if not len(places):
            return
        starts, ends = words.starts[places], words.ends[places]
        hashes, sizes = words.hashes[places], words.sizes[places]
        gap = starts[1:] - ends[:-1]
        attached = (gap == 1) & ~_is_blank(words.codes[np.minimum(ends[:-1], len(words.codes) - 1)])
        attached |= gap == 0
        near = attached | (np.diff(places) == 1)  # no sign between, or one without blanks
        digit = _is_digit(words.codes[starts]) | _is_digit(words.codes[ends - 1])
        begins = np.arange(len(places))
        node, size, tight, single = hashes, sizes, np.ones(len(places), np.bool_), sizes == 1
        marked = digit  # spans of three words and more are looked up only with a digit or a joint in them
        for parts in range(1, MOST_PARTS + 1):
            if parts > 1:
                going = np.flatnonzero(near[begins[: np.searchsorted(begins, len(places) - parts + 1)] + parts - 2])
                last = begins[going] + parts - 1
                joint = attached[last - 1]
                marked = marked[going] | joint | digit[last]
                if parts > 2:
                    going, last, joint, marked = (column[marked] for column in (going, last, joint, marked))
                node = glued(node[going], size[going], hashes[last])
                size, tight = size[going] + sizes[last], tight[going] & joint
                single, begins = single[going] & (sizes[last] == 1), begins[going]
            last = begins + parts - 1
            keys = follow(np.zeros(len(node), np.uint64), node)
            for place, names, how in self._looked_up("glued", keys):
                good = (how & UPPER == 0) | _all_upper(words, places[begins[place]], places[last[place]])
                place, names = place[good], names[good]
                yield self._glued_rows(words, places, begins[place], last[place], names, single[place])
            if parts > 1:
                # "Wi-Fi" in the text for "WiFi" in the KB; "U.S." for "US" only in capitals.
                some = np.flatnonzero(tight & (size >= 2))
                some = some[self.matcher.flags(keys[some]) & NAME != 0]
                some = some[
                    (size[some] > 3) & ~single[some] | _all_upper(words, places[begins[some]], places[last[some]])
                ]
                yield self._glued_rows(words, places, begins[some], last[some], keys[some], single[some])

    def _glued_rows(
        self, words: Words, places: Offsets, begins: Offsets, last: Offsets, keys: Keys, single: NDArray[np.bool_]
    ) -> _Found:
        ends = places[last].copy()
        after = np.minimum(ends + 1, len(words.hashes) - 1)
        dotted = single & (last > begins) & (words.hashes[after] == _DOT) & (words.starts[after] == words.ends[ends])
        dotted &= words.hashes[np.minimum(places[begins] + 1, len(words.hashes) - 1)] == _DOT
        ends[dotted] += 1
        marks = np.full(len(begins), _SIGN, np.int32)
        return places[begins], ends, keys, np.full(len(begins), ALL_KINDS, np.uint8), marks

    def _readings(self, words: Words, signs: NDArray[np.bool_]) -> Iterator[_Reading]:
        """Yield other words that words of the text may stand for: (place, hash, kinds, marks).

        Each distinct word is looked up once.
        """
        if self.ways.inflected and self.senses:
            for names in self.matcher.both():
                place, hashes, kinds = names.forms.find(words.hashes)
                yield place, hashes, kinds, np.full(len(place), _FORM, np.int32)
        if self.ways.punctuation:
            for this, other in ((_AND, _AMPERSAND), (_AMPERSAND, _AND)):
                place = np.flatnonzero(words.hashes == this)
                yield place, np.full(len(place), other, np.uint64), *_plain(len(place), _SIGN)
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
            yield place, hashes[rows], *_plain(len(rows), _FORM)
        if self.ways.typos:
            which, hashes, marks = self._corrections(words, distinct, ~has_form)
            place, rows = occurring.of(which)
            yield place, hashes[rows], _plain(len(rows), 0)[0], marks[rows]

    def _known(self, hashes: Keys) -> NDArray[np.bool_]:
        return reduce(np.logical_or, (variants.words.known(hashes) for variants in self._variants))

    def _corrections(
        self, words: Words, distinct: Offsets, eligible: NDArray[np.bool_]
    ) -> tuple[Offsets, Keys, NDArray[np.int32]]:
        """(number of a distinct word, hash, marks): words of the KB for words that neither it nor English knows."""
        hashes = words.hashes[distinct]
        if self.senses:
            eligible = eligible & ~reduce(
                np.logical_or, (names.forms.table.find(hashes) != 0 for names in self.matcher.both())
            )
        unknown = np.flatnonzero(eligible & ~self._known(hashes) & ~common(hashes, at_least=_COMMON))
        texts = ((place, _text_of(words, distinct[place])) for place in unknown.tolist())
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
        which, meant, edits, sizes = (column[order] for column in (which, meant, edits, sizes))
        counts = np.bincount(which, minlength=len(distinct))
        near = np.arange(len(which)) - (np.cumsum(counts) - counts)[which] < _MOST_CORRECTIONS
        which, meant, edits, sizes = (column[near] for column in (which, meant, edits, sizes))
        marks = (edits * _EDIT + (sizes - words.sizes[distinct[which]]) * _LETTER).astype(np.int32)
        return which, meant, marks

    @staticmethod
    def _within_edits(
        words: Words, signs: NDArray[np.bool_], begins: Offsets, ends: Offsets, marks: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Return which spans have no more edits than their letters allow."""
        edits = marks & 15
        good = edits == 0
        some = np.flatnonzero(edits)
        if len(some):
            before = np.zeros(len(signs) + 1, np.int64)
            np.cumsum(np.where(signs, 0, words.sizes), out=before[1:])
            letters = before[ends[some] + 1] - before[begins[some]] + (marks[some] >> 12)
            good[some] = edits[some] <= allowed_edits(letters)
        return good


_Found = tuple[Offsets, Offsets, Keys, NDArray[np.uint8], NDArray[np.int32]]
_Reading = tuple[Offsets, Keys, NDArray[np.uint8], NDArray[np.int32]]


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
class _Readings:
    """Other words that the words of a text may stand for, in order of the place; `begins` and `counts` by place."""

    begins: Offsets
    counts: Offsets
    hashes: Keys
    kinds: NDArray[np.uint8]
    marks: NDArray[np.int32]

    @classmethod
    def of(cls, count: int, parts: Iterator[_Reading]) -> _Readings:
        empty = np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.int32)
        places, hashes, kinds, marks = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=count)
        return cls(np.cumsum(counts) - counts, counts, hashes[order], kinds[order], marks[order])

    def spread(
        self,
        hashes: Keys,
        begins: Offsets,
        at: Offsets,
        nodes: Keys,
        kinds: NDArray[np.uint8],
        marks: NDArray[np.int32],
    ) -> tuple[Offsets, Offsets, Keys, NDArray[np.uint8], NDArray[np.int32]]:
        """Every state after its word as it stands, then those after the other readings of it."""
        plain = follow(nodes, hashes[at])
        counts = self.counts[at]
        some = np.flatnonzero(counts)
        if not len(some):
            return begins, at, plain, kinds, marks
        counts = counts[some]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(self.begins[at[some]], counts) + within
        states = np.repeat(some, counts)
        total = marks[states] + self.marks[rows]
        few = np.flatnonzero(total & 15 <= _MOST_EDITS)
        states, rows, total = states[few], rows[few], total[few]
        return (
            np.append(begins, begins[states]),
            np.append(at, at[states]),
            np.append(plain, follow(nodes[states], self.hashes[rows])),
            np.append(kinds, kinds[states] & self.kinds[rows]),
            np.append(marks, total),
        )


def _passed_over(words: Words, signs: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """At which words a name may go on one word later (a sign), or two words later (the "'s" of "Alzheimer's")."""
    count = len(words.starts)
    one, two = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    places = np.flatnonzero(signs)
    places = places[(places > 0) & (places + 1 < count)]
    hashes = words.hashes[places]
    left = words.starts[places] == words.ends[places - 1]
    right = words.starts[places + 1] == words.ends[places]
    short = (words.sizes[places - 1] <= 4) & ~signs[places - 1]
    inside = left & right & np.isin(hashes, _INNER_SIGNS)
    one[places[inside | (left & short & (hashes == _DOT)) | np.isin(hashes, _MARKS)]] = True
    after = places[left & right & (hashes == _APOSTROPHE) & (words.hashes[places + 1] == _S)]
    two[after[after + 2 < count]] = True
    return one, two


@cache
def _capitals() -> NDArray[np.bool_]:
    return np.array([chr(code).isupper() for code in range(1 << 16)])


def is_capital(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return which code points are capital letters (of the first 65,536)."""
    if codes.dtype != np.uint8:
        codes = np.minimum(codes, (1 << 16) - 1)
    capital: NDArray[np.bool_] = _capitals()[codes]
    return capital


def _plain(count: int, mark: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Kinds and marks of readings that are the same for all."""
    return np.full(count, ALL_KINDS, np.uint8), np.full(count, mark, np.int32)


def _is_digit(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    digits: NDArray[np.bool_] = (codes >= ord("0")) & (codes <= ord("9"))
    return digits


def _is_blank(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    blank: NDArray[np.bool_] = (codes <= 32) | (codes == 0xA0) | (codes == ord("_"))
    return blank


def _text_of(words: Words, place: int) -> str:
    codes = words.codes[words.starts[place] : words.ends[place]]
    return codes.tobytes().decode("ascii" if codes.dtype == np.uint8 else "utf-32-le", "surrogatepass")


def _all_upper(words: Words, first: Offsets, last: Offsets) -> NDArray[np.bool_]:
    """Return which spans have no small letter."""
    if not len(first):
        return np.zeros(0, np.bool_)
    small = (words.codes >= ord("a")) & (words.codes <= ord("z"))
    before = np.zeros(len(small) + 1, np.int64)
    np.cumsum(small, out=before[1:])
    none: NDArray[np.bool_] = before[words.ends[last]] == before[words.starts[first]]
    return none
