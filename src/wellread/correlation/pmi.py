"""From counted pairs to a table: PMI, its largest value, the nearest neighbours of every word, rows sorted by id.

Pairs are read block by block. Those with PMI > 0 are kept on disk; the table is then filled some rows at a time, as
many as memory allows. Both words of a pair get an entry. With a limit on neighbours a pair is kept if it is among the
nearest of either word, so that relevance is symmetric.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wellread.correlation.table import Measure
from wellread.errors import InputError
from wellread.io.arrays import Blocks, Strings, map_arrays, save_arrays
from wellread.text.words import split, word_hash

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csc_array, csr_array

_BYTES_AN_ENTRY = 32
"""Memory of a row's entry while rows are filled."""
_LOGS = np.append(-np.inf, np.log(np.arange(1.0, 1 << 16)))
_HASHED = 1 << 13

NeighbourRows = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float32]]
"""Neighbours, numbers of events with both words, relevance."""
Filled = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""Neighbours, and the number of events with both words and relevance packed into one number."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Counted:
    """Words of a table, and the number of events with each."""

    words: list[str]
    counts: NDArray[np.int64]
    events: int

    def pmi(self, left: NDArray[Any], right: NDArray[Any], together: NDArray[Any]) -> NDArray[np.float64]:
        """Return the PMI of pairs of ids, natural logarithm."""
        logs = self._logs
        value = self._log_of(together)
        value += np.log(self.events)
        value -= logs[left]
        value -= logs[right]
        return value

    def _log_of(self, together: NDArray[Any]) -> NDArray[np.float64]:
        """Return logarithms, from a table for small numbers, as most pairs have."""
        if int(together.max(initial=0)) < len(_LOGS):
            return np.asarray(_LOGS[together])
        return np.asarray(np.log(together), np.float64)

    def positive(self, left: NDArray[Any], right: NDArray[Any], together: NDArray[Any]) -> NDArray[np.bool_]:
        """Return True for pairs of ids that occur together more often than by chance."""
        if self.events < 1 << 31:
            return np.asarray(together * np.int64(self.events) > self.counts[left] * self.counts[right])
        return self.pmi(left, right, together) > 0  # products would overflow 64 bits

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        return np.log(self.counts)

    def npmi(self, left: NDArray[Any], right: NDArray[Any], together: NDArray[Any]) -> NDArray[np.float64]:
        """Return PMI divided by its maximum for pairs with as many events: 1 for words that only occur together."""
        return np.asarray(self.pmi(left, right, together) / (np.log(self.events) - np.log(together)), np.float64)


def keep_positive(pairs: pa.Table, counted: Counted, to: Path) -> None:
    """Write the pairs of a block, as summed by SQL, with PMI > 0."""
    left, right, together = (pairs[name].to_numpy() for name in ("left_word", "right_word", "events"))
    wanted = counted.positive(left, right, together)
    left, right, together = left[wanted], right[wanted], together[wanted]
    order = np.argsort(right, kind="stable")  # SQL returns them in any order
    save_pairs((left[order], right[order], together[order]), to)


def save_pairs(pairs: tuple[NDArray[Any], ...], to: Path) -> None:
    """Write the pairs of a block by left word; right words must rise for every left word."""
    from scipy.sparse import coo_array

    left, right, together = pairs
    first, over = (int(left.min()), int(left.max()) + 1) if len(left) else (0, 0)
    words = int(right.max(initial=0)) + 1
    block = coo_array((together.astype(np.uint32, copy=False), (left - first, right)), shape=(over - first, words))
    block.has_canonical_format = True  # pairs are distinct
    rows = block.tocsr()  # by counting, which keeps the order within a row
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
    threads: int,
    work: Path,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Write the table's file into the folder; return its name and figures for the manifest."""
    size = len(counted.words)
    report("the largest PMI")
    z, degrees = 0.0, np.zeros(size, np.int64)
    with ThreadPoolExecutor(threads) as pool:
        for first, largest, lefts, rights in pool.map(partial(_degrees, counted), kept):
            z = max(z, largest)
            degrees[first : first + len(lefts)] += lefts
            degrees[: len(rights)] += rights
    if not z:
        raise InputError(
            f"no two words of {counted.events:,} events occur together often enough to be correlated; count more text, "
            "smaller events (--window 20), or lower --min-count and --min-pair"
        )

    def scores(left: Any, right: Any, together: Any) -> NDArray[np.float32]:
        value = counted.npmi(left, right, together) if measure == "npmi" else counted.pmi(left, right, together) / z
        return value.astype(np.float32)

    filler = _Filler(kept, scores, degrees, memory, work)
    if neighbours and int(degrees.max()) > neighbours:
        report("the nearest neighbours")
        filler.keep_nearest(neighbours)
    report("the table")
    name = f"table-{uuid.uuid4().hex[:12]}.safetensors"
    arrays = filler.arrays()
    save_arrays(folder / name, {**_word_arrays(counted), **arrays}, {})
    return {
        "file": name,
        "words": size,
        "pairs": arrays["neighbours"].shape[0] // 2,
        "z": z if measure == "pmi" else 1.0,
    }


