"""Regular English word forms, read off the words of a text: "carcinomas" -> "carcinoma", "vaccinated" -> "vaccinate".

A hash of a word is a sum over its letters (`text.words`), so an ending is taken off or put on by arithmetic, for all
words of a text at once, and no table of forms is needed. What comes out counts only if it is a word of the KB's names.
WordNet has its own rules and exceptions (`inflect`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.text.words import Keys, Offsets, Words, with_ending, without_ending

Known = Callable[[Keys], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Words that end in `ending`, but not in one of `unless`, may be forms of a word that ends in `instead`."""

    ending: str
    instead: tuple[str, ...]
    unless: tuple[str, ...] = ()
    shortest: int = 4
    verb: bool = False
    reverse: bool = False
    """The text has the base form, the KB the inflected one."""


_RULES = (
    # Plural in the text, singular in the KB.
    _Rule("s", ("",), ("ss", "us", "is")),
    _Rule("ses", ("s", "sis")),
    *(_Rule(f"{sibilant}es", (sibilant,)) for sibilant in ("x", "z", "ch", "sh", "o")),
    _Rule("ies", ("y",), shortest=5),
    _Rule("ves", ("f", "fe"), shortest=5),
    _Rule("men", ("man",)),
    _Rule("ae", ("a",), shortest=5),
    # Singular in the text, plural in the KB.
    _Rule("", ("s",), ("s", "x", "z", "ch", "sh", "y"), reverse=True),
    *(_Rule(sibilant, (f"{sibilant}es",), reverse=True) for sibilant in ("s", "x", "z", "ch", "sh")),
    _Rule("y", ("ies", "ys"), reverse=True),
    _Rule("sis", ("ses",), shortest=5, reverse=True),
    # Verbs.
    _Rule("ed", ("", "e"), ("eed",), shortest=6, verb=True),
    _Rule("ied", ("y",), shortest=6, verb=True),
    _Rule("ing", ("", "e"), shortest=7, verb=True),
)


def regular_forms(
    words: Words, known: Known, places: Offsets, *, reverse: bool = True
) -> tuple[Offsets, Keys, NDArray[np.bool_]]:
    """(place, hash, is a verb form) of known words that words of a text are forms of.

    `reverse` takes the other direction too: known words that are forms of those of the text.
    """
    rules = [rule for rule in _RULES if reverse or not rule.reverse]
    found = list(_found(words, known, places[words.ends[places] - words.starts[places] >= 4], rules))
    nothing = np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.bool_)
    at, hashes, verbs = (np.concatenate(column) for column in zip(nothing, *found, strict=True))
    return at, hashes, verbs


def _found(
    words: Words, known: Known, places: Offsets, rules: list[_Rule]
) -> Iterator[tuple[Offsets, Keys, NDArray[np.bool_]]]:
    tails = _Tails(words, places)
    for rule in rules:
        some = tails.ending_in(rule.ending)
        for tail in rule.unless:
            some = some & ~tails.ending_in(tail)
        if rule.shortest > 4:
            some = some & (words.sizes[places] >= rule.shortest)
        at = places[some]
        if not len(at):
            continue
        sizes = words.sizes[at]
        stems = without_ending(words.hashes[at], sizes, rule.ending) if rule.ending else words.hashes[at]
        for ending in rule.instead:
            hashes = with_ending(stems, sizes - len(rule.ending), ending) if ending else stems
            there = np.flatnonzero(known(hashes))
            yield at[there], hashes[there], np.full(len(there), rule.verb)


class _Tails:
    """The last letters of words, small."""

    def __init__(self, words: Words, places: Offsets) -> None:
        self._letters = [words.codes[words.ends[places] - back] | 0x20 for back in (1, 2, 3, 4)]
        self._met: dict[str, NDArray[np.bool_]] = {"": self._letters[0] <= ord("z")}
        self._met[""] &= self._letters[0] >= ord("a")

    def ending_in(self, ending: str) -> NDArray[np.bool_]:
        """Return which words end so."""
        if ending not in self._met:
            rest, letter = ending[1:], ord(ending[0])
            self._met[ending] = self.ending_in(rest) & (self._letters[len(rest)] == letter)
        return self._met[ending]
