"""Names defined by a text itself: abbreviations, and short names after full ones.

Abbreviations are defined in brackets, in either order: "basal cell carcinoma (BCC)", "BCC (basal cell carcinoma)". The
letters of the short form must be found in the long form in order, the first at its beginning (Schwartz & Hearst 2003);
the long form must have been found as a name. A short name is the last word of a full name ("Marie Curie … Curie"), or
its first word where the last is a legal form ("Siemens AG … Siemens").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.text.frequency import common
from wellread.text.key_table import is_among
from wellread.text.stopwords import STOP_WORDS
from wellread.text.words import Keys, Offsets, word_hash, words

_BRACKETS = re.compile(r"\(([^()\n]{2,120})\)")
_SEPARATOR = re.compile(r"[;,]")
_SHORT = re.compile(r"[^\W_][\w.&/-]{1,9}")
_BEFORE = re.compile(r"([^\W_][\w.&/-]{1,9})\s?$")

LEGAL_FORMS = frozenset(
    """ag inc corp corporation ltd limited gmbh company co plc sa se nv spa llc group holding holdings industries
    airlines airways motors records university institute foundation""".split()
)
"""Last words of names of organisations that are called by their first word."""

TITLES = frozenset(
    """mr mrs ms miss dr prof professor sir dame lord lady madame president queen king prince princess pope saint st
    judge justice senator minister chancellor general captain colonel major sergeant""".split()
)
"""Words before a last name that do not make it another name."""

_COMMON = 1.5
"""log10 per million from which on a word that also occurs in lower case is not a short name ("Ocean", "Street")."""

PARTICLES = frozenset("de da di do du dos del della van von der den ter la le bin ibn al el".split())
"""Lower-case words inside last names."""

_LEGAL, _TITLE, _PARTICLE, _STOP = (
    np.array(sorted(word_hash(word) for word in some), np.uint64)
    for some in (LEGAL_FORMS, TITLES, PARTICLES, STOP_WORDS)
)
_STOPS_BEFORE = np.array(sorted(word_hash(sign) for sign in ".!?:;\"'()-\uffff"), np.uint64)


@dataclass(frozen=True, slots=True)
class TextWords:
    """Words of texts joined to one: borders, hashes under the policies `folded` and `exact`, and capitalisation."""

    starts: Offsets
    ends: Offsets
    hashes: Keys
    exact: Keys
    capital: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans found in the joined texts, sorted by start; `full` marks those that may be shortened later in the text."""

    starts: Offsets
    ends: Offsets
    full: NDArray[np.bool_]


def stands_for(short: str, long: str) -> bool:
    """Return True if a short form is made of letters of a long form, in order, the first at its beginning.

    >>> stands_for("BCC", "basal cell carcinoma"), stands_for("BCC", "cell carcinoma"), stands_for("HIV", "the virus")
    (True, False, False)
    """
    letters, text = [letter for letter in short.lower() if letter.isalnum()], long.lower()
    if len(letters) < 2 or len(text) <= len(short) + 2 or short.lower() in text.split():
        return False
    at = len(text) - 1
    for place in range(len(letters) - 1, -1, -1):
        while at >= 0 and (text[at] != letters[place] or (place == 0 and at > 0 and text[at - 1].isalnum())):
            at -= 1
        if at < 0:
            return False
        at -= 1
    return all(word in STOP_WORDS for word in words(text[: at + 1]))


def definitions(text: str, spans: Spans) -> Iterator[tuple[int, str, int]]:
    """Yield (position from which on, short form, span of the long form) of abbreviations that joined texts define."""
    by_end = np.argsort(spans.ends, kind="stable")
    ends = spans.ends[by_end]
    for match in _BRACKETS.finditer(text):
        inner = _SEPARATOR.split(match[1], maxsplit=1)[0].rstrip()
        short = _singular(inner)
        if _is_short_form(short):
            before = match.start() - (text[match.start() - 1 : match.start()] == " ")
            low, high = np.searchsorted(ends, [before, before + 1]).tolist()
            best = _longest(short, by_end[low:high].tolist(), spans, text)
            if best is not None:
                yield match.start(), short, best
                continue
        word = _BEFORE.search(text, max(0, match.start() - 12), match.start())
        if word is not None and _is_short_form(short := _singular(word[1])):
            low, high = np.searchsorted(spans.starts, [match.start(1), match.start(1) + 1]).tolist()
            longs = [row for row in range(low, high) if spans.ends[row] == match.start(1) + len(inner)]
            best = _longest(short, longs, spans, text)
            if best is not None:
                yield word.start(), short, best


def _singular(short: str) -> str:
    return short[:-1] if len(short) > 2 and short.endswith("s") and short[-2].isupper() else short


def _is_short_form(short: str) -> bool:
    return len(short) <= 10 and not short.islower() and _SHORT.fullmatch(short) is not None and not short.isdigit()


def _longest(short: str, rows: list[int], spans: Spans, text: str) -> int | None:
    for row in sorted(rows, key=lambda row: spans.starts[row] - spans.ends[row]):
        if stands_for(short, text[spans.starts[row] : spans.ends[row]]):
            return row
    return None


def abbreviations(text: str, bases: Offsets, there: TextWords, spans: Spans) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, span of the long form) of every use of an abbreviation after its definition."""
    for begin, short, row in definitions(text, spans):
        first = words(short)[0]
        finish = bases[np.searchsorted(bases, begin, "right")]
        low, high = np.searchsorted(there.starts, [begin, finish]).tolist()
        uses = low + np.flatnonzero(there.exact[low:high] == np.uint64(word_hash(first, "exact")))
        plural = low + np.flatnonzero(there.exact[low:high] == np.uint64(word_hash(first + "s", "exact")))
        for start in there.starts[np.append(uses, plural)].tolist():
            end = start + len(short)
            end += text[end : end + 1] == "s"
            if text.startswith(short, start) and not text[end : end + 1].isalnum():
                yield start, end, row


def short_names(bases: Offsets, there: TextWords, spans: Spans) -> dict[tuple[int, int], list[int]]:
    """Return (start, end) of short names -> the spans of earlier full names, latest first."""
    if not len(spans.starts):
        return {}
    first = np.searchsorted(there.starts, spans.starts)
    last = np.searchsorted(there.ends, spans.ends)
    several = np.flatnonzero(last > first)
    if not len(several):
        return {}
    full = several[spans.full[several] & there.capital[first[several]] & there.capital[last[several]]]
    short = last[full]
    by_first = is_among(there.hashes[short], _LEGAL)
    # "Scotland" does not stand for "James VI of Scotland".
    surname = there.capital[short - 1] | is_among(there.hashes[short - 1], _PARTICLE)
    short[by_first] = first[full[by_first]]
    good = (surname | by_first) & ~common(there.hashes[short], at_least=_COMMON) & ~is_among(there.hashes[short], _STOP)
    good &= there.ends[short] - there.starts[short] >= 3
    full, short = full[good], short[good]
    if not len(full):
        return {}
    text_of = np.searchsorted(bases, spans.starts[full], "right")
    owners: dict[tuple[int, int], list[int]] = {}
    for row, text, hash in zip(full.tolist(), text_of.tolist(), there.hashes[short].tolist(), strict=True):
        owners.setdefault((text, hash), []).append(row)
    uses = np.flatnonzero(there.capital)
    uses = uses[np.isin(there.hashes[uses], there.hashes[short])]
    uses = uses[_stand_alone(uses, there, spans, several)]
    texts = np.searchsorted(bases, there.starts[uses], "right").tolist()
    found: dict[tuple[int, int], list[int]] = {}
    for place, text in zip(uses.tolist(), texts, strict=True):
        start = int(there.starts[place])
        rows = [row for row in owners.get((text, int(there.hashes[place])), ()) if spans.ends[row] <= start]
        if rows:
            found[start, int(there.ends[place])] = rows[::-1]
    return found


def _stand_alone(uses: Offsets, there: TextWords, spans: Spans, several: Offsets) -> NDArray[np.bool_]:
    """Return which words are not part of a longer name, known or not."""
    reach = np.maximum.accumulate(spans.ends[several])
    before = np.searchsorted(spans.starts[several], there.starts[uses], "right") - 1
    alone: NDArray[np.bool_] = (before < 0) | (reach[np.maximum(before, 0)] < there.ends[uses])
    count = len(there.starts)
    left, right = np.maximum(uses - 1, 0), np.minimum(uses + 1, count - 1)
    further = np.maximum(uses - 2, 0)
    begins_sentence = (left == 0) | is_among(there.hashes[further], _STOPS_BEFORE)
    named_left = there.capital[left] & (there.starts[uses] - there.ends[left] == 1) & (uses > 0) & ~begins_sentence
    named_left &= ~is_among(there.hashes[left], _TITLE)
    named_right = there.capital[right] & (there.starts[right] - there.ends[uses] == 1) & (uses + 1 < count)
    alone &= ~named_left & ~named_right
    return alone
