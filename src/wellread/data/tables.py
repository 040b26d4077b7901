"""Rows of dataset files: TSV as in GLUE, CSV and JSONL; plain or compressed.

A broken row is an `InputError` that names file and line; with a list as `skipped`, it gets the message and the row is
left out.

TSV has no quotes: a cell is the text between two tabs, quotation marks included. CSV has quotes.
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
from wellread.io.files import csv_fault, decode, make_or_skip, path_name, read_lines, read_text

Form = Literal["tsv", "csv", "jsonl"]
Record = dict[str, Any]
Draft = Callable[[], Record]
"""Function that parses a row, or raises for this row only."""
JsonDraft = Callable[[], tuple[str, Any]]
"""Function that parses a line of JSON and returns it with its location, or raises for this line only."""
_T = TypeVar("_T")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALVES = "half a surrogate pair stands alone in a text; write it again as UTF-8"

csv.field_size_limit(1 << 30)  # a cell may be an article; the default limit is 128 KB


def read_tsv(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line that is not blank, with its number."""
    return ((number, line.split("\t")) for number, line in _lines(path))


def read_records(path: str | Path, form: Form | None = None) -> Iterator[tuple[int, Draft]]:
    """Yield each row as a function that returns its named cells (or raises), with the number of its line.

    TSV and CSV have a header. Without `form`, the first line decides: "{" begins JSONL, a tab means TSV.
    """
    form = form or _detect_form(path)
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
    """Yield the results of `make` for each row of a file and its line number, which is an id of last resort."""
    for number, row in rows:
        yield from make_or_skip(partial(_make, make, row, number), skipped, f"{path_name(path)}, line {number}")


def _make(make: Callable[[Record, str], _T], row: Draft, number: int) -> _T:
    return make(row(), str(number))


def text_of(record: Record, column: str) -> str:
    """Return the text in a required column."""
    if column not in record:
        raise InputError(f"no {column!r} (there are {', '.join(record)})")
    value = record[column]
    if not isinstance(value, str):
        raise InputError(f"{column!r} is {json.dumps(value)}, expected a text")
    return value


def read_json(path: str | Path) -> Any:
    """Read a whole JSON file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path_name(path)} is not JSON: {error}") from error


def read_json_drafts(path: str | Path) -> Iterator[JsonDraft]:
    """Yield each line as a function that parses it as JSON and returns it with its location (or raises)."""
    return (partial(_any_json, f"{path_name(path)}, line {number}", line) for number, line in _lines(path))


def read_json_folder(folder: str | Path) -> Iterator[JsonDraft]:
    """Yield each JSON file of a folder, in alphabetical order, as a function that parses it (or raises)."""
    files = sorted(file for file in Path(folder).iterdir() if ".json" in file.suffixes)
    if not files:
        raise InputError(
            f"{path_name(folder)} has no .json files; give the folder that they are in, or a file of lines"
        )
    return (partial(_file_json, file) for file in files)


def _file_json(file: Path) -> tuple[str, Any]:
    return _any_json(path_name(file), read_text(file))


def _detect_form(path: str | Path) -> Form:
    if str(path) == "-":
        raise UsageError("standard input can be read only once; say if it is tsv, csv or jsonl")
    first = next((line for _, line in read_lines(path) if line.strip()), b"")
    return "jsonl" if first.lstrip().startswith(b"{") else "tsv" if b"\t" in first else "csv"


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, decode(line, f"{path_name(path)}, line {number}")


def _read_csv(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    lines = (f"{decode(line, f'{path_name(path)}, line {number}')}\n" for number, line in read_lines(path))
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{path_name(path)}, line {number}: {csv_fault(error)}; mend the quotes") from error
        if row is None:
            return
        if row:
            yield number, row


def _named_rows(path: str | Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Draft]]:
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError(f"{path_name(path)} is empty; expected a header with the names of columns")
    header = [name.strip() for name in header]
    return ((number, partial(name_cells, header, row)) for number, row in rows)


def name_cells(header: Sequence[str], row: Sequence[str]) -> Record:
    """Return cells by the names in the header; their numbers must agree."""
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
    """Return whether data contains half a surrogate pair, which only escapes in the line can produce."""
    if _SURROGATE.search(line):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return True
    return False
