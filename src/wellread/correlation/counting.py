"""Count the words and pairs of a corpus and make a table of correlations: `correlate`, and `add_corpus` for more text.

    text ─► shards: words and events ─► SQL: frequent words ─► chunks ─► pairs, block by block ─► SQL: sums ─► table

If one machine counts all pairs, their sums are complete and go to the table without SQL. Every step writes complete
files, so that a killed run continues where it stopped. The events of all corpora stay in the table's folder
(`counted/`), so that adding a corpus, or changing the limits, reads no old text, and gives the same table as counting
everything at once. All engines run the SQL below.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.correlation.engines import CountEngine, EngineName, parse_memory, start_engine
from wellread.correlation.events import PLAN, missing, shard_files
from wellread.correlation.pairs import BYTES_AN_ID, MOST_IDS, PairBlock, arrange, count_pairs, plan_blocks, write_pairs
from wellread.correlation.pmi import Counted, build_table, keep_positive, save_pairs
from wellread.correlation.table import MANIFEST, TABLE_FORMAT, Correlation, Measure, read_about
from wellread.data.corpus import Corpus
from wellread.errors import InputError, StorageError, UsageError
from wellread.io.arrays import map_arrays
from wellread.io.files import only_writer, storage, write_atomically

_WAY = 2
"""Version of the division into blocks: files of another version are not continued."""
WORDS_SQL = """
SELECT word, CAST(SUM(n) AS BIGINT) AS events
FROM word_parts
GROUP BY word
HAVING SUM(n) >= {min_count}
ORDER BY events DESC, word
"""
PAIRS_SQL = """
SELECT left_word, right_word, CAST(SUM(n) AS BIGINT) AS events
FROM pair_parts
GROUP BY left_word, right_word
HAVING SUM(n) >= {min_pair}
"""


@dataclass(frozen=True)
class TableLimits:
    """Limits on the words and pairs of a table."""

    min_count: int = 5
    """Minimum number of events with a word."""
    min_pair: int = 3
    """Minimum number of events with both words."""
    measure: Measure = "pmi"
    """pmi: max(PMI, 0) divided by the largest; npmi: normalised per pair."""
    neighbours: int = 1000
    """A pair is kept if it is among this many nearest of either word; 0: all pairs are kept."""

    def __post_init__(self) -> None:
        if self.min_count < 1 or self.min_pair < 1 or self.neighbours < 0:
            raise UsageError("expected min_count ≥ 1, min_pair ≥ 1 and neighbours ≥ 0 (0: all); change what is less")
        if self.measure not in ("pmi", "npmi"):
            raise UsageError(f"measure={self.measure!r} is unknown; choose pmi or npmi")


@dataclass(slots=True)
class CountProgress:
    """Progress of a count, for the progress bar."""

    done_bytes: int = 0
    total_bytes: int = 0
    step: str = ""
    shards: int = 0
    """Number of shards read by this run."""
    kept: int = 0
    """Number of shards that were already counted."""


def correlate(
    corpus: Corpus,
    to: str | Path,
    *,
    limits: TableLimits | None = None,
    engine: EngineName | CountEngine = "duckdb",
    master: str | None = None,
    memory: str = "4GB",
    workers: int | None = None,
    progress: CountProgress | None = None,
) -> Correlation:
    """Count a corpus into a table; continue a killed count, and apply other limits to a finished one."""
    folder = Path(to)
    limits = limits or TableLimits()
    size = parse_memory(memory)
    with _locked(folder):
        about = _about(folder)
        if about is not None and [one["fingerprint"] for one in about["corpora"]] != [corpus.fingerprint]:
            raise UsageError(
                f"{folder} was counted on other text ({_sources(about)}); add to it with --add-to {folder}, "
                "or choose another folder"
            )
        if about is not None and about["limits"] == asdict(limits):
            return Correlation.load(folder)
        with _engine(engine, folder, master=master, memory=size, workers=workers) as started:
            run = _Run(folder, started, size, progress or CountProgress())
            return run.make([run.count(corpus)], limits)


def add_corpus(
    corpus: Corpus,
    to: str | Path,
    *,
    engine: EngineName | CountEngine = "duckdb",
    master: str | None = None,
    memory: str = "4GB",
    workers: int | None = None,
    progress: CountProgress | None = None,
) -> Correlation:
    """Add the counts of another corpus to a table, with the table's own limits."""
    folder = Path(to)
    size = parse_memory(memory)
    with _locked(folder, must_exist=True):
        about = read_about(folder)
        if any(one["fingerprint"] == corpus.fingerprint for one in about["corpora"]):
            raise UsageError(f"{folder} has counted {', '.join(corpus.sources)} already; give new text")
        if (about["window"], about["step"]) != (corpus.window, corpus.step):
            raise UsageError(
                f"{folder} counts {_event_name(about['window'], about['step'])}, this would count "
                f"{_event_name(corpus.window, corpus.step)}; give the same --window and --step"
            )
        if twice := sorted(corpus.paths & _counted_paths(folder, about)):
            more = f" and {len(twice) - 1:,} more" if len(twice) > 1 else ""
            raise UsageError(
                f"{folder} has counted {twice[0]}{more} already; leave out what it has, "
                "or count all text into a new folder"
            )
        with _engine(engine, folder, master=master, memory=size, workers=workers) as started:
            run = _Run(folder, started, size, progress or CountProgress())
            return run.make([*about["corpora"], run.count(corpus)], TableLimits(**about["limits"]))


