"""How fast are words and pairs counted: `python -m benchmarks.counting [--words MILLIONS ...] [--memory 1GB]`.

Bars, on two cores: at least a million words a second from text to table; peak memory within the limit given; the cost
of a word at 100 M words ≤ 1.3 × that at 10 M. The text is generated: documents of 50 to 200 words, drawn one by one
from 200,000 words by Zipf's law (p ~ 1 / rank); one word in six is an earlier one of its document again, as in prose.
Words that know nothing of each other are a hard case: most pairs are met once or twice. Memory is that of all processes
at once (PSS, mapped files included). On a machine that is busy with other things look at the processor time: half of it
is the wall time of two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.report import Report, arguments
from wellread.correlation.engines import parse_memory

_WORDS = 200_000
_LETTERS = "etaoinshrdlucmfwypvbgk"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--words", type=float, nargs="+", metavar="MILLIONS")
    parser.add_argument("--engine", nargs="+", default=["duckdb"])
    parser.add_argument("--memory", default="4GB", help="what the command is given")
    own, rest = parser.parse_known_args(given)
    options = arguments(__doc__, rest)
    report = Report("counting", options.quick)
    costs: dict[tuple[str, float], float] = {}
    for millions in own.words or ([0.2] if options.quick else [10, 100]):
        text = generated_text(int(millions * 1e6), options.folder)
        for engine in own.engine:
            costs[engine, millions] = _measure(report, text, millions, engine, options.folder, own.memory)
    if ("duckdb", 10) in costs and ("duckdb", 100) in costs:
        ratio = costs["duckdb", 100] / costs["duckdb", 10]
        report.add("processor time of a word at 100 M words / at 10 M", ratio, "×", at_most=1.3)
    return report.show()


def generated_text(words: int, folder: Path) -> Path:
    """A document a line; kept in the folder for the next run."""
    path = folder / f"zipf-{words}.txt"
    if path.exists():
        return path
    chance = np.random.default_rng(1)
    vocabulary = np.array([_spelled(rank) for rank in range(_WORDS)], object)
    shares = np.cumsum(1 / np.arange(1, _WORDS + 1))
    part = path.with_suffix(".part")
    with part.open("w") as file:
        left = words
        while left > 0:
            sizes = chance.integers(50, 201, 8_000)
            sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), left)) + 1]
            ranks = np.searchsorted(shares, chance.random(int(sizes.sum())) * shares[-1])
            begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
            earlier = begins + (chance.random(len(ranks)) * (np.arange(len(ranks)) - begins)).astype(np.int64)
            again = chance.random(len(ranks)) < 1 / 6
            ranks[again] = ranks[earlier[again]]
            spelled = vocabulary[ranks].tolist()
            stops = np.cumsum(sizes).tolist()
            file.writelines(
                " ".join(spelled[begin:end]) + ".\n" for begin, end in zip([0, *stops], stops, strict=False)
            )
            left -= len(spelled)
    part.rename(path)
    return path


def _spelled(rank: int) -> str:
    """The most frequent words are the shortest."""
    word = ""
    rank += len(_LETTERS)
    while rank:
        rank, letter = divmod(rank, len(_LETTERS))
        word += _LETTERS[letter]
    return word


def _measure(report: Report, text: Path, millions: float, engine: str, folder: Path, memory: str) -> float:
    table = folder / f"{text.stem}-{engine}.pmi"
    shutil.rmtree(table, ignore_errors=True)
    command = [sys.executable, "-m", "wellread.cli", "correlate", str(text), "--to", str(table), "--json"]
    begin = time.perf_counter()
    worker = subprocess.Popen([*command, "--memory", memory, "--engine", engine], stdout=subprocess.PIPE)
    watch = _Watch(worker.pid)
    assert worker.stdout is not None
    out = worker.stdout.read()
    _, status, usage = os.wait4(worker.pid, 0)
    seconds = time.perf_counter() - begin
    watch.stop()
    if status:
        raise SystemExit(f"counting {text} failed with {status}")
    result = json.loads(out)
    cpu = usage.ru_utime + usage.ru_stime
    name = f"{millions:g} M words, {engine}"
    report.add(f"{name}: wall", seconds, "s")
    report.add(f"{name}: words a second", result["words_read"] / seconds, "", at_least=1e6)
    report.add(f"{name}: words a second of two free cores (2 / processor time)", 2 * result["words_read"] / cpu)
    report.add(f"{name}: processor time", cpu, "s")
    report.add(f"{name}: peak memory of all processes", watch.peak / 2**30, "GB", at_most=parse_memory(memory) / 2**30)
    report.add(f"{name}: pairs in the table", result["pairs"])
    report.add(f"{name}: bytes of the table", (table / result["file"]).stat().st_size)
    report.add(f"{name}: bytes of the events kept", sum(file.stat().st_size for file in table.glob("counted/*/*")))
    shutil.rmtree(table)
    return cpu / result["words_read"]


class _Watch:
    """The most memory that a process and its children had at once."""

    def __init__(self, process: int) -> None:
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(process,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self, process: int) -> None:
        while not self._over.wait(0.5):
            self.peak = max(self.peak, _tree(process))


def _tree(process: int) -> int:
    try:
        pss = Path(f"/proc/{process}/smaps_rollup").read_text().split("Pss:")[1].split()[0]
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        # Children of other threads are listed with their thread.
        for task in Path(f"/proc/{process}/task").iterdir():
            children += (task / "children").read_text().split()
    except (OSError, IndexError):
        return 0  # it is over
    return int(pss) * 1024 + sum(_tree(int(child)) for child in set(children))


if __name__ == "__main__":
    sys.exit(main())
