r"""CSV and TSV files with a header, plain or compressed: columns by name, rows with their place in the file.

>>> table = TableReader("tickets.csv")
>>> table.columns
('ticket_id', 'message')
>>> place = table.position("message", "--field")
>>> [row.text(place, "message", "tickets.csv") for row in table]

Cells are separated by the separator of the header: a tab, a semicolon or a comma. A cell with a separator, a quotation
mark or a line break is in quotation marks, with those inside doubled (RFC 4180), also in TSV. Blank lines are skipped.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from wellread.errors import InputError
from wellread.io.files import BROKEN, Progress, conversion, decode, open_bytes, path_name

TABLE_SUFFIXES = (".csv", ".tsv", ".tab")

_QUOTED = re.compile(r'"[^"]*"')
_SHOWN = 200
"""Characters of a header that an error message shows."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

csv.field_size_limit(1 << 30)  # a cell may be an article; the default limit is 128 KB


class TableRow(NamedTuple):
    """A row: its cells, or why it cannot be read."""

    cells: list[str]
    number: int
    """Number of the row, the first below the header being 0."""
    line: int
    """Number of its first line in the file, from 1."""
    begin: int
    """Byte where it begins in the unpacked file."""
    end: int
    fault: str = ""
    """Reason why the row is broken, with the fix; "" if it is sound."""

    def text(self, position: int, column: str, where: str) -> str:
        """Return a cell; raise `InputError` if the row is broken or the cell is not UTF-8."""
        if self.fault:
            raise InputError(f"{where}, line {self.line:,}: {self.fault}")
        cell = self.cells[position]
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError:
                data = cell.encode("utf-8", "surrogateescape")
                raise InputError(
                    f"{where}, line {self.line:,}: {column} is not UTF-8; {conversion(data)} of the whole file"
                ) from None
        return cell


