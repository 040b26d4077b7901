"""Markdown tables in which names and messages are escaped."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with the first column left-aligned and the others right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return [f"| {' | '.join(plain(cell).replace('|', '/') for cell in line)} |" for line in lines]


def plain(text: str) -> str:
    r"""Return the text in one line, with "<" escaped: "a\\n<b>" -> "a &lt;b>"."""
    return " ".join(text.splitlines()).replace("<", "&lt;")
