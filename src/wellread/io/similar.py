"""Suggestions for a name with a typo."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean vital?" for the known name that is most similar, or "" if none is.

    >>> suggestion("vitl", ["vital", "wordnet"])
    '; did you mean vital?'
    """
    by_lower = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
