"""Knowledge of your own: entities from JSONL or CSV, facts from a table of triples; and a KB written as JSONL.

One entity a line or row. The fields are those of `records.Entity`; only `id` and `title` are needed:

    {"id": "Q90", "title": "Paris", "description": "capital of France", "kind": "city", "popularity": 412,
     "aliases": {"Paris": 310, "City of Light": 4}, "facts": [["capital of", "Q142"]]}

`aliases` may also be a list of names, or in a CSV cell names with "|" between them. Columns with other names are
mapped: `{"title": ("name",), "description": ("short", "text")}` takes the title from `name` and joins two columns to
the description. Facts of a table are (subject, relation, object), tabs or commas between them; what follows is ignored.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from textwrap import shorten
from typing import IO, Any, Literal, TypeVar, get_args

import orjson

from wellread.errors import InputError, UsageError
from wellread.io.files import conversion, csv_fault, decode, read_lines, told
from wellread.kb.records import NUL, Entity, Fact, Form, Record, Tally, texts_of
from wellread.kb.store import KnowledgeBase

Field = Literal["id", "title", "description", "kind", "popularity", "aliases", "facts"]
Columns = Mapping[str, Sequence[str]]
OnBroken = Literal["refuse", "skip"]
R = TypeVar("R", bound=Record)

FIELDS: tuple[Field, ...] = get_args(Field)

csv.field_size_limit(1 << 30)  # a cell may be an article; the usual limit is 128 KB

_OWN = ("uid", "revision", "building", "done")
_SHOWN = 200
"""Metadata that belongs to one file and does not travel."""


def parse_columns(pairs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`["title=name", "description=short,text"]` -> {"title": ("name",), "description": ("short", "text")}."""
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


def read_jsonl(
    path: str | Path, tally: Tally, *, columns: Columns | None = None, on_broken: OnBroken = "refuse"
) -> Iterator[Record]:
    """Entities (and, in a file that wellread exported, forms) of a JSONL file, plain or compressed."""
    for number, line in read_lines(path, tally):
        if not line.strip():
            continue
        try:
            if record := _record(_object(line), columns or {}):
                yield _plain(record)
            tally.read += 1
        except InputError as error:
            _broken(f"{told(path)}, line {number}", error, on_broken, tally)


def read_csv(
    path: str | Path, tally: Tally, *, columns: Columns | None = None, on_broken: OnBroken = "refuse"
) -> Iterator[Record]:
    """Entities of a CSV or TSV file with a header row."""
    columns = columns or {}
    rows = _rows(path, tally, on_broken)
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError(f"{told(path)} is empty; expected a header row such as id,title,description,aliases")
    if repeated := [name for name, times in Counter(header).items() if name and times > 1]:
        raise InputError(f"{told(path)} has several columns {', '.join(repeated)}; give each a name of its own")
    wanted = {field: columns.get(field, (field,)) for field in ("id", "title", *columns)}
    absent = {name: field for field, names in wanted.items() for name in names if name not in header}
    if absent:
        fix = " ".join(f"--map {field}=COLUMN" for field in dict.fromkeys(absent.values()))
        has = shorten(", ".join(header), _SHOWN, placeholder=" …")  # a file that is no table may be one long line
        raise InputError(f"{told(path)} has no column {', '.join(absent)} (it has {has}); map yours with {fix}")
    for number, row in rows:
        try:
            if len(row) != len(header):
                raise InputError(f"{len(row)} cells, the header has {len(header)}")
            yield _plain(_entity(dict(zip(header, row, strict=True)), columns))
            tally.read += 1
        except InputError as error:
            _broken(f"{told(path)}, line {number}", error, on_broken, tally)


def read_facts(path: str | Path, tally: Tally, *, on_broken: OnBroken = "refuse") -> Iterator[Fact]:
    """Facts of a TSV or CSV file without a header: subject, relation, object."""
    for number, row in _rows(path, tally, on_broken):
        try:
            if len(row) < 3 or not all(row[:3]):
                raise InputError("expected subject, relation and object")
            yield _plain(Fact(*row[:3]))
            tally.read += 1
        except InputError as error:
            _broken(f"{told(path)}, line {number}", error, on_broken, tally)


