"""What a source yields, and the tally of what it read and skipped.

A source is a generator of records. It streams: nothing but the current record is held in memory. An entity's
aliases and facts may come with it (`Entity`) or apart from it, before or after (`Alias`, `Fact`), so that a dump whose
anchor texts are spread over all its pages needs one pass. A `Redirect` says that one id stands for another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from itertools import chain

from wellread.text.inflection import Form as Form


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing that is known; `aliases` maps a name to how often it was seen for this entity."""

    id: str
    title: str
    description: str = ""
    kind: str = ""
    popularity: float = 0.0
    aliases: Mapping[str, float] = field(default_factory=dict)
    facts: tuple[tuple[str, str], ...] = ()
    """(relation, object id) pairs with this entity as their subject."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A name seen `count` more times for an entity that comes elsewhere in the source."""

    name: str
    entity: str
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class Fact:
    """Subject and object are entity ids."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """Aliases and facts of `id` belong to `target`."""

    id: str
    target: str


Record = Entity | Alias | Fact | Redirect | Form

NUL = "has a NUL character (\\0) in its text"
"""What is said of a record with one: no text has it on purpose, and C libraries end strings there."""


def texts_of(record: Record) -> tuple[str, ...]:
    """All that is written in a record: ids, names, description, kind, facts."""
    if isinstance(record, Entity):
        facts = chain(*record.facts)
        return (record.id, record.title, record.description, record.kind, *record.aliases, *facts)
    if isinstance(record, Alias):
        return (record.name, record.entity)
    return astuple(record)


@dataclass(slots=True)
class Tally:
    """What a source has read so far, what it left out and why; also how far it is, for the progress bar."""

    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_place: dict[str, str] = field(default_factory=dict)
    done_bytes: int = 0
    total_bytes: int = 0
    step: str = ""
    """What is being done when all is read: "indexing"."""

    def skip(self, reason: str, place: str = "", *, count: int = 1) -> None:
        """Count records left out; `place` ("line 12") is kept for the first of each reason."""
        self.skipped[reason] += count
        self.first_place.setdefault(reason, place)

    def report(self) -> list[str]:
        """One line a reason, the most frequent first: "3 × broken line (first: line 12)"."""
        return [
            f"{count:,} × {reason}" + (f" (first: {self.first_place[reason]})" if self.first_place[reason] else "")
            for reason, count in self.skipped.most_common()
        ]
