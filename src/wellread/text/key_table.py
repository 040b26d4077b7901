"""Hash table of 64-bit keys with vectorised look-up, which can be memory-mapped.

Open addressing in one array: a key's home slot is its top bits (keys are hashes already), and keys with the same home
follow each other. Sorted keys are placed in one pass, without a loop: the slot of the i-th key is the larger of its
home and the slot after its neighbour's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.text.words import Keys

_FILL = 0.5


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Table with keys in `slots` (0: empty, the last one always) and their `values`."""

    slots: Keys
    values: NDArray[np.unsignedinteger]

    @classmethod
    def build(cls, keys: Keys, values: NDArray[np.unsignedinteger]) -> KeyTable:
        """Build a table of distinct keys; the key 0 means "no key" and is left out."""
        order = np.argsort(keys, kind="stable")
        order = order[np.searchsorted(keys[order], np.uint64(1)) :]
        bits = max(1, int(np.ceil(np.log2(max(len(order), 1) / _FILL))))
        ranks = np.arange(len(order))
        places = np.maximum.accumulate((keys[order] >> np.uint64(64 - bits)).astype(np.int64) - ranks) + ranks
        end = int(places[-1]) + 1 if len(places) else 0
        slots = np.zeros(max(1 << bits, end) + 1, np.uint64)
        slots[places] = keys[order]
        placed = np.zeros(len(slots), values.dtype)
        placed[places] = values[order]
        return cls(slots, placed)

    @property
    def keys(self) -> Keys:
        """Keys of the table, sorted."""
        there: Keys = self.slots[self.slots != 0]
        return there

    def find(self, keys: Keys) -> NDArray[np.unsignedinteger]:
        """Return the values of keys; 0 for keys that are not in the table."""
        bits = (len(self.slots) - 1).bit_length() - 1
        places = (keys >> np.uint64(64 - bits)).view(np.int64)
        met = self.slots.take(places)
        found = met == keys
        pending = (~found & (met != 0)).nonzero()[0]
        while len(pending):
            places[pending] += 1
            met = self.slots.take(places[pending])
            same = met == keys[pending]
            found[pending[same]] = True
            pending = pending[~same & (met != 0)]
        values = np.zeros(len(keys), self.values.dtype)
        hits = found.nonzero()[0]
        values[hits] = self.values.take(places[hits])
        return values


class KeyLookup:
    """Look-up of single keys in a `KeyTable`, for a few keys faster than `KeyTable.find`."""

    def __init__(self, table: KeyTable) -> None:
        self._shift = 65 - (len(table.slots) - 1).bit_length()
        self._slot, self._value = table.slots.item, table.values.item

    def find(self, key: int) -> int:
        """Return the value of a key; 0 for a key that is not in the table."""
        place = key >> self._shift
        while met := self._slot(place):
            if met == key:
                return self._value(place)
            place += 1
        return 0


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Small bit table that rejects most keys that are not in a `KeyTable`."""

    bits: int
    there: NDArray[np.bool_]

    @classmethod
    def build(cls, keys: Keys) -> KeyFilter:
        """Build a filter that passes these keys, and about one in eight of others."""
        bits = min(22, max(8, (8 * len(keys)).bit_length()))
        there = np.zeros(1 << bits, np.bool_)
        there[keys >> np.uint64(64 - bits)] = True
        return cls(bits, there)

    def passing(self, keys: Keys) -> NDArray[np.int64]:
        """Return the rows of keys that may be in the table."""
        found: NDArray[np.int64] = np.flatnonzero(self.there.take((keys >> np.uint64(64 - self.bits)).view(np.int64)))
        return found


@dataclass(frozen=True, slots=True)
class FormTable:
    """Table of word forms: `table` maps the hash of a form to its first row; its rows go up to `last`."""

    table: KeyTable
    words: Keys
    kinds: NDArray[np.uint8]
    last: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, forms: Keys, words: Keys, kinds: NDArray[np.uint8]) -> FormTable:
        """Build a table from parallel columns; rows that differ only in kind become one row with both kinds."""
        order = np.lexsort((words, forms))
        forms, words, kinds = forms[order], words[order], kinds[order]
        pairs = np.flatnonzero(differ(forms) | differ(words))
        forms, words, kinds = forms[pairs], words[pairs], np.bitwise_or.reduceat(kinds, pairs) if len(pairs) else kinds
        first = np.flatnonzero(differ(forms))
        last = np.append(differ(forms)[1:], len(forms) > 0)[: len(forms)].astype(np.uint8)
        return cls(KeyTable.build(forms[first], (first + 1).astype(np.uint32)), words, kinds, last)

    def find(self, hashes: Keys) -> tuple[NDArray[np.int64], Keys, NDArray[np.uint8]]:
        """Return (row of `hashes`, word, kinds) for every word that a hash is a form of."""
        rows = self.table.find(hashes).astype(np.int64) - 1
        places = np.flatnonzero(rows >= 0)
        rows = rows[places]
        found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        while len(rows):
            found.append((places, rows))
            more = np.flatnonzero(self.last[rows] == 0)
            places, rows = places[more], rows[more] + 1
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint8)
        at = np.concatenate([place for place, _ in found])
        row = np.concatenate([row for _, row in found])
        return at, self.words[row], self.kinds[row]

    def columns(self) -> tuple[Keys, Keys, NDArray[np.uint8]]:
        """Return the columns given to `build`."""
        slots = np.flatnonzero(self.table.slots)
        heads = self.table.values[slots].astype(np.int64) - 1
        order = np.argsort(heads)
        counts = np.diff(np.append(heads[order], len(self.words)))
        return np.repeat(self.table.slots[slots[order]], counts), self.words[:], self.kinds[:]


def is_among(values: NDArray[Any], some: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are in a sorted array that is not empty; for few values faster than `np.isin`."""
    found: NDArray[np.bool_] = some[np.minimum(some.searchsorted(values), len(some) - 1)] == values
    return found


def differ(column: Keys) -> NDArray[np.bool_]:
    """True at the first row and wherever a row differs from the one before it."""
    differs = np.ones(len(column), np.bool_)
    differs[1:] = column[1:] != column[:-1]
    return differs
