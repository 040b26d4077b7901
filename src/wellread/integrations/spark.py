"""Annotation on Spark with `mapInArrow` and the function used on one machine (`arrow_batches.annotate_batches`).

`annotate_frame` links a column of a DataFrame. `make_parts` makes the parts of a folder that all workers can access. A
Python worker of Spark opens the linkers once and keeps them. Workers need wellread and its assets installed; the KBs
and models of a frame are sent to them as files, once per machine.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wellread import errors
from wellread.correlation.engines import SparkEngine
from wellread.errors import MissingExtraError, UsageError, WellreadError, install_extra
from wellread.index.folder import vectors_folder
from wellread.integrations.annotation_folder import Worker
from wellread.integrations.arrow_batches import SCHEMA, Annotation, annotate_batches
from wellread.io.cores import limit_threads
from wellread.kb.packaged import open_kb
from wellread.kb.schema import sqlite_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SENT = "sent:"
_MEMORY = 1 << 30
"""Memory of the JVM; Python workers use theirs in addition."""


def annotate_frame(
    frame: DataFrame, annotation: Annotation, *, text: str = "text", id: str = "id", send: bool = True
) -> DataFrame:
    """Return a frame of id, text and links (`arrow_batches.SCHEMA`), row for row, for a frame with a column of texts.

    With `send`, KBs with their vectors and model folders are sent to the workers; without it the workers open them by
    the given names and paths.
    """
    try:
        from pyspark.sql.pandas.types import from_arrow_schema
    except ImportError as error:
        raise MissingExtraError(f"Spark is not installed; {install_extra('spark')}") from error
    if text not in frame.columns:
        raise UsageError(f"the frame has no column {text} (but {', '.join(frame.columns)}); say where the text is")
    annotation = _send(frame, annotation) if send else annotation
    result = json.dumps(annotation.to_dict())

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened, linkers = _open(result, send)
        yield from annotate_batches(batches, linkers, opened, text=text, id=id)

    wanted = [text, *([id] if id in frame.columns and id != text else [])]
    return frame.select(*wanted).mapInArrow(work, from_arrow_schema(SCHEMA))


@lru_cache(1)
def _open(result: str, sent: bool) -> tuple[Annotation, Any]:
    """Return the linkers of this worker, opened once."""
    annotation = Annotation.from_dict(json.loads(result))
    if sent:
        from pyspark import SparkFiles

        def place(name: str) -> str:
            return SparkFiles.get(name.removeprefix(_SENT)) if name.startswith(_SENT) else name

        annotation = replace(
            annotation,
            kbs=tuple(place(kb) for kb in annotation.kbs),
            model=place(annotation.model),
            models={kb: place(model) for kb, model in annotation.models.items()},
        )
    opened = annotation.open()
    limit_threads(1)  # Spark starts one worker per core
    return annotation, opened


def _send(frame: DataFrame, annotation: Annotation) -> Annotation:
    """Send files to every machine in one folder; names of files in it begin with "sent:"."""
    folder = Path(tempfile.mkdtemp(prefix="wellread-"))  # must stay: Spark reads it again when a machine joins
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    named = []
    for name in annotation.kbs:
        with open_kb(name) as kb:
            copy = folder / kb.path.name
            if copy.exists():
                raise UsageError(f"two knowledge bases are called {copy.name}; rename one, or give send=False")
            # A copy, not the file itself: the last changes may be in its write-ahead log.
            with sqlite_errors(kb.path), closing(sqlite3.connect(copy)) as other:
                kb.connection.backup(other)
            _put(vectors_folder(kb), vectors_folder(kb, f"{copy}.vectors"))
            named.append(f"{_SENT}{folder.name}/{copy.name}")

    def model(name: str) -> str:
        if not Path(name).is_dir():
            return name
        place = f"model-{len(list(folder.glob('model-*')))}"
        _put(Path(name), folder / place)
        return f"{_SENT}{folder.name}/{place}"

    models = {kb: model(name) for kb, name in annotation.models.items()}
    sent = replace(annotation, kbs=tuple(named), model=model(annotation.model), models=models)
    frame.sparkSession.sparkContext.addFile(str(folder), recursive=True)
    return sent


def _put(folder: Path, to: Path) -> None:
    """Copy a folder of immutable files; hard-link them on the same disk."""

    def put(file: str, place: str) -> None:
        try:
            os.link(file, place)
        except OSError:
            shutil.copyfile(file, place)

    if folder.is_dir():
        shutil.copytree(folder, to, copy_function=put, ignore=shutil.ignore_patterns(".*"))


def make_parts(
    folder: Path, shards: Sequence[int], done: Callable[[int], None], *, master: str | None, workers: int
) -> None:
    """Make the parts of shards on Spark; `done` is called with each."""
    where = str(folder.resolve())

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column("shard").to_pylist()
            said = [_part(where, number) for number in numbers]
            yield pa.record_batch({"shard": pa.array(numbers, pa.int64()), "error": pa.array(said, pa.string())})

    with SparkEngine(master, memory=_MEMORY, workers=workers) as engine:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        assert session is not None
        step = 8 * engine.groups
        for begin in range(0, len(shards), step):
            some = [(shard,) for shard in shards[begin : begin + step]]
            rows = session.sparkContext.parallelize(some, len(some))
            frame = session.createDataFrame(rows, "shard long").mapInArrow(work, "shard long, error string")
            for row in frame.collect():
                if row.error:
                    kind, _, message = row.error.partition(" ")
                    raise getattr(errors, kind)(message)
                done(row.shard)


def _part(folder: str, shard: int) -> str:
    try:
        _worker(folder).make(shard)
    except WellreadError as error:
        return f"{type(error).__name__} {error}"
    return ""


@lru_cache(1)
def _worker(folder: str) -> Worker:
    """Return the part writer of this process, opened once."""
    return Worker(folder)
