"""Search for entities by the beginning of a name, by words, or by a name with typing errors.

All three use one full-text index over names and descriptions. A fuzzy search first corrects each word by the index's
vocabulary, so that it needs no index of its own. Words are those of the full-text index, not of `text.words`: it does
not split scripts without spaces.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wellread.errors import UsageError, WellreadError
from wellread.text.words import fold

if TYPE_CHECKING:
    from wellread.kb.store import How

Row = tuple[int, str, str, str, str, float]

_WORD = re.compile(r"[^\W_]+")

_NEAR = 70.0
"""Minimum similarity (of 100) of a correction."""

_CONSIDERED = 200
"""Number of entities, the most popular ones, that a fuzzy search ranks."""

_MOST_TERMS = 16
"""Maximum number of different words of a query in a text search: each costs a walk through an index."""

_MOST_ALIKE = 8
"""The same for a fuzzy search, where each may cost a walk through the whole vocabulary."""

_LONGEST_TERM = 64
"""Maximum letters of a word that is corrected."""

_OFTEN = 2_000
"""Steps of SQLite's virtual machine between two calls of `stop`: less than a millisecond."""

Stop = Callable[[], bool]


class SearchStoppedError(WellreadError):
    """A search that was stopped because its result is no longer needed."""


def find(connection: sqlite3.Connection, query: str, how: How, limit: int, stop: Stop | None = None) -> list[Row]:
    """Return rows of `entities`, best first; none for a query without words.

    `stop` is called repeatedly; once it returns True, the search ends with a `SearchStoppedError`.
    """
    terms = _terms(query)
    if not terms:
        return []
    with _stoppable(connection, stop):
        if how == "prefix":
            return _matching(connection, f"{{names}}: {_quoted(' '.join(terms))}*", limit)
        if how == "text":
            some = list(dict.fromkeys(term.casefold() for term in terms))[:_MOST_TERMS]
            return _matching(connection, " AND ".join(map(_quoted, some)), limit, by_rank=True)
        if how == "fuzzy":
            return _find_alike(connection, list(dict.fromkeys(map(_folded, terms)))[:_MOST_ALIKE], limit)
    raise UsageError(f"how={how!r} is not a way to search; choose prefix, text or fuzzy")


def _find_alike(connection: sqlite3.Connection, terms: list[str], limit: int) -> list[Row]:
    """Return entities with a name of words that are similar to the terms; none if a term has no similar word."""
    either = []
    for term in terms:
        options = _alike(connection, term)
        if not options:
            return []
        either.append("(" + " OR ".join(map(_quoted, options)) + ")")
    rows = _matching(connection, "{names}: (" + " AND ".join(either) + ")", max(_CONSIDERED, limit))
    return _nearest(connection, terms, rows)[:limit]


@contextmanager
def _stoppable(connection: sqlite3.Connection, stop: Stop | None) -> Iterator[None]:
    if stop is None:
        yield
        return
    connection.set_progress_handler(stop, _OFTEN)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise SearchStoppedError("the search was stopped; ask again for fewer words") from error
    finally:
        connection.set_progress_handler(None, 0)


def _terms(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text))


def _folded(term: str) -> str:
    return "".join(map(fold, term))


def _quoted(term: str) -> str:
    return '"' + term.replace('"', '""') + '"'


def _matching(connection: sqlite3.Connection, match: str, limit: int, *, by_rank: bool = False) -> list[Row]:
    # Words of titles weigh ten times those of descriptions; the more popular entity comes first by name.
    order = "bm25(entity_text, 10.0, 1.0), e.popularity DESC" if by_rank else "e.popularity DESC, length(e.title)"
    return connection.execute(
        "SELECT e.num, e.id, e.title, e.description, e.kind, CAST(e.popularity AS REAL) FROM entity_text t "  # noqa: S608  # fixed orders
        f"JOIN entities e ON e.num = t.rowid WHERE entity_text MATCH ? ORDER BY {order}, e.num LIMIT ?",
        (match, limit),
    ).fetchall()


def _alike(connection: sqlite3.Connection, term: str) -> list[str]:
    """Return words of the index that are similar to a term: those with the same first letter, else any."""
    from rapidfuzz import fuzz, process

    if not 0 < len(term) <= _LONGEST_TERM:
        return []
    for low, high in ((term[0], chr(ord(term[0]) + 1)), ("", chr(0x10FFFF))):
        rows = connection.execute(
            "SELECT term FROM vocabulary WHERE term >= ? AND term < ? AND length(term) BETWEEN ? AND ?",
            (low, high, len(term) - 2, len(term) + 2),
        )
        near = [word for (word,) in rows]
        best = process.extract(term, near, scorer=fuzz.ratio, score_cutoff=_NEAR, limit=12)
        if best:
            return [word for word, _, _ in best]
    return []


def _nearest(connection: sqlite3.Connection, terms: list[str], rows: list[Row]) -> list[Row]:
    """Sort by the similarity of the nearest name; then the more popular entity, then the shorter name."""
    from rapidfuzz import fuzz

    def likeness(name: str) -> tuple[float, float]:
        words = [_folded(word) for word in _terms(name)]
        nearest = sum(max((fuzz.ratio(term, word) for word in words), default=0.0) for term in terms)
        return nearest, fuzz.ratio(" ".join(terms), " ".join(words))

    def order(row: Row) -> tuple[float, float, float]:
        aliases = connection.execute("SELECT name FROM aliases WHERE entity = ?", (row[0],))
        words, whole = max((likeness(name) for (name,) in aliases), default=(0.0, 0.0))
        return -words, -row[5], -whole

    return sorted(rows, key=order)
