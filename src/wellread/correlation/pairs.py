"""Counts of word pairs: frequent words by dense products, the others by sorting, some words at a time.

Words are numbered by falling frequency, and a pair (left, right) has its smaller number first.

- *Frequent left words*, a few hundred: a dense matrix of events by these words, a panel. The counts of any word with
  them are the sum of the panel's rows at its events: `scipy.sparse` adds a row of 256 in about sixty nanoseconds, if
  the panel stays in the cache, so events are processed in parts.
- *The other left words*: the words of all events of a word are concatenated and sorted; a word that occurs `least`
  times there is a pair. That takes about fifteen nanoseconds a pair; a product of sparse matrices takes thirty, a
  self-join in SQL a hundred. Words below a step are removed from the events in about fifty steps, which leaves little
  more than the half that is needed.

Events are arranged into chunks that fit in memory. A worker sums over its chunks. If one worker has all chunks, its
sums are complete, and pairs that cannot be in the table are dropped immediately; otherwise they are written for SQL to
sum.
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
"""Memory per word of an event while pairs are counted: two mapped orders, and two parts of one."""
MOST_IDS = 2**31 - 1
"""Maximum number of words of events in a chunk: offsets have 32 bits."""
_BLOCK_VISITS = 64_000_000
_TASK_VISITS = 1 << 18
"""Number of pairs visited for a block, and by a thread at once: sorted data stay in the cache."""
_WORTH_REMOVING = 0.8
_PANEL = 256
"""Number of frequent words whose pairs are counted together."""
_PART_EVENTS = 8192
"""Number of events of a panel that are processed together: four megabytes."""
_WORTH_A_PANEL = 4.0
"""Minimum mean number of a panel's words in an event."""
_TASK_ROWS = 2048
_SHARE = 32
"""Part of the memory that a block's sums, or its sorted data, take (or a small multiple of it)."""

Ids = NDArray[np.int32]
CountedPairs = tuple[Ids, Ids, Ids]
"""Left words, right words, and the number of events with both."""
Wanted = Callable[[Ids, Ids, Ids], NDArray[np.bool_]]
"""Returns True for the pairs that can be in the table."""


@dataclass(frozen=True, slots=True)
class PairBlock:
    """Left words from `begin` to `end`, and the right words that they are counted with: from `low` to `high`.

    Without steps it is a panel. Otherwise words below a step are removed from the events once left words reach it.
    """

    begin: int
    end: int
    low: int
    high: int
    steps: tuple[int, ...] = ()


