"""A transaction on a knowledge base: add, update and remove entities, aliases and facts.

Made by `KnowledgeBase.change()`, which commits it or rolls it back. Changed names and entities are recorded under the
new revision, so that matcher and index need to update only these.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from wellread.errors import KnowledgeBaseError, UnknownEntityError
from wellread.kb.lookup import add_names, drop_names
from wellread.kb.records import NUL, Alias, Entity, Record, texts_of
from wellread.text import words as names

MOST = 1e300
"""Maximum count or popularity, so that sums stay finite and priors sum to 1."""


class Change:
    """Open transaction on a KB; others see nothing of it before the block ends."""

    def __init__(self, connection: sqlite3.Connection, revision: int) -> None:
        self._connection = connection
        self._revision = revision
        self._waiting: dict[int, tuple[tuple[str, str], ...]] = {}
        """Facts by the number of their subject; their objects may come later in the change."""
        self.over = False

    def add(self, *entities: Entity) -> None:
        """Add new entities; an existing id is an error."""
        self._refuse_late()
        for entity in entities:
            _refuse_faulty(entity)
            row = (entity.id, entity.title, entity.description, entity.kind, entity.popularity)
            try:
                cursor = self._connection.execute(
                    "INSERT INTO entities (id, title, description, kind, popularity) VALUES (?, ?, ?, ?, ?)", row
                )
            except sqlite3.IntegrityError as error:
                if "UNIQUE" not in str(error):
                    raise
                raise KnowledgeBaseError(
                    f"there is an entity {entity.id!r} already; use update (kb add: --update), or another id"
                ) from None
            assert cursor.lastrowid is not None
            self._fill(cursor.lastrowid, entity)

    def update(self, *entities: Entity) -> None:
        """Replace title, description, kind, popularity, aliases and outgoing facts of existing entities."""
        self._refuse_late()
        for entity in entities:
            _refuse_faulty(entity)
            num = self._num(entity.id)
            self._empty(num)
            self._connection.execute("DELETE FROM facts WHERE subject = ?", (num,))
            self._connection.execute(
                "UPDATE entities SET title = ?, description = ?, kind = ?, popularity = ? WHERE num = ?",
                (entity.title, entity.description, entity.kind, entity.popularity, num),
            )
            self._fill(num, entity)

    def remove(self, *ids: str) -> None:
        """Remove entities with all their aliases and facts."""
        self._refuse_late()
        for id in ids:
            num = self._num(id)
            self._empty(num)
            self._connection.execute("DELETE FROM facts WHERE subject = ? OR object = ?", (num, num))
            self._connection.execute("DELETE FROM entities WHERE num = ?", (num,))
            self._note_entity(id)

    def set_metadata(self, **values: str) -> None:
        """Set metadata of the KB (`source`, `licence`, …)."""
        self._refuse_late()
        for name, value in values.items():
            if name in ("revision", "uid"):
                raise KnowledgeBaseError(f"metadata {name!r} is kept by wellread and cannot be set")
            self._connection.execute("INSERT OR REPLACE INTO metadata VALUES (?, ?)", (name, value))

    def finish(self) -> None:
        """Write the facts that waited for their objects, and raise the revision."""
        for subject, facts in self._waiting.items():
            for relation, id in facts:
                object = self._num(id)
                self._connection.execute("INSERT OR IGNORE INTO relations (name) VALUES (?)", (relation,))
                self._connection.execute(
                    "INSERT OR IGNORE INTO facts SELECT ?, num, ? FROM relations WHERE name = ?",
                    (subject, object, relation),
                )
        self._connection.execute("UPDATE metadata SET value = ? WHERE key = 'revision'", (str(self._revision),))

    def _refuse_late(self) -> None:
        if self.over:
            raise KnowledgeBaseError("this change is over; begin another with kb.change()")

    def _num(self, id: str) -> int:
        row = self._connection.execute("SELECT num FROM entities WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise UnknownEntityError(f"there is no entity {id!r}; check the id, or add it first or in the same change")
        return int(row[0])

    def _fill(self, num: int, entity: Entity) -> None:
        aliases = {entity.title: 1.0, **entity.aliases}
        rows = [(num, name, names.as_signed(names.key(name)), count) for name, count in sorted(aliases.items())]
        rows = [row for row in rows if row[2]]
        self._connection.executemany("INSERT INTO aliases VALUES (?, ?, ?, ?)", rows)
        known = (entity.id, entity.title, float(entity.popularity), entity.kind)
        add_names(self._connection, [(key, (name, float(count), *known)) for _, name, key, count in rows])
        text = joined_names(row[1] for row in rows)
        self._connection.execute(
            "INSERT INTO entity_text (rowid, names, description) VALUES (?, ?, ?)", (num, text, entity.description)
        )
        self._note_names([row[2] for row in rows])
        self._note_entity(entity.id)
        self._waiting[num] = tuple(entity.facts)

    def _empty(self, num: int) -> None:
        rows = self._connection.execute(
            "SELECT name, key FROM aliases WHERE entity = ? ORDER BY name", (num,)
        ).fetchall()
        id, description = self._connection.execute(
            "SELECT id, description FROM entities WHERE num = ?", (num,)
        ).fetchone()
        # A contentless index needs the old values to delete a row.
        self._connection.execute(
            "INSERT INTO entity_text (entity_text, rowid, names, description) VALUES ('delete', ?, ?, ?)",
            (num, joined_names(row[0] for row in rows), description),
        )
        self._connection.execute("DELETE FROM aliases WHERE entity = ?", (num,))
        drop_names(self._connection, id, (row[1] for row in rows))
        self._waiting.pop(num, None)
        self._note_names([row[1] for row in rows])

    def _note_names(self, keys: list[int]) -> None:
        rows = [(key, self._revision) for key in keys]
        self._connection.executemany("INSERT OR REPLACE INTO changed_names VALUES (?, ?)", rows)

    def _note_entity(self, id: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO changed_entities VALUES (?, ?)", (id, self._revision))


def fault(record: Record) -> str | None:
    """Return why a KB cannot store a record ("has no id"), or None if it can."""
    numbers: tuple[float, ...] = ()
    if isinstance(record, Entity):
        if not record.id:
            return "has no id"
        if not any(map(names.key, (record.title, *record.aliases))):
            return "has no name with a letter or sign in it"
        numbers = (record.popularity, *record.aliases.values())
    elif isinstance(record, Alias):
        numbers = (record.count,)
    if not all(0 <= number <= MOST for number in numbers):
        return f"has a count or popularity that is negative or not a number (or above {MOST:.0e})"
    text = "".join(texts_of(record))
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has half a surrogate pair in its text"
    return NUL if "\0" in text else None


def _refuse_faulty(entity: Entity) -> None:
    if reason := fault(entity):
        raise KnowledgeBaseError(f"the entity {entity.id!r} ({entity.title!r}) {reason}; mend it and try again")


def joined_names(aliases: Iterable[str]) -> str:
    """Return the names of an entity for the full-text index, separated by a word that no query has."""
    return "\n\ue000\n".join(aliases)
