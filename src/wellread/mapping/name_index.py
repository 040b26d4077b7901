"""Index of a KB's names for look-up by whole strings: equal, reordered, abbreviated, misspelt or similar names.

All names with the same normal form are one row. Rows are found by

- the form itself, its letters without blanks, and its words in alphabetical order;
- the initials of its words, and the other way round;
- for short names their letters with one left out, which finds any single typo (SymSpell, Garbe 2012);
- TF-IDF of character 3-grams, which finds longer misspelt, shortened and extended names.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.mapping.ngrams import NgramIndex
from wellread.mapping.normal_form import initials, normal_words

_SHORT = 12
"""Maximum letters of names whose single typos are looked up."""
_MOST = 24
"""Maximum rows that one look-up other than of the form itself adds."""
NEAREST = 10
"""Rows found by 3-grams."""


class NamedEntity(NamedTuple):
    """An entity with its names, as read from a KB."""

    id: str
    title: str
    popularity: float
    kind: str
    aliases: Sequence[tuple[str, float]]


class Bearer(NamedTuple):
    """An entity that has the names of a row."""

    entity: int
    prior: float
    """Its share of the counts of these names."""
    is_title: bool
    spellings: tuple[str, ...]


@dataclass(frozen=True)
class NameIndex:
    """Names of entities by normal form."""

    entities: list[tuple[str, str]]
    """Id and title by number."""
    kinds: list[str]
    ranks: NDArray[np.float32]
    """Popularity of each entity as a rank from 0 to 1; equal ones have the same."""
    forms: list[str]
    words: list[list[str]]
    bearers: list[list[Bearer]]
    """Entities of each row, the likeliest first."""
    of_entity: list[list[int]]
    """Rows of each entity."""
    rarity: dict[str, float]
    """Inverse document frequency of each word: low for words of many names, such as "inc" among companies."""
    rarest: float
    by_form: dict[str, int]
    by_letters: dict[str, list[int]]
    by_bag: dict[str, list[int]]
    by_initials: dict[str, list[int]]
    deletions: NDArray[np.int64]
    """Sorted hashes of short names with one letter left out."""
    deletion_rows: NDArray[np.int64]
    ngrams: NgramIndex

    @classmethod
    def of_kb(cls, kb: KnowledgeBase, among: Collection[str] | None = None) -> NameIndex:
        """Build the index of a KB's entities, or of those with the given ids."""
        entities = read_entities(kb)
        return cls.build(entities if among is None else [entity for entity in entities if entity.id in among])

    @classmethod
    def build(cls, entities: Iterable[NamedEntity]) -> NameIndex:
        """Build the index of entities."""
        ids: list[tuple[str, str]] = []
        kinds: list[str] = []
        popularity: list[float] = []
        found: dict[str, dict[int, list[tuple[str, float]]]] = defaultdict(dict)
        words_of: dict[str, list[str]] = {}
        for number, entity in enumerate(entities):
            ids.append((entity.id, entity.title))
            kinds.append(entity.kind)
            popularity.append(entity.popularity)
            for name, count in ((entity.title, 0.0), *entity.aliases):
                given = normal_words(name)
                form = " ".join(given)
                if form:
                    words_of[form] = given
                    found[form].setdefault(number, []).append((name, count))
        forms = list(found)
        words = [words_of[form] for form in forms]
        bearers = [_bearers(found[form], ids, popularity) for form in forms]
        of_entity: list[list[int]] = [[] for _ in ids]
        for row, holders in enumerate(bearers):
            for holder in holders:
                of_entity[holder.entity].append(row)
        spread = Counter(word for row in words for word in set(row))
        rarity = {word: math.log(1 + len(forms) / count) for word, count in spread.items()}
        hashes, rows = _deletion_table(words)
        return cls(
            ids,
            kinds,
            _ranks(popularity),
            forms,
            words,
            bearers,
            of_entity,
            rarity,
            math.log(1 + len(forms)),
            {form: row for row, form in enumerate(forms)},
            _grouped("".join(row) for row in words),
            _grouped(" ".join(sorted(row)) if len(row) > 1 else "" for row in words),
            _grouped(initials(row) if len(row) > 1 else "" for row in words),
            hashes,
            rows,
            NgramIndex.build(forms),
        )

    def __len__(self) -> int:
        return len(self.forms)

    def rows_of(self, words: list[str]) -> dict[int, None]:
        """Return the rows of equal, reordered and abbreviated names and of single typos, the most similar first."""
        found: dict[int, None] = {}
        letters = "".join(words)
        row = self.by_form.get(" ".join(words))
        if row is not None:
            found[row] = None
        tables = [(self.by_letters, letters), (self.by_bag, " ".join(sorted(words)))]
        if len(words) == 1:
            tables.append((self.by_initials, letters))
        elif len(words) < _SHORT:
            tables.append((self.by_letters, initials(words)))
        for table, key in tables:
            found.update(dict.fromkeys(table.get(key, ())[:_MOST]))
        if 2 < len(letters) <= _SHORT + 1:
            keys = np.array([hash(one) for one in deletions(letters)], np.int64)
            begins = np.searchsorted(self.deletions, keys, "left").tolist()
            ends = np.searchsorted(self.deletions, keys, "right").tolist()
            for begin, end in zip(begins, ends, strict=True):
                if begin < end:
                    found.update(dict.fromkeys(self.deletion_rows[begin : min(end, begin + _MOST)].tolist()))
        return found


