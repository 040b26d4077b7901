"""Mapping of a column of a table to a KB: CSV, TSV or JSONL in and out.

The output has all columns of the input and four more: `entity`, `title`, `score` and `found_by` of the match, empty if
the row is unmatched (`found_by` is "unmatched"). With `best`, `candidate_1`, … follow, whatever their score.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wellread.data.tables import Form, read_records
from wellread.errors import InputError, UsageError
from wellread.io.files import path_name
from wellread.mapping.results import THRESHOLD, MappedString

if TYPE_CHECKING:
    from wellread.mapping.mapper import NameMapper

MATCH = ("entity", "title", "score", "found_by")
"""Columns of the match."""
UNMATCHED = "unmatched"
_SUFFIXES: dict[str, Form] = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_ARCHIVES = (".gz", ".bz2", ".xz")
_PREFIX = "match_"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Columns and options of a mapping."""

    column: str
    context: str | None = None
    best: int = 1
    threshold: float = THRESHOLD


def form_of(path: str | Path) -> Form:
    """Return the format of a file by its name; csv for standard input and output."""
    if str(path) == "-":
        return "csv"
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in _ARCHIVES:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in _SUFFIXES:
        raise UsageError(
            f"the format of {path} is not known by its name; name it .csv, .tsv or .jsonl, or give the format "
            "(a spreadsheet must be saved as CSV first)"
        )
    return _SUFFIXES[suffixes[-1]]


def map_rows(
    mapper: NameMapper, path: str | Path, form: Form, mapping: ColumnMapping
) -> Iterator[tuple[Record, MappedString]]:
    """Yield each row of a table with its mapped string; a broken row is an InputError with its line."""
    columns = [mapping.column] if mapping.context is None else [mapping.column, mapping.context]
    rows, *copies = tee(_read(path, form), 1 + len(columns))  # an unused copy would keep the whole table
    texts, *about = (_cells(path, copy, column) for copy, column in zip(copies, columns, strict=True))
    found = mapper.map(texts, *about, best=mapping.best, threshold=mapping.threshold)
    for (_, row), mapped in zip(rows, found, strict=False):
        yield row, mapped


def _read(path: str | Path, form: Form) -> Iterator[tuple[int, Record]]:
    for number, draft in read_records(path, form):
        try:
            row = draft()
        except InputError as error:
            raise InputError(f"{path_name(path)}, line {number}: {error}") from error
        yield number, row


def _cells(path: str | Path, rows: Iterator[tuple[int, Record]], column: str) -> Iterator[str]:
    return (_cell(path, number, row, column) for number, row in rows)


def _cell(path: str | Path, number: int, row: Record, column: str) -> str:
    if column not in row:
        near = difflib.get_close_matches(column, row, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"{path_name(path)}, line {number}: there is no column {column!r} among {', '.join(map(repr, row))}{meant}"
        )
    value = row[column]
    if value is None:
        return ""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"{path_name(path)}, line {number}: {column!r} is {json.dumps(value)[:60]}, expected a text")


def result_columns(row: Record, best: int) -> list[str]:
    """Return the names of the added columns; all have a prefix if the table has one of the names."""
    names = [*MATCH]
    if best > 1:
        names += [f"candidate_{rank}_{name}" for rank in range(1, best + 1) for name in MATCH]
    prefix = ""
    while any(f"{prefix}{name}" in row for name in names):
        prefix += _PREFIX
    return [f"{prefix}{name}" for name in names]


def result_cells(mapped: MappedString, best: int) -> list[Any]:
    """Return the cells of the added columns."""
    match = mapped.match
    cells: list[Any] = [match.entity, match.title, match.score, match.found_by] if match else ["", "", "", UNMATCHED]
    if best > 1:
        for rank in range(best):
            one = mapped.matches[rank] if rank < len(mapped.matches) else None
            cells += [one.entity, one.title, one.score, one.found_by] if one else [""] * len(MATCH)
    return cells


def render(rows: Iterator[tuple[Record, MappedString]], form: Form, best: int, seen: Counter[str]) -> Iterator[str]:
    """Yield the lines of the output; `seen` counts the ways in which rows were matched."""
    names: list[str] | None = None
    header: list[str] = []
    for row, mapped in rows:
        if names is None:
            names, header = result_columns(row, best), list(row)
            if form != "jsonl":
                yield _line([*header, *names], form)
        seen[mapped.found_by or UNMATCHED] += 1
        if form == "jsonl":
            yield _json_line(row, mapped, names, best)
        else:
            yield _line([*(_plain(row.get(name, "")) for name in header), *result_cells(mapped, best)], form)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else "" if value is None else json.dumps(value)


def _json_line(row: Record, mapped: MappedString, names: Sequence[str], best: int) -> str:
    found = mapped.to_dict()
    result = dict(zip(names, (found[name] for name in MATCH), strict=False))
    if best > 1:
        prefix = names[0].removesuffix(MATCH[0])
        result[f"{prefix}candidates"] = found["candidates"]
    return json.dumps({**row, **result}, ensure_ascii=False) + "\n"


def _line(cells: Sequence[Any], form: Literal["csv", "tsv", "jsonl"]) -> str:
    if form == "tsv":  # TSV has no quotes, so a tab or line break in a title becomes a blank
        return (
            "\t".join(
                " ".join(str(cell).split()) if "\t" in str(cell) or "\n" in str(cell) else str(cell) for cell in cells
            )
            + "\n"
        )
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def count_rows(path: str | Path) -> int:
    """Return the number of lines of a file, for a progress bar; 0 for standard input, and pipes, read only once."""
    from wellread.io.files import read_lines

    return sum(1 for _ in read_lines(path)) if Path(path).is_file() else 0
