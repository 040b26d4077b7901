"""Table of a comparison of linkers on the same texts and knowledge base.

Scores are micro F1 of links whose entity is in the knowledge base, by overlapping spans (ELQ's weak match) and by exact
spans, with a 95 % interval over documents. Every linker is compared with the first: the difference by overlap, with a
paired bootstrap interval.

A missing cell (a linker that could not be loaded, or has not run yet) is shown as "–", with the reason below the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wellread.errors import MissingExtraError
from wellread.evaluation.linking import Estimate, LinkingScores, Measures
from wellread.io import console
from wellread.io.extras import extra
from wellread.training.compare.comparison import MEAN, NOTHING, ComparisonTable, Grid, reasons


@dataclass(frozen=True, slots=True)
class LinkerCost:
    """Cost of linking the texts of one dataset, in a fresh process."""

    texts: int
    seconds: float
    """Wall-clock time."""
    cpu_seconds: float
    """Processor time of all cores, which is more reliable on a busy machine."""
    ready_seconds: float
    """Wall-clock time until the first texts were linked."""
    memory: int | None
    """Peak memory of the process in bytes; None if the system does not report it."""
    kb: int
    """Bytes of the knowledge base and its compiled names."""
    index: int
    """Bytes of the entity vectors and their index beside the knowledge base."""
    model: int
    """Bytes of the model's own folder, without the encoder it is based on."""


@dataclass(frozen=True, slots=True)
class LinkerCell:
    """Result of a linker on one dataset."""

    documents: int
    gold: int
    """Number of gold links; without any, there is no score."""
    overlap: Measures
    exact: Measures
    difference: Estimate | None
    """Difference in F1 by overlap to the first linker; None for the first."""
    cost: LinkerCost

    @classmethod
    def of(cls, scores: LinkingScores, difference: Estimate | None, cost: LinkerCost) -> LinkerCell:
        """Select the scores that the table shows."""
        overlap, exact = scores.get(match="overlap"), scores.get(match="exact")
        return cls(scores.documents, overlap.gold, overlap.linking, exact.linking, difference, cost)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LinkerCell:
        """Restore a cell from `asdict`."""
        overlap, exact = (
            Measures(**{name: Estimate(**value) for name, value in data[match].items()})
            for match in ("overlap", "exact")
        )
        difference = None if data["difference"] is None else Estimate(**data["difference"])
        return cls(data["documents"], data["gold"], overlap, exact, difference, LinkerCost(**data["cost"]))


@dataclass(frozen=True, slots=True)
class LinkerFailure:
    """Linker that failed on a dataset, and the reason."""

    linker: str
    data: str
    why: str

    def __str__(self) -> str:
        return f"{self.data}, {self.linker}: {' '.join(self.why.split())}"


@dataclass(frozen=True, slots=True)
class LinkerTable(ComparisonTable):
    """Linkers by datasets, and their costs."""

    kb: str
    linkers: Mapping[str, str]
    """Model name or folder of each linker."""
    data: Mapping[str, str]
    """File of each dataset."""
    cells: Mapping[tuple[str, str], LinkerCell]
    """Cells by linker and dataset, without failed ones."""
    failed: tuple[LinkerFailure, ...] = ()
    command: str = ""
    """Command line that made the table."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the linkers and datasets."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON."""
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
    def from_dict(cls, data: Mapping[str, Any]) -> LinkerTable:
        """Restore a table from `to_dict`."""
        cells = {
            (linker, name): LinkerCell.from_dict(cell)
            for linker, some in data["linkers"].items()
            for name, cell in some.items()
        }
        failed = tuple(LinkerFailure(**one) for one in data["failed"])
        return cls(data["kb"], data["models"], data["data"], cells, failed, data["command"], data["settings"])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the datasets, and of their mean if there are several."""
        return (*self.data, MEAN) if len(self.data) > 1 else tuple(self.data)

    def header(self) -> tuple[str, ...]:
        """Return the column names of `rows`."""
        parts = (name for data in self.data for name in (data, f"{data}, exact", f"Δ {data}"))
        return ("linker", *parts, *(self.columns[len(self.data) :]))

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text per linker: F1 by overlap and by exact spans, and the difference to the first."""
        return [
            (linker, *(part for data in self.data for part in self._texts(linker, data)), *self._means(linker))
            for linker in self.linkers
        ]

    def screen(self) -> Grid:
        """Return a narrower header and rows for the terminal, with one multi-line cell per dataset."""
        rows = []
        for linker in self.linkers:
            cells = []
            for data in self.data:
                overlap, exact, difference = self._texts(linker, data)
                more = [] if overlap == NOTHING else [f"exact {exact}", *([f"Δ {difference}"] if difference else [])]
                cells.append("\n".join([overlap, *more]))
            rows.append((linker, *cells, *self._means(linker)))
        return ("linker", *self.columns), rows

    def brief(self) -> Grid:
        """Return header and rows for a README: F1 by overlap, processor time and memory."""
        costs = {row[0]: (row[2], row[4]) for row in self.cost_rows()}
        rows = [
            (
                linker,
                *(self._texts(linker, data)[0].split(" ")[0] for data in self.data),
                *self._means(linker),
                *costs.get(linker, (NOTHING, NOTHING)),
            )
            for linker in self.linkers
        ]
        return ("linker", *self.columns, "CPU ms/text", "memory MB"), rows

    cost_header: ClassVar[tuple[str, ...]] = (
        "linker",
        "texts/s",
        "CPU ms/text",
        "ready s",
        "memory MB",
        "KB MB",
        "index MB",
        "model MB",
    )
    """Column names of `cost_rows`."""

    def cost_rows(self) -> list[tuple[str, ...]]:
        """Return a row of costs per linker, over all datasets."""
        rows = []
        for linker in self.linkers:
            costs = [self.cells[linker, data].cost for data in self.data if (linker, data) in self.cells]
            if costs:
                rows.append((linker, *_cost_texts(costs)))
        return rows

    def legend(self) -> list[str]:
        """Return the explanation of the columns."""
        sizes = {data: self._size(data) for data in self.data}
        shown = ", ".join(f"{data}: {size}" for data, size in sizes.items() if size)
        return [
            f'Micro F1 of links whose entity is in "{self.kb}", by overlapping spans and by exact ones'
            f"{f' ({shown})' * bool(shown)}; in brackets the 95 % interval of a bootstrap over texts.",
            f'Δ: against "{next(iter(self.linkers))}", by overlap, each draw with the same texts for both.',
            *self.gaps(),
        ]

    def gaps(self) -> list[str]:
        """Return the reasons for missing cells."""
        known = {*self.cells, *((one.linker, one.data) for one in self.failed)}
        waiting = [f"{data}, {linker}" for data in self.data for linker in self.linkers if (linker, data) not in known]
        return reasons(
            (
                (f"{NOTHING}: no links, because it failed:", self.failed),
                (f"{NOTHING}: not linked yet; run the same command again:", waiting),
            )
        )

    def save_picture(self, path: Path) -> None:
        """Draw the F1 and costs of the linkers; without matplotlib a note says so, and nothing is drawn."""
        try:
            with extra("plots", f"the picture {path.name}"):
                from wellread.plots.curves import draw_linkers, save
        except MissingExtraError as error:
            console.note(str(error))
            return
        if self.cells:
            save(draw_linkers(self.to_dict()), path)

    def cost_legend(self) -> str:
        """Return the explanation of the cost columns."""
        return (
            "Each linker on each dataset in a fresh process: texts per second (wall clock), CPU time of all cores "
            "per text, seconds until the first texts were linked, peak memory of the process. On "
            "disk: the KB with its names, entity vectors and index, the model's own folder."
        )

    def _size(self, data: str) -> str:
        found = [self.cells[linker, data] for linker in self.linkers if (linker, data) in self.cells]
        return f"{found[0].documents:,} texts, {found[0].gold:,} links" if found else ""

    def _texts(self, linker: str, data: str) -> tuple[str, str, str]:
        """Return F1 by overlap with its interval, F1 by exact spans, and the difference with its interval."""
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


def _cost_texts(costs: Sequence[LinkerCost]) -> tuple[str, ...]:
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
    """Format a share without its leading zero: .891"""
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
    shown = [f"{value:+.3f}".replace("0.", ".", 1) for value in values]
    return shown[0] + (f" [{shown[1]}, {shown[2]}]" if len(shown) > 1 else "")