def deletions(letters: str) -> set[str]:
    """Return a string, and it with each one letter left out."""
    return {letters, *(letters[:place] + letters[place + 1 :] for place in range(len(letters)))}


def read_entities(kb: KnowledgeBase) -> list[NamedEntity]:
    """Read the entities of a KB with their names."""
    with sqlite_errors(kb.path), kb.snapshot():
        entities = kb.connection.execute(
            "SELECT num, id, title, popularity, kind FROM entities ORDER BY num"
        ).fetchall()
        aliases: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for num, name, count in kb.connection.execute("SELECT entity, name, count FROM aliases"):
            aliases[num].append((name, count))
    return [NamedEntity(id, title, number, kind, aliases[num]) for num, id, title, number, kind in entities]


def _bearers(
    found: dict[int, list[tuple[str, float]]], ids: Sequence[tuple[str, str]], popularity: Sequence[float]
) -> list[Bearer]:
    """Return the bearers of names; half a count is added to each, so that an alias without counts keeps a share."""
    counts = {number: 0.5 + sum(count for _, count in names) for number, names in found.items()}
    total = sum(counts.values())
    ordered = sorted(found, key=lambda number: (-counts[number], -popularity[number], number))
    return [
        Bearer(
            number,
            counts[number] / total,
            any(name == ids[number][1] for name, _ in found[number]),
            tuple(dict.fromkeys(name for name, _ in found[number])),
        )
        for number in ordered
    ]


def _ranks(popularity: Sequence[float]) -> NDArray[np.float32]:
    """Return ranks from 0 to 1: the share of entities that are less popular."""
    values = np.asarray(popularity, np.float64)
    return (np.searchsorted(np.sort(values), values, "left") / max(1, len(values))).astype(np.float32)


def _grouped(keys: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of each key that is not empty."""
    groups: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        if key:
            groups.setdefault(key, []).append(number)
    return groups


def _deletion_table(words: Sequence[list[str]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    hashes: list[int] = []
    owners: list[int] = []
    for row, found in enumerate(words):
        letters = "".join(found)
        if 2 < len(letters) <= _SHORT:
            made = deletions(letters)
            hashes += map(hash, made)
            owners += [row] * len(made)
    keys, rows = np.array(hashes, np.int64), np.array(owners, np.int64)
    order = np.argsort(keys, kind="stable")
    return keys[order], rows[order]
