"""From counted pairs to a table: PMI, its largest value, the nearest neighbours of every word, rows sorted by id.

Pairs come block by block. Those whose PMI is above 0 are kept on disk; the table is then filled some rows at a time, as
many as memory allows. Both words of a pair get a row entry. With a limit on neighbours a
pair stays if it is among the nearest of either word, so that relevance is the same from both sides.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError
from wellread.kb.names import word_hash
from wellread.knowledge.arrays import Blocks, Strings, map_arrays, save_arrays
from wellread.knowledge.correlation import Measure

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES_AN_ENTRY = 40
"""Memory of a row entry while rows are filled."""

Rows = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float32]]
"""Neighbours, in how many events both are, relevance."""


@dataclass(frozen=True)
class Counted:
    """The words of a table and in how many of all events each is."""

    words: list[str]
    counts: NDArray[np.int64]
    events: int

    def pmi(self, left: NDArray[Any], right: NDArray[Any], together: NDArray[Any]) -> NDArray[np.float64]:
        """PMI of pairs of ids, natural logarithm."""
        logs = self._logs
        return np.asarray(np.log(together) + np.log(self.events) - logs[left] - logs[right], np.float64)

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        return np.log(self.counts)

    def npmi(self, left: NDArray[Any], right: NDArray[Any], together: NDArray[Any]) -> NDArray[np.float64]:
        """PMI by the most it could be for pairs in as many events: 1 for words that are only ever together."""
        return np.asarray(self.pmi(left, right, together) / (np.log(self.events) - np.log(together)), np.float64)


def keep_positive(pairs: pa.Table, counted: Counted, to: Path) -> None:
    """Keep the pairs of a block that meet more often than chance (PMI > 0), sorted by left word, then right."""
    from scipy.sparse import coo_array

    left, right, together = (pairs[name].to_numpy() for name in ("left_word", "right_word", "events"))
    if counted.events < 1 << 31:
        wanted = together * counted.events > counted.counts[left] * counted.counts[right]
    else:  # products would not fit 64 bits
        wanted = counted.pmi(left, right, together) > 0
    left, right, together = left[wanted], right[wanted], together[wanted].astype(np.uint32)
    first, over = (int(left.min()), int(left.max()) + 1) if len(left) else (0, 0)
    block = coo_array((together, (left - first, right)), shape=(over - first, len(counted.words)))
    block.has_canonical_format = True  # no pair comes twice
    rows = block.tocsc().tocsr()  # each turn goes by counting, and leaves rows sorted
    sorted_left = np.repeat(np.arange(first, over, dtype=np.uint32), np.diff(rows.indptr))
    save_arrays(to, {"left": sorted_left, "right": rows.indices.astype(np.uint32), "together": rows.data}, {})


def build_table(
    kept: Sequence[Path],
    counted: Counted,
    folder: Path,
    *,
    measure: Measure,
    neighbours: int,
    memory: int,
    work: Path,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Write the table's file into the folder; returns its name and what there is to say of it."""
    size = len(counted.words)
    tell("the largest PMI")
    z, degrees = 0.0, np.zeros(size, np.int64)
    for left, right, together in _read(kept):
        z = max(z, float(counted.pmi(left, right, together).max(initial=0.0)))
        degrees += np.bincount(left, minlength=size) + np.bincount(right, minlength=size)
    if not z:
        raise InputError(
            f"no two words of {counted.events:,} events meet often enough to be correlated; count more text, smaller "
            "events (--window 20), or lower --min-count and --min-pair"
        )

    def scores(left: Any, right: Any, together: Any) -> NDArray[np.float32]:
        value = counted.npmi(left, right, together) if measure == "npmi" else counted.pmi(left, right, together) / z
        return value.astype(np.float32)

    filler = _Filler(kept, scores, degrees, memory)
    if neighbours and int(degrees.max()) > neighbours:
        tell("the nearest neighbours")
        filler.keep_nearest(neighbours)
    tell("the table")
    name = f"table-{uuid.uuid4().hex[:12]}.safetensors"
    arrays = filler.arrays(work)
    save_arrays(folder / name, {**_word_arrays(counted), **arrays}, {})
    return {
        "file": name,
        "words": size,
        "pairs": arrays["neighbours"].shape[0] // 2,
        "z": z if measure == "pmi" else 1.0,
    }


def _read(kept: Sequence[Path]) -> Iterator[tuple[NDArray[np.uint32], ...]]:
    for path in kept:
        arrays = map_arrays(path)
        yield arrays["left"], arrays["right"], arrays["together"]


def _word_arrays(counted: Counted) -> dict[str, NDArray[Any]]:
    hashes = np.array([word_hash(word) for word in counted.words], np.uint64)
    order = np.argsort(hashes)
    return {
        **Strings.pack((word.encode("utf-8", "surrogatepass") for word in counted.words), "words"),
        "counts": counted.counts,
        "hashes": hashes[order],
        "hashed_ids": order.astype(np.uint32),
    }


