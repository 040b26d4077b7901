"""`wellread link --spans`: given spans of one text as JSON, or a JSONL file of texts with their spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from wellread.document import refuse_halves
from wellread.errors import InputError, UsageError
from wellread.io.files import decode, path_name, read_lines, read_text

Pairs = list[tuple[int, int]]

_SHAPE = "a list of [start, end] pairs of characters, end exclusive, such as [[0, 6], [10, 20]]"


class Given(NamedTuple):
    """A text with given spans, and its id."""

    text: str
    spans: Pairs
    id: str | None = None


def spans_of_text(text: str, given: str) -> Given:
    """Read the spans of one text: JSON itself, or a file that holds it."""
    if given.lstrip().startswith("["):
        return Given(text, _pairs(_parsed(given, "--spans"), "--spans", text))
    return Given(text, _pairs(_parsed(read_text(given), path_name(given)), path_name(given), text))


def texts_with_spans(path: str) -> Iterator[Given]:
    """Read JSONL lines with `text` and `spans`, or documents whose `mentions` or `links` have the spans."""
    if path.lstrip().startswith("["):
        raise UsageError('--spans has spans but there is no text; give one: wellread link --spans "[[0, 6]]" "…"')
    empty = True
    for number, line in read_lines(path):
        if line.strip():
            empty = False
            where = f"{path_name(path)}, line {number}"
            yield _given(_parsed(decode(line, where), where), where)
    if empty:
        raise InputError(f"{path_name(path)} has no texts; give a line of JSON for each: " + '{"text": …, "spans": …}')


def _given(data: Any, where: str) -> Given:
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        raise InputError(
            f'{where}: expected an object with "text" and "spans"; for the spans of one text give that text too'
        )
    text, id = data["text"], data.get("id")
    refuse_halves(text, f"{where}: the text")
    if "spans" in data:
        spans = data["spans"]
    elif "mentions" in data:
        spans = _each(data["mentions"], where, lambda mention: mention[:2])
    elif "links" in data:
        spans = _each(data["links"], where, lambda link: [link["start"], link["end"]])
    else:
        raise InputError(f'{where}: there are no spans; expected "spans", "mentions" or "links", which may be empty')
    return Given(text, _pairs(spans, where, text), None if id is None else str(id))


def _each(entries: Any, where: str, span_of: Any) -> list[Any]:
    try:
        return [span_of(entry) for entry in entries]
    except (TypeError, KeyError, IndexError) as error:
        raise InputError(f"{where}: the mentions or links have no start and end; expected wellread's JSONL") from error


def _parsed(given: str, where: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}; expected {_SHAPE}") from error


def _pairs(spans: Any, where: str, text: str) -> Pairs:
    if not isinstance(spans, list):
        raise InputError(f"{where}: expected {_SHAPE}")
    for span in spans:
        if not isinstance(span, list) or len(span) != 2 or not all(type(offset) is int for offset in span):
            raise InputError(f"{where}: {json.dumps(span)} is not a span; expected {_SHAPE}")
        if not 0 <= span[0] < span[1] <= len(text):
            raise InputError(
                f"{where}: the span {span[0]}:{span[1]} is not in the text of {len(text):,} characters; "
                "count characters from 0, end exclusive"
            )
    return [(start, end) for start, end in spans]
