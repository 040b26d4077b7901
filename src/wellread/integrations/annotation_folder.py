"""Folder of annotations: a plan, and one part per finished shard.

The plan (`_plan.json`; readers of such folders skip names with an underscore) has the inputs, the linkers, and the
revisions of their KBs. Parts are written atomically and only once: an interrupted run continues with the shards that
have no part. The plan is all that a process needs to make a part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

import pyarrow as pa

from wellread import __version__
from wellread.data.text_shards import Inputs
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.integrations.arrow_batches import AT_ONCE, SCHEMA, Annotation, annotate_batches
from wellread.io.cores import one_thread
from wellread.io.files import write_atomically
from wellread.kb.packaged import kb_path, open_kb
from wellread.linking.link_rows import csv_lines
from wellread.linking.link_table import LINK_SCHEMA, flatten

Format = Literal["jsonl", "parquet", "csv"]
Rows = Literal["text", "link"]
"""Rows of the parts: one per text with its list of links, or one per link (`linking.link_table`)."""
OnBroken = Literal["refuse", "skip"]
"""Handling of unreadable texts: stop the run, or skip and list them."""
_FORMAT = "wellread annotations of texts 3"
PLAN, SUCCESS = "_plan.json", "_SUCCESS"
_BROKEN = "_broken-"
_OURS = (".", PLAN, SUCCESS, _BROKEN)


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs, linkers and output format of an annotation."""

    inputs: Inputs
    annotation: Annotation
    format: Format
    states: tuple[tuple[str, int], ...]
    """Id and revision of each KB."""
    broken: OnBroken = "refuse"
    rows: Rows = "text"

    @classmethod
    def build(
        cls,
        inputs: Inputs,
        annotation: Annotation,
        format: Format,
        broken: OnBroken = "refuse",
        rows: Rows | None = None,
    ) -> Plan:
        """Make a plan for the current state of the KBs and files; `rows` are texts, or links in CSV."""
        rows = rows or ("link" if format == "csv" else "text")
        if rows not in get_args(Rows):
            raise UsageError(f"rows={rows!r} is unknown; choose {' or '.join(get_args(Rows))}")
        if format == "csv" and rows == "text":
            raise UsageError("CSV has one row per link; omit --rows, or choose --format jsonl or parquet")
        if rows == "link" and annotation.candidates:
            raise UsageError("a row per link has no candidates; omit --candidates, or choose --rows text")
        if format not in get_args(Format):
            raise UsageError(f"format={format!r} is unknown; choose {' or '.join(get_args(Format))}")
        if broken not in get_args(OnBroken):
            raise UsageError(f"broken={broken!r} is unknown; choose {' or '.join(get_args(OnBroken))}")
        states = []
        for name in annotation.kbs:
            with open_kb(name) as kb:
                states.append((kb.metadata["uid"], kb.revision))
        return cls(inputs, annotation, format, tuple(states), broken, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        annotation = self.annotation.to_dict()
        result = {
            "format": _FORMAT,
            "wellread": __version__,
            "knowledge bases": [[str(kb_path(name).resolve()), *state] for name, state in self._kbs()],
            "annotation": annotation,
            "model files": _files_of({self.annotation.model, *self.annotation.models.values()}),
            "written as": self.format,
            "rows": self.rows,
            "broken": self.broken,
            "inputs": self.inputs.to_dict(),
        }
        return dict(json.loads(json.dumps(result)))  # as read back from JSON: lists instead of tuples

    def _kbs(self) -> Iterator[tuple[str, tuple[str, int]]]:
        return zip(self.annotation.kbs, self.states, strict=True)

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Load the plan of a folder."""
        result = _read(folder / PLAN)
        states = tuple((uid, revision) for _, uid, revision in result["knowledge bases"])
        paths = [path for path, _, _ in result["knowledge bases"]]
        result["annotation"]["kbs"] = paths  # a worker may run in another working directory
        inputs, annotation = Inputs.from_dict(result["inputs"]), Annotation.from_dict(result["annotation"])
        return cls(inputs, annotation, result["written as"], states, result["broken"], result["rows"])

    def write(self, folder: Path) -> None:
        """Save the plan; raise `UsageError` with the differences if the folder has another one."""
        result = self.to_dict()
        if (folder / PLAN).exists() and any(folder.glob("part-*")):
            before = _read(folder / PLAN)
            differs = [name for name in result if result[name] != before.get(name)]
            if differs:
                raise UsageError(
                    f"{folder} holds annotations with another plan (other {', '.join(differs)}); choose another "
                    "folder, or delete this one to start again"
                )
            return
        if folder.is_dir() and any(not path.name.startswith(_OURS) for path in folder.iterdir()):
            raise UsageError(f"{folder} holds other files; choose an empty or a new folder")
        with write_atomically(folder / PLAN) as file:
            file.write(json.dumps(result).encode())

    def part(self, folder: Path, shard: int) -> Path:
        """Return the output file of a shard."""
        return folder / f"part-{shard:05}.{self.format}"

    def left_out(self, folder: Path, shard: int) -> Path:
        """Return the file that lists the skipped texts of a shard, if there are any."""
        return folder / f"{_BROKEN}{shard:05}.txt"

    def pending(self, folder: Path) -> list[int]:
        """Return the shards without a part."""
        there = {path.name for path in folder.iterdir()}
        return [shard for shard in range(len(self.inputs.shards)) if self.part(folder, shard).name not in there]


class Worker:
    """Writes parts; opens KBs and models once, then annotates shard after shard."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._written = _version(self.folder / PLAN)
        self.plan = Plan.read(self.folder)
        self._states = {name: state for name, *state in self.plan.inputs.files}
        self.linkers = self.plan.annotation.open()

    def close(self) -> None:
        """Close the KBs."""
        self.linkers.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def make(self, shard: int) -> None:
        """Annotate a shard and write its part."""
        plan = self.plan
        skipped: list[str] | None = [] if plan.broken == "skip" else None
        with one_thread():
            found = annotate_batches(self._batches(shard, skipped), self.linkers, plan.annotation)
            with write_atomically(plan.part(self.folder, shard)) as file:
                try:
                    if plan.rows == "link":
                        _WRITERS[plan.format](file, map(flatten, found), LINK_SCHEMA)
                    else:
                        _WRITERS[plan.format](file, found, SCHEMA)
                except Exception:
                    self._check_files(shard)  # the file may have changed while it was read
                    raise
                self._check_files(shard)
                self._check_kbs()
                self._check_plan()
                self._tell(shard, skipped or [])  # before the part, so that no part exists without it

    def _tell(self, shard: int, skipped: list[str]) -> None:
        file = self.plan.left_out(self.folder, shard)
        if not skipped:
            file.unlink(missing_ok=True)
            return
        with write_atomically(file) as out:
            out.writelines(f"{' '.join(message.split())}\n".encode() for message in skipped)

    def _check_plan(self) -> None:
        """Raise if the plan has changed: a process of an earlier run must not write into the folder."""
        if _version(self.folder / PLAN) != self._written:
            raise InputError(f"the plan of {self.folder} has changed since this process began; start it again")

    def _check_files(self, shard: int) -> None:
        """Raise if an input has changed since the plan was made."""
        for part in {part.path: part for part in self.plan.inputs.shards[shard]}.values():
            try:
                info = os.stat(part.path)
                state = [info.st_size, info.st_mtime_ns]
            except OSError:  # deleted
                state = []
            if state != self._states[part.name]:
                raise InputError(
                    f"{part.name} has changed since the annotation began; start again in another folder, or bring the "
                    "file back to what it was, with its time"
                )

    def _check_kbs(self) -> None:
        for linker, (uid, revision) in zip(self.linkers.linkers, self.plan.states, strict=True):
            if (linker.kb.metadata["uid"], linker.kb.revision) != (uid, revision):
                raise KnowledgeBaseError(
                    f"{linker.kb.path} has changed since the annotation began; start again in another folder, or bring "
                    "the knowledge base back to what it was"
                )

    def _batches(self, shard: int, skipped: list[str] | None) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[str, str]] = []
        for row in self.plan.inputs.texts(shard, skipped):
            rows.append(row)
            if len(rows) == AT_ONCE:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)


