"""The matcher's answer, found the slow way: every run of up to ten words is held against a dict of names.

Word forms are read as morphy reads them, from the form to the word: exception list first, else endings are detached and
the rest must be a word of a name of that part of speech.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from wellread.kb.store import KnowledgeBase
from wellread.mentions.compiled_names import ALL_KINDS, KIND_BITS
from wellread.mentions.matcher import Matcher, Matches
from wellread.text import words as names
from wellread.text.inflection import DETACH
from wellread.text.stopwords import AUXILIARIES, FUNCTION_WORDS

_MOST_WORDS = 10

Match = tuple[int, int, int, int]
"""start, end, key, kinds"""


def assert_same_spans(kb: KnowledgeBase, with_forms: Matcher, without: Matcher, text: str) -> int:
    """Both matchers, all and longest, against the slow way; returns how many matches were compared."""
    slow = _Brute(kb)
    count = 0
    for matcher, inflected in ((without, False), (with_forms, True)):
        found = slow.find(text, inflected)
        _assert_equal(_as_set(matcher.find(text, overlaps="all", max_words=_MOST_WORDS)), set(found), text)
        longest = _leftmost_longest(found)
        _assert_equal(_as_set(matcher.find(text, max_words=_MOST_WORDS)), longest, text)
        count += len(found) + len(longest)
    return count


class _Brute:
    def __init__(self, kb: KnowledgeBase) -> None:
        self.names: dict[tuple[str, ...], int] = {}
        self.kinds: dict[tuple[str, ...], int] = defaultdict(int)
        self.words: set[tuple[str, str]] = set()
        for name, kind in kb.connection.execute("SELECT name, kind FROM aliases JOIN entities ON num = entity"):
            folded = _folded(name)
            self.names[folded] = names.key(name)
            self.kinds[folded] |= KIND_BITS.get(kind, 0)
            self.words.update((word, kind) for word in folded)
        self.exceptions: dict[tuple[str, str], list[str]] = defaultdict(list)
        for form in kb.forms():
            self.exceptions[form.form, form.kind].append(form.word)

    def find(self, text: str, inflected: bool) -> list[Match]:
        spans, at = [], 0
        for word in names.words(text):
            at = text.index(word, at)
            spans.append((at, at := at + len(word)))
        readings = [self._readings(_fold(text[start:end]), inflected) for start, end in spans]
        found = []
        for first in range(len(spans)):
            for last in range(first, min(first + _MOST_WORDS, len(spans))):
                for reading in product(*(one.items() for one in readings[first : last + 1])):
                    name = tuple(word for word, _ in reading)
                    key = self.names.get(name)
                    kinds = ALL_KINDS
                    for _, allowed in reading:
                        kinds &= allowed
                    if key is not None and (kinds == ALL_KINDS or kinds & self.kinds[name]):
                        found.append((spans[first][0], spans[last][1], key, kinds))
        return found

    def _readings(self, word: str, inflected: bool) -> dict[str, int]:
        """The words that a word of the text may stand for, each with the parts of speech it may be."""
        found = {word: ALL_KINDS}
        for kind in KIND_BITS if inflected else ():
            for base in self._morphy(word, kind):
                if base != word and (base, kind) in self.words:
                    found[base] = found.get(base, 0) | KIND_BITS[kind]
        return found

    def _morphy(self, word: str, kind: str) -> list[str]:
        if (word, kind) in self.exceptions:
            return self.exceptions[word, kind]
        if word in FUNCTION_WORDS or word in AUXILIARIES or (kind == "n" and (len(word) <= 2 or word.endswith("ss"))):
            return []
        return [
            word.removesuffix(ending) + rest
            for ending, rest in DETACH[kind]
            if word.endswith(ending) and len(word) > len(ending)
        ]


def _fold(word: str) -> str:
    return "".join(map(names.fold, word))


def _folded(name: str) -> tuple[str, ...]:
    return tuple(_fold(word) for word in names.words(name))


def _as_set(found: Matches) -> set[Match]:
    columns = (found.starts, found.ends, found.keys, found.kinds)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def _leftmost_longest(found: list[Match]) -> set[Match]:
    kept, free = set(), 0
    for start, end in sorted({match[:2] for match in found}, key=lambda span: (span[0], -span[1])):
        if start >= free:
            kept.add((start, end))
            free = end
    return {match for match in found if match[:2] in kept}


def _assert_equal(ours: set[Match], slow: set[Match], text: str) -> None:
    for match in sorted(ours ^ slow)[:1]:
        side = "only the matcher has" if match in ours else "the matcher has not"
        start, end, key, kinds = match
        raise AssertionError(f"{side} {text[start:end]!r} at {start} (key {key}, kinds {kinds})")
