"""Parts that comparisons of arms and of linkers share: running cells, and tables in Markdown and JSON.

A comparison is a grid of cells, one folder each (task × arm × seed in `grid`, dataset × linker in `linkers`). Cells run
one after the other or in a pool; a failed cell does not stop the others, except by a storage error, which would stop
all. The table is written after every cell.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from wellread.errors import StorageError, WellreadError
from wellread.io.files import write_atomically

MEAN = "mean"
"""Column of the mean over tasks or datasets."""
NOTHING = "–"
"""Shown where there is no number."""

C = TypeVar("C")
R = TypeVar("R")
Grid = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows of text."""


def run_cells(cells: Iterable[C], run: Callable[[C], R]) -> Iterator[tuple[C, float, R | WellreadError]]:
    """Run cells one by one; yield each with its duration in seconds and its result or error."""
    for cell in cells:
        begin = time.monotonic()
        result: R | WellreadError
        try:
            result = run(cell)
        except StorageError:
            raise
        except WellreadError as error:
            result = error
        yield cell, time.monotonic() - begin, result


class ComparisonTable(ABC):
    """Table of a comparison: scores, costs and legends, as Markdown, JSON and a picture."""

    __slots__ = ()

    cost_header: ClassVar[tuple[str, ...]]
    """Column names of `cost_rows`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON."""

    @abstractmethod
    def header(self) -> tuple[str, ...]:
        """Return the column names of `rows`."""

    @abstractmethod
    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text per arm or linker; the first is the baseline."""

    @abstractmethod
    def screen(self) -> Grid:
        """Return a narrower header and rows for the terminal, with multi-line cells."""

    @abstractmethod
    def brief(self) -> Grid:
        """Return header and rows for a README: scores and the main costs."""

    @abstractmethod
    def cost_rows(self) -> list[tuple[str, ...]]:
        """Return a row of costs per arm or linker."""

    @abstractmethod
    def legend(self) -> list[str]:
        """Return the explanation of the columns, and of missing scores."""

    @abstractmethod
    def gaps(self) -> list[str]:
        """Return the reasons for missing scores."""

    @abstractmethod
    def cost_legend(self) -> str:
        """Return the explanation of the cost columns."""

    @abstractmethod
    def save_picture(self, path: Path) -> None:
        """Draw the table to PNG and SVG files, unless it is empty."""

    def to_json(self) -> str:
        """Return the whole table as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """Return the table in GitHub Markdown, with its legend."""
        lines = [*markdown(self.header(), self.rows()), "", *map(plain, self.legend())]
        if costs := self.cost_rows():
            lines += ["", *markdown(self.cost_header, costs), "", self.cost_legend()]
        return "\n".join(lines) + "\n"

    def write(self, folder: str | Path, *, draw: bool = False) -> None:
        """Write table.md and table.json to a folder, and the picture if `draw`."""
        for name, text in (("table.md", self.to_markdown()), ("table.json", self.to_json())):
            with write_atomically(Path(folder) / name) as file:
                file.write(text.encode())
        if draw:
            self.save_picture(Path(folder) / "table")


def reasons(groups: Iterable[tuple[str, Sequence[Any]]]) -> list[str]:
    """Return the lines of (heading, items) groups, without empty groups."""
    return [
        line
        for heading, items in groups
        if items
        for line in (heading, *(f"- {' '.join(str(item).split())}" for item in items))
    ]


def folder_name(name: str) -> str:
    """Return a name that is valid as a folder name on every system: "w/o graph" -> "w-o graph"."""
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]', "-", name).strip(" .") or "-"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with the first column left-aligned and the others right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return [f"| {' | '.join(plain(cell).replace('|', '/') for cell in line)} |" for line in lines]


def plain(text: str) -> str:
    """Return the text in one line, with "<" escaped: "a\\n<b>" -> "a &lt;b>"."""
    return " ".join(text.splitlines()).replace("<", "&lt;")
