"""Small storage of a linker: 4-bit weight changes, and projected entity vectors in 8 bits.

4 bits (`encode_4bit`, `decode_4bit`): groups of 64 numbers of a row share a scale. A code is one of -7 to 7, two of
them are one byte. The scale is the one of a few with the smallest error; it may clip the few largest numbers.

8 bits (`Int8EntityTable`): one file (safetensors layout) of projected, normed vectors, int8 rows with one scale each,
sorted by a hash of the entity ids. A linker with such a table does not need the original entity vectors. WordNet's
117,659 synsets take 10.3 MB with 80 numbers each, 8.5 MB with 64. New entities are added in memory.

    table = Int8EntityTable.build(layer.linker.entities, vectors.ids.take(range(len(vectors))))
    table.save(folder / "entities.safetensors")
    table = Int8EntityTable.load(folder / "entities.safetensors")
    layer.linker.entities = Int8Entities(table, layer.linker.entities)
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
from jaxtyping import Float, Float16, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from wellread.errors import InputError, UsageError
from wellread.io.arrays import map_arrays, save_arrays
from wellread.models.knowbert.config import MASK_ENTITY
from wellread.models.knowbert.entity_tables import EntityProjection

GROUP = 64
"""Numbers of a row that share a 4-bit scale."""
FORMAT = "wellread ready entities 1"
_LARGEST = 7
_CLIPPING = torch.linspace(0.5, 1.0, 11)
"""Shares of a group's largest number that are tried as the value of the largest code."""
_HASH_BYTES = 5
"""Bytes of an id's hash; 8 if two ids would share one."""


def encode_4bit(matrix: Float[Tensor, "row column"]) -> tuple[UInt8[Tensor, "row byte"], Float16[Tensor, "row group"]]:
    """Return the 4-bit codes of a matrix and the scales of its groups."""
    rows, columns = matrix.shape
    groups = pad(matrix.detach().float(), (0, -columns % GROUP)).view(rows, -1, GROUP)
    largest = groups.abs().amax(-1) / _LARGEST
    least_error = torch.full_like(largest, float("inf"))
    scales = torch.zeros_like(largest, dtype=torch.float16)
    for share in _CLIPPING:
        scale = (largest * share).half()
        error = (_round(groups, scale) * scale.float()[..., None] - groups).square().sum(-1)
        scales = torch.where(error < least_error, scale, scales)
        least_error = torch.minimum(error, least_error)
    codes = (_round(groups, scales) + 8).to(torch.uint8).view(rows, -1)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales


def decode_4bit(
    codes: UInt8[Tensor, "row byte"], scales: Float16[Tensor, "row group"], columns: int
) -> Float[Tensor, "row column"]:
    """Return the matrix of some codes, up to rounding."""
    pairs = torch.stack([codes & 15, codes >> 4], -1).view(*scales.shape, GROUP)
    return ((pairs.float() - 8) * scales.float()[..., None]).view(len(codes), -1)[:, :columns]


def _round(groups: Tensor, scales: Tensor) -> Tensor:
    divisors = scales.float().clamp(min=torch.finfo(torch.float16).tiny)[..., None]
    return (groups / divisors).round().clamp(-_LARGEST, _LARGEST)


@dataclass(frozen=True, eq=False)
class Int8EntityTable:
    """Projected, normed entity vectors in 8 bits, memory-mapped."""

    codes: NDArray[np.int8] = field(repr=False)
    scales: NDArray[np.float16] = field(repr=False)
    keys: NDArray[np.uint64] = field(repr=False)
    """Hashes of the entity ids, ascending: the order of the rows."""
    width: int
    """Bytes of a hash."""
    fingerprint: str = ""
    """Fingerprint of the projected vectors (`EntityVectors.fingerprint`)."""
    kinds: tuple[str, ...] = ()
    """Names of the entity kinds in the order of their embeddings, if the projection has any."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return int(self.codes.shape[1])

    @classmethod
    def build(
        cls, projection: EntityProjection, ids: Sequence[str], *, fingerprint: str = "", kinds: Iterable[str] = ()
    ) -> Int8EntityTable:
        """Project and quantize all entities of a projection, whose ids are given in the order of its rows."""
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
            codes[begin:end], scales[begin:end] = _encode_8bit(block.float().numpy())
            begin = end
        order = np.argsort(keys, kind="stable")
        return cls(codes[order], scales[order], keys[order], width, fingerprint, tuple(kinds))

    def save(self, path: str | Path) -> None:
        """Write the table atomically."""
        high = (self.keys >> np.uint64(8 * (self.width - 4))).astype(np.uint32)
        rest = self.keys & np.uint64((1 << 8 * (self.width - 4)) - 1)
        tails = rest.astype(np.uint8 if self.width == _HASH_BYTES else np.uint32)
        metadata = {"format": FORMAT, "fingerprint": self.fingerprint, "kinds": json.dumps(self.kinds)}
        arrays = (self.codes, self.scales, high, tails)
        save_arrays(Path(path), dict(zip(("codes", "scales", "keys", "key_tails"), arrays, strict=True)), metadata)

    @classmethod
    def load(cls, path: str | Path) -> Int8EntityTable:
        """Memory-map a saved table."""
        try:
            arrays, metadata = map_arrays(Path(path)), _metadata(Path(path))
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r}")
            tails = arrays["key_tails"]
            width = 4 + tails.dtype.itemsize
            keys = (arrays["keys"].astype(np.uint64) << np.uint64(8 * tails.dtype.itemsize)) + tails
            if not len(keys) == len(arrays["codes"]) == len(arrays["scales"]):
                raise ValueError("its parts do not fit together")
            kinds = tuple(json.loads(metadata["kinds"]))
            return cls(arrays["codes"], arrays["scales"], keys, width, metadata["fingerprint"], kinds)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is not a table of entities ({error}); copy the linker's folder again") from error

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of entities; -1 for unknown ids."""
        if not len(self) or not len(ids):
            return np.full(len(ids), -1, np.int64)
        keys = np.fromiter((_key(id, self.width) for id in ids), np.uint64, len(ids))
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return np.where(self.keys[rows] == keys, rows, -1).astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Float[Tensor, "row dim"]:
        """Return the vectors of some rows."""
        vectors = self.codes[rows].astype(np.float32)
        vectors *= self.scales[rows].astype(np.float32)[:, None]
        return torch.from_numpy(vectors)


