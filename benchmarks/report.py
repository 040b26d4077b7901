"""Running and reporting of benchmarks: interleaved repetitions, medians, a small table and one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """The rows of one benchmark; `quick` runs are too small to be held to a bar."""

    name: str
    quick: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    load: list[float] = field(default_factory=lambda: [round(load, 2) for load in os.getloadavg()])
    about: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        what: str,
        value: float | str,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """A row, held to its bar where it has one; a word instead of a number says why there is none."""
        row: dict[str, Any] = {"what": what, "value": value, "unit": unit}
        if at_most is not None or at_least is not None:
            row["bar"] = f"≤ {at_most:g}" if at_most is not None else f"≥ {at_least:g}"
            if isinstance(value, int | float) and not self.quick:
                row["met"] = value <= at_most if at_most is not None else value >= (at_least or 0)
        self.rows.append(row)
        print(f"{self.name}: {what}: {_shown(value)} {unit}".rstrip(), file=sys.stderr, flush=True)

    def show(self) -> int:
        """Print table and JSON; the exit code is 0 even when a bar is missed: a busy machine is not an error."""
        load = " ".join(f"{load:g}" for load in self.load)
        print(f"\n{self.name}" + (" (quick: a smoke run, no bars)" if self.quick else "") + f"   load {load}")
        for key, value in self.about.items():
            print(f"  {key}: {value}")
        widest = max((len(row["what"]) for row in self.rows), default=0)
        for row in self.rows:
            verdict = {True: "met", False: "MISSED", None: ""}[row.get("met")]
            line = f"  {row['what']:<{widest}}  {_shown(row['value']):>10} {row['unit']:<9}"
            print(f"{line} {row.get('bar', ''):<8} {verdict}".rstrip())
        load_after = [round(load, 2) for load in os.getloadavg()]
        head = {"benchmark": self.name, "quick": self.quick, "load": self.load, "load_after": load_after}
        print(json.dumps({**head, "about": self.about, "rows": self.rows}, ensure_ascii=False), flush=True)
        return 0


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def arguments(doc: str | None, given: Sequence[str] | None) -> argparse.Namespace:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: small data, few repetitions, no bars")
    parser.add_argument("--folder", type=Path, help="where generated data is kept [WELLREAD_HOME/bench]")
    options = parser.parse_args(given)
    if options.folder is None:
        from wellread import assets

        options.folder = assets.home() / "bench"
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


def interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each; one after the other in every round, so that a busy minute is shared by all."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            begin = clock()
            work()
            seconds[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}
