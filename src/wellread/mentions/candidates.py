"""Mentions of a text with candidates and priors, as KnowBERT needs them (papers/knowbert: Candidates).

Spans that the matcher finds are looked up by key. A word form keeps the part of speech of its rule: "ran" has the
verb's senses of "run", not the noun's. In tagged text, the tag decides.

    finder.mentions(text)      objects, for single texts
    finder.find(texts)         arrays over all texts, for many
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wellread.document import Candidate, Mention
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase
from wellread.mentions.candidate_lists import NONE, CandidateLists
from wellread.mentions.matcher import Matcher, Matches, Overlaps, hash_set
from wellread.mentions.short_texts import SHORT, ShortTextMatcher
from wellread.text.stopwords import FUNCTION_WORDS, STOP_WORDS
from wellread.text.transliteration import transliterated
from wellread.text.words import Case, Offsets, as_signed, key, split

FENCE = "\n\uffff"
"""Separator that no name crosses, between short texts that are matched as one. The blank before it keeps it from being
joined to a text that ends in a joiner."""

_TOGETHER = 1 << 18

_WORD = re.compile(r"['’]?[^\W_]+")
"""A word, or the part after its apostrophe."""

_MOST_NAMES = 1 << 14
"""Names whose spelling is kept: a corpus repeats fewer, and more would grow for a million texts."""
_MOST_MET = 1 << 18
"""Maximum different spans whose candidates are cached; then the cache is emptied."""

Tags = Mapping[tuple[int, int], str]
"""(start, end) of a word -> its kind, e.g. {(4, 8): "v"}."""

_NO_TAGS: Tags = {}


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """Options of the search for mentions; `None` means the default for the KB."""

    overlaps: Overlaps = "longest"
    case: Case = "folded"
    stop_words: Collection[str] | None = None
    """None: function words for WordNet (whose "be" has senses), and auxiliaries for other KBs."""
    min_chars: int = 2
    max_words: int | None = None
    limit: int = MOST_CANDIDATES
    edge_words: tuple[str, ...] = ()
    """Words, in this case, that no mention begins or ends with, such as "'s"."""


@dataclass(frozen=True, slots=True)
class Found:
    """Mentions of several texts: those of text n are the rows from `offsets[n]` up to `offsets[n + 1]`.

    They are sorted by start; of those with the same start the longer comes first.
    """

    offsets: Offsets
    starts: Offsets
    ends: Offsets
    """Characters of the mention's own text."""
    numbers: Offsets
    """Number of the candidate list in `lists`."""
    lists: CandidateLists

    def __len__(self) -> int:
        return len(self.starts)


