"""English word forms: WordNet's morphy ("geese" -> "goose", "ran" -> "run"), and regular forms for other KBs.

morphy looks a form up in the exception lists, else detaches an ending and checks if the rest is a word. `word_forms`
generates the same pairs in the other direction, once per knowledge base: exactly the forms that morphy would accept,
so that texts need no analysis. Unlike morphy, function words have irregular forms only ("was" is a form of "be", not of
"WA").

`regular_forms` detaches and adds endings for all words of a text at once ("carcinomas" -> "carcinoma", "vaccinated" ->
"vaccinate"). The hash of a word is a sum over its letters (`text.words`), so this is arithmetic on hashes and needs no
table of forms. A result counts only if it is a word of the KB's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.text.stopwords import AUXILIARIES, FUNCTION_WORDS
from wellread.text.words import Keys, Offsets, Words, with_ending, without_ending

Known = Callable[[Keys], NDArray[np.bool_]]

DETACH: Mapping[str, tuple[tuple[str, str], ...]] = {
    "n": (
        *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z")),
        *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
    ),
    "v": (
        *(("s", ""), ("ies", "y"), ("es", "e"), ("es", "")),
        *(("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    ),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
"""Part of speech -> (ending of the form, ending of the word); WordNet's table, morphy(7WN)."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a word ("geese" of "goose"), for entities of one kind ("n") or of any ("")."""

    form: str
    word: str
    kind: str = ""


def word_forms(words: Iterable[tuple[str, str]], exceptions: Iterable[Form]) -> Iterator[Form]:
    """Yield the forms of (word, kind) pairs, regular and irregular, without the words themselves.

    >>> [form.form for form in word_forms([("goose", "n")], [Form("geese", "goose", "n")])]
    ['gooses', 'geese']
    """
    irregular = list(exceptions)
    excepted = {(form.form, form.kind) for form in irregular}
    pairs = set(words)
    for word, kind in sorted(pairs):
        for ending, rest in DETACH.get(kind, ()):
            if not word.endswith(rest):
                continue
            form = word[: len(word) - len(rest)] + ending
            if (form, kind) not in excepted and not _is_excluded(form, kind):
                yield Form(form, word, kind)
    known = {word for word, _ in pairs}
    for exception in irregular:
        fits = exception.word in known if not exception.kind else (exception.word, exception.kind) in pairs
        if fits and exception.form != exception.word and " " not in exception.form:
            yield exception


def _is_excluded(form: str, kind: str) -> bool:
    if form in FUNCTION_WORDS or form in AUXILIARIES:
        return True
    return kind == "n" and (len(form) <= 2 or form.endswith("ss"))


@dataclass(frozen=True, slots=True)
class _Rule:
    """Replacement of `ending` by one of `instead`, for words that do not end in one of `unless`."""

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
    """Return (place in the text, hash, is a verb form) of known words whose forms the words of a text are.

    `reverse` adds the other direction: known words that are forms of the words of the text.
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
        mask = tails.ending_in(rule.ending)
        for tail in rule.unless:
            mask = mask & ~tails.ending_in(tail)
        if rule.shortest > 4:
            mask = mask & (words.sizes[places] >= rule.shortest)
        at = places[mask]
        if not len(at):
            continue
        sizes = words.sizes[at]
        stems = without_ending(words.hashes[at], sizes, rule.ending) if rule.ending else words.hashes[at]
        for ending in rule.instead:
            hashes = with_ending(stems, sizes - len(rule.ending), ending) if ending else stems
            there = np.flatnonzero(known(hashes))
            yield at[there], hashes[there], np.full(len(there), rule.verb)


class _Tails:
    """Endings of words, compared in lower case."""

    def __init__(self, words: Words, places: Offsets) -> None:
        self._letters = [words.codes[words.ends[places] - back] | 0x20 for back in (1, 2, 3, 4)]
        self._met: dict[str, NDArray[np.bool_]] = {"": self._letters[0] <= ord("z")}
        self._met[""] &= self._letters[0] >= ord("a")

    def ending_in(self, ending: str) -> NDArray[np.bool_]:
        """Return which words have this ending."""
        if ending not in self._met:
            rest, letter = ending[1:], ord(ending[0])
            self._met[ending] = self.ending_in(rest) & (self._letters[len(rest)] == letter)
        return self._met[ending]
