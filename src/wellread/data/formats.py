r"""Linked text in other tools' formats: gold links are read as documents, links are written for other tools.

- `jsonl` (read; `Document.to_json` writes): one of our documents per line, or
  `{"id": …, "text": …, "mentions": [[start, end, id or null], …]}`, where a mention may have a title as fourth element.
- `aida` (read; `to_conll` writes): the columns of AIDA-CoNLL-YAGO, which are token, B or I, mention, YAGO2 entity,
  Wikipedia URL, Wikipedia number and Freebase mid.
- `nif` (read; `data.nif.to_nif` writes): NIF in Turtle, a `nif:Context` and phrases with `itsrdf:taIdentRef`.
- brat (`to_brat` writes): stand-off `.ann` beside the `.txt`.

An entity of None is NIL: named in the text, but not in the knowledge base.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from wellread.data.nif import nif_drafts
from wellread.data.spans import by_place, checked_span, title_in
from wellread.document import Document, Link, refuse_halves
from wellread.errors import InputError, UsageError
from wellread.io.files import decode, make_or_skip, path_name, read_lines, read_text

Format = Literal["jsonl", "aida", "nif"]
Ids = Literal["title", "url", "number", "mid"]
Draft = Callable[[], Document]
"""Function that builds a document, or raises for this document only."""

_OPENINGS: dict[Format, tuple[bytes, ...]] = {
    "jsonl": (b"{",),
    "aida": (b"-DOCSTART-",),
    "nif": (b"@prefix", b"@base", b"PREFIX", b"<"),
}
_EXTENSIONS: dict[Format, tuple[str, ...]] = {
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "aida": (".tsv", ".conll"),
    "nif": (".ttl", ".nif", ".nt"),
}
_NIL = "--NME--"
"""AIDA's "no matching entity"."""
_YAGO_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_WORD = re.compile(r"\w+|[^\w\s]")


def read_linked(
    path: str | Path, format: Format | None = None, *, ids: Ids | None = None, skipped: list[str] | None = None
) -> Iterator[Document]:
    """Yield documents with gold links from a plain or compressed file; without `format` the first line decides.

    `ids` is what identifies an entity: in AIDA "title" (the default), "url", "number" or "mid"; in NIF "url" (the IRI,
    the default) or "title". JSONL has one kind of id. "-" is standard input, JSONL unless `format` says otherwise.

    A broken document, such as one with a mention outside its text, is an `InputError`. With a list as `skipped`, such
    documents are left out instead, and the list gets their messages.
    """
    kind = format or _detect_format(path)
    if kind == "jsonl":
        _check_ids(ids, (), "JSONL has its ids in the file")
        return _made(_read_jsonl(path), skipped)
    if kind == "aida":
        _check_ids(ids, get_args(Ids), "AIDA has no such column")
        return _made(_read_aida(path, ids or "title"), skipped)
    if kind == "nif":
        _check_ids(ids, ("url", "title"), "NIF names entities by IRI")
        return _made(nif_drafts(read_text(path), Path(path).name, path_name(path), ids or "url"), skipped)
    raise UsageError(f"unknown format {kind!r}; choose one of {', '.join(get_args(Format))}")


def _made(drafts: Iterator[Draft], skipped: list[str] | None) -> Iterator[Document]:
    for draft in drafts:
        yield from make_or_skip(draft, skipped)


def _check_ids(ids: str | None, allowed: tuple[str, ...], why: str) -> None:
    if ids is not None and ids not in allowed:
        fix = f"choose one of {', '.join(allowed)}" if allowed else "leave it out"
        raise UsageError(f"ids={ids!r} does not fit: {why}; {fix}")


def _detect_format(path: str | Path) -> Format:
    """Detect the format by the first line that is not blank, else by the name."""
    if str(path) == "-":
        return "jsonl"
    first = next((line.lstrip(b"\xef\xbb\xbf \t") for _, line in read_lines(path) if line.strip()), b"")
    for kind, openings in _OPENINGS.items():
        if first.startswith(openings):
            return kind
    for kind, extensions in _EXTENSIONS.items():
        if not set(extensions).isdisjoint(Path(path).suffixes):
            return kind
    raise InputError(
        f"{path} is not linked text that we know by its name or first line; say if it is jsonl, aida or nif"
    )


