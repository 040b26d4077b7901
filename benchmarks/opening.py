"""Time and memory of opening a knowledge base and its matcher, and of looking up a name.

Bars: ≤ 30 ms and ≤ 60 MB of private memory at 25 k entities, no more than twice that at 1 M entities / 3 M aliases; a
name look-up ≤ 20 µs at both sizes. Opening is timed in fresh processes after wellread and numpy are imported, with the
files in the system's cache; private memory is Private_Clean + Private_Dirty, its growth and the whole process's.
Look-ups are of names drawn at random, in seconds of the one core.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

from benchmarks.data import generated_kb, has_shared, shared_kb
from benchmarks.report import Report, arguments, interleaved
from benchmarks.workers import run
from wellread.kb.store import KnowledgeBase

_AT_ONCE = 200
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
    _measure_looking_up(report, kbs, 2 if options.quick else 51)
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
    for place, (name, results) in enumerate(runs.items()):
        times = 2 if place == len(runs) - 1 else 1
        typical = {what: median(one[what] for one in results) for what in results[0]}
        report.add(f"{name}: open KB and matcher", typical["seconds"] * 1e3, "ms", at_most=30 * times)
        report.add(f"{name}: private memory, growth", typical["growth"] / 1e6, "MB", at_most=60 * times)
        report.add(f"{name}: private memory, whole process", typical["private"] / 1e6, "MB", at_most=60 * times)
        report.add(f"{name}: growth after a first text and look-up", typical["growth_used"] / 1e6, "MB")
        report.add(f"{name}: first text and look-up", typical["first"] * 1e3, "ms")
        report.add(f"{name}: from the start of Python, imports included", typical["cold"] * 1e3, "ms")
    report.add("Python with numpy alone: private memory", bare["private"] / 1e6, "MB")
    report.add("Python with numpy alone: start", bare["cold"] * 1e3, "ms")


def _measure_looking_up(report: Report, kbs: dict[str, Path], rounds: int) -> None:
    """Every name is new to the process; then the same names again, when words and pages are in its own caches."""
    with ExitStack() as stack:
        looks: dict[str, Callable[[], object]] = {}
        for name, path in kbs.items():
            _warm(path)
            kb = stack.enter_context(KnowledgeBase.open(path))
            for what, asked in _names(kb, rounds * _AT_ONCE).items():
                batches = [asked[place : place + _AT_ONCE] for place in range(0, len(asked), _AT_ONCE)]
                looks[f"{name}: candidates of a name that is {what}"] = partial(_look_up, kb, cycle(batches))
        for again in ("", ", asked again"):
            seconds = interleaved(looks, rounds, clock=time.process_time)
            for what, took in seconds.items():
                report.add(what + again, took / _AT_ONCE * 1e6, "µs", at_most=None if again else 20)
        within = {f"{what}, in a snapshot": partial(_look_up_within, *look.args) for what, look in looks.items()}
        for what, took in interleaved(within, rounds, clock=time.process_time).items():
            report.add(what, took / _AT_ONCE * 1e6, "µs", at_most=20)


def _look_up(kb: KnowledgeBase, batches: Iterator[list[str]]) -> None:
    for name in next(batches):
        kb.candidates(name)


def _look_up_within(kb: KnowledgeBase, batches: Iterator[list[str]]) -> None:
    """As linking does it: one state of the KB for many look-ups."""
    with kb.snapshot():
        _look_up(kb, batches)


def _warm(path: Path) -> None:
    """Bring a file into the system's cache."""
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass


def _names(kb: KnowledgeBase, count: int) -> dict[str, list[str]]:
    """Names of the KB, drawn from all of them alike, and names that are not there."""
    chance = random.Random(3)
    most = kb.connection.execute("SELECT max(num) FROM entities").fetchone()[0]
    there: set[str] = set()
    while len(there) < min(count, most):
        query = "SELECT name FROM aliases WHERE entity = ?"
        there.update(row[0] for row in kb.connection.execute(query, (chance.randint(1, most),)))
    present = chance.sample(sorted(there), min(count, len(there)))
    absent = [f"{one[:-1]}q {chance.randint(0, 999)}" for one in present]
    return {"there": present, "not there": absent}


if __name__ == "__main__":
    sys.exit(main())
