"""What does it cost to open a knowledge base and its matcher, and to look up a name?

Bars: ≤ 30 ms and ≤ 60 MB of private memory at 25 k entities, no more than twice that at 1 M entities / 3 M aliases; a
name look-up ≤ 20 µs at both sizes. Opening is timed in fresh processes after wellread and numpy are imported, with the
files in the system's cache; private memory is Private_Clean + Private_Dirty, its growth and the whole process's.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.data import generated_kb, has_shared, shared_kb
from benchmarks.report import Report, arguments, interleaved
from benchmarks.workers import run
from wellread.kb.store import KnowledgeBase

_AT_ONCE = 1000
"""Names looked up between two looks at the clock."""


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("opening", options.quick)
    small, large = (2_000, 10_000) if options.quick else (25_000, 1_000_000)
    kbs = {
        f"{small:,} entities": generated_kb(small, options.folder),
        f"{large:,} entities": generated_kb(large, options.folder),
    }
    if has_shared() and not options.quick:
        kbs = {"shared KB, 25 k": shared_kb(options.folder), **kbs}
    _measure_opening(report, kbs, 2 if options.quick else 9)
    _measure_looking_up(report, kbs, 2 if options.quick else 15)
    return report.show()


def _measure_opening(report: Report, kbs: dict[str, Path], rounds: int) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        report.add("opening", "needs Linux's /proc")
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in kbs}
    bare = run("nothing")
    for path in kbs.values():
        run("open", path)  # warms the file cache
    for _ in range(rounds):
        for name, path in kbs.items():
            runs[name].append(run("open", path))
    for place, (name, told) in enumerate(runs.items()):
        times = 2 if place == len(runs) - 1 else 1
        typical = {what: median(one[what] for one in told) for what in told[0]}
        report.add(f"{name}: open KB and matcher", typical["seconds"] * 1e3, "ms", at_most=30 * times)
        report.add(f"{name}: private memory, growth", typical["growth"] / 1e6, "MB", at_most=60 * times)
        report.add(f"{name}: private memory, whole process", typical["private"] / 1e6, "MB", at_most=60 * times)
        report.add(f"{name}: growth after a first text and look-up", typical["growth_used"] / 1e6, "MB")
        report.add(f"{name}: first text and look-up", typical["first"] * 1e3, "ms")
        report.add(f"{name}: from the start of Python, imports included", typical["cold"] * 1e3, "ms")
    report.add("Python with numpy alone: private memory", bare["private"] / 1e6, "MB")
    report.add("Python with numpy alone: start", bare["cold"] * 1e3, "ms")


def _measure_looking_up(report: Report, kbs: dict[str, Path], rounds: int) -> None:
    for name, path in kbs.items():
        with KnowledgeBase.open(path) as kb:
            for what, asked in _names(kb, rounds * _AT_ONCE).items():
                for one in asked:  # the file cache, and Python's own caches of words
                    kb.candidates(one)
                batches = iter([asked[place : place + _AT_ONCE] for place in range(0, len(asked), _AT_ONCE)])
                work = {what: lambda b=batches, k=kb: [k.candidates(one) for one in next(b)]}
                seconds = interleaved(work, len(asked) // _AT_ONCE)[what] / _AT_ONCE
                report.add(f"{name}: candidates of a name that is {what}", seconds * 1e6, "µs", at_most=20)


def _names(kb: KnowledgeBase, count: int) -> dict[str, list[str]]:
    """Names of the KB, drawn from all of them alike, and names that are not there."""
    chance = random.Random(3)
    most = kb.connection.execute("SELECT max(num) FROM entities").fetchone()[0]
    there: set[str] = set()
    while len(there) < min(count, most):
        query = "SELECT name FROM aliases WHERE entity = ?"
        there.update(row[0] for row in kb.connection.execute(query, (chance.randint(1, most),)))
    present = chance.choices(sorted(there), k=count)
    absent = [f"{one[:-1]}q {chance.randint(0, 999)}" for one in present]
    return {"there": present, "not there": absent}


if __name__ == "__main__":
    sys.exit(main())
