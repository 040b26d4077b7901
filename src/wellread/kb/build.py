"""Bulk build of a knowledge base from any source: bounded memory, atomic, resumable.

Records stream into a file beside the target (`NAME.building`). After the last one, SQLite joins aliases, facts and
redirects with their entities, the indexes are made, and the file replaces the target in one step. An existing target is
overwritten inside one transaction, so that its readers keep the old state until the new one is complete; the revision
continues from the old one, under a new uid. A killed build resumes after its last committed batch, when it is started
again with the same source.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from wellread.errors import InputError, KnowledgeBaseError
from wellread.io.files import storage
from wellread.kb import schema
from wellread.kb.changes import fault
from wellread.kb.lookup import fill_names
from wellread.kb.other_ids import place_other_ids
from wellread.kb.records import Alias, Entity, Fact, Form, OtherId, Record, Redirect, Tally
from wellread.text import words as names

OnRepeat = Literal["skip", "merge"]

_BATCH = 20_000
"""Records per transaction; the most that a killed build loses."""

_STAGING = """
CREATE TABLE staged_aliases (id TEXT, name TEXT, count REAL);
CREATE TABLE staged_facts (subject TEXT, relation TEXT, object TEXT);
CREATE TABLE staged_redirects (id TEXT PRIMARY KEY, target TEXT) WITHOUT ROWID;
CREATE TABLE staged_other_ids (id TEXT, entity TEXT, kind TEXT);
"""
_STAGED = ("staged_aliases", "staged_facts", "staged_redirects", "staged_other_ids")


@dataclass(frozen=True, slots=True)
class Origin:
    """Metadata of a build, and the fingerprint by which a build is resumed."""

    source: str
    licence: str = ""
    language: str = "en"
    settings: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Return a string that is equal for the same source and settings, e.g. "wordnet WNDB/ 12345"."""
        return f"{self.source}\n{self.settings}"


def state_of(*paths: Path) -> str:
    """Return a fingerprint of files (path, size, time); every pipe has another."""
    states = []
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            known = file.stat() if file.is_file() else None
            states.append(f"{file.absolute()} {known.st_size} {known.st_mtime_ns}" if known else uuid.uuid4().hex)
    return "\n".join(states)


def build(
    records: Callable[[Tally], Iterable[Record]],
    to: str | Path,
    *,
    origin: Origin,
    on_repeat: OnRepeat = "skip",
    tally: Tally | None = None,
) -> Tally:
    """Write all records to the knowledge base at `to` and return the tally of what was read and skipped.

    `records` is called with the tally to update; a resumed build skips the records that it has already.
    """
    to = Path(to)
    tally = tally if tally is not None else Tally()
    with storage(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{to}.building.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise KnowledgeBaseError(
                f"another process is building {to}; wait for it, or build to another file"
            ) from None
    try:
        _build(records, to, origin, on_repeat, tally)
    finally:
        with contextlib.suppress(OSError):  # Windows does not delete what is open
            os.unlink(lock.lock_file)
        lock.release()
    return tally


def _build(
    records: Callable[[Tally], Iterable[Record]], to: Path, origin: Origin, on_repeat: OnRepeat, tally: Tally
) -> None:
    if to.exists():
        schema.connect(to, writable=True).close()  # refuses a file that is not a KB before the work, not after
    staging = Path(f"{to}.building")
    with schema.sqlite_errors(staging):
        connection = _resume(staging, origin) or _start(staging, origin)
        try:
            # The reader measures progress; the tally of a resumed build must not count twice.
            done = int(_state(connection, "done") or 0)
            batches = _Loader(connection, on_repeat, tally)
            stream = iter(records(tally))
            for _ in islice(stream, done):
                pass
            while batch := list(islice(stream, _BATCH)):
                done += len(batch)
                batches.load(batch, done)
            _finish(connection, tally)
        except InputError:
            connection.close()
            _delete(staging)  # a corrected source has another fingerprint
            raise
        finally:
            connection.close()
    tally.step = "putting in place"
    with schema.sqlite_errors(to), storage(to):
        _put_in_place(staging, to)
    tally.step = ""


def _start(staging: Path, origin: Origin) -> sqlite3.Connection:
    _delete(staging)
    connection = schema.create(staging)
    _tune(connection)
    connection.execute("BEGIN")
    for statement in _STAGING.split(";"):
        connection.execute(statement)
    described = {
        "source": origin.source,
        "licence": origin.licence,
        "language": origin.language,
        **origin.extra,
        "building": origin.fingerprint(),
    }
    connection.executemany("INSERT OR REPLACE INTO metadata VALUES (?, ?)", described.items())
    connection.execute("COMMIT")
    return connection


def _resume(staging: Path, origin: Origin) -> sqlite3.Connection | None:
    """Open the unfinished build of the same source; None if there is none that can be resumed."""
    if not staging.exists():
        return None
    connection = sqlite3.connect(staging, isolation_level=None, check_same_thread=False)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] == schema.SCHEMA:
            _tune(connection)
            has_tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'staged%'").fetchone()
            if _state(connection, "building") == origin.fingerprint() and has_tables[0] >= len(_STAGED):
                return connection
    except sqlite3.DatabaseError:
        pass  # killed before its tables were created: start again
    connection.close()
    return None


