"""Variations of linked text for training: other aliases, misspelt and lower-cased names.

A linker trained only on names as written fails on a typo, on a lower-case query and on a rarer alias. Each document is
varied again in every epoch; offsets of links and unsure spans are adjusted.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from wellread.document import Document, Link
from wellread.errors import UsageError

_TYPO_LETTERS = 5
"""Minimum letters of a name that is misspelt: shorter ones would not be recognisable."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Probabilities of each change; 0 leaves the text as it is."""

    lower: float = 0.0
    """Probability that a text is converted to lower case."""
    alias: float = 0.0
    """Probability that a linked mention is replaced by another alias of its entity."""
    typo: float = 0.0
    """Probability that a mention gets a typo: a letter inserted, left out, replaced or swapped with the next."""

    def __post_init__(self) -> None:
        for name in ("lower", "alias", "typo"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"variation.{name} is {getattr(self, name)}; give a probability from 0 to 1")

    def __bool__(self) -> bool:
        return bool(self.lower or self.alias or self.typo)


def vary(document: Document, variation: Variation, rng: Random, aliases: Callable[[str], Sequence[str]]) -> Document:
    """Return a changed copy; `aliases` returns the names of an entity.

    >>> vary(Document("I like Rome", (Link(7, 11, "Rome", "Q220"),)), Variation(lower=1.0), Random(0), lambda id: [])
    Document("i like rome", (Link(7, 11, "rome", "Q220"),))
    """
    text: list[str] = []
    links: list[Link] = []
    changes: list[tuple[int, int, int]] = []
    at = shift = 0
    tangled = _overlapping(document.links)
    for link in document.links:
        name = link.text if link.start in tangled else _varied(link, variation, rng, aliases)
        start = link.start + shift
        links.append(replace(link, start=start, end=start + len(name), text=name))
        if name != link.text:
            text += document.text[at : link.start], name
            at, shift = link.end, shift + len(name) - len(link.text)
            changes.append((link.start, link.end, len(name) - len(link.text)))
    text.append(document.text[at:])
    changed = "".join(text)
    meta = dict(document.meta)
    if "unsure" in meta:
        moved = ((_moved(start, changes), _moved(end, changes)) for start, end in meta["unsure"])
        meta["unsure"] = [[start, end] for start, end in moved if start is not None and end is not None]
    if rng.random() < variation.lower and len(lowered := changed.lower()) == len(changed):
        changed = lowered
        links = [replace(link, text=changed[link.start : link.end]) for link in links]
    return Document(changed, tuple(links), document.id, meta)


def _varied(link: Link, variation: Variation, rng: Random, aliases: Callable[[str], Sequence[str]]) -> str:
    name = link.text
    if link.entity is not None and rng.random() < variation.alias:
        others = [alias for alias in aliases(link.entity) if alias.strip()]
        if others:
            name = rng.choice(others)
    return misspell(name, rng) if rng.random() < variation.typo else name


def misspell(name: str, rng: Random) -> str:
    """Return a name with one typo: a letter inserted, left out, replaced, or swapped with the next."""
    places = [place for place, letter in enumerate(name) if letter.isalpha()]
    if len(places) < _TYPO_LETTERS:
        return name
    at = rng.choice(places)
    kind = rng.choice(("insert", "delete", "replace", "swap"))
    letter = rng.choice(string.ascii_lowercase)
    if kind == "insert":
        return name[:at] + letter + name[at:]
    if kind == "delete":
        return name[:at] + name[at + 1 :]
    if kind == "replace" or at + 1 >= len(name) or not name[at + 1].isalpha():
        return name[:at] + letter + name[at + 1 :]
    return name[:at] + name[at + 1] + name[at] + name[at + 2 :]


def _overlapping(links: Sequence[Link]) -> set[int]:
    """Return the starts of links that overlap another: their text must stay as it is."""
    found: set[int] = set()
    reach = last = -1
    for link in links:
        if link.start < reach:
            found |= {last, link.start}
        if link.end > reach:
            reach, last = link.end, link.start
    return found


def _moved(place: int, changes: Sequence[tuple[int, int, int]]) -> int | None:
    """Return an offset after changes (start, end, letters more); None inside of a changed span."""
    if any(start < place < end for start, end, _ in changes):
        return None
    return place + sum(more for _, end, more in changes if end <= place)
