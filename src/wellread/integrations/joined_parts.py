"""One file from the parts of an annotation, written with constant memory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from wellread.errors import UsageError
from wellread.integrations.annotation_folder import PLAN, Format
from wellread.io.files import write_atomically


def format_of(to: Path, format: Format | None) -> Format:
    """Return the format of the parts: as given, else by the suffix of a file (links.csv), else JSONL."""
    own = next((known for known in get_args(Format) if to.suffix.lower() == f".{known}"), None)
    if own and format and own != format:
        raise UsageError(f"{to} is not called .{format}; rename it, or choose --format {own}")
    return format or own or "jsonl"


def parts_folder(to: Path) -> Path:
    """Return the folder of the parts: that given, or of a file links.csv the folder links.csv.parts beside it."""
    if to.suffix.lower() not in [f".{known}" for known in get_args(Format)] or (to / PLAN).exists():
        return to
    folder = to.with_name(f"{to.name}.parts")
    if to.exists() and not (folder / PLAN).exists():
        raise UsageError(f"{to} exists already; choose another file, or delete it")
    return folder


def join_parts(parts: Sequence[Path], to: Path, format: Format) -> None:
    """Write the rows of all parts into one file, in order; a CSV has one header."""
    with write_atomically(to) as out:
        if format == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(out, pq.read_schema(parts[0]), compression="zstd") as writer:
                for part in parts:
                    writer.write_table(pq.read_table(part))
            return
        for number, part in enumerate(parts):
            with open(part, "rb") as file:
                if format == "csv" and number:
                    file.readline()
                shutil.copyfileobj(file, out, 1 << 20)
