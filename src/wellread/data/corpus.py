"""Corpora for counting: text files, JSONL, folders of them, or descriptions of a knowledge base, in shards.

A document is a line of a text file (or a paragraph, or the whole file), the chosen fields of a JSONL line, or the
description of an entity. A shard is some megabytes of documents, so that any process that sees the files can read it,
and a killed count resumes with the missing shards. Plain files are split where a document ends. A compressed file is
one shard, since it is read from its beginning; it comes in blocks, and a block that was counted already is unpacked
again, but not processed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson

from wellread.errors import InputError, UsageError
from wellread.io.files import BROKEN, decode, is_packed, open_bytes

if TYPE_CHECKING:
    from wellread.kb.store import KnowledgeBase

Unit = Literal["line", "paragraph", "file"]
Kind = Literal["text", "jsonl", "kb"]

SHARD_BYTES = 8 << 20
BLOCK_BYTES = 4 * SHARD_BYTES
"""Bytes of an archive's text per block."""
_ENTITIES = 1 << 16
"""Entities per shard of a knowledge base."""
_T = TypeVar("_T")
_GROWTH = 4
"""Approximate ratio of the size of a text to that of its archive."""

_JSONL = (".jsonl", ".ndjson", ".json")
_TEXT = (".txt", ".text", ".md", ".rst", "", *_JSONL)
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_BLANK_LINES = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A range of bytes of a file, or of entities of a knowledge base; an end of -1 is a whole archive."""

    path: str
    begin: int
    end: int
    kind: Kind


@dataclass(frozen=True)
class Corpus:
    """Documents to count, in shards, and how they become events."""

    sources: tuple[str, ...]
    shards: tuple[tuple[FilePart, ...], ...]
    state: str
    """Changes when a file does."""
    unit: Unit = "line"
    fields: tuple[str, ...] = ("text",)
    titles: bool = False
    """For entities: whether the title precedes the description."""
    window: int = 0
    """Words per window; 0: a document is one event."""
    step: int = 0
    """Words from one window to the next."""

    @classmethod
    def of_files(
        cls,
        paths: Sequence[str | Path],
        *,
        unit: Unit = "line",
        fields: Sequence[str] = ("text",),
        window: int = 0,
        step: int = 0,
        shard_bytes: int = SHARD_BYTES,
    ) -> Corpus:
        """Use the documents of files and folders; .gz, .bz2, .xz and .zst are decompressed."""
        if unit not in ("line", "paragraph", "file"):
            raise UsageError(f"unit={unit!r} is not known; a document is a line, a paragraph or a file")
        window, step = _windows(window, step)
        files = [file for path in paths for file in _files(Path(path))]
        state = hashlib.blake2b(digest_size=8)
        file_parts: list[FilePart] = []
        for file in files:
            info = file.stat()
            state.update(f"{file.resolve()}\0{info.st_size}\0{info.st_mtime_ns}\0".encode("utf-8", "surrogatepass"))
            file_parts += split_file(file, info.st_size, unit, shard_bytes)
        sources = tuple(str(path) for path in paths)
        shards = group(file_parts, _weight, shard_bytes)
        return cls(sources, shards, state.hexdigest(), unit, tuple(fields), False, window, step)

    @classmethod
    def of_kb(cls, kb: str | Path | KnowledgeBase, *, titles: bool = False, window: int = 0, step: int = 0) -> Corpus:
        """Use the descriptions of a knowledge base, with titles if wanted; each is a document."""
        from wellread.kb.packaged import open_kb  # here: workers that count files start without it
        from wellread.kb.store import KnowledgeBase

        window, step = _windows(window, step)
        opened = kb if isinstance(kb, KnowledgeBase) else open_kb(kb)
        path = str(opened.path.resolve())
        last = int(opened.connection.execute("SELECT coalesce(max(num), -1) FROM entities").fetchone()[0])
        state = f"{opened.metadata.get('uid', '')} {opened.revision}"
        if opened is not kb:
            opened.close()
        shards = tuple(
            (FilePart(path, begin, min(begin + _ENTITIES, last + 1), "kb"),) for begin in range(0, last + 1, _ENTITIES)
        )
        return cls((str(opened.path),), shards, state, titles=titles, window=window, step=step)

    @property
    def fingerprint(self) -> str:
        """Return a digest of files, contents and settings; other spellings of the same paths do not change it."""
        text = replace(self, sources=()).to_json()
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def paths(self) -> set[str]:
        """Resolved paths of the files that are read."""
        return {file_part.path for shard in self.shards for file_part in shard}

    @property
    def sizes(self) -> list[int]:
        """Bytes (or entities) of each shard."""
        return [sum(_weight(file_part) for file_part in shard) for shard in self.shards]

    def to_json(self) -> str:
        """Serialise for another process."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Corpus:
        """Build from the result of `to_json`."""
        fields_by_name: dict[str, Any] = json.loads(text)
        shards = tuple(tuple(FilePart(**file_part) for file_part in shard) for shard in fields_by_name.pop("shards"))
        sources, fields = tuple(fields_by_name.pop("sources")), tuple(fields_by_name.pop("fields"))
        return cls(sources=sources, shards=shards, fields=fields, **fields_by_name)

    def documents(self, shard: int) -> Iterator[str]:
        """Yield the texts of one shard."""
        return chain.from_iterable(self.blocks(shard))

    def blocks(self, shard: int) -> Iterator[Iterator[str]]:
        """Yield the texts of one shard in blocks, always the same ones; skipping a block costs little."""
        block: list[Callable[[], Iterator[str]]] = []
        size = 0
        for length, read in self._blocks(shard):
            block.append(read)
            size += length
            if size >= BLOCK_BYTES:
                yield _read_all(block)
                block, size = [], 0
        yield _read_all(block)

    def _blocks(self, shard: int) -> Iterator[tuple[int, Callable[[], Iterator[str]]]]:
        """Yield the size of each block in bytes, and a function that reads its texts."""
        for file_part in self.shards[shard]:
            if file_part.kind == "kb":
                yield 0, partial(_described, file_part, self.titles)
                continue
            for data, begin in blocks_of(file_part, "line" if file_part.kind == "jsonl" else self.unit):
                yield len(data), partial(self._texts, file_part, data, begin)

    def _texts(self, file_part: FilePart, data: bytes, begin: int) -> Iterator[str]:
        if file_part.kind == "jsonl":
            yield from _fields(data, begin, file_part.path, self.fields)
            return
        text = decode(data, f"{file_part.path} (from byte {begin:,} on)" if begin else file_part.path)
        if self.unit == "line":
            yield from text.split("\n")
        elif self.unit == "paragraph":
            yield from _BLANK_LINES.split(text)
        else:
            yield text


