"""Texts to annotate: files and folders in shards that any process can read independently.

A text is a line of a text file (or a paragraph, or the whole file), a field of a JSONL line, or a cell of a column of
CSV, TSV or Parquet; .gz, .bz2, .xz and .zst are decompressed. Its id is that of the input if it has one, else the
file's name and the position of the text: the byte (in the decompressed file), or in a table the row (from 0). Blank
lines and paragraphs are not texts; every line of JSONL and every row of a table is one.

The shards depend on the files alone, so that they, and all results computed from them, are the same for any number of
workers.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, cast

import orjson

from wellread.data import corpus
from wellread.data.corpus import Unit, blocks_of, group, split_file, suffix_of
from wellread.errors import InputError, UsageError
from wellread.io.files import BROKEN, conversion, decode, is_packed, make_or_skip, open_bytes
from wellread.io.tables import TABLE_SUFFIXES, TableReader, TableRow, missing_column, read_rows_at

Kind = Literal["text", "jsonl", "csv", "parquet"]

LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 20
"""Bytes of text per shard: large enough to be worth a file, small enough to be lost when a run is killed."""
_SHARDS, _MOST_SHARDS = 256, 100_000
_TEXT = (".txt", ".text", ".md", ".rst", ".log")
_SUFFIXES = (*_TEXT, ".jsonl", ".ndjson", ".json", *TABLE_SUFFIXES, ".parquet")
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
_DATE = re.compile(r"\.[\d_-]+")
"""End of a name without a suffix, such as news.2024-01."""
_PARQUET = b"PAR1"
_ID = "id"
"""Default name of the column of ids."""
_BLANK_LINES = re.compile(rb"\n[ \t\r\v\f]*\n")  # lines that `bytes.strip` empties, as in `corpus.split_file`


@dataclass(frozen=True, slots=True)
class ShardPart:
    """A range of bytes of a file, or of rows of a Parquet file; an end of -1 is a whole archive.

    Of a CSV file, `row` and `line` are the numbers of its first row and line.
    """

    path: str
    name: str
    """Name of the file in ids: as it was given."""
    begin: int
    end: int
    kind: Kind
    size: int
    """Approximate bytes of text."""
    row: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files in shards, and the fields of their texts and ids."""

    shards: tuple[tuple[ShardPart, ...], ...]
    files: tuple[tuple[str, int, int], ...]
    """Name, size and time of each file; other files are other inputs."""
    unit: Unit = "line"
    field: str = "text"
    """Field or column of the text in JSONL and tables."""
    id_field: str = _ID

    @classmethod
    def of_files(
        cls,
        paths: Sequence[str | Path],
        *,
        unit: Unit = "line",
        field: str = "text",
        id_field: str = _ID,
        shard_bytes: int | None = None,
        besides: str | Path | None = None,
        result: str | Path | None = None,
    ) -> Inputs:
        """Use the texts of files and folders, except the folder `besides` and the file `result` of results."""
        if unit not in ("line", "paragraph", "file"):
            raise UsageError(f"unit={unit!r} is not known; a text is a line, a paragraph or a file")
        apart = {Path(one).resolve() for one in (besides, result) if one is not None}
        there = [file for path in paths for file in _files(Path(path))]
        found = [file for file in there if apart.isdisjoint((file.resolve(), *file.resolve().parents))]
        if there and not found:
            raise UsageError(
                f"the inputs are in {besides or result}, the folder of the results; choose another folder for these"
            )
        if not found:
            raise InputError("there is no file to annotate; give text, JSONL, CSV or Parquet files, or folders of them")
        if len({file.resolve() for file in found}) < len(found):
            raise UsageError("a file is given twice; give each once")
        if len(set(map(name_of, found))) < len(found):
            raise UsageError("two files differ only in bytes of their names that are not UTF-8; rename one of them")
        infos = [file.stat() for file in found]
        if shard_bytes is None:
            total = sum(info.st_size for info in infos)
            shard_bytes = max(LEAST_BYTES, min(total // _SHARDS, MOST_BYTES), total // _MOST_SHARDS)
        cut = [
            part
            for file, info in zip(found, infos, strict=True)
            for part in _cut(file, info.st_size, unit, (field, id_field), shard_bytes)
        ]
        files = tuple((name_of(file), info.st_size, info.st_mtime_ns) for file, info in zip(found, infos, strict=True))
        return cls(group(cut, lambda part: part.size, shard_bytes), files, unit, field, id_field)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts, as `from_dict` takes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Inputs:
        """Build from the result of `to_dict`."""
        shards = tuple(tuple(ShardPart(**part) for part in shard) for shard in data["shards"])
        files = tuple((name, size, time) for name, size, time in data["files"])
        return cls(shards, files, data["unit"], data["field"], data["id_field"])

    def texts(self, shard: int, skipped: list[str] | None = None) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of one shard; broken texts are reported to `skipped`, if given, else raised."""
        for part in self.shards[shard]:
            if part.kind == "parquet":
                yield from self._cells(part, skipped)
                continue
            if part.kind == "csv":
                yield from self._rows(part, skipped)
                continue
            unit = "line" if part.kind == "jsonl" else self.unit
            for data, begin in blocks_of(corpus.FilePart(part.path, part.begin, part.end, part.kind), unit):
                for at, text in _split(data, begin, unit):
                    name = part.name if unit == "file" else f"{part.name}:{at}"
                    make = partial(self._field, text, name)
                    if part.kind == "text":
                        make = partial(_decoded, text, name, f"{part.name}, byte {at:,}")
                    yield from _read(make, skipped)

    def _field(self, line: bytes, where: str) -> tuple[str, str]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{where}: no JSON ({error}); mend that line") from None
        if not isinstance(row, dict) or self.field not in row:
            has = f"it has {', '.join(map(str, row))}" if isinstance(row, dict) else "it is no object"
            raise InputError(f"{where}: a line without {self.field} ({has}); name its text with --field")
        text, name = row[self.field], row.get(self.id_field)
        if not isinstance(text, str | None):
            raise InputError(f"{where}: {self.field} is no text; name another with --field")
        return where if name is None else str(name), text or ""

    def _rows(self, part: ShardPart, skipped: list[str] | None) -> Iterator[tuple[str, str]]:
        """Yield the texts of a CSV or TSV file."""
        table = TableReader(part.path)
        field = table.position(self.field)
        id = table.columns.index(self.id_field) if self.id_field in table.columns else None

        def make(row: TableRow) -> tuple[str, str]:
            name = "" if id is None else row.text(id, self.id_field, part.name)
            return name or f"{part.name}:{row.number}", row.text(field, self.field, part.name)

        for row in table if part.end < 0 else _rows_of(part, table):
            yield from _read(partial(make, row), skipped)

    def _cells(self, part: ShardPart, skipped: list[str] | None) -> Iterator[tuple[str, str]]:
        with _open_parquet(part.path) as file:
            names = file.schema_arrow.names
            wanted = [self.field, *([self.id_field] if self.id_field in names and self.id_field != self.field else [])]
            first = 0
            groups = []
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first < part.end and first + rows > part.begin:
                    groups.append((group, first))
                first += rows
            at = groups[0][1] if groups else 0
            for batch in _batches(file, part, [group for group, _ in groups], wanted):
                skip, end = max(0, part.begin - at), min(batch.num_rows, part.end - at)
                if skip < end:
                    some = batch.slice(skip, end - skip)
                    ids = some.column(self.id_field) if len(wanted) > 1 else repeat(None)
                    for row, (name, text) in enumerate(zip(ids, some.column(self.field), strict=False), at + skip):
                        yield from _read(partial(_cell, name, text, f"{part.name}:{row}"), skipped)
                at += batch.num_rows


def _files(path: Path) -> list[Path]:
    if str(path) == "-":
        raise UsageError("standard input cannot be gone on with; write it to a file, or use: wellread link --lines")
    if not path.is_dir():
        if not path.exists() and not path.is_symlink():
            raise InputError(f"there is no {name_of(path)}; give text, JSONL, CSV or Parquet files, or folders of them")
        _refuse_odd(path)
        return [path]
    found = []
    for folder, inside, names in os.walk(path):
        inside[:] = sorted(name for name in inside if not name.startswith((".", "_")))
        found += [
            Path(folder, name)
            for name in names
            if suffix_of(Path(name)) in _SUFFIXES and not name.startswith((".", "_"))
        ]
    if not found:
        raise InputError(
            f"there is nothing in {name_of(path)} that we read ({', '.join(_SUFFIXES)}); give the files by name"
        )
    for file in found:
        _refuse_odd(file)
    return sorted(found)


def _refuse_odd(path: Path) -> None:
    """Raise an error that names the fix for a path that is not a regular file."""
    if path.is_symlink() and not path.exists():
        raise InputError(
            f"{name_of(path)} is a link to {name_of(os.readlink(path))}, which is not there; mend the link or remove it"
        )
    if not path.is_file():
        raise UsageError(
            f"{name_of(path)} is a pipe or a device, which is read only once; write it to a file and give that"
        )


def name_of(path: str | Path) -> str:
    """Return the name of a file for ids and messages; bytes of it that are not UTF-8 are escaped (\\xff.txt)."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _cut(path: Path, size: int, unit: Unit, fields: tuple[str, str], shard_bytes: int) -> Iterator[ShardPart]:
    with open(path, "rb") as file:
        head = file.read(4)
    if head == _PARQUET or suffix_of(path) == ".parquet":
        yield from _cut_parquet(path, fields[0], shard_bytes)
        return
    _refuse_other_formats(path)
    if suffix_of(path) in TABLE_SUFFIXES:
        yield from _cut_table(path, size, fields, shard_bytes)
        return
    for file_part in split_file(path, size, unit, shard_bytes):
        room = size * 4 if file_part.end < 0 else file_part.end - file_part.begin
        yield ShardPart(file_part.path, name_of(path), file_part.begin, file_part.end, cast(Kind, file_part.kind), room)


def _refuse_other_formats(path: Path) -> None:
    """Raise an error that names the fix for a file that is not text: a spreadsheet, an archive, an unknown suffix."""
    suffix, name = suffix_of(path), name_of(path)
    if suffix in _SPREADSHEETS:
        raise InputError(f"{name} is a spreadsheet; save it as CSV (UTF-8) and give that")
    try:
        with open_bytes(path) as file:
            head = file.read(4096)
    except BROKEN as error:
        raise InputError(f"{name} is truncated or damaged: {error}; fetch or copy it again") from error
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name} is UTF-16; {conversion(head)}")
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    if ("\0" in text and "\ufffd" in text) or head.startswith((b"%PDF", b"PK\3\4")):
        raise InputError(f"{name} is a binary file; give text, JSONL, CSV or Parquet")
    if suffix not in ("", *_SUFFIXES) and not _DATE.fullmatch(suffix) and not head.lstrip().startswith(b"{"):
        raise InputError(
            f"{name}: files called {suffix} are not known ({', '.join(_SUFFIXES)}); if it is plain text, rename it to "
            f"{path.stem}.txt"
        )


def _cut_table(path: Path, size: int, fields: tuple[str, str], shard_bytes: int) -> Iterator[ShardPart]:
    """Yield the parts of a CSV or TSV file, each ending where a row does."""
    table = TableReader(path)
    table.position(fields[0])
    if fields[1] != _ID:  # the default column may be missing
        table.position(fields[1], "--id-field")
    where, name = str(path.resolve()), name_of(path)
    if is_packed(path):
        yield ShardPart(where, name, 0, -1, "csv", size * 4)
        return
    first: TableRow | None = None
    for row in table:
        first = first or row
        if row.end - first.begin >= shard_bytes:
            yield ShardPart(where, name, first.begin, row.end, "csv", row.end - first.begin, first.number, first.line)
            first = None
    if first is not None:
        yield ShardPart(where, name, first.begin, size, "csv", size - first.begin, first.number, first.line)


def _rows_of(part: ShardPart, table: TableReader) -> Iterator[TableRow]:
    with open(part.path, "rb") as file:
        file.seek(part.begin)
        data = file.read(part.end - part.begin)
    place = {"number": part.row, "line": part.line, "begin": part.begin}
    return read_rows_at(data, len(table.columns), table.delimiter, **place)


def _cut_parquet(path: Path, field: str, shard_bytes: int) -> Iterator[ShardPart]:
    with _open_parquet(path) as file:
        import pyarrow as pa

        schema, rows = file.schema_arrow, file.metadata.num_rows
        if field not in schema.names:
            raise InputError(f"{name_of(path)} {missing_column(field, schema.names, '--field')}")
        kind = schema.field(field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise InputError(f"the column {field} of {path} is {kind}, no text; name another with --field")
        size = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            columns = (group.column(place) for place in range(group.num_columns))
            size += sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    each = max(1, rows * shard_bytes // max(1, size))
    for begin in range(0, rows, each):
        end = min(begin + each, rows)
        yield ShardPart(str(path.resolve()), name_of(path), begin, end, "parquet", size * (end - begin) // rows)


def _open_parquet(path: str | Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not _is_utf8(str(path)):  # Arrow does not accept such a name
            return pq.ParquetFile(pa.BufferReader(Path(path).read_bytes()))
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name_of(path)} cannot be read as Parquet ({reason}); fetch or write it again") from error


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _batches(file: Any, part: ShardPart, groups: list[int], columns: list[str]) -> Iterator[Any]:
    """Yield rows of some groups; damaged pages are an error, not the end of the file."""
    import pyarrow as pa

    try:
        yield from file.iter_batches(4096, row_groups=groups, columns=columns)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{part.name} cannot be read as Parquet ({reason}); fetch or write it again") from error


def _read(make: Callable[[], tuple[str, str]], skipped: list[str] | None) -> Iterator[tuple[str, str]]:
    try:
        yield from make_or_skip(make, skipped)
    except InputError as error:
        raise InputError(f"{error}, or leave out what is broken with --broken skip") from None


def _decoded(text: bytes, name: str, where: str) -> tuple[str, str]:
    return name, decode(text, where)


def _cell(name: Any, text: Any, where: str) -> tuple[str, str]:
    """Return id and text of a row; Parquet writers need not have checked that a text is UTF-8."""
    try:
        own_id = None if name is None else name.as_py()
        return where if own_id is None else str(own_id), text.as_py() or ""
    except UnicodeDecodeError:
        raise InputError(f"{where}: this row is not UTF-8; write the table again") from None


def _split(data: bytes, begin: int, unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Yield the texts in some bytes, each with its offset."""
    at = 0
    if begin == 0 and data.startswith(b"\xef\xbb\xbf"):
        at = 3
    while at < len(data):
        end, behind = len(data), len(data)
        if unit == "line" and (found := data.find(b"\n", at)) >= 0:
            end, behind = found, found + 1
        elif unit == "paragraph" and (match := _BLANK_LINES.search(data, at)) is not None:
            end, behind = match.span()
        text = data[at:end]
        if unit == "line":
            text = text.rstrip(b"\r\n")
        elif unit == "paragraph":
            text = text.lstrip()
            at, text = end - len(text), text.rstrip()
        if text.strip():
            yield begin + at, text
        at = behind
