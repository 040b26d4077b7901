"""Search: candidates for the nearest rows from faiss, scored again by the rows themselves, and the files of both.

This is the hot path: for a batch of queries one product with the centres of clusters, one call of faiss, and one
product with the rows that it proposes, without a loop over queries. Rows are float32, or int8 with a scale per row,
mapped from a file. numpy computes the products: it is several times as fast as faiss on common machines, and converts
int8 to float32 faster than float16.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from wellread.io.arrays import Blocks, map_arrays, save_arrays
from wellread.io.cores import cores
from wellread.io.files import write_atomically

IndexKind = Literal["exact", "hnsw", "ivf"]
Compression = Literal["none", "int8", "pq"]
RowFormat = Literal["float32", "int8"]
SearchResult = tuple[NDArray[np.float32], NDArray[np.int64]]

_BLOCK = 32_768
_QUERIES = 16
_TALL, _ALONE = 16, 1 << 18
"""Queries in a block of a product, and the multiplications that OpenBLAS computes in one thread."""

# OpenMP's threads do not survive a fork: a child process that uses them would wait for ever.
os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))

_WORTH_A_THREAD = 16
"""Number of queries from which another thread pays off."""


class SearchThreads:
    """Threads that share a batch of queries, each with faiss on one core.

    faiss's own threads wait by spinning; next to an encoder's threads they cost more than they gain.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.__init__)  # type: ignore[misc]  # threads and locks do not survive a fork

    def share(self, work: Callable[[NDArray[np.float32]], SearchResult], queries: NDArray[np.float32]) -> SearchResult:
        """Return the results of `work` for all queries, computed in parts by as many threads as there are cores.

        If faiss has one core already, as in a forked process, it is computed in this thread.
        """
        if faiss.omp_get_max_threads() == 1:
            return work(queries)
        parts = max(1, min(_cores(), len(queries) // _WORTH_A_THREAD))
        found = list(self._threads().map(work, np.array_split(queries, parts)))
        if parts == 1:
            return found[0]
        return np.concatenate([scores for scores, _ in found]), np.concatenate([rows for _, rows in found])

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST_CORES, "nearest", faiss.omp_set_num_threads, (1,))
            return self._pool


_MOST_CORES = max(1, faiss.omp_get_max_threads())


def _cores() -> int:
    """Return the number of cores that this process and OpenMP may use now."""
    return int(min(cores(), _MOST_CORES))


SEARCH_THREADS = SearchThreads()


@dataclass(frozen=True)
class IndexChoice:
    """Kind and settings of an index, and the reason for them."""

    kind: IndexKind
    compression: Compression
    rows: RowFormat
    clusters: int
    why: str
    probes: int = 1
    """Number of clusters searched (ivf), or of neighbours kept (hnsw)."""
    candidates: int = 0
    """Number of candidates that are scored again for ten results; 0: all rows are."""
    recall: float = 1.0
    """Share of the true ten nearest found in the trial."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values for the manifest."""
        return asdict(self)


@dataclass(frozen=True)
class Subset:
    """Entities of an index to search among; valid for one state of the index."""

    rows: NDArray[np.int64]
    """Sorted."""
    state: str
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def selector(self, count: int) -> faiss.IDSelector:
        """Return a faiss selector of these rows, of `count` in all."""
        if "selector" not in self._kept:
            chosen = np.zeros(count, np.bool_)
            chosen[self.rows[self.rows < count]] = True
            self._kept["selector"] = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        return self._kept["selector"]


@dataclass(frozen=True)
class Proposer:
    """Source of candidates: a faiss index, the axes that vectors are rotated onto, and the centres of its clusters."""

    index: faiss.Index
    axes: NDArray[np.float32]
    """Columns; empty if vectors are not rotated."""
    centres: NDArray[np.float32]
    """Columns; empty if there are no clusters."""

    def propose(
        self, queries: NDArray[np.float32], count: int, probes: int, selector: faiss.IDSelector | None
    ) -> NDArray[np.int64]:
        """Return the rows of `count` candidates for each query, padded with -1."""
        turned = matrix_product(queries, self.axes) if self.axes.size else queries
        found: NDArray[np.int64]
        if self.centres.size:
            return self._search_clusters(turned, count, probes, selector)
        if selector is None and not isinstance(self.index, faiss.IndexHNSW):
            _, found = self.index.search(turned, count)
            return found
        params = faiss.SearchParametersHNSW(efSearch=max(probes, count), sel=selector)
        _, found = self.index.search(turned, count, params=params)
        return found

    def _search_clusters(
        self, queries: NDArray[np.float32], count: int, probes: int, selector: faiss.IDSelector | None
    ) -> NDArray[np.int64]:
        nearness = matrix_product(queries, self.centres)
        others = nearness.shape[1] - probes
        near = np.argpartition(nearness, max(others, 1) - 1, axis=1)[:, others:]
        nearness = np.ascontiguousarray(np.take_along_axis(nearness, near, 1))
        near, queries = np.ascontiguousarray(near, np.int64), np.ascontiguousarray(queries)  # faiss sees bare pointers
        scores = np.empty((len(queries), count), np.float32)
        rows = np.empty((len(queries), count), np.int64)
        # faiss's Python wrapper takes neither a number of clusters nor a selector.
        self.index.search_preassigned_c(
            len(queries),
            faiss.swig_ptr(queries),
            count,
            faiss.swig_ptr(near),
            faiss.swig_ptr(nearness),
            faiss.swig_ptr(scores),
            faiss.swig_ptr(rows),
            False,
            faiss.SearchParametersIVF(nprobe=probes, sel=selector),
        )
        return rows


def search_rows(
    choice: IndexChoice,
    proposer: Proposer | None,
    rows: VectorRows,
    queries: NDArray[np.float32],
    k: int,
    *,
    among: Subset | None = None,
) -> SearchResult:
    """Return the k nearest rows by the settings of a choice, scored by the rows themselves."""
    subset = among.rows[among.rows < len(rows)] if among is not None else None
    if proposer is None or (among is not None and choice.kind == "exact"):  # faiss cannot scan a subset of packed codes
        return rows.search(queries, k, subset)
    probes, most = choice.probes, choice.clusters if choice.kind == "ivf" else len(rows)
    if subset is not None:  # a tenth of the entities needs ten times as many clusters
        probes = int(probes * len(rows) / max(len(subset), 1))
    candidates = min(max(choice.candidates, 2 * k), len(rows))
    selector = among.selector(len(rows)) if among is not None else None
    proposed = proposer.propose(queries, candidates, max(1, min(probes, most)), selector)
    return best_rows(rows.score(queries, proposed), proposed, k)


def save_proposer(proposer: Proposer, index_path: Path, axes_path: Path) -> None:
    """Write both files atomically."""
    failed: list[OSError] = []
    with write_atomically(index_path) as file:

        def take(data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:  # faiss would hide the reason
                failed.append(error)
                return len(data)

        faiss.write_index(proposer.index, faiss.PyCallbackIOWriter(take))
        if failed:
            raise failed[0]
    save_arrays(axes_path, {"axes": proposer.axes, "centres": proposer.centres}, {})


def load_proposer(index_path: Path, axes_path: Path) -> Proposer:
    """Read the files of `save_proposer`; faiss can map graphs and plain codes, but not packed codes."""
    found = map_arrays(axes_path)
    packed = bool(found["axes"].size)
    index = faiss.read_index(str(index_path), 0 if packed else getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    return Proposer(index, found["axes"], found["centres"])


@dataclass(frozen=True)
class VectorRows:
    """Rows of an index; a row has the same score however it was found."""

    numbers: NDArray[Any]
    scales: NDArray[np.float16] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
        return int(self.numbers.nbytes + (0 if self.scales is None else self.scales.nbytes))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return some rows as float32."""
        found = self.numbers.take(rows, axis=0)
        if self.scales is None:
            return np.asarray(found, np.float32)
        return np.asarray(found.astype(np.float32) * self.scales.take(rows)[..., None].astype(np.float32), np.float32)

    def score(self, queries: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the inner product of each query with its own rows; -inf for row -1."""
        scores = np.empty(rows.shape, np.float32)
        for begin in range(0, len(queries), _QUERIES):  # these rows stay in the processor's cache
            part = slice(begin, begin + _QUERIES)
            there = np.maximum(rows[part], 0)
            numbers = self.numbers.take(there, axis=0).astype(np.float32, copy=False)
            # Not matmul, which would start BLAS's threads for every query.
            scores[part] = np.einsum("qcd,qd->qc", numbers, queries[part])
            if self.scales is not None:
                scores[part] *= self.scales.take(there)
        scores[rows < 0] = -np.inf
        return scores

    def search(self, queries: NDArray[np.float32], k: int, among: NDArray[np.int64] | None = None) -> SearchResult:
        """Return the k nearest rows by comparing all, or those in `among`."""
        count = len(self) if among is None else len(among)
        scores = np.full((len(queries), 0), -np.inf, np.float32)
        rows = np.full((len(queries), 0), -1, np.int64)
        for begin in range(0, count, _BLOCK):
            part = np.arange(begin, min(begin + _BLOCK, count)) if among is None else among[begin : begin + _BLOCK]
            block = self.numbers[begin : begin + _BLOCK] if among is None else self.numbers[part]
            found = matrix_product(queries, block.astype(np.float32, copy=False).T)
            if self.scales is not None:
                found *= self.scales[part]
            near, at = _top(found, k)
            scores = np.concatenate([scores, near], axis=1)
            rows = np.concatenate([rows, part[at]], axis=1)
        return best_rows(scores, rows, k)


def matrix_product(queries: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `queries @ columns`, computed in blocks too small for BLAS to use several threads.

    A batch is shared among threads already, and BLAS's threads wait by spinning: if other processes need the cores, one
    product could take fifty times as long.
    """
    (count, dim), total = queries.shape, columns.shape[1]
    wide = max(1, _ALONE // (_TALL * dim))
    found = np.empty((count, total), np.float32)
    for left in range(0, total, wide):
        block = columns[:, left : left + wide]
        for top in range(0, count, _TALL):
            np.matmul(queries[top : top + _TALL], block, out=found[top : top + _TALL, left : left + wide])
    return found


def _top(scores: NDArray[np.float32], k: int) -> SearchResult:
    if scores.shape[1] <= k:
        return scores, np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    at = np.argpartition(scores, scores.shape[1] - k, axis=1)[:, -k:]
    return np.take_along_axis(scores, at, 1), at


def best_rows(scores: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> SearchResult:
    """Return the k best of each line, best first and by row if equal, padded with -inf and -1."""
    if scores.shape[1] < k:
        missing = ((0, 0), (0, k - scores.shape[1]))
        scores = np.pad(scores, missing, constant_values=-np.inf)
        rows = np.pad(rows, missing, constant_values=-1)
    if scores.shape[1] > 2 * k:
        scores, at = _top(scores, k)
        rows = np.take_along_axis(rows, at, 1)
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    rows[np.isneginf(scores)] = -1
    return scores, rows


def float_blocks(vectors: NDArray[np.floating[Any]]) -> Iterator[NDArray[np.float32]]:
    """Yield all vectors in order as float32, some at a time."""
    for begin in range(0, len(vectors), _BLOCK):
        yield vectors[begin : begin + _BLOCK].astype(np.float32)


def save_rows(path: Path, vectors: NDArray[np.floating[Any]], form: RowFormat) -> None:
    """Write the rows of vectors as float32 or int8."""
    if form == "float32":
        save_arrays(path, {"rows": Blocks(np.float32, vectors.shape, float_blocks(vectors))}, {})
        return
    parts = [np.abs(block).max(1) for block in float_blocks(vectors)]
    largest = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    # Rounded before rows are divided by them, so that narrow scales cost nothing.
    scales = np.maximum(largest / 127, 1e-7).astype(np.float16)

    def quantised() -> Iterator[NDArray[np.int8]]:
        begin = 0
        for block in float_blocks(vectors):
            scaled = block / scales[begin : begin + len(block), None].astype(np.float32)
            yield np.clip(np.rint(scaled), -127, 127).astype(np.int8)
            begin += len(block)

    save_arrays(path, {"rows": Blocks(np.int8, vectors.shape, quantised()), "scales": scales}, {})


def load_rows(path: Path) -> VectorRows:
    """Map the file of `save_rows`."""
    found = map_arrays(path)
    return VectorRows(found["rows"], found.get("scales"))
