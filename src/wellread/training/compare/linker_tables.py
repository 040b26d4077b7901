"""The table that a comparison of linkers makes: the same texts and knowledge base, and what each linker makes of them.

Scores are micro F1 of links whose entity is in the knowledge base, by overlapping spans (ELQ's weak match) and by exact
ones, with a 95 % interval over documents. Every linker is held against the first: the difference by overlap, with the
interval of a bootstrap that draws the same documents for both.

A cell that is not there (a linker that cannot be loaded, or was not asked yet) is shown as "–", and why is told below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from wellread.evaluation.linking import Estimate, LinkingScores, Measures
from wellread.training.compare.markdown import markdown, plain
from wellread.training.compare.tables import NOTHING

MEAN = "mean"
"""The column of the mean over data sets."""


@dataclass(frozen=True, slots=True)
class LinkerCost:
    """What it took to link the texts of one data set, in a process of its own."""

    texts: int
    seconds: float
    """By the clock."""
    cpu_seconds: float
    """Of all cores together: on a busy machine it says more than the clock."""
    ready_seconds: float
    """By the clock, until the first texts were linked."""
    memory: int | None
    """The most bytes that the process held; None where the system does not tell."""
    kb: int
    """Bytes of the knowledge base and its compiled names."""
    index: int
    """Bytes of entity vectors and their index, of what lies beside the knowledge base."""
    model: int
    """Bytes of the model's own folder; the encoder that it may begin from is not in it."""


@dataclass(frozen=True, slots=True)
class LinkerCell:
    """What a linker reached on one data set."""

    documents: int
    gold: int
    """Links that were asked for; where there is none, there is no score to tell."""
    overlap: Measures
    exact: Measures
    difference: Estimate | None
    """Of F1 by overlap to the first linker; None for that one."""
    cost: LinkerCost

    @classmethod
    def of(cls, scores: LinkingScores, difference: Estimate | None, cost: LinkerCost) -> LinkerCell:
        """The part of all scores that a table has room for."""
        overlap, exact = scores.get(match="overlap"), scores.get(match="exact")
        return cls(scores.documents, overlap.gold, overlap.linking, exact.linking, difference, cost)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> LinkerCell:
        """The cell that `asdict` told."""
        overlap, exact = (
            Measures(**{name: Estimate(**value) for name, value in told[match].items()})
            for match in ("overlap", "exact")
        )
        difference = None if told["difference"] is None else Estimate(**told["difference"])
        return cls(told["documents"], told["gold"], overlap, exact, difference, LinkerCost(**told["cost"]))


@dataclass(frozen=True, slots=True)
class LinkerFailure:
    """A linker without links on a data set, and why."""

    linker: str
    data: str
    why: str

    def __str__(self) -> str:
        return f"{self.data}, {self.linker}: {' '.join(self.why.split())}"


