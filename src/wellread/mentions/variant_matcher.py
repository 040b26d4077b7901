"""Match a text with the names of a knowledge base, with all variants of each word.

As in `matcher`, all words are processed at once, one word per step. Besides the word itself a step may take a word that
it is a form of, or a misspelling of; punctuation between two words may be skipped. The variants used add up in one
number per state (`EDIT`, `FORM`, `SIGN`). Names with words in another order are looked up separately (`word_order`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wellread.mentions.compiled_names import ALL_KINDS, INNER, KINDS_AT, LOOSE_INNER, LOOSE_NAME, NAME
from wellread.mentions.matcher import Matcher
from wellread.mentions.name_variants import CAPITAL, MOST_PARTS, UPPER, are_signs
from wellread.mentions.typos import allowed_edits
from wellread.mentions.word_order import StemSums
from wellread.mentions.word_variants import SIGN, States, Ways, WordVariantFinder
from wellread.text.characters import all_upper, is_blank, is_capital, is_digit
from wellread.text.frequency import common
from wellread.text.key_table import KeyFilter, KeyTable, is_among
from wellread.text.words import Keys, Offsets, Words, follow, glued, rehashed, split, walk, word_hash

WAYS = ("exact", "case", "inflected", "punctuation", "abbreviation", "short name", "word order", "typo")
EXACT, CASE, INFLECTED, PUNCTUATION, ABBREVIATION, SHORT_NAME, WORD_ORDER, TYPO = range(len(WAYS))

_MOST_SIGNS = 7
_APOSTROPHE, _S, _DOT = (np.uint64(word_hash(word)) for word in ("'", "s", "."))
_INNER_SIGNS = np.array(sorted(word_hash(sign) for sign in ".'!/&-–·*:"), np.uint64)
_MARKS = np.array(sorted(word_hash(sign) for sign in "®™-*"), np.uint64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Spans of a block by first and last word, the keys of their names, and how they were found."""

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


