"""Normal form of names: folded words without punctuation.

"Dr. Martens®" -> "dr martens", "Köln" -> "koln", "C++" -> "c + +"
"""

from __future__ import annotations

import re
from functools import lru_cache

from wellread.mentions.name_variants import SIGNS
from wellread.text import words as names

_SIGNS = frozenset(SIGNS)
_DIGITS = re.compile(r"\d+")
_ROMAN = re.compile(r"(?=[ivx])(?:x{0,3})(?:ix|iv|v?i{0,3})")


def normal_words(name: str) -> list[str]:
    """Return the folded words of a name without punctuation; with it, if there is nothing else."""
    if name.isascii():
        folded = name.lower()
    else:
        folded = "".join(" " if letter.isspace() else names.fold(letter) for letter in name)
    if folded.isascii() and folded.replace(" ", "").isalnum():
        return folded.split()
    found = names.words(folded.replace("'", ""))
    return [word for word in found if word not in _SIGNS] or found


def initials(words: list[str]) -> str:
    """Return the first letters of words: ["united", "nations"] -> "un"."""
    return "".join(word[0] for word in words)


@lru_cache(1 << 16)
def numbers(word: str) -> tuple[str, ...]:
    """Return the numbers in a word, Roman ones included: "wh1000xm5" -> ("1000", "5"), "ii" -> ("ii",)."""
    if word.isalpha():
        return (word,) if len(word) > 1 and _ROMAN.fullmatch(word) else ()
    return tuple(digits.lstrip("0") or "0" for digits in _DIGITS.findall(word))


@lru_cache(1 << 18)
def word_similarity(given: str, known: str) -> float:
    """Return the similarity of two different words from 0 to 1: a typo, or an abbreviation of the other.

    "intl" is an abbreviation of "international": the same first letter, and all letters in order.
    """
    from rapidfuzz.distance import OSA

    short, long = (given, known) if len(given) <= len(known) else (known, given)
    if short.isdigit() or long.isdigit():
        return 0.0
    similar = 1 - OSA.distance(given, known) / len(long)
    if similar < 0.6 and len(long) - len(short) >= 2 and short[0] == long[0]:
        if long.startswith(short):
            return 0.65 if len(short) > 1 else 0.45
        if len(short) > 1 and _in_order(short, long):
            return 0.5
    return similar if similar >= 0.6 else 0.0


def _in_order(short: str, long: str) -> bool:
    letters = iter(long)
    return all(letter in letters for letter in short)
