"""Tables of a knowledge base file, and opening of such files.

One SQLite file in WAL mode, so that processes may read while another writes. `PRAGMA application_id` marks a file as
ours and `PRAGMA user_version` is its schema version. Aliases and facts are clustered by entity; `names` has one row
per name (`lookup.py`).
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import orjson

from wellread.errors import InputError, KnowledgeBaseError, StorageError

APPLICATION = int.from_bytes(b"WELL", "big")
SCHEMA = 1

_MAPPED = 1 << 30
"""Bytes of the file that SQLite may map instead of copying: halves the cost of a look-up in a large KB."""

_PATIENCE = 10.0
"""Seconds to wait for another process's change to end."""

TABLES = """
CREATE TABLE metadata (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entities (
  num INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, kind TEXT NOT NULL, popularity REAL NOT NULL,
  description TEXT NOT NULL);
CREATE TABLE aliases (
  entity INTEGER NOT NULL REFERENCES entities, name TEXT NOT NULL, key INTEGER NOT NULL, count REAL NOT NULL,
  PRIMARY KEY (entity, name)) WITHOUT ROWID;
CREATE TABLE names (key INTEGER PRIMARY KEY, aliases TEXT NOT NULL);
CREATE TABLE relations (num INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE facts (
  subject INTEGER NOT NULL REFERENCES entities, relation INTEGER NOT NULL REFERENCES relations,
  object INTEGER NOT NULL REFERENCES entities, PRIMARY KEY (subject, relation, object)) WITHOUT ROWID;
CREATE TABLE other_ids (
  id TEXT NOT NULL, entity INTEGER NOT NULL REFERENCES entities ON DELETE CASCADE, kind TEXT NOT NULL,
  PRIMARY KEY (id, entity)) WITHOUT ROWID;
CREATE INDEX other_ids_by_entity ON other_ids (entity);
CREATE TABLE forms (
  form TEXT NOT NULL, word TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (form, word, kind)) WITHOUT ROWID;
CREATE TABLE changed_entities (id TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE changed_names (key INTEGER PRIMARY KEY, revision INTEGER NOT NULL);
CREATE VIRTUAL TABLE entity_text USING fts5(
  names, description, content='', tokenize='unicode61 remove_diacritics 2', prefix='2 3');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(entity_text, 'row');
"""

INDEXES = """
CREATE INDEX IF NOT EXISTS facts_by_object ON facts (object);
CREATE INDEX IF NOT EXISTS changed_entities_by_revision ON changed_entities (revision);
CREATE INDEX IF NOT EXISTS changed_names_by_revision ON changed_names (revision);
"""
"""Created after a bulk build, when the rows are sorted once instead of inserted one by one."""


def create(path: Path) -> sqlite3.Connection:
    """Create a file with empty tables, without the indexes."""
    with sqlite_errors(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("BEGIN")
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.executemany(
                "INSERT INTO metadata VALUES (?, ?)", [("uid", uuid.uuid4().hex), ("revision", "0"), ("language", "en")]
            )
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


def connect(path: Path, *, writable: bool, mapped: bool = True) -> sqlite3.Connection:
    """Open an existing knowledge base file; anything else is an error that names the fix.

    Without `mapped`, a file can be read completely without its pages counting as memory of the process.
    """
    if not path.exists():
        raise KnowledgeBaseError(
            f"there is no knowledge base at {path}; build one with: wellread kb build SOURCE --to {path}"
        )
    if path.is_dir():
        raise KnowledgeBaseError(f"{path} is a folder; a knowledge base is one file, see: wellread kb build --help")
    if writable and not os.access(path, os.W_OK):
        raise StorageError(f"{path} cannot be written; change its permissions or copy it elsewhere")
    with sqlite_errors(path):
        try:
            return _open(path, "rw" if writable else "ro", mapped)
        except sqlite3.OperationalError:
            # WAL needs a folder that can be written for its index; in others the file is opened as immutable.
            log = Path(f"{path}-wal")
            if writable or os.access(path.parent, os.W_OK) or (log.exists() and log.stat().st_size):
                raise
            return _open(path, "ro&immutable=1", mapped)


def _open(path: Path, mode: str, mapped: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, timeout=_PATIENCE, uri=True, isolation_level=None, check_same_thread=False)
    try:
        _check_ours(path, connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA mmap_size = {_MAPPED if mapped else 0}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_ours(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise KnowledgeBaseError(
            f"{path} is an SQLite file but not a knowledge base; build one with: wellread kb build"
        )
    if schema > SCHEMA:
        raise KnowledgeBaseError(
            f"{path} was written by a newer wellread (schema {schema}, this one reads up to {SCHEMA}); "
            "upgrade wellread: pull its source and install it again"
        )


def damaged(path: Path, reason: object) -> KnowledgeBaseError:
    """Return the error for a file with content that wellread never writes."""
    if not _is_sqlite(path):
        return KnowledgeBaseError(f"{path} is not a knowledge base; {_way_to_build(path)}")
    return KnowledgeBaseError(
        f"{path} is not a knowledge base or is damaged ({reason}); check the path, or build it again from its source "
        "with: wellread kb build SOURCE --replace"
    )


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return True  # the reason says more


_SOURCES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
"""Sources of `wellread kb build` by the suffix of their files."""


def _way_to_build(path: Path) -> str:
    """Return the command that builds a KB from a file, or advice to check the path."""
    source = next((_SOURCES[suffix] for suffix in path.suffixes if suffix in _SOURCES), None)
    if source is None:
        return "check the path, or build one with: wellread kb build SOURCE PATH --to FILE.kb"
    target = path.with_name(f"{path.name.partition('.')[0]}.kb")
    return f"build one from it with: {shlex.join(['wellread', 'kb', 'build', source, str(path), '--to', str(target)])}"


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, each with its fix."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(f"half a surrogate pair in a query of {path.name}; write it as UTF-8") from error
    except sqlite3.Error as error:
        text = str(error)
        if "disk is full" in text or "disk I/O error" in text:
            raise StorageError(
                f"the disk is full (or fails): {path} keeps its last state; free some space and run it again"
            ) from error
        if "readonly" in text or "unable to open" in text:
            raise StorageError(
                f"cannot open or write {path} ({text}); change the permissions of it and its folder"
            ) from error
        if "locked" in text or "busy" in text:
            raise KnowledgeBaseError(
                f"{path} is being changed by another process; try again when it is done"
            ) from error
        if type(error) is sqlite3.DatabaseError or "malformed" in text:  # not a subclass: corrupt, or not a database
            raise damaged(path, text) from error
        if "no such table" in text:
            raise KnowledgeBaseError(f"{path} is an unfinished knowledge base ({text}); build it again") from error
        # Statements are fixed: if one does not fit the tables, or a text is not UTF-8, the file was damaged.
        if isinstance(error, sqlite3.OperationalError) and _code(error) == sqlite3.SQLITE_ERROR:
            raise damaged(path, text) from error
        raise
    except (UnicodeDecodeError, orjson.JSONDecodeError) as error:  # of SQLite's message, or of a row of names
        raise damaged(path, error) from error


def is_busy(error: BaseException | None) -> bool:
    """Return whether another process holds the file's lock."""
    return isinstance(error, sqlite3.OperationalError) and _code(error) == sqlite3.SQLITE_BUSY


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's code; that of Python's own errors, which have none, is the general one."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF
