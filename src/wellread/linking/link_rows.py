"""Links as rows of CSV, without Arrow: the base install has no pyarrow."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from wellread.document import Link

LINK_COLUMNS = ("start", "end", "mention", "entity", "title", "score", "kb", "mention_score", "found_by")
"""Columns of a link: the fields of `wellread.Link` without candidates; `mention` is its text."""
NESTED = {"mention": "text"}
"""Fields of `wellread.Link` with another name in the table."""


def link_row(link: Link) -> dict[str, Any]:
    """Return the columns of a link."""
    return {name: getattr(link, NESTED.get(name, name)) for name in LINK_COLUMNS}


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV: cells are quoted where they must be, and None is an empty cell."""
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return lines.getvalue()
