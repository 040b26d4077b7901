"""The knowledge base: entities by id, by name and by neighbour.

>>> with KnowledgeBase.open("vital.kb") as kb:
...     kb.candidates("mercury")[0].title
'Mercury (planet)'

Every change raises `revision`; data compiled from a KB (matcher, vector index) stores its revision and is updated by
`changed_names` and `changed_entities`.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from wellread.document import Candidate
from wellread.errors import KnowledgeBaseError, ReplacedError, UnknownEntityError, UsageError
from wellread.kb.lookup import Named, read_names
from wellread.kb.other_ids import read_other_ids, resolve_id
from wellread.kb.records import FIELDS, Entity, Form, OtherId
from wellread.kb.schema import connect, damaged, sqlite_errors
from wellread.text import words as names

if TYPE_CHECKING:
    from wellread.kb.changes import Change

How = Literal["prefix", "text", "fuzzy"]
EntityLike = Entity | Mapping[str, Any]

MOST_CANDIDATES = 30
"""Maximum candidates of a mention, as in KnowBERT."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entity related to another by a fact; `outgoing` if the other is the subject."""

    relation: str
    entity: str
    title: str
    outgoing: bool


class _ThreadState(threading.local):
    """Connection of a thread, and the process that opened it."""

    connection: sqlite3.Connection | None = None
    process: int = 0


