"""Knowledge bases from your own tables: entities from JSONL or CSV, facts from a table of triples.

One entity per line or row. The fields are those of `records.Entity`; only `id` and `title` are required:

    {"id": "Q90", "title": "Paris", "description": "capital of France", "kind": "city", "popularity": 412,
     "aliases": {"Paris": 310, "City of Light": 4}, "facts": [["capital of", "Q142"]]}

`aliases` may also be a list of names, or in a CSV cell names with "|" between them. Columns with other names are
mapped: `{"title": ("name",), "description": ("short", "text")}` takes the title from `name` and joins two columns to
the description. Facts of a table are (subject, relation, object), separated by tabs or commas.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeVar

import orjson

from wellread.errors import InputError, UsageError
from wellread.io.files import conversion, csv_fault, decode, path_name, read_lines
from wellread.kb.build import Origin, build, state_of
from wellread.kb.records import FIELDS, NUL, Columns, Entity, Fact, Form, OtherId, Record, Tally, texts_of

OnBroken = Literal["refuse", "skip"]
R = TypeVar("R", bound=Record)

csv.field_size_limit(1 << 30)  # a cell may be an article; the default limit is 128 KB

OWN_METADATA = ("uid", "revision", "building", "done")
"""Metadata of one file, which is not exported."""

_SHOWN = 200
"""Characters of a header that an error message shows."""


def parse_columns(pairs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse column mappings: `["title=name", "description=short,text"]` -> {"title": ("name",), "description": (…)}."""
    columns: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        field, given, names = pair.partition("=")
        if field not in FIELDS or not given or not names:
            raise UsageError(f"cannot map {pair!r}; write FIELD=COLUMN with a field of {', '.join(FIELDS)}")
        if field in columns:
            joined = ",".join((*columns[field], names))
            raise UsageError(f"{field} is mapped twice; join its columns in one: --map {field}={joined}")
        columns[field] = tuple(names.split(","))
    return columns


def build_table(
    path: str | Path,
    to: str | Path,
    *,
    form: Literal["csv", "jsonl"],
    columns: Mapping[str, str | Sequence[str]] | None = None,
    facts: Iterable[str | Path] = (),
    on_broken: OnBroken = "refuse",
    licence: str = "",
    language: str = "en",
    tally: Tally | None = None,
) -> Tally:
    """Build a KB at `to` from a table of entities and tables of facts; the metadata of an exported KB is kept."""
    names = {field: (given,) if isinstance(given, str) else tuple(given) for field, given in (columns or {}).items()}
    if unknown := set(names) - set(FIELDS):
        raise UsageError(f"there is no field {min(unknown)!r} to map; choose from {', '.join(FIELDS)}")
    tables = [Path(table) for table in facts]
    read = read_jsonl if form == "jsonl" else read_csv

    def records(tally: Tally) -> Iterator[Record]:
        yield from read(path, tally, columns=names, on_broken=on_broken)
        for table in tables:
            yield from read_facts(table, tally, on_broken=on_broken)

    about = {"source": f"{form}: {Path(path).name}", "licence": "", "language": language}
    about |= read_header(path) if form == "jsonl" else {}
    about |= {"licence": licence} if licence else {}
    settings = f"{state_of(Path(path), *tables)}\n{sorted(names.items())} {on_broken} {language} {licence}"
    origin = Origin(about.pop("source"), about.pop("licence"), about.pop("language"), settings=settings, extra=about)
    return build(records, to, origin=origin, tally=tally)


def read_jsonl(
    path: str | Path, tally: Tally, *, columns: Columns | None = None, on_broken: OnBroken = "refuse"
) -> Iterator[Record]:
    """Yield the entities (and, of an exported KB, the forms) of a JSONL file, plain or compressed."""
    for number, line in read_lines(path, tally):
        if not line.strip():
            continue
        try:
            if record := _record(_object(line), columns or {}):
                yield _checked(record)
            tally.read += 1
        except InputError as error:
            _broken(f"{path_name(path)}, line {number}", error, on_broken, tally)


