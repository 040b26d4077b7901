"""Records that readers of sources yield, and the tally of what was read and skipped.

A reader is a generator of records that holds only the current one in memory. Aliases and facts come with their entity
(`Entity`) or separately, before or after it (`Alias`, `Fact`), so that one pass suffices for a dump whose anchor texts
are spread over all pages. A `Redirect` gives the aliases and facts of one id to another; an `OtherId` stays in the KB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import chain
from math import isfinite
from typing import Any, Literal, get_args

from wellread.errors import InputError
from wellread.text.inflection import Form as Form

Field = Literal["id", "title", "description", "kind", "popularity", "aliases", "facts"]
Columns = Mapping[str, Sequence[str]]

FIELDS: tuple[Field, ...] = get_args(Field)


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity of a knowledge base; `aliases` maps each name to its count, how often it was seen for this entity."""

    id: str
    title: str
    description: str = ""
    kind: str = ""
    popularity: float = 0.0
    aliases: Mapping[str, float] = field(default_factory=dict)
    facts: tuple[tuple[str, str], ...] = ()
    """(relation, object id) pairs with this entity as their subject."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], columns: Columns | None = None) -> Entity:
        """Build an entity from a row of a table or a JSON object; `columns` maps fields to the names of columns.

        Aliases may be {name: count}, a list of names or [name, count] pairs, or names with "|" between them.
        """
        columns = columns or {}
        values = {field: _joined(data, columns.get(field, (field,))) for field in FIELDS if field != "aliases"}
        id, title = values["id"], values["title"]
        if id is None or title is None or isinstance(id, dict | list) or isinstance(title, dict | list):
            raise InputError("an entity needs 'id' and 'title'")
        aliases: dict[str, float] = {}
        for name in columns.get("aliases", ("aliases",)):
            aliases.update(_aliases(data.get(name)))
        return cls(
            str(id),
            str(title),
            str(values["description"] or ""),
            _kind(values["kind"]),
            _number(values["popularity"] or 0, "popularity"),
            aliases,
            tuple(_facts(values["facts"])),
        )


@dataclass(frozen=True, slots=True)
class Alias:
    """A name seen `count` times for an entity that comes elsewhere in the source."""

    name: str
    entity: str
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A triple; subject and object are entity ids."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect: aliases and facts of `id` belong to `target`."""

    id: str
    target: str


XREF = "xref"
"""Kind of an id in another vocabulary, which several entities may share."""


@dataclass(frozen=True, slots=True)
class OtherId:
    """Another id of an entity: a former one, a notation, or that in another vocabulary (`XREF`)."""

    id: str
    entity: str
    kind: str = "former"


Record = Entity | Alias | Fact | Redirect | Form | OtherId

NUL = "has a NUL character (\\0) in its text"
"""Reason to reject a record: NUL is never intended, and C libraries end strings there."""


def texts_of(record: Record) -> tuple[str, ...]:
    """Return all strings of a record: ids, names, description, kind, facts."""
    if isinstance(record, Entity):
        facts = chain(*record.facts)
        return (record.id, record.title, record.description, record.kind, *record.aliases, *facts)
    if isinstance(record, Alias):
        return (record.name, record.entity)
    return astuple(record)


@dataclass(slots=True)
class Tally:
    """Counts of a build: records read, records skipped by reason, and bytes done, for the progress bar."""

    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_place: dict[str, str] = field(default_factory=dict)
    done_bytes: int = 0
    total_bytes: int = 0
    step: str = ""
    """Step after reading, such as "indexing"."""

    def skip(self, reason: str, place: str = "", *, count: int = 1) -> None:
        """Count skipped records; `place` ("line 12") is kept for the first of each reason."""
        self.skipped[reason] += count
        self.first_place.setdefault(reason, place)

    def report(self) -> list[str]:
        """Return one line per reason, the most frequent first: "3 × broken line (first: line 12)"."""
        return [
            f"{count:,} × {reason}" + (f" (first: {self.first_place[reason]})" if self.first_place[reason] else "")
            for reason, count in self.skipped.most_common()
        ]


def _joined(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of a column, or the values of several as sentences of one text."""
    values = [data[name] for name in names if data.get(name) not in (None, "")]
    if len(values) > 1:
        return ". ".join(str(value).rstrip(". ") for value in values[:-1]) + f". {values[-1]}"
    return values[0] if values else None


def _kind(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    return str(value or "")


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} is {value!r}, expected a number") from None
    if not isfinite(number) or number < 0:
        raise InputError(f"{what} is {value!r}, expected a number from 0 on")
    return number


def _aliases(value: Any) -> dict[str, float]:
    if not value:
        return {}
    if isinstance(value, str):
        value = [name.strip() for name in value.split("|")]
    if isinstance(value, list | tuple):
        pairs = [[name, 1.0] if isinstance(name, str) else name for name in value]
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise InputError("aliases in a list are names or [name, count] pairs")
        value = {name: count for name, count in pairs}  # noqa: C416  # lists, which dict() takes but mypy does not
    if not isinstance(value, Mapping):
        raise InputError("aliases are an object {name: count}, a list of names, or names with | between them")
    return {str(name): _number(count, f"the count of alias {name!r}") for name, count in value.items() if name}


def _facts(value: Any) -> Iterator[tuple[str, str]]:
    for fact in value if isinstance(value, list | tuple) else [value] if value else []:
        if not isinstance(fact, list | tuple) or len(fact) != 2:
            raise InputError("facts are [relation, object id] pairs")
        yield str(fact[0]), str(fact[1])