def plan_blocks(counts: NDArray[np.int64], ids: int, events: int, memory: int) -> list[PairBlock]:
    """Return blocks for all pairs, from the number of events of each word and the numbers of ids and events."""
    words, blocks, begin = len(counts), [], 0
    rows = max(_PANEL, memory // _SHARE // (2 * _PANEL))
    while begin < words and counts[begin : begin + _PANEL].sum() >= _WORTH_A_PANEL * events:
        end = min(begin + _PANEL, words)
        lows = [begin, *range(begin + rows, words, rows)]
        blocks += [PairBlock(begin, end, low, high) for low, high in pairwise([*lows, words])]
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
        steps.append(steps[-1] + 1 + int((mass[steps[-1] + 1 :] >= _WORTH_REMOVING * mass[steps[-1]]).sum()))
    return blocks + [
        PairBlock(
            begin, end, begin, words, tuple(step for step, over in pairwise(steps) if over > begin and step < end)
        )
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
        there &= np.repeat(after > 1, before)  # a single word is not a pair
        parts.append(ids[there])
        sizes.append(after[after > 1])
    ids = np.concatenate(parts)
    if len(ids) > MOST_IDS:  # a chunk of one shard
        raise InputError(
            f"a part of the text has more than {MOST_IDS:,} words to pair; split it into several, or use a larger "
            "--step"
        )
    starts = np.zeros(sum(map(len, sizes)) + 1, np.int32)
    np.cumsum(np.concatenate(sizes), out=starts[1:])
    events = csr_array((np.ones(len(ids), np.int8), ids, starts), shape=(len(starts) - 1, len(kept)))
    words_first = events.tocsc()
    arrays = {"ids": ids, "starts": starts, "events": words_first.indices, "word_starts": words_first.indptr}
    save_arrays(to, {name: some.astype(np.int32, copy=False).view(np.uint32) for name, some in arrays.items()}, {})


class _Chunk:
    """Memory-mapped chunk; caches the last part of its columns."""

    def __init__(self, path: Path, words: int) -> None:
        arrays = {name: some.view(np.int32) for name, some in map_arrays(path).items()}
        self.ids, self.starts = arrays["ids"], arrays["starts"]
        self.events, self.word_starts = arrays["events"], arrays["word_starts"]
        self.words = words
        self._floor = 0
        self._part: csr_array | None = None

    def from_word(self, floor: int) -> csr_array:
        """Return events by words, without words below `floor`; made from the cached part if possible."""
        if self._part is None or floor != self._floor:
            ids, starts, base = self.ids, self.starts, 0
            if self._part is not None and self._floor < floor:
                ids, starts, base = self._part.indices, self._part.indptr, self._floor
            self._part, self._floor = _from_floor(ids, starts, floor - base, self.words - base), floor
        return self._part

    def forget(self) -> None:
        """Drop the cached part, before another chunk makes its own."""
        self._part = None

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of events that are processed together in a panel."""
        return pairwise([*range(0, len(self.starts) - 1, _PART_EVENTS), len(self.starts) - 1])

    def words_first(self, begin: int, end: int, floor: int) -> csc_array:
        """Return the events of each word from `floor` on, of some events."""
        starts = self.starts[begin : end + 1]
        return _from_floor(self.ids[starts[0] : starts[-1]], starts - starts[0], floor, self.words).tocsc()


def _from_floor(ids: Ids, starts: Ids, floor: int, words: int) -> csr_array:
    """Return events by words, without words below `floor`."""
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
    blocks: Sequence[PairBlock],
    counts: NDArray[np.int64],
    *,
    least: int,
    threads: int,
    done: Callable[[int], bool],
    wanted: Wanted | None = None,
) -> Iterator[tuple[int, CountedPairs]]:
    """Yield the pairs of each block with at least `least` events that are wanted; finished blocks are skipped."""
    opened = [_Chunk(chunk, len(counts)) for chunk in chunks]
    with ThreadPoolExecutor(threads) as pool:
        for number, block in enumerate(blocks):
            if done(number):
                continue
            count = _rare_pairs if block.steps else _frequent_pairs
            found = count(opened, block, counts, partial(_keep, least=least, wanted=wanted), pool)
            left, right, n = (np.concatenate(some) for some in zip(*found, strict=True))
            yield number, (left, right, n)


def _keep(left: Ids, right: Ids, n: Any, *, least: int, wanted: Wanted | None) -> CountedPairs:
    there = right > left
    if least > 1:
        there &= n >= least
    left, right, n = left[there], right[there], n[there].astype(np.int32)
    if wanted is None:
        return left, right, n
    there = wanted(left, right, n)
    return left[there], right[there], n[there]


def _frequent_pairs(
    chunks: Sequence[_Chunk], block: PairBlock, counts: NDArray[np.int64], keep: Any, pool: ThreadPoolExecutor
) -> list[CountedPairs]:
    """Return all pairs of a panel, by right word."""
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
        ready = pool.map(partial(_panel, block), parts[number + 1 : number + 2])  # prepared while this one is added
        add = partial(_add_part, words_first, panel, block.begin)
        for _ in pool.map(add, pairwise(edges), sums):
            pass
    take = partial(_panel_pairs, block.begin, keep)
    return list(pool.map(take, edges[:-1], sums))


def _panel(block: PairBlock, part: tuple[_Chunk, int, int]) -> tuple[csc_array, NDArray[np.uint16]]:
    """Return some events by the words of a panel, dense, and the events of each word from there on."""
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


def _panel_pairs(begin: int, keep: Any, low: int, sums: NDArray[Any]) -> CountedPairs:
    at = np.flatnonzero(sums >= max(1, keep.keywords["least"]))
    n = sums.ravel()[at]
    right, left = np.divmod(at.astype(np.uint32), np.uint32(sums.shape[1]))
    found: CountedPairs = keep(left.view(np.int32) + np.int32(begin), right.view(np.int32) + np.int32(low), n)
    return found


def _rare_pairs(
    chunks: Sequence[_Chunk], block: PairBlock, counts: NDArray[np.int64], keep: Any, pool: ThreadPoolExecutor
) -> list[CountedPairs]:
    """Return the pairs of some left words, by left word, then right."""
    found: list[CountedPairs] = []
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
    """Yield ranges of left words for one thread, by their number of visits, and within 32-bit keys."""
    visits = np.zeros(end - begin)
    for chunk in chunks:
        mean = (len(chunk.ids) - chunk.word_starts[floor]) / max(1, len(chunk.starts) - 1)
        visits += np.diff(chunk.word_starts[begin : end + 1]) * mean
    filled = (np.cumsum(visits) // _TASK_VISITS).astype(np.int64)
    full = np.arange(end - begin) // (((1 << 32) - 1) // (len(chunks[0].word_starts) - 1 - floor))
    edges = begin + np.flatnonzero(np.diff(filled, prepend=filled[:1]) + np.diff(full, prepend=full[:1]))
    return pairwise([begin, *edges[edges > begin].tolist(), end])


def _keys(chunk: _Chunk, part: csr_array, task: tuple[int, int]) -> NDArray[np.uint32]:
    """Return all words of every event of some left words, with (left, right) as one number."""
    begin, end = task
    starts = chunk.word_starts[begin : end + 1]
    events = part[chunk.events[starts[0] : starts[-1]]]
    keys: NDArray[np.uint32] = events.indices.astype(np.int32, copy=False).view(np.uint32)
    sizes = np.diff(events.indptr[starts - starts[0]])
    keys += np.repeat(np.arange(end - begin, dtype=np.uint32) * np.uint32(part.shape[1]), sizes)
    return keys


def _count_keys(floor: int, width: int, keep: Any, begin: int, keys: NDArray[np.uint32]) -> CountedPairs:
    keys.sort()
    least = max(1, keep.keywords["least"])
    again = keys[np.flatnonzero(keys[least - 1 :] == keys[: len(keys) - least + 1])]
    first = np.flatnonzero(np.append(True, again[1:] != again[:-1])[: len(again)])
    n = np.diff(first, append=len(again)) + (least - 1)
    left, right = np.divmod(again[first], np.uint32(width))
    found: CountedPairs = keep(left.view(np.int32) + np.int32(begin), right.view(np.int32) + np.int32(floor), n)
    return found


def write_pairs(path: Path, pairs: CountedPairs) -> None:
    """Write counted pairs for SQL to sum."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(zip(("left_word", "right_word", "n"), pairs, strict=True)))
    with write_atomically(path) as file:
        pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=False)
