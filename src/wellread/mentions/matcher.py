"""Matcher: finds every name of a knowledge base in a text.

The names form a trie over words whose nodes are identified by their keys alone (`text/words.py`), so it is a table of
64-bit numbers: mapped from a file beside the KB, shared between processes, opened without being read. All words of a
text are processed at once: step n looks up which spans of n words are names and which are prefixes of longer ones.

Changes since the table was compiled are laid over it (names added, names removed), so that a KB with a million
entities takes a new one in milliseconds; when they grow, both are joined without reading the old names again.

Unlike spaCy's EntityRuler and flashtext: no objects per name or token, so opening and memory do not grow with the KB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wellread.kb.store import KnowledgeBase
from wellread.mentions.compiled_names import (
    ALL_KINDS,
    INNER,
    KINDS_AT,
    LOOSE_INNER,
    LOOSE_NAME,
    NAME,
    CompiledNames,
    compile_names,
    load,
    save,
)
from wellread.text.key_table import KeyTable
from wellread.text.transliteration import transliterations
from wellread.text.words import (
    Case,
    Keys,
    Offsets,
    Words,
    follow,
    is_blank,
    next_break,
    rehashed,
    split,
    word_hash,
    words,
)

Overlaps = Literal["all", "longest"]

_BLOCK = 1 << 17
"""Characters processed at a time: blocks that fit the processor's cache are twice as fast."""

_JOIN_AFTER = 20_000
"""Changed names after which they are joined with the compiled file."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Spans of a text that are names, as columns, sorted by start, then the longer first.

    A span may have several rows with different keys: "axes" is a form of "axis", "axe" and "ax".
    """

    starts: Offsets
    ends: Offsets
    keys: Keys
    kinds: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.starts)

    def spans(self) -> list[tuple[int, int]]:
        """Return the distinct (start, end) pairs."""
        heads = self.heads()
        return list(zip(self.starts[heads].tolist(), self.ends[heads].tolist(), strict=True))

    def heads(self) -> Offsets:
        """Return the first row of each distinct span."""
        fresh = np.ones(len(self), np.bool_)
        fresh[1:] = (self.starts[1:] != self.starts[:-1]) | (self.ends[1:] != self.ends[:-1])
        return np.flatnonzero(fresh)

    def stands(self, first: int, after: int | None = None) -> tuple[tuple[int, int], ...]:
        """Return (key of a name, kinds) of rows: those of a span, from its head up to the next head."""
        return tuple(zip(self.keys[first:after].tolist(), self.kinds[first:after].tolist(), strict=True))

    def keep(self, which: NDArray[np.bool_] | Offsets) -> Matches:
        """Return the matches where a mask is True, or those at the given rows in their order."""
        return Matches(self.starts[which], self.ends[which], self.keys[which], self.kinds[which])


