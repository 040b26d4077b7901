"""Random entities, names, kinds, facts and common words of a knowledge base, for synthetic text.

Nothing is scanned: an entity or a fact costs a few look-ups, in a KB of twenty entities or of a million.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from json import dumps
from random import Random

from wellread.data.synthetic.templates import genus, in_singular, in_words, relation_slots
from wellread.errors import KnowledgeBaseError
from wellread.kb.store import KnowledgeBase
from wellread.text.stopwords import STOP_WORDS
from wellread.text.words import as_signed, key
from wellread.text.words import words as words_of

MOST_NAME_WORDS = 8

_SAMPLE = 2_000
"""Descriptions that are sampled for common words."""

_EVERYDAY = 0.02
_PARTS_OF_SPEECH = frozenset("vars")
"""WordNet's kinds except nouns: their glosses do not begin with a kind of thing."""

_PERSON = re.compile(
    r"\b(?:person|people|human|actor|actress|singer|musician|player|politician|writer|author|artist|director|poet|"
    r"composer|king|queen|emperor|philosopher|scientist|character|nominee|winner)\b"
)


@dataclass(frozen=True, slots=True)
class Thing:
    """An entity with the names that a question may use."""

    num: int
    id: str
    title: str
    description: str
    names: tuple[str, ...]
    weights: tuple[float, ...]
    """Cumulative counts of the names."""
    all_names: tuple[str, ...]
    """Every alias, the longest first."""
    kind: str

    def name(self, rng: Random) -> str:
        """Draw one of its names by their counts."""
        place = bisect_right(self.weights, rng.random() * self.weights[-1])
        return self.names[min(place, len(self.names) - 1)]


Fact = tuple[Thing, int, Thing]
"""Subject, number of the relation, object."""


