"""Tables and lines of Markdown in which names and messages stay text, whatever is in them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; names stand left and numbers right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return [f"| {' | '.join(plain(cell).replace('|', '/') for cell in line)} |" for line in lines]


def plain(text: str) -> str:
    """One line without HTML: "a\\n<b>" -> "a &lt;b>"; a name of the user's must neither end a row nor be a tag."""
    return " ".join(text.splitlines()).replace("<", "&lt;")
