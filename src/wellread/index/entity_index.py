"""The index of nearest entities: faiss over the vectors of a knowledge base, mapped, kept up to date in place.

>>> index = EntityIndex.open(kb, fingerprint=encoder.fingerprint)
>>> scores, rows = index.search(encoder.encode([("Paris", "capital of France")]), k=3)
>>> index.entities(rows[0])
['Q90', 'Q142', 'Q830149']

What is built never changes; what changes in the KB afterwards lies beside it (`changes.py`) and is searched with it.
An `EntityIndex` never changes either: `refresh` gives another one, and who searches the old one is not disturbed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError, StorageError, UsageError
from wellread.index import faiss_choice
from wellread.index.changes import Changes
from wellread.index.entity_vectors import FORMAT as VECTORS_FORMAT
from wellread.index.entity_vectors import Encoding, EntityEncoder, EntityVectors, encode, text_key
from wellread.index.faiss_search import WORKERS, Choice, Proposer, Subset, load_proposer, look, save_proposer
from wellread.index.folder import locked, mending, read_manifest, sweep, vectors_folder, write_manifest
from wellread.index.rows import Found, Rows, best, load_rows, product, save_rows
from wellread.io.checksum import crc_of
from wellread.io.files import storage
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase

FORMAT = "wellread index 2"
MOST_CHANGES = 2_000
"""Changes that a build leaves beside the index; more are folded in, or every search would pay for them."""

_FEW = 5_000
"""A subset of so many is compared by itself, whatever the index."""
_SLACK = 32
"""How many more are asked for where some rows are gone."""


@dataclass(frozen=True)
class EntityIndex:
    """The nearest entities of a vector. Rows number the entities; ids and titles are found by row."""

    vectors: EntityVectors
    choice: Choice
    changes: Changes
    revision: int
    state: str
    """Changes whenever the index does."""
    _proposer: Proposer | None = field(repr=False)
    _rows: Rows = field(repr=False)
    _told: dict[str, Any] = field(repr=False)

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
        chosen = faiss_choice.choose(len(vectors), vectors.dim, kind, compression)
        folder, token = vectors.folder, uuid.uuid4().hex[:12]
        with locked(folder, vectors.kb), storage(folder):
            files = [f"rows-{token}.safetensors"]
            try:
                proposer = faiss_choice.make(chosen, vectors.rows, progress)
                progress.step = "writing the index"
                save_rows(folder / files[0], vectors.rows, chosen.rows)
                rows = load_rows(folder / files[0])
                if proposer is not None:
                    files += [f"index-{token}.faiss", f"axes-{token}.safetensors"]
                    save_proposer(proposer, folder / files[1], folder / files[2])
                chosen = faiss_choice.tune(chosen, proposer, rows, vectors.rows, progress)
            except RuntimeError as error:
                if "interrupt" in str(error).lower():
                    raise KeyboardInterrupt from None
                raise
            told: dict[str, Any] = {
                "format": FORMAT,
                "vectors": read_manifest(folder / "vectors.json", VECTORS_FORMAT),
                "revision": vectors.revision,
                "changes": None,
                "choice": chosen.told(),
                "asked": [kind, compression],
                "files": {name: (folder / name).stat().st_size for name in files},
                "crcs": {name: crc_of(folder / name) for name in files if name.endswith(".faiss")},
            }
            if (told["vectors"] or {}).get("file") != vectors.file:
                raise KnowledgeBaseError(
                    f"the vectors in {folder} were built again meanwhile; run it again: {mending(vectors.kb)}"
                )
            write_manifest(folder / "index.json", told)
            sweep(folder)
        progress.step = ""
        return cls._of_manifest(folder, told)

    @classmethod
    def open(
        cls,
        kb: KnowledgeBase,
        *,
        fingerprint: str | None,
        folder: str | Path | None = None,
        stale: Literal["refuse", "allow"] = "refuse",
    ) -> EntityIndex:
        """Map the index of a KB; another KB's, another encoder's or an older revision's is refused.

        One of an older revision can be opened with `stale="allow"`, to `refresh` it. Without a `fingerprint` any
        encoder's will do.
        """
        folder = vectors_folder(kb, folder)
        index = cls.load(folder, kb.path)
        about = kb.metadata
        mend = f"bring it up to date with: {mending(kb.path)}"
        if folder != vectors_folder(kb):
            mend += f" --to {folder}"
        if index.vectors.uid != about["uid"]:
            raise KnowledgeBaseError(
                f"the index in {folder} is of another knowledge base than {kb.path} (or of one that was built anew "
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
        """Map the index that lies in a folder, whatever KB it belongs to."""
        lacks = ""
        for _ in range(3):  # somebody may put other files in place just now
            told = read_manifest(folder / "index.json", FORMAT)
            if told is None:
                raise KnowledgeBaseError(f"there is no index in {folder}; build it with: {mending(kb)}")
            try:
                return cls._of_manifest(folder, told)
            except FileNotFoundError as error:
                lacks = f"{folder} lacks {Path(error.filename).name}; build it again with: {mending(kb)}"
        raise KnowledgeBaseError(lacks)

    @classmethod
    def _of_manifest(cls, folder: Path, told: dict[str, Any]) -> EntityIndex:
        vectors = EntityVectors.of_manifest(folder, told.get("vectors") or {})
        try:
            files = [_whole(folder / name, size) for name, size in told["files"].items()]
            revision, _ = int(told["revision"]), list(told["asked"])
            rows, proposer = load_rows(files[0]), load_proposer(files[1], files[2]) if files[1:] else None
            changes = Changes.load(folder / told["changes"]) if told["changes"] else Changes.none(vectors.dim)
            if len(rows) != len(vectors) or (proposer is not None and proposer.index.ntotal != len(vectors)):
                raise ValueError("its parts do not fit together")
            chosen = Choice(**told["choice"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise KnowledgeBaseError(
                f"the index in {folder} is truncated or damaged ({reason}); delete {folder} and build it again with: "
                f"{mending(vectors.kb)}"
            ) from error
        state = f"{vectors.file} {told['changes']}"
        return cls(vectors, chosen, changes, revision, state, proposer, rows, told)

    def __len__(self) -> int:
        return len(self.vectors) - len(self.changes.gone) + len(self.changes)

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.vectors.dim

    @property
    def fingerprint(self) -> str:
        """Whose vectors these are."""
        return self.vectors.fingerprint

    @property
    def asked(self) -> list[str]:
        """The kind and compression that were asked for, `auto` included."""
        return list(self._told["asked"])

    def search(
        self, queries: NDArray[np.float32], k: int = 10, *, among: Subset | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products with the nearest entities and their rows, best first; -inf and -1 where there are no more."""
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim or k < 1:
            raise UsageError(
                f"queries of shape {queries.shape} and k={k} do not fit; give an array (n, {self.dim}) and k ≥ 1"
            )
        if among is not None and among.state != self.state:
            raise UsageError("this subset belongs to another state of the index; make it again with index.subset(ids)")
        if not len(queries):
            return np.zeros((0, k), np.float32), np.zeros((0, k), np.int64)
        return WORKERS.share(lambda part: self._search(part, k, among), queries)

    def _search(self, queries: NDArray[np.float32], k: int, among: Subset | None) -> Found:
        if among is not None and len(among) <= _FEW:
            return best(
                product(queries, self._matrix(among).T), np.broadcast_to(among.rows, (len(queries), len(among))), k
            )
        scores, rows = self._search_built(queries, k, among)
        if len(self.changes):
            new = np.arange(len(self.vectors), len(self.vectors) + len(self.changes))
            added = product(queries, self.changes.vectors.T)
            if among is not None:
                added[:, ~np.isin(new, among.rows)] = -np.inf
            scores = np.concatenate([scores, added], axis=1)
            rows = np.concatenate([rows, np.broadcast_to(new, added.shape)], axis=1)
        return best(scores, rows, k)

    def _search_built(self, queries: NDArray[np.float32], k: int, among: Subset | None) -> Found:
        """The nearest of what was built, without what is gone."""
        count, gone = len(self.vectors), self.changes.gone
        alive = count - len(gone) if among is None else int(np.searchsorted(among.rows, count))
        need = min(k, alive)
        if not need:
            return np.full((len(queries), 1), -np.inf, np.float32), np.full((len(queries), 1), -1, np.int64)
        wide = min(count, need + (0 if among is not None else min(len(gone), _SLACK)))
        scores, rows = look(self.choice, self._proposer, self._rows, queries, wide, among=among)
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
        """Entities to search among; ids that are not there are passed over."""
        rows = np.unique(self.rows_of(list(ids)))
        return Subset(rows[rows >= 0], self.state)

    def vectors_of(self, rows: NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """The vectors of rows, just as `search` scores them; zeros for row -1."""
        asked = np.asarray(rows, np.int64).ravel()
        found = np.zeros((len(asked), self.dim), np.float32)
        built = (asked >= 0) & (asked < len(self.vectors))
        if built.any():
            found[built] = self._rows.take(asked[built])
        new = asked >= len(self.vectors)
        found[new] = self.changes.vectors[asked[new] - len(self.vectors)]
        return found

    def rows_of(self, entity_ids: Sequence[str]) -> NDArray[np.int64]:
        """The rows of entities; -1 for an id that is not there."""
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
        """The id of a row."""
        return self.entities([row])[0]

    def entities(self, rows: NDArray[np.int64] | Sequence[int]) -> list[str]:
        """The ids of rows; "" for row -1."""
        return self._strings(rows, "ids")

    def titles(self, rows: NDArray[np.int64] | Sequence[int]) -> list[str]:
        """The titles of rows; "" for row -1."""
        return self._strings(rows, "titles")

    def _strings(self, rows: NDArray[np.int64] | Sequence[int], what: Literal["ids", "titles"]) -> list[str]:
        asked, count = np.asarray(rows, np.int64).ravel(), len(self.vectors)
        built, added = getattr(self.vectors, what), getattr(self.changes, what)
        if len(asked) and asked.min() >= 0 and asked.max() < count:
            found: list[str] = built.take(asked)
            return found
        return [
            "" if row < 0 else built.take([row])[0] if row < count else added[row - count] for row in asked.tolist()
        ]

    def explain(self) -> str:
        """Which index this is and why, what it takes and how much it finds."""
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
            lines.append("that is little: build it with --compression int8 (or none) to find more")
        lines.append(f"memory: at most {self.bytes / 1e6:,.0f} MB, mostly mapped: processes share it")
        if len(self.changes) or len(self.changes.gone):
            lines.append(
                f"since the build: {len(self.changes):,} added or changed, {len(self.changes.gone):,} gone "
                f"(folded in by a build from {MOST_CHANGES:,} on)"
            )
        return "\n".join(lines)

    @property
    def bytes(self) -> int:
        """What the index can take of memory when all of it is in use."""
        names = self.vectors.ids.nbytes + self.vectors.titles.nbytes + 4 * len(self.vectors)
        return int(sum(self._told["files"].values()) + names + self.changes.vectors.nbytes)

    def refresh(self, kb: KnowledgeBase, encoder: EntityEncoder, *, progress: Encoding | None = None) -> EntityIndex:
        """The index of the KB as it is now: only what has changed is encoded, and written beside the index.

        Where the folder cannot be written, the changes are kept in memory.
        """
        if kb.metadata["uid"] != self.vectors.uid or encoder.fingerprint != self.fingerprint:
            raise KnowledgeBaseError(
                f"the index in {self.vectors.folder} is of another knowledge base or encoder; build it again with: "
                f"{mending(kb.path)}"
            )
        if kb.revision == self.revision:
            return self
        folder = self.vectors.folder
        try:
            with locked(folder, kb.path), storage(folder):
                here = self
                if read_manifest(folder / "index.json", FORMAT) != self._told:  # somebody else was here
                    here = EntityIndex.open(kb, fingerprint=self.fingerprint, folder=folder, stale="allow")
                newer = here._with_changes_of(kb, encoder, progress)
                name = f"changes-{uuid.uuid4().hex[:12]}.safetensors"
                newer.changes.save(folder / name)
                told = newer._told | {"changes": name, "revision": newer.revision}
                write_manifest(folder / "index.json", told)
                sweep(folder)
            return replace(newer, _told=told, state=f"{newer.vectors.file} {name}")
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
            encode(encoder, texts).astype(np.float32),
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


def _whole(path: Path, size: int) -> Path:
    """The path of a file that has the size it was written with."""
    there = path.stat().st_size
    if there != size:
        raise ValueError(f"{path.name} has {there:,} bytes of {size:,}")
    return path
