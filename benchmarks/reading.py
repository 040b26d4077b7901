"""How fast does the linker read: `python -m benchmarks.reading`.

Bars, for the packaged linker on two cores: the whole pipeline (cut, encode, spans, search, decode) takes ≤ 1.25 × the
time of the encoder's forward pass on the same packed batches of 32 questions, with 25 k and with 1 M entities; at least
100 questions a second; where no span passes, nothing is searched; encoding a KB takes ≤ 1.2 × the encoder alone; links
a second are the same (± 20 %) from 100 to 100,000 words a document. Entity vectors of the generated KBs are made up
(`indexing.py`), which costs a search what real ones cost. Runs are interleaved, medians are reported.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import english, generated_kb, wordnet_kb
from benchmarks.indexing import MadeUpEncoder
from benchmarks.report import Report, arguments, interleaved
from wellread.index.entity_index import EntityIndex
from wellread.index.entity_vectors import EntityVectors
from wellread.index.folder import vectors_folder
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower, fingerprint_of
from wellread.models.elq.linker import ElqBackend
from wellread.models.elq.load import PACKAGED

_QUESTIONS = ("who wrote {}?", "where was {} born", "what is the capital of {}", "when did {} begin to work there?")
Batch = list[NDArray[np.int64]]


class _MadeUp(MadeUpEncoder):
    """Made-up vectors that pass for the linker's own."""

    fingerprint = fingerprint_of(ElqConfig.read(PACKAGED))


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("reading", options.quick)
    rounds = 2 if options.quick else 5
    for count in (2_500,) if options.quick else (25_000, 1_000_000):
        with KnowledgeBase.open(_indexed(count, options.folder)) as kb:
            _measure_questions(report, f"{count:,} entities", kb, rounds)
    with KnowledgeBase.open(_indexed(2_500 if options.quick else 25_000, options.folder)) as kb:
        _measure_encoding(report, kb, 64 if options.quick else 512, rounds)
        _measure_documents(report, kb, 1_000 if options.quick else 100_000)
    return report.show()


def _indexed(count: int, folder: Path) -> Path:
    path = generated_kb(count, folder)
    with KnowledgeBase.open(path) as kb:
        if not (vectors_folder(kb) / "index.json").exists():
            EntityIndex.build(EntityVectors.build(kb, _MadeUp(count)))
    return path


def _measure_questions(report: Report, name: str, kb: KnowledgeBase, rounds: int) -> None:
    titles = [row[0] for row in kb.connection.execute("SELECT title FROM entities LIMIT 320")]
    texts = [_QUESTIONS[place % len(_QUESTIONS)].format(title.lower()) for place, title in enumerate(titles)]
    dull = ["and so it went on and on for them"] * len(texts)
    for precision in ("fp32", "int8"):
        backend = Linker.load(kb, "elq", precision=precision).backend
        assert isinstance(backend, ElqBackend)
        batches, dull_batches = _windows(backend, texts), _windows(backend, dull)
        runs: dict[str, Callable[[], object]] = {
            "encoder": lambda backend=backend, batches=batches: _encode(backend, batches),
            "whole": lambda backend=backend: _read(backend, texts),
            "nothing passes": lambda backend=backend: _read(backend, dull),
            "encoder, nothing passes": lambda backend=backend, packed=dull_batches: _encode(backend, packed),
        }
        seconds = interleaved(runs, rounds)
        linked = sum(len(document.links) for document in _read(backend, texts))
        at_most = 1.25 if precision == "fp32" else None
        report.add(f"{name}, {precision}: whole / encoder", seconds["whole"] / seconds["encoder"], "×", at_most=at_most)
        dull_ratio = seconds["nothing passes"] / seconds["encoder, nothing passes"]
        report.add(f"{name}, {precision}: the same where no span passes", dull_ratio, "×", at_most=at_most)
        report.add(f"{name}, {precision}: questions a second", len(texts) / seconds["whole"], "", at_least=100)
        report.add(f"{name}, {precision}: links in {len(texts)} questions", linked)


def _words(count: int) -> list[str]:
    _, texts = english(count * 8, wordnet_kb())
    words = " ".join(texts).split()
    return (words * (count // len(words) + 1))[:count]


def _windows(backend: ElqBackend, texts: Sequence[str]) -> list[Batch]:
    batches = []
    for place in range(0, len(texts), 32):
        windows = (one for text in backend.window_tokenizer.tokenize(texts[place : place + 32]) for one in text)
        batches.append(sorted((window.ids for window in windows), key=len))
    return batches


def _encode(backend: ElqBackend, batches: Sequence[Batch]) -> None:
    for batch in batches:
        backend.model.states(batch)


def _read(backend: ElqBackend, texts: Sequence[str]) -> list[object]:
    return [document for place in range(0, len(texts), 32) for document in backend.link_many(texts[place : place + 32])]


def _measure_encoding(report: Report, kb: KnowledgeBase, count: int, rounds: int) -> None:
    tower = EntityTower.load(ElqConfig.read(PACKAGED))
    words = _words(40_000)
    entities = [
        (f"Thing {place}", " ".join(words[30 * place : 30 * place + 20 + place % 20])) for place in range(count)
    ]
    ids = [code.ids for code in tower.tokenizer.encode_batch([f"{title}: {about}" for title, about in entities])]
    windows = [np.array(one, np.int64) for one in sorted(ids, key=len)]

    def alone() -> None:
        tower.encoder.pooled(windows, "mean", normalise=True)

    seconds = interleaved({"alone": alone, "tower": lambda: tower.encode(entities)}, rounds)
    report.add("encoding entities / the encoder alone", seconds["tower"] / seconds["alone"], "×", at_most=1.2)
    report.add("encoding entities", count / seconds["tower"], "entities/s")


def _measure_documents(report: Report, kb: KnowledgeBase, most: int) -> None:
    """The same words as documents of several lengths."""
    linker = Linker.load(kb, "elq", precision="fp32", threshold=0.05)
    words = _words(most)
    rates = {}
    size = 100
    while size <= most:
        total = min(len(words), max(size, 10_000))
        texts = [" ".join(words[place : place + size]) for place in range(0, total, size)]
        begin = time.perf_counter()
        links = sum(len(document.links) for document in linker.link_many(texts))
        seconds = time.perf_counter() - begin
        rates[size] = total / seconds
        report.add(f"documents of {size:,} words: words a second", rates[size])
        report.add(f"documents of {size:,} words: links a second", links / seconds)
        size *= 10
    middle = float(np.median(list(rates.values())))
    report.add("slowest / middle of these", min(rates.values()) / middle, "×", at_least=0.8)
    report.add("fastest / middle of these", max(rates.values()) / middle, "×", at_most=1.2)
    report.add("peak memory of all this", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")


if __name__ == "__main__":
    sys.exit(main())
