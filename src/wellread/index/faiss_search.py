"""Candidates for the nearest rows from faiss, scored again by the rows themselves; and the files of both.

This is the hot path: for a batch of queries a product with the centres of clusters, one call into faiss, and one
product with the rows that it proposes. No loop over queries.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from wellread.index.rows import Form, Found, Rows, best, product
from wellread.io.arrays import map_arrays, save_arrays
from wellread.io.cores import cores
from wellread.io.files import write_atomically

Kind = Literal["exact", "hnsw", "ivf"]
Compression = Literal["none", "int8", "pq"]

# OpenMP's threads do not survive a fork: a child that asked for them would wait for ever.
os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))

_WORTH_A_THREAD = 16
"""Queries for which another thread is worth its while."""


class Workers:
    """Threads that share a batch of queries, each with faiss on one core.

    faiss's own threads wait for each other by spinning; beside an encoder's threads they take more than they give.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.__init__)  # type: ignore[misc]  # threads and locks stay behind

    def share(self, work: Callable[[NDArray[np.float32]], Found], queries: NDArray[np.float32]) -> Found:
        """What the work finds for all queries, done in as many parts as there are cores to do them.

        Where faiss has one core already, as in a process that was forked, it is done here: others would have to wake.
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
    """Those that this process may use now, if OpenMP may use them too."""
    return int(min(cores(), _MOST_CORES))


WORKERS = Workers()


@dataclass(frozen=True)
class Choice:
    """What an index is made as, and why."""

    kind: Kind
    compression: Compression
    rows: Form
    clusters: int
    why: str
    probes: int = 1
    """Clusters looked into (ivf), or neighbours kept in mind (hnsw)."""
    candidates: int = 0
    """How many are scored again for ten; 0 where all are."""
    recall: float = 1.0
    """Share of the true ten nearest found in the trial."""

    def told(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


@dataclass(frozen=True)
class Subset:
    """Some of the entities of an index, to search among; valid for the state of the index that made it."""

    rows: NDArray[np.int64]
    """Sorted."""
    state: str
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def selector(self, count: int) -> faiss.IDSelector:
        """What lets faiss look at these rows only, of so many."""
        if "selector" not in self._kept:
            chosen = np.zeros(count, np.bool_)
            chosen[self.rows[self.rows < count]] = True
            self._kept["selector"] = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        return self._kept["selector"]


@dataclass(frozen=True)
class Proposer:
    """What proposes candidates: a faiss index, the axes that vectors are turned onto, the centres of its clusters."""

    index: faiss.Index
    axes: NDArray[np.float32]
    """Columns; none where vectors are not turned."""
    centres: NDArray[np.float32]
    """Columns; none where there are no clusters."""

    def propose(
        self, queries: NDArray[np.float32], count: int, probes: int, selector: faiss.IDSelector | None
    ) -> NDArray[np.int64]:
        """The rows of so many candidates for each query; -1 where there are no more."""
        turned = product(queries, self.axes) if self.axes.size else queries
        found: NDArray[np.int64]
        if self.centres.size:
            return self._look_into_clusters(turned, count, probes, selector)
        if selector is None and not isinstance(self.index, faiss.IndexHNSW):
            _, found = self.index.search(turned, count)
            return found
        params = faiss.SearchParametersHNSW(efSearch=max(probes, count), sel=selector)
        _, found = self.index.search(turned, count, params=params)
        return found

    def _look_into_clusters(
        self, queries: NDArray[np.float32], count: int, probes: int, selector: faiss.IDSelector | None
    ) -> NDArray[np.int64]:
        nearness = product(queries, self.centres)
        others = nearness.shape[1] - probes
        near = np.argpartition(nearness, max(others, 1) - 1, axis=1)[:, others:]
        nearness = np.ascontiguousarray(np.take_along_axis(nearness, near, 1))
        near, queries = np.ascontiguousarray(near, np.int64), np.ascontiguousarray(queries)  # faiss sees bare pointers
        scores = np.empty((len(queries), count), np.float32)
        rows = np.empty((len(queries), count), np.int64)
        # faiss's own shell around this takes neither a number of clusters nor a selector.
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


def look(
    choice: Choice,
    proposer: Proposer | None,
    rows: Rows,
    queries: NDArray[np.float32],
    k: int,
    *,
    among: Subset | None = None,
) -> Found:
    """The k nearest rows by the settings of a choice, scored by the rows themselves."""
    subset = among.rows[among.rows < len(rows)] if among is not None else None
    if proposer is None or (among is not None and choice.kind == "exact"):  # faiss scans packed codes only whole
        return rows.search(queries, k, subset)
    probes, most = choice.probes, choice.clusters if choice.kind == "ivf" else len(rows)
    if subset is not None:  # a tenth of the entities fills ten times as many clusters
        probes = int(probes * len(rows) / max(len(subset), 1))
    candidates = min(max(choice.candidates, 2 * k), len(rows))
    selector = among.selector(len(rows)) if among is not None else None
    proposed = proposer.propose(queries, candidates, max(1, min(probes, most)), selector)
    return best(rows.score(queries, proposed), proposed, k)


def save_proposer(proposer: Proposer, index_path: Path, axes_path: Path) -> None:
    """Write both files, each whole."""
    failed: list[OSError] = []
    with write_atomically(index_path) as file:

        def take(data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:  # faiss would only say that writing failed
                failed.append(error)
                return len(data)

        faiss.write_index(proposer.index, faiss.PyCallbackIOWriter(take))
        if failed:
            raise failed[0]
    save_arrays(axes_path, {"axes": proposer.axes, "centres": proposer.centres}, {})


def load_proposer(index_path: Path, axes_path: Path) -> Proposer:
    """Read what `save_proposer` wrote; faiss maps graphs and plain codes, but would map packed codes in vain."""
    found = map_arrays(axes_path)
    packed = bool(found["axes"].size)
    index = faiss.read_index(str(index_path), 0 if packed else getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    return Proposer(index, found["axes"], found["centres"])