class Int8Entities(nn.Module):
    """Replacement of a layer's `EntityProjection` that looks vectors up in an 8-bit table; inference only.

    The projection is kept for entities that the table does not have.
    """

    def __init__(self, table: Int8EntityTable, projection: EntityProjection) -> None:
        super().__init__()
        if table.dim != len(projection.mask):
            raise InputError(
                f"the table of entities has {table.dim} numbers for each, the layer {len(projection.mask)}; they are "
                "not of one model: copy the linker's folder again"
            )
        self.table = table
        self.projection = projection.train(False).requires_grad_(False)
        with torch.no_grad():
            self._extra = projection.norm(projection.mask[None]).float()  # the MASK entity, then added entities

    def __len__(self) -> int:
        return len(self.table) + len(self._extra) - 1

    @torch.no_grad()
    def add(self, vectors: Float[Tensor, "row raw"], kinds: Int[Tensor, " row"] | None = None) -> NDArray[np.int64]:
        """Project the original vectors of more entities and return their rows."""
        begin = len(self)
        projected = self.projection.norm(self.projection._project(vectors.to(self.projection.mask.dtype), kinds))
        self._extra = torch.cat((self._extra, projected.float()))
        return np.arange(begin, len(self), dtype=np.int64)

    def clear_added(self) -> None:
        """Remove the added entities."""
        self._extra = self._extra[:1]

    def look_up(
        self, entities: Int[Tensor, "mention cand"]
    ) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "mention cand"]]:
        """Return the vectors of a batch's entities and the row of each candidate in them (-1: none)."""
        if not entities.numel():
            return self._extra[:1], entities
        wanted = entities.cpu().numpy()
        distinct, inverse = np.unique(wanted, return_inverse=True)
        if distinct[-1] >= len(self) or distinct[0] < MASK_ENTITY:
            raise UsageError(
                f"candidates are rows {distinct[0]} to {distinct[-1]} of entities, of which there are {len(self)}; "
                "make them with the linker's own table"
            )
        own = distinct[(distinct >= 0) & (distinct < len(self.table))]
        special = int((distinct < 0).sum())
        added = distinct[special + len(own) :] - len(self.table) + 1
        vectors = torch.cat((self.table.take(own), self._extra[torch.from_numpy(added)], self._extra[:1]))
        rows = np.where(wanted >= 0, inverse.reshape(wanted.shape) - special, wanted)
        rows[wanted == MASK_ENTITY] = len(vectors) - 1
        return vectors.to(entities.device), torch.from_numpy(rows).to(entities.device)


def _encode_8bit(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Return rows as -127 … 127 and their scales."""
    scales = (np.abs(vectors).max(1, initial=0.0) / 127).astype(np.float16)
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)[:, None]
    return np.clip(np.rint(vectors / divisors), -127, 127).astype(np.int8), scales


def _key(id: str, width: int) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=width).digest(), "big")


def _keys(ids: Sequence[str]) -> tuple[NDArray[np.uint64], int]:
    for width in (_HASH_BYTES, 8):
        keys = np.fromiter((_key(id, width) for id in ids), np.uint64, len(ids))
        if len(np.unique(keys)) == len(keys):
            return keys, width
    raise UsageError("an id is given twice; every entity has one row")


def _metadata(path: Path) -> Mapping[str, str]:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata
