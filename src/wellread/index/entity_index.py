"""Index of nearest entities: faiss over the vectors of a KB, memory-mapped and updated in place.

>>> index = EntityIndex.open(kb, fingerprint=encoder.fingerprint)
>>> scores, rows = index.search(encoder.encode([("Paris", "capital of France")]), k=3)
>>> index.entities(rows[0])
['Q90', 'Q142', 'Q830149']

The files of a build never change; later changes of the KB are stored next to them (`changes.py`) and searched with
them. An `EntityIndex` never changes either: `refresh` returns another one, so that running searches are not affected.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError, StorageError, UsageError
from wellread.index import faiss_choice
from wellread.index.changes import Changes
from wellread.index.entity_vectors import (
    VECTORS_FORMAT,
    Encoding,
    EntityEncoder,
    EntityVectors,
    encode_entities,
    text_key,
)
from wellread.index.faiss_search import (
    SEARCH_THREADS,
    IndexChoice,
    Proposer,
    SearchResult,
    Subset,
    VectorRows,
    best_rows,
    load_proposer,
    load_rows,
    matrix_product,
    save_proposer,
    save_rows,
    search_rows,
)
from wellread.index.folder import (
    build_command,
    delete_parts,
    delete_unused,
    locked,
    read_manifest,
    vectors_folder,
    write_manifest,
)
from wellread.io.checksum import crc_of
from wellread.io.files import storage
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase

INDEX_FORMAT = "wellread index 2"
MOST_CHANGES = 2_000
"""Maximum number of changes that a build leaves next to the index; more are merged, because every search pays for them.
"""

_FEW = 5_000
"""Subsets up to this size are compared directly, whatever the index."""
_SLACK = 32
"""Number of additional candidates if some rows were removed."""


@dataclass(frozen=True)
class EntityIndex:
    """Nearest entities of a vector. Rows number the entities; ids and titles are looked up by row."""

    vectors: EntityVectors
    choice: IndexChoice
    changes: Changes
    revision: int
    state: str
    """Changes whenever the index does."""
    _proposer: Proposer | None = field(repr=False)
    _rows: VectorRows = field(repr=False)
    _manifest: dict[str, Any] = field(repr=False)

    @classmethod
    def build(
        cls,
        vectors: EntityVectors,
        *,
        kind: Literal["auto", "exact", "hnsw", "ivf"] = "auto",
        compression: Literal["auto", "none", "int8", "pq"] = "auto",
        progress: Encoding | None = None,
    ) -> EntityIndex:
        """Build the index of vectors in their folder; `auto` chooses by size."""
        progress = progress if progress is not None else Encoding()
        chosen = faiss_choice.choose_index(len(vectors), vectors.dim, kind, compression)
        folder, token = vectors.folder, uuid.uuid4().hex[:12]
        with locked(folder, vectors.kb), storage(folder):
            files = [f"rows-{token}.safetensors"]
            try:
                proposer = faiss_choice.build_proposer(chosen, vectors.rows, progress)
                progress.step = "writing the index"
                save_rows(folder / files[0], vectors.rows, chosen.rows)
                rows = load_rows(folder / files[0])
                if proposer is not None:
                    files += [f"index-{token}.faiss", f"axes-{token}.safetensors"]
                    save_proposer(proposer, folder / files[1], folder / files[2])
                chosen = faiss_choice.tune_index(chosen, proposer, rows, vectors.rows, progress)
            except RuntimeError as error:
                if "interrupt" in str(error).lower():
                    raise KeyboardInterrupt from None
                raise
            manifest: dict[str, Any] = {
                "format": INDEX_FORMAT,
                "vectors": read_manifest(folder / "vectors.json", VECTORS_FORMAT),
                "revision": vectors.revision,
                "changes": None,
                "choice": chosen.as_dict(),
                "asked": [kind, compression],
                "files": {name: (folder / name).stat().st_size for name in files},
                "crcs": {name: crc_of(folder / name) for name in files if name.endswith(".faiss")},
            }
            if (manifest["vectors"] or {}).get("file") != vectors.file:
                raise KnowledgeBaseError(
                    f"the vectors in {folder} were built again meanwhile; run it again: {build_command(vectors.kb)}"
                )
            write_manifest(folder / "index.json", manifest)
            delete_unused(folder)
        progress.step = ""
        return cls._of_manifest(folder, manifest)

    @classmethod
    def open(
        cls,
        kb: KnowledgeBase,
        *,
        fingerprint: str | None,
        folder: str | Path | None = None,
        stale: Literal["refuse", "allow"] = "refuse",
    ) -> EntityIndex:
        """Map the index of a KB; raise KnowledgeBaseError if it is of another KB, encoder or revision.

        An index of an older revision can be opened with `stale="allow"`, to `refresh` it. Without a `fingerprint` any
        encoder is accepted.
        """
        folder = vectors_folder(kb, folder)
        index = cls.load(folder, kb.path)
        about = kb.metadata
        mend = f"bring it up to date with: {build_command(kb.path)}"
        if folder != vectors_folder(kb):
            mend += f" --to {folder}"
        if index.vectors.uid != about["uid"]:
            raise KnowledgeBaseError(
                f"the index in {folder} is of another knowledge base than {kb.path} (or of one that was built again "
                f"since); {mend}"
            )
        if fingerprint is not None and index.vectors.fingerprint != fingerprint:
            raise KnowledgeBaseError(
                f"the index in {folder} was made by another encoder ({index.vectors.fingerprint[:12]}…, not "
                f"{fingerprint[:12]}…); {mend} (with --model where it is not the default)"
            )
        if stale == "refuse" and index.revision != int(about["revision"]):
            raise KnowledgeBaseError(
                f"the index in {folder} is of revision {index.revision}, {kb.path} is at {about['revision']}; {mend}"
            )
        return index

    @classmethod
    def load(cls, folder: Path, kb: str | Path = "KB") -> EntityIndex:
        """Map the index in a folder, of any KB."""
        lacks = ""
        for _ in range(3):  # another process may be replacing the files
            manifest = read_manifest(folder / "index.json", INDEX_FORMAT)
            if manifest is None:
                raise KnowledgeBaseError(f"there is no index in {folder}; build it with: {build_command(kb)}")
            try:
                return cls._of_manifest(folder, manifest)
            except FileNotFoundError as error:
                lacks = f"{folder} lacks {Path(error.filename).name}; build it again with: {build_command(kb)}"
        raise KnowledgeBaseError(lacks)

    @classmethod
    def _of_manifest(cls, folder: Path, manifest: dict[str, Any]) -> EntityIndex:
        vectors = EntityVectors.of_manifest(folder, manifest.get("vectors") or {})
        try:
            files = [_checked(folder / name, size) for name, size in manifest["files"].items()]
            revision, _ = int(manifest["revision"]), list(manifest["asked"])
            rows, proposer = load_rows(files[0]), load_proposer(files[1], files[2]) if files[1:] else None
            changes = Changes.load(folder / manifest["changes"]) if manifest["changes"] else Changes.none(vectors.dim)
            if len(rows) != len(vectors) or (proposer is not None and proposer.index.ntotal != len(vectors)):
                raise ValueError("its parts do not fit together")
            chosen = IndexChoice(**manifest["choice"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise KnowledgeBaseError(
                f"the index in {folder} is truncated or damaged ({reason}); delete {folder} and build it again with: "
                f"{build_command(vectors.kb)}"
            ) from error
        state = f"{vectors.file} {manifest['changes']}"
        return cls(vectors, chosen, changes, revision, state, proposer, rows, manifest)

    def __len__(self) -> int:
        return len(self.vectors) - len(self.changes.gone) + len(self.changes)

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return self.vectors.dim

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder."""
        return self.vectors.fingerprint

    @property
    def requested(self) -> list[str]:
        """Kind and compression as requested, `auto` included."""
        return list(self._manifest["asked"])

    def search(
        self, queries: NDArray[np.float32], k: int = 10, *, among: Subset | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return inner products with the nearest entities and their rows, best first, padded with -inf and -1."""
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim or k < 1:
            raise UsageError(
                f"queries of shape {queries.shape} and k={k} do not fit; give an array (n, {self.dim}) and k ≥ 1"
            )
        if among is not None and among.state != self.state:
            raise UsageError("this subset belongs to another state of the index; make it again with index.subset(ids)")
        if not len(queries):
            return np.zeros((0, k), np.float32), np.zeros((0, k), np.int64)
        return SEARCH_THREADS.share(lambda part: self._search(part, k, among), queries)

    def _search(self, queries: NDArray[np.float32], k: int, among: Subset | None) -> SearchResult:
        if among is not None and len(among) <= _FEW:
            return best_rows(
                matrix_product(queries, self._matrix(among).T),
                np.broadcast_to(among.rows, (len(queries), len(among))),
                k,
            )
        scores, rows = self._search_built(queries, k, among)
        if len(self.changes):
            new = np.arange(len(self.vectors), len(self.vectors) + len(self.changes))
            added = matrix_product(queries, self.changes.vectors.T)
            if among is not None:
                added[:, ~np.isin(new, among.rows)] = -np.inf
            scores = np.concatenate([scores, added], axis=1)
            rows = np.concatenate([rows, np.broadcast_to(new, added.shape)], axis=1)
        return best_rows(scores, rows, k)

    def _search_built(self, queries: NDArray[np.float32], k: int, among: Subset | None) -> SearchResult:
        """Return the nearest rows of the build, without removed ones."""
        count, gone = len(self.vectors), self.changes.gone
        alive = count - len(gone) if among is None else int(np.searchsorted(among.rows, count))
        need = min(k, alive)
        if not need:
            return np.full((len(queries), 1), -np.inf, np.float32), np.full((len(queries), 1), -1, np.int64)
        wide = min(count, need + (0 if among is not None else min(len(gone), _SLACK)))
        scores, rows = search_rows(self.choice, self._proposer, self._rows, queries, wide, among=among)
        if len(gone) and among is None:
            dead = np.isin(rows, gone)
            scores[dead], rows[dead] = -np.inf, -1
        short = np.flatnonzero((rows >= 0).sum(1) < need)
        if len(short):  # clusters that hold too few, or a neighbourhood that is gone: compare all
            there = among.rows[:alive] if among is not None else self._alive
            scores[short], rows[short] = -np.inf, -1
            scores[short, :need], rows[short, :need] = self._rows.search(queries[short], need, there)
        return scores, rows

    @cached_property
    def _alive(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(len(self.vectors)), self.changes.gone, assume_unique=True)

    def _matrix(self, among: Subset) -> NDArray[np.float32]:
        if "matrix" not in among._kept:
            among._kept["matrix"] = self.vectors_of(among.rows)
        matrix: NDArray[np.float32] = among._kept["matrix"]
        return matrix

    def subset(self, ids: Iterable[str]) -> Subset:
        """Return a set of entities to search among; unknown ids are ignored."""
        rows = np.unique(self.rows_of(list(ids)))
        return Subset(rows[rows >= 0], self.state)

    def vectors_of(self, rows: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """Return the vectors of rows, exactly as `search` scores them; zeros for row -1."""
        wanted = np.asarray(rows, np.int64).ravel()
        found = np.zeros((len(wanted), self.dim), np.float32)
        built = (wanted >= 0) & (wanted < len(self.vectors))
        if built.any():
            found[built] = self._rows.take(wanted[built])
        new = wanted >= len(self.vectors)
        found[new] = self.changes.vectors[wanted[new] - len(self.vectors)]
        return found

    def rows_of(self, entity_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of entities; -1 for unknown ids."""
        rows = self.vectors.rows_of(entity_ids)
        if len(self.changes.gone):
            rows[np.isin(rows, self.changes.gone)] = -1
        if len(self.changes):
            places, count = self.changes.places, len(self.vectors)
            for at, id in enumerate(entity_ids):
                if id in places:
                    rows[at] = count + places[id]
        return rows

    def entity(self, row: int) -> str:
        """Return the id of a row."""
        return self.entities([row])[0]

    def entities(self, rows: NDArray[np.int64] | Sequence[int]) -> list[str]:
        """Return the ids of rows; "" for row -1."""
        return self._strings(rows, "ids")

    def titles(self, rows: NDArray[np.int64] | Sequence[int]) -> list[str]:
        """Return the titles of rows; "" for row -1."""
        return self._strings(rows, "titles")

    def _strings(self, rows: NDArray[np.int64] | Sequence[int], what: Literal["ids", "titles"]) -> list[str]:
        wanted, count = np.asarray(rows, np.int64).ravel(), len(self.vectors)
        built, added = getattr(self.vectors, what), getattr(self.changes, what)
        if len(wanted) and wanted.min() >= 0 and wanted.max() < count:
            found: list[str] = built.take(wanted)
            return found
        return [
            "" if row < 0 else built.take([row])[0] if row < count else added[row - count] for row in wanted.tolist()
        ]

    def explain(self) -> str:
        """Return a description: kind of index and reason, memory, recall."""
        chosen = self.choice
        kind = {"exact": "exact search", "hnsw": "hnsw", "ivf": f"ivf ({chosen.clusters:,} clusters)"}[chosen.kind]
        lines = [f"{len(self):,} entities, {self.dim} numbers each: {kind}, compression {chosen.compression}"]
        lines.append(f"why: {chosen.why}")
        if chosen.candidates:
            probes = {"ivf": f"{chosen.probes} clusters, ", "hnsw": f"{chosen.probes} neighbours, "}.get(
                chosen.kind, ""
            )
            lines.append(
                f"looks at: {probes}{chosen.candidates} candidates, scored again by their {chosen.rows} vectors"
            )
        lines.append(f"recall@10 of exact search: {chosen.recall:.3f}" + (" (measured)" if chosen.recall < 1 else ""))
        if chosen.recall < 0.98:
            lines.append("recall is low: build with --compression int8 (or none) to find more")
        lines.append(f"memory: at most {self.bytes / 1e6:,.0f} MB, mostly mapped: processes share it")
        if len(self.changes) or len(self.changes.gone):
            lines.append(
                f"since the build: {len(self.changes):,} added or changed, {len(self.changes.gone):,} gone "
                f"(folded in by a build from {MOST_CHANGES:,} on)"
            )
        return "\n".join(lines)

    @property
    def bytes(self) -> int:
        """Maximum memory of the index, if all of it is in use."""
        names = self.vectors.ids.nbytes + self.vectors.titles.nbytes + 4 * len(self.vectors)
        return int(sum(self._manifest["files"].values()) + names + self.changes.vectors.nbytes)

    def refresh(self, kb: KnowledgeBase, encoder: EntityEncoder, *, progress: Encoding | None = None) -> EntityIndex:
        """Return the index of the KB's current revision; only changed entities are encoded.

        Their vectors are stored next to the index, or kept in memory if the folder cannot be written.
        """
        if kb.metadata["uid"] != self.vectors.uid or encoder.fingerprint != self.fingerprint:
            raise KnowledgeBaseError(
                f"the index in {self.vectors.folder} is of another knowledge base or encoder; build it again with: "
                f"{build_command(kb.path)}"
            )
        if kb.revision == self.revision:
            return self
        folder = self.vectors.folder
        try:
            with locked(folder, kb.path), storage(folder):
                here = self
                if (
                    read_manifest(folder / "index.json", INDEX_FORMAT) != self._manifest
                ):  # another process has changed it
                    here = EntityIndex.open(kb, fingerprint=self.fingerprint, folder=folder, stale="allow")
                newer = here._with_changes_of(kb, encoder, progress)
                name = f"changes-{uuid.uuid4().hex[:12]}.safetensors"
                newer.changes.save(folder / name)
                manifest = newer._manifest | {"changes": name, "revision": newer.revision}
                write_manifest(folder / "index.json", manifest)
                delete_unused(folder)
            return replace(newer, _manifest=manifest, state=f"{newer.vectors.file} {name}")
        except StorageError:
            newer = self._with_changes_of(kb, encoder, progress)
            return replace(newer, state=f"{newer.vectors.file} {uuid.uuid4().hex}")

    def _with_changes_of(self, kb: KnowledgeBase, encoder: EntityEncoder, progress: Encoding | None) -> EntityIndex:
        query = "SELECT id, title, description FROM entities WHERE id IN (SELECT value FROM json_each(?))"
        with sqlite_errors(kb.path), kb.snapshot():
            revision, changed = kb.revision, kb.changed_entities(self.revision)
            there = kb.connection.execute(query, (json.dumps(changed),)).fetchall()
        rows = dict(zip(changed, self.rows_of(changed).tolist(), strict=True))
        fresh = [row for row in there if self._text_of(rows[row[0]]) != text_key(*row[1:])]
        out = {id for id, _, _ in fresh} | (set(changed) - {id for id, _, _ in there})
        gone = np.array([rows[id] for id in out if 0 <= rows[id] < len(self.vectors)], np.int64)
        texts = [(title, description) for _, title, description in fresh]
        changes = self.changes.with_changes(
            out,
            gone,
            [(id, title) for id, title, _ in fresh],
            [text_key(*text) for text in texts],
            encode_entities(encoder, texts).astype(np.float32),
        )
        newer = replace(self, changes=changes, revision=revision)
        if progress is not None:
            progress.encoded, progress.kept = len(fresh), len(newer) - len(fresh)
        return newer

    def _text_of(self, row: int) -> int:
        if row < 0:
            return -1
        built = len(self.vectors)
        return int(self.vectors.texts[row] if row < built else self.changes.texts[row - built])


def _checked(path: Path, size: int) -> Path:
    """Return the path of a file; raise ValueError if it does not have the size it was written with."""
    there = path.stat().st_size
    if there != size:
        raise ValueError(f"{path.name} has {there:,} bytes of {size:,}")
    return path


def build_index(
    kb: KnowledgeBase,
    encoder: EntityEncoder,
    folder: str | Path | None = None,
    *,
    kind: Literal["auto", "exact", "hnsw", "ivf"] = "auto",
    compression: Literal["auto", "none", "int8", "pq"] = "auto",
    progress: Encoding | None = None,
) -> EntityIndex:
    """Bring the vectors and the index of a KB up to date, with as little work as possible.

    A few changes are stored next to the index; with many, or with another kind of index, it is built from scratch.
    """
    progress = progress if progress is not None else Encoding()
    folder = vectors_folder(kb, folder)
    faiss_choice.choose_index(0, encoder.dim, kind, compression)  # raise errors before the work
    index: EntityIndex | None = None
    with suppress(KnowledgeBaseError):  # there is no index, or none that can be refreshed
        index = EntityIndex.open(kb, fingerprint=encoder.fingerprint, folder=folder, stale="allow")
    if index is not None and index.requested == [kind, compression]:
        changed = len(kb.changed_entities(index.revision))
        few = changed + len(index.changes) + len(index.changes.gone) <= min(MOST_CHANGES, len(index.vectors) // 10)
        if few or index.revision == kb.revision:
            progress.kept = len(index)
            index = index.refresh(kb, encoder, progress=progress)
            if any(folder.glob("*.part")):  # of a killed build, after which the index was brought up to date
                with suppress(StorageError, KnowledgeBaseError), locked(folder, kb.path), storage(folder):
                    delete_parts(folder)
            return index
    vectors = EntityVectors.build(kb, encoder, folder, progress=progress)
    return EntityIndex.build(vectors, kind=kind, compression=compression, progress=progress)
