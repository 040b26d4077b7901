"""Rows of the files that tasks come in: TSV as GLUE writes it, CSV and JSONL; plain or compressed.

A row that is broken is an `InputError` that names file and line; where a list `skipped` is given, it gets the message
and the row is left out.

TSV has no quotes: a cell is what is between two tabs, a quotation mark in it is one. CSV has them.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from wellread.errors import InputError, UsageError
from wellread.io.files import csv_fault, decode, make_or_tell, read_lines, read_text, told

Form = Literal["tsv", "csv", "jsonl"]
Record = dict[str, Any]
Draft = Callable[[], Record]
"""A row still to be read, or to fail by itself."""
JsonDraft = Callable[[], tuple[str, Any]]
"""A line of JSON still to be read, with where it stands; or to fail by itself."""
_T = TypeVar("_T")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALVES = "half a surrogate pair stands alone in a text; write it anew as UTF-8"

csv.field_size_limit(1 << 30)  # a cell may be an article; the usual limit is 128 KB


def read_tsv(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line that is not blank, with its number."""
    return ((number, line.split("\t")) for number, line in _lines(path))


def read_records(path: str | Path, form: Form | None = None) -> Iterator[tuple[int, Draft]]:
    """Each row as a function that names its cells (or fails by itself), with the number of its line.

    TSV and CSV have a header. Without `form`, the first line tells: "{" begins JSONL, a tab is between cells of TSV.
    """
    form = form or _told_form(path)
    if form == "jsonl":
        return ((number, partial(_object, line)) for number, line in _lines(path))
    if form not in get_args(Form):
        raise UsageError(f"unknown form {form!r} of a table; choose one of {', '.join(get_args(Form))}")
    return _named_rows(path, read_tsv(path) if form == "tsv" else _read_csv(path))


def make_each(
    path: str | Path,
    rows: Iterable[tuple[int, Draft]],
    make: Callable[[Record, str], _T],
    skipped: list[str] | None = None,
) -> Iterator[_T]:
    """What `make` makes of each row of a file, and of the number of its line, which is an id of last resort."""
    for number, row in rows:
        yield from make_or_tell(partial(_make, make, row, number), skipped, f"{told(path)}, line {number}")


def _make(make: Callable[[Record, str], _T], row: Draft, number: int) -> _T:
    return make(row(), str(number))


def text_of(record: Record, column: str) -> str:
    """The text in a column, which must be there."""
    if column not in record:
        raise InputError(f"no {column!r} (there are {', '.join(record)})")
    value = record[column]
    if not isinstance(value, str):
        raise InputError(f"{column!r} is {json.dumps(value)}, expected a text")
    return value


def read_json(path: str | Path) -> Any:
    """A whole file of JSON."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{told(path)} is not JSON: {error}") from error


def read_json_drafts(path: str | Path) -> Iterator[JsonDraft]:
    """Each line as a function that reads it as JSON of any kind, and tells where it stands (or fails by itself)."""
    return (partial(_any_json, f"{told(path)}, line {number}", line) for number, line in _lines(path))


def read_json_folder(folder: str | Path) -> Iterator[JsonDraft]:
    """Each file of a folder, in the order of letters, as a function that reads it as JSON (or fails by itself)."""
    files = sorted(file for file in Path(folder).iterdir() if ".json" in file.suffixes)
    if not files:
        raise InputError(f"{told(folder)} has no .json files; give the folder that they are in, or a file of lines")
    return (partial(_file_json, file) for file in files)


def _file_json(file: Path) -> tuple[str, Any]:
    return _any_json(told(file), read_text(file))


def _told_form(path: str | Path) -> Form:
    if str(path) == "-":
        raise UsageError("standard input can be read only once; say if it is tsv, csv or jsonl")
    first = next((line for _, line in read_lines(path) if line.strip()), b"")
    return "jsonl" if first.lstrip().startswith(b"{") else "tsv" if b"\t" in first else "csv"


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, decode(line, f"{told(path)}, line {number}")


def _read_csv(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    lines = (f"{decode(line, f'{told(path)}, line {number}')}\n" for number, line in read_lines(path))
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{told(path)}, line {number}: {csv_fault(error)}; mend the quotes") from error
        if row is None:
            return
        if row:
            yield number, row


def _named_rows(path: str | Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Draft]]:
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError(f"{told(path)} is empty; expected a header with the names of columns")
    header = [name.strip() for name in header]
    return ((number, partial(name_cells, header, row)) for number, row in rows)


def name_cells(header: Sequence[str], row: Sequence[str]) -> Record:
    """Cells by the names in the header; there must be as many."""
    if len(row) != len(header):
        raise InputError(f"{len(row)} cells, expected {len(header)}: {', '.join(header)}")
    return dict(zip(header, row, strict=True))


def _any_json(where: str, line: str) -> tuple[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}; mend the line, or leave it out") from error
    if _has_halves(line, data):
        raise InputError(f"{where}: {_HALVES}")
    return where, data


def _object(line: str) -> Record:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}; expected one object a line") from error
    if not isinstance(data, dict):
        raise InputError(f"expected an object, got {line[:40]!r}")
    if _has_halves(line, data):
        raise InputError(_HALVES)
    return data


def _has_halves(line: str, data: Any) -> bool:
    """Whether a text is none that UTF-8 can hold; a line can but name such by escapes."""
    if _SURROGATE.search(line):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return True
    return False
