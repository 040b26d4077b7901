"""The vectors that scores come from: float32, or int8 with a scale for each row, mapped from a file.

numpy does the work: its products are several times those of faiss on common machines, and it turns int8 into float32
faster than float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wellread.io.arrays import Blocks, map_arrays, save_arrays

Form = Literal["float32", "int8"]
Found = tuple[NDArray[np.float32], NDArray[np.int64]]

_BLOCK = 32_768
_QUERIES = 16
_TALL, _ALONE = 16, 1 << 18
"""Queries in a piece of a product, and the multiplications that OpenBLAS does in one thread."""


@dataclass(frozen=True)
class Rows:
    """The rows of an index; the same row has the same score however it was found."""

    numbers: NDArray[Any]
    scales: NDArray[np.float16] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(self.numbers.nbytes + (0 if self.scales is None else self.scales.nbytes))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some rows as float32."""
        found = self.numbers.take(rows, axis=0)
        if self.scales is None:
            return np.asarray(found, np.float32)
        return np.asarray(found.astype(np.float32) * self.scales.take(rows)[..., None].astype(np.float32), np.float32)

    def score(self, queries: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The product of each query with rows of its own; -inf for row -1."""
        scores = np.empty(rows.shape, np.float32)
        for begin in range(0, len(queries), _QUERIES):  # what is taken up at once stays in the processor's cache
            part = slice(begin, begin + _QUERIES)
            there = np.maximum(rows[part], 0)
            numbers = self.numbers.take(there, axis=0).astype(np.float32, copy=False)
            # Not matmul: for every query it would wake BLAS's threads anew.
            scores[part] = np.einsum("qcd,qd->qc", numbers, queries[part])
            if self.scales is not None:
                scores[part] *= self.scales.take(there)
        scores[rows < 0] = -np.inf
        return scores

    def search(self, queries: NDArray[np.float32], k: int, among: NDArray[np.int64] | None = None) -> Found:
        """The k nearest by comparing all rows, or those `among` which to search."""
        count = len(self) if among is None else len(among)
        scores = np.full((len(queries), 0), -np.inf, np.float32)
        rows = np.full((len(queries), 0), -1, np.int64)
        for begin in range(0, count, _BLOCK):
            part = np.arange(begin, min(begin + _BLOCK, count)) if among is None else among[begin : begin + _BLOCK]
            block = self.numbers[begin : begin + _BLOCK] if among is None else self.numbers[part]
            found = product(queries, block.astype(np.float32, copy=False).T)
            if self.scales is not None:
                found *= self.scales[part]
            near, at = _top(found, k)
            scores = np.concatenate([scores, near], axis=1)
            rows = np.concatenate([rows, part[at]], axis=1)
        return best(scores, rows, k)


def product(queries: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """`queries @ columns` in pieces that are too small for BLAS to share among its threads.

    A batch is shared among threads already, and BLAS's wait by spinning: where others want the cores too, one product
    could take fifty times as long.
    """
    (count, dim), total = queries.shape, columns.shape[1]
    wide = max(1, _ALONE // (_TALL * dim))
    found = np.empty((count, total), np.float32)
    for left in range(0, total, wide):
        piece = columns[:, left : left + wide]
        for top in range(0, count, _TALL):
            np.matmul(queries[top : top + _TALL], piece, out=found[top : top + _TALL, left : left + wide])
    return found


def _top(scores: NDArray[np.float32], k: int) -> Found:
    if scores.shape[1] <= k:
        return scores, np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    at = np.argpartition(scores, scores.shape[1] - k, axis=1)[:, -k:]
    return np.take_along_axis(scores, at, 1), at


def best(scores: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> Found:
    """The k best of each line, best first and by row where equal; -inf and -1 where there are no more."""
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


def blocks(vectors: NDArray[np.floating[Any]]) -> Iterator[NDArray[np.float32]]:
    """All vectors in order, as float32, some at a time."""
    for begin in range(0, len(vectors), _BLOCK):
        yield vectors[begin : begin + _BLOCK].astype(np.float32)


def save_rows(path: Path, vectors: NDArray[np.floating[Any]], form: Form) -> None:
    """Write the rows of vectors in a form."""
    if form == "float32":
        save_arrays(path, {"rows": Blocks(np.float32, vectors.shape, blocks(vectors))}, {})
        return
    parts = [np.abs(block).max(1) for block in blocks(vectors)]
    largest = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    # Rounded before rows are divided by them, so that narrow scales cost nothing.
    scales = np.maximum(largest / 127, 1e-7).astype(np.float16)

    def quantised() -> Iterator[NDArray[np.int8]]:
        begin = 0
        for block in blocks(vectors):
            scaled = block / scales[begin : begin + len(block), None].astype(np.float32)
            yield np.clip(np.rint(scaled), -127, 127).astype(np.int8)
            begin += len(block)

    save_arrays(path, {"rows": Blocks(np.int8, vectors.shape, quantised()), "scales": scales}, {})


def load_rows(path: Path) -> Rows:
    """Map what `save_rows` wrote."""
    found = map_arrays(path)
    return Rows(found["rows"], found.get("scales"))
