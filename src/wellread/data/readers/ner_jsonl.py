"""Texts with named entities as JSONL with character offsets: one text per line, with its mentions.

    {"text": "The U.S.-based firm", "mentions": [{"start": 4, "end": 8, "label": "place"}]}

A mention may also be `[4, 8, "place"]`. A line without "mentions" has secret labels; "id" is its name; consecutive
lines with the same "doc" are one document, and each other's context. `write_names` writes the same format.

Named entities are runs of words (`text.words.split`: "U.S.-based" has six). A mention that begins or ends within a word
("Xbox" in "Xboxes") is not one. It is not dropped silently: with `borders="miss"` it counts as gold and is never found
(`NamedText.missed`), with "widen" it is extended to the words that it overlaps. Blanks around a mention are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from wellread.data.readers.conll import Columns, Name, NamedText, in_document, read_conll
from wellread.data.tables import Record, make_each, read_records, text_of
from wellread.document import short
from wellread.errors import InputError
from wellread.evaluation.chunks import Chunk
from wellread.io.files import read_lines, write_atomically

Borders = Literal["miss", "widen"]


def read_named(
    path: str | Path,
    columns: Columns | None = None,
    *,
    borders: Borders = "miss",
    skipped: list[str] | None = None,
) -> Iterator[NamedText]:
    """Yield texts with names, plain or compressed: JSONL if the first line is, else CoNLL columns."""
    first = next((line for _, line in read_lines(path) if line.strip()), b"")
    if _is_object(first):
        return read_names(path, borders=borders, skipped=skipped)
    return read_conll(path, columns, skipped=skipped)


def read_names(path: str | Path, *, borders: Borders = "miss", skipped: list[str] | None = None) -> Iterator[NamedText]:
    """Yield texts of JSONL with mentions; `skipped` gets the reasons of what was left out."""

    def make(record: Record, number: str) -> tuple[Any, NamedText]:
        return record.get("doc"), _of_record(record, number, borders)

    found = make_each(path, read_records(path, "jsonl"), make, skipped)
    for document, lines in groupby(found, key=lambda line: line[0]):
        texts = (text for _, text in lines)
        yield from texts if document is None else in_document(list(texts))


def write_names(path: str | Path, texts: Sequence[NamedText], mentions: Sequence[Iterable[dict[str, Any]]]) -> None:
    """Write texts and their mentions ({"start", "end", "label", …}) as lines that `read_names` takes."""
    with write_atomically(path) as file:
        for one, some in zip(texts, mentions, strict=True):
            line = {"id": one.id, "text": one.text, "mentions": list(some)}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def place_names(one: NamedText, names: Iterable[Name], borders: Borders = "miss") -> NamedText:
    """Return a text with these names, given in characters."""
    chunks, missed = [], []
    for name in names:
        if not 0 <= name.start < name.end <= len(one.text):
            raise InputError(
                f"a mention is {name.start}:{name.end} in a text of {len(one.text):,} characters; offsets are "
                "characters from 0, end exclusive"
            )
        touched = [place for place, (start, end) in enumerate(one.words) if start < name.end and end > name.start]
        if not touched:
            said = short(one.text[name.start : name.end], 20)
            raise InputError(f"the mention {name.start}:{name.end} is {said!r}, which has no word; mend its offsets")
        first, last = touched[0], touched[-1]
        whole = name.start <= one.words[first][0] and one.words[last][1] <= name.end
        if whole or borders == "widen":
            chunks.append(Chunk(first, last + 1, name.label))
        else:
            missed.append(name)
    return one.with_names(chunks, missed)


def report_missed(texts: Iterable[NamedText], tell: Callable[[str], None]) -> Iterator[NamedText]:
    """Yield the same texts; after the last one report how many names do not match a run of words."""
    names = missed = 0
    example = ""
    for one in texts:
        names += len(one.chunks or ()) + len(one.missed)
        missed += len(one.missed)
        if one.missed and not example:
            start, end, _ = one.missed[0]
            whole = place_names(one, [one.missed[0]], "widen").chunks or ()
            around = one.text[one.words[whole[0].start][0] : one.words[whole[0].end - 1][1]]
            example = f"{short(one.text[start:end], 30)!r} in {short(around, 40)!r}"
        yield one
    if missed:
        tell(
            f"{missed:,} of {names:,} names begin or end within a word ({example}) and count as missed; to ask for the "
            'whole words instead, set ner.borders = "widen"'
        )


def _of_record(record: Record, number: str, borders: Borders) -> NamedText:
    one = NamedText.of_text(str(record.get("id", number)), text_of(record, "text"))
    mentions = record.get("mentions")
    if mentions is None:
        return one
    if not isinstance(mentions, list):
        raise InputError(f"'mentions' is {short(json.dumps(mentions), 40)}, expected a list")
    return place_names(one, map(_name, mentions), borders)


def _name(mention: Any) -> Name:
    if isinstance(mention, dict):
        mention = [mention.get(name) for name in ("start", "end", "label")]
    match mention:
        case [int() as start, int() as end, str() as label] if label:
            return Name(start, end, label)
    raise InputError(
        f'a mention is {short(json.dumps(mention), 60)}; expected {{"start": 4, "end": 8, "label": "place"}}, or '
        '[4, 8, "place"]'
    )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
