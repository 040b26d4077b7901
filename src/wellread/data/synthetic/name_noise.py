"""Names as people write them in tables: misspelt, reordered, abbreviated, shortened, with words that do not belong."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from random import Random

from wellread.data.synthetic.variation import misspell

Noise = Callable[[str, Random], str]


def misspell_twice(name: str, rng: Random) -> str:
    """Return a name with two typos."""
    return misspell(misspell(name, rng), rng)


def change_case(name: str, rng: Random) -> str:
    """Return a name in lower case, upper case or title case, or without its diacritics."""
    plain = "".join(one for one in unicodedata.normalize("NFD", name) if not unicodedata.combining(one))
    return rng.choice((name.lower(), name.upper(), name.title(), plain))


def reorder(name: str, rng: Random) -> str:
    """Return a name with its last word first ("Curie, Marie"), or its words in another order."""
    words = name.split()
    if len(words) < 2:
        return name
    if rng.random() < 0.6:
        return f"{words[-1]}{rng.choice((',', ''))} {' '.join(words[:-1])}"
    changed = words[:]
    while changed == words and len(set(words)) > 1:
        rng.shuffle(changed)
    return " ".join(changed)


def abbreviate(name: str, rng: Random) -> str:
    """Return a name with a word cut or reduced to its first letter, or the initials of all its words."""
    words = name.split()
    if len(words) > 2 and rng.random() < 0.3:
        return "".join(word[0] for word in words if word[0].isalnum()).upper() or name
    places = [place for place, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    if not places or len(words) < 2:
        return name
    place = rng.choice(places)
    word, kind = words[place], rng.random()
    if kind < 0.4:
        short = word[0] + rng.choice((".", ""))
    elif kind < 0.8:
        short = word[: rng.randint(2, 4)] + rng.choice((".", ""))
    else:
        short = word[0] + "".join(letter for letter in word[1:] if letter not in "aeiou")[:4]
    return " ".join((*words[:place], short, *words[place + 1 :]))


def drop_word(name: str, rng: Random) -> str:
    """Return a name without one of its words."""
    words = name.split()
    if len(words) < 2:
        return name
    place = rng.randrange(len(words))
    return " ".join((*words[:place], *words[place + 1 :]))


def change_punctuation(name: str, rng: Random) -> str:
    """Return a name without its punctuation, or with other punctuation between its words."""
    bare = " ".join("".join(one if one.isalnum() else " " for one in name).split())
    return rng.choice((bare, bare.replace(" ", "-"), bare.replace(" ", ""), f"{name}.", f'"{name}"')) or name


def add_words(extra: Sequence[str]) -> Noise:
    """Return a noise that adds one of the given words before or after a name."""

    def add(name: str, rng: Random) -> str:
        word = rng.choice(extra)
        return f"{name} {word}" if rng.random() < 0.7 else f"{word} {name}"

    return add


def keep(name: str, rng: Random) -> str:
    """Return a name as it is."""
    return name


NOISE: Mapping[str, tuple[Noise, float]] = {
    "as written": (keep, 3.0),
    "typo": (misspell, 2.5),
    "two typos": (misspell_twice, 0.7),
    "case": (change_case, 1.0),
    "order": (reorder, 1.0),
    "abbreviated": (abbreviate, 1.0),
    "word dropped": (drop_word, 0.7),
    "punctuation": (change_punctuation, 0.7),
}
"""Kinds of noise and their weights in training."""
WORD_ADDED = 0.7
"""Weight of `add_words`, which needs the words of a KB."""
