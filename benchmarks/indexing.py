"""How fast, how small and how good is the index of nearest entities, at 25 k and at 1 M entities?

Bars: a million entities take ≤ 500 MB of resident memory with compression and recall@10 is ≥ 0.98 of exact search; a
batch of 80 queries (the mentions of 32 questions) takes ≤ 4 ms at both sizes on two cores; a new entity is in the index
of a million after ≤ 0.5 s; building vectors takes ≤ 1.2 × the encoder's own time (for an encoder of 2 ms an entity).
Vectors are made up: clusters of clusters whose spectrum falls off as that of MiniLM's entity vectors; queries are
entity vectors disturbed to a cosine of about 0.8. Memory is the growth of the resident set of a fresh process that
opens the index and searches it until all of it has been touched.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import copy_kb, generated_kb, remove_kb
from benchmarks.report import Report, arguments
from benchmarks.workers import new_entities, run
from wellread.index.entity_index import EntityIndex
from wellread.index.entity_vectors import Encoding, EntityVectors, text_key
from wellread.index.faiss_choice import nearest, recall, trial_queries
from wellread.index.faiss_search import VectorRows
from wellread.kb.store import KnowledgeBase

AT_ONCE = 80
_DIM = 384
_MILLISECONDS_AN_ENTITY = 2.0


class MadeUpEncoder:
    """Vectors with the spectrum of real ones, in clusters of clusters; the same text has the same cluster."""

    dim = _DIM
    fingerprint = "made up 1"

    def __init__(self, count: int) -> None:
        chance = np.random.default_rng(1)
        spread = np.exp(-np.arange(_DIM) / 170)
        self._axes = (np.linalg.qr(chance.standard_normal((_DIM, _DIM)))[0] * spread).T.astype(np.float32)
        self._axes /= np.sqrt((spread**2).sum())
        self._mean = 0.2 * self._axes[0] / np.linalg.norm(self._axes[0])
        clusters = max(16, count // 50)
        above = chance.standard_normal((max(4, clusters // 50), _DIM))
        centres = above[chance.integers(0, len(above), clusters)] + chance.standard_normal((clusters, _DIM))
        self._centres = (0.5 * centres).astype(np.float32)
        self.seconds = 0.0

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Vectors made up for texts; the seconds it takes are counted."""
        begin = time.perf_counter()
        keys = np.array([text_key(*entity) for entity in entities], np.uint64)
        own = np.random.default_rng(keys[:1]).standard_normal((len(keys), _DIM), np.float32)
        mixed = self._centres[keys % np.uint64(len(self._centres))] + np.float32(0.7) * own
        vectors = mixed @ self._axes + self._mean
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        self.seconds += time.perf_counter() - begin
        return np.asarray(vectors, np.float32)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("indexing", options.quick)
    for count in (2_500, 6_000) if options.quick else (25_000, 1_000_000):
        _measure(report, count, options.folder, 20 if options.quick else 100)
    return report.show()


def _measure(report: Report, count: int, folder: Path, batches: int) -> None:
    kb_path, vectors_folder = folder / f"indexed-{count}.kb", folder / f"indexed-{count}.vectors"
    copy_kb(generated_kb(count, folder), kb_path)
    shutil.rmtree(vectors_folder, ignore_errors=True)
    name, encoder = f"{count:,} entities", MadeUpEncoder(count)
    with KnowledgeBase.open(kb_path, writable=True) as kb:
        begin = time.perf_counter()
        vectors = EntityVectors.build(kb, encoder, vectors_folder, progress=Encoding())
        besides = (time.perf_counter() - begin - encoder.seconds) / count
        report.add(f"{name}: building vectors, besides the encoder", besides * 1e6, "µs each")
        share = 1 + besides * 1e3 / _MILLISECONDS_AN_ENTITY
        report.add(f"{name}: the same, / an encoder of 2 ms an entity", share, "×", at_most=1.2)
        begin = time.perf_counter()
        index = EntityIndex.build(vectors)
        report.add(f"{name}: building the index", time.perf_counter() - begin, "s")
        report.about[name] = "; ".join(index.explain().splitlines()[:3])
        queries = trial_queries(vectors.rows, 1_000, seed=7)
        found = np.concatenate([index.search(queries[at : at + AT_ONCE])[1] for at in range(0, len(queries), AT_ONCE)])
        report.add(
            f"{name}: recall@10 of exact search", recall(found, nearest(vectors.rows, queries, 10)), "", at_least=0.98
        )
        result = run("search", kb_path, vectors_folder, batches)
        report.add(f"{name}: a batch of {AT_ONCE}", result["batch"] * 1e3, "ms", at_most=4)
        report.add(f"{name}: the same, in seconds of the cores / 2", result["cpu"] / 2 * 1e3, "ms")
        report.add(f"{name}: ids and titles of its {10 * AT_ONCE} hits", result["names"] * 1e3, "ms", at_most=1)
        report.add(f"{name}: rows of 300 ids", result["rows"] * 1e3, "ms")
        report.add(f"{name}: opening", result["open"] * 1e3, "ms")
        report.add(f"{name}: resident memory, growth", result["growth"] / 1e6, "MB", at_most=500)
        report.add(f"{name}: of it private", result["private"] / 1e6, "MB")
        for number in range(3):
            kb.add(new_entities(f"fresh{number}", 1))
            begin = time.perf_counter()
            index = index.refresh(kb, encoder)
            seconds = time.perf_counter() - begin
            assert index.rows_of([f"fresh{number}-0"])[0] >= 0
        report.add(f"{name}: taking up a new entity", seconds, "s", at_most=0.5)
    remove_kb(kb_path)
    shutil.rmtree(vectors_folder, ignore_errors=True)


def search_in_fresh_process(kb_path: str, folder: str, batches: int) -> dict[str, float]:
    """Open and search; what it took and what of memory grew (a worker's work)."""
    warm = VectorRows(np.ones((9, 9), np.float32)).search(
        np.random.default_rng(5).standard_normal((9, 9), np.float32), 3
    )
    assert warm[1].shape == (9, 3)  # what numpy loads when it is used is not the index's
    with KnowledgeBase.open(kb_path) as kb:
        before = _status("VmRSS")
        begin = time.perf_counter()
        index = EntityIndex.open(kb, fingerprint=MadeUpEncoder.fingerprint, folder=folder)
        opened = time.perf_counter() - begin
    chance = np.random.default_rng(5)
    times: dict[str, list[float]] = {"batch": [], "cpu": [], "names": [], "rows": []}
    for _ in range(batches):
        own = index.vectors_of(chance.integers(0, len(index), AT_ONCE))
        queries = own + 0.7 * index.vectors_of(chance.integers(0, len(index), AT_ONCE))
        begin, cpu = time.perf_counter(), time.process_time()
        _, rows = index.search(queries, 10)
        times["batch"].append(time.perf_counter() - begin)
        times["cpu"].append(time.process_time() - cpu)
        begin = time.perf_counter()
        ids, _ = index.entities(rows), index.titles(rows)
        times["names"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        index.rows_of(ids[:300])
        times["rows"].append(time.perf_counter() - begin)
    medians = {what: median(seconds) for what, seconds in times.items()}
    return {**medians, "open": opened, "growth": _status("VmRSS") - before, "private": _status("RssAnon")}


def _status(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


if __name__ == "__main__":
    sys.exit(main())
