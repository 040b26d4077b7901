"""Table of names for look-ups: one row per name, with all aliases and entities of it.

The table `names` repeats `aliases` and `entities` in the order of look-ups: one row by its integer key, instead of one
for each alias and entity (half the time). A build fills it at the end; a change rewrites the rows of the names it
touches; `check` compares it with the tables it repeats.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import cast

import orjson

Named = tuple[str, float, str, str, float, str]
"""An alias and its entity: name, count, id, title, popularity, kind."""


def read_names(connection: sqlite3.Connection, key: int) -> list[Named]:
    """Return every alias with a (signed) key."""
    row = connection.execute("SELECT aliases FROM names WHERE key = ?", (key,)).fetchone()
    return cast(list[Named], orjson.loads(row[0])) if row else []


def fill_names(connection: sqlite3.Connection) -> None:
    """Write the whole table, sorted by SQLite."""
    connection.execute("DELETE FROM names")
    rows = ((key, orjson.dumps(aliases).decode()) for key, aliases in grouped_names(connection))
    connection.executemany("INSERT INTO names VALUES (?, ?)", rows)


def grouped_names(connection: sqlite3.Connection) -> Iterator[tuple[int, list[Named]]]:
    """Yield the rows that the table should have, in the order of their keys."""
    rows = connection.execute(
        "SELECT a.key, a.name, a.count, e.id, e.title, e.popularity, e.kind FROM aliases a JOIN entities e "
        "ON e.num = a.entity ORDER BY a.key, a.entity, a.name"
    )
    for key, group in groupby(rows, key=itemgetter(0)):
        yield key, [row[1:] for row in group]


def add_names(connection: sqlite3.Connection, aliases: Iterable[tuple[int, Named]]) -> None:
    """Add the aliases of one entity, each with its key."""
    for key, group in groupby(sorted(aliases), key=itemgetter(0)):
        _write(connection, key, [*read_names(connection, key), *(alias for _, alias in group)])


def drop_names(connection: sqlite3.Connection, id: str, keys: Iterable[int]) -> None:
    """Remove an entity from the rows of its former keys."""
    for key in set(keys):
        _write(connection, key, [alias for alias in read_names(connection, key) if alias[2] != id])


def _write(connection: sqlite3.Connection, key: int, aliases: list[Named]) -> None:
    if aliases:
        connection.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (key, orjson.dumps(aliases).decode()))
    else:
        connection.execute("DELETE FROM names WHERE key = ?", (key,))
