"""The entities that a mention is compared with: the nearest by meaning, those of its name, or both."""

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
"""Rows of the entities that have a name, and their priors."""
_PAIRS = 512
"""Mentions and candidates that are multiplied at once: what fits the processor's cache."""
_MOST_TITLES = 1 << 17
_NO_ENTITY = -1
_DISAMBIGUATION = re.compile(r"\s*\([^()]*\)$|,\s.*$")
"""The end of a title that tells it from others: "Mercury (planet)", "Denton, Texas"."""
NO_CANDIDATES: Named = (np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Search:
    """What a mention is compared with."""

    sources: Sources = "union"
    """union: the nearest entities and those that the KB knows by the mention's name; dense, names: one of the two."""
    nearest: int = 10
    named: int = 10
    floor: float = -4.5
    """log p(mention) below which a span is not looked at."""
    mentions: int = 50
    """Spans of a window that are looked at, best first."""

    def __post_init__(self) -> None:
        if self.sources not in ("union", "dense", "names"):
            raise UsageError(f"sources={self.sources!r} is not known; choose union, dense or names")


@dataclass(frozen=True, slots=True)
class Titles:
    """Titles of entities as the link scorer compares them with mentions."""

    whole: Keys
    """Key of the title (`text.words`)."""
    bare: Keys
    """Key of the title without what tells it from others."""
    words: Floats
    """Words of the bare title."""
    rank: Floats
    """Share of the KB's entities that are less popular."""


class Pool:
    """Finds the entities that a mention may mean: by its vector, by its name, or both.

    A pool stays at one state of its index, so that threads may share it; `follow` returns the pool of the next state.
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
        """Statistics of the KB's aliases, as they were at the first text of this state."""
        return KbProfile.of(self.kb)

    def follow(self, tower: Callable[[], EntityEncoder]) -> Pool:
        """Return the pool of the KB's revision, encoding only what changed; itself where nothing did."""
        if self.index.revision == self.kb.revision:
            return self
        return Pool(self.kb, self.index.refresh(self.kb, tower()), self.search, among=self._among)

    def find(
        self, named: Sequence[Named], vectors: NDArray[np.float32], near_mask: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Floats]:
        """Return (rows, priors) of the candidates of each mention: named ones first, then near ones.

        `named` are the candidates by name (`named`, `listed`); none for "dense". Only mentions in `near_mask` are
        compared with the nearest entities; None: all are. A row is NONE where there is no candidate, a prior 0 where
        the KB does not know the entity by that name.
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
        again = (near[:, :, None] == rows[:, None, :]).any(2) if width else np.zeros(near.shape, bool)
        rows = np.concatenate((rows, np.where(again | (near < 0), NONE, near)), 1)
        return rows, np.concatenate((priors, np.zeros(near.shape)), 1)

    def listed(self, lists: CandidateLists, number: int) -> Named:
        """Return the rows and priors of a list of candidates that the matcher found."""
        known, by_number = self._by_number
        if lists is not known:
            by_number = {}
            self._by_number = lists, by_number
        found = by_number.get(number)
        if found is None:
            found = by_number[number] = self._rows_of(lists.lists[number])
        return found

    def vectors_of(self, rows: Ints) -> NDArray[np.float32]:
        """The vector of each row, of any shape; zeros where there is no entity."""
        unique, back = np.unique(np.maximum(rows, 0), return_inverse=True)
        vectors = self.index.vectors_of(unique)[back.reshape(rows.shape)]
        vectors[rows < 0] = 0.0
        return vectors

    def similarity(self, vectors: NDArray[np.float32], rows: Ints) -> Floats:
        """Return the dot product of each mention's vector with its candidates' vectors; 0 where there is none."""
        found = np.zeros(rows.shape)
        mention, column = np.nonzero(rows >= 0)
        unique, back = np.unique(rows[mention, column], return_inverse=True)
        theirs = self.index.vectors_of(unique)
        for begin in range(0, len(mention), _PAIRS):
            pairs = slice(begin, begin + _PAIRS)
            products = np.einsum("pd,pd->p", vectors[mention[pairs]], theirs[back[pairs]])
            found[mention[pairs], column[pairs]] = products
        return found

    def titles(self, rows: Ints) -> Titles:
        """Return what the titles of entities say, and their popularity; each entity is looked up once."""
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
        """Return the rows and priors of the entities that the KB knows by a name."""
        limit = self.search.named if self._subset is None else MOST_CANDIDATES
        return self._rows_of(tuple(self.kb.candidates(name, limit=limit)))

    def _rows_of(self, candidates: tuple[Candidate, ...]) -> Named:
        """Return the rows and priors of candidates by name; those without a vector or not allowed are left out."""
        if self._subset is None:
            candidates = candidates[: self.search.named]
        rows = self.index.rows_of([candidate.entity for candidate in candidates])
        priors = np.array([candidate.prior for candidate in candidates])
        there = rows >= 0
        if self._subset is not None:
            there &= np.isin(rows, self._subset.rows)
        kept = np.flatnonzero(there)[: self.search.named]
        return rows[kept], priors[kept]


def features_of(priors: Floats) -> Floats:
    """What names say of candidates (`models.elq.model.FEATURES`), from their priors."""
    named = priors > 0
    return np.stack((named, np.log(np.clip(priors, 1e-3, 1.0)) * named), -1)
