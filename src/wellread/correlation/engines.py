"""Engines that count: DuckDB on this machine, or Spark on many; both read shards in parallel and run the same SQL.

An engine has workers that count shards and pairs into Parquet files, and a SQL engine that sums them. DuckDB stays
within its memory limit and spills to disk. Spark's workers must see the corpus and the table's folder under the same
paths, and have wellread installed.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from wellread import errors
from wellread.correlation.events import PLAN, count_shard
from wellread.data.corpus import Corpus
from wellread.errors import MissingExtraError, StorageError, UsageError, WellreadError, install_extra
from wellread.io.cores import cores

if TYPE_CHECKING:
    import pyarrow as pa

EngineName = Literal["duckdb", "spark"]
Tables = Mapping[str, Sequence[Path]]
"""Parquet files by table name."""

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LEAST_MEMORY = 512 << 20


class CountEngine(Protocol):
    """Protocol of engines."""

    groups: int
    """Number of parts into which pairs are counted, each by its own worker; SQL sums them."""
    threads: int
    """Number of threads on this machine."""

    def count_shards(self, corpus: Corpus, shards: Sequence[int], folder: Path, done: Callable[[int], None]) -> None:
        """Count shards in parallel; `done` is called with each."""

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Call `work` with every number below `count`, in parallel if there are several workers."""

    def query(self, sql: str, tables: Tables) -> pa.Table:
        """Return the result of a query over Parquet files."""

    def __enter__(self) -> CountEngine: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def parse_memory(text: str) -> int:
    """Return bytes: "4GB" -> 4294967296; raise UsageError below half a gigabyte."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match:
        raise UsageError(f"{text!r} is not an amount of memory; write it like 4GB or 800MB")
    size = int(float(match[1]) * _SIZES[match[2]])
    if size < LEAST_MEMORY:
        raise UsageError(f"{text} of memory is too little to count in; give {LEAST_MEMORY >> 20}MB or more")
    return size


def start_engine(
    name: EngineName, *, memory: int, workers: int | None, spill: Path, master: str | None = None
) -> CountEngine:
    """Return an engine by its name; `master` is Spark's."""
    if name == "spark":
        return SparkEngine(master, memory=memory, workers=workers)
    if name != "duckdb":
        raise UsageError(f"engine {name!r} is unknown; choose duckdb or spark")
    if master is not None:
        raise UsageError("only Spark has a master; add --engine spark, or leave --master out")
    return DuckEngine(memory=memory, workers=workers, spill=spill)


class DuckEngine:
    """Engine on one machine: worker processes for text, threads for pairs, DuckDB for sums."""

    groups = 1

    def __init__(self, *, memory: int, workers: int | None, spill: Path) -> None:
        import duckdb

        self.threads = workers or cores()
        self._spill = spill
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": self.threads,
            "memory_limit": f"{memory // 2 >> 20}MiB",  # the other half is for input and output
            "temp_directory": str(spill),
            "autoinstall_known_extensions": "false",
        }
        self._database = duckdb.connect(config=settings)
        self._failed = (duckdb.OutOfMemoryException, duckdb.IOException)

    def count_shards(self, corpus: Corpus, shards: Sequence[int], folder: Path, done: Callable[[int], None]) -> None:
        """Count shards in worker processes; a single shard or worker runs in this process."""
        if min(self.threads, len(shards)) < 2:
            for shard in shards:
                count_shard(corpus, shard, folder)
                done(shard)
            return
        command = (sys.executable, "-m", "wellread.correlation.events", str(folder))
        ShardWorkers(command, shards, done).run(min(self.threads, len(shards)))

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Call `work` with one number after the other."""
        for number in range(count):
            work(number)

    def query(self, sql: str, tables: Tables) -> pa.Table:
        """Run a query; beyond the memory limit DuckDB spills to the table's folder."""
        for name, files in tables.items():
            self._database.read_parquet([str(file) for file in files]).create_view(name, replace=True)
        try:
            return self._database.sql(sql).to_arrow_table()
        except self._failed as error:
            raise StorageError(
                f"DuckDB failed in {self._spill} ({str(error).splitlines()[0]}); "
                "free some space there, or give more --memory"
            ) from error

    def __enter__(self) -> DuckEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()


