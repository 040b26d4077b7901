"""Counting pairs of words: a matrix of events by words, times itself, some rows at a time.

The words that meet a word w are the sum of the events that have w: a row of XᵀX. `scipy.sparse` makes such rows at some
ten nanoseconds a pair, where a self-join in SQL takes a hundred. Words are numbered from the most frequent on, rows are
made from there on, and columns below them are cut away in some twenty steps: that leaves half of XᵀX, the half that is
needed.

Events are arranged into chunks that fit in memory. A worker sums its chunks for each block; where one worker has all
chunks its sums are whole, and pairs below the limit are dropped before they are written. Else SQL adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError
from wellread.files import write_atomically
from wellread.knowledge.arrays import map_arrays, save_arrays

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

BYTES_AN_ID = 28
"""Memory that a word of an event takes while pairs are counted: two mapped orders, a part of one, and its ones."""
MOST_IDS = 2**31 - 1
"""Words of events in a chunk: where an event starts is told in 32 bits."""
_BLOCK_VISITS = 64_000_000
_TASK_VISITS = 16_000_000
"""Pairs looked at for a block, and by a thread at once; bounds the rows that wait to be written."""
_WORTH_CUTTING = 0.9

Ids = NDArray[np.int32]
Pairs = tuple[Ids, Ids, Ids]
"""Left words, right words, and in how many events both are."""


@dataclass(frozen=True, slots=True)
class Block:
    """Words from `begin` to `end`, in steps: rows from a step's first word on meet columns from there on."""

    begin: int
    end: int
    steps: tuple[int, ...]


def cut_blocks(counts: NDArray[np.int64], ids: int, events: int) -> list[Block]:
    """Blocks of about equal work, from how many events have each word, and how many ids and events there are."""
    if not len(counts):
        return []
    visits = np.cumsum(counts * (ids / max(1, events)))
    number = int(np.clip(visits[-1] / _BLOCK_VISITS, 1, 4096))
    edges = np.unique(np.searchsorted(visits, visits[-1] * np.arange(1, number) / number))
    begins = [0, *edges[(edges > 0) & (edges < len(counts))].tolist(), len(counts)]
    mass = np.append(np.cumsum(counts[::-1])[::-1], 0)
    steps = [0]
    while steps[-1] < len(counts):  # what is below a step is cut away when that is worth the copy
        steps.append(steps[-1] + 1 + int((mass[steps[-1] + 1 :] >= _WORTH_CUTTING * mass[steps[-1]]).sum()))
    return [
        Block(begin, end, tuple(step for step, over in pairwise(steps) if over > begin and step < end))
        for begin, end in pairwise(begins)
    ]


