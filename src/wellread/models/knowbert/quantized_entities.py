"""Entities ready for a linker: projected and normed once, in 8 bits, so that nobody needs the vectors they come from.

A table is one file (safetensors layout): int8 rows with a scale each, in the order of a hash of their entities' ids.
WordNet's 117,659 synsets take 10.3 MB with 80 numbers each, 8.5 MB with 64. Entities that it does not know are added in
memory, as soon as somebody has vectors of them.

    ready = ReadyTable.build(layer.linker.entities, vectors.ids.take(range(len(vectors))), kinds)
    ready.save(folder / "entities.safetensors")
    layer.linker.entities = ReadyEntities(ReadyTable.load(folder / "entities.safetensors"), layer.linker.entities)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from wellread.errors import InputError, UsageError
from wellread.io.arrays import map_arrays, save_arrays
from wellread.models.knowbert.entity_tables import EntityProjection
from wellread.models.knowbert.mention_cache import MASK_ENTITY

FORMAT = "wellread ready entities 1"
_SHORT = 5
"""Bytes of an id's hash, 8 where two ids would share one."""


@dataclass(frozen=True, eq=False)
class ReadyTable:
    """Projected, normed vectors of entities in 8 bits, mapped from a file."""

    codes: NDArray[np.int8] = field(repr=False)
    scales: NDArray[np.float16] = field(repr=False)
    keys: NDArray[np.uint64] = field(repr=False)
    """Of every row, the hash of its entity's id: rows are in their order."""
    width: int
    """Bytes of a hash."""
    fingerprint: str = ""
    """Of what made the vectors that were projected (`EntityVectors.fingerprint`)."""
    kinds: tuple[str, ...] = ()
    """The names of kinds, in the order of their embeddings, where the projection has such."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return int(self.codes.shape[1])

    @property
    def file(self) -> str:
        """What changes when rows would."""
        return f"ready {self.fingerprint} {len(self)} {int(self.keys[-1]) if len(self) else 0}"

    @classmethod
    def build(
        cls, projection: EntityProjection, ids: Sequence[str], *, fingerprint: str = "", kinds: Iterable[str] = ()
    ) -> ReadyTable:
        """Of all entities of a projection's table, whose ids are given in the order of its rows."""
        if projection.table is None or len(projection.table) != len(ids):
            raise UsageError(
                f"there are {len(ids):,} ids for {0 if projection.table is None else len(projection.table):,} entity "
                "vectors; give the projection its vectors, and the ids of their rows"
            )
        keys, width = _keys(ids)
        codes = np.empty((len(ids) + 1, len(projection.mask)), np.int8)
        scales, begin = np.empty(len(ids) + 1, np.float16), 0
        for block in projection.project_all():
            end = begin + len(block)
            codes[begin:end], scales[begin:end] = _code(block.float().numpy())
            begin = end
        order = np.argsort(keys, kind="stable")
        return cls(codes[order], scales[order], keys[order], width, fingerprint, tuple(kinds))

    def save(self, path: str | Path) -> None:
        """Write it, whole or not at all."""
        high = (self.keys >> np.uint64(8 * (self.width - 4))).astype(np.uint32)
        rest = self.keys & np.uint64((1 << 8 * (self.width - 4)) - 1)
        tails = rest.astype(np.uint8 if self.width == _SHORT else np.uint32)
        about = {"format": FORMAT, "fingerprint": self.fingerprint, "kinds": json.dumps(self.kinds)}
        save_arrays(Path(path), {"codes": self.codes, "scales": self.scales, "keys": high, "key_tails": tails}, about)

    @classmethod
    def load(cls, path: str | Path) -> ReadyTable:
        """Map what was written."""
        try:
            found, about = map_arrays(Path(path)), _about(Path(path))
            if about.get("format") != FORMAT:
                raise ValueError(f"its format is {about.get('format')!r}")
            tails = found["key_tails"]
            width = 4 + tails.dtype.itemsize
            keys = (found["keys"].astype(np.uint64) << np.uint64(8 * tails.dtype.itemsize)) + tails
            if not len(keys) == len(found["codes"]) == len(found["scales"]):
                raise ValueError("its parts do not fit together")
            kinds = tuple(json.loads(about["kinds"]))
            return cls(found["codes"], found["scales"], keys, width, about["fingerprint"], kinds)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is no table of entities ({error}); copy the linker's folder again") from error

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The rows of entities; -1 for an id that is not there."""
        if not len(self) or not len(ids):
            return np.full(len(ids), -1, np.int64)
        asked = np.fromiter((_key(id, self.width) for id in ids), np.uint64, len(ids))
        places = np.minimum(np.searchsorted(self.keys, asked), len(self) - 1)
        return np.where(self.keys[places] == asked, places, -1).astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Float[Tensor, "row dim"]:
        """The vectors of some rows."""
        vectors = self.codes[rows].astype(np.float32)
        vectors *= self.scales[rows].astype(np.float32)[:, None]
        return torch.from_numpy(vectors)


class ReadyEntities(nn.Module):
    """Stands where a layer has its `EntityProjection`: looks vectors up in a ready table; it does not learn.

    The projection is kept for entities that the table does not know.
    """

    def __init__(self, table: ReadyTable, projection: EntityProjection) -> None:
        super().__init__()
        if table.dim != len(projection.mask):
            raise InputError(
                f"the table of entities has {table.dim} numbers for each, the layer {len(projection.mask)}; they are "
                "not of one model: copy the linker's folder again"
            )
        self.table = table
        self.projection = projection.train(False).requires_grad_(False)
        with torch.no_grad():
            self._more = projection.norm(projection.mask[None]).float()  # the MASK entity, then those that were added

    def __len__(self) -> int:
        return len(self.table) + len(self._more) - 1

    @torch.no_grad()
    def add(self, vectors: Float[Tensor, "row raw"], kinds: Int[Tensor, " row"] | None = None) -> NDArray[np.int64]:
        """Project more entities, by vectors as the projection was made for; gives their rows."""
        begin = len(self)
        made = self.projection.norm(self.projection._project(vectors.to(self.projection.mask.dtype), kinds))
        self._more = torch.cat((self._more, made.float()))
        return np.arange(begin, len(self), dtype=np.int64)

    def forget(self) -> None:
        """Without those that were added."""
        self._more = self._more[:1]

    def look_up(
        self, entities: Int[Tensor, "mention cand"]
    ) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "mention cand"]]:
        """The vectors of a batch's entities, and which of them each candidate has (-1: none)."""
        if not entities.numel():
            return self._more[:1], entities
        asked = entities.cpu().numpy()
        distinct, back = np.unique(asked, return_inverse=True)
        if distinct[-1] >= len(self) or distinct[0] < MASK_ENTITY:
            raise UsageError(
                f"candidates are rows {distinct[0]} to {distinct[-1]} of entities, of which there are {len(self)}; "
                "make them with the linker's own table"
            )
        own = distinct[(distinct >= 0) & (distinct < len(self.table))]
        none = int((distinct < 0).sum())
        more = distinct[none + len(own) :] - len(self.table) + 1
        vectors = torch.cat((self.table.take(own), self._more[torch.from_numpy(more)], self._more[:1]))
        rows = np.where(asked >= 0, back.reshape(asked.shape) - none, asked)
        rows[asked == MASK_ENTITY] = len(vectors) - 1
        return vectors.to(entities.device), torch.from_numpy(rows).to(entities.device)


def _code(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Rows as -127 … 127 times a scale."""
    scales = (np.abs(vectors).max(1, initial=0.0) / 127).astype(np.float16)
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)[:, None]
    return np.clip(np.rint(vectors / divisors), -127, 127).astype(np.int8), scales


def _key(id: str, width: int) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=width).digest(), "big")


def _keys(ids: Sequence[str]) -> tuple[NDArray[np.uint64], int]:
    for width in (_SHORT, 8):
        keys = np.fromiter((_key(id, width) for id in ids), np.uint64, len(ids))
        if len(np.unique(keys)) == len(keys):
            return keys, width
    raise UsageError("an id is given twice; every entity has one row")


def _about(path: Path) -> Mapping[str, str]:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        head: dict[str, Any] = json.loads(file.read(size))
    about: dict[str, str] = head.get("__metadata__", {})
    return about