def read_csv(
    path: str | Path, tally: Tally, *, columns: Columns | None = None, on_broken: OnBroken = "refuse"
) -> Iterator[Record]:
    """Yield the entities of a CSV or TSV file with a header row."""
    columns = columns or {}
    rows = _rows(path, tally, on_broken)
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError(f"{path_name(path)} is empty; expected a header row such as id,title,description,aliases")
    if repeated := [name for name, times in Counter(header).items() if name and times > 1]:
        raise InputError(f"{path_name(path)} has several columns {', '.join(repeated)}; give each a name of its own")
    wanted = {field: columns.get(field, (field,)) for field in ("id", "title", *columns)}
    absent = {name: field for field, names in wanted.items() for name in names if name not in header}
    if absent:
        fix = " ".join(f"--map {field}=COLUMN" for field in dict.fromkeys(absent.values()))
        has = shorten(", ".join(header), _SHOWN, placeholder=" …")  # a file that is not a table may be one long line
        raise InputError(f"{path_name(path)} has no column {', '.join(absent)} (it has {has}); map yours with {fix}")
    for number, row in rows:
        try:
            if len(row) != len(header):
                raise InputError(f"{len(row)} cells, the header has {len(header)}")
            yield _checked(Entity.from_dict(dict(zip(header, row, strict=True)), columns))
            tally.read += 1
        except InputError as error:
            _broken(f"{path_name(path)}, line {number}", error, on_broken, tally)


def read_facts(path: str | Path, tally: Tally, *, on_broken: OnBroken = "refuse") -> Iterator[Fact]:
    """Yield the facts of a TSV or CSV file without a header: subject, relation, object."""
    for number, row in _rows(path, tally, on_broken):
        try:
            if len(row) < 3 or not all(row[:3]):
                raise InputError("expected subject, relation and object")
            yield _checked(Fact(*row[:3]))
            tally.read += 1
        except InputError as error:
            _broken(f"{path_name(path)}, line {number}", error, on_broken, tally)


def read_header(path: str | Path) -> dict[str, str]:
    """Return the metadata of an exported KB; empty for other JSONL files, and for a pipe, which is read once."""
    if not Path(path).is_file():
        return {}
    for _, line in read_lines(path):
        try:
            about = _object(line).get("kb")
        except InputError:
            return {}
        return {key: str(about[key]) for key in about if key not in OWN_METADATA} if isinstance(about, dict) else {}
    return {}


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if not _is_utf8(line):
            raise InputError(f"not UTF-8; {conversion(line)}") from None
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(data, dict):
        raise InputError("expected a JSON object with 'id' and 'title'")
    return data


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows(path: str | Path, tally: Tally, on_broken: OnBroken) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table with their first line number; cells are separated by tabs, semicolons or commas."""
    lines = ((decode(line, f"{path_name(path)}, line {number}") + "\n") for number, line in read_lines(path, tally))
    first = next(lines, "")
    delimiter = "\t" if "\t" in first else max(";,", key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    row: list[str] | None = []
    while row is not None:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            _broken(f"{path_name(path)}, line {number}", InputError(csv_fault(error)), on_broken, tally)
        else:
            if row:
                yield number, row


def _broken(place: str, error: Exception, on_broken: OnBroken, tally: Tally) -> None:
    if on_broken == "refuse":
        raise InputError(f"{place}: {error}; correct it, or skip broken lines with --broken skip") from None
    tally.skip("broken line", f"{place}: {error}")


def _record(data: dict[str, Any], columns: Columns) -> Record | None:
    """Return the record of a JSONL line; None for the metadata line of an exported KB."""
    if all(data.get(name) is None for name in columns.get("id", ("id",))):
        if isinstance(data.get("kb"), dict):
            return None
        if "form" in data and "word" in data:
            return Form(str(data["form"]), str(data["word"]), str(data.get("kind", "")))
        if "other_id" in data and "entity" in data:
            return OtherId(str(data["other_id"]), str(data["entity"]), str(data.get("kind", "")) or "former")
    return Entity.from_dict(data, columns)


def _checked(record: R) -> R:
    """Return the record if a knowledge base can store its text."""
    if any("\0" in text for text in texts_of(record)):
        raise InputError(f"the {type(record).__name__.lower()} {NUL}")
    return record