def _decoded_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    return ((number, decode(line, f"{path_name(path)}, line {number}")) for number, line in read_lines(path))


# JSONL


def _read_jsonl(path: str | Path) -> Iterator[Draft]:
    return (
        partial(_json_document, f"{path_name(path)}, line {number}", line)
        for number, line in _decoded_lines(path)
        if line.strip()
    )


def _json_document(where: str, line: str) -> Document:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}; expected one object a line") from error
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        raise InputError(f'{where}: expected an object with a "text"; is this another format?')
    if data.keys().isdisjoint(("mentions", "links")):
        raise InputError(f'{where}: there are no gold links; expected "mentions" or "links", which may be empty')
    refuse_halves(data["text"], f"{where}: the text")
    try:
        return _mentions_document(data) if "mentions" in data else _own_document(data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _own_document(data: dict[str, Any]) -> Document:
    try:
        document = Document.from_dict(data)
    except TypeError as error:
        raise InputError(f"not a document written by wellread: {error}") from error
    for link in document.links:
        checked_span(link.start, link.end, document.text)
    return document


def _mentions_document(data: dict[str, Any]) -> Document:
    """Build links from `mentions`; all other fields of the line are kept in `meta`."""
    text, name, mentions = data["text"], data.get("id"), data["mentions"]
    links = []
    for mention in mentions if isinstance(mentions, list) else [mentions]:
        if not isinstance(mention, list) or not 3 <= len(mention) <= 4:
            raise InputError(f"expected a mention as [start, end, id or null, title], got {json.dumps(mention)}")
        entity, title = mention[2], mention[3] if len(mention) == 4 else None
        if not isinstance(entity, str | None) or not isinstance(title, str | None):
            raise InputError(f"expected a mention as [start, end, id or null, title], got {json.dumps(mention)}")
        start, end = checked_span(mention[0], mention[1], text)
        links.append(Link(start, end, text[start:end], entity, title))
    meta = {key: value for key, value in data.items() if key not in ("id", "text", "mentions")}
    return Document(text, by_place(links), None if name is None else str(name), meta)


# AIDA-CoNLL-YAGO


@dataclass(slots=True)
class _Row:
    number: int
    columns: list[str]
    start: int = 0
    end: int = 0


def _read_aida(path: str | Path, ids: Ids) -> Iterator[Draft]:
    """Join tokens by a space and sentences by a newline; a mention may continue in the next sentence."""
    name: str | None = None
    rows: list[_Row] | None = None
    for number, line in _decoded_lines(path):
        if line.startswith("-DOCSTART-"):
            if rows is not None:
                yield partial(_aida_document, path, name, rows, ids)
            name = line.partition("(")[2].rpartition(")")[0].strip() or None
            rows = []
        elif rows is not None:
            rows.append(_Row(number, line.split("\t")))
        elif line.strip():
            raise InputError(
                f"{path_name(path)}, line {number}: expected -DOCSTART- before the first token; is this AIDA?"
            )
    if rows is not None:
        yield partial(_aida_document, path, name, rows, ids)


def _aida_document(path: str | Path, name: str | None, rows: list[_Row], ids: Ids) -> Document:
    parts: list[str] = []
    begun: list[_Row] = []
    length, gap, inside = 0, "", False
    for row in rows:
        token = row.columns[0].strip()
        if not token:
            gap = "\n" if parts else ""
            continue
        row.start, row.end = length + len(gap), length + len(gap) + len(token)
        parts += [gap, token]
        length, gap = row.end, " "
        tag = (row.columns[1] if len(row.columns) > 1 else "") or "O"
        if tag == "B" and len(row.columns) > 3:
            begun.append(row)
        elif tag == "I" and inside:
            begun[-1].end = row.end
        elif tag != "O":
            raise InputError(
                f"{path_name(path)}, line {row.number}: expected a bare token, or token, B, mention and entity between "
                f"tabs, or I after a B; got {row.columns!r}"
            )
        inside = tag != "O"
    text = "".join(parts)
    links = (Link(row.start, row.end, text[row.start : row.end], *_aida_entity(path, row, ids)) for row in begun)
    return Document(text, tuple(links), name)


def _aida_entity(path: str | Path, row: _Row, ids: Ids) -> tuple[str | None, str | None]:
    """Return entity and title; a mention without a Freebase mid is NIL there, another missing column is an error."""
    yago = row.columns[3]
    if yago == _NIL:
        return None, None
    title = _from_yago(yago).replace("_", " ")
    url, number, mid = (*row.columns[4:7], "", "", "")[:3]
    entity = {"title": title_in(_from_yago(url)) or title, "url": _from_yago(url), "number": number, "mid": mid}[ids]
    if not entity and ids != "mid":
        raise InputError(
            f"{path_name(path)}, line {row.number}: no {ids} column for {yago!r}; name entities by ids='title'"
        )
    return entity or None, title


def _from_yago(name: str) -> str:
    r"""Undo YAGO's escapes of UTF-16 units: Beyonc\u00e9_Knowles -> Beyoncé_Knowles."""
    units = _YAGO_ESCAPE.sub(lambda match: chr(int(match[1], 16)), name)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _to_yago(name: str) -> str:
    units = name.replace(" ", "_").encode("utf-16-le", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "little") for at in range(0, len(units), 2))
    return "".join(chr(code) if 0x20 < code < 0x7F and code != 0x5C else f"\\u{code:04x}" for code in codes)


