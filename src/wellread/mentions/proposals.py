"""Proposals: spans of texts that are names of a knowledge base or variants of names, for a linker to decide on.

    finder = ProposalFinder(kb)
    found = finder.find(["Basal cell carcinoma (BCC) is common.", "Where is Manchestre?"])
    for row in range(len(found)): WAYS[found.ways[row]], found.candidates(row)

Every span is kept, also those inside others; `WAYS` names how each was found. `candidates` finds names as written;
this module also finds them inflected, with other punctuation, abbreviated or shortened in the text, with their words
in another order, and misspelt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.document import Candidate
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase
from wellread.mentions.candidate_lists import NONE, CandidateLists
from wellread.mentions.candidates import FENCE, groups_of, has_senses
from wellread.mentions.matcher import Matcher, Matches, blocks, hash_set
from wellread.mentions.text_defined_names import Spans, TextWords, abbreviations, short_names
from wellread.mentions.variant_matcher import (
    ABBREVIATION,
    CASE,
    EXACT,
    INFLECTED,
    PUNCTUATION,
    SHORT_NAME,
    WAYS,
    Rows,
    Walker,
)
from wellread.mentions.word_order import MAX_WORDS
from wellread.mentions.word_variants import Ways
from wellread.text.characters import is_capital
from wellread.text.stopwords import FUNCTION_WORDS, STOP_WORDS
from wellread.text.words import Offsets

__all__ = ["WAYS", "ProposalFinder", "ProposalOptions", "Proposals"]

_MOST_MET = 1 << 18
_OF_FULL_NAME = 2 / 3
"""Prior of a short name's candidates from its full name; the rest is for the short name's own candidates."""


@dataclass(frozen=True, slots=True)
class ProposalOptions:
    """Ways of finding names that are switched on, and what is left out."""

    inflected: bool = True
    punctuation: bool = True
    abbreviations: bool = True
    short_names: bool = True
    word_order: bool = True
    """Names of several words in another order or form; not for WordNet, which has its own forms."""
    typos: bool = True
    stop_words: Collection[str] | None = None
    """None: function words for WordNet (whose "be" has senses), and auxiliaries for other KBs."""
    min_chars: int = 2
    limit: int = MOST_CANDIDATES


@dataclass(frozen=True, slots=True)
class Proposals:
    """Spans of texts with candidates: those of text n are the rows from `offsets[n]` up to `offsets[n + 1]`.

    They are sorted by start; of those with the same start the longer comes first. A span has one row, with the best way
    it was found.
    """

    offsets: Offsets
    starts: Offsets
    ends: Offsets
    """Characters of the span's own text."""
    ways: NDArray[np.uint8]
    """Ways in which they were found: indices of `WAYS`."""
    edits: NDArray[np.uint8]
    """Number of wrong letters; 0 unless the way is "typo"."""
    numbers: Offsets
    """Number of the candidate list in `lists`."""
    lists: CandidateLists

    def __len__(self) -> int:
        return len(self.starts)

    def candidates(self, row: int) -> tuple[Candidate, ...]:
        """Return the candidates of a row, best first."""
        return self.lists.lists[int(self.numbers[row])]


