"""Gold documents made harder: one typo in each mention, or no capital letters."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from dataclasses import replace

from wellread.document import Document

_SHORTEST = 5
"""Letters of a mention that gets a typo; shorter ones often become another name."""


def misspell(documents: Iterable[Document], seed: int = 1) -> list[Document]:
    """Put one typo into each gold mention of five letters or more.

    A letter is inserted, deleted, substituted or swapped with the next one; half of the time never the first letter.
    """
    chance = random.Random(seed)
    return [_misspelt(document, chance) for document in documents]


def lowercase(documents: Iterable[Document]) -> list[Document]:
    """Lower-case the texts; letters whose lower case is longer stay, so that spans do not move."""
    made = []
    for document in documents:
        text = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in document.text)
        links = tuple(replace(link, text=text[link.start : link.end]) for link in document.links)
        made.append(replace(document, text=text, links=links))
    return made


def add_typo(word: str, chance: random.Random) -> str:
    """Return the word with one typo in a letter: "justin bieber" -> "justin beiber"."""
    places = [place for place, letter in enumerate(word) if letter.isalpha()]
    if chance.random() < 0.5:
        places = places[1:]
    while True:
        at, edit = chance.choice(places), chance.choice(("insert", "delete", "substitute", "transpose"))
        letter = chance.choice(string.ascii_lowercase)
        letter = letter.upper() if word[at].isupper() and edit == "substitute" else letter
        made = {
            "insert": word[: at + 1] + letter + word[at + 1 :],
            "delete": word[:at] + word[at + 1 :],
            "substitute": word[:at] + letter + word[at + 1 :],
            "transpose": word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
        }[edit]
        # A swap across a word's end, or of equal letters, is not the typo that is meant.
        if made != word and made.strip() == made and (edit != "transpose" or word[at : at + 2].isalpha()):
            return made


def _misspelt(document: Document, chance: random.Random) -> Document:
    text, shifts = document.text, []
    free = len(text)
    for link in sorted(document.links, key=lambda link: -link.start):
        if link.end > free or sum(letter.isalpha() for letter in link.text) < _SHORTEST:
            continue
        typo = add_typo(link.text, chance)
        text = text[: link.start] + typo + text[link.end :]
        shifts.append((link.end, len(typo) - len(link.text)))
        free = link.start

    def moved(offset: int) -> int:
        return offset + sum(by for end, by in shifts if offset >= end)

    def spans(key: str) -> list[list[int]]:
        return [[moved(start), moved(end)] for start, end in document.meta[key]]

    links = [replace(link, start=moved(link.start), end=moved(link.end)) for link in document.links]
    meta = document.meta | {key: spans(key) for key in ("optional", "evaluate") if key in document.meta}
    return Document(text, tuple(replace(one, text=text[one.start : one.end]) for one in links), document.id, meta)
