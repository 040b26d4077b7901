"""Reports of comparisons: sections of an HTML page, or rows for a README, from folders of `wellread compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from wellread.errors import InputError
from wellread.plots.report import Grid, Picture, Section, report_page
from wellread.training.compare.comparison import markdown, plain
from wellread.training.compare.linker_tables import LinkerTable
from wellread.training.compare.tables import Table


def read_comparison(folder: str | Path) -> Table | LinkerTable:
    """Read the table in a comparison's folder, of arms or of linkers."""
    path = Path(folder) / "table.json"
    try:
        data = json.loads(path.read_bytes())
        return LinkerTable.from_dict(data) if "linkers" in data else Table.from_dict(data)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} has no table.json; give the folder of a comparison that wellread compare has made"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError) as error:
        raise InputError(
            f"{path} is not the table of a comparison ({type(error).__name__}: {error}); run its command again"
        ) from error


def make_report(folders: Sequence[str | Path], *, title: str = "Comparison") -> str:
    """Return one HTML page of all comparisons."""
    return report_page([section_of(folder) for folder in folders], title)


def make_rows(folders: Sequence[str | Path]) -> str:
    """Return a small Markdown table of each comparison, for a README."""
    parts = []
    for folder in folders:
        table = read_comparison(folder)
        gaps = [*map(plain, table.gaps())]
        parts.append("\n".join([*markdown(*table.brief()), *(["", *gaps] if gaps else [])]))
    return "\n\n".join(parts) + "\n"


def section_of(folder: str | Path) -> Section:
    """Return the tables, plots and costs of one comparison."""
    table = read_comparison(folder)
    place = Path(folder).name or str(folder)
    if isinstance(table, LinkerTable):
        return Section(f"Linkers on {table.kb}", _linkers(table), table.command, place)
    tasks = ", ".join(table.metrics) or "tasks"
    return Section(f"{_listed(table.arms)} on {tasks}", _arms(table), table.command, place)


def _arms(table: Table) -> list[Grid | Picture]:
    from wellread.plots.curves import draw_comparison, draw_costs, to_svg

    data = table.to_dict()
    parts: list[Grid | Picture] = [
        Grid("Scores", *table.screen(), table.legend()),
        Picture(
            f"Every arm's difference to {table.arms[0]} in points: mean, 95 % interval, and a dot for each seed",
            to_svg(draw_comparison(data)),
        ),
    ]
    if table.costs:
        parts += [
            Grid("Costs", table.cost_header, table.cost_rows(), [table.cost_legend()]),
            Picture("Cost of a training step: median over tasks", to_svg(draw_costs(data))),
        ]
    return parts


def _linkers(table: LinkerTable) -> list[Grid | Picture]:
    from wellread.plots.curves import draw_linkers, to_svg

    parts: list[Grid | Picture] = [Grid("Scores", *table.screen(), table.legend())]
    if table.cells:
        caption = "F1 by overlapping spans with its 95 % interval, by exact spans, and processor time for a text"
        parts += [
            Picture(caption, to_svg(draw_linkers(table.to_dict()))),
            Grid("Costs", table.cost_header, table.cost_rows(), [table.cost_legend()]),
        ]
    named = [(name, model) for name, model in table.linkers.items() if name != model]
    return [*parts, Grid("Where they are from", ("linker", "model"), named)] if named else parts


def _listed(names: Sequence[str], most: int = 4) -> str:
    """Join names for a heading: "none, kam, knowbert and 4 more"."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