class ProposalFinder:
    """Finds names of a KB and variants of them in texts; follows changes of its KB."""

    def __init__(self, kb: KnowledgeBase, options: ProposalOptions | None = None) -> None:
        self.kb = kb
        self.options = options or ProposalOptions()
        self.matcher = Matcher.of(kb)
        self.senses = has_senses(kb)
        usual = FUNCTION_WORDS if self.senses else STOP_WORDS
        self.stop_words = usual if self.options.stop_words is None else frozenset(self.options.stop_words)
        self._remembered = ("", -1), self._new_lists()
        self._last_walker: Walker | None = None

    def find(self, texts: Sequence[str]) -> Proposals:
        """Return the proposals of all texts, at one state of the KB."""
        parts: list[_Part] = []
        with self._state() as (matcher, lists):
            for begin, end in groups_of(texts):
                parts.append(self._read(matcher, lists, texts[begin:end]))
        counts = np.concatenate([np.zeros(1, np.int64), *(part.counts for part in parts)])
        nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.uint8)
        columns = [(*nothing, np.zeros(0, np.int64)), *(part.columns for part in parts)]
        starts, ends, ways, edits, numbers = (np.concatenate(column) for column in zip(*columns, strict=True))
        return Proposals(np.cumsum(counts), starts, ends, ways, edits, numbers, lists)

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

    def _new_lists(self) -> CandidateLists:
        return CandidateLists(self.kb, limit=self.options.limit)

    def _read(self, matcher: Matcher, lists: CandidateLists, texts: Sequence[str]) -> _Part:
        """Find the proposals of texts that are matched as one."""
        joined = FENCE.join(texts)
        bases = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + len(FENCE), out=bases[1:])
        rows, there = self._walk(matcher, joined)
        rows = self._best(rows)
        heads, numbers = lists.of(Matches(rows.starts, rows.ends, rows.keys, rows.kinds), joined)
        known = np.flatnonzero(numbers != NONE)
        heads, numbers = heads[known], numbers[known]
        found = _Found(rows.starts[heads], rows.ends[heads], rows.ways[heads], rows.edits[heads], numbers)
        if self.options.abbreviations:
            found = self._with_abbreviations(found, joined, bases, there)
        if self.options.short_names:
            found = self._with_short_names(found, bases, there, lists)
        borders = np.searchsorted(found.starts, bases)
        shift = np.repeat(bases[:-1], np.diff(borders))
        columns = (found.starts - shift, found.ends - shift, found.ways, found.edits, found.numbers)
        return _Part(np.diff(borders), columns)

    def _walk(self, matcher: Matcher, text: str) -> tuple[Rows, TextWords]:
        options = self.options
        walker = self._walker(matcher)
        longest = max(names.max_words for names in matcher.both())
        reach = 2 * longest + 2 if options.punctuation else max(longest, 2)  # signs between the words count too
        if options.word_order:
            reach = max(reach, MAX_WORDS)
        parts: list[Rows] = []
        words: list[TextWords] = []
        for offset, block, whole in blocks(text, reach):
            found, split_words, exact = walker.walk(block)
            found = found.take((found.starts < whole) & (found.ends - found.starts >= options.min_chars))
            parts.append(Rows(found.starts + offset, found.ends + offset, *(getattr(found, name) for name in _REST)))
            own = slice(0, int(np.searchsorted(split_words.starts, whole)))
            starts, ends = split_words.starts[own], split_words.ends[own]
            capital = is_capital(split_words.codes[starts])
            words.append(TextWords(starts + offset, ends + offset, split_words.hashes[own], exact[own], capital))
        if not parts:
            nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64)
            small = np.zeros(0, np.uint8)
            return Rows(*nothing, small, small, small), TextWords(*nothing, nothing[2], np.zeros(0, np.bool_))
        joined = (np.concatenate([getattr(part, name) for part in words]) for name in TextWords.__slots__)
        return Rows.concatenated(parts), TextWords(*joined)

    def _walker(self, matcher: Matcher) -> Walker:
        """Return the walker of a matcher; it caches unknown words."""
        walker = self._last_walker
        if walker is None or walker.matcher is not matcher:
            options = self.options
            ways = Ways(
                inflected=options.inflected,
                punctuation=options.punctuation,
                typos=options.typos,
                word_order=options.word_order and not self.senses,
            )
            walker = Walker(matcher, ways, hash_set(frozenset(self.stop_words)), senses=self.senses)
            self._last_walker = walker
        return walker

    def _best(self, rows: Rows) -> Rows:
        """Sort rows by start, longer first, and of each span keep the best ways of finding it.

        Names that differ only in case or punctuation are taken together, as are WordNet's forms ("axes" of "axis" and
        "ax"); other ways count only if no better one was found.
        """
        longest = int((rows.ends - rows.starts).max(initial=0)) + 1
        place = rows.starts * longest + (rows.starts - rows.ends)
        rows = rows.take(np.argsort((place * len(WAYS) + rows.ways) * 16 + rows.edits, kind="stable"))
        if not len(rows):
            return rows
        fresh = np.ones(len(rows), np.bool_)
        fresh[1:] = (rows.starts[1:] != rows.starts[:-1]) | (rows.ends[1:] != rows.ends[:-1])
        heads = np.flatnonzero(fresh)[np.cumsum(fresh) - 1]
        together = np.zeros(len(WAYS), np.bool_)
        together[[EXACT, CASE, PUNCTUATION]] = True
        together[INFLECTED] = self.senses
        same = (rows.ways == rows.ways[heads]) & (rows.edits == rows.edits[heads])
        return rows.take(same | (together[rows.ways] & together[rows.ways[heads]]))

    def _with_abbreviations(self, found: _Found, text: str, bases: Offsets, there: TextWords) -> _Found:
        defined = {
            (start, end): (ABBREVIATION, int(found.numbers[row]))
            for start, end, row in abbreviations(text, bases, there, found.spans())
        }
        return found.replaced(defined)

    def _with_short_names(self, found: _Found, bases: Offsets, there: TextWords, lists: CandidateLists) -> _Found:
        shortened = short_names(bases, there, found.spans())
        if not shortened:
            return found
        rows_there = np.flatnonzero(np.isin(found.starts, np.array([start for start, _ in shortened])))
        own = {(int(found.starts[row]), int(found.ends[row])): row for row in rows_there.tolist()}
        known: dict[tuple[int, ...], int] = {}
        replacing: dict[tuple[int, int], tuple[int, int]] = {}
        for span, rows in shortened.items():
            row = own.get(span)
            if row is not None and found.ways[row] == ABBREVIATION:
                continue
            numbers = (
                NONE if row is None or found.ways[row] > PUNCTUATION else int(found.numbers[row]),
                *dict.fromkeys(found.numbers[rows].tolist()),
            )
            if numbers not in known:
                known[numbers] = lists.number(self._together(lists, *numbers))
            replacing[span] = SHORT_NAME, known[numbers]
        return found.replaced(replacing)

    def _together(self, lists: CandidateLists, own: int, *full: int) -> list[Candidate]:
        """Return the candidates of a short name: those of its full names, latest first, then its own."""
        priors: dict[str, float] = {}
        titles: dict[str, str] = {}
        share = 1.0 if own == NONE else _OF_FULL_NAME
        halves = [0.5**place for place in range(len(full))]
        weighted = [(number, share * half / sum(halves)) for number, half in zip(full, halves, strict=True)]
        if own != NONE:
            weighted.append((own, 1 - share))
        for number, weight in weighted:
            for candidate in lists.lists[number]:
                titles[candidate.entity] = candidate.title
                priors[candidate.entity] = priors.get(candidate.entity, 0.0) + weight * candidate.prior
        first = lists.lists[full[0]][0].entity
        best = sorted(priors, key=lambda id: (id != first, -priors[id], id))[: self.options.limit]
        total = sum(priors[id] for id in best)
        return [Candidate(id, titles[id], priors[id] / total, priors[id] / total) for id in best]


