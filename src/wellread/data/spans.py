"""Spans and titles of gold links, as all formats of linked text have them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from wellread.document import Link
from wellread.errors import InputError


def checked_span(start: object, end: object, text: str) -> tuple[int, int]:
    """Return a span that is inside the text; raise for any other."""
    if type(start) is int and type(end) is int and 0 <= start < end <= len(text):
        return start, end
    raise InputError(
        f"the span {start!r}:{end!r} is not inside the text of {len(text)} characters (from 0, end exclusive); "
        "correct it, or leave out broken documents with --skip-broken"
    )


def by_place(links: Iterable[Link]) -> tuple[Link, ...]:
    """Return links in the order of their spans."""
    return tuple(sorted(links, key=lambda link: (link.start, link.end)))


def title_in(reference: str) -> str:
    """Return the title in a reference: http://en.wikipedia.org/wiki/Caf%C3%A9_au_lait -> Café au lait."""
    for marker in ("/wiki/", "/resource/"):
        if marker in reference:
            name = reference.partition(marker)[2]
            break
    else:
        name = reference.rstrip("/").rpartition("/")[2]
    # Underscores first: a percent-encoded one (%5F) is literal.
    return unquote(name.replace("_", " "))