def _read(kept: Path) -> tuple[NDArray[np.uint32], ...]:
    arrays = map_arrays(kept)
    return arrays["left"], arrays["right"], arrays["together"]


def _degrees(counted: Counted, kept: Path) -> tuple[int, float, NDArray[np.int64], NDArray[np.int64]]:
    """Return a block's first left word, its largest PMI, and the number of pairs of each left and each right word."""
    left, right, together = _read(kept)
    first, starts = _starts(left)
    return first, float(counted.pmi(left, right, together).max(initial=0.0)), np.diff(starts), np.bincount(right)


def _word_arrays(counted: Counted) -> dict[str, NDArray[Any]]:
    hashes = _hashes(counted.words)
    order = np.argsort(hashes)
    return {
        **Strings.pack((word.encode("utf-8", "surrogatepass") for word in counted.words), "words"),
        "counts": counted.counts,
        "hashes": hashes[order],
        "hashed_ids": order.astype(np.uint32),
    }


def _hashes(words: Sequence[str]) -> NDArray[np.uint64]:
    """Return the hash of every word; many at once for ASCII."""
    some = []
    for begin in range(0, len(words), _HASHED):
        few = words[begin : begin + _HASHED]
        text = " ".join(few)
        found = split(text).hashes if text.isascii() else np.zeros(0, np.uint64)
        some.append(found if len(found) == len(few) else np.array([word_hash(word) for word in few], np.uint64))
    return np.concatenate(some)


