"""Combined entity vectors: the vector of an entity's text and the vector of its triples, concatenated.

They have the file format of `EntityVectors`. The graph part of an entity without triples is zero.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.index.entity_vectors import VECTORS_FORMAT, EntityVectors, Scan
from wellread.index.folder import delete_unused, locked, read_manifest, write_manifest
from wellread.index.triples import Graph
from wellread.io.arrays import Blocks, Strings, map_arrays, save_arrays
from wellread.io.files import storage
from wellread.kb.store import KnowledgeBase

if TYPE_CHECKING:
    from jaxtyping import Float32

GRAPH_FORMAT = "wellread graph vectors 1"
_FILE = "entities.safetensors"
_BLOCK = 8192


@dataclass(frozen=True)
class GraphVectors:
    """Memory-mapped vectors trained on triples, of the entities that have some."""

    folder: Path
    uid: str
    revision: int
    fingerprint: str
    ids: Strings
    rows: Float32[np.ndarray, "entity dim"]
    about: Mapping[str, Any]
    """Model and its scores on held-out triples."""

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return int(self.rows.shape[1])

    @classmethod
    def save(
        cls,
        folder: str | Path,
        graph: Graph,
        vectors: Float32[np.ndarray, "entity dim"],
        fingerprint: str,
        about: Mapping[str, Any],
    ) -> GraphVectors:
        """Write the vectors of a graph's entities; the manifest is written last."""
        folder = Path(folder)
        strings = Strings.pack((id.encode("utf-8", "surrogatepass") for id in graph.entities), "ids")
        header = {"format": GRAPH_FORMAT, "uid": graph.uid, "revision": str(graph.revision)}
        save_arrays(folder / _FILE, {"vectors": vectors, **strings}, header)
        manifest = {**header, "revision": graph.revision, "fingerprint": fingerprint}
        manifest |= {"dim": int(vectors.shape[1]), "count": len(vectors), "file": _FILE, "about": dict(about)}
        write_manifest(folder / "graph.json", manifest)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> GraphVectors:
        """Map the vectors in a folder."""
        folder = Path(folder)
        manifest = read_manifest(folder / "graph.json", GRAPH_FORMAT)
        if manifest is None:
            raise KnowledgeBaseError(
                f"there are no graph vectors in {folder}; make them with: wellread kb embed --help"
            )
        try:
            found = map_arrays(folder / manifest["file"])
            ids, rows = Strings(found, "ids"), found["vectors"]
            if not len(ids) == len(rows) == manifest["count"]:
                raise ValueError("its parts do not fit together")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KnowledgeBaseError(
                f"{folder / manifest['file']} is missing or damaged ({error}); delete {folder} and make the vectors "
                "again with: wellread kb embed"
            ) from error
        return cls(
            folder, manifest["uid"], int(manifest["revision"]), manifest["fingerprint"], ids, rows, manifest["about"]
        )


@dataclass(frozen=True, slots=True)
class VectorWeights:
    """Weights of the two parts of a combined vector."""

    text: float = 1.0
    """Factor of the text vector."""
    graph: float = 1.0
    """Factor of the graph vector."""
    unit: bool = True
    """Normalise each part to length 1 first, so that neither dominates; the paper concatenates them as they are."""

    def __post_init__(self) -> None:
        for name in ("text", "graph"):
            if not 0 < getattr(self, name) < np.inf:
                raise UsageError(f"the weight of {name} is {getattr(self, name)}; expected more than 0")


@dataclass(frozen=True, slots=True)
class Combined:
    """Result of `combine`."""

    vectors: EntityVectors
    without_facts: int
    """Number of entities whose graph part is zero."""


