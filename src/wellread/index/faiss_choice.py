"""Which faiss index a number of entities calls for, how it is made, and how widely it must look to find enough.

- *exact* looks at every entity. Uncompressed it is a matrix product; compressed by *pq* (4 bits for two numbers of a
  vector turned onto its main axes) 25 k entities are scanned in the time of a few thousand.
- *ivf* looks into the nearest of many clusters only; *hnsw* follows a graph of neighbours.

What a compressed index proposes is scored again by the rows themselves, kept as float32, or as int8 where float32 would
take more than `ROOM`. How many clusters and candidates are needed is measured on the entities' own vectors, disturbed
as a mention disturbs them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.index.entity_vectors import Encoding
from wellread.index.faiss_search import Choice, Proposer, look
from wellread.index.rows import Form, Rows, blocks

KINDS, COMPRESSIONS = ("auto", "exact", "hnsw", "ivf"), ("auto", "none", "int8", "pq")

ROOM = 256_000_000
"""Bytes that the rows of an index may take as float32; larger ones are kept as int8."""

UNCOMPRESSED, SCANNED = 2_000, 40_000
"""Up to so many entities all are compared as they are; up to so many, compressed."""

WANTED = 0.992
"""Share that a tuned index finds of what could be found by looking at all its rows; the bar is 0.98 of exact search."""

_FEWEST = 1_000
_LINKS = 32
_ROUNDS = 8
_PROBES = {"exact": [1], "hnsw": [16, 32, 64, 128, 256], "ivf": [8, 12, 16, 20, 24, 32, 48, 64, 96, 128]}
_SAMPLE = 131_072
_TRIALS = 512
_DISTURBANCE = 0.7
"""Length of what is added to a vector to make a trial query of it, in its own: their cosine is then about 0.82."""


def choose(count: int, dim: int, kind: str = "auto", compression: str = "auto") -> Choice:
    """The kind and compression for so many entities, as asked for or by size."""
    if kind not in KINDS or compression not in COMPRESSIONS:
        raise UsageError(
            f"kind={kind!r}, compression={compression!r} is no choice; kinds are {', '.join(KINDS)}, "
            f"compressions {', '.join(COMPRESSIONS)}"
        )
    if (kind, compression) == ("hnsw", "pq"):
        raise UsageError(
            f"hnsw keeps {8 * _LINKS} bytes of links for every entity, so pq would save little; "
            "choose the compression int8, or the kind ivf"
        )
    why = "as asked for"
    if count < _FEWEST and (kind, compression) != ("exact", "none"):
        if (kind, compression) != ("auto", "auto"):
            why = f"{count:,} entities are too few to learn clusters or codes from (at least {_FEWEST:,})"
        else:
            why = f"up to {UNCOMPRESSED:,} entities all are compared, as they are"
        kind, compression = "exact", "none"
    elif kind == "auto":
        kind = "exact" if count <= SCANNED else "ivf"
        why = (
            f"up to {UNCOMPRESSED:,} entities all are compared, as they are"
            if count <= UNCOMPRESSED
            else f"up to {SCANNED:,} entities all are compared, compressed"
            if count <= SCANNED
            else f"above {SCANNED:,} entities only the nearest clusters are looked into"
        )
    if compression == "auto":
        compression = "int8" if kind == "hnsw" else "none" if kind == "exact" and count <= UNCOMPRESSED else "pq"
    clusters = max(1, min(1 << round(np.log2(4 * max(count, 1) ** 0.5)), count // 39)) if kind == "ivf" else 0
    small = (kind, compression) == ("exact", "int8") or (compression != "none" and 4 * count * dim > ROOM)
    rows: Form = "int8" if small else "float32"
    return Choice(kind, compression, rows, clusters, why)  # type: ignore[arg-type]  # checked above


def make(choice: Choice, vectors: NDArray[np.floating[Any]], progress: Encoding) -> Proposer | None:
    """What proposes candidates, learned from the vectors and filled with them; None where all rows are compared."""
    if choice.kind == "exact" and choice.compression != "pq":
        return None
    progress.step = "learning clusters and codes" if choice.kind == "ivf" else "learning codes"
    proposer = _learn(choice, _sample(vectors, max(_SAMPLE, 32 * choice.clusters)))
    progress.step, progress.done_bytes, progress.total_bytes = "", 0, len(vectors)
    for block in blocks(vectors):
        proposer.index.add(block @ proposer.axes if proposer.axes.size else block)
        progress.done_bytes += len(block)
    if choice.kind == "ivf":
        proposer.index.quantizer.reset()  # has done its work
    return proposer


def _learn(choice: Choice, sample: NDArray[np.float32]) -> Proposer:
    nothing = np.zeros((0, 0), np.float32)
    metric, dim = faiss.METRIC_INNER_PRODUCT, sample.shape[1]
    if choice.kind == "hnsw":
        codes = "Flat" if choice.compression == "none" else "SQ8"
        index = faiss.index_factory(dim, f"HNSW{_LINKS},{codes}", metric)
        index.hnsw.efConstruction = 80
        index.train(sample)
        return Proposer(index, nothing, nothing)
    axes = _main_axes(sample) if choice.compression == "pq" else nothing
    turned = sample @ axes if axes.size else sample
    codes = {"none": "SQfp16", "int8": "SQ8", "pq": f"PQ{turned.shape[1] // 2}x4fs"}[choice.compression]
    if choice.kind == "exact":
        index, centres = faiss.index_factory(turned.shape[1], codes, metric), nothing
    else:
        # The graph of centres only finds the cluster of what is added; queries are compared with all of them.
        index = faiss.index_factory(turned.shape[1], f"IVF{choice.clusters}_HNSW32,{codes}", metric)
        centres = _centres(turned, choice.clusters)
        index.quantizer.add(centres)
        faiss.downcast_index(index.quantizer).hnsw.efSearch = 64
    index.train(turned[:_SAMPLE])
    return Proposer(index, axes, np.ascontiguousarray(centres.T))


def _main_axes(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """The main axes as columns, not quite half of them (of few, all), mixed, so that every code carries as much.

    Not faiss's PCA: it takes the mean away, and an inner product with the mean differs from entity to entity.
    """
    width = sample.shape[1]
    dim = width * 7 // 32 * 2 if width >= 64 else width + width % 2
    _, axes = np.linalg.eigh(sample.T @ sample)
    mixed, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))
    return np.asarray(axes[:, ::-1][:, :dim] @ mixed[: min(width, dim)], np.float32)


def _centres(sample: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Centres of clusters by direction (k-means); by numpy, whose matrix product is several times that of faiss."""
    chance = np.random.default_rng(0)
    centres = _unit(sample[chance.choice(len(sample), count, replace=False)])
    for _ in range(_ROUNDS):
        sums, sizes = np.zeros_like(centres), np.zeros(count, np.int64)
        for begin in range(0, len(sample), 8192):
            block = sample[begin : begin + 8192]
            nearest = (block @ centres.T).argmax(1)
            order = np.argsort(nearest, kind="stable")
            there, first = np.unique(nearest[order], return_index=True)
            sums[there] += np.add.reduceat(block[order], first, axis=0)
            sizes += np.bincount(nearest, minlength=count)
        empty = np.flatnonzero(sizes == 0)
        sums[empty] = sample[chance.choice(len(sample), len(empty))]
        centres = _unit(sums)
    return centres


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), np.float32)