def arrange(shards: Sequence[tuple[Path, Path]], kept: pa.Array, to: Path) -> None:
    """Write the events of some shards as one chunk: the table's words of each event, and the events of each word."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from scipy.sparse import csr_array

    parts, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for words_file, events_file in shards:
        words = pq.read_table(words_file, columns=["word"])["word"].combine_chunks()
        numbers = pc.fill_null(pc.index_in(words, value_set=kept), -1).to_numpy(zero_copy_only=False).astype(np.int32)
        arrays = map_arrays(events_file)
        if not len(arrays["sizes"]):
            continue
        ids = numbers[arrays["ids"]]
        before = arrays["sizes"].astype(np.int64)
        there = ids >= 0
        after = np.add.reduceat(there, np.cumsum(before) - before, dtype=np.int32)
        there &= np.repeat(after > 1, before)  # one word makes no pair
        parts.append(ids[there])
        sizes.append(after[after > 1])
    ids = np.concatenate(parts)
    if len(ids) > MOST_IDS:  # of one shard, then: an archive is not cut
        raise InputError(f"an archive has more than {MOST_IDS:,} words to pair; cut it into several, or unpack it")
    starts = np.zeros(sum(map(len, sizes)) + 1, np.int32)
    np.cumsum(np.concatenate(sizes), out=starts[1:])
    events = csr_array((np.ones(len(ids), np.int8), ids, starts), shape=(len(starts) - 1, len(kept)))
    words_first = events.tocsc()
    arrays = {"ids": ids, "starts": starts, "events": words_first.indices, "word_starts": words_first.indptr}
    save_arrays(to, {name: some.astype(np.int32, copy=False).view(np.uint32) for name, some in arrays.items()}, {})


class _Chunk:
    """An arranged chunk, mapped; keeps the part of its columns that was asked for last.

    A chunk that is `alone` may count in 16 bits where no word is in more events than fit: that saves a fifth.
    """

    def __init__(self, path: Path, words: int, *, alone: bool) -> None:
        arrays = {name: some.view(np.int32) for name, some in map_arrays(path).items()}
        self.ids, self.starts = arrays["ids"], arrays["starts"]
        self.events, self.word_starts = arrays["events"], arrays["word_starts"]
        self.words = words
        self._alone = alone
        self._floor = 0
        self._part: Any = None

    def from_word(self, floor: int) -> csr_array:
        """Events by words, without the words below `floor`; made of the last part where that has them all."""
        from scipy.sparse import csr_array

        if self._part is None or floor != self._floor:
            ids, starts, base = self.ids, self.starts, 0
            if self._part is not None and self._floor < floor:
                ids, starts, base = self._part.indices, self._part.indptr, self._floor
            there = ids >= floor - base
            full = np.flatnonzero(np.diff(starts))
            sizes = np.zeros(len(starts) - 1, np.int32)
            if len(full):
                sizes[full] = np.add.reduceat(there, starts[full], dtype=np.int32)
            left = ids[there]
            left -= np.int32(floor - base)
            cut = np.zeros(len(starts), np.int32)
            np.cumsum(sizes, out=cut[1:])
            shape = (len(starts) - 1, self.words - floor)
            most = int(np.diff(self.word_starts[floor:]).max(initial=0))
            number = np.uint16 if self._alone and most < 1 << 16 else np.int32
            self._part, self._floor = csr_array((np.ones(len(left), number), left, cut), shape=shape), floor
        return self._part

    def forget(self) -> None:
        """Let go of the part, before another chunk makes its own."""
        self._part = None

    def rows(self, begin: int, end: int, number: Any) -> csr_array:
        """Words by events, with ones of some kind of number."""
        from scipy.sparse import csr_array

        starts = self.word_starts[begin : end + 1]
        events = self.events[starts[0] : starts[-1]]
        shape = (end - begin, len(self.starts) - 1)
        return csr_array((np.ones(len(events), number), events, starts - starts[0]), shape=shape)


def count_pairs(
    chunks: Sequence[Path],
    blocks: Sequence[Block],
    words: int,
    *,
    least: int,
    threads: int,
    to: Callable[[int], Path],
    told: Callable[[int], None] | None = None,
) -> None:
    """Count the pairs of some chunks and write those in `least` events or more, a Parquet file a block.

    A block whose file is there already is left alone.
    """
    opened = [_Chunk(chunk, words, alone=len(chunks) == 1) for chunk in chunks]
    with ThreadPoolExecutor(threads) as pool:
        for number, block in enumerate(blocks):
            if not to(number).exists():
                _write_pairs(to(number), _block_pairs(opened, block, least, pool))
            if told is not None:
                told(number)


def _block_pairs(chunks: Sequence[_Chunk], block: Block, least: int, pool: ThreadPoolExecutor) -> list[Pairs]:
    found: list[Pairs] = []
    for floor, over in pairwise((*block.steps, block.end)):
        tasks = list(_tasks(chunks, max(floor, block.begin), over))
        if len(chunks) == 1:
            chunk, part = chunks[0], chunks[0].from_word(floor)
            work = partial(_task_pairs, chunk, part, floor, least)
            found += pool.map(work, tasks)
            continue
        sums: list[Any] = [None] * len(tasks)
        for chunk in chunks:
            products = pool.map(partial(_product, chunk, chunk.from_word(floor)), tasks)
            sums = [one if total is None else total + one for total, one in zip(sums, products, strict=True)]
            chunk.forget()
        found += [_pairs(total, task[0], floor, least) for total, task in zip(sums, tasks, strict=True)]
    return found


def _product(chunk: _Chunk, part: csr_array, task: tuple[int, int]) -> csr_array:
    return chunk.rows(*task, part.dtype) @ part


def _task_pairs(chunk: _Chunk, part: csr_array, floor: int, least: int, task: tuple[int, int]) -> Pairs:
    return _pairs(_product(chunk, part, task), task[0], floor, least)


def _tasks(chunks: Sequence[_Chunk], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Rows for one thread at once, by how much they look at."""
    visits = np.zeros(end - begin)
    for chunk in chunks:
        mean = len(chunk.ids) / max(1, len(chunk.starts) - 1)
        visits += np.diff(chunk.word_starts[begin : end + 1]) * mean
    filled = (np.cumsum(visits) // min(_TASK_VISITS, visits.sum() / 2 + 1)).astype(np.int64)
    edges = begin + np.flatnonzero(np.diff(filled, prepend=filled[:1]))
    return pairwise([begin, *edges[edges > begin].tolist(), end])


def _pairs(product: csr_array, begin: int, floor: int, least: int) -> Pairs:
    """The upper half of some rows as (left, right, n)."""
    sizes = np.diff(product.indptr)
    left = np.repeat(np.arange(begin, begin + len(sizes), dtype=np.int32), sizes)
    right = product.indices + np.int32(floor)
    wanted = right > left
    if least > 1:
        wanted &= product.data >= least
    return left[wanted], right[wanted].astype(np.int32), product.data[wanted].astype(np.int32)


def _write_pairs(path: Path, pairs: Sequence[Pairs]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [np.concatenate(some) for some in zip(*pairs, strict=True)]
    table = pa.table(dict(zip(("left_word", "right_word", "n"), columns, strict=True)))
    with write_atomically(path) as file:
        pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=False)