class CandidateFinder:
    """Finds the mentions of texts with their candidates; follows changes of its KB."""

    def __init__(self, kb: KnowledgeBase, reading: MatchOptions | None = None) -> None:
        self.kb = kb
        self.reading = reading or MatchOptions()
        self.matcher = Matcher.of(kb)
        usual = FUNCTION_WORDS if has_senses(kb) else STOP_WORDS
        self.stop_words = usual if self.reading.stop_words is None else frozenset(self.reading.stop_words)
        self._edge_words = frozenset(self.reading.edge_words)
        self._remembered = ("", -1), self._new_lists()
        self._spelled: tuple[Matcher, Callable[[str], str]] = self.matcher, lru_cache(_MOST_NAMES)(self._find_spelling)
        self._short: ShortTextMatcher | None = None

    def mentions(self, text: str, *, tags: Tags | None = None) -> list[Mention]:
        """Return the mentions of one text in order of their start, each with its candidates best first."""
        return next(iter(self.mentions_of_many([text], tags=[tags or {}])))

    def mentions_of_many(
        self, texts: Sequence[str], *, tags: Sequence[Tags] | None = None, overlaps: Overlaps | None = None
    ) -> Iterator[list[Mention]]:
        """Return the mentions of each text; short texts are matched together. `overlaps` overrides the options."""
        for begin, end in groups_of(texts):
            tags_of = tags[begin:end] if tags else [_NO_TAGS] * (end - begin)
            with self._state() as (matcher, lists):
                if self.reading.case == "folded" and sum(map(len, texts[begin:end])) <= SHORT:
                    found = [
                        self._of_short(matcher, lists, text, some, overlaps)
                        for text, some in zip(texts[begin:end], tags_of, strict=True)
                    ]
                else:
                    part = self._read(matcher, lists, texts[begin:end], overlaps)
                    found = [
                        part.mentions(place, texts[begin + place], some, lists) for place, some in enumerate(tags_of)
                    ]
            yield from found

    def find(self, texts: Sequence[str], *, tell: Callable[[int], object] | None = None) -> Found:
        """Return the mentions of all texts, at one state of the KB, as arrays.

        `tell` is called now and then with the number of texts done.
        """
        parts, offsets, count = [], [np.zeros(1, np.int64)], 0
        with self._state() as (matcher, lists):
            for begin, end in groups_of(texts):
                part = self._read(matcher, lists, texts[begin:end])
                offsets.append(part.borders[1:] + count)
                count += len(part.heads)
                parts.append(part.columns())
                if tell is not None:
                    tell(end)
        starts, ends, numbers = (
            (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else [np.zeros(0, np.int64)] * 3
        )
        return Found(np.concatenate(offsets), starts, ends, numbers, lists)

    def candidates(self, name: str) -> list[Candidate]:
        """Return the candidates of a name found by other means (a tagger, a label)."""
        found = self.kb.candidates(name, case=self.reading.case, limit=self.reading.limit)
        if not found and self.reading.case == "folded" and (other := transliterated(name)) != name:
            return self.kb.candidates(other, limit=self.reading.limit)
        return found

    def meanings(self, text: str, kind: str | None = None) -> tuple[Candidate, ...]:
        """Return the candidates of a whole text as if found in another, so also of word forms, of one kind if given."""
        words = split(text)
        if not len(words.starts):
            return ()
        start, end = int(words.starts[0]), int(words.ends[-1])
        with self._state() as (matcher, lists):
            found = matcher.find(text, overlaps="all", case=self.reading.case)
            whole = found.keep((found.starts == start) & (found.ends == end))
            return lists.candidates(whole.stands(0), name=text[start:end], tag=kind)

    def found_by(self, name: str) -> str:
        """Return how a name that has candidates was found: "exact" (letter for letter), "case" or "inflected"."""
        matcher, known = self._spelled
        if matcher is not self.matcher:
            known = lru_cache(_MOST_NAMES)(self._find_spelling)
            self._spelled = self.matcher, known
        return known(name)

    def _find_spelling(self, name: str) -> str:
        rows = self.kb.named(as_signed(key(name))) or self.kb.named(as_signed(key(transliterated(name))))
        exact = key(name, "exact")
        spelled = any(row[0] == name or key(row[0], "exact") == exact for row in rows)
        return "exact" if spelled else "case" if rows else "inflected"

    @contextmanager
    def _state(self) -> Iterator[tuple[Matcher, CandidateLists]]:
        """Yield the matcher and the candidate lists of one state of the KB."""
        changing = self.kb.connection.in_transaction  # an open change may be rolled back
        with self.kb.snapshot():
            matcher = self.matcher = self.matcher.refresh(self.kb)
            state, lists = self._remembered
            if changing:
                lists = self._new_lists()
            elif state != (matcher.names.uid, matcher.revision) or lists.met > _MOST_MET:
                lists = self._new_lists()
                self._remembered = (matcher.names.uid, matcher.revision), lists
            yield matcher, lists

    def _of_short(
        self, matcher: Matcher, lists: CandidateLists, text: str, tags: Tags, overlaps: Overlaps | None
    ) -> list[Mention]:
        """Return the mentions of a short text, as `_read` finds them."""
        if self._short is None or self._short.matcher is not matcher:
            self._short = ShortTextMatcher(matcher, hash_set(frozenset(self.stop_words)))
        reading = self.reading
        found = self._short.find(
            text, overlaps=overlaps or reading.overlaps, min_chars=reading.min_chars, max_words=reading.max_words
        )
        mentions = []
        for start, end, stands in found:
            name = text[start:end]
            number = lists.of_span(stands, name)
            if number == NONE or (reading.edge_words and not self._has_edges(name)):
                continue
            tag = tags.get((start, end)) if tags else None
            candidates = lists.lists[number] if tag is None else lists.candidates(stands, name=name, tag=tag)
            if candidates:
                mentions.append(Mention(start, end, name, candidates, tag))
        return mentions

    def _has_edges(self, name: str) -> bool:
        """Return whether neither the first nor the last word of a name is an excluded one."""
        words = _WORD.findall(name)
        return not words or self._edge_words.isdisjoint((words[0], words[-1]))

    def _new_lists(self) -> CandidateLists:
        return CandidateLists(self.kb, case=self.reading.case, limit=self.reading.limit)

    def _read(
        self, matcher: Matcher, lists: CandidateLists, texts: Sequence[str], overlaps: Overlaps | None = None
    ) -> _Part:
        """Find the mentions of texts that are matched as one."""
        joined = FENCE.join(texts)
        matches = matcher.find(
            joined,
            overlaps=overlaps or self.reading.overlaps,
            case=self.reading.case,
            stop_words=self.stop_words,
            min_chars=self.reading.min_chars,
            max_words=self.reading.max_words,
        )
        heads, numbers = lists.of(matches, joined)
        there = np.flatnonzero(numbers != NONE)
        if self.reading.edge_words:
            spans = zip(matches.starts[heads[there]].tolist(), matches.ends[heads[there]].tolist(), strict=True)
            there = there[[self._has_edges(joined[start:end]) for start, end in spans]]
        after = np.append(heads[1:], len(matches))[there]
        heads = heads[there]
        bases = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + len(FENCE), out=bases[1:])
        return _Part(matches, heads, numbers[there], after, bases, np.searchsorted(matches.starts[heads], bases))