class ShardWorkers:
    """Processes that each read the number of a shard from stdin, answer with a line when it is done, and read the next.

    An answer is "done", or the name of a wellread error and its message. `env` is added to their environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        shards: Sequence[int],
        done: Callable[[int], None],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._command, self._done = list(command), done
        self._env = None if env is None else {**os.environ, **env}
        self._shards: queue.SimpleQueue[int] = queue.SimpleQueue()
        for shard in shards:
            self._shards.put(shard)
        self._failures: list[BaseException] = []

    def run(self, workers: int) -> None:
        """Process all shards with this many processes; the first failure is raised when all have stopped."""
        threads = [threading.Thread(target=self._feed, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _feed(self) -> None:
        pipe = subprocess.PIPE
        try:
            with subprocess.Popen(  # noqa: S603  # our own modules
                self._command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", env=self._env
            ) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                while not self._failures and not self._shards.empty():
                    shard = self._shards.get_nowait()
                    worker.stdin.write(f"{shard}\n")
                    worker.stdin.flush()
                    self._receive(worker.stdout.readline(), shard)
                worker.stdin.close()
        except queue.Empty:
            pass
        except (WellreadError, OSError) as error:
            self._failures.append(error)

    def _receive(self, answer: str, shard: int) -> None:
        if answer.strip() == "done":
            self._done(shard)
            return
        kind, _, message = answer.strip().partition(" ")
        failure: Any = getattr(errors, kind, StorageError)
        raise failure(message or f"a worker died at shard {shard}; run the same command again, it continues")


class SparkEngine:
    """A Spark cluster, or Spark on this machine."""

    def __init__(self, master: str | None, *, memory: int, workers: int | None) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise MissingExtraError(f"Spark is not installed; {install_extra('spark')}") from error
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
        if not java or not Path(java).exists():
            raise MissingExtraError("Spark needs Java 17; install it and set JAVA_HOME, or count with --engine duckdb")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self._ours = SparkSession.getActiveSession() is None
        self.threads = workers or cores()
        master = master or f"local[{self.threads}]"
        builder = SparkSession.builder.appName("wellread correlate").master(master)
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": f"{memory >> 20}m",
            "spark.log.level": "ERROR",
        }
        if master.startswith("local"):  # Spark's usual 200 parts are for a cluster
            settings["spark.sql.shuffle.partitions"] = str(2 * self.threads)
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            self._spark = builder.getOrCreate()
        except Exception as error:  # Spark's and Java's errors have no common class
            reason = str(error).splitlines()[0]
            raise UsageError(f"Spark did not start ({reason}); check --master, and that Java is 17 or later") from error
        context = self._spark.sparkContext
        self._context = context
        self.groups = max(2, int(context.defaultParallelism))

    def count_shards(self, corpus: Corpus, shards: Sequence[int], folder: Path, done: Callable[[int], None]) -> None:
        """Count shards on the executors."""
        where = str(folder.resolve())

        def work(shard: int) -> str:
            place = Path(where)
            try:
                count_shard(Corpus.from_json((place / PLAN).read_bytes()), shard, place)
            except WellreadError as error:
                return f"{type(error).__name__} {error}"
            return ""

        step = 8 * self.groups
        for begin in range(0, len(shards), step):
            some = list(shards[begin : begin + step])
            answers = self._context.parallelize(some, len(some)).map(work).collect()
            for shard, answer in zip(some, answers, strict=True):
                if answer:
                    kind, _, message = answer.partition(" ")
                    raise getattr(errors, kind)(message)
                done(shard)

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Call `work` with all numbers on the executors."""
        self._context.parallelize(range(count), max(1, count)).foreach(work)

    def query(self, sql: str, tables: Tables) -> pa.Table:
        """Run a query on Spark."""
        for name, files in tables.items():
            frame = self._spark.read.parquet(*(file.resolve().as_uri() for file in files))
            frame.createOrReplaceTempView(name)
        return self._spark.sql(sql).toArrow()

    def __enter__(self) -> SparkEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            self._spark.stop()