class _Filler:
    """Fills rows of neighbours from blocks of pairs, some rows at a time."""

    def __init__(
        self, kept: Sequence[Path], scores: Callable[..., NDArray[np.float32]], degrees: NDArray[np.int64], memory: int
    ) -> None:
        self.kept, self.scores, self.degrees = kept, scores, degrees
        self._floors: NDArray[np.float32] | None = None
        """Of each word, the relevance of its last neighbour that counts; ties with it stay."""
        self._ranges = list(_ranges(degrees, max(1, memory // 2 // _BYTES_AN_ENTRY)))
        self._filled: Rows | None = None

    def keep_nearest(self, most: int) -> None:
        """From here on only pairs among the `most` nearest of either word."""
        floors = np.zeros(len(self.degrees), np.float32)
        for begin, end in self._ranges:
            scores = self._fill(begin, end)[2]
            stops = np.cumsum(self.degrees[begin:end])
            for row in np.flatnonzero(self.degrees[begin:end] > most):
                degree = self.degrees[begin + row]
                of_row = scores[stops[row] - degree : stops[row]]
                floors[begin + row] = np.partition(of_row, degree - most)[degree - most]
        self._floors = floors

    def _fill(self, begin: int, end: int) -> Rows:
        """The rows of some words, one behind the other; where one range is all, they are filled once.

        Blocks have rising left words. So a row gets first the words before its own, from the right column of the blocks
        up to its own, then those after it, from the left column of that: it is sorted without sorting.
        """
        if self._filled is not None:
            return self._filled
        total = int(self.degrees[begin:end].sum())
        rows = np.empty(total, np.uint32), np.empty(total, np.uint32), np.empty(total, np.float32)
        cursor = np.cumsum(self.degrees[begin:end]) - self.degrees[begin:end]
        for left, right, together in _read(self.kept):
            score = self.scores(left, right, together)
            order = _by_right(left, right, len(self.degrees))
            for row, column, turned in ((right, left, order), (left, right, None)):
                given = (
                    (row, column, together, score)
                    if turned is None
                    else tuple(some[turned] for some in (row, column, together, score))
                )
                if begin > 0 or end < len(self.degrees):
                    here = (given[0] >= begin) & (given[0] < end)
                    given = tuple(some[here] for some in given)
                sizes = np.bincount(given[0] - np.uint32(begin), minlength=end - begin)
                moves = cursor - (np.cumsum(sizes) - sizes)
                places = np.arange(len(given[0])) + np.repeat(moves, sizes)
                for filled, some in zip(rows, given[1:], strict=True):
                    filled[places] = some
                cursor += sizes
        if len(self._ranges) == 1:
            self._filled = rows
        return rows

    def _final(self, begin: int, end: int) -> tuple[NDArray[np.int64], Rows]:
        """The rows without what is not among the nearest, and how long each is now."""
        rows = self._fill(begin, end)
        degrees = self.degrees[begin:end]
        if self._floors is None:
            return degrees, rows
        neighbours, _, scores = rows
        own = np.repeat(np.arange(begin, end), degrees)
        wanted = (scores >= self._floors[own]) | (scores >= self._floors[neighbours])
        left = np.bincount(own[wanted] - begin, minlength=end - begin)
        return left, (neighbours[wanted], rows[1][wanted], scores[wanted])

    def arrays(self, work: Path) -> dict[str, NDArray[Any] | Blocks]:
        """The arrays of all rows; what does not fit in memory goes over files in `work`."""
        names = ("neighbours", "together", "scores")
        if len(self._ranges) == 1:
            degrees, rows = self._final(*self._ranges[0])
            return {"starts": np.append(0, np.cumsum(degrees)), **dict(zip(names, rows, strict=True))}
        files, all_degrees = [], []
        for number, some in enumerate(self._ranges):
            degrees, rows = self._final(*some)
            all_degrees.append(degrees)
            files.append(work / f"rows-{number:06d}.safetensors")
            save_arrays(files[-1], dict(zip(names, rows, strict=True)), {})
        starts = np.append(0, np.cumsum(np.concatenate(all_degrees)))
        dtypes: tuple[type[np.generic], ...] = (np.uint32, np.uint32, np.float32)
        return {
            "starts": starts,
            **{
                name: Blocks(dtype, (int(starts[-1]),), _parts(files, name))
                for name, dtype in zip(names, dtypes, strict=True)
            },
        }


def _by_right(left: NDArray[np.uint32], right: NDArray[np.uint32], words: int) -> NDArray[np.int32]:
    """The order of a block's pairs by right word, then left; found by counting."""
    from scipy.sparse import csr_array

    first = int(left[0]) if len(left) else 0
    sizes = np.bincount(left - np.uint32(first))
    starts = np.append(0, np.cumsum(sizes)).astype(np.int32)
    places = np.arange(len(right), dtype=np.int32)
    block = csr_array((places, right.view(np.int32), starts), shape=(len(sizes), words))
    return np.asarray(block.tocsc().data, np.int32)


def _ranges(degrees: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of words whose rows fit in memory."""
    filled = np.cumsum(degrees)
    begin = 0
    while begin < len(degrees):
        before = filled[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(filled, before + most, "right")))
        yield begin, end
        begin = end


def _parts(files: Sequence[Path], name: str) -> Iterator[NDArray[Any]]:
    for file in files:
        yield map_arrays(file)[name]