class _Filler:
    """Fills rows of neighbours from blocks of pairs, some rows at a time."""

    def __init__(
        self,
        kept: Sequence[Path],
        scores: Callable[..., NDArray[np.float32]],
        degrees: NDArray[np.int64],
        memory: int,
        work: Path,
    ) -> None:
        self.kept, self.scores, self.degrees, self.work = kept, scores, degrees, work
        self._floors: NDArray[np.float32] | None = None
        """Relevance of each word's last neighbour that is kept; ties with it are kept, too."""
        self._ranges = list(_ranges(degrees, max(1, memory // 2 // _BYTES_AN_ENTRY)))
        self._filled: Filled | None = None

    def keep_nearest(self, most: int) -> None:
        """Keep only pairs among the `most` nearest of either word from now on."""
        floors = np.zeros(len(self.degrees), np.float32)
        for begin, end in self._ranges:
            scores = _scores_of(self._fill(begin, end)[1])
            stops = np.cumsum(self.degrees[begin:end])
            for row in np.flatnonzero(self.degrees[begin:end] > most):
                degree = self.degrees[begin + row]
                of_row = scores[stops[row] - degree : stops[row]]
                floors[begin + row] = np.partition(of_row, degree - most)[degree - most]
        self._floors = floors

    def _fill(self, begin: int, end: int) -> Filled:
        """Return the rows of some words, concatenated: neighbours, and the packed values of each; filled once.

        Blocks have rising left words. So a row first gets the words before its own, from the right column of the blocks
        up to its own, then those after it, from the left column of that: it is sorted without sorting.
        """
        if self._filled is not None:
            return self._filled
        file = self.work / f"filled-{begin:09d}.safetensors"
        if file.exists():
            arrays = map_arrays(file)
            return arrays["neighbours"], arrays["told"]
        degrees = self.degrees[begin:end]
        cursor = np.cumsum(degrees) - degrees
        neighbours, packed = np.empty(int(degrees.sum()), np.uint32), np.empty(int(degrees.sum()), np.int64)
        for by_right, by_left, first in _ahead(partial(self._turned, begin, end), self.kept):
            # Rows of the first are right words, its columns count from the first left word; the second is the reverse.
            for block, row, column in ((by_right, begin, first), (by_left, first, 0)):
                low, high = (int(np.clip(at - row, 0, len(block.indptr) - 1)) for at in (begin, end))
                starts = block.indptr[low : high + 1]
                these, its = slice(starts[0], starts[-1]), slice(row + low - begin, row + high - begin)
                places = np.arange(starts[-1] - starts[0])
                places += np.repeat(cursor[its] - (starts[:-1] - starts[0]), np.diff(starts))
                neighbours[places] = block.indices[these].view(np.uint32) + np.uint32(column)
                packed[places] = block.data[these]
                cursor[its] += np.diff(starts)
        if len(self._ranges) == 1:
            self._filled = neighbours, packed
        else:
            save_arrays(file, {"neighbours": neighbours, "told": packed}, {})
        return neighbours, packed

    def _turned(self, begin: int, end: int, kept: Path) -> tuple[csc_array, csr_array, int]:
        """A block by right word, for those of some words, and by left word, from its first left word on."""
        from scipy.sparse import csr_array

        left, right, together = _read(kept)
        both = np.empty((len(left), 2), np.uint32)
        both[:, 0], both[:, 1] = together, self.scores(left, right, together).view(np.uint32)
        packed, columns = both.view(np.int64)[:, 0], right.view(np.int32)
        first, starts = _starts(left)
        height, words = len(starts) - 1, len(self.degrees)
        block = csr_array((packed, columns, starts), shape=(height, words))
        if begin == 0 and end == words:
            return block.tocsc(), block, first
        here = (columns >= begin) & (columns < end)
        passed = np.append(np.int32(0), np.cumsum(here, dtype=np.int32))
        those = csr_array((packed[here], columns[here] - np.int32(begin), passed[starts]), shape=(height, end - begin))
        return those.tocsc(), block, first

    def _final(self, begin: int, end: int) -> tuple[NDArray[np.int64], NeighbourRows]:
        """The rows without what is not among the nearest, and how long each is now."""
        neighbours, packed = self._fill(begin, end)
        degrees = self.degrees[begin:end]
        if self._floors is not None:
            scores = _scores_of(packed)
            dropped = scores < self._floors[neighbours]
            dropped &= scores < np.repeat(self._floors[begin:end], degrees)
            rows = np.searchsorted(np.cumsum(degrees), np.flatnonzero(dropped), "right")
            degrees = degrees - np.bincount(rows, minlength=end - begin)
            neighbours, packed = neighbours[~dropped], packed[~dropped]
        return degrees, (neighbours, packed.view(np.uint32)[::2], _scores_of(packed))

    def arrays(self) -> dict[str, NDArray[Any] | Blocks]:
        """Return the arrays of all rows; what does not fit in memory is written to files first."""
        names = ("neighbours", "together", "scores")
        if len(self._ranges) == 1:
            degrees, rows = self._final(*self._ranges[0])
            return {"starts": np.append(0, np.cumsum(degrees)), **dict(zip(names, rows, strict=True))}
        files, all_degrees = [], []
        for number, some in enumerate(self._ranges):
            degrees, rows = self._final(*some)
            all_degrees.append(degrees)
            files.append(self.work / f"rows-{number:06d}.safetensors")
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


def _scores_of(packed: NDArray[np.int64]) -> NDArray[np.float32]:
    return packed.view(np.float32)[1::2]


def _starts(left: NDArray[np.uint32]) -> tuple[int, NDArray[np.int32]]:
    """Return the first of some sorted left words, and the offset of it and of each word after it."""
    first, over = (int(left[0]), int(left[-1]) + 1) if len(left) else (0, 0)
    return first, np.searchsorted(left, np.arange(first, over + 1, dtype=np.uint32)).astype(np.int32)


def _ahead(work: Callable[[Path], _Result], given: Sequence[Path]) -> Iterator[_Result]:
    """Yield the results of `work`; while one is used, the next is computed."""
    with ThreadPoolExecutor(1) as pool:
        made = [pool.submit(work, one) for one in given[:1]]
        for number in range(len(given)):
            now = made.pop().result()
            made += [pool.submit(work, one) for one in given[number + 1 : number + 2]]
            yield now


def _ranges(degrees: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of words whose rows fit in memory."""
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
