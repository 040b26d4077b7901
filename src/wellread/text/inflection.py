"""English word forms as WordNet's morphy reads them: "geese" -> "goose", "ran" -> "run", "happiest" -> "happy".

morphy takes a form apart (exception list first, else detach an ending) and asks whether the rest is a word. Here the
same pairs are made the other way round, once, from the words that a knowledge base has: whatever morphy would accept,
and nothing else. So a text needs no analysis when it is read.

Unlike morphy, function words take only their exceptions ("was" is a form of "be", not of "WA").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from wellread.text.stopwords import AUXILIARIES, FUNCTION_WORDS

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
    """An irregular form of a word ("geese" of "goose"), for entities of one kind ("n") or of any ("")."""

    form: str
    word: str
    kind: str = ""


def word_forms(words: Iterable[tuple[str, str]], exceptions: Iterable[Form]) -> Iterator[Form]:
    """Every form of (word, kind) pairs that is not the word itself, regular and irregular.

    >>> [form.form for form in word_forms([("goose", "n")], [Form("geese", "goose", "n")])]
    ['gooses', 'geese']
    """
    irregular = list(exceptions)
    excepted = {(form.form, form.kind) for form in irregular}
    there = set(words)
    for word, kind in sorted(there):
        for ending, rest in DETACH.get(kind, ()):
            if not word.endswith(rest):
                continue
            form = word[: len(word) - len(rest)] + ending
            if (form, kind) not in excepted and not _left_alone(form, kind):
                yield Form(form, word, kind)
    known = {word for word, _ in there}
    for exception in irregular:
        fits = exception.word in known if not exception.kind else (exception.word, exception.kind) in there
        if fits and exception.form != exception.word and " " not in exception.form:
            yield exception


def _left_alone(form: str, kind: str) -> bool:
    if form in FUNCTION_WORDS or form in AUXILIARIES:
        return True
    return kind == "n" and (len(form) <= 2 or form.endswith("ss"))
