"""Candidate entities of mentions: the nearest by vector, those with the mention as an alias, or both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wellread.document import Candidate
from wellread.errors import UsageError
from wellread.index.entity_index import EntityIndex
from wellread.index.entity_vectors import EntityEncoder
from wellread.index.faiss_search import Subset
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase
from wellread.linking.decoding import NONE, Floats, Ints
from wellread.linking.kb_profile import KbProfile
from wellread.mentions.candidate_lists import CandidateLists
from wellread.text.words import Keys, key, words

Sources = Literal["union", "dense", "names"]
Named = tuple[Ints, Floats]
"""Index rows of the entities that have a name as alias, and their priors."""
_BATCH_PAIRS = 512
"""Number of pairs of mention and candidate multiplied at once; they fit the processor's cache."""
_MOST_TITLES = 1 << 17
_NO_ENTITY = -1
_DISAMBIGUATION = re.compile(r"\s*\([^()]*\)$|,\s.*$")
"""Disambiguation at the end of a title: "Mercury (planet)", "Denton, Texas"."""
NO_CANDIDATES: Named = (np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Search:
    """Options for the candidates of mentions."""

    sources: Sources = "union"
    """dense: the nearest entities; names: entities with the mention as an alias; union: both."""
    nearest: int = 10
    """Number of nearest entities."""
    named: int = 10
    """Maximum number of entities by name."""
    floor: float = -4.5
    """Minimum log p(mention) of a span."""
    mentions: int = 50
    """Maximum number of spans of a window; the best are used."""

    def __post_init__(self) -> None:
        if self.sources not in ("union", "dense", "names"):
            raise UsageError(f"sources={self.sources!r} is not known; choose union, dense or names")


@dataclass(frozen=True, slots=True)
class Titles:
    """Titles of entities, to compare with mentions in the features of the link scorer."""

    whole: Keys
    """Key of the title (`text.words`)."""
    bare: Keys
    """Key of the title without its disambiguation."""
    words: Floats
    """Number of words of the bare title."""
    rank: Floats
    """Share of the KB's entities that are less popular."""


class Pool:
    """Finds the candidates of mentions by vector, by name, or both.

    A pool belongs to one revision of its KB, so that threads can share it; `follow` returns the pool of the current
    revision.
    """

    def __init__(
        self, kb: KnowledgeBase, index: EntityIndex, search: Search, *, among: Iterable[str] | None = None
    ) -> None:
        self.kb, self.index, self.search = kb, index, search
        self._among = None if among is None else list(among)
        self._subset: Subset | None = None if self._among is None else index.subset(self._among)
        self.named = lru_cache(1 << 16)(self._look_up)
        self._titles: dict[int, tuple[int, int, float, float]] = {_NO_ENTITY: (0, 0, 0.0, 0.0)}
        self._by_number: tuple[CandidateLists | None, dict[int, Named]] = None, {}

    @cached_property
    def profile(self) -> KbProfile:
        """Statistics of the KB's aliases, computed when first needed."""
        return KbProfile.of(self.kb)

    def follow(self, tower: Callable[[], EntityEncoder]) -> Pool:
        """Return the pool of the KB's current revision, encoding changed entities; itself if unchanged."""
        if self.index.revision == self.kb.revision:
            return self
        return Pool(self.kb, self.index.refresh(self.kb, tower()), self.search, among=self._among)

    def find(
        self, named: Sequence[Named], vectors: NDArray[np.float32], near_mask: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Floats]:
        """Return (rows, priors) of the candidates of each mention: those by name first, then the nearest.

        `named` are the candidates by name (from `named` or `listed`), empty for "dense". The nearest entities are
        searched only for mentions in `near_mask`; None: for all. Rows are padded with NONE; the prior is 0 for an
        entity that does not have the mention as an alias.
        """
        width = max((len(some) for some, _ in named), default=0)
        rows = np.full((len(vectors), width), NONE, np.int64)
        priors = np.zeros((len(vectors), width))
        for place, (some, shares) in enumerate(named):
            rows[place, : len(some)], priors[place, : len(some)] = some, shares
        if self.search.sources == "names":
            return rows, priors
        near = np.full((len(vectors), self.search.nearest), NONE, np.int64)
        asked = np.arange(len(vectors)) if near_mask is None else np.flatnonzero(near_mask)
        if len(asked):
            _, found = self.index.search(vectors[asked], self.search.nearest, among=self._subset)
            near = np.full((len(vectors), found.shape[1]), NONE, np.int64)
            near[asked] = found
        duplicate_mask = (near[:, :, None] == rows[:, None, :]).any(2) if width else np.zeros(near.shape, bool)
        rows = np.concatenate((rows, np.where(duplicate_mask | (near < 0), NONE, near)), 1)
        return rows, np.concatenate((priors, np.zeros(near.shape)), 1)

    def listed(self, lists: CandidateLists, number: int) -> Named:
        """Return the rows and priors of the matcher's candidate list with this number (cached)."""
        known, by_number = self._by_number
        if lists is not known:
            by_number = {}
            self._by_number = lists, by_number
        found = by_number.get(number)
        if found is None:
            found = by_number[number] = self._rows_of(lists.lists[number])
        return found

    def vectors_of(self, rows: Ints) -> NDArray[np.float32]:
        """Return the vectors of rows, given in any shape; zeros for negative rows."""
        unique, back = np.unique(np.maximum(rows, 0), return_inverse=True)
        vectors = self.index.vectors_of(unique)[back.reshape(rows.shape)]
        vectors[rows < 0] = 0.0
        return vectors

    def similarity(self, vectors: NDArray[np.float32], rows: Ints) -> Floats:
        """Return the dot products of each mention's vector with its candidates' vectors; 0 for negative rows."""
        found = np.zeros(rows.shape)
        mention, column = np.nonzero(rows >= 0)
        unique, back = np.unique(rows[mention, column], return_inverse=True)
        candidate_vectors = self.index.vectors_of(unique)
        for begin in range(0, len(mention), _BATCH_PAIRS):
            pairs = slice(begin, begin + _BATCH_PAIRS)
            products = np.einsum("pd,pd->p", vectors[mention[pairs]], candidate_vectors[back[pairs]])
            found[mention[pairs], column[pairs]] = products
        return found

    def titles(self, rows: Ints) -> Titles:
        """Return the title keys and popularity ranks of entities (cached)."""
        known = self._titles
        new = [row for row in dict.fromkeys(rows.tolist()) if row >= 0 and row not in known]
        if new:
            if len(known) > _MOST_TITLES:
                known = self._titles = {_NO_ENTITY: (0, 0, 0.0, 0.0)}
                new = [row for row in dict.fromkeys(rows.tolist()) if row >= 0]
            with sqlite_errors(self.kb.path):
                for row, id, title in zip(new, self.index.entities(new), self.index.titles(new), strict=True):
                    rank = self.kb.connection.execute("SELECT popularity FROM entities WHERE id = ?", (id,)).fetchone()
                    bare = _DISAMBIGUATION.sub("", title) or title
                    known[row] = key(title), key(bare), float(len(words(bare))), float(rank[0]) if rank else 0.0
        found = [known[max(row, _NO_ENTITY)] for row in rows.tolist()]
        return Titles(
            np.array([one[0] for one in found], np.uint64),
            np.array([one[1] for one in found], np.uint64),
            np.array([one[2] for one in found], np.float64),
            self.profile.rank(np.array([one[3] for one in found], np.float64)),
        )

    def _look_up(self, name: str) -> Named:
        """Return the rows and priors of the entities that have a name as alias."""
        limit = self.search.named if self._subset is None else MOST_CANDIDATES
        return self._rows_of(tuple(self.kb.candidates(name, limit=limit)))

    def _rows_of(self, candidates: tuple[Candidate, ...]) -> Named:
        """Return the rows and priors of candidates by name, without those that have no vector or are not allowed."""
        if self._subset is None:
            candidates = candidates[: self.search.named]
        rows = self.index.rows_of([candidate.entity for candidate in candidates])
        priors = np.array([candidate.prior for candidate in candidates])
        kept_mask = rows >= 0
        if self._subset is not None:
            kept_mask &= np.isin(rows, self._subset.rows)
        kept = np.flatnonzero(kept_mask)[: self.search.named]
        return rows[kept], priors[kept]


def features_of(priors: Floats) -> Floats:
    """Return the features of candidates by name (`models.elq.config.FEATURES`), from their priors."""
    named = priors > 0
    return np.stack((named, np.log(np.clip(priors, 1e-3, 1.0)) * named), -1)
