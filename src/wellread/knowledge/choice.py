"""Which faiss index a number of entities calls for, how it is made, and how widely it must look to find enough.

- *exact* looks at every entity. Uncompressed it is a matrix product; compressed by *pq* (4 bits for two numbers of a
  vector turned onto its main axes) 25 k entities are scanned in the time of a few thousand.
- *ivf* looks into the nearest of many clusters only; *hnsw* follows a graph of neighbours.

What a compressed index returns is scored again by the rows themselves, kept as float16, or as int8 where float16 would
take more than `ROOM`. How many clusters and candidates are needed is measured on the entities' own vectors, disturbed
as a mention disturbs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.knowledge.search import Choice, look
from wellread.knowledge.vectors import Encoding

KINDS, COMPRESSIONS = ("auto", "exact", "hnsw", "ivf"), ("auto", "none", "int8", "pq")

ROOM = 256_000_000
"""Bytes that the rows of an index may take as float16; more are kept as int8."""

UNCOMPRESSED, SCANNED = 2_000, 40_000
"""Up to so many entities all are compared as they are; up to so many, compressed."""

WANTED = 0.99
"""Share of the true ten nearest that a tuned index finds; the bar is 0.98."""

_FEWEST = 1_000
_LINKS = 32
_ROUNDS = 8
_BLOCK = 65_536
_SAMPLE = 131_072
_TRIALS = 256
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
    rows: Literal["float16", "int8"] = "float16" if compression == "none" or 2 * count * dim <= ROOM else "int8"
    return Choice(kind, compression, rows, clusters, why)  # type: ignore[arg-type]  # checked above


def make(choice: Choice, vectors: NDArray[np.float16], progress: Encoding) -> tuple[faiss.Index, faiss.Index]:
    """The index that is searched and the rows that score again (the same where scores are exact at once)."""
    dim = vectors.shape[1]
    base = _searched(choice, vectors, progress)
    if (choice.kind, choice.compression) == ("exact", "none"):
        progress.step = "adding entities"
        _add(vectors, base)
        return base, base
    kept = faiss.ScalarQuantizer.QT_fp16 if choice.rows == "float16" else faiss.ScalarQuantizer.QT_8bit
    rows = faiss.IndexScalarQuantizer(dim, kept, faiss.METRIC_INNER_PRODUCT)
    if choice.rows == "int8":
        rows.train(_sample(vectors, _SAMPLE))
    progress.step = "adding entities"
    _add(vectors, base, rows)
    return base, rows


def _searched(choice: Choice, vectors: NDArray[np.float16], progress: Encoding) -> faiss.Index:
    """The trained, empty index."""
    dim, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    if choice.kind == "hnsw":
        codes = "Flat" if choice.compression == "none" else "SQ8"
        index = faiss.index_factory(dim, f"HNSW{_LINKS},{codes}", metric)
        index.hnsw.efConstruction = 80
        if choice.compression != "none":
            index.train(_sample(vectors, _SAMPLE))
        return index
    if (choice.kind, choice.compression) == ("exact", "none"):
        return faiss.IndexFlatIP(dim)
    progress.step = "learning clusters and codes" if choice.kind == "ivf" else "learning codes"
    sample = _sample(vectors, max(_SAMPLE, 32 * choice.clusters))
    axes = _main_axes(sample) if choice.compression == "pq" else np.eye(dim, dtype=np.float32)
    inner = axes.shape[1]
    codes = {"none": "SQfp16", "int8": "SQ8", "pq": f"PQ{inner // 2}x4fs"}[choice.compression]
    turned = sample @ axes
    if choice.kind == "ivf":
        index = faiss.index_factory(inner, f"IVF{choice.clusters}_HNSW16,{codes}", metric)
        index.quantizer.add(_centres(turned, choice.clusters))
        faiss.downcast_index(index.quantizer).hnsw.efSearch = 64
    else:
        index = faiss.index_factory(inner, codes, metric)
    index.train(turned[:_SAMPLE])
    if choice.compression != "pq":
        return index
    turn = faiss.LinearTransform(dim, inner, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(axes.T).ravel(), turn.A)
    turn.is_trained = True
    return faiss.IndexPreTransform(turn, index)


def _main_axes(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """The main axes as columns, half of them (of few, all), mixed, so that every code carries as much.

    Not faiss's PCA: it takes the mean away, and an inner product with the mean differs from entity to entity.
    """
    width = sample.shape[1]
    dim = width // 4 * 2 if width >= 64 else width + width % 2
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


def _add(vectors: NDArray[np.float16], *indexes: faiss.Index) -> None:
    for block in blocks(vectors):
        for index in indexes:
            index.add(block)


def blocks(vectors: NDArray[np.float16]) -> Iterator[NDArray[np.float32]]:
    """All rows in order, as float32, some at a time."""
    for begin in range(0, len(vectors), _BLOCK):
        yield vectors[begin : begin + _BLOCK].astype(np.float32)


def _sample(vectors: NDArray[np.float16], most: int) -> NDArray[np.float32]:
    if len(vectors) <= most:
        return vectors.astype(np.float32)
    rows = np.random.default_rng(0).choice(len(vectors), most, replace=False)
    return vectors[np.sort(rows)].astype(np.float32)


def tune(
    choice: Choice, searched: faiss.Index, rows: faiss.Index, vectors: NDArray[np.float16], progress: Encoding
) -> Choice:
    """How widely to look so that `WANTED` of the ten nearest are found, by trial."""
    if searched is rows:
        return choice
    progress.step = "trying it out"
    queries = trial_queries(vectors)
    true = nearest(vectors, queries, 10)

    def tried(probes: int, candidates: int) -> Choice:
        trial = replace(choice, probes=probes, candidates=candidates)
        return replace(trial, recall=recall(look(trial, searched, rows, queries, 10)[1], true))

    wide = [1] if choice.kind == "exact" else [16, 24, 32, 48, 64, 96, 128]
    most = 320
    best = tried(wide[0], most)
    for probes in wide[1:]:
        if best.recall >= WANTED + 0.002:
            break
        best = tried(probes, most)
    for candidates in (40, 60, 80, 120, 160):
        fewer = tried(best.probes, candidates)
        if fewer.recall >= min(WANTED, best.recall - 0.001):
            return fewer
    return best


def trial_queries(vectors: NDArray[np.float16], count: int = _TRIALS, seed: int = 1) -> NDArray[np.float32]:
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


def nearest(vectors: NDArray[np.float16], queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The true nearest rows, by comparing all."""
    best = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    begin = 0
    for block in blocks(vectors):
        scores = np.concatenate([best, queries @ block.T], axis=1)
        there = np.concatenate(
            [rows, np.broadcast_to(np.arange(begin, begin + len(block)), (len(queries), len(block)))], 1
        )
        top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        best, rows = np.take_along_axis(scores, top, 1), np.take_along_axis(there, top, 1)
        begin += len(block)
    return rows


def recall(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """Share of the true rows that were found: ([[1, 2]], [[2, 3]]) -> 0.5."""
    return float(np.mean([np.isin(t, f).mean() for f, t in zip(found, true, strict=True)]))