def write_jsonl(kb: KnowledgeBase, file: IO[bytes]) -> int:
    """Write a KB as `read_jsonl` reads it: what it says of itself, its forms, its entities; returns their number."""
    about = {key: value for key, value in kb.metadata.items() if key not in _OWN}
    file.write(orjson.dumps({"kb": about}) + b"\n")
    for form in kb.forms():
        file.write(orjson.dumps({"form": form.form, "word": form.word, "kind": form.kind}) + b"\n")
    count = 0
    for count, entity in enumerate(kb.entities(), 1):  # noqa: B007  # counted, not used
        file.write(orjson.dumps(entity) + b"\n")
    return count


def read_header(path: str | Path) -> dict[str, str]:
    """What an exported KB says of itself; empty for any other JSONL, and for what can be read only once (a pipe)."""
    if not Path(path).is_file():
        return {}
    for _, line in read_lines(path):
        try:
            about = _object(line).get("kb")
        except InputError:
            return {}
        return {key: str(about[key]) for key in about if key not in _OWN} if isinstance(about, dict) else {}
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
    """Rows of a table with the number of their first line; between cells tabs, semicolons or commas."""
    lines = ((decode(line, f"{told(path)}, line {number}") + "\n") for number, line in read_lines(path, tally))
    first = next(lines, "")
    delimiter = "\t" if "\t" in first else max(";,", key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    row: list[str] | None = []
    while row is not None:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            _broken(f"{told(path)}, line {number}", InputError(csv_fault(error)), on_broken, tally)
        else:
            if row:
                yield number, row


def _broken(place: str, error: Exception, on_broken: OnBroken, tally: Tally) -> None:
    if on_broken == "refuse":
        raise InputError(f"{place}: {error}; mend it, or pass over broken lines with --broken skip") from None
    tally.skip("broken line", f"{place}: {error}")


def _record(data: dict[str, Any], columns: Columns) -> Record | None:
    """One line of a JSONL; nothing for the head of an exported KB."""
    if all(data.get(name) is None for name in columns.get("id", ("id",))):
        if isinstance(data.get("kb"), dict):
            return None
        if "form" in data and "word" in data:
            return Form(str(data["form"]), str(data["word"]), str(data.get("kind", "")))
    return _entity(data, columns)


def _plain(record: R) -> R:
    """The same record, where a knowledge base takes its text."""
    if any("\0" in text for text in texts_of(record)):
        raise InputError(f"the {type(record).__name__.lower()} {NUL}")
    return record


def _entity(data: dict[str, Any], columns: Columns) -> Entity:
    taken = {field: _taken(data, columns.get(field, (field,))) for field in FIELDS if field != "aliases"}
    id, title = taken["id"], taken["title"]
    if id is None or title is None or isinstance(id, dict | list) or isinstance(title, dict | list):
        raise InputError("an entity needs 'id' and 'title'")
    aliases: dict[str, float] = {}
    for name in columns.get("aliases", ("aliases",)):
        aliases.update(_aliases(data.get(name)))
    return Entity(
        str(id),
        str(title),
        str(taken["description"] or ""),
        _kind(taken["kind"]),
        _number(taken["popularity"] or 0, "popularity"),
        aliases,
        tuple(_facts(taken["facts"])),
    )


def _taken(data: dict[str, Any], names: Sequence[str]) -> Any:
    values = [data[name] for name in names if data.get(name) not in (None, "")]
    if len(values) > 1:
        return ". ".join(str(value).rstrip(". ") for value in values[:-1]) + f". {values[-1]}"
    return values[0] if values else None


def _kind(value: Any) -> str:
    if isinstance(value, list):
        value = value[0] if value else ""
    return str(value or "")


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} is {value!r}, expected a number") from None
    if not isfinite(number) or number < 0:
        raise InputError(f"{what} is {value!r}, expected a number from 0 on")
    return number


def _aliases(value: Any) -> dict[str, float]:
    if not value:
        return {}
    if isinstance(value, str):
        value = [name.strip() for name in value.split("|")]
    if isinstance(value, list):
        pairs = [[name, 1.0] if isinstance(name, str) else name for name in value]
        if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise InputError("aliases in a list are names or [name, count] pairs")
        value = {name: count for name, count in pairs}  # noqa: C416  # lists, which dict() takes but mypy does not
    if not isinstance(value, dict):
        raise InputError("aliases are an object {name: count}, a list of names, or names with | between them")
    return {str(name): _number(count, f"the count of alias {name!r}") for name, count in value.items() if name}


def _facts(value: Any) -> Iterator[tuple[str, str]]:
    for fact in value if isinstance(value, list) else [value] if value else []:
        if not isinstance(fact, list) or len(fact) != 2:
            raise InputError("facts are [relation, object id] pairs")
        yield str(fact[0]), str(fact[1])
