"""Matcher for short texts: finds the same names as `Matcher.find`, word by word in plain Python.

Array operations cost microseconds each, however little they process, so that a sentence costs as much as a page. Here
the cost is proportional to the words, most of which are known not to begin a name from an earlier text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wellread.mentions.compiled_names import ALL_KINDS, INNER, KINDS_AT, LOOSE_INNER, LOOSE_NAME, NAME
from wellread.mentions.matcher import Matcher, Overlaps
from wellread.text.key_table import KeyLookup, KeyTable
from wellread.text.transliteration import transliterated
from wellread.text.words import longer, word_hash, word_spans

SHORT = 1_000
"""Number of characters up to which a text is matched faster here than with arrays."""

_MOST_WORDS = 1 << 14
"""Maximum number of cached words."""

_T, _APOSTROPHE = word_hash("t"), word_hash("'")

Match = tuple[int, int, tuple[tuple[int, int], ...]]
"""Start and end of a span, and (key of a name, kinds) for each name that it may stand for, as `Matches.stands`."""

_State = tuple[int, int, int]
"""Node of a name or of a prefix of names, kinds of the forms in it, and flags of the node."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A word by its spelling: the words it may stand for (hash, kinds), and the names and prefixes it begins."""

    hash: int
    options: tuple[tuple[int, int], ...]
    states: tuple[_State, ...]
    is_stop: bool
    is_capital: bool


class ShortTextMatcher:
    """Finds the names of a matcher in short texts, case folded."""

    def __init__(self, matcher: Matcher, stops: KeyTable | None) -> None:
        self.matcher = matcher
        self._stops = None if stops is None else KeyLookup(stops)
        self._names = KeyLookup(matcher.names.nodes)
        self._added = None if matcher.added is None else KeyLookup(matcher.added.nodes)
        self._changed = frozenset(matcher.changed.tolist())
        forms = [names.forms for names in matcher.both() if len(names.forms)]
        self._forms = [(KeyLookup(table.table), table) for table in forms]
        self._max_words = max(names.max_words for names in matcher.both())
        self._words: dict[str, _Word] = {}

    def find(
        self, text: str, *, overlaps: Overlaps = "longest", min_chars: int = 1, max_words: int | None = None
    ) -> list[Match]:
        """Return every span of the text that is a name, by start, then the longer first; options as `Matcher.find`."""
        spans = word_spans(text)
        known = self._words
        words = [known.get(text[start:end]) or self._word(text[start:end]) for start, end in spans]
        most = self._max_words if max_words is None else max_words
        stops: list[bool] | None = None
        found: list[Match] = []
        free = 0
        for first, word in enumerate(words):
            if not word.states or most < 1:
                continue
            start = spans[first][0]
            if start < free:
                continue
            names: list[Match] = []
            states: Sequence[_State] = word.states
            last = first
            while True:
                stands = [
                    (node, kinds)
                    for node, kinds, flags in states
                    if flags & NAME and (kinds == ALL_KINDS or flags >> KINDS_AT & kinds)
                ]
                end = spans[last][1]
                if stands and end - start >= min_chars:
                    if stops is None:
                        stops = self._stop_mask(words, spans)
                    if not all(stops[first : last + 1]) or (first < last and words[last].is_capital):
                        names.append((start, end, tuple(stands)))
                last += 1
                if last == len(words) or last - first >= most:
                    break
                states = self._next(states, words[last])
                if not states:
                    break
            if names and overlaps == "longest":
                found.append(names[-1])
                free = names[-1][1]
            else:
                found += names[::-1]
        return found

    def _next(self, states: Sequence[_State], word: _Word) -> list[_State]:
        """Return the names and prefixes that are one word longer."""
        found = []
        for node, kinds, flags in states:
            if flags & INNER:
                for hash, option in word.options:
                    if both := kinds & option:
                        key = longer(node, hash)
                        if there := self._flags(key):
                            found.append((key, both, there))
        return found

    def _flags(self, node: int) -> int:
        """Return the flags of a node, as `Matcher.flags`."""
        flags = self._names.find(node)
        if self._added is not None:
            if node in self._changed:
                flags &= INNER | LOOSE_NAME | LOOSE_INNER
            flags |= self._added.find(node)
        return flags

    def _stop_mask(self, words: Sequence[_Word], spans: Sequence[tuple[int, int]]) -> list[bool]:
        """Return which words are stop words, or the "don" of "don't"."""
        stops = [word.is_stop for word in words]
        if self._stops is not None:
            for place in range(len(words) - 2):
                if words[place + 2].hash == _T and words[place + 1].hash == _APOSTROPHE:
                    stops[place] |= (
                        spans[place][1] == spans[place + 1][0] and spans[place + 1][1] == spans[place + 2][0]
                    )
        return stops

    def _word(self, text: str) -> _Word:
        """Look a word up, and cache it."""
        hash = word_hash(text)
        options = [(hash, ALL_KINDS)]
        for known, forms in self._forms:
            if known.find(hash):
                _, words, kinds = forms.find(np.array([hash], np.uint64))
                options += zip(words.tolist(), kinds.tolist(), strict=True)
        if not text.isascii() and (spelled := word_hash(transliterated(text))) != hash:
            options.append((spelled, ALL_KINDS))
        states = self._next([(0, ALL_KINDS, INNER)], _Word(hash, tuple(options), (), False, False))
        is_stop = self._stops is not None and self._stops.find(hash) != 0 and not "A" <= text[1:2] <= "Z"
        found = _Word(hash, tuple(options), tuple(states), is_stop, "A" <= text[0] <= "Z")
        if len(self._words) >= _MOST_WORDS:
            self._words.clear()
        self._words[text] = found
        return found