def _sample(vectors: NDArray[np.floating[Any]], most: int) -> NDArray[np.float32]:
    if len(vectors) <= most:
        return vectors.astype(np.float32)
    rows = np.random.default_rng(0).choice(len(vectors), most, replace=False)
    return vectors[np.sort(rows)].astype(np.float32)


def tune(
    choice: Choice, proposer: Proposer | None, rows: Rows, vectors: NDArray[np.floating[Any]], progress: Encoding
) -> Choice:
    """How far to look so that `WANTED` is found, by trial, the cheapest settings first."""
    if proposer is None and choice.rows == "float32":
        return choice
    progress.step = "trying it out"
    queries = trial_queries(vectors)
    true = nearest(vectors, queries, 10)
    ceiling = recall(rows.search(queries, 10)[1], true) if choice.rows == "int8" else 1.0
    if proposer is None:
        return replace(choice, recall=ceiling)
    far = [(probes, candidates) for probes in _PROBES[choice.kind] for candidates in (40, 60, 80, 100, 120, 160, 320)]
    size = len(vectors) / choice.clusters / 250 if choice.kind == "ivf" else 1.0
    best = choice
    for probes, candidates in sorted(far, key=lambda one: 3 * size * one[0] + one[1]):
        trial = replace(choice, probes=probes, candidates=candidates)
        found = recall(look(trial, proposer, rows, queries, 10)[1], true)
        if not best.candidates or found > best.recall:
            best = replace(trial, recall=found)
        if found >= WANTED * ceiling:
            break
    return best


def trial_queries(vectors: NDArray[np.floating[Any]], count: int = _TRIALS, seed: int = 1) -> NDArray[np.float32]:
    """Vectors of entities, disturbed by mixtures of others, so that the disturbance lies where vectors do."""
    chance = np.random.default_rng(seed)
    own = vectors[np.sort(chance.choice(len(vectors), min(count, len(vectors)), replace=False))].astype(np.float32)
    others = vectors[np.sort(chance.integers(0, len(vectors), 512))].astype(np.float32)
    noise = (chance.standard_normal((len(own), len(others))) @ (others - others.mean(0))).astype(np.float32)
    length = np.linalg.norm(own, axis=1, keepdims=True)
    noise *= _DISTURBANCE * length / np.maximum(np.linalg.norm(noise, axis=1, keepdims=True), 1e-9)
    queries = own + noise
    queries *= length / np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-9)
    return np.asarray(queries, np.float32)


def nearest(vectors: NDArray[np.floating[Any]], queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The true nearest rows, by comparing all."""
    return Rows(vectors).search(queries, k)[1]


def recall(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """Share of the true rows that were found: ([[1, 2]], [[2, 3]]) -> 0.5."""
    return float((true[:, :, None] == found[:, None, :]).any(2).mean())
