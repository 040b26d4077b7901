"""Entity vectors of a KB for a model: memory-mapped, not weights; projected once in inference.

In training only the distinct entities of a batch are projected and normed. In inference all entities of the KB are,
once: a small table stays in memory, a large one is written beside the vectors and memory-mapped, so that memory does
not grow with the KB and processes share it. Such a file is named by a digest of the vectors and the weights.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from wellread.errors import StorageError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.io.arrays import Blocks, save_arrays
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import MASK_ENTITY, NO_ENTITY
from wellread.models.knowbert.entity_kinds import find_kinds

SMALL = 8 << 20
"""Maximum size in bytes of a projected table that stays in memory."""
_ROWS = 8192
"""Number of entities that are projected together."""
_BITS: dict[torch.dtype, type[np.generic]] = {
    torch.float64: np.uint64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: np.uint16,
}
"""Types of numbers in a file; what numpy or our files do not support is stored as integers of the same bits."""


@dataclass(frozen=True, eq=False)
class EntityTable:
    """Memory-mapped vectors of all entities of a KB, by row."""

    vectors: NDArray[Any] = field(repr=False)
    kinds: NDArray[np.integer[Any]] | None = field(default=None, repr=False)
    """Number of each entity's kind, from 0 (WordNet: its part of speech); None without kinds."""
    folder: Path | None = None
    """Folder that keeps projected tables; None: every process makes its own."""
    fingerprint: str = ""
    """Identifies vectors and kinds; without it nothing is kept in the folder."""

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2:
            raise UsageError(f"entity vectors have {self.vectors.ndim} dimensions; expected entities by numbers")
        if self.kinds is not None and len(self.kinds) != len(self.vectors):
            raise UsageError(f"there are {len(self.kinds)} kinds for {len(self.vectors)} entities; give one for each")

    @classmethod
    def of(cls, vectors: EntityVectors, kinds: NDArray[np.integer[Any]] | None = None) -> EntityTable:
        """Build the table of a folder's vectors, with the kinds of their entities."""
        fingerprint = vectors.file
        if kinds is not None:
            fingerprint += hashlib.blake2b(np.ascontiguousarray(kinds).tobytes(), digest_size=8).hexdigest()
        return cls(vectors.rows, kinds, vectors.folder, fingerprint)

    def __len__(self) -> int:
        return len(self.vectors)

    def __deepcopy__(self, memo: dict[int, Any]) -> EntityTable:
        """Return itself: the table is read-only, so copies of a model share it."""
        return self

    def take(self, rows: Int[Tensor, " row"], dtype: torch.dtype) -> tuple[Float[Tensor, "row raw"], Tensor | None]:
        """Return the vectors and kinds of some rows."""
        return self._tensors(rows.cpu().numpy(), rows.device, dtype)

    def blocks(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the vectors and kinds of all entities in blocks."""
        for begin in range(0, len(self), _ROWS):
            yield self._tensors(slice(begin, begin + _ROWS), device, dtype)

    def _tensors(self, rows: Any, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        found = self.vectors[rows]
        found = found if found.flags.writeable else found.copy()  # torch warns about read-only arrays
        vectors = torch.from_numpy(found).to(device, dtype)
        if self.kinds is None:
            return vectors, None
        return vectors, torch.from_numpy(np.asarray(self.kinds[rows], np.int64)).to(device)


class EntityProjection(nn.Module):
    """Projection of entity vectors: e = LayerNorm([vector ; kind embedding] W + b), and a trained MASK entity.

    The vectors are set by `take` after building or loading; they are not weights.
    """

    def __init__(
        self, raw: int, dim: int, *, project: bool = True, kinds: int = 0, kind_width: int = 0, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.raw, self.drop = raw, drop
        self.kinds = nn.Embedding(kinds, kind_width) if kinds else None
        self.linear = nn.Linear(raw + (kind_width if kinds else 0), dim) if project else None
        self.mask = nn.Parameter(torch.empty(dim))
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.table: EntityTable | None = None
        self._projected = _ProjectedTable()

    def take(self, table: EntityTable) -> None:
        """Set the entity vectors."""
        if table.vectors.shape[1] != self.raw:
            raise UsageError(
                f"the entity vectors have {table.vectors.shape[1]} numbers, the model expects {self.raw}; give it the "
                f"vectors it was made for, or build it with raw = {table.vectors.shape[1]}"
            )
        if self.kinds is not None:
            if table.kinds is None:
                raise UsageError("the model has embeddings of entities' kinds; give the table the kind of each entity")
            most = int(table.kinds.max(initial=0))
            if most >= self.kinds.num_embeddings or int(table.kinds.min(initial=0)) < 0:
                raise UsageError(f"the table has the kind {most}, the model knows {self.kinds.num_embeddings} from 0")
        self.table, self._projected = table, _ProjectedTable()

    def take_of(self, kb: KnowledgeBase, vectors: EntityVectors) -> None:
        """Set the vectors of a KB, with the kinds of its entities if these have embeddings."""
        kinds = None if self.kinds is None else find_kinds(kb, vectors, self.kinds.num_embeddings)
        self.take(EntityTable.of(vectors, kinds))

    def look_up(
        self, entities: Int[Tensor, "mention cand"]
    ) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "mention cand"]]:
        """Return projected, normed vectors and the row of each candidate in them (-1: none).

        The vectors are those of the batch if the projection is trained, else those of all entities.
        """
        if not entities.numel():
            return self.norm(self.mask[None]), entities
        if self.table is None:
            raise UsageError("the knowledge layer has no entity vectors yet; give it some with take(EntityTable(...))")
        if int(entities.max()) >= len(self.table) or int(entities.min()) < MASK_ENTITY:
            raise UsageError(
                f"candidates are rows {int(entities.min())} to {int(entities.max())} of the entity vectors, which have "
                f"{len(self.table)}; make candidates and vectors of the same revision of the knowledge base"
            )
        if self._needs_gradient():
            self._projected.invalidate()
            self._projected.is_trained = True
            distinct, rows = torch.unique(entities, return_inverse=True)
            named = distinct >= 0
            vectors = torch.cat((self._project(*self.table.take(distinct[named], self._dtype)), self.mask[None]))
            rows = torch.where(entities >= 0, rows - (~named).sum(), entities)
            return self.norm(vectors), rows.masked_fill(entities == MASK_ENTITY, len(vectors) - 1)
        projected = self._projected.of(self)
        rows = entities.masked_fill(entities == MASK_ENTITY, len(self.table))
        if entities.device.type == "cpu":
            return projected, rows
        distinct, rows = torch.unique(rows, return_inverse=True)
        return projected[distinct.clamp(min=0).cpu()].to(rows.device), rows.masked_fill(entities == NO_ENTITY, -1)

    def train(self, mode: bool = True) -> EntityProjection:
        """Set the mode; training invalidates the projected table, because weight changes may go unnoticed."""
        if mode:
            self._projected.invalidate()
        return super().train(mode)

    def look_up_defined(
        self, entities: Int[Tensor, "mention cand"], rows: Int[Tensor, " row"], vectors: Float[Tensor, "row raw"]
    ) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "mention cand"]]:
        """Return the same as `look_up` with new vectors of some rows, which receive gradients.

        The table keeps them, so that later batches find what the encoder last said of an entity.
        """
        if self.table is None or not entities.numel():
            return self.look_up(entities)
        if not self.table.vectors.flags.writeable or self.table.fingerprint:
            self.take(EntityTable(np.array(self.table.vectors), self.table.kinds))
        assert self.table is not None
        self.table.vectors[rows.cpu().numpy()] = vectors.detach().cpu().float().numpy()
        self._projected.invalidate()
        distinct, places = torch.unique(entities, return_inverse=True)
        named = distinct >= 0
        raw, kinds = self.table.take(distinct[named], self._dtype)
        fresh = torch.full((len(self.table),), -1, device=rows.device).index_copy(
            0, rows, torch.arange(len(rows), device=rows.device)
        )[distinct[named]]
        at = (fresh >= 0).nonzero()[:, 0]
        raw = raw.index_copy(0, at, vectors[fresh[at]].to(raw.dtype))
        projected = torch.cat((self._project(raw, kinds), self.mask[None]))
        places = torch.where(entities >= 0, places - (~named).sum(), entities)
        return self.norm(projected), places.masked_fill(entities == MASK_ENTITY, len(projected) - 1)

    @property
    def _dtype(self) -> torch.dtype:
        return self.mask.dtype

    def _needs_gradient(self) -> bool:
        return self.training or (torch.is_grad_enabled() and any(part.requires_grad for part in self.parameters()))

    def _project(self, vectors: Float[Tensor, "row raw"], kinds: Int[Tensor, " row"] | None) -> Tensor:
        if self.linear is None:
            return vectors
        if self.kinds is None:
            projected = self.linear(vectors)
        else:  # each kind is projected once, and the vectors, which are not trained, need no gradient
            of_vectors, of_kinds = self.linear.weight[:, : self.raw], self.linear.weight[:, self.raw :]
            projected = linear(vectors, of_vectors) + linear(self.kinds.weight, of_kinds, self.linear.bias)[kinds]
        return dropout(projected, self.drop, self.training)

    @torch.no_grad()
    def project_all(self) -> Iterator[Float[Tensor, "row dim"]]:
        """Yield the projected vectors of all entities in blocks, then that of the MASK entity."""
        assert self.table is not None
        with torch.autocast(self.mask.device.type, enabled=False):
            for vectors, kinds in self.table.blocks(self.mask.device, self._dtype):
                yield self.norm(self._project(vectors, kinds)).cpu()
            yield self.norm(self.mask[None]).cpu()

    def digest(self) -> str:
        """Return a digest of vectors and weights."""
        assert self.table is not None
        digest = hashlib.blake2b(f"{self.table.fingerprint} {len(self.table)} {self._dtype}".encode(), digest_size=16)
        for name, weight in self.state_dict().items():
            digest.update(
                name.encode() + weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        return digest.hexdigest()


class _ProjectedTable:
    """Cache of all projected entity vectors for the present weights."""

    def __init__(self) -> None:
        self._table: Tensor | None = None
        self._digest = ""
        self._seen: list[Any] = []
        self._written: Path | None = None
        self._lock = threading.Lock()
        self.is_trained = False
        """True once the weights were trained here; their table is then of no use to other processes."""

    def __reduce__(self) -> tuple[type[_ProjectedTable], tuple[()]]:
        """Copy or pickle as an empty cache."""
        return _ProjectedTable, ()

    def invalidate(self) -> None:
        """Compare the weights themselves next time, not their version counters.

        Training may change weights without counting it, as a fused optimizer does.
        """
        self._seen = []

    def of(self, projection: EntityProjection) -> Float[Tensor, "row dim"]:
        """Return the vectors of all entities, projected again only if the weights have changed."""
        seen = [(part.data_ptr(), part.dtype, _changes(part)) for part in projection.parameters()]
        with self._lock, torch.inference_mode(False):  # the table may be used later with gradients
            if self._table is None or seen != self._seen:
                digest = projection.digest()
                if self._table is None or digest != self._digest:
                    self._table = self._make(projection, digest)
                self._digest, self._seen = digest, seen
            return self._table

    def _make(self, projection: EntityProjection, digest: str) -> Tensor:
        table, dtype, dim = projection.table, projection.mask.dtype, len(projection.mask)
        assert table is not None
        shape = (len(table) + 1, dim)
        size = shape[0] * dim * dtype.itemsize
        if size <= SMALL:
            return torch.cat(list(projection.project_all()))
        if self._written is not None:  # a table of former weights of this process
            self._written.unlink(missing_ok=True)
            self._written = None
        found = None
        if table.folder is not None and table.fingerprint and not self.is_trained:
            path = table.folder / f"projected-{digest}.safetensors"
            found = _map(path, shape, dtype)
            if found is None and _write(path, shape, dtype, projection):
                self._written, found = path, _map(path, shape, dtype)
        return _map_unnamed(shape, dtype, projection) if found is None else found


def _changes(weight: Tensor) -> int:
    return -1 if weight.is_inference() else int(weight._version)


def _map(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
    try:
        with safe_open(path, "pt") as file:
            table: Tensor = file.get_tensor("table").view(dtype)
    except (OSError, SafetensorError):
        return None  # missing, deleted or damaged: it is made again
    return table if table.shape == shape else None


def _write(path: Path, shape: tuple[int, int], dtype: torch.dtype, projection: EntityProjection) -> bool:
    bits = _BITS[dtype]

    def blocks() -> Iterator[NDArray[Any]]:
        for block in projection.project_all():
            yield block.contiguous().view(torch.uint8).numpy().view(bits)

    try:
        save_arrays(path, {"table": Blocks(bits, shape, blocks())}, {"format": "wellread projected 1"})
    except StorageError:  # a read-only folder, or a full disk
        return False
    return True


def _map_unnamed(shape: tuple[int, int], dtype: torch.dtype, projection: EntityProjection) -> Tensor:
    """Return a table in an unnamed file that is deleted with the process."""
    with tempfile.NamedTemporaryFile(suffix=".table") as file:
        for block in projection.project_all():
            file.write(block.contiguous().view(torch.uint8).numpy().data)
        file.flush()
        table: Tensor = torch.from_file(file.name, shared=False, size=shape[0] * shape[1], dtype=dtype)
        return table.view(shape)
