"""Corrections of links by users, kept in an SQLite file beside a knowledge base, and exported as gold documents.

A correction says which entity a span of a text is linked to, or that it is linked to none. The last one of a span
counts. Export has a document for each text, whose `meta["evaluate"]` lists the corrected spans: nothing is known of the
rest of the text, so that `evaluate linking` and `adapt` judge these spans only.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from wellread.document import Document, Link
from wellread.errors import InputError, KnowledgeBaseError, StorageError
from wellread.kb.schema import is_busy

APPLICATION = int.from_bytes(b"WELC", "big")
SUFFIX = ".corrections"
"""Suffix of the file, after the whole name of the knowledge base."""
_PATIENCE = 10.0
"""Seconds to wait for another process that writes."""
_TABLES = """
CREATE TABLE texts (num INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE corrections (
  num INTEGER PRIMARY KEY, text INTEGER NOT NULL REFERENCES texts, start INTEGER NOT NULL, end INTEGER NOT NULL,
  entity TEXT, title TEXT, predicted TEXT, score REAL, model TEXT, time TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  UNIQUE (text, start, end));
"""


@dataclass(frozen=True, slots=True)
class Correction:
    """The right entity of a span; None: the span is not linked to any entity of the knowledge base."""

    text: str
    start: int
    end: int
    entity: str | None
    title: str | None = None
    predicted: str | None = None
    """Entity that the linker had chosen; None if it had no link there."""
    score: float | None = None
    """Score of that link."""
    model: str | None = None


def corrections_path(kb: str | Path, folder: str | Path | None = None) -> Path:
    """Return the file of a knowledge base's corrections: beside it, or in a folder."""
    path = Path(f"{kb}{SUFFIX}")
    return path if folder is None else Path(folder) / path.name


class Corrections:
    """The corrections in one file; threads and processes may use it at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, correction: Correction) -> int:
        """Keep a correction, in place of an earlier one of the same span, and return its number."""
        one = correction
        if not 0 <= one.start < one.end <= len(one.text):
            raise InputError(f"the span {one.start}:{one.end} is not in its text of {len(one.text):,} characters")
        digest = hashlib.sha256(one.text.encode("utf-8", "surrogatepass")).digest()
        with self._opened(write=True) as connection:
            connection.execute("INSERT OR IGNORE INTO texts (digest, text) VALUES (?, ?)", (digest, one.text))
            (text,) = connection.execute("SELECT num FROM texts WHERE digest = ?", (digest,)).fetchone()
            connection.execute(
                "DELETE FROM corrections WHERE (text, start, end) = (?, ?, ?)", (text, one.start, one.end)
            )
            row = (text, one.start, one.end, one.entity, one.title, one.predicted, one.score, one.model)
            columns = "text, start, end, entity, title, predicted, score, model"
            done = connection.execute(f"INSERT INTO corrections ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
            return int(done.lastrowid or 0)

    def remove(self, number: int) -> bool:
        """Remove a correction by its number; False if there is none."""
        if not self.path.exists():
            return False
        with self._opened(write=True) as connection:
            done = connection.execute("DELETE FROM corrections WHERE num = ?", (number,))
            connection.execute("DELETE FROM texts WHERE num NOT IN (SELECT text FROM corrections)")
            return done.rowcount > 0

    def __len__(self) -> int:
        if not self.path.exists():
            return 0
        with self._opened() as connection:
            return int(connection.execute("SELECT count(*) FROM corrections").fetchone()[0])

    def documents(self) -> Iterator[Document]:
        """Yield a gold document for each corrected text, in the order of the first correction."""
        if not self.path.exists():
            return
        query = (
            "SELECT t.num, t.text, c.start, c.end, c.entity, c.title FROM corrections c JOIN texts t ON t.num = c.text "
            "ORDER BY t.num, c.start, c.end"
        )
        with self._opened() as connection:
            number, text, links = 0, "", list[Link]()
            for row, own, start, end, entity, title in connection.execute(query):
                if row != number and links:
                    yield _gold(number, text, links)
                    links = []
                number, text = row, own
                links.append(Link(start, end, text[start:end], entity, title))
            if links:
                yield _gold(number, text, links)

    @contextmanager
    def _opened(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        path = self.path
        folder = path.parent
        if path.is_symlink():  # it may have come with a KB, and lead to any file of the user
            raise KnowledgeBaseError(
                f"{path} is a symbolic link, which is not followed; remove it, or choose a folder: --corrections"
            )
        if write and not (os.access(path, os.W_OK) if path.exists() else os.access(folder, os.W_OK)):
            raise StorageError(f"{path} cannot be written; give write permission, or another folder with --corrections")
        try:
            uri = f"file:{quote(str(path.absolute()))}?mode={'rwc' if write else 'ro'}"
            with closing(sqlite3.connect(uri, timeout=_PATIENCE, uri=True)) as connection, connection:
                if write:
                    connection.execute("BEGIN IMMEDIATE")
                if write and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in _TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION}")
                elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
                    raise KnowledgeBaseError(f"{path} is not a file of corrections; move it away")
                yield connection
        except sqlite3.Error as error:
            if is_busy(error):
                raise KnowledgeBaseError(f"{path} is being changed by another process; try again") from error
            if "disk is full" in str(error) or "disk I/O" in str(error):
                raise StorageError(
                    f"the disk is full (or fails): {path} keeps its last state; free some space"
                ) from error
            raise KnowledgeBaseError(f"{path} is damaged ({error}); move it away, or restore a copy") from error


def to_json(document: Document) -> dict[str, object]:
    """Return a gold document as a line of the project's JSONL format for gold links (`data.formats`)."""
    mentions = [[link.start, link.end, link.entity, link.title] for link in document.links]
    return {"id": document.id, "text": document.text, "mentions": mentions, **document.meta}


def _gold(number: int, text: str, links: list[Link]) -> Document:
    evaluate = [[link.start, link.end] for link in links]
    return Document(text, tuple(links), f"c{number}", {"evaluate": evaluate})
