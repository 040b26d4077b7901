"""A set of 64-bit keys that thousands are looked up in at once, and that can lie in a file without being read.

An open-addressing hash table as one array: a key's home is its top bits (keys are hashes already), and keys that
share a home follow each other. Sorted keys are placed in one pass, without a loop: the place of the i-th key is the
larger of its home and the place after its neighbour's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.kb.names import Keys

_FILL = 0.5


@dataclass(frozen=True, slots=True)
class KeyTable:
    """`slots` hold the keys (0: empty) and end with an empty one, `values` what belongs to them."""

    slots: Keys
    values: NDArray[np.unsignedinteger]

    @classmethod
    def build(cls, keys: Keys, values: NDArray[np.unsignedinteger]) -> KeyTable:
        """A table of distinct keys; the key 0 stands for "nothing" and is left out."""
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
        """The keys that are there, sorted."""
        there: Keys = self.slots[self.slots != 0]
        return there

    def find(self, keys: Keys) -> NDArray[np.unsignedinteger]:
        """The values of keys; 0 for those that are not there."""
        bits = (len(self.slots) - 1).bit_length() - 1
        places = (keys >> np.uint64(64 - bits)).view(np.int64)
        met = self.slots.take(places)
        found = met == keys
        pending = np.flatnonzero(~found & (met != 0))
        while len(pending):
            places[pending] += 1
            met = self.slots.take(places[pending])
            same = met == keys[pending]
            found[pending[same]] = True
            pending = pending[~same & (met != 0)]
        values = np.zeros(len(keys), self.values.dtype)
        hits = np.flatnonzero(found)
        values[hits] = self.values.take(places[hits])
        return values