class KbSampler:
    """Samples a KB, and holds its relations in words and its common words."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self.kb = kb
        self.revision = kb.revision
        self.low, self.high = kb.connection.execute("SELECT min(num), max(num) FROM entities").fetchone()
        if self.low is None:
            raise KnowledgeBaseError(f"{kb.path.name} holds no entities; add some with: wellread kb add")
        self.relations: dict[int, dict[str, str]] = {
            num: relation_slots(wording) if (wording := in_words(name)) else {}
            for num, name in kb.connection.execute("SELECT num, name FROM relations")
        }
        self.vocabulary, self.everyday = self._everyday_words()
        self.common_names = sorted(word for word in self.everyday if kb.named(as_signed(key(word))))
        self.thing = lru_cache(1 << 13)(self._thing)

    def is_everyday(self, name: str) -> bool:
        """Return whether a name in lower case is in one description of fifty, or has stop words only."""
        small = name.lower()
        return small in self.everyday or (" " in small and all(word in STOP_WORDS for word in small.split()))

    def draw(self, rng: Random) -> Thing:
        """Draw any entity, uniformly."""
        return self.thing(rng.randint(self.low, self.high))

    def by_id(self, id: str) -> Thing:
        """Return the entity of an existing id."""
        return self.thing(self.kb.connection.execute("SELECT num FROM entities WHERE id = ?", (id,)).fetchone()[0])

    def fact(self, thing: Thing, rng: Random) -> Fact | None:
        """Draw a fact of an entity; each relation is about as likely, however many facts it has."""
        relation, other = rng.randint(0, len(self.relations)), rng.randint(self.low, self.high)
        ask = self.kb.connection.execute
        outgoing = (
            "SELECT subject, relation, object FROM facts WHERE subject = ? AND (relation, object) >= (?, ?) "
            "ORDER BY relation, object LIMIT 1"
        )
        incoming = (
            "SELECT subject, relation, object FROM facts WHERE object = ? AND subject >= ? ORDER BY subject LIMIT 1"
        )
        tries: list[tuple[str, tuple[int, ...]]] = [
            (outgoing, (thing.num, relation, other)),
            (outgoing, (thing.num, 0, 0)),
            (incoming, (thing.num, other)),
            (incoming, (thing.num, 0)),
        ]
        for query, values in tries[2:] + tries[:2] if rng.random() < 0.3 else tries:
            row = ask(query, values).fetchone()
            if row is not None and row[0] != row[2]:
                return self.thing(row[0]), row[1], self.thing(row[2])
        return None

    def joined_to(self, nums: Sequence[int], ids: Sequence[str]) -> set[str]:
        """Return those of the entities `ids` that a fact relates to one of `nums`."""
        found: set[str] = set()
        for num in nums:
            rows = self.kb.connection.execute(
                "SELECT id FROM entities e WHERE id IN (SELECT value FROM json_each(?)) AND ("
                "EXISTS (SELECT 1 FROM facts WHERE object = e.num AND subject = ?) OR "
                "EXISTS (SELECT 1 FROM facts WHERE object = ? AND subject = e.num))",
                (dumps(list(ids)), num, num),
            )
            found.update(id for (id,) in rows)
        return found

    def _thing(self, num: int) -> Thing:
        """Return the entity with this number, or the next if it was removed."""
        ask = self.kb.connection.execute
        num, id, title, kind, description = ask(
            "SELECT num, id, title, kind, description FROM entities WHERE num >= ? ORDER BY num LIMIT 1", (num,)
        ).fetchone()
        counts = dict(ask("SELECT name, count FROM aliases WHERE entity = ? ORDER BY name", (num,)))
        usable = self._usable(counts)
        return Thing(
            num=num,
            id=id,
            title=title,
            description=description,
            names=tuple(usable),
            weights=tuple(accumulate(usable.values())),
            all_names=tuple(sorted(counts, key=lambda name: (-len(name), name))),
            kind=kind,
        )

    def _usable(self, counts: dict[str, float]) -> dict[str, float]:
        """Return the names that people may type: no common words; "Mercury (planet)" only without others."""
        usable = {
            name: max(count, 1e-6)
            for name, count in counts.items()
            if len(name) > 1 and name.count(" ") < MOST_NAME_WORDS and not self.is_everyday(name)
        }
        typed = {
            name: count
            for name, count in usable.items()
            if "(" not in name and not name.lower().startswith(("a ", "an ", "in "))
        }
        return typed or usable

    def kinds(self, thing: Thing) -> list[str]:
        """Return the kinds of an entity, twice from its description and once from the KB, in the singular."""
        if thing.kind in _PARTS_OF_SPEECH:
            return []
        kinds = []
        if phrase := genus(thing.description):
            kinds = [in_singular(self.uncapitalised(phrase))] * 2
        if (wording := in_words(thing.kind)) and wording.count(" ") < 3 and " and " not in wording:
            kinds.append(in_singular(wording))
        return kinds

    def pronoun(self, thing: Thing) -> str:
        """Return the pronoun of a question about an entity: "who" or "what"."""
        return "who" if _PERSON.search(" ".join(self.kinds(thing)).lower()) else "what"

    def uncapitalised(self, phrase: str) -> str:
        """Lower the capital of a first word that is otherwise in lower case: "Legendary war" -> "legendary war"."""
        first = phrase.split(" ", 1)[0]
        return first.lower() + phrase[len(first) :] if first.lower() in self.vocabulary else phrase

    def _everyday_words(self) -> tuple[set[str], set[str]]:
        step = max(1, (self.high - self.low) // _SAMPLE)
        counts: Counter[str] = Counter()
        read = 0
        for num in range(self.low, self.high + 1, step):
            row = self.kb.connection.execute("SELECT description FROM entities WHERE num = ?", (num,)).fetchone()
            if row and row[0]:
                read += 1
                counts.update({word for word in words_of(row[0]) if word.islower()})
        often = {word for word, count in counts.items() if count >= max(_EVERYDAY * read, 5)}
        return set(counts), often | STOP_WORDS