_REST = ("keys", "kinds", "ways", "edits")


@dataclass(frozen=True, slots=True)
class _Part:
    """Proposals of texts matched as one: the number of each text, and their columns."""

    counts: Offsets
    columns: tuple[Offsets, Offsets, NDArray[np.uint8], NDArray[np.uint8], Offsets]


@dataclass(frozen=True, slots=True)
class _Found:
    """Spans of joined texts, one row each."""

    starts: Offsets
    ends: Offsets
    ways: NDArray[np.uint8]
    edits: NDArray[np.uint8]
    numbers: Offsets

    def spans(self) -> Spans:
        """Return the spans in which short names and abbreviations are searched."""
        return Spans(self.starts, self.ends, self.ways <= CASE)

    def replaced(self, spans: dict[tuple[int, int], tuple[int, int]]) -> _Found:
        """Return rows with new (way, list number) at some (start, end); missing rows are added."""
        if not spans:
            return self
        new = np.array([(start, end, way, number) for (start, end), (way, number) in spans.items()], np.int64)
        longest = int(max((self.ends - self.starts).max(initial=0), (new[:, 1] - new[:, 0]).max())) + 1
        old_keys = self.starts * longest + (self.starts - self.ends)
        new_keys = new[:, 0] * longest + (new[:, 0] - new[:, 1])
        kept = ~np.isin(old_keys, new_keys)
        order = np.argsort(np.append(old_keys[kept], new_keys), kind="stable")
        return _Found(
            np.append(self.starts[kept], new[:, 0])[order],
            np.append(self.ends[kept], new[:, 1])[order],
            np.append(self.ways[kept], new[:, 2].astype(np.uint8))[order],
            np.append(self.edits[kept], np.zeros(len(new), np.uint8))[order],
            np.append(self.numbers[kept], new[:, 3])[order],
        )
