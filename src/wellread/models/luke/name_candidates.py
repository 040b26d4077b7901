"""Candidates of names as rows of an entity vocabulary: what each name of linked text may mean, by the names of a KB.

Names are known by their keys (`text.words.key`), which windows of linked text keep in place of the names themselves.

    candidates = NameCandidates.of_kb(kb, vocabulary, windows.name_keys(), most=30)
    candidates.take(keys)      # rows, -1 where there are no more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt64

from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.models.luke.vocabulary import EntityVocabulary

NO_ROW = -1
_UNSIGNED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class NameCandidates:
    """Rows of a vocabulary for each name: those of name n are `rows[offsets[n]:offsets[n + 1]]`, likeliest first."""

    keys: UInt64[np.ndarray, " name"]
    """Ascending."""
    offsets: Int64[np.ndarray, " border"]
    rows: Int64[np.ndarray, " row"]

    @classmethod
    def of_lists(cls, lists: Mapping[int, Sequence[int]]) -> NameCandidates:
        """From {key: rows, likeliest first}."""
        keys = sorted(lists)
        sizes = [len(lists[key]) for key in keys]
        rows = [row for key in keys for row in lists[key]]
        return cls(np.array(keys, np.uint64), np.append(0, np.cumsum(sizes, dtype=np.int64)), np.array(rows, np.int64))

    @classmethod
    def of_kb(
        cls, kb: KnowledgeBase, vocabulary: EntityVocabulary, keys: UInt64[np.ndarray, " name"], *, most: int = 30
    ) -> NameCandidates:
        """The `most` likeliest entities of each of these names that the vocabulary has rows for."""
        asked = set(keys.tolist())
        found: dict[int, list[tuple[float, float, int]]] = {}
        query = "SELECT key, count, popularity, id FROM aliases JOIN entities ON num = entity"
        with sqlite_errors(kb.path):
            for key, count, popularity, id in kb.connection.execute(query):
                if (unsigned := key & _UNSIGNED) in asked and (row := vocabulary.row_of.get(id)) is not None:
                    found.setdefault(unsigned, []).append((-count, -popularity, row))
        lists = {key: list(dict.fromkeys(row for *_, row in sorted(some)))[:most] for key, some in found.items()}
        return cls.of_lists(lists)

    def take(self, keys: UInt64[np.ndarray, " entity"]) -> Int64[np.ndarray, "entity cand"]:
        """The rows of names, as wide as the longest list of them; `NO_ROW` where there are no more."""
        if not len(self.keys):
            return np.full((len(keys), 1), NO_ROW, np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        counts = np.where(self.keys[at] == keys, self.offsets[at + 1] - self.offsets[at], 0)
        columns = np.arange(max(1, int(counts.max(initial=0))))
        there = columns < counts[:, None]
        rows = np.full(there.shape, NO_ROW, np.int64)
        rows[there] = self.rows[(self.offsets[at][:, None] + columns)[there]]
        return rows
