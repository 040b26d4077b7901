"""Choice of a faiss index by the number of entities, its training, and the tuning of its search.

- *exact* compares every entity. Uncompressed it is a matrix product; compressed by *pq* (4 bits for two numbers of a
  vector rotated onto its main axes) 25 k entities are scanned in the time of a few thousand.
- *ivf* searches only the nearest of many clusters; *hnsw* follows a graph of neighbours.

Candidates of a compressed index are scored again by the rows themselves, kept as float32, or as int8 if float32 would
take more than `MOST_BYTES`. The numbers of clusters and candidates are tuned on the entities' own vectors, with noise
like that of mentions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.index.entity_vectors import Encoding
from wellread.index.faiss_search import IndexChoice, Proposer, RowFormat, VectorRows, float_blocks, search_rows

INDEX_KINDS, COMPRESSIONS = ("auto", "exact", "hnsw", "ivf"), ("auto", "none", "int8", "pq")

MOST_BYTES = 256_000_000
"""Maximum size of an index's rows as float32; larger ones are kept as int8."""

UNCOMPRESSED, SCANNED = 2_000, 40_000
"""Up to these numbers of entities all are compared: uncompressed, and compressed."""

WANTED = 0.992
"""Share of the rows found by a full search that a tuned index must find; the requirement is 0.98 of exact search."""

_FEWEST = 1_000
_LINKS = 32
_ROUNDS = 8
_PROBES = {"exact": [1], "hnsw": [16, 32, 64, 128, 256], "ivf": [8, 12, 16, 20, 24, 32, 48, 64, 96, 128]}
_SAMPLE = 131_072
_TRIALS = 512
_DISTURBANCE = 0.7
"""Length of the noise added to make a trial query, relative to the vector: their cosine is then about 0.82."""


def choose_index(count: int, dim: int, kind: str = "auto", compression: str = "auto") -> IndexChoice:
    """Return the kind and compression for a number of entities, as requested or by size."""
    if kind not in INDEX_KINDS or compression not in COMPRESSIONS:
        raise UsageError(
            f"kind={kind!r}, compression={compression!r} is not a choice; kinds are {', '.join(INDEX_KINDS)}, "
            f"compressions {', '.join(COMPRESSIONS)}"
        )
    if (kind, compression) == ("hnsw", "pq"):
        raise UsageError(
            f"hnsw keeps {8 * _LINKS} bytes of links for every entity, so pq would save little; "
            "choose the compression int8, or the kind ivf"
        )
    why = "as requested"
    if count < _FEWEST and (kind, compression) != ("exact", "none"):
        if (kind, compression) != ("auto", "auto"):
            why = f"{count:,} entities are too few to train clusters or codes (at least {_FEWEST:,})"
        else:
            why = f"up to {UNCOMPRESSED:,} entities, all are compared, uncompressed"
        kind, compression = "exact", "none"
    elif kind == "auto":
        kind = "exact" if count <= SCANNED else "ivf"
        why = (
            f"up to {UNCOMPRESSED:,} entities, all are compared, uncompressed"
            if count <= UNCOMPRESSED
            else f"up to {SCANNED:,} entities, all are compared, compressed"
            if count <= SCANNED
            else f"above {SCANNED:,} entities, only the nearest clusters are searched"
        )
    if compression == "auto":
        compression = "int8" if kind == "hnsw" else "none" if kind == "exact" and count <= UNCOMPRESSED else "pq"
    clusters = max(1, min(1 << round(np.log2(4 * max(count, 1) ** 0.5)), count // 39)) if kind == "ivf" else 0
    small = (kind, compression) == ("exact", "int8") or (compression != "none" and 4 * count * dim > MOST_BYTES)
    rows: RowFormat = "int8" if small else "float32"
    return IndexChoice(kind, compression, rows, clusters, why)  # type: ignore[arg-type]  # checked above


def build_proposer(choice: IndexChoice, vectors: NDArray[np.floating[Any]], progress: Encoding) -> Proposer | None:
    """Train the index that proposes candidates and fill it with the vectors; None if all rows are compared."""
    if choice.kind == "exact" and choice.compression != "pq":
        return None
    progress.step = "training clusters and codes" if choice.kind == "ivf" else "training codes"
    proposer = _learn(choice, _sample(vectors, max(_SAMPLE, 32 * choice.clusters)))
    progress.step, progress.done_bytes, progress.total_bytes = "", 0, len(vectors)
    for block in float_blocks(vectors):
        proposer.index.add(block @ proposer.axes if proposer.axes.size else block)
        progress.done_bytes += len(block)
    if choice.kind == "ivf":
        proposer.index.quantizer.reset()  # only needed to add vectors
    return proposer


def _learn(choice: IndexChoice, sample: NDArray[np.float32]) -> Proposer:
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
        # The graph of centres only assigns added vectors to clusters; queries are compared with all centres.
        index = faiss.index_factory(turned.shape[1], f"IVF{choice.clusters}_HNSW32,{codes}", metric)
        centres = _centres(turned, choice.clusters)
        index.quantizer.add(centres)
        faiss.downcast_index(index.quantizer).hnsw.efSearch = 64
    index.train(turned[:_SAMPLE])
    return Proposer(index, axes, np.ascontiguousarray(centres.T))


def _main_axes(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return nearly half of the main axes (of few, all) as columns, rotated so that all codes share the variance.

    Not faiss's PCA, which subtracts the mean: an inner product with the mean differs from entity to entity.
    """
    width = sample.shape[1]
    dim = width * 7 // 32 * 2 if width >= 64 else width + width % 2
    _, axes = np.linalg.eigh(sample.T @ sample)
    mixed, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))
    return np.asarray(axes[:, ::-1][:, :dim] @ mixed[: min(width, dim)], np.float32)


def _centres(sample: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return the centres of clusters by direction (k-means); numpy's products are much faster than faiss's."""
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


def tune_index(
    choice: IndexChoice,
    proposer: Proposer | None,
    rows: VectorRows,
    vectors: NDArray[np.floating[Any]],
    progress: Encoding,
) -> IndexChoice:
    """Return the cheapest settings that find `WANTED`, by trial."""
    if proposer is None and choice.rows == "float32":
        return choice
    progress.step = "tuning"
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
        found = recall(search_rows(trial, proposer, rows, queries, 10)[1], true)
        if not best.candidates or found > best.recall:
            best = replace(trial, recall=found)
        if found >= WANTED * ceiling:
            break
    return best


def trial_queries(vectors: NDArray[np.floating[Any]], count: int = _TRIALS, seed: int = 1) -> NDArray[np.float32]:
    """Return vectors of entities with noise, which is a mixture of other vectors and so has their distribution."""
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
    """Return the nearest rows by comparing all."""
    return VectorRows(vectors).search(queries, k)[1]


def recall(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """Return the share of the true rows that were found: ([[1, 2]], [[2, 3]]) -> 0.5."""
    return float((true[:, :, None] == found[:, None, :]).any(2).mean())