class _Run:
    """One run of counting into a folder."""

    def __init__(self, folder: Path, engine: CountEngine, memory: int, progress: CountProgress) -> None:
        self.folder, self.engine, self.memory, self.progress = folder, engine, memory, progress

    def count(self, corpus: Corpus) -> dict[str, Any]:
        """Count the missing shards of a corpus; return its entry for the manifest."""
        if not corpus.shards:
            raise InputError(f"there is no text in {', '.join(corpus.sources)}; give text")
        where = self._counted(corpus.fingerprint)
        with storage(where):
            where.mkdir(parents=True, exist_ok=True)
        with write_atomically(where / PLAN) as file:
            file.write(corpus.to_json().encode())
        sizes, todo = corpus.sizes, list(missing(corpus, where))
        self.progress.kept = len(sizes) - len(todo)
        self.progress.total_bytes = sum(sizes)
        self.progress.done_bytes = sum(sizes) - sum(sizes[shard] for shard in todo)

        def done(shard: int) -> None:
            self.progress.done_bytes += sizes[shard]
            self.progress.shards += 1

        self.engine.count_shards(corpus, todo, where, done)
        blocks: dict[str, int] = {}
        for path in where.glob("words-*-*.parquet"):
            shard = str(int(path.stem.split("-")[1]))
            blocks[shard] = blocks.get(shard, 0) + 1
        entry = {
            "fingerprint": corpus.fingerprint,
            "sources": list(corpus.sources),
            "shards": len(sizes),
            "blocks": blocks,
        }
        events = words = ids = 0
        for _, events_file in _whole(_counted_files(where, entry)):
            arrays = map_arrays(events_file)
            events += len(arrays["sizes"])
            words += int(arrays["words"][0])
            ids += len(arrays["ids"])
        return {
            **entry,
            "window": corpus.window,
            "step": corpus.step,
            "events": events,
            "words_read": words,
            "ids": ids,
        }

    def make(self, corpora: Sequence[dict[str, Any]], limits: TableLimits) -> Correlation:
        """Make the table of the counted corpora and put it in place."""
        shards = _whole(files for one in corpora for files in _counted_files(self._counted(one["fingerprint"]), one))
        settings = json.dumps(
            [_WAY, [one["fingerprint"] for one in corpora], asdict(limits), self.memory, self.engine.groups]
        )
        work = self.folder / f"work-{hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()}"
        for old in self.folder.glob("work-*"):
            if old != work:
                shutil.rmtree(old)  # from a run with other settings
        with storage(work):
            work.mkdir(exist_ok=True)
        self.progress.step = "words"
        table = self.engine.query(
            WORDS_SQL.format(min_count=limits.min_count), {"word_parts": [words_file for words_file, _ in shards]}
        )
        counted = Counted(table["word"].to_pylist(), table["events"].to_numpy(), sum(one["events"] for one in corpora))
        blocks = plan_blocks(counted.counts, sum(one["ids"] for one in corpora), counted.events, self.memory)
        chunks = self._arrange(shards, table["word"].combine_chunks(), work, sum(one["ids"] for one in corpora))
        kept = self._count_pairs(chunks, blocks, counted, limits, work)
        made = build_table(
            kept,
            counted,
            self.folder,
            measure=limits.measure,
            neighbours=limits.neighbours,
            memory=self.memory,
            threads=self.engine.threads,
            work=work,
            report=partial(setattr, self.progress, "step"),
        )
        about = {
            "format": TABLE_FORMAT,
            **made,
            "events": counted.events,
            "words_read": sum(one["words_read"] for one in corpora),
            "measure": limits.measure,
            "limits": asdict(limits),
            "window": corpora[0]["window"],
            "step": corpora[0]["step"],
            "corpora": list(corpora),
        }
        with write_atomically(self.folder / MANIFEST) as file:
            file.write(json.dumps(about, indent=2).encode())
        shutil.rmtree(work)
        for path in self.folder.glob("table-*.safetensors"):
            if path.name != made["file"]:
                path.unlink()
        named = {one["fingerprint"] for one in corpora}
        for path in (self.folder / "counted").iterdir():
            if path.is_dir() and path.name not in named:
                shutil.rmtree(path)  # from an abandoned count
        return Correlation.load(self.folder)

    def _counted(self, fingerprint: str) -> Path:
        return self.folder / "counted" / fingerprint

    def _arrange(self, shards: Sequence[tuple[Path, Path]], words: Any, work: Path, ids: int) -> list[Path]:
        """Write chunks of shards, each as large as memory allows; at least one for each worker."""
        most = min(self.memory // 2 // BYTES_AN_ID, MOST_IDS)
        if self.engine.groups > 1:
            most = min(most, -(-ids // self.engine.groups))
        chunks: list[list[tuple[Path, Path]]] = []
        filled = most
        for files in shards:
            size = files[1].stat().st_size // 4
            if filled + size > most and (filled or not chunks):
                chunks.append([])
                filled = 0
            chunks[-1].append(files)
            filled += size
        paths = [work / f"chunk-{number:06d}.safetensors" for number in range(len(chunks))]
        for number, (path, some) in enumerate(zip(paths, chunks, strict=True)):
            self.progress.step = f"arranging {number + 1} of {len(chunks)}"
            if not path.exists():
                arrange(some, words, path)
        return paths

    def _count_pairs(
        self, chunks: Sequence[Path], blocks: Sequence[PairBlock], counted: Counted, limits: TableLimits, work: Path
    ) -> list[Path]:
        """Write the pairs with PMI > 0 of each block."""
        groups = [list(chunks[number :: self.engine.groups]) for number in range(min(len(chunks), self.engine.groups))]
        kept = [work / f"kept-{number:06d}.safetensors" for number in range(len(blocks))]
        if len(groups) == 1:  # its sums are complete: SQL has nothing to add
            self._keep_pairs(groups[0], blocks, counted, limits, kept)
            return kept
        self.progress.step = "pairs"
        self.engine.run(partial(_count_group, groups, blocks, counted.counts, work.resolve()), len(groups))
        for number, path in enumerate(kept):
            self.progress.step = f"sums, block {number + 1} of {len(blocks)}"
            if not path.exists():
                parts = [_part(work, group, number) for group in range(len(groups))]
                pairs = self.engine.query(PAIRS_SQL.format(min_pair=limits.min_pair), {"pair_parts": parts})
                keep_positive(pairs, counted, path)
        return kept

    def _keep_pairs(
        self,
        chunks: Sequence[Path],
        blocks: Sequence[PairBlock],
        counted: Counted,
        limits: TableLimits,
        kept: Sequence[Path],
    ) -> None:
        """Write each block while the next one is counted."""
        found = count_pairs(
            chunks,
            blocks,
            counted.counts,
            least=limits.min_pair,
            threads=self.engine.threads,
            done=lambda number: kept[number].exists(),
            wanted=counted.positive,
        )
        with ThreadPoolExecutor(1) as writer:
            writing: Future[None] | None = None
            self.progress.step = f"pairs, block 1 of {len(blocks)}"
            for number, pairs in found:
                self.progress.step = f"pairs, block {min(number + 2, len(blocks))} of {len(blocks)}"
                if writing is not None:
                    writing.result()
                writing = writer.submit(save_pairs, pairs, kept[number])
            if writing is not None:
                writing.result()


def _counted_files(where: Path, entry: dict[str, Any]) -> Iterator[tuple[Path, Path]]:
    """Yield the words and events of all shards of a corpus, by its entry in the manifest."""
    for shard in range(entry["shards"]):
        for block in range(entry.get("blocks", {}).get(str(shard), 0)):
            yield shard_files(where, shard, block)
        yield shard_files(where, shard)


def _whole(files: Iterable[tuple[Path, Path]]) -> list[tuple[Path, Path]]:
    shards = list(files)
    if lost := [str(file) for pair in shards for file in pair if not file.exists()]:
        raise InputError(f"{lost[0]} is missing, so counts cannot be summed; count all text again into another folder")
    return shards


def _part(work: Path, group: int, block: int) -> Path:
    return work / f"pairs-{block:06d}-{group:04d}.parquet"


def _count_group(
    groups: Sequence[Sequence[Path]], blocks: Sequence[PairBlock], counts: NDArray[np.int64], work: Path, number: int
) -> None:
    """Count all pairs of a worker's chunks, for SQL to add to those of other workers."""
    chunks = [work / chunk.name for chunk in groups[number]]
    to = partial(_part, work, number)
    for block, pairs in count_pairs(chunks, blocks, counts, least=1, threads=1, done=lambda block: to(block).exists()):
        write_pairs(to(block), pairs)


def _about(folder: Path) -> dict[str, Any] | None:
    return read_about(folder) if (folder / MANIFEST).exists() else None


def _counted_paths(folder: Path, about: dict[str, Any]) -> set[str]:
    """Return the files that a table's corpora were read from, if their plans exist."""
    plans = [folder / "counted" / one["fingerprint"] / PLAN for one in about["corpora"]]
    return {path for plan in plans if plan.exists() for path in Corpus.from_json(plan.read_bytes()).paths}


def _sources(about: dict[str, Any]) -> str:
    return ", ".join(source for one in about["corpora"] for source in one["sources"])


def _event_name(window: int, step: int) -> str:
    return f"windows of {window} words every {step}" if window else "documents"


@contextmanager
def _engine(
    engine: EngineName | CountEngine, folder: Path, *, master: str | None, memory: int, workers: int | None
) -> Iterator[CountEngine]:
    if not isinstance(engine, str):
        yield engine
        return
    with start_engine(engine, memory=memory, workers=workers, spill=folder / "spill", master=master) as started:
        yield started
    shutil.rmtree(folder / "spill", ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, must_exist: bool = False) -> Iterator[None]:
    """Lock a folder for counting; raise an error if it is in use or holds other files."""
    if must_exist:
        read_about(folder)
    if folder.is_file():
        raise UsageError(f"{folder} is a file; a table is a folder: choose another name")
    if folder.is_dir() and not (folder / MANIFEST).exists() and not _is_ours(folder):
        raise UsageError(f"{folder} has other files; choose a new folder, such as {folder / 'words.pmi'}")
    refusal = StorageError(f"another process is counting into {folder}; wait for it, or choose another folder")
    with only_writer(folder, refusal):
        yield


def _is_ours(folder: Path) -> bool:
    return all(
        path.name in (".lock", "counted", "spill") or path.name.startswith(("work-", "table-", "."))
        for path in folder.iterdir()
    )
