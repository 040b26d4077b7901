"""Which entities of a knowledge base are joined by a fact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from wellread.kb.names import Offsets
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase


@dataclass(frozen=True, slots=True)
class Joined:
    """Which of some entities are joined by a fact in either direction; an entity is its number among them."""

    count: int
    pairs: Offsets
    """one * count + other, sorted, both ways round."""

    @classmethod
    def read(cls, kb: KnowledgeBase, entities: Sequence[str]) -> Joined:
        """The facts between the entities of these ids; ids that the KB does not hold have none."""
        count, found = len(entities), []
        with sqlite_errors(kb.path), kb.snapshot():
            ask = kb.connection.execute
            rows = (
                (one, ask("SELECT num FROM entities WHERE id = ?", (id,)).fetchone()) for one, id in enumerate(entities)
            )
            here = {row[0]: one for one, row in rows if row is not None}
            for num, one in here.items():
                for (other_num,) in ask("SELECT object FROM facts WHERE subject = ?", (num,)):
                    other = here.get(other_num)
                    if other is not None:
                        found += [one * count + other, other * count + one]
        return cls(count, np.unique(np.array(found, np.int64)))

    def between(
        self, one: Int64[np.ndarray, "*shape"], other: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Whether each pair is joined; a negative number is no entity."""
        wanted = one * self.count + other
        if not len(self.pairs):
            return np.zeros(wanted.shape, bool)
        at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        return np.asarray((self.pairs[at] == wanted) & (one >= 0) & (other >= 0))
