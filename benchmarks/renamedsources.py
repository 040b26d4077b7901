"""Catalogues of invented names for the link scorer: real texts in which annotated names are replaced by product names.

A catalogue of a user has names that no encoder has met ("Drift", "Veltra S", "XR-800"), short descriptions or none, and
texts that mention them like any other name. So a share of the annotated mentions of real texts gets the name of an
invented entity, the same one for the same entity throughout. Names of the catalogue that are common words also stand in
the texts as such, where they are wrong. Mentions that keep their name are not in the catalogue.

Figures on these texts are not accuracy: they are partly made up, and only train the scorer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wellread import assets
from wellread.data.synthetic.variation import Variation, vary
from wellread.document import Document, Link
from wellread.kb.build import Origin, build
from wellread.kb.readers.wordnet import read_nouns
from wellread.kb.records import Entity, Record, Tally
from wellread.text.frequency import packaged
from wellread.text.words import split

_REPLACED = 0.7
"""Share of the entities of the texts that are in the catalogue."""
_OTHERS = 1.0
"""Other entities of the catalogue, per entity of the texts."""
_LOWER, _TYPO = 0.2, 0.12
_SUFFIXES = "Pro Mini Max Plus S XL Duo Mid Air Go Kit 2 3 500 Lite One Classic Rear Home Set".split()
_SYLLABLES = [
    first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in ("", "n", "r", "l", "x")
]
_COMMON = (0.3, 2.2)
"""Frequency (log10 per million) of common words that are names."""
_DESCRIBED = 0.6
_CATEGORIES = "lamp shoe camera phone printer drone jacket kettle router tent bag watch speaker bike chair game".split()
_QUALITIES = (
    "compact wireless waterproof light rugged foldable quiet fast rechargeable entry-level professional".split()
)


class Names:
    """Draws names as products have them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._taken = rng, set[str]()
        nouns = {
            name
            for entity in read_nouns(assets.fetch("wordnet"), Tally())
            for name in entity.aliases
            if name.isalpha() and name.islower() and 3 < len(name) < 9
        }
        words = sorted(nouns)
        frequency, lower = packaged().find(split("\n".join(words)).hashes)
        low, high = _COMMON
        self._words = [
            word for word, how, share in zip(words, frequency, lower, strict=True) if low < how < high and share > 0.7
        ]

    def draw(self) -> tuple[str, list[str]]:
        """Return a new title and its aliases, the title first."""
        while True:
            title, short = self._one()
            if title.lower() not in self._taken:
                self._taken.add(title.lower())
                return title, [title] if short is None else [title, short]

    def _one(self) -> tuple[str, str | None]:
        rng = self._rng
        kind = rng.random()
        if kind < 0.2:
            return self._word(), None
        if kind < 0.45:
            word = self._word()
            return f"{word} {rng.choice(_SUFFIXES)}", word if rng.random() < 0.3 else None
        if kind < 0.6:
            return self._made(), None
        if kind < 0.75:
            word = self._made()
            return f"{word} {rng.choice(_SUFFIXES)}", word if rng.random() < 0.5 else None
        if kind < 0.87:
            code = f"{''.join(rng.choices('ABCDEGKLMPRSTVXZ', k=rng.choice((1, 2))))}{rng.choice(('', '-', ' '))}"
            code += str(rng.choice((5, 10, 20, 40, 70, 100, 200, 350, 404, 500, 800, 3000)))
            return (code, None) if rng.random() < 0.5 else (f"{self._made()} {code}", code)
        return f"{self._word()} {self._word()}", None

    def _word(self) -> str:
        return self._rng.choice(self._words).capitalize()

    def _made(self) -> str:
        return "".join(self._rng.choices(_SYLLABLES, k=self._rng.choice((2, 2, 3)))).capitalize()


def renamed(folder: Path, name: str, documents: Sequence[Document], *, seed: int = 0) -> tuple[Path, list[Document]]:
    """Return a catalogue, built in the folder where it is missing, and the texts that mention its entities."""
    rng = random.Random(f"{name} {seed}")
    names = Names(rng)
    keys = sorted({key for document in documents for link in document.links if (key := _key(link))})
    chosen = {key: names.draw() for key in keys if rng.random() < _REPLACED}
    ids = {key: f"R{number}" for number, key in enumerate(chosen)}
    entities = [_entity(f"R{number}", aliases, rng) for number, (_, aliases) in enumerate(chosen.values())]
    entities += [_entity(f"X{number}", names.draw()[1], rng) for number in range(int(_OTHERS * len(chosen)))]
    path = folder / f"renamed-{name}.kb"
    if not path.exists():

        def records(tally: Tally) -> Iterator[Record]:
            return iter(entities)

        build(records, path, origin=Origin("benchmarks"))
    texts = [_replaced(document, {key: chosen[key][1] for key in chosen}, ids, rng) for document in documents]
    variation = Variation(lower=_LOWER, typo=_TYPO)
    return path, [vary(document, variation, rng, lambda entity: []) for document in texts]


def _key(link: Link) -> str | None:
    """Return the entity that a mention stands for; annotated names without one count by their words."""
    return link.entity or (link.text.casefold() if len(link.text) > 2 else None)


def _entity(id: str, aliases: Sequence[str], rng: random.Random) -> Entity:
    description = ""
    if rng.random() < _DESCRIBED:
        description = f"{rng.choice(_QUALITIES)} {rng.choice(_CATEGORIES)}"
    return Entity(id, aliases[0], description, aliases=dict.fromkeys(aliases, 1.0))


def _replaced(document: Document, names: dict[str, list[str]], ids: dict[str, str], rng: random.Random) -> Document:
    """Return a document with other names; links that overlap the one before are left out."""
    text, links, at = "", list[Link](), 0
    for link in document.links:
        if link.start < at:
            continue
        text += document.text[at : link.start]
        key = _key(link)
        name = rng.choice(names[key]) if key in names else link.text
        links.append(Link(len(text), len(text) + len(name), name, ids.get(key) if key else None))
        text, at = text + name, link.end
    return replace(document, text=text + document.text[at:], links=tuple(links), meta={})
