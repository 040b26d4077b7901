"""Counting pairs of words: frequent words by dense products, the others by sorting, some words at a time.

Words are numbered from the most frequent on, and a pair (left, right) has its smaller number first.

- *Frequent left words*, a few hundred: a dense matrix of events by these words, a panel. How often any word meets them
  is the sum of the panel's rows at its events: `scipy.sparse` adds a row of 256 in some sixty nanoseconds, as long as
  the panel stays in the cache, so that events go through it in parts.
- *The other left words*: the words of all events of a word, one behind the other, are sorted; what stands there `least`
  times is a pair. That is some fifteen nanoseconds a pair, where a product of sparse matrices takes thirty and a
  self-join in SQL a hundred. Words before a step are cut away from the events in some fifty steps, which leaves little
  more than the half that is needed.

Events are arranged into chunks that fit in memory. A worker sums over its chunks; where one worker has all chunks its
sums are whole, and pairs that no table would have are dropped at once. Else they are written for SQL to add up.
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
from wellread.io.arrays import map_arrays, save_arrays
from wellread.io.files import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csc_array, csr_array

BYTES_AN_ID = 24
"""Memory that a word of an event takes while pairs are counted: two mapped orders, and two parts of one."""
MOST_IDS = 2**31 - 1
"""Words of events in a chunk: where an event starts is told in 32 bits."""
_BLOCK_VISITS = 64_000_000
_TASK_VISITS = 1 << 18
"""Pairs looked at for a block, and by a thread at once: what is sorted stays in the cache."""
_WORTH_CUTTING = 0.8
_PANEL = 256
"""Frequent words whose pairs are counted at once."""
_PART_EVENTS = 8192
"""Events that go through a panel at once: four megabytes."""
_WORTH_A_PANEL = 4.0
"""Words of a panel that an event must have, on average."""
_TASK_ROWS = 2048
_SHARE = 32
"""A block's sums, or what is sorted for it, take this part of the memory given, or some times that."""

Ids = NDArray[np.int32]
Pairs = tuple[Ids, Ids, Ids]
"""Left words, right words, and in how many events both are."""
Wanted = Callable[[Ids, Ids, Ids], NDArray[np.bool_]]
"""Which of some pairs a table would have."""


@dataclass(frozen=True, slots=True)
class Block:
    """Left words from `begin` to `end`, and the right words that they are counted with: from `low` to `high`.

    Without steps it is a panel. Else what is below a step is cut away from the events when left words come to it.
    """

    begin: int
    end: int
    low: int
    high: int
    steps: tuple[int, ...] = ()


