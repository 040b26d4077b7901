"""Numbered lists of candidates, shared by the spans that have the same ones.

Texts repeat a few thousand names. Spans are compared, all at once, by the names that they may stand for (a hash over
the keys and kinds that a matcher found), and only new ones are looked up in the KB.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from wellread.document import Candidate
from wellread.kb.lookup import Named
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase, rank
from wellread.mentions.compiled_names import ALL_KINDS, KIND_BITS
from wellread.mentions.matcher import Matches
from wellread.text.words import Case, Offsets, as_signed, key, mix

Stands = tuple[tuple[int, int], ...]
"""Names that a span may stand for: (key of a name, kinds that an entity of it may have)."""

NONE = -1
"""Number of the empty list."""

_BY_SPELLING = -2
_ODD = np.uint64(0xD6E8FEB86659FD93)


class CandidateLists:
    """Candidate lists at one state of a KB; `lists[number]` is best first."""

    def __init__(self, kb: KnowledgeBase, *, case: Case = "folded", limit: int = MOST_CANDIDATES) -> None:
        self.kb, self.case, self.limit = kb, case, limit
        self.lists: list[tuple[Candidate, ...]] = []
        self._numbers: dict[tuple[Candidate, ...], int] = {(): NONE}
        self._by_hash: dict[int, int] = {}
        self._by_name: dict[tuple[int | Stands, str], int] = {}
        self._by_stands: dict[Stands, int] = {}
        self._adding = threading.Lock()

    def __len__(self) -> int:
        return len(self.lists)

    @property
    def met(self) -> int:
        """Number of different spans looked up, which determines the memory used."""
        return len(self._by_hash) + len(self._by_name) + len(self._by_stands)

    def of(self, found: Matches, text: str) -> tuple[Offsets, Offsets]:
        """Return the first row of every distinct span among the matches, and the number of its list."""
        heads = found.heads()
        if not len(heads):
            return heads, heads
        kinds = found.kinds.astype(np.uint64)
        # The order of the names of a span does not matter, so their hashes are added.
        hashes = np.add.reduceat(mix(found.keys + kinds * _ODD), heads)
        distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        known = [self._by_hash.get(one) for one in distinct.tolist()]
        after = np.append(heads[1:], len(found))
        for place in [place for place, number in enumerate(known) if number is None]:
            span = first[place]
            stands = found.stands(heads[span], after[span])
            known[place] = self._by_hash[int(distinct[place])] = self._look_up(stands)
        numbers = np.array(known, np.int64)[inverse]
        for place in np.flatnonzero(numbers == _BY_SPELLING).tolist():
            head = heads[place]
            asked = int(hashes[place]), text[found.starts[head] : found.ends[head]]
            if asked not in self._by_name:
                stands = found.stands(head, after[place])
                self._by_name[asked] = self.number(self.candidates(stands, name=asked[1]))
            numbers[place] = self._by_name[asked]
        return heads, numbers

    def of_span(self, stands: Stands, name: str) -> int:
        """Return the number of the list of one span that is spelled as `name`."""
        number = self._by_stands.get(stands)
        if number is None:
            number = self._by_stands[stands] = self._look_up(stands)
        if number == _BY_SPELLING:
            number = self._by_name.get((stands, name))
            if number is None:
                number = self._by_name[stands, name] = self.number(self.candidates(stands, name=name))
        return number

    def candidates(self, stands: Stands, *, name: str, tag: str | None = None) -> tuple[Candidate, ...]:
        """Return the candidates of a span that is spelled as `name` and tagged as `tag`."""
        return self._ranked(self._rows(stands), name, tag)

    def number(self, candidates: Iterable[Candidate]) -> int:
        """Return the number of a list, a new one if there is no equal list."""
        made = tuple(candidates)
        with self._adding:
            number = self._numbers.setdefault(made, len(self.lists))
            if number == len(self.lists):
                self.lists.append(made)
        return number

    def _look_up(self, stands: Stands) -> int:
        """Return the number of the list of a span, or a marker that it depends on the spelling."""
        if self.case != "folded":
            return _BY_SPELLING
        rows = self._rows(stands)
        found = self._ranked(rows, "")
        spellings = {row[0] for row in rows}
        # With one spelling all candidates have it or none has: their order is the same.
        if len(spellings) > 1 and any(self._ranked(rows, name) != found for name in spellings):
            return _BY_SPELLING
        return self.number(found)

    def _rows(self, stands: Stands) -> list[Named]:
        joined: dict[int, int] = {}
        for node, kinds in stands:  # compiled and added forms may both lead to one name
            joined[node] = joined.get(node, 0) | kinds
        return [
            row
            for node, kinds in joined.items()
            for row in self.kb.named(as_signed(node))
            if kinds == ALL_KINDS or KIND_BITS.get(row[5], 0) & kinds
        ]

    def _ranked(self, rows: Sequence[Named], name: str, tag: str | None = None) -> tuple[Candidate, ...]:
        if self.case != "folded":
            same = key(name, self.case)
            rows = [row for row in rows if key(row[0], self.case) == same]
        if tag is not None:
            rows = [row for row in rows if row[5] == tag]
        return tuple(rank(rows, self.limit, spelled=name))
