"""Triples of a KB: pairs of connected entities, and all triples as arrays to train on.

For training, triples are read in both directions: every relation has a reverse. Often the KB has it (WordNet's
"hyponym" is the reverse of "hypernym", "antonym" its own): then none is added, so that no triple occurs twice.

Held-out triples are selected by the two entities that they connect, with all triples between these two: otherwise a
model would only have to reverse a training triple. Both entities must keep another neighbour, because nothing can be
learned about an entity without triples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wellread.errors import InputError, UsageError
from wellread.io.files import read_lines
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.text.words import Offsets

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

MOST_HELD_OUT = 20_000
"""Maximum number of held-out pairs: enough to tell models apart by a thousandth, for any KB."""

ALIKE = 0.97
"""Share of both relations' triples that must be reversed in the other for it to be the reverse; a KB has gaps."""


@dataclass(frozen=True, slots=True)
class FactPairs:
    """Pairs of entities that are connected by a triple in either direction; entities are numbered."""

    count: int
    pairs: Offsets
    """one * count + other, sorted, in both directions."""

    @classmethod
    def read(cls, kb: KnowledgeBase, entities: Sequence[str]) -> FactPairs:
        """Read the triples between the entities of these ids; ids unknown to the KB have none."""
        count, found = len(entities), []
        with sqlite_errors(kb.path), kb.snapshot():
            execute = kb.connection.execute
            rows = (
                (one, execute("SELECT num FROM entities WHERE id = ?", (id,)).fetchone())
                for one, id in enumerate(entities)
            )
            here = {row[0]: one for one, row in rows if row is not None}
            for num, one in here.items():
                for (other_num,) in execute("SELECT object FROM facts WHERE subject = ?", (num,)):
                    other = here.get(other_num)
                    if other is not None:
                        found += [one * count + other, other * count + one]
        return cls(count, np.unique(np.array(found, np.int64)))

    def between(
        self, one: Int64[np.ndarray, "*shape"], other: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Return True for pairs that are connected; False for negative numbers."""
        wanted = one * self.count + other
        if not len(self.pairs):
            return np.zeros(wanted.shape, bool)
        at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        return np.asarray((self.pairs[at] == wanted) & (one >= 0) & (other >= 0))


@dataclass(frozen=True)
class Graph:
    """Triples in both directions; entities and relations are indices into `entities` and `relations`."""

    uid: str
    """Identifier of the KB."""
    revision: int
    entities: Sequence[str]
    """Ids of the entities with a triple, in the KB's order."""
    relations: Sequence[str]
    reverse: Int64[np.ndarray, " relation"]
    """Reverse of each relation, possibly itself."""
    facts: Int64[np.ndarray, "fact 3"]
    """Subject, relation, object; sorted and distinct, each with its reverse."""

    @classmethod
    def read(cls, kb: KnowledgeBase) -> Graph:
        """Read all triples of a KB."""
        with sqlite_errors(kb.path), kb.snapshot():
            execute = kb.connection.execute
            about = dict(execute("SELECT key, value FROM metadata"))
            rows = execute("SELECT subject, relation, object FROM facts")
            flat = np.fromiter((number for row in rows for number in row), np.int64)
            facts = flat.reshape(-1, 3)
            here = np.unique(facts[:, [0, 2]])
            named = dict(execute("SELECT num, name FROM relations"))
            ids = [id for num, id in execute("SELECT num, id FROM entities ORDER BY num") if _holds(here, num)]
        if not len(facts):
            raise InputError(
                f"{kb.path} has no triples to train on; leave the graph out (--graph none), or build it with triples: "
                "wellread kb build --help"
            )
        used = np.unique(facts[:, 1])
        columns = (np.searchsorted(here, facts[:, 0]), np.searchsorted(used, facts[:, 1]))
        numbered = np.stack([*columns, np.searchsorted(here, facts[:, 2])], axis=1)
        return cls.of(numbered, ids, [named[num] for num in used.tolist()], about["uid"], int(about["revision"]))

    @classmethod
    def of(
        cls,
        facts: Int64[np.ndarray, "fact 3"],
        entities: Sequence[str],
        relations: Sequence[str],
        uid: str = "",
        revision: int = 0,
    ) -> Graph:
        """Return the graph of triples in one direction; the reverse ones are added."""
        facts = np.unique(facts, axis=0)
        twins = _twins(facts, len(entities), len(relations))
        names, reverse = list(relations), np.full(len(relations), -1, np.int64)
        for r in range(len(relations)):
            if reverse[r] >= 0:
                continue
            # Of several equal relations, each is the reverse of one: the first that is still free.
            free = [twin for twin in twins.get(r, ()) if reverse[twin] < 0]
            twin = r if r in free else next(iter(free), len(names))
            if twin == len(names):
                names.append(f"reverse of {relations[r]}")
                reverse = np.append(reverse, r)
            reverse[r], reverse[twin] = twin, r
        both = np.unique(np.concatenate([facts, _backwards(facts, reverse)]), axis=0)
        return cls(uid, revision, entities, names, reverse, both)

    def split(self, share: float, *, seed: int = 0) -> Split:
        """Hold out the triples of about this share of the connected pairs, half for validation and half for testing."""
        if not 0 <= share < 1:
            raise UsageError(f"hold_out is {share}; expected a share of the facts, from 0 to less than 1")
        count = len(self.entities)
        one, other = self.facts[:, [0, 2]].min(1), self.facts[:, [0, 2]].max(1)
        keys, pair_of = np.unique(one * count + other, return_inverse=True)
        ends = np.stack([keys // count, keys % count], axis=1)
        joined = ends[ends[:, 0] != ends[:, 1]]
        left = np.bincount(joined.ravel(), minlength=count)
        wanted, taken = min(round(share * len(keys)), MOST_HELD_OUT), list[int]()
        for pair in np.random.default_rng([seed, 5]).permutation(len(keys)).tolist():
            if len(taken) >= wanted:
                break
            a, b = ends[pair].tolist()
            if a != b and left[a] > 1 and left[b] > 1:
                left[a] -= 1
                left[b] -= 1
                taken.append(pair)
        part = np.zeros(len(keys), np.int8)
        part[taken[: len(taken) // 2]], part[taken[len(taken) // 2 :]] = 1, 2
        return Split(*(self.facts[part[pair_of] == number] for number in (0, 1, 2)))

    def read_split(self, path: str | Path) -> Split:
        """Read the split of a table (subject, relation, object, and train, valid or test), such as FB15k-237's.

        Triples that the graph does not have are ignored; a triple that the table does not have is an error.
        """
        entity_of = {id: number for number, id in enumerate(self.entities)}
        relation_of = {name: number for number, name in enumerate(self.relations)}
        parts: dict[str, list[tuple[int, int, int]]] = {"train": [], "valid": [], "test": []}
        for number, line in read_lines(path):
            columns = line.decode("utf-8", "replace").split("\t")
            if len(columns) != 4 or columns[3] not in parts:
                raise InputError(f"{path}, line {number}: expected subject, relation, object and train, valid or test")
            subject, relation, object = columns[:3]
            if subject in entity_of and object in entity_of and relation in relation_of:
                parts[columns[3]].append((entity_of[subject], relation_of[relation], entity_of[object]))
        found: list[Int64[np.ndarray, "fact 3"]] = []
        seen = np.zeros(len(self.facts), bool)
        for rows in parts.values():
            facts = np.array(rows, np.int64).reshape(-1, 3)
            there = self.places(np.concatenate([facts, _backwards(facts, self.reverse)]))
            there = np.unique(there[there >= 0])
            there = there[~seen[there]]  # a triple that occurs twice belongs to its first part
            seen[there] = True
            found.append(self.facts[there])
        if not seen.all():
            subject, relation, object = self.facts[np.flatnonzero(~seen)[0]].tolist()
            raise InputError(
                f"{path} does not assign {int((~seen).sum()):,} facts of the knowledge base to a part, e.g. "
                f"{self.entities[subject]} {self.relations[relation]} {self.entities[object]}; give the table that it "
                "was built with"
            )
        return Split(*found)

    def places(self, facts: Int64[np.ndarray, "fact 3"]) -> Int64[np.ndarray, " fact"]:
        """Return the position of triples in `facts`; -1 for unknown ones."""
        own, wanted = self._keys(self.facts), self._keys(facts)
        at = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        return np.where(own[at] == wanted, at, -1)

    def _keys(self, facts: Int64[np.ndarray, "fact 3"]) -> Int64[np.ndarray, " fact"]:
        pairs = facts[:, 0] * len(self.relations) + facts[:, 1]
        return np.asarray(pairs * len(self.entities) + facts[:, 2])


@dataclass(frozen=True, slots=True)
class Split:
    """Triples to train on, to validate on and to test on."""

    train: Int64[np.ndarray, "fact 3"]
    dev: Int64[np.ndarray, "fact 3"]
    test: Int64[np.ndarray, "fact 3"]


@dataclass(frozen=True)
class Queries:
    """Triples as queries (subject, relation, ?) with all correct objects."""

    subjects: Int64[np.ndarray, " query"]
    relations: Int64[np.ndarray, " query"]
    starts: Int64[np.ndarray, " query+1"]
    """Offset of each query's objects, and the end of the last."""
    objects: Int64[np.ndarray, " fact"]

    @classmethod
    def of(cls, facts: Int64[np.ndarray, "fact 3"]) -> Queries:
        """Group triples: [[0, 1, 5], [0, 1, 7], [2, 0, 5]] -> two queries, with the objects [5, 7] and [5]."""
        facts = facts[np.lexsort((facts[:, 2], facts[:, 1], facts[:, 0]))]
        new = np.ones(len(facts), bool)
        new[1:] = (facts[1:, :2] != facts[:-1, :2]).any(1)
        starts = np.append(np.flatnonzero(new), len(facts))
        return cls(facts[new, 0], facts[new, 1], starts, np.ascontiguousarray(facts[:, 2]))

    def __len__(self) -> int:
        return len(self.subjects)

    def find(
        self, subjects: Int64[np.ndarray, " query"], relations: Int64[np.ndarray, " query"]
    ) -> Int64[np.ndarray, " query"]:
        """Return the numbers of queries; -1 for those without an object."""
        wide = 1 + max((int(of.max(initial=0)) for of in (self.relations, relations)), default=0)
        own, wanted = self.subjects * wide + self.relations, subjects * wide + relations
        if not len(own):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        return np.where(own[at] == wanted, at, -1)

    def take(
        self, numbers: Int64[np.ndarray, " query"]
    ) -> tuple[Int64[np.ndarray, " right"], Int64[np.ndarray, " right"]]:
        """Return the objects of some queries, concatenated, and for each the position of its query in `numbers`."""
        counts = np.where(numbers < 0, 0, self.starts[numbers + 1] - self.starts[numbers])
        places = np.repeat(np.arange(len(numbers)), counts)
        begins = np.repeat(self.starts[numbers] - (np.cumsum(counts) - counts), counts)
        return self.objects[begins + np.arange(len(places))], places


def _holds(sorted_numbers: Int64[np.ndarray, " n"], number: int) -> bool:
    at = int(np.searchsorted(sorted_numbers, number))
    return at < len(sorted_numbers) and int(sorted_numbers[at]) == number


def _backwards(facts: Int64[np.ndarray, "fact 3"], reverse: Int64[np.ndarray, " r"]) -> Int64[np.ndarray, "fact 3"]:
    return np.stack([facts[:, 2], reverse[facts[:, 1]], facts[:, 0]], axis=1)


def _twins(facts: Int64[np.ndarray, "fact 3"], entities: int, relations: int) -> dict[int, list[int]]:
    """Return the relations that are the reverse of each relation."""
    keys = facts[:, 0] * entities + facts[:, 2]
    order = np.argsort(keys, kind="stable")
    wanted = facts[:, 2] * entities + facts[:, 0]
    first, end = (np.searchsorted(keys[order], wanted, side=side) for side in ("left", "right"))
    counts = end - first
    here = np.repeat(np.arange(len(facts)), counts)
    there = order[np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(here))]
    both, times = np.unique(facts[here, 1] * relations + facts[there, 1], return_counts=True)
    sizes = np.bincount(facts[:, 1], minlength=relations)
    one, other = both // relations, both % relations
    found: dict[int, list[int]] = {}
    for r, twin in np.stack([one, other], 1)[times >= ALIKE * np.maximum(sizes[one], sizes[other])].tolist():
        found.setdefault(r, []).append(twin)
    return found