def _delete(path: Path) -> None:
    """Remove an SQLite file with its log and index files."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _tune(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -200000")
    connection.execute("PRAGMA temp_store = FILE")


def _state(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM metadata WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


class _Loader:
    """Writes batches of records, one transaction each."""

    def __init__(self, connection: sqlite3.Connection, on_repeat: OnRepeat, tally: Tally) -> None:
        self._connection = connection
        self._on_repeat = on_repeat
        self._tally = tally

    def load(self, batch: list[Record], done: int) -> None:
        insert = self._connection.executemany
        batch = [record for record in batch if self._is_sound(record)]
        self._connection.execute("BEGIN")
        self._load_entities([record for record in batch if isinstance(record, Entity)])
        insert(
            "INSERT INTO staged_aliases VALUES (?, ?, ?)",
            ((record.entity, record.name, record.count) for record in batch if isinstance(record, Alias)),
        )
        insert(
            "INSERT INTO staged_facts VALUES (?, ?, ?)",
            ((record.subject, record.relation, record.object) for record in batch if isinstance(record, Fact)),
        )
        insert(
            "INSERT OR IGNORE INTO staged_redirects VALUES (?, ?)",
            ((record.id, record.target) for record in batch if isinstance(record, Redirect)),
        )
        insert(
            "INSERT INTO staged_other_ids VALUES (?, ?, ?)",
            ((record.id, record.entity, record.kind) for record in batch if isinstance(record, OtherId)),
        )
        insert(
            "INSERT OR IGNORE INTO forms VALUES (?, ?, ?)",
            ((record.form, record.word, record.kind) for record in batch if isinstance(record, Form)),
        )
        self._connection.execute("INSERT OR REPLACE INTO metadata VALUES ('done', ?)", (str(done),))
        self._connection.execute("COMMIT")

    def _is_sound(self, record: Record) -> bool:
        reason = fault(record)
        if reason:
            self._tally.skip(f"{type(record).__name__.lower()} that {reason}", repr(astuple(record)[:2]))
        return not reason

    def _load_entities(self, entities: list[Entity]) -> None:
        execute = self._connection.execute
        named: list[tuple[int, str, float]] = []
        for entity in entities:
            row = (entity.id, entity.title, entity.description, entity.kind, entity.popularity)
            cursor = execute(
                "INSERT OR IGNORE INTO entities (id, title, description, kind, popularity) VALUES (?, ?, ?, ?, ?)", row
            )
            num = cursor.lastrowid
            if not cursor.rowcount:
                if self._on_repeat == "skip":
                    self._tally.skip("repeated id", entity.id)
                    continue
                num = self._join(entity)
            assert num is not None
            named += ((num, name, count) for name, count in sorted({entity.title: 1.0, **entity.aliases}.items()))
            self._connection.executemany(
                "INSERT INTO staged_facts VALUES (?, ?, ?)", ((entity.id, *fact) for fact in entity.facts)
            )
        keys = names.keys([name for _, name, _ in named]).view("int64").tolist()
        self._connection.executemany(
            "INSERT INTO aliases VALUES (?, ?, ?, ?) "
            "ON CONFLICT (entity, name) DO UPDATE SET count = count + excluded.count",
            ((num, name, key, count) for (num, name, count), key in zip(named, keys, strict=True) if self._named(key)),
        )

    def _named(self, key: int) -> bool:
        if not key:
            self._tally.skip("alias without a letter or sign")
        return key != 0

    def _join(self, entity: Entity) -> int:
        """Keep the first entity of an id, with missing fields and names from a later one."""
        self._connection.execute(
            "UPDATE entities SET description = CASE description WHEN '' THEN ? ELSE description END, "
            "kind = CASE kind WHEN '' THEN ? ELSE kind END, popularity = max(popularity, ?) WHERE id = ?",
            (entity.description, entity.kind, entity.popularity, entity.id),
        )
        return int(self._connection.execute("SELECT num FROM entities WHERE id = ?", (entity.id,)).fetchone()[0])


def _finish(connection: sqlite3.Connection, tally: Tally) -> None:
    """Join staged aliases, facts and redirects, make the indexes, and leave a file that is ready to be opened.

    The first of two transactions empties what it has joined, so that a build killed between them does not join twice.
    """
    execute = connection.execute
    tally.step = "joining names and facts"
    execute("BEGIN")
    execute("CREATE INDEX IF NOT EXISTS staged_by_id ON staged_aliases (id)")
    for _ in range(2):  # a redirect may point to a redirect
        execute(
            "UPDATE staged_redirects SET target = r.target FROM staged_redirects r WHERE r.id = staged_redirects.target"
        )
    joined = (("staged_aliases", "id"), ("staged_facts", "subject"), ("staged_facts", "object"))
    for table, column in (*joined, ("staged_other_ids", "entity")):
        execute(
            f"UPDATE {table} SET {column} = r.target FROM staged_redirects r WHERE r.id = {table}.{column}"  # noqa: S608
        )
    _place_aliases(connection, tally)
    _place_facts(connection, tally)
    if lost := place_other_ids(connection):
        tally.skip("other id of an entity that is not there", count=lost)
    for table in _STAGED:
        execute(f"DELETE FROM {table}")  # noqa: S608
    execute("COMMIT")
    tally.step = "indexing"
    execute("BEGIN")
    for statement in schema.INDEXES.split(";"):
        execute(statement)
    fill_names(connection)
    _place_text(connection)
    for table in _STAGED:
        execute(f"DROP TABLE {table}")
    execute("DELETE FROM metadata WHERE key IN ('building', 'done')")
    execute("UPDATE metadata SET value = '1' WHERE key = 'revision'")
    execute("COMMIT")
    execute("ANALYZE")
    execute("PRAGMA journal_mode = WAL")


def _place_aliases(connection: sqlite3.Connection, tally: Tally) -> None:
    late = connection.execute(
        "SELECT e.num, s.name, sum(s.count) FROM staged_aliases s JOIN entities e ON e.id = s.id "
        "GROUP BY e.num, s.name ORDER BY e.num, s.name"
    )
    any_late = False
    while rows := late.fetchmany(_BATCH):
        any_late = True
        keys = names.keys([name for _, name, _ in rows]).view("int64").tolist()
        connection.executemany(
            "INSERT INTO aliases VALUES (?, ?, ?, ?) "
            "ON CONFLICT (entity, name) DO UPDATE SET count = count + excluded.count",
            ((num, name, key, count) for (num, name, count), key in zip(rows, keys, strict=True) if key),
        )
        if wordless := keys.count(0):
            tally.skip("alias without a letter or sign", count=wordless)
    lost = connection.execute(
        "SELECT count(*) FROM staged_aliases WHERE id NOT IN (SELECT id FROM entities)"
    ).fetchone()[0]
    if lost:
        tally.skip("alias of an entity that is not there", count=lost)
    if any_late:
        connection.execute(
            "UPDATE entities SET popularity = (SELECT coalesce(sum(count), 0) FROM aliases WHERE entity = num) "
            "WHERE popularity = 0"
        )


def _place_facts(connection: sqlite3.Connection, tally: Tally) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO relations (name) SELECT DISTINCT relation FROM staged_facts ORDER BY relation"
    )
    kept = connection.execute(
        "INSERT OR IGNORE INTO facts SELECT a.num, r.num, b.num FROM staged_facts s "
        "JOIN entities a ON a.id = s.subject JOIN relations r ON r.name = s.relation "
        "JOIN entities b ON b.id = s.object ORDER BY 1, 2, 3"
    ).rowcount
    total = connection.execute("SELECT count(*) FROM (SELECT DISTINCT subject, relation, object FROM staged_facts)")
    if lost := total.fetchone()[0] - kept:
        tally.skip("fact with an end that is not there", count=lost)


def _place_text(connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO entity_text (rowid, names, description) SELECT num, "
        "(SELECT group_concat(name, char(10, 57344, 10)) FROM "
        "(SELECT name FROM aliases WHERE entity = num ORDER BY name)), "
        "description FROM entities ORDER BY num"
    )
    connection.execute("INSERT INTO entity_text (entity_text) VALUES ('optimize')")


def _put_in_place(staging: Path, to: Path) -> None:
    """Replace the knowledge base by the finished file; readers of the old one keep their state."""
    if not to.exists():
        with open(staging, "rb+") as file:
            os.fsync(file.fileno())
        _delete(to)  # the log of an older file would be read as changes to the new one
        os.replace(staging, to)
        return
    with contextlib.closing(schema.connect(to, writable=True)) as old:
        revision = old.execute("SELECT value FROM metadata WHERE key = 'revision'").fetchone()
        if revision is None:
            raise schema.damaged(to, "it has no revision")
        with contextlib.closing(sqlite3.connect(staging, isolation_level=None)) as new:
            new.execute("UPDATE metadata SET value = ? WHERE key = 'revision'", (str(int(revision[0]) + 1),))
            new.backup(old)
    _delete(staging)