class TableReader:
    """Rows of a CSV or TSV file; the header is read at once, and the rows may be read more than once."""

    def __init__(self, path: str | Path, progress: Progress | None = None) -> None:
        self.path = path
        self._progress = progress
        self._name = path_name(path)
        lines = _Lines(self._opened())
        try:
            self.columns, self.delimiter = self._header(lines)
        except BROKEN as error:
            raise self._damaged(error) from error
        self._lines: _Lines | None = lines
        """Lines below the header, until they are read."""

    def position(self, column: str, option: str = "--field") -> int:
        """Return the position of a column; a missing one is an error that names `option` and the nearest column."""
        if column not in self.columns:
            raise InputError(f"{self._name} {missing_column(column, self.columns, option)}")
        return self.columns.index(column)

    def __iter__(self) -> Iterator[TableRow]:
        lines, self._lines = self._lines or self._again(), None
        try:
            for row in parse_rows(lines, len(self.columns), self.delimiter):
                if row.fault == _UNCLOSED:
                    raise InputError(f"{self._name}, line {row.line:,}: {row.fault}")
                yield row
        except BROKEN as error:
            raise self._damaged(error) from error

    def records(self) -> Iterator[dict[str, str]]:
        """Yield each row as a dict by column; a broken row or a cell that is not UTF-8 is an `InputError`."""
        for row in self:
            cells = range(len(self.columns))
            yield {self.columns[at]: row.text(at, self.columns[at], self._name) for at in cells}

    def _again(self) -> _Lines:
        if str(self.path) == "-":
            raise InputError("standard input can be read only once; write it to a file and give that")
        lines = _Lines(self._opened())
        while not next(csv.reader(lines, delimiter=self.delimiter, strict=True)):
            pass  # blank lines before the header
        return lines

    def _opened(self) -> Iterable[bytes]:
        with open_bytes(self.path, self._progress) as file:
            yield from file

    def _damaged(self, error: BaseException) -> InputError:
        return InputError(f"{self._name} is truncated or damaged: {error}; fetch or copy it again")

    def _header(self, lines: _Lines) -> tuple[tuple[str, ...], str]:
        first = next(lines, "")
        data = first.encode("utf-8", "surrogateescape")
        if data.startswith(_UTF_16):
            raise InputError(f"{self._name} is UTF-16; {conversion(data)}")
        if "\0" in first:
            raise InputError(f"{self._name} is not a table but a binary file; save it as CSV")
        decode(data, f"{self._name}, line 1")
        delimiter = delimiter_of(first, self.path)
        while not first.strip():
            if not first or not (first := next(lines, "")):
                raise InputError(f"{self._name} is empty; expected a header with the names of columns, then rows")
            delimiter = delimiter_of(first, self.path)
        try:
            header = next(csv.reader(chain([first], lines), delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise InputError(f"{self._name}, line 1: {_fault(error)}") from error
        columns = tuple(name.strip() for name in header)
        if repeated := [name for name, times in Counter(columns).items() if name and times > 1]:
            raise InputError(
                f"{self._name} has several columns called {', '.join(repeated)}; give each a name of its own"
            )
        if not any(columns):
            raise InputError(f"{self._name} has no names of columns in its first row; add a header")
        return columns, delimiter


def missing_column(column: str, columns: Sequence[str], option: str) -> str:
    """Return the end of an error message about a column that is not there, with the nearest name."""
    named = [name for name in columns if name]
    near = difflib.get_close_matches(column.casefold(), [name.casefold() for name in named], n=1)
    meant = f"; did you mean {next(name for name in named if name.casefold() == near[0])}?" if near else ""
    listed = shorten(", ".join(named), _SHOWN, placeholder=" …")  # a file that is no table may be one long line
    return f"has no column {column} (it has {listed}){meant or f'; name yours with {option}'}"


def parse_rows(lines: _Lines, columns: int, delimiter: str, *, number: int = 0) -> Iterator[TableRow]:
    """Yield the rows in lines that begin where a row does; the first has this number."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        begin, line = lines.offset, lines.number + 1
        fault = ""
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, fault = [], _fault(error)
            if lines.number > line and fault != _UNCLOSED:
                fault = f"{fault} (the row goes on to line {lines.number:,}: is a quotation mark not closed?)"
        if cells is None:
            return
        if not fault and len(cells) != columns:
            if not cells:
                continue
            count = f"{len(cells)} cell" + "s" * (len(cells) != 1)
            fault = f"{count}, expected {columns} as in the header; mend the row"
        yield TableRow(cells, number, line, begin, lines.offset, fault)
        number += 1


def read_rows_at(
    data: bytes, columns: int, delimiter: str, *, number: int, line: int, begin: int
) -> Iterator[TableRow]:
    """Yield the rows in some bytes of a table, which begin at a row: its number, line and byte are given."""
    lines = _Lines(io.BytesIO(data), offset=begin, number=line - 1)
    return parse_rows(lines, columns, delimiter, number=number)


def delimiter_of(header: str, path: str | Path = "") -> str:
    """Return the separator of a header: a tab, a semicolon or a comma; that of a .tsv is a tab."""
    if Path(path).name.lower().partition(".tsv")[1]:
        return "\t"
    bare = _QUOTED.sub("", header)
    return "\t" if "\t" in bare else max(",;", key=bare.count)


class _Lines:
    """Iterator of decoded lines that knows the byte and the number of the line reached.

    Bytes that are not UTF-8 become lone surrogates, so that one wrong cell does not hide the rows after it.
    """

    def __init__(self, lines: Iterable[bytes], *, offset: int = 0, number: int = 0) -> None:
        self._lines = iter(lines)
        self.offset = offset
        self.number = number

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if self.offset == 0:
            bare = line.removeprefix(codecs.BOM_UTF8)
            self.offset, line = len(line) - len(bare), bare
        self.offset += len(line)
        self.number += 1
        return line.decode("utf-8", "surrogateescape")


_UNCLOSED = "a quotation mark is not closed, all that follows is in one cell; close it, or double it if it is text"


def _fault(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end of data" in text:
        return _UNCLOSED
    if "expected after" in text:
        return "text follows a closing quotation mark; double the quotation marks inside a quoted cell"
    if "new-line character" in text:
        return "a carriage return without line feed in a cell; convert the line ends, e.g. tr '\\r' '\\n'"
    return f"{text}; mend the row"