def _read_all(block: Sequence[Callable[[], Iterator[str]]]) -> Iterator[str]:
    for read in block:
        yield from read()


def _windows(window: int, step: int) -> tuple[int, int]:
    if window < 0 or step < 0 or window == 1:
        raise UsageError(f"a window of {window} words every {step} makes no pairs; give two words or more")
    if step > window:
        raise UsageError(
            f"windows of {window} words every {step} would leave words out; give a step of {window} or less"
        )
    return window, (step or max(1, window // 2)) if window else 0


def _weight(file_part: FilePart) -> int:
    return os.path.getsize(file_part.path) * _GROWTH if file_part.end < 0 else file_part.end - file_part.begin


def _files(path: Path) -> list[Path]:
    if str(path) == "-":
        raise UsageError("standard input cannot be split into shards; write it to a file first and give that")
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"there is no {path}; give text files, JSONL files or folders of them")
    found = [
        Path(folder, name)
        for folder, folders, names in os.walk(path)
        for name in names
        if not name.startswith(".")
        and suffix_of(Path(name)) in _TEXT
        and not any(part.startswith(".") for part in Path(folder).relative_to(path).parts)
    ]
    if not found:
        raise InputError(
            f"there is no text in {path} (*.txt, *.md, *.jsonl, compressed or not); give the files by name"
        )
    return sorted(found)


def suffix_of(path: Path) -> str:
    """Return the suffix of a file without that of its compression: "a.jsonl.gz" -> ".jsonl"."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _PACKED else suffix


def split_file(path: Path, size: int, unit: Unit, shard_bytes: int) -> Iterator[FilePart]:
    """Yield the parts of a file, each ending where a document does."""
    packed = is_packed(path)
    with open_bytes(path) as unpacked, open(path, "rb") as file:
        opening = _peek(unpacked, path)
        kind: Kind = "jsonl" if suffix_of(path) in _JSONL or opening.startswith(b"{") else "text"
        where = str(path.resolve())
        if packed:
            yield FilePart(where, 0, -1, kind)
            return
        begin = 0
        while begin < size:
            end = begin + shard_bytes
            if end >= size or (kind == "text" and unit == "file"):
                end = size
            else:
                file.seek(end)
                file.readline()  # the rest of a line does not show whether the line is blank
                while kind == "text" and unit == "paragraph" and file.readline().strip():
                    pass
                end = file.tell()
            yield FilePart(where, begin, end, kind)
            begin = end


def _peek(file: io.BufferedReader, path: Path) -> bytes:
    try:
        return file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")
    except BROKEN as error:
        raise InputError(f"{path} is truncated or damaged: {error}; fetch or copy it again") from error


def group(file_parts: Iterable[_T], weigh: Callable[[_T], int], shard_bytes: int) -> tuple[tuple[_T, ...], ...]:
    """Group small parts in order, so that a shard is large enough to be worth a file."""
    shards: list[tuple[_T, ...]] = []
    open_file_parts: list[_T] = []
    weight = 0
    for file_part in file_parts:
        own = weigh(file_part)
        if open_file_parts and weight + own > shard_bytes * 1.5:
            shards.append(tuple(open_file_parts))
            open_file_parts, weight = [], 0
        open_file_parts.append(file_part)
        weight += own
    return (*shards, tuple(open_file_parts)) if open_file_parts else tuple(shards)


def blocks_of(file_part: FilePart, unit: Unit) -> Iterator[tuple[bytes, int]]:
    """Yield bytes that begin and end with a document, and their offset (in the unpacked file)."""
    try:
        if file_part.end >= 0:
            with open(file_part.path, "rb") as file:
                file.seek(file_part.begin)
                yield file.read(file_part.end - file_part.begin), file_part.begin
            return
        with open_bytes(file_part.path) as archive:
            begin = 0
            while data := archive.read(-1 if unit == "file" else SHARD_BYTES):
                if unit != "file":
                    data += archive.readline()
                while unit == "paragraph" and (line := archive.readline()):
                    data += line
                    if not line.strip():
                        break
                yield data, begin
                begin += len(data)
    except BROKEN as error:
        raise InputError(f"{file_part.path} is truncated or damaged: {error}; fetch or copy it again") from error


def _fields(data: bytes, begin: int, path: str, fields: Sequence[str]) -> Iterator[str]:
    for line in data.split(b"\n"):
        where = begin
        begin += len(line) + 1
        if not line.strip():
            continue
        try:
            row = orjson.loads(line.removeprefix(b"\xef\xbb\xbf") if where == 0 else line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}, byte {where:,}: no JSON ({error}); mend that line or leave it out") from None
        texts = [row[field] for field in fields if field in row] if isinstance(row, dict) else None
        if not texts:
            has = f"it has {', '.join(map(str, row))}" if isinstance(row, dict) else "it is no object"
            raise InputError(
                f"{path}, byte {where:,}: a line without {' or '.join(fields)} ({has}); name its text with --field"
            )
        if not all(text is None or isinstance(text, str) for text in texts):
            raise InputError(f"{path}, byte {where:,}: {' or '.join(fields)} is no text; name another with --field")
        yield "\n".join(text for text in texts if text)


def _described(file_part: FilePart, titles: bool) -> Iterator[str]:
    from wellread.kb.store import KnowledgeBase

    with KnowledgeBase.open(file_part.path) as kb:
        rows = kb.connection.execute(
            "SELECT title, description FROM entities WHERE num >= ? AND num < ? ORDER BY num",
            (file_part.begin, file_part.end),
        )
        for title, description in rows:
            yield f"{title}\n{description}" if titles else description