def combine(
    kb: KnowledgeBase,
    folder: str | Path,
    *,
    text: EntityVectors | None = None,
    graph: GraphVectors | None = None,
    mixture: VectorWeights | None = None,
) -> Combined:
    """Write [text ; graph] for every entity of a KB; raise KnowledgeBaseError for parts of another KB or revision."""
    if text is None and graph is None:
        raise UsageError("there is nothing to combine; give text vectors, graph vectors or both")
    folder, mixture = Path(folder), mixture or VectorWeights()
    with locked(folder, kb.path), storage(folder):
        scan = Scan.of(kb)
        for name, part in (("text", text), ("graph", graph)):
            if part is not None and (part.uid, part.revision) != (scan.uid, scan.revision):
                whose = f"revision {part.revision} of it" if part.uid == scan.uid else "another knowledge base"
                raise KnowledgeBaseError(
                    f"{kb.path.name} is at revision {scan.revision}, the {name} vectors in {part.folder} are of "
                    f"{whose}; make them again with: wellread kb embed --kb {kb.path} --to {folder}"
                )
        ids = Strings(scan.strings, "ids")
        places = np.full(len(ids), -1, np.int64) if graph is None else _places(ids, graph.ids)
        dim = (text.dim if text is not None else 0) + (graph.dim if graph is not None else 0)
        blocks = _blocks(len(ids), text, graph, places, mixture)
        fingerprint = _fingerprint(text, graph, mixture)
        file = f"vectors-{uuid.uuid4().hex[:12]}.safetensors"
        arrays: dict[str, NDArray[Any] | Blocks] = {
            "vectors": Blocks(np.float16, (len(ids), dim), blocks),
            "texts": scan.texts,
            "hashes": scan.hashes,
            **scan.strings,
        }
        save_arrays(folder / file, arrays, {"format": VECTORS_FORMAT, "uid": scan.uid, "revision": str(scan.revision)})
        manifest = {"format": VECTORS_FORMAT, "kb": str(kb.path), "uid": scan.uid, "revision": scan.revision}
        manifest |= {"fingerprint": fingerprint, "dim": dim, "count": len(ids), "file": file}
        lacking = 0 if graph is None else int((places < 0).sum())
        manifest |= {"parts": _parts(text, graph, mixture), "without_facts": lacking}
        write_manifest(folder / "vectors.json", manifest)
        delete_unused(folder)
    return Combined(EntityVectors.of_manifest(folder, manifest), lacking)


def _places(ids: Strings, known: Strings) -> NDArray[np.int64]:
    """Return the position of each id among the known ones; -1 if it is not there."""
    at = {id: place for place, id in enumerate(known.take(range(len(known))))}
    return np.fromiter((at.get(id, -1) for id in ids.take(range(len(ids)))), np.int64, len(ids))


def _blocks(
    count: int,
    text: EntityVectors | None,
    graph: GraphVectors | None,
    places: NDArray[np.int64],
    mixture: VectorWeights,
) -> Iterator[NDArray[np.float16]]:
    for begin in range(0, count, _BLOCK):
        some = places[begin : begin + _BLOCK]
        parts = []
        if text is not None:
            parts.append(_scaled(text.rows[begin : begin + _BLOCK].astype(np.float32), mixture.text, mixture.unit))
        if graph is not None:
            rows = np.zeros((len(some), graph.dim), np.float32)
            rows[some >= 0] = graph.rows[some[some >= 0]]
            parts.append(_scaled(rows, mixture.graph, mixture.unit))
        joined = np.concatenate(parts, axis=1)
        if not (np.abs(joined) < np.finfo(np.float16).max).all():
            raise InputError("a vector is not finite (or beyond 65,504); train again, or set a smaller weight")
        yield joined.astype(np.float16)


def _scaled(rows: NDArray[np.float32], weight: float, unit: bool) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True) if unit else np.ones(1)
    return np.asarray(weight * rows / np.where(lengths, lengths, 1), np.float32)


def _parts(text: EntityVectors | None, graph: GraphVectors | None, mixture: VectorWeights) -> dict[str, Any]:
    parts: dict[str, Any] = {"unit": mixture.unit}
    if text is not None:
        parts["text"] = {"fingerprint": text.fingerprint, "dim": text.dim, "weight": mixture.text}
    if graph is not None:
        parts["graph"] = {"fingerprint": graph.fingerprint, "dim": graph.dim, "weight": mixture.graph, **graph.about}
    return parts


def _fingerprint(text: EntityVectors | None, graph: GraphVectors | None, mixture: VectorWeights) -> str:
    """Return a digest that changes whenever a vector would."""
    parts = (text and text.fingerprint, graph and graph.fingerprint, mixture.text, mixture.graph, mixture.unit)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
