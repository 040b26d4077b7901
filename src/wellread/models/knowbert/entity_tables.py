"""Entity vectors for a model: mapped, no weights; what it makes of them is computed once where nothing is learned.

While a model learns, only the distinct entities of a batch are projected and normed. Where it does not, all entities of
the knowledge base are, once: a small table stays in memory, a large one is written beside the vectors and mapped, so
that memory does not grow with the knowledge base and processes share it. Such a file is named by a digest of the
vectors and of the weights that made it.
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
from wellread.models.knowbert.entity_types import find_kinds
from wellread.models.knowbert.mention_cache import MASK_ENTITY, NO_ENTITY

SMALL = 8 << 20
"""Bytes of a table that stays in memory."""
_ROWS = 8192
"""Entities that are projected together."""
_BITS: dict[torch.dtype, type[np.generic]] = {
    torch.float64: np.uint64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: np.uint16,
}
"""What numbers are in a file: those that numpy does not know (and files of ours) as their bits."""


@dataclass(frozen=True, eq=False)
class EntityTable:
    """The vectors of all entities of a knowledge base, by their rows, as they lie on the disk."""

    vectors: NDArray[Any] = field(repr=False)
    kinds: NDArray[np.integer[Any]] | None = field(default=None, repr=False)
    """Of every row, the kind of its entity from 0, for WordNet its part of speech; None: there are no kinds."""
    folder: Path | None = None
    """Where a projected table may be kept; None: it is made anew by every process."""
    fingerprint: str = ""
    """What changes whenever vectors or kinds do; without one nothing is kept in the folder."""

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2:
            raise UsageError(f"entity vectors have {self.vectors.ndim} dimensions; expected entities by numbers")
        if self.kinds is not None and len(self.kinds) != len(self.vectors):
            raise UsageError(f"there are {len(self.kinds)} kinds for {len(self.vectors)} entities; give one for each")

    @classmethod
    def of(cls, vectors: EntityVectors, kinds: NDArray[np.integer[Any]] | None = None) -> EntityTable:
        """The vectors of a knowledge base, which lie in a folder."""
        fingerprint = vectors.file
        if kinds is not None:
            fingerprint += hashlib.blake2b(np.ascontiguousarray(kinds).tobytes(), digest_size=8).hexdigest()
        return cls(vectors.rows, kinds, vectors.folder, fingerprint)

    def __len__(self) -> int:
        return len(self.vectors)

    def __deepcopy__(self, memo: dict[int, Any]) -> EntityTable:
        """Nobody changes it, so a copy of a model shares it."""
        return self

    def take(self, rows: Int[Tensor, " row"], dtype: torch.dtype) -> tuple[Float[Tensor, "row raw"], Tensor | None]:
        """The vectors of some entities, and their kinds."""
        return self._tensors(rows.cpu().numpy(), rows.device, dtype)

    def blocks(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The vectors and kinds of all entities, some at a time."""
        for begin in range(0, len(self), _ROWS):
            yield self._tensors(slice(begin, begin + _ROWS), device, dtype)

    def _tensors(self, rows: Any, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        found = self.vectors[rows]
        found = found if found.flags.writeable else found.copy()  # torch minds what cannot be written
        vectors = torch.from_numpy(found).to(device, dtype)
        if self.kinds is None:
            return vectors, None
        return vectors, torch.from_numpy(np.asarray(self.kinds[rows], np.int64)).to(device)


class EntityProjection(nn.Module):
    """What a model makes of entity vectors: [vector ; embedding of its kind] projected and normed, and a MASK entity.

    The vectors themselves are given by `table`, after building or loading; they are no weights.
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
        self._known = _Known()

    def take(self, table: EntityTable) -> None:
        """Have these vectors from now on."""
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
        self.table, self._known = table, _Known()

    def take_of(self, kb: KnowledgeBase, vectors: EntityVectors) -> None:
        """Have the vectors of a knowledge base from now on, with the kinds of its entities if these have embeddings."""
        kinds = None if self.kinds is None else find_kinds(kb, vectors, self.kinds.num_embeddings)
        self.take(EntityTable.of(vectors, kinds))

    def look_up(
        self, entities: Int[Tensor, "mention cand"]
    ) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "mention cand"]]:
        """Projected and normed vectors, and which of them each candidate has (-1: none).

        Where something is to be learned of it the vectors are those of the batch, else those of all entities.
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
        if self._learns():
            self._known.doubt()
            self._known.learns = True
            distinct, rows = torch.unique(entities, return_inverse=True)
            named = distinct >= 0
            vectors = torch.cat((self._project(*self.table.take(distinct[named], self._dtype)), self.mask[None]))
            rows = torch.where(entities >= 0, rows - (~named).sum(), entities)
            return self.norm(vectors), rows.masked_fill(entities == MASK_ENTITY, len(vectors) - 1)
        projected = self._known.of(self)
        rows = entities.masked_fill(entities == MASK_ENTITY, len(self.table))
        if entities.device.type == "cpu":
            return projected, rows
        distinct, rows = torch.unique(rows, return_inverse=True)
        return projected[distinct.clamp(min=0).cpu()].to(rows.device), rows.masked_fill(entities == NO_ENTITY, -1)

    def train(self, mode: bool = True) -> EntityProjection:
        """As any module's; who learns may change weights in ways that are not seen."""
        if mode:
            self._known.doubt()
        return super().train(mode)

    @property
    def _dtype(self) -> torch.dtype:
        return self.mask.dtype

    def _learns(self) -> bool:
        return self.training or (torch.is_grad_enabled() and any(part.requires_grad for part in self.parameters()))

    def _project(self, vectors: Float[Tensor, "row raw"], kinds: Int[Tensor, " row"] | None) -> Tensor:
        if self.linear is None:
            return vectors
        if self.kinds is None:
            made = self.linear(vectors)
        else:  # each kind is projected once; and vectors, which learn nothing, need no gradient then
            of_vectors, of_kinds = self.linear.weight[:, : self.raw], self.linear.weight[:, self.raw :]
            made = linear(vectors, of_vectors) + linear(self.kinds.weight, of_kinds, self.linear.bias)[kinds]
        return dropout(made, self.drop, self.training)

    @torch.no_grad()
    def project_all(self) -> Iterator[Float[Tensor, "row dim"]]:
        """The vectors of all entities, some at a time, and of the MASK entity behind them."""
        assert self.table is not None
        with torch.autocast(self.mask.device.type, enabled=False):
            for vectors, kinds in self.table.blocks(self.mask.device, self._dtype):
                yield self.norm(self._project(vectors, kinds)).cpu()
            yield self.norm(self.mask[None]).cpu()

    def digest(self) -> str:
        """The same for the same vectors and weights."""
        assert self.table is not None
        made = hashlib.blake2b(f"{self.table.fingerprint} {len(self.table)} {self._dtype}".encode(), digest_size=16)
        for name, weight in self.state_dict().items():
            made.update(name.encode() + weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return made.hexdigest()


class _Known:
    """The table of one state of a projection."""

    def __init__(self) -> None:
        self._table: Tensor | None = None
        self._digest = ""
        self._seen: list[Any] = []
        self._mine: Path | None = None
        self._lock = threading.Lock()
        self.learns = False
        """Whether these weights were seen to learn: then nobody else will ask for what they are now."""

    def __reduce__(self) -> tuple[type[_Known], tuple[()]]:
        """A copy, in this process or in another, knows nothing yet."""
        return _Known, ()

    def doubt(self) -> None:
        """Look at the weights themselves next time, not at how often they were changed.

        Who learns may change them in ways that are not counted, as a fused optimizer does.
        """
        self._seen = []

    def of(self, projection: EntityProjection) -> Float[Tensor, "row dim"]:
        """All entities' vectors by the weights as they are, made anew only if these are others."""
        seen = [(part.data_ptr(), part.dtype, _changes(part)) for part in projection.parameters()]
        with self._lock, torch.inference_mode(False):  # it may be used later where something is learned
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
        if self._mine is not None:  # nobody will ask for what these weights were while they learned
            self._mine.unlink(missing_ok=True)
            self._mine = None
        found = None
        if table.folder is not None and table.fingerprint and not self.learns:
            path = table.folder / f"projected-{digest}.safetensors"
            found = _map(path, shape, dtype)
            if found is None and _write(path, shape, dtype, projection):
                self._mine, found = path, _map(path, shape, dtype)
        return _unnamed(shape, dtype, projection) if found is None else found


def _changes(weight: Tensor) -> int:
    return -1 if weight.is_inference() else int(weight._version)


def _map(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
    try:
        with safe_open(path, "pt") as file:
            table: Tensor = file.get_tensor("table").view(dtype)
    except (OSError, SafetensorError):
        return None  # not there, or it was swept away or damaged: it is made anew
    return table if table.shape == shape else None


def _write(path: Path, shape: tuple[int, int], dtype: torch.dtype, projection: EntityProjection) -> bool:
    bits = _BITS[dtype]

    def blocks() -> Iterator[NDArray[Any]]:
        for block in projection.project_all():
            yield block.contiguous().view(torch.uint8).numpy().view(bits)

    try:
        save_arrays(path, {"table": Blocks(bits, shape, blocks())}, {"format": "wellread projected 1"})
    except StorageError:  # a folder of somebody else, or a full disk
        return False
    return True


def _unnamed(shape: tuple[int, int], dtype: torch.dtype, projection: EntityProjection) -> Tensor:
    """A table in a file that has no name and is gone with the process."""
    with tempfile.NamedTemporaryFile(suffix=".table") as file:
        for block in projection.project_all():
            file.write(block.contiguous().view(torch.uint8).numpy().data)
        file.flush()
        table: Tensor = torch.from_file(file.name, shared=False, size=shape[0] * shape[1], dtype=dtype)
        return table.view(shape)
