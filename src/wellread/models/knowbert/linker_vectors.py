"""Candidate vectors of a linker at inference, in numpy: from an 8-bit table, or projected from the KB's vectors.

Both have the same `look_up`, that of `models.knowbert.entity_tables.EntityProjection`, which trains the projection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import MASK_ENTITY
from wellread.models.knowbert.entity_kinds import find_kinds
from wellread.models.knowbert.quantization import Int8EntityTable
from wellread.runtime.weights import Floats, Norm

Ints = NDArray[np.int64]

NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class EntityProjector:
    """Projection of entity vectors: e = LayerNorm([vector ; kind embedding] W + b), and the MASK entity."""

    weight: Floats | None
    """(dim, raw + kind width); None: vectors are not projected."""
    bias: Floats | None
    kinds: Floats | None
    """(kind, width): embeddings of the entities' kinds."""
    mask: Floats
    norm: Norm

    @classmethod
    def of(cls, weights: Mapping[str, Floats]) -> EntityProjector:
        """Return the projection with weights named as in the layer's `entities`."""
        norm = Norm(weights["norm.weight"], weights["norm.bias"])
        projection = weights.get("linear.weight"), weights.get("linear.bias"), weights.get("kinds.weight")
        return cls(*projection, weights["mask"], norm)

    @property
    def masked(self) -> Floats:
        """Vector of the MASK entity, normed."""
        return layer_norm(self.mask[None], self.norm, NORM_EPSILON)

    def __call__(self, vectors: NDArray[np.floating[Any]], kinds: Ints | None) -> Floats:
        """Return the projected, normed vectors (row, dim); a row's vector does not depend on the other rows."""
        projected = vectors.astype(np.float64)
        if self.weight is not None and self.bias is not None:
            if self.kinds is not None:
                projected = np.concatenate((projected, self.kinds[kinds]), 1)
            projected = projected @ self.weight.T.astype(np.float64) + self.bias
        return layer_norm(projected, self.norm, NORM_EPSILON)


class EntityLookup(ABC):
    """Vectors of numbered entities."""

    def __init__(self, projector: EntityProjector) -> None:
        self.projector = projector

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Ints) -> Floats:
        """Return the vectors of some rows, which are distinct and ascending."""

    def look_up(self, entities: Ints) -> tuple[Floats, Ints]:
        """Return the vectors of a batch's entities and the row of each candidate in them (-1: none)."""
        distinct, inverse = np.unique(entities, return_inverse=True)
        if len(distinct) and (distinct[-1] >= len(self) or distinct[0] < MASK_ENTITY):
            raise UsageError(
                f"candidates are rows {distinct[0]} to {distinct[-1]} of entities, of which there are {len(self)}; "
                "make them with the linker's own table"
            )
        known = distinct[distinct >= 0]
        vectors = np.concatenate((self.take(known), self.projector.masked))
        rows = np.where(entities >= 0, inverse.reshape(entities.shape) - (len(distinct) - len(known)), entities)
        rows[entities == MASK_ENTITY] = len(known)
        return vectors, rows


class Int8Entities(EntityLookup):
    """Vectors in an 8-bit table, and those of entities that were added to the KB since."""

    def __init__(self, table: Int8EntityTable, projector: EntityProjector) -> None:
        super().__init__(projector)
        if table.dim != len(projector.mask):
            raise InputError(
                f"the table of entities has {table.dim} numbers for each, the layer {len(projector.mask)}; they are "
                "not of one model: copy the linker's folder again"
            )
        self.table = table
        self._added: Floats = np.zeros((0, table.dim), np.float32)

    def __len__(self) -> int:
        return len(self.table) + len(self._added)

    def add(self, vectors: NDArray[np.floating[Any]], kinds: Ints | None = None) -> Ints:
        """Project the original vectors of more entities and return their rows."""
        begin = len(self)
        self._added = np.concatenate((self._added, self.projector(vectors, kinds)))
        return np.arange(begin, len(self), dtype=np.int64)

    def clear_added(self) -> None:
        """Remove the added entities."""
        self._added = np.zeros((0, self.table.dim), np.float32)

    def take(self, rows: Ints) -> Floats:
        """Return the vectors of some rows, which are distinct and ascending."""
        border = int(np.searchsorted(rows, len(self.table)))
        return np.concatenate((self.table.take(rows[:border]), self._added[rows[border:] - len(self.table)]))


class ProjectedEntities(EntityLookup):
    """Vectors of a KB, projected when they are needed."""

    def __init__(self, projector: EntityProjector, raw: int) -> None:
        super().__init__(projector)
        self._raw = raw
        self.rows: NDArray[np.floating[Any]] = np.zeros((0, raw), np.float32)
        self.kinds: NDArray[np.integer[Any]] | None = None
        """Number of each row's kind, if kinds have embeddings."""

    def __len__(self) -> int:
        return len(self.rows)

    def take_of(self, kb: KnowledgeBase, vectors: EntityVectors) -> None:
        """Use the vectors of a KB, with the kinds of its entities if these have embeddings."""
        if vectors.dim != self._raw:
            raise UsageError(
                f"the entity vectors have {vectors.dim} numbers, the model expects {self._raw}; give it the vectors "
                "it was made for"
            )
        kinds = None
        if self.projector.kinds is not None:
            kinds = find_kinds(kb, vectors, len(self.projector.kinds))
            most = int(kinds.max(initial=0))
            if most >= len(self.projector.kinds) or int(kinds.min(initial=0)) < 0:
                raise UsageError(f"the table has the kind {most}, the model knows {len(self.projector.kinds)} from 0")
        self.rows, self.kinds = vectors.rows, kinds

    def take(self, rows: Ints) -> Floats:
        """Return the vectors of some rows."""
        kinds = None if self.kinds is None else np.asarray(self.kinds[rows], np.int64)
        return self.projector(self.rows[rows], kinds)


def layer_norm(rows: NDArray[np.floating[Any]], norm: Norm, epsilon: float) -> Floats:
    """Normalise each row, in double precision, so that the order of summation does not show."""
    wide = rows.astype(np.float64)
    wide -= wide.mean(-1, keepdims=True)
    wide /= np.sqrt(np.square(wide).mean(-1, keepdims=True) + epsilon)
    return np.asarray((wide * norm.weight + norm.bias).astype(np.float32))
