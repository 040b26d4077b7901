"""Other ids of entities: former ids, notations, and ids in other vocabularies (cross-references).

A KB of an older wellread has no such table; then no entity has another id.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from wellread.kb.records import XREF, OtherId


def resolve_id(connection: sqlite3.Connection, id: str, *, xrefs: bool = True) -> str | None:
    """Return the id of the entity that has this one as another id; None if there is none, or more than one."""
    if not _has_table(connection):
        return None
    rows = connection.execute(
        "SELECT e.id, o.kind FROM other_ids o JOIN entities e ON e.num = o.entity WHERE o.id = ?", (id,)
    ).fetchall()
    former = [entity for entity, kind in rows if kind != XREF]
    found = former or ([entity for entity, _ in rows] if xrefs else [])
    return str(found[0]) if len(found) == 1 else None


def read_other_ids(connection: sqlite3.Connection, entity: str | None = None) -> Iterator[OtherId]:
    """Yield the other ids of an entity, or of all."""
    if _has_table(connection):
        query = "SELECT o.id, e.id, o.kind FROM other_ids o JOIN entities e ON e.num = o.entity"
        only = "WHERE e.id = ?1" if entity is not None else "WHERE ?1 IS NULL"
        yield from (
            OtherId(*row) for row in connection.execute(f"{query} {only} ORDER BY e.num, o.kind, o.id", (entity,))
        )


def place_other_ids(connection: sqlite3.Connection) -> int:
    """Join staged ids with their entities; return the number of those whose entity is not there."""
    connection.execute(
        "INSERT OR IGNORE INTO other_ids SELECT s.id, e.num, s.kind FROM staged_other_ids s "
        "JOIN entities e ON e.id = s.entity WHERE s.id <> s.entity"
    )
    query = "SELECT count(*) FROM staged_other_ids WHERE entity NOT IN (SELECT id FROM entities)"
    return int(connection.execute(query).fetchone()[0])


def _has_table(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'other_ids'").fetchone() is not None
