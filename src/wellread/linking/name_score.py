"""Probability that a name found in a text means its most likely entity, from the name alone (`linking.prior`).

A prior says which entity a name means, given that it means one. Whether it does depends on how common its words are in
English ("shell script", "always"), on its case, length and ambiguity. The score is a logistic regression on these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wellread.text.frequency import FLOOR, packaged
from wellread.text.words import word_hash, words

_ENDS = frozenset('.!?:;\n"“”•')
_MOST_WORDS = 4
_SHORT = 3
"""Letters and digits of a short name."""
_LEAST = 1e-3
_NAMES = 1 << 14
"""Maximum cached scores."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the features of a name."""

    bias: float = -0.22
    log_prior: float = 2.70
    frequency: float = -0.58
    """Weight of log10 of the rarest word's occurrences in a million words of English."""
    lower: float = 1.28
    """Weight of the share of lower-case first letters of the rarest word in English."""
    common: float = -0.84
    """Weight of the product of both, for words with more than one occurrence in a million."""
    capital: float = 2.09
    """A capital letter, other than the first of a sentence."""
    lower_text: float = 0.77
    """The text has no capital letters, so that the case of the name says nothing."""
    words: float = 1.16
    """Weight of the number of words after the first, up to 3."""
    short: float = -1.06
    """A name of at most three letters."""


WEIGHTS = Weights()
"""Fitted on 6,221 links of the development sets of the shared and the products KB (docs/log.md)."""


@lru_cache(_NAMES)
def name_score(prior: float, name: str, sentence_start: bool, lower_text: bool) -> float:
    """Return the probability that a name means the entity with this prior.

    >>> round(name_score(1.0, "always", sentence_start=False, lower_text=False), 2)
    0.13
    >>> round(name_score(1.0, "Marie Curie", sentence_start=True, lower_text=False), 2)
    0.93
    """
    frequency, lower, capital, inner_capital, count, short = _features(name)
    has_capital = inner_capital or (capital and not sentence_start)
    logit = (
        WEIGHTS.bias
        + WEIGHTS.log_prior * math.log(min(max(prior, _LEAST), 1 - _LEAST))
        + WEIGHTS.frequency * frequency
        + WEIGHTS.lower * lower
        + WEIGHTS.common * lower * max(frequency, 0.0)
        + WEIGHTS.capital * has_capital
        + WEIGHTS.lower_text * lower_text
        + WEIGHTS.words * count
        + WEIGHTS.short * short
    )
    return 1 / (1 + math.exp(-logit))


def starts_sentence(text: str, start: int) -> bool:
    """Return True if only white space is between an offset and the beginning of the text or the end of a sentence."""
    place = start - 1
    while place >= 0 and text[place].isspace() and text[place] != "\n":
        place -= 1
    return place < 0 or text[place] in _ENDS


def _features(name: str) -> tuple[float, float, bool, bool, int, bool]:
    """Return frequency and lower-case share of the rarest word, capitals (first, later), further words, and short."""
    parts = words(name)
    if not parts:
        return FLOOR, 0.0, False, False, 0, True
    logs, shares = packaged().find(np.array([word_hash(part) for part in parts], np.uint64))
    rarest = int(logs.argmin())
    known = logs[rarest] > FLOOR
    return (
        float(logs[rarest]),
        float(shares[rarest]) if known else 0.0,
        name[0].isupper(),
        any(letter.isupper() for letter in name[1:]),
        min(len(parts), _MOST_WORDS) - 1,
        sum(letter.isalnum() for letter in name) <= _SHORT,
    )
