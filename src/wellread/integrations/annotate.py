"""Annotation of many files on all cores of a machine, or on Spark; an interrupted run resumes.

>>> annotate(["corpus/"], "annotated", Annotation(kbs=("vital",)))
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wellread.correlation.engines import ShardWorkers
from wellread.data.corpus import Unit
from wellread.data.text_shards import Inputs
from wellread.errors import UsageError
from wellread.integrations.annotation_folder import SUCCESS, Format, OnBroken, Plan, Rows, Worker
from wellread.integrations.arrow_batches import Annotation
from wellread.integrations.joined_parts import format_of, join_parts, parts_folder
from wellread.io import console
from wellread.io.cores import cores
from wellread.io.files import only_writer, write_atomically
from wellread.kb.packaged import kb_path

Engine = Literal["local", "spark"]
_PATIENCE = 2.0
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run."""

    parts: tuple[Path, ...]
    made: int
    """Parts written by this run; the others existed."""
    broken: int = 0
    """Texts skipped in all parts because they could not be read."""
    file: Path | None = None
    """File with the rows of all parts, if one was asked for."""


def annotate(
    paths: Sequence[str | Path],
    to: str | Path,
    annotation: Annotation,
    *,
    format: Format | None = None,
    rows: Rows | None = None,
    unit: Unit = "line",
    field: str = "text",
    id_field: str = "id",
    broken: OnBroken = "refuse",
    workers: int | None = None,
    shard_bytes: int | None = None,
    engine: Engine = "local",
    master: str | None = None,
) -> Done:
    """Link all texts of files and folders, and write a folder of parts; a second call resumes.

    `to` may also be a file (links.csv, links.jsonl, links.parquet): the parts, in links.csv.parts, are joined to it.
    `rows` is "text" (a row per text, with its list of links) or "link" (a flat table, a row per link; CSV always is).
    An unreadable text stops the run; with `broken="skip"` it is skipped, and listed in a file beside its part.
    `workers` is the number of processes, by default one per core; the parts do not depend on it.
    """
    if engine not in ("local", "spark"):
        raise UsageError(f"engine={engine!r} is unknown; choose local or spark")
    if master is not None and engine != "spark":
        raise UsageError("--master needs --engine spark; add it, or omit --master")
    format, folder = format_of(Path(to), format), parts_folder(Path(to))
    file = Path(to) if folder != Path(to) else None
    inputs = Inputs.of_files(
        paths, unit=unit, field=field, id_field=id_field, shard_bytes=shard_bytes, besides=folder, result=file
    )
    plan = Plan.build(inputs, annotation, format, broken, rows)
    refusal = UsageError(f"another process annotates into {folder}; wait for it, or choose another folder")
    with only_writer(folder, refusal, patience=_PATIENCE):
        plan.write(folder)
        shards = plan.pending(folder)
        count = len(inputs.shards)
        there = count - len(shards)
        if shards:
            (folder / SUCCESS).unlink(missing_ok=True)  # of a folder that was complete before
        if there and shards:
            console.note(f"{there:,} of {count:,} parts exist; continuing with the others")
        with console.step_bar("annotating", there, count) as tell:
            finished = there

            def done(shard: int) -> None:
                nonlocal finished
                finished += 1
                tell(finished, f"{plan.part(folder, shard).name}")

            if shards:
                processes = min(workers or cores(), len(shards))
                if processes > 1 or engine == "spark":
                    _encode_first(plan)
                _make(folder, shards, done, processes, engine, master)
        for left in folder.glob(".*.part"):  # left by a process that was killed while writing
            left.unlink(missing_ok=True)
        result = (plan.left_out(folder, shard) for shard in range(count))
        left_out = sum(len(file.read_bytes().splitlines()) for file in result if file.exists())
        parts = tuple(plan.part(folder, shard) for shard in range(count))
        if file is not None and (shards or not file.exists()):
            join_parts(parts, file, format)
        with write_atomically(folder / SUCCESS):
            pass
    return Done(parts, len(shards), left_out, file)


def _encode_first(plan: Plan) -> None:
    """Update the vectors of the KBs once, before the workers start; otherwise each worker would do it."""
    for name, (_, revision) in zip(plan.annotation.kbs, plan.states, strict=True):
        try:
            result = json.loads(Path(f"{kb_path(name)}.vectors", "index.json").read_bytes())
        except (OSError, ValueError):
            result = {}
        if result.get("revision") != revision:
            with plan.annotation.open() as linkers:
                linkers.link("")
            return


def _make(
    folder: Path, shards: Sequence[int], done: Callable[[int], None], processes: int, engine: Engine, master: str | None
) -> None:
    if engine == "spark":
        from wellread.integrations.spark import make_parts

        make_parts(folder, shards, done, master=master, workers=processes)
    elif processes > 1:
        command = (sys.executable, "-m", "wellread.integrations.worker", str(folder))
        ShardWorkers(command, shards, done, env=_THREADS).run(processes)
    else:
        with Worker(folder) as worker:
            for shard in shards:
                worker.make(shard)
                done(shard)
