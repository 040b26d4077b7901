"""Uses of names in running text, divided among the entities of a name by the similarity of texts.

A name with one entity has all its uses. A use of an ambiguous name ("Mercury") is divided in proportion to the count of
the name times exp(k * cosine), over tf-idf vectors of the text that uses it and the text of each entity.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from wellread.text.words import Keys, follow, key, split

Names = Mapping[str, float]

_SHARPNESS = 20.0
"""Factor k of the similarity of two texts when the use of an ambiguous name is divided."""

_LONGEST = 8
"""Maximum words of a name whose uses are counted."""

_TOGETHER = 200
"""Texts that are matched in one call."""

_FENCE = "\n\uffff\n"
"""Separator between texts that no name crosses."""

NEVER = frozenset(
    """
    a an the this that these those each every all both such what which who whom whose whoever one ones other others
    i me my mine you your yours he him his she her hers it its we us our ours they them their theirs
    and or but nor so yet if then than because as since of in on at by for with from to into about after before up out
    over under not no here there where when why how too very just only also even be am is are was were been do does did
    done have has had will would shall should can could may might must first second third new old great early late
    north south east west northern southern eastern western central big small high low good bad
    """.split()
)
"""Words that are a name only as a title; before a name they are not part of it."""


def occurrences(name: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of a name at the start of a word; the word may go on."""
    start = text.find(name)
    while start >= 0:
        if not start or not (text[start - 1].isalnum() or text[start - 1] in "-_'’"):
            yield start, start + len(name)
        start = text.find(name, start + 1)


def stands_alone(text: str, start: int, end: int) -> bool:
    """True where a proper name is not a part of a longer one: "Victoria" in "Lake Victoria" is."""
    after = text[end : end + 2]
    if after[:1].isalnum() or after[:1] == "-" or (after[:1] == " " and after[1:].isupper()):
        return False
    if text[max(0, start - 1) : start] != " ":
        return True
    before = text[text.rfind(" ", 0, start - 1) + 1 : start - 1]
    return not before[:1].isupper() or (before[-1:] in ".,;:" and len(before) > 3) or before.lower() in NEVER


class Uses:
    """Uses of names in the texts of other entities, divided among the entities of a name."""

    def __init__(self, texts: Mapping[str, str], contexts: Mapping[str, str], named: Mapping[str, Names]) -> None:
        """`texts` maps an entity to the text that is searched, `contexts` to all text that describes it."""
        self._texts, self._contexts = texts, contexts
        self._owners: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
        for entity, names in named.items():
            for name, count in names.items():
                self._owners[key(name, "exact")].append((name, entity, count))
        self._vectors: dict[str, dict[str, float]] = {}
        seen = Counter(word for context in contexts.values() for word in _words(context))
        self._rarity = {word: math.log(len(contexts) / count) for word, count in seen.items()}

    def count(
        self, is_sure: Callable[[str, str], bool]
    ) -> tuple[defaultdict[tuple[str, str], float], dict[str, list[str]]]:
        """Return (name, entity) -> uses, and entity -> the others that its text mentions.

        A text mentions an entity that has most of a use, under a name of it that `is_sure`.
        """
        uses: defaultdict[tuple[str, str], float] = defaultdict(float)
        speaks_of: dict[str, list[str]] = {}
        for entity, nodes in self._found():
            met: dict[str, None] = {}
            for node in nodes:
                owners = self._owners[node]
                if any(owner == entity for _, owner, _ in owners):
                    continue  # a text uses the name of its own entity for that entity
                for (name, owner, _), share in zip(owners, self._shares(entity, owners), strict=True):
                    uses[name, owner] += share
                    if share > 0.5 and is_sure(name, owner):
                        met[owner] = None
            speaks_of[entity] = list(met)
        return uses, speaks_of

    def _found(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each entity with the keys of the names in its text; of overlapping names the longest counts."""
        nodes = np.array(sorted(self._owners), np.uint64)
        entities = list(self._texts)
        for begin in range(0, len(entities), _TOGETHER):
            some = entities[begin : begin + _TOGETHER]
            text = _FENCE.join(self._texts[entity] for entity in some)
            ends = np.cumsum([len(self._texts[entity]) + len(_FENCE) for entity in some])
            found: list[list[int]] = [[] for _ in some]
            names = sorted(_longest_names(text, nodes))
            owners = np.searchsorted(ends, [start for start, _ in names], side="right").tolist()
            for owner, (_, node) in zip(owners, names, strict=True):
                found[owner].append(node)
            yield from zip(some, found, strict=True)

    def _shares(self, entity: str, owners: list[tuple[str, str, float]]) -> list[float]:
        if len(owners) == 1:
            return [1.0]
        here = self._vector(entity)
        scores = []
        for _, owner, count in owners:
            there = self._vector(owner)
            same = sum(weight * there[word] for word, weight in here.items() if word in there)
            scores.append(count * math.exp(_SHARPNESS * same))
        total = sum(scores)
        return [score / total for score in scores]

    def _vector(self, entity: str) -> dict[str, float]:
        if entity not in self._vectors:
            weights = {word: self._rarity[word] for word in _words(self._contexts[entity])}
            norm = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
            self._vectors[entity] = {word: weight / norm for word, weight in weights.items()}
        return self._vectors[entity]


def _longest_names(text: str, nodes: Keys) -> Iterator[tuple[int, int]]:
    """Yield (start, key) of the names in a text; proper names only where they are not a part of a longer one."""
    words = split(text, "exact")
    spans = np.zeros(len(words.hashes), np.uint64)
    matches: list[tuple[int, int, int]] = []
    for length in range(1, min(_LONGEST, len(words.hashes)) + 1):
        spans = follow(spans[: len(words.hashes) - length + 1], words.hashes[length - 1 :])
        near = nodes[np.minimum(np.searchsorted(nodes, spans), len(nodes) - 1)]
        places = np.flatnonzero(near == spans)
        matches += ((-length, place, node) for place, node in zip(places.tolist(), spans[places].tolist(), strict=True))
    taken = bytearray(len(words.hashes))
    for less, place, node in sorted(matches):
        after = place - less
        if not any(taken[place:after]):
            taken[place:after] = b"\1" * -less
            start, end = int(words.starts[place]), int(words.ends[after - 1])
            if text[start].islower() or stands_alone(text, start, end):
                yield start, node


def _words(context: str) -> dict[str, None]:
    """Return the different words of a context in text order, as sums of floats depend on the order."""
    return dict.fromkeys(re.findall(r"[a-z]{4,}", context.lower()))
