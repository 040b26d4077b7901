"""From text to events: the words of each document or window of a shard, as numbers.

Words are those of `text.words`, folded, without punctuation: "Jean-Paul's CAFÉ!" -> jean paul s cafe. A shard becomes
two files: `events-N.safetensors` (the words of every event, as indices into the shard's words) and `words-N.parquet`
(each word and its number of events). The latter is written last: if it exists, the shard is done. Both are kept with
the table: with them, counts can be added and limits changed without reading the text again. A large archive has such
files for each of its blocks: all but the last are `events-N-B.safetensors` and `words-N-B.parquet`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wellread.data.corpus import Corpus
from wellread.errors import WellreadError
from wellread.io.arrays import save_arrays
from wellread.io.files import write_atomically
from wellread.text.words import fold, split, words

PLAN = "corpus.json"

_ASCII_WORDS = str.maketrans({code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)})
_SPACED_WORD = re.compile(r"[^\W_]+")
# Latin, Greek, Cyrillic and most symbols, where a word is a run of letters and digits. Other ranges have combining
# marks and scripts without spaces.
_UNUSUAL = re.compile("[^\0-\xac\xae-\u02ff\u0370-\u0482\u048a-\u0590\u1e00-\u200b\u2010-\u20cf\u2100-\u2bff]")
_LONG = 1 << 18
_BATCH = 1 << 23

Ids = NDArray[np.int32]


def counted_words(text: str) -> list[str]:
    """Return the words of a text as they are counted: "Jean-Paul's CAFÉ!" -> ["jean", "paul", "s", "cafe"]."""
    return spaced(text).split()


def spaced(text: str) -> str:
    """Return the words of a text with blanks between them: "Jean-Paul's CAFÉ!" -> "jean paul s cafe "."""
    if text.isascii():
        return text.translate(_ASCII_WORDS)
    if not _UNUSUAL.search(text):
        found = _SPACED_WORD.findall(text)
    elif len(text) < _LONG:
        borders = split(text)
        found = [text[start:end] for start, end in zip(borders.starts.tolist(), borders.ends.tolist(), strict=True)]
    else:
        found = words(text)
    return " ".join([word.lower() if word.isascii() else _folded(word) for word in found if word[0].isalnum()])


@lru_cache(1 << 16)
def _folded(word: str) -> str:
    return "".join(map(fold, word))


def shard_files(folder: Path, shard: int, block: int | None = None) -> tuple[Path, Path]:
    """Return the words and events files of a shard; the last block of an archive has no number."""
    name = f"{shard:06d}" if block is None else f"{shard:06d}-{block:06d}"
    return folder / f"words-{name}.parquet", folder / f"events-{name}.safetensors"


def count_shard(corpus: Corpus, shard: int, folder: Path) -> None:
    """Read a shard and write its events and words, block by block; existing blocks are kept."""
    blocks = corpus.blocks(shard)
    texts = next(blocks)
    for number, after in enumerate(blocks):
        files = shard_files(folder, shard, number)
        if not files[0].exists():
            _count_block(texts, corpus, files)
        texts = after
    _count_block(texts, corpus, shard_files(folder, shard))


def _count_block(documents: Iterable[str], corpus: Corpus, files: tuple[Path, Path]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    places: dict[str, int] = {}
    ids, sizes, total = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint32)], 0
    for texts in _batches(documents):
        numbers, starts = _numbered(texts, places)
        total += len(numbers)
        if corpus.window:
            numbers, starts = _windows(numbers, starts, corpus.window, corpus.step)
        for some, filled in zip(_once(numbers, starts, len(places)), (ids, sizes), strict=True):
            filled.append(some)
    there = np.concatenate(ids)
    words_file, events_file = files
    words_read = np.array([total], np.int64)
    save_arrays(events_file, {"ids": there, "sizes": np.concatenate(sizes), "words": words_read}, {})
    counts = np.bincount(there, minlength=len(places))
    table = pa.table({"word": pa.array(list(places), pa.string()), "n": pa.array(counts, pa.int64())})
    with write_atomically(words_file) as file:
        pq.write_table(table, file, compression="zstd", use_dictionary=False)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield documents with spaced words, some megabytes at a time."""
    batch, size = [], 0
    for text in documents:
        batch.append(spaced(text))
        size += len(text)
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _numbered(texts: Sequence[str], places: dict[str, int]) -> tuple[Ids, Ids]:
    """Return the words of texts as numbers, and the offset of each text; new words are added to `places`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words_in = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(pa.array(texts, pa.string())))
    found = words_in.flatten().dictionary_encode()
    known = [places.setdefault(word, len(places)) if word else -1 for word in found.dictionary.to_pylist()]
    numbers = np.array(known, np.int32)[found.indices.to_numpy()]
    starts = words_in.offsets.to_numpy()
    if "" in texts or not numbers.min(initial=0) >= 0:  # pyarrow splits a text without words into one empty word
        there = numbers >= 0
        starts = np.append(0, np.cumsum(there))[starts].astype(np.int32)
        numbers = numbers[there]
    return numbers, starts


def _windows(numbers: Ids, starts: Ids, window: int, step: int) -> tuple[Ids, Ids]:
    """Return every window of every text as a text of its own."""
    sizes = np.diff(starts)
    count = np.where(sizes > 0, -(-np.maximum(1, sizes - window + step) // step), 0)
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    begins = np.repeat(starts[:-1], count) + step * number
    spans = np.minimum(begins + window, np.repeat(starts[1:], count)) - begins
    stops = np.cumsum(spans)
    places = np.arange(spans.sum()) + np.repeat(begins - (stops - spans), spans)
    return numbers[places], np.append(0, stops).astype(np.int32)


def _once(numbers: Ids, starts: Ids, words: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the distinct words of each text that has any, concatenated, and their counts."""
    from scipy.sparse import csr_array

    shape = (len(starts) - 1, words)
    ordered = csr_array((np.ones(len(numbers), np.int8), numbers, starts), shape=shape).tocsc().tocsr()
    ids = ordered.indices  # sorted within a text by the two conversions, which count
    first = np.ones(len(ids), bool)
    first[1:] = ids[1:] != ids[:-1]
    full = starts[:-1][np.diff(starts) > 0]
    first[full] = True
    sizes = np.add.reduceat(first, full, dtype=np.uint32) if len(full) else np.zeros(0, np.uint32)
    return ids[first].astype(np.uint32), sizes


def missing(corpus: Corpus, folder: Path) -> Iterator[int]:
    """Yield the shards that are not counted yet."""
    return (shard for shard in range(len(corpus.shards)) if not shard_files(folder, shard)[0].exists())


def main() -> None:
    """Run a worker: count the shards whose numbers come on stdin, one per line, and answer each with a line."""
    folder = Path(sys.argv[1])
    corpus = Corpus.from_json((folder / PLAN).read_bytes())
    for line in sys.stdin:
        try:
            count_shard(corpus, int(line), folder)
        except WellreadError as error:
            sys.stdout.write(f"{type(error).__name__} {error}\n")
        else:
            sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
