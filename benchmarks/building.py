"""Time and memory of building a knowledge base, and of adding to a large one.

Bars: cost per entity at 1 M within 1.5 × of that at 100 k; peak memory < 1 GB; adding 100 entities to the 1 M KB and
linking one of them by name < 1 s in all. Everything runs in fresh processes; compiling the matcher is part of it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.data import copy_kb, generated_kb
from benchmarks.report import Report, arguments
from benchmarks.workers import run


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("building", options.quick)
    small, large = (2_000, 10_000) if options.quick else (100_000, 1_000_000)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _measure_building(report, Path(folder), small, large)
        _measure_adding(report, Path(folder), generated_kb(large, options.folder), 2 if options.quick else 5)
    return report.show()


def _measure_building(report: Report, folder: Path, small: int, large: int) -> None:
    runs_of: dict[int, list[dict[str, float]]] = {small: [], large: []}
    for count in (small, large, small):
        runs_of[count].append(run("build", folder / f"{count}.kb", count))
    each = {}
    for count, runs in runs_of.items():
        seconds = median(one["seconds"] for one in runs)
        each[count] = seconds / count
        generating = median(one["generating"] for one in runs)
        report.add(f"{count:,} entities: build and compile", seconds, "s")
        report.add(f"{count:,} entities: of that, making them up", generating, "s")
        report.add(f"{count:,} entities: per entity", each[count] * 1e6, "µs")
        report.add(f"{count:,} entities: peak memory", max(one["peak"] for one in runs) / 1e6, "MB", at_most=1000)
        size = sum(file.stat().st_size for file in folder.glob(f"{count}.kb*"))
        report.add(f"{count:,} entities: KB and compiled names on disk", size / 1e6, "MB")
    report.add("cost per entity, large / small", each[large] / each[small], "×", at_most=1.5)


def _measure_adding(report: Report, folder: Path, kb: Path, rounds: int) -> None:
    target = folder / "adding.kb"
    copy_kb(kb, target)
    fresh, adding, linking, in_all, standing = [], [], [], [], []
    for number in range(rounds):
        first = f"F{number}"
        begin = time.perf_counter()
        adding.append(run("add", target, first)["seconds"])
        result = run("link", target, first)
        in_all.append(time.perf_counter() - begin)
        assert f"{first}-42" in result["entities"], result
        linking.append(result["seconds"])
        fresh.append(adding[-1] + linking[-1])
        result = run("add-and-link", target, f"S{number}")
        assert f"S{number}-42" in result["entities"], result
        standing.append(result["seconds"])
    report.add("add 100 to the large KB", median(adding), "s")
    report.add("then load a linker and link one", median(linking), "s")
    report.add("add, load and link", median(fresh), "s", at_most=1)
    report.add("the same as two processes, their start included", median(in_all), "s", at_most=1)
    report.add("add 100 and link one with a linker that is open", median(standing), "s", at_most=1)


if __name__ == "__main__":
    sys.exit(main())