class Matcher:
    """All names of a KB, ready for matching; `Matcher.of(kb)` compiles, maps or updates them as needed."""

    def __init__(self, names: CompiledNames, added: CompiledNames | None = None, changed: Keys | None = None) -> None:
        self.names = names
        self.added = added
        self.changed = changed if changed is not None else np.zeros(0, np.uint64)
        """Keys that only `added` knows: the compiled names are out of date for them."""

    @classmethod
    def of(cls, kb: KnowledgeBase) -> Matcher:
        """Return the matcher of a KB at its current revision, from the file beside it if there is one."""
        path = names_path(kb)
        compiled = load(path, uid=kb.metadata["uid"])
        if compiled is None or compiled.revision > kb.revision:  # none yet, or the KB was restored from an older copy
            compiled = compile_names(kb)
            save(compiled, path)
        matcher = cls(compiled)._with_changes(kb)
        if len(matcher.changed) > _JOIN_AFTER:
            matcher = cls(matcher.joined())
            save(matcher.names, path)
        return matcher

    @property
    def revision(self) -> int:
        """Revision of the KB that this matcher has."""
        return (self.added or self.names).revision

    def refresh(self, kb: KnowledgeBase) -> Matcher:
        """Return the matcher at the KB's current revision; costs only the changes."""
        about = kb.metadata
        if about["uid"] != self.names.uid:  # rebuilt at the same path, perhaps with the same number of changes
            return Matcher.of(kb)
        if self.names.mapped is not None and self.names.mapped.overwritten():  # in place, e.g. by cp
            return Matcher.of(kb)
        if int(about["revision"]) == self.revision:
            return self
        fresh = self._with_changes(kb)
        return fresh if len(fresh.changed) <= _JOIN_AFTER else Matcher.of(kb)

    def _with_changes(self, kb: KnowledgeBase) -> Matcher:
        """Return the compiled names with all later changes laid over them."""
        revision = kb.revision
        if revision == self.names.revision:
            return Matcher(self.names)
        changed = kb.changed_names(self.names.revision)
        aliases = [(row[0], row[5]) for key in changed for row in kb.named(key)]
        added = replace(compile_names(kb, aliases), revision=revision)
        return Matcher(self.names, added, np.array(changed, np.int64).view(np.uint64))

    def joined(self) -> CompiledNames:
        """Return compiled names and later changes as one table."""
        if self.added is None:
            return self.names
        return self.names.joined_with(self.added, self.changed)

    def find(
        self,
        text: str,
        *,
        overlaps: Overlaps = "longest",
        case: Case = "folded",
        stop_words: Collection[str] = (),
        min_chars: int = 1,
        max_words: int | None = None,
    ) -> Matches:
        """Return every span of the text that is a name.

        `longest` keeps, from left to right, the longest name at each position; `all` keeps every one. Names made of
        `stop_words` only are skipped, unless capital letters indicate a name ("IT", "The Who"), and so are the "don" of
        "don't" and names shorter than `min_chars`. Inflected forms are found under the `folded` policy.
        """
        stops = hash_set(frozenset(stop_words))
        longest_name = max(names.max_words for names in self.both()) if max_words is None else max_words
        parts = []
        for offset, block, whole in blocks(text, max(longest_name, 2)):  # "don" needs its "'t"
            found = self._walk(block, case, longest_name, stops)
            found = found.keep((found.starts < whole) & (found.ends - found.starts >= min_chars))
            parts.append(replace(found, starts=found.starts + offset, ends=found.ends + offset))
        matches = _concatenated(parts)
        # Each step yields its matches in order, so a merge sort has little to do.
        longest = int((matches.ends - matches.starts).max(initial=0)) + 1
        matches = matches.keep(np.argsort(matches.starts * longest + (matches.starts - matches.ends), kind="stable"))
        return matches.keep(_leftmost_longest(matches)) if overlaps == "longest" else matches

    def _walk(self, text: str, case: Case, max_words: int, stops: KeyTable | None) -> Matches:
        words = split(text)
        count = len(words.starts)
        options = self._options(words) if case == "folded" else None
        begins = np.arange(count)
        nodes = np.zeros(count, np.uint64)
        kinds = np.full(count, ALL_KINDS, np.uint8)
        found: list[tuple[Offsets, Offsets, Keys, NDArray[np.uint8]]] = []
        for length in range(1, max_words + 1):
            last = begins + (length - 1)
            if options is None:
                hashes = words.hashes[last]
            else:
                begins, nodes, kinds, hashes = options.spread(last, begins, nodes, kinds)
            nodes = follow(nodes, hashes)
            flags = self.flags(nodes)
            # A form must lead to a name of an entity of its kind: "has" is not a plural of the verb "ha".
            fits = (kinds == ALL_KINDS) | (flags >> KINDS_AT & kinds != 0)
            named = np.flatnonzero((flags & NAME != 0) & fits)
            found.append((begins[named], begins[named] + (length - 1), nodes[named], kinds[named]))
            alive = np.flatnonzero((flags & INNER != 0) & (begins + length < count) & (kinds != 0))
            begins, nodes, kinds = begins[alive], nodes[alive], kinds[alive]
            if not len(alive):
                break
        first, final, keys, masks = (
            (np.concatenate(column) for column in zip(*found, strict=True)) if found else _NOTHING
        )
        there = self.not_all_stops(words, first, final, stops)
        if case != "folded":
            there &= self.known_as(rehashed(words, case).hashes, case, first, final, keys)
        matches = Matches(words.starts[first], words.ends[final], keys, masks)
        return matches.keep(there)

    def both(self) -> Iterator[CompiledNames]:
        """Yield the compiled names, then those added since."""
        yield self.names
        if self.added is not None:
            yield self.added

    def _options(self, words: Words) -> _Options | None:
        found = [names.forms.find(words.hashes) for names in self.both() if len(names.forms)]
        place, hashes = transliterations(words)
        if len(place):
            found.append((place, hashes, np.full(len(place), ALL_KINDS, np.uint8)))
        return _Options.of(words.hashes, found) if found else None

    def flags(self, nodes: Keys) -> NDArray[np.uint8]:
        """Return the flags of each node: NAME, INNER, kinds, LOOSE_NAME, LOOSE_INNER; 0 for unknown nodes."""
        flags = self.names.nodes.find(nodes).astype(np.uint8, copy=False)
        if self.added is not None:
            flags[np.isin(nodes, self.changed)] &= np.uint8(INNER | LOOSE_NAME | LOOSE_INNER)
            flags |= self.added.nodes.find(nodes).astype(np.uint8, copy=False)
        return flags

    @staticmethod
    def not_all_stops(words: Words, first: Offsets, final: Offsets, stops: KeyTable | None) -> NDArray[np.bool_]:
        """Return which spans, by first and last word, have other words than stop words."""
        if stops is None or not len(first):
            return np.ones(len(first), np.bool_)
        is_stop = stops.find(words.hashes) != 0
        longer = np.flatnonzero(is_stop & (words.ends - words.starts > 1))
        second = words.codes[words.starts[longer] + 1]
        is_stop[longer[(second >= ord("A")) & (second <= ord("Z"))]] = False
        is_stop |= _negated(words)
        before = np.zeros(len(is_stop) + 1, np.int64)
        np.cumsum(is_stop, out=before[1:])
        there: NDArray[np.bool_] = before[final + 1] - before[first] < final + 1 - first
        # "The Who" is a name if its last word is written with a capital letter, "the who" is not.
        begin = words.codes[words.starts[final]]
        there |= (first < final) & (begin >= ord("A")) & (begin <= ord("Z"))
        return there

    def known_as(self, hashes: Keys, case: Case, first: Offsets, final: Offsets, keys: Keys) -> NDArray[np.bool_]:
        """Return which spans are names letter for letter (`exact`) or but for the case of first letters (`title`)."""
        nodes = np.zeros(len(first), np.uint64)
        longest = int((final - first).max()) + 1 if len(first) else 0
        for place in range(longest):
            going = np.flatnonzero(first + place <= final)
            nodes[going] = follow(nodes[going], hashes[first[going] + place])
        known: NDArray[np.bool_] = self.names.spelled[case].find(nodes) == keys
        if self.added is not None:
            known &= ~np.isin(keys, self.changed)
            known |= self.added.spelled[case].find(nodes) == keys
        return known


@dataclass(frozen=True, slots=True)
class _Options:
    """For each word of a text the words it may stand for: itself, words that it is a form of, other spellings."""

    begins: Offsets
    counts: Offsets
    hashes: Keys
    kinds: NDArray[np.uint8]

    @classmethod
    def of(cls, hashes: Keys, found: list[tuple[Offsets, Keys, NDArray[np.uint8]]]) -> _Options:
        places = [np.arange(len(hashes))]
        words = [hashes]
        kinds = [np.full(len(hashes), ALL_KINDS, np.uint8)]
        for place, word, kind in found:
            places.append(place)
            words.append(word)
            kinds.append(kind)
        order = np.argsort(np.concatenate(places), kind="stable")
        counts = np.bincount(np.concatenate(places), minlength=len(hashes))
        return cls(np.cumsum(counts) - counts, counts, np.concatenate(words)[order], np.concatenate(kinds)[order])

    def spread(
        self, at: Offsets, begins: Offsets, nodes: Keys, kinds: NDArray[np.uint8]
    ) -> tuple[Offsets, Keys, NDArray[np.uint8], Keys]:
        """Return every state once for each option of its next word; incompatible kinds leave none."""
        counts = self.counts[at]
        total = int(counts.sum())
        if total == len(at):
            places = self.begins[at]
            return begins, nodes, kinds & self.kinds[places], self.hashes[places]
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(self.begins[at], counts) + within
        return (
            np.repeat(begins, counts),
            np.repeat(nodes, counts),
            np.repeat(kinds, counts) & self.kinds[places],
            self.hashes[places],
        )


def _negated(words: Words) -> NDArray[np.bool_]:
    """Return which words precede "'t": the "don" of "don't" is an auxiliary, whatever its letters may name."""
    negated = np.zeros(len(words.hashes), np.bool_)
    at = np.flatnonzero(words.hashes[2:] == _T)
    at = at[words.hashes[at + 1] == _APOSTROPHE]
    negated[at[(words.ends[at] == words.starts[at + 1]) & (words.ends[at + 1] == words.starts[at + 2])]] = True
    return negated


_T, _APOSTROPHE = np.uint64(word_hash("t")), np.uint64(word_hash("'"))

_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint8))


def names_path(kb: KnowledgeBase) -> Path:
    """Return the path of the compiled names of a KB: beside it."""
    return kb.path.with_name(kb.path.name + ".names")


def blocks(text: str, max_words: int) -> Iterator[tuple[int, str, int]]:
    """Yield (offset, block, characters whose names begin here); blocks end between words and overlap the next."""
    begin = 0
    while begin < len(text):
        end = next_break(text, begin + _BLOCK)
        reach = end
        for _ in range(max_words):
            while reach < len(text) and is_blank(text[reach]):
                reach += 1
            reach = next_break(text, reach + 1)
        yield begin, text[begin:reach], end - begin
        begin = end


@lru_cache(16)
def hash_set(entries: frozenset[str]) -> KeyTable | None:
    """Return the hashes of words as a table; None for no words."""
    if not entries:
        return None
    hashes = np.unique(np.array([word_hash(word) for entry in entries for word in words(entry)], np.uint64))
    return KeyTable.build(hashes, np.ones(len(hashes), np.uint8))


def _concatenated(parts: list[Matches]) -> Matches:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Matches(*_NOTHING)
    columns = ("starts", "ends", "keys", "kinds")
    return Matches(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))


def _leftmost_longest(matches: Matches) -> NDArray[np.bool_]:
    """Return the longest match at each position from left to right; only overlapping names need a decision."""
    heads = np.flatnonzero(np.diff(matches.starts, prepend=-1))  # the longest of each start comes first
    ends = matches.ends[heads]
    following = np.searchsorted(matches.starts[heads], ends)
    covering = np.flatnonzero(following > np.arange(1, len(heads) + 1))
    free = 0
    for place, after in zip(covering.tolist(), following[covering].tolist(), strict=True):
        if place >= free:
            ends[place + 1 : after] = -1
            free = after
    kept: NDArray[np.bool_] = matches.ends == np.repeat(ends, np.diff(np.append(heads, len(matches))))
    return kept