def _batch(rows: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    ids, texts = zip(*rows, strict=True)
    return pa.record_batch({"id": pa.array(ids, pa.string()), "text": pa.array(texts, pa.string())})


def _write_jsonl(file: IO[bytes], batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write JSON lines; those of texts are read by `Document.from_json`."""
    for batch in batches:
        for row in batch.to_pylist():
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _write_parquet(file: IO[bytes], batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_batches(batches, schema), file, compression="zstd")


def _write_csv(file: IO[bytes], batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    file.write(csv_lines([schema.names]).encode())
    for batch in batches:
        file.write(csv_lines(row.values() for row in batch.to_pylist()).encode())


_WRITERS: dict[Format, Callable[[IO[bytes], Iterator[pa.RecordBatch], pa.Schema], None]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "csv": _write_csv,
}


def _files_of(models: set[str]) -> list[list[Any]]:
    """Return name, size and time of the files in model folders."""
    files = [file for model in sorted(models) if Path(model).is_dir() for file in sorted(Path(model).rglob("*"))]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def _version(path: Path) -> tuple[int, int] | None:
    """Return a fingerprint that changes when a file is rewritten."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete its folder and start again") from error
    if not isinstance(result, dict) or result.get("format") != _FORMAT:
        raise InputError(f"{path} is not a plan of this version; choose another folder, or delete this one")
    return result