def to_conll(document: Document) -> str:
    r"""Write the columns of AIDA-CoNLL-YAGO: one token (`\w+` or one sign) per line, a blank line for a newline.

    The fourth column is the title as YAGO would write it, the fifth the entity: an http IRI as it is, another id
    percent-encoded. So `read_linked(…, "aida")` returns the same links (`ids="url"` for IRIs). A token has at most one
    link: of links that share a token the longest is written, then the first.
    """
    tokens = list(_WORD.finditer(document.text))
    taken: dict[int, tuple[str, Link]] = {}
    for link in sorted(document.links, key=lambda link: (link.start - link.end, link.start)):
        places = _tokens_of(link, tokens)
        if not any(place in taken for place in places):
            taken.update({place: ("I" if position else "B", link) for position, place in enumerate(places)})
    lines = [f"-DOCSTART- ({_one_line(document.id or '')})"]
    end = None
    for place, token in enumerate(tokens):
        if end is not None and "\n" in document.text[end : token.start()]:
            lines.append("")
        end = token.end()
        tag, link_here = taken.get(place, ("O", None))
        lines.append(token[0] if link_here is None else "\t".join((token[0], tag, *_aida_columns(link_here))))
    return "\n".join(lines) + "\n\n"


def _tokens_of(link: Link, tokens: list[re.Match[str]]) -> range:
    """Return the indices of the tokens that a link overlaps."""
    first = bisect_right(tokens, link.start, key=lambda token: token.end())
    return range(first, bisect_left(tokens, link.end, key=lambda token: token.start()))


def _aida_columns(link: Link) -> tuple[str, ...]:
    mention = _one_line(link.text)
    if link.entity is None:
        return mention, _NIL
    if re.fullmatch(r"https?://\S+", link.entity):
        reference = link.entity
    else:
        reference = quote(link.entity, safe=":,()'!").replace("_", "%5F").replace("%20", "_")
    return mention, _to_yago(link.title or link.entity), reference


def _one_line(text: str) -> str:
    return " ".join(text.split())


# brat


def to_brat(document: Document) -> str:
    """Return the lines of an `.ann` file for a `.txt` of the document's text: `T` for mentions, `N` for their entities.

    A mention over several lines is split at the newlines (brat's discontinuous spans); NIL has no `N` line. The
    knowledge base before the colon is the link's `kb`, or "kb".
    """
    lines: list[str] = []
    mentions, entities = count(1), count(1)
    for link in document.links:
        # A tab would end brat's column, so it splits a mention as a newline does.
        pieces = [match.span() for match in re.finditer(r"[^\r\n\t]+", document.text[link.start : link.end])]
        if not pieces:
            continue
        number = next(mentions)
        spans = ";".join(f"{link.start + start} {link.start + end}" for start, end in pieces)
        shown = " ".join(link.text[start:end] for start, end in pieces)
        lines.append(f"T{number}\tEntity {spans}\t{shown}")
        if link.entity is not None:
            kb = re.sub(r"[\s:]+", "_", link.kb or "kb")
            entity = re.sub(r"\s", lambda match: quote(match[0]), link.entity)
            lines.append(f"N{next(entities)}\tReference T{number} {kb}:{entity}\t{_one_line(link.title or shown)}")
    return "".join(f"{line}\n" for line in lines)
