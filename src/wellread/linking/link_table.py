"""Links as a flat table, one row per link, for tables of texts: pandas, Polars, DuckDB or Arrow in, Arrow out.

>>> linker.link_frame(tickets, "message", id="ticket_id").column_names[:6]
['row', 'ticket_id', 'start', 'end', 'mention', 'entity']
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wellread.document import Document
from wellread.errors import InputError, UsageError
from wellread.io.tables import missing_column
from wellread.linking.link_rows import LINK_COLUMNS, NESTED, link_row

_INTEGERS = ("start", "end")
_FLOATS = ("score", "mention_score")
LINK_FIELDS = tuple(
    (name, pa.int64() if name in _INTEGERS else pa.float64() if name in _FLOATS else pa.string())
    for name in LINK_COLUMNS
)
"""Columns of a link with their Arrow types."""
LINK_SCHEMA = pa.schema([("id", pa.string()), *LINK_FIELDS])

_AT_ONCE = 4096
"""Rows of a frame that are converted at a time."""

LinkMany = Callable[[Iterable[str]], Iterator[Document]]


def flatten(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of texts with their `id` and lists of `links` as a batch of `LINK_SCHEMA`."""
    links = batch.column("links")
    flat = pc.list_flatten(links)
    ids = batch.column("id").take(pc.list_parent_indices(links))
    columns = [pc.struct_field(flat, NESTED.get(name, name)) for name, _ in LINK_FIELDS]
    return pa.RecordBatch.from_arrays([ids, *columns], schema=LINK_SCHEMA)


def link_frame(link_many: LinkMany, frame: Any, column: str, *, id: str | None = None) -> pa.Table:
    """Return the links of the texts in a column of a frame; `row` is the position of the text, from 0.

    A frame is a pandas or Polars DataFrame, an Arrow table, or anything with Arrow's `__arrow_c_stream__`. With `id`,
    that column of the frame is kept beside `row`. A missing text has no links.
    """
    wanted = [column] if id in (None, column) else [column, str(id)]
    with _reader(frame, wanted) as reader:
        kept = [] if id is None else [pa.field(_free_name(id), reader.schema.field(id).type)]
        schema = pa.schema([("row", pa.int64()), *kept, *LINK_FIELDS])
        done = []
        for begin, batch in _numbered(reader):
            texts = [text or "" for text in batch.column(column).to_pylist()]
            rows = [(place, link) for place, document in enumerate(link_many(texts)) for link in document.links]
            places = pa.array([place for place, _ in rows], pa.int64())
            links = pa.RecordBatch.from_pylist([link_row(link) for _, link in rows], schema=pa.schema(LINK_FIELDS))
            ids = [] if id is None else [batch.column(id).take(places)]
            columns = [pc.add(places, begin), *ids, *links.columns]
            done.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(done, schema)


def _numbered(reader: pa.RecordBatchReader) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield small batches, each with the position of its first row."""
    begin = 0
    for large in reader:
        for offset in range(0, large.num_rows, _AT_ONCE):
            yield begin + offset, large.slice(offset, _AT_ONCE)
        begin += large.num_rows


def _reader(frame: Any, wanted: list[str]) -> pa.RecordBatchReader:
    """Return a frame as a stream of Arrow batches, after checking its columns."""
    pandas = sys.modules.get("pandas")
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    try:
        if pandas is not None and isinstance(frame, pandas.DataFrame):
            _refuse_missing(wanted, list(map(str, frame.columns)))
            reader = pa.Table.from_pandas(frame[wanted], preserve_index=False).to_reader()
        elif isinstance(frame, pa.RecordBatchReader):
            reader = frame
        elif hasattr(frame, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(frame)
        else:
            raise UsageError(
                f"link_frame was given {type(frame).__name__}; give a pandas or Polars DataFrame, or an Arrow table"
            )
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"the frame is not a table of texts ({reason}); convert its column to strings") from error
    _refuse_missing(wanted, reader.schema.names)
    kind = reader.schema.field(wanted[0]).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    if not any(test(kind) for test in is_text):
        raise InputError(f"the column {wanted[0]} is {kind}, expected texts; name another, or convert it to strings")
    return reader


def _refuse_missing(wanted: list[str], columns: list[str]) -> None:
    for column in wanted:
        if column not in columns:
            raise UsageError(f"the frame {missing_column(column, columns, 'link_frame(frame, column, id=…)')}")
        if columns.count(column) > 1:
            raise UsageError(f"the frame has several columns called {column}; rename them")


def _free_name(id: str) -> str:
    """Return the name of the column of ids; one called like a column of links becomes "id"."""
    return "id" if id in ("row", *(name for name, _ in LINK_FIELDS)) else id
