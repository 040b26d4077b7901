"""Work that runs in a separate process: `python -m benchmarks.workers WORK ARGUMENT…` prints a line of JSON.

A fresh process has nothing warm, its memory is its own, and it can be killed. A worker that says "ready" waits until
its standard input is closed, so that the parent knows when the work begins.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


def run(work: str, *given: object) -> Any:
    """Do the work in a fresh process and return what it tells."""
    process = start(work, *given)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{work} {given} ended with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def start(work: str, *given: object) -> subprocess.Popen[str]:
    """Start a new process, which gets the parent's clock, to include its imports in the time."""
    command = [sys.executable, "-m", "benchmarks.workers", work, repr(time.monotonic()), *map(str, given)]
    return subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def begin(process: subprocess.Popen[str]) -> None:
    """Wait until the worker is ready, and let it begin."""
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.stdin.close()
    process.stdin = None


def private_bytes() -> int:
    """Memory that this process alone has: what would be free without it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def anonymous_bytes() -> int:
    """Memory that this process has allocated; unlike `private_bytes` without files, which others map too, or not."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def _nothing(spawned: float) -> dict[str, float]:
    """A Python with numpy: what everything else is on top of."""
    import numpy  # noqa: F401

    return {"private": private_bytes(), "cold": time.monotonic() - spawned}


def _open(spawned: float, path: str) -> dict[str, float]:
    """Open a KB and its matcher; then find and look up once."""
    from wellread.kb.store import KnowledgeBase
    from wellread.mentions.matcher import Matcher

    before = private_bytes()
    begin = time.perf_counter()
    kb = KnowledgeBase.open(path)
    matcher = Matcher.of(kb)
    seconds = time.perf_counter() - begin
    cold = time.monotonic() - spawned
    private = private_bytes()
    begin = time.perf_counter()
    matcher.find("Nothing much stands in this line of text.")
    kb.candidates("Nothing")
    first = time.perf_counter() - begin
    used = private_bytes()
    times = {"seconds": seconds, "cold": cold, "first": first}
    return {**times, "private": private, "growth": private - before, "growth_used": used - before}


def _build(spawned: float, path: str, count: str) -> dict[str, float]:
    """Build a generated KB and compile its names."""
    from benchmarks.data import build_generated, entities

    begin = time.perf_counter()
    build_generated(Path(path), int(count))
    built = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    begin = time.perf_counter()
    for _ in entities(int(count)):
        pass
    return {"seconds": built, "generating": time.perf_counter() - begin, "peak": peak}


def _add(spawned: float, path: str, first: str) -> dict[str, float]:
    """Add a hundred entities."""
    from wellread.kb.store import KnowledgeBase

    begin = time.perf_counter()
    with KnowledgeBase.open(path, writable=True) as kb:
        kb.add(new_entities(first, 100))
    return {"seconds": time.perf_counter() - begin, "cold": time.monotonic() - spawned}


def _link(spawned: float, path: str, first: str) -> dict[str, Any]:
    """Load a linker and link one of the entities just added."""
    from wellread.linking.linker import Linker

    begin = time.perf_counter()
    links = Linker.load(path, "prior").link(f"Nobody had heard of Newcomer {first} Number 42 before.").links
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "cold": time.monotonic() - spawned, "entities": [link.entity for link in links]}


def _add_and_link(spawned: float, path: str, first: str) -> dict[str, Any]:
    """The same with a linker that has been at work before."""
    from wellread.kb.store import KnowledgeBase
    from wellread.linking.linker import Linker

    linker = Linker.load(path, "prior")
    linker.link("Something to begin with.")
    begin = time.perf_counter()
    with KnowledgeBase.open(path, writable=True) as kb:
        kb.add(new_entities(first, 100))
    added = time.perf_counter() - begin
    links = linker.link(f"Nobody had heard of Newcomer {first} Number 42 before.").links
    times = {"seconds": time.perf_counter() - begin, "adding": added}
    return {**times, "entities": [link.entity for link in links]}


def new_entities(first: str, count: int) -> list[Any]:
    """Entities `first`-0, `first`-1, … named "Newcomer `first` Number 0" and so on."""
    from wellread.kb.records import Entity

    return [
        Entity(
            f"{first}-{number}", f"Newcomer {first} Number {number}", "new", "new", aliases={f"{first} N{number}": 1.0}
        )
        for number in range(count)
    ]


def _search(spawned: float, path: str, folder: str, batches: str) -> dict[str, float]:
    """Open an index and search it."""
    from benchmarks.indexing import search_in_fresh_process

    return search_in_fresh_process(path, folder, int(batches))


def _soak(spawned: float, model: str, count: str) -> dict[str, Any]:
    """Link fuzzed texts."""
    from benchmarks.soak import soak

    return soak(model, int(count))


# Work that is killed before its end (faults.py).


def _build_to_be_killed(spawned: float, path: str, count: str) -> float:
    from benchmarks.faults import build_new

    return _when_ready(lambda: build_new(Path(path), int(count)))


def _add_to_be_killed(spawned: float, path: str, first: str, count: str) -> float:
    from wellread.kb.store import KnowledgeBase
    from wellread.mentions.matcher import Matcher

    entities = new_entities(first, int(count))

    def add() -> None:
        with KnowledgeBase.open(path, writable=True) as kb:
            kb.add(entities)
            Matcher.of(kb)

    return _when_ready(add)


def _fetch_to_be_killed(spawned: float, description: str) -> float:
    import pypi_simple  # noqa: F401
    import requests  # noqa: F401

    from benchmarks.faults import know_asset
    from wellread import assets

    know_asset(description)
    return _when_ready(lambda: assets.fetch("tiny", quiet=True))


def _run_to_be_killed(spawned: float, work: str, *paths: str) -> float:
    from benchmarks import faults_runs

    if work == "train":
        faults_runs.make_learner()  # torch is imported before the work begins
    return _when_ready(lambda: getattr(faults_runs, work)(*map(Path, paths)))


def _when_ready(work: Callable[[], object]) -> float:
    """Say so, wait, work; returns the seconds it took."""
    print("ready", flush=True)
    sys.stdin.read()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


_WORK = {
    "nothing": _nothing,
    "open": _open,
    "build": _build,
    "add": _add,
    "link": _link,
    "add-and-link": _add_and_link,
    "search": _search,
    "soak": _soak,
    "build-killed": _build_to_be_killed,
    "add-killed": _add_to_be_killed,
    "fetch-killed": _fetch_to_be_killed,
    "run-killed": _run_to_be_killed,
}

if __name__ == "__main__":
    work, spawned, *given = sys.argv[1:]
    print(json.dumps(_WORK[work](float(spawned), *given)))