class KnowledgeBase:
    """An open knowledge base file, read-only unless `writable`. Threads and forked processes may share it."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self.file: tuple[int, int] | None = None
        """Device and inode of the opened file, to notice that another file took its name."""
        self._here = _ThreadState()
        self._connections: list[tuple[int, sqlite3.Connection]] = []
        self._closed = False
        self._delete: Callable[[], object] = int  # deletes a temporary KB

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> KnowledgeBase:
        """Open the file at `path`; many processes may read while one writes."""
        kb = cls(Path(path), writable=writable)
        kb.connection  # noqa: B018  # refuses a file that is not a knowledge base
        return kb

    @classmethod
    def from_csv(cls, path: str | Path, to: str | Path | None = None, **options: Any) -> KnowledgeBase:
        """Build a knowledge base from a CSV or TSV file with a header row, and open it for changes.

        >>> kb = KnowledgeBase.from_csv("products.csv", columns={"id": "sku", "title": "name"})

        `to` is the file to write, which must not exist; without it the KB is temporary and deleted when it is closed.
        Options: `columns` (field -> one column or several), `facts` (tables of triples), `on_broken` ("refuse" or
        "skip"), `licence`, `language`; see `kb.readers.tables`.
        """
        return cls._built("csv", path, to, options)

    @classmethod
    def from_jsonl(cls, path: str | Path, to: str | Path | None = None, **options: Any) -> KnowledgeBase:
        """Build a knowledge base from a JSONL file of entities, one object per line; arguments as of `from_csv`."""
        return cls._built("jsonl", path, to, options)

    @classmethod
    def from_obo(cls, path: str | Path, to: str | Path | None = None, **options: Any) -> KnowledgeBase:
        """Build a knowledge base from an ontology in OBO format; arguments as of `from_csv`.

        Options: `below` (ids: only terms below these), `scopes` (of synonyms), `licence`; see `kb.readers.obo`.
        """
        return cls._built("obo", path, to, options)

    @classmethod
    def from_skos(cls, path: str | Path, to: str | Path | None = None, **options: Any) -> KnowledgeBase:
        """Build a knowledge base from SKOS or other RDF (Turtle, RDF/XML, N-Triples); arguments as of `from_csv`.

        Options: `language` ("all": of every one), `below` (IRIs), `licence`; see `kb.readers.skos`.
        """
        return cls._built("skos", path, to, options)

    @classmethod
    def from_umls(cls, path: str | Path, to: str | Path | None = None, **options: Any) -> KnowledgeBase:
        """Build a knowledge base from a folder of UMLS tables (MRCONSO.RRF, …); arguments as of `from_csv`.

        Options: `language`, `sources`, `suppressed`, `licence`; see `kb.readers.umls`.
        """
        return cls._built("umls", path, to, options)

    @classmethod
    def _built(
        cls,
        form: Literal["csv", "jsonl", "obo", "skos", "umls"],
        path: str | Path,
        to: str | Path | None,
        options: dict[str, Any],
    ) -> KnowledgeBase:
        """Build at `to`, or in a temporary folder, and open for changes."""
        from wellread.kb.readers.ontologies import build_ontology
        from wellread.kb.readers.tables import build_table

        if to is not None and Path(to).exists():
            raise KnowledgeBaseError(f"{to} exists already; open it with KnowledgeBase.open, or choose another file")
        folder = Path(tempfile.mkdtemp(prefix="wellread-")) if to is None else None
        target = folder / f"{Path(path).stem or form}.kb" if folder is not None else Path(str(to))
        try:
            if form == "csv" or form == "jsonl":
                build_table(path, target, form=form, **options)
            else:
                build_ontology(path, target, form=form, **options)
            kb = cls.open(target, writable=True)
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        if folder is not None:
            kb._delete = weakref.finalize(kb, _delete_folder, folder, os.getpid())
        return kb

    @property
    def connection(self) -> sqlite3.Connection:
        """SQLite connection of the current thread: a transaction belongs to the thread that began it."""
        if self._closed:
            raise KnowledgeBaseError(f"{self.path} was closed; open it again with KnowledgeBase.open(path)")
        here, process = self._here, os.getpid()
        if here.connection is None or here.process != process:
            here.connection, here.process = self._connect(), process
            self._connections.append((process, here.connection))
        return here.connection

    def _connect(self) -> sqlite3.Connection:
        """Open a connection to the same file as the others; a replaced file is an error, as results would be mixed."""
        before = file_of(self.path)
        connection = connect(self.path, writable=self.writable)
        self.file = self.file or before
        if before is None or not before == self.file == file_of(self.path):
            connection.close()
            raise ReplacedError(f"{self.path} was replaced by another file while it was open; open it again")
        return connection

    def close(self) -> None:
        """Close the file, and delete it if it is temporary."""
        self._closed = True
        for process, connection in self._connections:
            if process == os.getpid():
                connection.close()
        self._delete()

    def __enter__(self) -> KnowledgeBase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._one("SELECT count(*) FROM entities"))

    def __contains__(self, id: object) -> bool:
        with sqlite_errors(self.path):
            return self.connection.execute("SELECT 1 FROM entities WHERE id = ?", (id,)).fetchone() is not None

    @property
    def revision(self) -> int:
        """Number of changes of this KB."""
        try:
            return int(self._one("SELECT value FROM metadata WHERE key = 'revision'"))
        except (TypeError, ValueError) as error:
            raise damaged(self.path, "it has no revision") from error

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the KB: source, licence, language, revision, …"""
        with sqlite_errors(self.path):
            found = dict(self.connection.execute("SELECT key, value FROM metadata"))
        if "uid" not in found or not str(found.get("revision", "")).isdecimal() or not all(map(_is_text, found)):
            raise damaged(self.path, "it has no uid or revision")
        return found

    def get(self, id: str) -> Entity:
        """Return an entity with its aliases and facts, also by a former id; raise `UnknownEntityError` if unknown."""
        query = "SELECT num, id, title, description, kind, popularity FROM entities WHERE id = ?"
        with sqlite_errors(self.path), self.snapshot():
            row = self.connection.execute(query, (id,)).fetchone()
            if row is None and (current := resolve_id(self.connection, id, xrefs=False)) is not None:
                row = self.connection.execute(query, (current,)).fetchone()
            if row is None:
                raise self._unknown(id)
            return self._entity(row)

    def resolve(self, id: str) -> str | None:
        """Return the id of the entity called so: its own, a former one, or one in another vocabulary; else None.

        >>> kb.resolve("UMLS:C0444868")
        'HP:0000001'
        """
        with sqlite_errors(self.path):
            return id if id in self else resolve_id(self.connection, id)

    def other_ids(self, id: str | None = None) -> Iterator[OtherId]:
        """Yield the former ids, notations and cross-references of an entity, or of all."""
        with sqlite_errors(self.path):
            yield from read_other_ids(self.connection, id)

    def describe(self, id: str) -> str:
        """Return the description of an entity, "" for an unknown id."""
        with sqlite_errors(self.path):
            row = self.connection.execute("SELECT description FROM entities WHERE id = ?", (id,)).fetchone()
        return str(row[0]) if row else ""

    def entities(self) -> Iterator[Entity]:
        """Yield every entity in the order it was added."""
        with sqlite_errors(self.path):
            yield from map(
                self._entity,
                self.connection.execute(
                    "SELECT num, id, title, description, kind, popularity FROM entities ORDER BY num"
                ),
            )

    def forms(self) -> Iterator[Form]:
        """Yield the irregular word forms of this KB."""
        with sqlite_errors(self.path):
            yield from (Form(*row) for row in self.connection.execute("SELECT form, word, kind FROM forms"))

    def candidates(
        self,
        name: str,
        *,
        case: names.Case = "folded",
        kinds: Collection[str] | None = None,
        limit: int = MOST_CANDIDATES,
    ) -> list[Candidate]:
        """Return the candidates of a name, likeliest first; their priors sum to 1.

        >>> [(c.title, round(c.prior, 2)) for c in kb.candidates("Jaguar")]
        [('Jaguar', 0.9), ('Jaguar Cars', 0.1)]
        """
        rows = self.named(names.as_signed(names.key(name)))
        if case != "folded":
            if case not in names.CASES:
                raise UsageError(f"case={case!r} is not a policy; choose {', '.join(names.CASES)}")
            same = names.key(name, case)
            rows = [row for row in rows if names.key(row[0], case) == same]
        if kinds is not None:
            rows = [row for row in rows if row[5] in kinds]
        return rank(rows, limit, spelled=name)

    def named(self, key: int) -> list[Named]:
        """Return every alias with a (signed) key."""
        try:
            return read_names(self.connection, key)
        except (sqlite3.Error, ValueError):
            with sqlite_errors(self.path):  # entered only now, to save its microsecond
                raise

    def neighbours(self, id: str, *, relation: str | None = None) -> list[Neighbour]:
        """Return the entities related to one by a fact in either direction; its own facts come first."""
        query = (
            "SELECT r.name, e.id, e.title FROM facts f JOIN relations r ON r.num = f.relation "
            "JOIN entities e ON e.num = f.{there} WHERE f.{here} = (SELECT num FROM entities WHERE id = ?) "
            "AND (? IS NULL OR r.name = ?) ORDER BY f.relation, e.num"
        )
        found = []
        with sqlite_errors(self.path), self.snapshot():
            if id not in self:
                raise self._unknown(id)
            for here, there in (("subject", "object"), ("object", "subject")):
                rows = self.connection.execute(query.format(here=here, there=there), (id, relation, relation))
                found += [Neighbour(name, other, title, here == "subject") for name, other, title in rows]
        return found

    def search(
        self, query: str, *, how: How = "prefix", limit: int = 10, stop: Callable[[], bool] | None = None
    ) -> list[Entity]:
        """Search entities by a prefix of a name, by words of name and description, or by a name with typing errors.

        Once `stop` returns True, the search ends with an error.
        """
        from wellread.kb.search import find

        with sqlite_errors(self.path), self.snapshot():
            return [self._entity(row) for row in find(self.connection, query, how, limit, stop)]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the KB in the whole block, whatever others write meanwhile; look-ups take half the time.

        Outside of a snapshot SQLite locks and unlocks the file for every query. Keep the block short: while it lasts,
        the log of changes cannot be merged into the file.
        """
        connection = self.connection
        if connection.in_transaction:
            yield
            return
        with sqlite_errors(self.path):
            connection.execute("BEGIN")
        try:
            yield
        finally:
            if connection.in_transaction:  # an error of SQLite may have ended it
                connection.execute("ROLLBACK")

    @contextmanager
    def change(self) -> Iterator[Change]:
        """Open a transaction: all operations on the `Change` are committed together, or, on an error, none.

        >>> with kb.change() as change:
        ...     change.add(Entity("Q1", "Universe"))
        ...     change.remove("Q2")
        """
        from wellread.kb.changes import Change

        if not self.writable:
            raise KnowledgeBaseError(f"{self.path} is open for reading; use KnowledgeBase.open(path, writable=True)")
        if self.connection.in_transaction:
            raise KnowledgeBaseError(
                f"a change of {self.path} is open already (or a snapshot); do both in one, or one after the other"
            )
        connection = self.connection
        with sqlite_errors(self.path):
            connection.execute("BEGIN IMMEDIATE")
            change = Change(connection, self.revision + 1)
            try:
                yield change
                change.finish()
                connection.execute("COMMIT")
            finally:
                change.over = True
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def add(self, entities: EntityLike | Iterable[EntityLike]) -> None:
        """Add one or many new entities in one transaction; their facts may refer to each other in any order.

        An entity may be a mapping: `kb.add({"id": "Q90", "title": "Paris", "aliases": ["City of Light"]})`.
        """
        with self.change() as change:
            change.add(*_entities(entities))

    def update(self, entities: EntityLike | Iterable[EntityLike]) -> None:
        """Replace existing entities with their aliases and outgoing facts, in one transaction."""
        with self.change() as change:
            change.update(*_entities(entities))

    def remove(self, ids: str | Iterable[str]) -> None:
        """Remove entities with their aliases and all facts about them, in one transaction."""
        with self.change() as change:
            change.remove(*([ids] if isinstance(ids, str) else ids))

    def changed_names(self, since: int) -> list[int]:
        """Return the (signed) keys of names added or removed after the revision `since`."""
        with sqlite_errors(self.path):
            rows = self.connection.execute("SELECT key FROM changed_names WHERE revision > ?", (since,))
            return [key for (key,) in rows]

    def changed_entities(self, since: int) -> list[str]:
        """Return the ids of entities added, updated or removed after the revision `since`."""
        with sqlite_errors(self.path):
            rows = self.connection.execute("SELECT id FROM changed_entities WHERE revision > ?", (since,))
            return [id for (id,) in rows]

    def _entity(self, row: tuple[int, str, str, str, str, float]) -> Entity:
        num, id, title, description, kind, popularity = row
        aliases = dict(self.connection.execute("SELECT name, count FROM aliases WHERE entity = ?", (num,)))
        if not all(map(_is_text, (id, title, description, kind, *aliases))):
            raise damaged(self.path, f"the entity {id!r} has a name that is not text")
        facts = self.connection.execute(
            "SELECT r.name, e.id FROM facts f JOIN relations r ON r.num = f.relation "
            "JOIN entities e ON e.num = f.object WHERE f.subject = ?",
            (num,),
        )
        return Entity(id, title, description, kind, popularity, aliases, tuple(facts))

    def _unknown(self, id: str) -> UnknownEntityError:
        return UnknownEntityError(f"{self.path.name} has no entity {id!r}; look for it with: wellread kb search")

    def _one(self, query: str) -> str | int:
        with sqlite_errors(self.path):
            value: str | int = self.connection.execute(query).fetchone()[0]
        return value


def _entities(given: EntityLike | Iterable[EntityLike]) -> list[Entity]:
    return [
        entity if isinstance(entity, Entity) else _entity_of(entity)
        for entity in ([given] if isinstance(given, Entity | Mapping) else given)
    ]


def _entity_of(data: Mapping[str, Any]) -> Entity:
    if unknown := sorted(map(str, set(data) - set(FIELDS))):
        raise UsageError(f"an entity has no field {unknown[0]!r}; choose from {', '.join(FIELDS)}")
    return Entity.from_dict(data)


def _delete_folder(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process must not delete the KB of its parent
        shutil.rmtree(folder, ignore_errors=True)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def file_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def rank(rows: Sequence[Named], limit: int = MOST_CANDIDATES, *, spelled: str = "") -> list[Candidate]:
    """Return candidates from rows of `KnowledgeBase.named`, with their share of the counts as prior.

    Of equal counts, entities with an alias spelled as in the text come first, then the more popular, then by id.

    >>> rank([("Jaguar", 9, "Q35694", "Jaguar", 50, ""), ("jaguar", 1, "Q30055", "Jaguar Cars", 20, "")])
    [Candidate("Q35694", "Jaguar", 0.9, 0.9), Candidate("Q30055", "Jaguar Cars", 0.1, 0.1)]
    """
    if len(rows) == 1:
        return [Candidate(rows[0][2], rows[0][3], 1.0, 1.0)][:limit]
    found: dict[str, tuple[float, bool, float, str, str]] = {}
    for name, count, id, title, popularity, _ in rows:
        same = found.get(id)
        if same is None:
            found[id] = (-count, name != spelled, -popularity, id, title)
        else:
            found[id] = (same[0] - count, same[1] and name != spelled, -popularity, id, title)
    best = sorted(found.values())[:limit]
    total = -sum(entry[0] for entry in best)
    candidates = []
    for less, _, _, id, title in best:
        prior = -less / total if total else 1 / len(best)
        candidates.append(Candidate(id, title, prior, prior))
    return candidates


def entities_of_kinds(kb: KnowledgeBase, kinds: Iterable[str], among: Iterable[str] | None = None) -> list[str]:
    """Return the ids of the entities of some kinds (and in `among`, if given)."""
    wanted = sorted(set(kinds))
    with sqlite_errors(kb.path):
        rows = kb.connection.execute(
            "SELECT id FROM entities WHERE kind IN (SELECT value FROM json_each(?))", (json.dumps(wanted),)
        ).fetchall()
    if not rows:
        raise UsageError(f"{kb.path.name} has no entity of the kinds {', '.join(wanted)}; see: wellread kb stats")
    allowed = None if among is None else set(among)
    return [id for (id,) in rows if allowed is None or id in allowed]
