"""Searching what faiss holds: by the settings of a choice, scored again by the rows, and its files.

This is the hot path: two calls into faiss a batch, and no loop over queries.
"""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from wellread.files import write_atomically

Kind = Literal["exact", "hnsw", "ivf"]
Compression = Literal["none", "int8", "pq"]

MAPPED = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)

# OpenMP's threads do not survive a fork: a child that asked for them would wait for ever.
os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))


@dataclass(frozen=True)
class Choice:
    """What an index is made as, and why."""

    kind: Kind
    compression: Compression
    rows: Literal["float16", "int8"]
    clusters: int
    why: str
    probes: int = 1
    """Clusters looked into (ivf), or neighbours kept in mind (hnsw)."""
    candidates: int = 0
    """How many are scored again for ten; 0 where scores are exact at once."""
    recall: float = 1.0
    """Share of the true ten nearest found in the trial."""

    def told(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def look(
    choice: Choice,
    searched: faiss.Index,
    rows: faiss.Index,
    queries: NDArray[np.float32],
    k: int,
    *,
    among: faiss.IDSelector | None = None,
    widen: float = 1.0,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The nearest rows, scored by the rows themselves; `widen` looks so many times as far."""
    if searched is rows and among is None:  # numpy's matrix product is several times that of faiss
        scores = queries @ faiss.rev_swig_ptr(rows.get_xb(), rows.ntotal * rows.d).reshape(-1, rows.d).T
        return best(scores, np.broadcast_to(np.arange(rows.ntotal), scores.shape), k)
    if searched is rows:
        found: tuple[NDArray[np.float32], NDArray[np.int64]] = rows.search(
            queries, k, params=faiss.SearchParameters(sel=among)
        )
        return found
    most = choice.clusters if choice.kind == "ivf" else rows.ntotal
    probes = max(1, int(min(choice.probes * widen, most)))
    if choice.kind == "ivf":
        params = faiss.SearchParametersIVF(nprobe=probes, sel=among)
    elif choice.kind == "hnsw":
        params = faiss.SearchParametersHNSW(efSearch=max(probes, k), sel=among)
    else:
        params = faiss.SearchParameters(sel=among) if among is not None else None
    if choice.compression == "pq" and params is not None:
        params = faiss.SearchParametersPreTransform(index_params=params)
    factor = (max(choice.candidates, 2 * k) + 0.5) / k
    again = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=params)
    scored: tuple[NDArray[np.float32], NDArray[np.int64]] = faiss.IndexRefine(searched, rows).search(
        queries, k, params=again
    )
    return scored


def best(scores: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k best of each line, best first, of equal ones the lower row first."""
    if scores.shape[1] < k:
        missing = ((0, 0), (0, k - scores.shape[1]))
        scores = np.pad(scores, missing, constant_values=-np.inf)
        rows = np.pad(rows, missing, constant_values=-1)
    if scores.shape[1] > 4 * k:
        top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        scores, rows = np.take_along_axis(scores, top, 1), np.take_along_axis(rows, top, 1)
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    rows[np.isneginf(scores)] = -1
    return scores, rows


def bitmap(rows: NDArray[np.int64], count: int) -> faiss.IDSelector:
    """What lets faiss look at some rows only."""
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    return faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))


def write(index: faiss.Index, path: Path) -> int:
    """Write a faiss index whole; gives its size."""
    failed: list[OSError] = []
    with write_atomically(path) as file:

        def take(data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:  # faiss would only say that writing failed
                failed.append(error)
                return len(data)

        faiss.write_index(index, faiss.PyCallbackIOWriter(take))
        if failed:
            raise failed[0]
    return path.stat().st_size


def read(path: Path, size: int) -> faiss.Index:
    """Map a faiss index of so many bytes (what faiss cannot map, it reads)."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.stat().st_size != size:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes of {size:,}")
    return faiss.read_index(str(path), MAPPED)
