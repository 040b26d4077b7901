"""Does kill -9 at any moment of build, add, fetch, index, annotate, train or serve ever leave something half-written?

Bar: all of 320 kills sound, within 15 minutes. A worker is killed at a random moment of its work, then the old or the
new state must open, `check` must pass, and the matcher must find just the names of that state; then the same work is
done again, undisturbed, and must reach the new state: the same bytes, where it is parts of an annotation or weights of
a training. Fetching is from a server on 127.0.0.1. Servers are killed while clients change their KB: no change that was
acknowledged may be lost.

    python -m benchmarks.faults --share 0.2          # a fifth of the kills
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import faults_runs
from benchmarks.data import build_generated, entities, remove_kb
from benchmarks.report import Report, arguments
from benchmarks.workers import begin, new_entities, start
from wellread import assets
from wellread.kb.build import Origin, build
from wellread.kb.check import check
from wellread.kb.records import Alias, Fact, Record, Tally
from wellread.kb.store import KnowledgeBase
from wellread.mentions.matcher import Matcher

_OLD, _NEW, _ADDED = 500, 3_000, 1_000
"""Entities of the old state and the new one, and how many are added at once."""


class HalfError(AssertionError):
    """Something that is neither the old state nor the new one."""


def main(given: Sequence[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--share", type=float, default=1.0)
    chosen, rest = own.parse_known_args(given)
    options = arguments(__doc__, rest)
    report = Report("faults", options.quick)
    failures = kills = 0
    trials: dict[str, tuple[int, Callable[[Path, int], tuple[Counter[str], list[str]]]]] = {
        "build where nothing is": (50, lambda folder, times: _try_building(folder, times, over_old=False)),
        "build over an old KB": (50, lambda folder, times: _try_building(folder, times, over_old=True)),
        "add": (50, _try_adding),
        "fetch": (30, _try_fetching),
        "index": (40, _try_indexing),
        "annotate": (50, _try_annotating),
        "train": (20, _try_training),
        "serve": (30, faults_runs.kill_servers),
    }
    begin = time.monotonic()
    for name, (most, trial) in trials.items():
        times = 2 if options.quick else max(1, round(most * chosen.share))
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            seen, broken = trial(Path(folder), times)
        kills += times
        states = ", ".join(f"{state} {count}" for state, count in sorted(seen.items()))
        report.add(f"{name}: sound of {times} kills ({states})", times - len(broken), "", at_least=times)
        for what in broken[:5]:
            report.add(f"{name}: {what}", "broken")
        failures += len(broken)
    report.add("kills in all", kills, "", at_least=300)
    report.add("time for all", (time.monotonic() - begin) / 60, "min", at_most=15)
    report.show()
    return 1 if failures else 0


def _kill_at_random(
    times: int,
    before: Callable[[int], None],
    work: Callable[[int], tuple[object, ...]],
    state: Callable[[int], str],
    finished: str = "new",
) -> tuple[Counter[str], list[str]]:
    """Each time: prepare, begin the work, kill it, look at the state; then do the work again to its end."""
    seen: Counter[str] = Counter()
    broken: list[str] = []
    chance = random.Random(5)
    before(0)
    took = [_undisturbed(work(0))]
    number = 0
    while seen.total() + len(broken) < times:
        number += 1
        before(number)
        process = start(*work(number))
        begin(process)
        moment = chance.uniform(0, median(took))
        time.sleep(moment)
        process.kill()
        output, _ = process.communicate()
        if not process.returncode:  # it was faster than we
            took.append(float(output))
            continue
        try:
            met = state(number)
            if met != finished:
                _undisturbed(work(number))
                if state(number) != finished:
                    raise HalfError("not finished by the next run")
            seen[met] += 1
        except Exception as error:  # whatever a reader would meet
            broken.append(f"killed after {moment:.3f} of {median(took):.3f} s: {type(error).__name__}: {error}")
    return seen, broken


def _undisturbed(work: tuple[object, ...]) -> float:
    """Seconds that the work took, without the end of its process."""
    process = start(*work)
    begin(process)
    output, _ = process.communicate()
    if process.returncode:
        raise HalfError(f"{work[0]} failed when nothing disturbed it")
    return float(output)


# build


def build_new(path: Path, count: int) -> None:
    """Build a KB whose aliases and facts come partly apart from its entities, and compile its names."""

    def records(tally: Tally) -> Iterator[Record]:
        yield from entities(count, seed=count)
        for number in range(count * 3 if count == _NEW else 0):
            yield Alias(f"Apart {number}", f"G{count}-{number % count}")
            yield Fact(f"G{count}-{number % count}", "is apart from", f"G{count}-{number // 3}")

    build(records, path, origin=Origin(f"build of {count}", settings=str(count)))
    with KnowledgeBase.open(path) as kb:
        Matcher.of(kb)


def _try_building(folder: Path, times: int, *, over_old: bool) -> tuple[Counter[str], list[str]]:
    path, old = folder / "built.kb", folder / "kept"
    build_new(old, _OLD)

    def before(number: int) -> None:
        remove_kb(path)
        if over_old:
            shutil.copy(old, path)
            shutil.copy(f"{old}.names", f"{path}.names")

    def state(number: int) -> str:
        if not path.exists():
            if over_old:
                raise HalfError("the old KB is gone")
            return "nothing"
        with KnowledgeBase.open(path) as kb:
            count = len(kb)
            if count not in ((_OLD, _NEW) if over_old else (_NEW,)) or kb.metadata["source"] != f"build of {count}":
                raise HalfError(f"{count} entities of {kb.metadata['source']}")
            names = {entity.title for entity in islice(entities(count, seed=count), 200)}
            _assert_sound(kb, there=names, absent={"Apart 7"} if count == _OLD else set())
        return "new" if count == _NEW else "old"

    return _kill_at_random(times, before, lambda _: ("build-killed", path, _NEW), state)


def _assert_sound(kb: KnowledgeBase, *, there: set[str], absent: set[str]) -> None:
    wrong = check(kb)
    if wrong:
        raise HalfError("; ".join(wrong))
    matcher = Matcher.of(kb)
    if matcher.revision != kb.revision:
        raise HalfError(f"names of revision {matcher.revision} for a KB of revision {kb.revision}")
    for names, found in ((there, True), (absent, False)):
        for name in names:
            if ((0, len(name)) in matcher.find(name).spans()) != found or bool(kb.candidates(name)) != found:
                raise HalfError(f"{name!r} is {'not there' if found else 'there too early'}")


# add


def _try_adding(folder: Path, times: int) -> tuple[Counter[str], list[str]]:
    path, old = folder / "added.kb", folder / "kept"
    build_new(old, _NEW)

    def before(number: int) -> None:
        if number % 10 == 0 or not path.exists():  # ten runs on one file, so that changes pile up
            remove_kb(path)
            shutil.copy(old, path)
            shutil.copy(f"{old}.names", f"{path}.names")

    def state(number: int) -> str:
        titles = {entity.title for entity in new_entities(f"A{number}", _ADDED)[::100]}
        with KnowledgeBase.open(path) as kb:
            count = kb.connection.execute("SELECT count(*) FROM entities WHERE id LIKE ?", (f"A{number}-%",))
            added = count.fetchone()[0]
            if added not in (0, _ADDED):
                raise HalfError(f"{added} of {_ADDED} added")
            _assert_sound(kb, there=titles if added else set(), absent=set() if added else titles)
        return "new" if added else "old"

    return _kill_at_random(times, before, lambda number: ("add-killed", path, f"A{number}", _ADDED), state)


# fetch


def know_asset(description: str) -> None:
    """Make "tiny" the only asset, from the parent's JSON description, and ignore pip's settings files."""
    from wellread.assets import sources

    known = json.loads(description)
    sources._pip_files = dict
    package = sources.Package(**known.pop("package"))
    assets.ASSETS = {"tiny": assets.Asset(**{**known, "sources": (package,)})}


def _try_fetching(folder: Path, times: int) -> tuple[Counter[str], list[str]]:
    words = random.Random(9).randbytes(3_000_000)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("tiny/data/words.bin", words)
        bundle.writestr("tiny/data/rules.json", "{}")
    content = packed.getvalue()
    archive = "tiny-1.0-py3-none-any.whl"
    description = json.dumps(
        {
            "name": "tiny",
            "version": "1.0",
            "licence": "CC0-1.0",
            "about": "a tiny asset",
            "notice": "Made by nobody.",
            "files": {"words.bin": _sha256(words), "rules.json": _sha256(b"{}")},
            "package": {
                "project": "tiny",
                "archive": archive,
                "sha256": _sha256(content),
                "size": len(content),
                "root": "tiny/data/",
            },
        }
    )
    kept = dict(os.environ)
    known_before = assets.ASSETS
    for name in kept:
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            del os.environ[name]

    def before(number: int) -> None:
        shutil.rmtree(folder / "home", ignore_errors=True)

    def state(number: int) -> str:
        if not assets.is_cached("tiny"):
            leftover = [path.name for path in (folder / "home").glob("assets/[!.]*")]
            if leftover:
                raise HalfError(f"unfinished files under the asset's name: {leftover}")
            return "nothing"
        assets.verify("tiny")
        return "new"

    with _server(f"/files/{archive}", content) as url:
        os.environ.update({"WELLREAD_HOME": str(folder / "home"), "PIP_INDEX_URL": f"{url}/simple/"})
        know_asset(description)
        try:
            return _kill_at_random(times, before, lambda _: ("fetch-killed", description), state)
        finally:
            assets.ASSETS = known_before
            os.environ.clear()
            os.environ.update(kept)


# index, annotate, train


def _try_indexing(folder: Path, times: int) -> tuple[Counter[str], list[str]]:
    path = folder / "indexed.kb"
    build_generated(path, _NEW)

    def before(number: int) -> None:
        shutil.rmtree(f"{path}.vectors", ignore_errors=True)

    return _kill_at_random(
        times, before, lambda _: ("run-killed", "index", path), lambda _: faults_runs.state_of_index(path)
    )


def _try_annotating(folder: Path, times: int) -> tuple[Counter[str], list[str]]:
    kb, texts, whole, to = (folder / name for name in ("annotated.kb", "texts.txt", "whole", "to"))
    build_generated(kb, _NEW)
    faults_runs.write_texts(texts)
    faults_runs.annotate(kb, texts, whole)

    def before(number: int) -> None:
        shutil.rmtree(to, ignore_errors=True)

    return _kill_at_random(
        times,
        before,
        lambda _: ("run-killed", "annotate", kb, texts, to),
        lambda _: faults_runs.state_of_parts(to, whole),
    )


def _try_training(folder: Path, times: int) -> tuple[Counter[str], list[str]]:
    whole, to = folder / "whole", folder / "to"
    _undisturbed(("run-killed", "train", whole))

    def before(number: int) -> None:
        shutil.rmtree(to, ignore_errors=True)

    return _kill_at_random(
        times, before, lambda _: ("run-killed", "train", to), lambda _: faults_runs.state_of_run(to, whole)
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _server(path: str, content: bytes) -> Iterator[str]:
    """A package index with one file, which it can send from any place on, not too fast."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                self._answer()
            except ConnectionError:
                self.close_connection = True

        def _answer(self) -> None:
            page = self.path.startswith("/simple/")
            body = f'<a href="{path}">{path.rpartition("/")[2]}</a>'.encode() if page else content
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Type", "text/html" if page else "application/octet-stream")
            self.send_header("Content-Length", str(len(body) - begin))
            self.end_headers()
            for place in range(begin, len(body), 1 << 16):
                time.sleep(0.002)
                self.wfile.write(body[place : place + (1 << 16)])

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main())