def cut_blocks(counts: NDArray[np.int64], ids: int, events: int, memory: int) -> list[Block]:
    """Blocks for all pairs, from how many events have each word, and how many ids and events there are."""
    words, blocks, begin = len(counts), [], 0
    rows = max(_PANEL, memory // _SHARE // (2 * _PANEL))
    while begin < words and counts[begin : begin + _PANEL].sum() >= _WORTH_A_PANEL * events:
        end = min(begin + _PANEL, words)
        lows = [begin, *range(begin + rows, words, rows)]
        blocks += [Block(begin, end, low, high) for low, high in pairwise([*lows, words])]
        begin = end
    if begin == words:
        return blocks
    visits = np.cumsum(counts[begin:] * (ids / max(1, events)))
    number = int(np.clip(visits[-1] / min(_BLOCK_VISITS, memory / _SHARE), 1, 4096))
    edges = begin + np.unique(np.searchsorted(visits, visits[-1] * np.arange(1, number) / number))
    begins = [begin, *edges[(edges > begin) & (edges < words)].tolist(), words]
    mass = np.append(np.cumsum(counts[::-1])[::-1], 0)
    steps = [begin]
    while steps[-1] < words:
        steps.append(steps[-1] + 1 + int((mass[steps[-1] + 1 :] >= _WORTH_CUTTING * mass[steps[-1]]).sum()))
    return blocks + [
        Block(begin, end, begin, words, tuple(step for step, over in pairwise(steps) if over > begin and step < end))
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
    if len(ids) > MOST_IDS:  # of one shard, then
        raise InputError(
            f"a part of the text has more than {MOST_IDS:,} words to pair; cut it into several, or give a larger --step"
        )
    starts = np.zeros(sum(map(len, sizes)) + 1, np.int32)
    np.cumsum(np.concatenate(sizes), out=starts[1:])
    events = csr_array((np.ones(len(ids), np.int8), ids, starts), shape=(len(starts) - 1, len(kept)))
    words_first = events.tocsc()
    arrays = {"ids": ids, "starts": starts, "events": words_first.indices, "word_starts": words_first.indptr}
    save_arrays(to, {name: some.astype(np.int32, copy=False).view(np.uint32) for name, some in arrays.items()}, {})


class _Chunk:
    """An arranged chunk, mapped; keeps the part of its columns that was asked for last."""

    def __init__(self, path: Path, words: int) -> None:
        arrays = {name: some.view(np.int32) for name, some in map_arrays(path).items()}
        self.ids, self.starts = arrays["ids"], arrays["starts"]
        self.events, self.word_starts = arrays["events"], arrays["word_starts"]
        self.words = words
        self._floor = 0
        self._part: csr_array | None = None

    def from_word(self, floor: int) -> csr_array:
        """Events by words, without the words below `floor`; made of the last part where that has them all."""
        if self._part is None or floor != self._floor:
            ids, starts, base = self.ids, self.starts, 0
            if self._part is not None and self._floor < floor:
                ids, starts, base = self._part.indices, self._part.indptr, self._floor
            self._part, self._floor = _cut(ids, starts, floor - base, self.words - base), floor
        return self._part

    def forget(self) -> None:
        """Let go of the part, before another chunk makes its own."""
        self._part = None

    def parts(self) -> Iterator[tuple[int, int]]:
        """Events that go through a panel at once, from and to."""
        return pairwise([*range(0, len(self.starts) - 1, _PART_EVENTS), len(self.starts) - 1])

    def words_first(self, begin: int, end: int, floor: int) -> csc_array:
        """Of some events, those that each word from `floor` on is in."""
        starts = self.starts[begin : end + 1]
        return _cut(self.ids[starts[0] : starts[-1]], starts - starts[0], floor, self.words).tocsc()


def _cut(ids: Ids, starts: Ids, floor: int, words: int) -> csr_array:
    """Events by words, without the words below `floor`."""
    from scipy.sparse import csr_array

    if floor:
        there = ids >= floor
        passed = np.zeros(len(ids) + 1, np.int32)
        np.cumsum(there, out=passed[1:])
        ids, starts = ids[there], passed[starts]
        ids -= np.int32(floor)
    return csr_array((np.ones(len(ids), np.int8), ids, starts), shape=(len(starts) - 1, words - floor))


def count_pairs(
    chunks: Sequence[Path],
    blocks: Sequence[Block],
    counts: NDArray[np.int64],
    *,
    least: int,
    threads: int,
    done: Callable[[int], bool],
    wanted: Wanted | None = None,
) -> Iterator[tuple[int, Pairs]]:
    """The pairs of each block that are in `least` events or more, and wanted; a block that is done is left out."""
    opened = [_Chunk(chunk, len(counts)) for chunk in chunks]
    with ThreadPoolExecutor(threads) as pool:
        for number, block in enumerate(blocks):
            if done(number):
                continue
            count = _rare_pairs if block.steps else _frequent_pairs
            found = count(opened, block, counts, partial(_keep, least=least, wanted=wanted), pool)
            left, right, n = (np.concatenate(some) for some in zip(*found, strict=True))
            yield number, (left, right, n)


def _keep(left: Ids, right: Ids, n: Any, *, least: int, wanted: Wanted | None) -> Pairs:
    there = right > left
    if least > 1:
        there &= n >= least
    left, right, n = left[there], right[there], n[there].astype(np.int32)
    if wanted is None:
        return left, right, n
    there = wanted(left, right, n)
    return left[there], right[there], n[there]


def _frequent_pairs(
    chunks: Sequence[_Chunk], block: Block, counts: NDArray[np.int64], keep: Any, pool: ThreadPoolExecutor
) -> list[Pairs]:
    """All pairs of a panel, by right word."""
    width = block.end - block.begin
    edges = [*range(block.low, block.high, _TASK_ROWS), block.high]
    sums = [  # no pair is in more events than its right word, the rarer one
        np.zeros((high - low, width), np.uint16 if counts[low] < 1 << 16 else np.uint32)
        for low, high in pairwise(edges)
    ]
    parts = [(chunk, *part) for chunk in chunks for part in chunk.parts()]
    ready = pool.map(partial(_panel, block), parts[:1])
    for number in range(len(parts)):
        words_first, panel = next(iter(ready))
        ready = pool.map(partial(_panel, block), parts[number + 1 : number + 2])  # while this one is added
        add = partial(_add_part, words_first, panel, block.begin)
        for _ in pool.map(add, pairwise(edges), sums):
            pass
    take = partial(_panel_pairs, block.begin, keep)
    return list(pool.map(take, edges[:-1], sums))


def _panel(block: Block, part: tuple[_Chunk, int, int]) -> tuple[csc_array, NDArray[np.uint16]]:
    """Some events by the words of a panel, dense; and of each word from there on the events."""
    chunk, begin, end = part
    words_first = chunk.words_first(begin, end, block.begin)
    starts = words_first.indptr[: block.end - block.begin + 1]
    panel = np.zeros((end - begin, block.end - block.begin), np.uint16)
    panel[words_first.indices[: starts[-1]], np.repeat(np.arange(panel.shape[1]), np.diff(starts))] = 1
    return words_first, panel


def _add_part(
    words_first: csc_array, panel: NDArray[np.uint16], floor: int, rows: tuple[int, int], sums: NDArray[Any]
) -> None:
    from scipy.sparse import csr_array

    starts = words_first.indptr[rows[0] - floor : rows[1] - floor + 1]
    events = words_first.indices[starts[0] : starts[-1]]
    shape = (rows[1] - rows[0], panel.shape[0])
    sums += csr_array((np.ones(len(events), np.uint16), events, starts - starts[0]), shape=shape) @ panel


def _panel_pairs(begin: int, keep: Any, low: int, sums: NDArray[Any]) -> Pairs:
    at = np.flatnonzero(sums >= max(1, keep.keywords["least"]))
    n = sums.ravel()[at]
    right, left = np.divmod(at.astype(np.uint32), np.uint32(sums.shape[1]))
    found: Pairs = keep(left.view(np.int32) + np.int32(begin), right.view(np.int32) + np.int32(low), n)
    return found


def _rare_pairs(
    chunks: Sequence[_Chunk], block: Block, counts: NDArray[np.int64], keep: Any, pool: ThreadPoolExecutor
) -> list[Pairs]:
    """The pairs of some left words, by left word, then right."""
    found: list[Pairs] = []
    for floor, over in pairwise((*block.steps, block.end)):
        tasks = list(_tasks(chunks, max(floor, block.begin), over, floor))
        count = partial(_count_keys, floor, len(counts) - floor, keep)
        if len(chunks) == 1:
            gather = partial(_keys, chunks[0], chunks[0].from_word(floor))
            found += pool.map(lambda task, gather=gather, count=count: count(task[0], gather(task)), tasks)
            continue
        keys: list[list[NDArray[np.uint32]]] = [[] for _ in tasks]
        for chunk in chunks:
            for task_keys, some in zip(
                keys, pool.map(partial(_keys, chunk, chunk.from_word(floor)), tasks), strict=True
            ):
                task_keys.append(some)
            chunk.forget()
        found += pool.map(count, [begin for begin, _ in tasks], map(np.concatenate, keys))
    return found


def _tasks(chunks: Sequence[_Chunk], begin: int, end: int, floor: int) -> Iterator[tuple[int, int]]:
    """Left words for one thread at once, by how much they look at, and no more than 32 bits can tell apart."""
    visits = np.zeros(end - begin)
    for chunk in chunks:
        mean = (len(chunk.ids) - chunk.word_starts[floor]) / max(1, len(chunk.starts) - 1)
        visits += np.diff(chunk.word_starts[begin : end + 1]) * mean
    filled = (np.cumsum(visits) // _TASK_VISITS).astype(np.int64)
    full = np.arange(end - begin) // (((1 << 32) - 1) // (len(chunks[0].word_starts) - 1 - floor))
    edges = begin + np.flatnonzero(np.diff(filled, prepend=filled[:1]) + np.diff(full, prepend=full[:1]))
    return pairwise([begin, *edges[edges > begin].tolist(), end])


def _keys(chunk: _Chunk, part: csr_array, task: tuple[int, int]) -> NDArray[np.uint32]:
    """Of every event of some left words all words, each as (left, right) in one number."""
    begin, end = task
    starts = chunk.word_starts[begin : end + 1]
    events = part[chunk.events[starts[0] : starts[-1]]]
    keys: NDArray[np.uint32] = events.indices.astype(np.int32, copy=False).view(np.uint32)
    sizes = np.diff(events.indptr[starts - starts[0]])
    keys += np.repeat(np.arange(end - begin, dtype=np.uint32) * np.uint32(part.shape[1]), sizes)
    return keys


def _count_keys(floor: int, width: int, keep: Any, begin: int, keys: NDArray[np.uint32]) -> Pairs:
    keys.sort()
    least = max(1, keep.keywords["least"])
    again = keys[np.flatnonzero(keys[least - 1 :] == keys[: len(keys) - least + 1])]
    first = np.flatnonzero(np.append(True, again[1:] != again[:-1])[: len(again)])
    n = np.diff(first, append=len(again)) + (least - 1)
    left, right = np.divmod(again[first], np.uint32(width))
    found: Pairs = keep(left.view(np.int32) + np.int32(begin), right.view(np.int32) + np.int32(floor), n)
    return found


def write_pairs(path: Path, pairs: Pairs) -> None:
    """Write counted pairs for SQL to sum."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(zip(("left_word", "right_word", "n"), pairs, strict=True)))
    with write_atomically(path) as file:
        pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=False)