@dataclass(frozen=True, slots=True)
class LinkerTable:
    """Linkers by data sets, and what the linkers cost."""

    kb: str
    linkers: Mapping[str, str]
    """What each is loaded by: a model's name, or its folder."""
    data: Mapping[str, str]
    """The file of each data set."""
    cells: Mapping[tuple[str, str], LinkerCell]
    """By linker and data set; those that failed have none."""
    failed: tuple[LinkerFailure, ...] = ()
    command: str = ""
    """What made the table, as it was typed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How linkers were loaded and data sets read."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, for JSON."""
        return {
            "kb": self.kb,
            "against": next(iter(self.linkers)),
            "models": dict(self.linkers),
            "data": dict(self.data),
            "settings": dict(self.settings),
            "linkers": {
                linker: {data: asdict(self.cells[linker, data]) for data in self.data if (linker, data) in self.cells}
                for linker in self.linkers
            },
            "failed": [asdict(failure) for failure in self.failed],
            "command": self.command,
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> LinkerTable:
        """The table that `to_dict` told."""
        cells = {
            (linker, data): LinkerCell.from_dict(cell)
            for linker, some in told["linkers"].items()
            for data, cell in some.items()
        }
        failed = tuple(LinkerFailure(**one) for one in told["failed"])
        return cls(told["kb"], told["models"], told["data"], cells, failed, told["command"], told["settings"])

    def to_json(self) -> str:
        """The whole table as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @property
    def columns(self) -> tuple[str, ...]:
        """The data sets, and their mean where there are several."""
        return (*self.data, MEAN) if len(self.data) > 1 else tuple(self.data)

    def header(self) -> tuple[str, ...]:
        """The names of `rows`."""
        parts = (name for data in self.data for name in (data, f"{data}, exact", f"Δ {data}"))
        return ("linker", *parts, *(self.columns[len(self.data) :]))

    def rows(self) -> list[tuple[str, ...]]:
        """A row of text for each linker: F1 by overlap and by exact spans, and the difference to the first."""
        return [
            (linker, *(part for data in self.data for part in self._told(linker, data)), *self._means(linker))
            for linker in self.linkers
        ]

    def screen(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The same, narrower: a cell has all of a data set, line by line."""
        rows = []
        for linker in self.linkers:
            cells = []
            for data in self.data:
                overlap, exact, difference = self._told(linker, data)
                more = [] if overlap == NOTHING else [f"exact {exact}", *([f"Δ {difference}"] if difference else [])]
                cells.append("\n".join([overlap, *more]))
            rows.append((linker, *cells, *self._means(linker)))
        return ("linker", *self.columns), rows

    def brief(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows for a README: F1 by overlap, and the two costs that matter most."""
        costs = {row[0]: (row[2], row[4]) for row in self.cost_rows()}
        rows = [
            (
                linker,
                *(self._told(linker, data)[0].split(" ")[0] for data in self.data),
                *self._means(linker),
                *costs.get(linker, (NOTHING, NOTHING)),
            )
            for linker in self.linkers
        ]
        return ("linker", *self.columns, "CPU ms/text", "memory MB"), rows

    cost_header = ("linker", "texts/s", "CPU ms/text", "ready s", "memory MB", "KB MB", "index MB", "model MB")
    """The names of `cost_rows`."""

    def cost_rows(self) -> list[tuple[str, ...]]:
        """A row of text for each linker that linked something, over all data sets."""
        rows = []
        for linker in self.linkers:
            costs = [self.cells[linker, data].cost for data in self.data if (linker, data) in self.cells]
            if costs:
                rows.append((linker, *_told_costs(costs)))
        return rows

    def to_markdown(self) -> str:
        """The table as GitHub and its kin show it, with what it means below."""
        lines = [*markdown(self.header(), self.rows()), "", *map(plain, self.legend())]
        lines += ["", *markdown(self.cost_header, self.cost_rows()), "", self.cost_legend()]
        return "\n".join(lines) + "\n"

    def legend(self) -> list[str]:
        """What the columns mean, in a few lines."""
        sizes = {data: self._size(data) for data in self.data}
        told = ", ".join(f"{data}: {size}" for data, size in sizes.items() if size)
        return [
            f'Micro F1 of links whose entity is in "{self.kb}", by overlapping spans and by exact ones'
            f"{f' ({told})' * bool(told)}; in brackets the 95 % interval of a bootstrap over texts.",
            f'Δ: against "{next(iter(self.linkers))}", by overlap, each draw with the same texts for both.',
            *self.gaps(),
        ]

    def gaps(self) -> list[str]:
        """Why there are gaps in the table, if there are."""
        known = {*self.cells, *((one.linker, one.data) for one in self.failed)}
        waiting = [
            f"- {data}, {linker}" for data in self.data for linker in self.linkers if (linker, data) not in known
        ]
        some = (
            (f"{NOTHING}: no links, because it failed:", [f"- {failure}" for failure in self.failed]),
            (f"{NOTHING}: not linked yet; the same command goes on:", waiting),
        )
        return [line for begin, lines in some if lines for line in (begin, *lines)]

    def cost_legend(self) -> str:
        """What the columns of costs mean."""
        return (
            "Each linker on each data set in a process of its own: texts a second by the clock, processor time of all "
            "cores for a text, seconds until the first texts were linked, the most memory that the process held. On "
            "disk: the KB with its names, entity vectors and index beside it, the model's own folder."
        )

    def _size(self, data: str) -> str:
        found = [self.cells[linker, data] for linker in self.linkers if (linker, data) in self.cells]
        return f"{found[0].documents:,} texts, {found[0].gold:,} links" if found else ""

    def _told(self, linker: str, data: str) -> tuple[str, str, str]:
        """F1 by overlap with its interval, F1 by exact spans, the difference with its interval."""
        cell = self.cells.get((linker, data))
        if cell is None or not cell.gold:
            return NOTHING, NOTHING, NOTHING
        return _share(cell.overlap.f1), _short(cell.exact.f1.value), _signed(cell.difference)

    def _means(self, linker: str) -> tuple[str, ...]:
        if len(self.data) < 2:
            return ()
        cells = [self.cells.get((linker, data)) for data in self.data]
        if not all(cell is not None and cell.gold for cell in cells):
            return (NOTHING,)
        return (_short(math.fsum(cell.overlap.f1.value for cell in cells if cell is not None) / len(cells)),)


def _told_costs(costs: Sequence[LinkerCost]) -> tuple[str, ...]:
    texts, seconds, cpu = (sum(getattr(one, name) for one in costs) for name in ("texts", "seconds", "cpu_seconds"))
    memory = [one.memory for one in costs if one.memory is not None]
    ready = sorted(one.ready_seconds for one in costs)[len(costs) // 2]
    return (
        f"{texts / seconds:,.0f}" if seconds else NOTHING,
        f"{1000 * cpu / texts:.2f}" if texts else NOTHING,
        f"{ready:.1f}",
        f"{max(memory) / 1e6:,.0f}" if memory else NOTHING,
        *(f"{getattr(costs[0], part) / 1e6:,.1f}" for part in ("kb", "index", "model")),
    )


def _short(value: float) -> str:
    """A share as tables of linkers have it: .891"""
    return f"{value:.3f}".replace("0.", ".", 1)


def _share(estimate: Estimate) -> str:
    interval = (
        "" if estimate.low is None or estimate.high is None else (f" ({_short(estimate.low)}–{_short(estimate.high)})")
    )
    return _short(estimate.value) + interval


def _signed(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    values = (estimate.value, *(() if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)))
    told = [f"{value:+.3f}".replace("0.", ".", 1) for value in values]
    return told[0] + (f" [{told[1]}, {told[2]}]" if len(told) > 1 else "")