@dataclass(frozen=True, slots=True)
class _Part:
    """Mentions of texts matched as one: text n begins at `bases[n]`, its heads at `borders[n]`."""

    matches: Matches
    heads: Offsets
    numbers: Offsets
    after: Offsets
    """Row after the last of each head."""
    bases: Offsets
    borders: Offsets

    def columns(self) -> tuple[Offsets, Offsets, Offsets]:
        """Return starts, ends and list numbers of all mentions."""
        shift = np.repeat(self.bases[:-1], np.diff(self.borders))
        return self.matches.starts[self.heads] - shift, self.matches.ends[self.heads] - shift, self.numbers

    def mentions(self, place: int, text: str, tags: Tags, lists: CandidateLists) -> list[Mention]:
        """Return the mentions of one of the texts."""
        here = slice(int(self.borders[place]), int(self.borders[place + 1]))
        heads, base = self.heads[here], self.bases[place]
        starts, ends = (self.matches.starts[heads] - base).tolist(), (self.matches.ends[heads] - base).tolist()
        mentions = []
        for row, (start, end, number) in enumerate(zip(starts, ends, self.numbers[here].tolist(), strict=True)):
            tag = tags.get((start, end))
            name = text[start:end]
            candidates = lists.lists[number]
            if tag is not None:
                stands = self.matches.stands(heads[row], self.after[here][row])
                candidates = lists.candidates(stands, name=name, tag=tag)
            if candidates:
                mentions.append(Mention(start, end, name, candidates, tag))
        return mentions


def has_senses(kb: KnowledgeBase) -> bool:
    """Return whether a KB is one of word senses, such as WordNet, whose words have forms."""
    return kb.metadata.get("inflection") == "wordnet"


def groups_of(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of texts that are matched as one."""
    begin = 0
    while begin < len(texts):
        size, end = 0, begin
        while end < len(texts) and (end == begin or size + len(texts[end]) <= _TOGETHER):
            size += len(texts[end])
            end += 1
        yield begin, end
        begin = end
