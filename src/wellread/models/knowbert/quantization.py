"""Small storage of a linker: 4-bit weight changes, and projected entity vectors in 8 bits.

4 bits (`encode_4bit`, `decode_4bit`): groups of 64 numbers of a row share a scale. A code is one of -7 to 7, two of
them are one byte. The scale is the one of a few with the smallest error; it may clip the few largest numbers.

8 bits (`Int8EntityTable`): one file (safetensors layout) of projected, normed vectors, int8 rows with one scale each,
sorted by a hash of the entity ids. A linker with such a table does not need the original entity vectors. WordNet's
117,659 synsets take 10.3 MB with 80 numbers each, 8.5 MB with 64. New entities are added in memory
(`models.knowbert.linker_vectors`).

    table = Int8EntityTable.build(layer.linker.entities, vectors.ids.take(range(len(vectors))))
    table.save(folder / "entities.safetensors")
    table = Int8EntityTable.load(folder / "entities.safetensors")
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError, UsageError
from wellread.io.arrays import map_with_metadata, save_arrays

GROUP = 64
"""Numbers of a row that share a 4-bit scale."""
FORMAT = "wellread ready entities 1"
_LARGEST = 7
_CLIPPING = np.linspace(0.5, 1.0, 11, dtype=np.float32)
"""Shares of a group's largest number that are tried as the value of the largest code."""
_HASH_BYTES = 5
"""Bytes of an id's hash; 8 if two ids would share one."""

Floats = NDArray[np.float32]


def encode_4bit(matrix: NDArray[np.floating[Any]]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return the 4-bit codes (row, byte) of a matrix and the scales (row, group) of its groups."""
    rows, columns = matrix.shape
    groups = np.pad(np.asarray(matrix, np.float32), ((0, 0), (0, -columns % GROUP))).reshape(rows, -1, GROUP)
    largest = np.abs(groups).max(-1) / np.float32(_LARGEST)
    least_error = np.full_like(largest, np.inf)
    scales = np.zeros_like(largest, dtype=np.float16)
    for share in _CLIPPING:
        scale = (largest * share).astype(np.float16)
        error = np.square(_round(groups, scale) * scale.astype(np.float32)[..., None] - groups).sum(-1)
        scales = np.where(error < least_error, scale, scales)
        least_error = np.minimum(error, least_error)
    codes = (_round(groups, scales) + 8).astype(np.uint8).reshape(rows, -1)
    pairs = np.asarray(codes[:, ::2] | codes[:, 1::2] << 4, np.uint8)
    return pairs, scales


def decode_4bit(codes: NDArray[np.uint8], scales: NDArray[np.float16], columns: int) -> Floats:
    """Return the matrix (row, column) of some codes, up to rounding."""
    whole = np.empty((*codes.shape, 2), np.float32)
    whole[..., 0], whole[..., 1] = codes & 15, codes >> 4
    groups = whole.reshape(*scales.shape, GROUP)
    groups -= 8
    groups *= scales.astype(np.float32)[..., None]
    return groups.reshape(len(codes), -1)[:, :columns]


def _round(groups: Floats, scales: NDArray[np.float16]) -> Floats:
    divisors = np.maximum(scales.astype(np.float32), np.finfo(np.float16).tiny)[..., None]
    return np.clip(np.rint(groups / divisors), -_LARGEST, _LARGEST)


class Projection(Protocol):
    """Protocol of a projection of entity vectors, as `models.knowbert.entity_tables.EntityProjection`."""

    @property
    def table(self) -> Sized | None:
        """The entity vectors."""

    def project_all(self) -> Iterable[Any]:
        """Yield the projected, normed vectors of all entities in blocks of rows, then that of the MASK entity."""


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
        cls, projection: Projection, ids: Sequence[str], *, fingerprint: str = "", kinds: Iterable[str] = ()
    ) -> Int8EntityTable:
        """Project and quantize all entities of a projection, whose ids are given in the order of its rows."""
        if projection.table is None or len(projection.table) != len(ids):
            raise UsageError(
                f"there are {len(ids):,} ids for {0 if projection.table is None else len(projection.table):,} entity "
                "vectors; give the projection its vectors, and the ids of their rows"
            )
        keys, width = _keys(ids)
        parts = [_encode_8bit(np.asarray(block, np.float32)) for block in projection.project_all()]
        codes, scales = (np.concatenate(column) for column in zip(*parts, strict=True))
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
            arrays, metadata = map_with_metadata(Path(path))
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

    def take(self, rows: NDArray[np.int64]) -> Floats:
        """Return the vectors (row, dim) of some rows."""
        vectors = self.codes[rows].astype(np.float32)
        vectors *= self.scales[rows].astype(np.float32)[:, None]
        return vectors


def _encode_8bit(vectors: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
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