class Walker:
    """Finds spans of a text that are names or variants of names, with one matcher."""

    def __init__(self, matcher: Matcher, ways: Ways, stops: KeyTable | None, *, senses: bool) -> None:
        self.matcher, self.ways, self.stops = matcher, ways, stops
        self._reader = WordVariantFinder(matcher, ways, stops, senses=senses)
        self._variants = [names.variants for names in matcher.both()]
        self._glued_filter, self._stem_filter = (
            KeyFilter.build(np.concatenate([getattr(variants, name).table.keys for variants in self._variants]))
            for name in ("glued", "stems")
        )

    def walk(self, text: str) -> tuple[Rows, Words, Keys]:
        """Return the rows of a text, its words, and their hashes under the `exact` policy."""
        words = split(text)
        exact = rehashed(words, "exact").hashes
        signs = are_signs(words)
        parts = list(self._steps(words, signs))
        if self.ways.punctuation:
            parts += self._glued(words, signs)
        columns = ((part.begins, part.at, part.nodes, part.kinds, part.marks) for part in parts)
        found = States(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        there = self.matcher.not_all_stops(words, found.begins, found.at, self.stops)
        found = found.take(there & _within_edits(words, signs, found))
        ways = np.full(len(found.begins), CASE, np.uint8)
        plain = np.flatnonzero(found.marks == 0)
        known = self.matcher.known_as(exact, "exact", found.begins[plain], found.at[plain], found.nodes[plain])
        ways[plain[known]] = EXACT
        ways[found.marks >> 4 & 15 > 0] = INFLECTED
        ways[found.marks >> 8 & 15 > 0] = PUNCTUATION
        edits = (found.marks & 15).astype(np.uint8)
        ways[edits > 0] = TYPO
        starts, ends = words.starts[found.begins], words.ends[found.at]
        rows = Rows(starts, ends, found.nodes, found.kinds, ways, edits)
        if self.ways.word_order:
            rows = Rows.concatenated([rows, *self._reordered(words)])
        return rows, words, exact

    def _steps(self, words: Words, signs: NDArray[np.bool_]) -> Iterator[States]:
        """Yield the names of one word, of two words, and so on."""
        count = len(words.starts)
        readings, together = self._reader.read(words, signs)
        yield together
        passed = _passed_over(words, signs) if self.ways.punctuation else ()
        inner = INNER | LOOSE_INNER if self.ways.punctuation else INNER
        every: Offsets = np.arange(count)
        nothing = np.zeros(count, np.uint64), np.full(count, ALL_KINDS, np.uint8), np.zeros(count, np.int32)
        states = States(every, every, *nothing)
        while True:
            states = readings.spread(words.hashes, states)
            flags = self.matcher.flags(states.nodes)
            fits = (states.kinds == ALL_KINDS) | (flags >> KINDS_AT & states.kinds != 0)
            yield states.take(np.flatnonzero((flags & NAME != 0) & fits))
            if self.ways.punctuation:
                loose = np.flatnonzero((flags & LOOSE_NAME != 0) & (states.kinds == ALL_KINDS))
                yield from self._loose(words, states.take(loose))
            alive = np.flatnonzero((flags & inner != 0) & (states.at + 1 < count) & (states.kinds != 0))
            if not len(alive):
                return
            states = states.take(alive)
            states = _jumped(replace(states, at=states.at + 1), passed)

    def _loose(self, words: Words, states: States) -> Iterator[States]:
        """Yield names whose own punctuation is missing in the text."""
        for place, keys, how in self._looked_up("loose", states.nodes):
            # The common word "panic" does not mean "Panic!".
            capital = is_capital(words.codes[words.starts[states.begins[place]]])
            plain = (how & CAPITAL == 0) & (
                (states.begins[place] < states.at[place]) | ~common(words.hashes[states.begins[place]])
            )
            good = np.flatnonzero(plain | capital)
            found = states.take(place[good])
            yield replace(found, nodes=keys[good], marks=found.marks + SIGN)

    def _looked_up(self, table: str, keys: Keys) -> Iterator[tuple[Offsets, Keys, NDArray[np.uint8]]]:
        if not len(keys):
            return
        for number, variants in enumerate(self._variants):
            place, names, how = getattr(variants, table).find(keys)
            if number == 0 and len(self.matcher.changed):
                there = ~np.isin(names, self.matcher.changed)
                place, names, how = place[there], names[there], how[there]
            if len(place):
                yield place, names, how

    def _glued(self, words: Words, signs: NDArray[np.bool_]) -> Iterator[States]:
        """Yield names that the text, or the KB, writes as one word."""
        places = np.flatnonzero(~signs)  # consecutive words, except for the signs between them
        if not len(places):
            return
        starts, ends = words.starts[places], words.ends[places]
        hashes, sizes = words.hashes[places], words.sizes[places]
        gap = starts[1:] - ends[:-1]
        attached = (gap == 1) & ~is_blank(words.codes[np.minimum(ends[:-1], len(words.codes) - 1)])
        attached |= gap == 0
        near = attached | (np.diff(places) == 1)  # no sign between, or one without blanks
        digit = is_digit(words.codes[starts]) | is_digit(words.codes[ends - 1])
        solid = digit | (sizes >= 3)
        possessive = np.append(words.hashes[places[:-1] + 1] == _APOSTROPHE, False)[: len(places) - 1]
        possessive &= hashes[1:] == _S
        begins = np.arange(len(places))
        node, size, tight, single = hashes, sizes, np.ones(len(places), np.bool_), sizes == 1
        numeral = digit
        marked = digit  # spans of three words and more are looked up only with a digit or a joint in them
        for parts in range(1, MOST_PARTS + 1):
            if parts > 1:
                going = np.flatnonzero(near[begins[: np.searchsorted(begins, len(places) - parts + 1)] + parts - 2])
                last = begins[going] + parts - 1
                joint = attached[last - 1]
                # "a dam" is not "A'dam": words separated by a blank must not be function words only.
                fit = np.flatnonzero(joint | (solid[last] & solid[last - 1]))
                going, last, joint = going[fit], last[fit], joint[fit]
                marked = marked[going] | joint | digit[last]
                if parts > 2:
                    going, last, joint, marked = (column[marked] for column in (going, last, joint, marked))
                node = glued(node[going], size[going], hashes[last])
                size, tight = size[going] + sizes[last], tight[going] & joint
                numeral = numeral[going] & digit[last]
                single, begins = single[going] & (sizes[last] == 1), begins[going]
            last = begins + parts - 1
            keys = follow(np.zeros(len(node), np.uint64), node)
            maybe = self._glued_filter.passing(keys)
            for place, names, how in self._looked_up("glued", keys[maybe]):
                place = maybe[place]
                good = (how & UPPER == 0) | all_upper(words, places[begins[place]], places[last[place]])
                place, names = place[good], names[good]
                yield self._glued_rows(words, places, begins[place], last[place], names, single[place])
            if parts > 1:
                # "Wi-Fi" in the text for "WiFi" in the KB; "U.S." for "US" only in capitals.
                some = np.flatnonzero(tight & (size >= 2) & ~numeral)
                if not len(some):
                    continue
                some = some[self.matcher.flags(keys[some]) & NAME != 0]
                # "McDonald's" for "McDonalds", but not "goat's" for "goats" where "goat" is a name.
                owned = np.flatnonzero(possessive[last[some] - 1])
                alone = self.matcher.flags(follow(np.zeros(len(owned), np.uint64), hashes[last[some[owned]] - 1]))
                some = np.delete(some, owned[alone & NAME != 0])
                some = some[
                    (size[some] > 3) & ~single[some] | all_upper(words, places[begins[some]], places[last[some]])
                ]
                yield self._glued_rows(words, places, begins[some], last[some], keys[some], single[some])

    def _reordered(self, words: Words) -> Iterator[Rows]:
        """Yield names whose words stand in another order or form."""
        for width, (first, last, keys) in enumerate(StemSums(words).spans(self._stem_filter.passing), 1):
            if not len(keys):
                continue
            in_order, _ = walk(words.hashes, first, np.full(len(first), width))
            for place, names, _ in self._looked_up("stems", keys):
                new = np.flatnonzero(names != in_order[place])  # others are found as written
                place, names = place[new], names[new]
                there = self.matcher.not_all_stops(words, first[place], last[place], self.stops)
                # "hypotonic" for "Hypotonia", but not "Theodore" for "Theodora".
                there &= (first[place] < last[place]) | ~is_capital(words.codes[words.starts[first[place]]])
                place, names = place[there], names[there]
                small = np.zeros(len(place), np.uint8)
                yield Rows(
                    words.starts[first[place]],
                    words.ends[last[place]],
                    names,
                    np.full(len(place), ALL_KINDS, np.uint8),
                    np.full(len(place), WORD_ORDER, np.uint8),
                    small,
                )

    def _glued_rows(
        self, words: Words, places: Offsets, begins: Offsets, last: Offsets, keys: Keys, single: NDArray[np.bool_]
    ) -> States:
        ends = places[last]
        after = np.minimum(ends + 1, len(words.hashes) - 1)
        dotted = single & (last > begins) & (words.hashes[after] == _DOT) & (words.starts[after] == words.ends[ends])
        dotted &= words.hashes[np.minimum(places[begins] + 1, len(words.hashes) - 1)] == _DOT
        kinds, marks = np.full(len(begins), ALL_KINDS, np.uint8), np.full(len(begins), SIGN, np.int32)
        return States(places[begins], np.where(dotted, after, ends), keys, kinds, marks)


def _within_edits(words: Words, signs: NDArray[np.bool_], found: States) -> NDArray[np.bool_]:
    """Return which spans have no more edits than the letters of the name allow."""
    edits = found.marks & 15
    good: NDArray[np.bool_] = edits == 0
    some = np.flatnonzero(edits)
    if len(some):
        before = np.zeros(len(signs) + 1, np.int64)
        np.cumsum(np.where(signs, 0, words.sizes), out=before[1:])
        letters = before[found.at[some] + 1] - before[found.begins[some]] + (found.marks[some] >> 12)
        good[some] = edits[some] <= allowed_edits(letters)
    return good


def _jumped(states: States, passed: tuple[NDArray[np.bool_], ...]) -> States:
    """Return the states, and copies of those at punctuation with the punctuation skipped."""
    over = [np.flatnonzero(some[states.at]) for some in passed]
    if not any(map(len, over)):
        return states
    parts = [states]
    for length, some in enumerate(over, 1):
        jumping = states.take(some[states.marks[some] >> 8 & 15 < _MOST_SIGNS])
        parts.append(replace(jumping, at=jumping.at + length, marks=jumping.marks + SIGN))
    columns = ((part.begins, part.at, part.nodes, part.kinds, part.marks) for part in parts)
    return States(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _passed_over(words: Words, signs: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return after which words a name may skip one word (a sign), or two (the "'s" of "Alzheimer's")."""
    count = len(words.starts)
    one, two = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    places = np.flatnonzero(signs)
    places = places[(places > 0) & (places + 1 < count)]
    if not len(places):
        return one, two
    hashes = words.hashes[places]
    left = words.starts[places] == words.ends[places - 1]
    right = words.starts[places + 1] == words.ends[places]
    short = (words.sizes[places - 1] <= 4) & ~signs[places - 1]
    inside = left & right & is_among(hashes, _INNER_SIGNS)
    one[places[inside | (left & short & (hashes == _DOT)) | is_among(hashes, _MARKS)]] = True
    after = places[left & right & (hashes == _APOSTROPHE) & (words.hashes[places + 1] == _S)]
    two[after[after + 2 < count]] = True
    return one, two
