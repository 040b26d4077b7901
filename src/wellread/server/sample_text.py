"""A text to try a server with: one that its knowledge bases can link."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, zip_longest

from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase

_KNOWN = (
    "Marie Curie was born in Warsaw and worked in Paris. She won the Nobel Prize twice.",
    ("Marie Curie", "Warsaw", "Paris"),
)
"""A text, and names that a knowledge base must have for it."""
_FORMS = (
    "This text is about {}.",
    "What is {}, and how does it differ from {}?",
    "First they wrote about {}, then about {}, and in the end about {}.",
)
"""Sentences with one name, two, or three."""
_ROWS = 1_000
"""Entities of a KB to choose names from."""
_PLAIN = re.compile(r"\w[\w'’.-]*(?: \w[\w'’.-]*){0,3}")
"""A title that reads well in a sentence: one to four words."""


def sample_text(kbs: Sequence[KnowledgeBase]) -> str:
    """Return a text with names of the knowledge bases; "" if they are empty.

    >>> sample_text([KnowledgeBase.open("products.kb")])
    'What is Kindle Paperwhite, and how does it differ from Paris Mug?'
    """
    text, needed = _KNOWN
    if any(all(kb.candidates(name, limit=1) for name in needed) for kb in kbs):
        return text
    names = [name for name in chain.from_iterable(zip_longest(*map(_names, kbs))) if name is not None]
    chosen = list(dict.fromkeys(names))[: len(_FORMS)]
    return _FORMS[len(chosen) - 1].format(*chosen) if chosen else ""


def _names(kb: KnowledgeBase) -> list[str]:
    """Return titles of well-known entities that read well in a sentence."""
    first = "SELECT title, popularity, num FROM entities ORDER BY num LIMIT ?"
    query = f"SELECT title FROM ({first}) ORDER BY popularity DESC, num"  # noqa: S608
    with sqlite_errors(kb.path):
        titles = [str(title) for (title,) in kb.connection.execute(query, (_ROWS,))]
    plain = [title for title in titles if 2 < len(title) <= 40 and _PLAIN.fullmatch(title)]
    return (plain or [title for title in titles if len(title) <= 80])[: len(_FORMS)]
