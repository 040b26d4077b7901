"""Entity vectors on disk: one memory-mapped row for every entity of a KB.

They are in a folder next to the KB (`my.kb.vectors/`). `vectors.json` names the KB, its revision, the encoder and the
file; it is written last, so that a crash leaves the last good state. A row is identified by a hash of the encoded text,
so that a build encodes new texts only: rows of an older revision, of a killed build (which appends them to a `.part`
file in chunks) or of a KB that was built again are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError, KnowledgeBaseError
from wellread.index.folder import (
    build_command,
    delete_parts,
    delete_unused,
    locked,
    read_manifest,
    vectors_folder,
    write_manifest,
)
from wellread.io.arrays import Blocks, Strings, map_arrays, save_arrays
from wellread.io.files import storage
from wellread.kb.schema import connect, sqlite_errors
from wellread.kb.store import KnowledgeBase

VECTORS_FORMAT = "wellread vectors 2"
ANY = ""
"""The `uid` of vectors made by another project: they fit every KB that has their ids."""
CHUNK = 1024
"""Entities encoded at once: the most that a killed build loses; enough for the encoder to sort by length."""

_BLOCK = 8192


class EntityEncoder(Protocol):
    """Protocol of encoders of entities."""

    @property
    def dim(self) -> int:
        """Size of a vector."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes when the vectors would change."""

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the vectors of (title, description) pairs in order; the encoder sorts them by length itself."""


@dataclass(slots=True)
class Encoding:
    """Progress of a build, and what it did; a progress bar shows entities instead of bytes."""

    done_bytes: int = 0
    total_bytes: int = 0
    unit: str = "entities"
    step: str = ""
    encoded: int = 0
    kept: int = 0
    """Number of entities whose vector was already there."""


def text_key(title: str, description: str) -> int:
    """Return a hash of an entity's text, which identifies its vector."""
    text = f"{title}\0{description}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def id_key(id: str) -> int:
    """Return a 32-bit hash of an id, by which its row is found; collisions are resolved by the id itself."""
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "little")


@dataclass(frozen=True)
class EntityVectors:
    """Memory-mapped vectors of the entities of one KB at one revision."""

    folder: Path
    kb: str
    uid: str
    revision: int
    fingerprint: str
    dim: int
    file: str
    """Name of the mapped file; it changes with every change."""
    rows: NDArray[np.floating[Any]]
    """float16, or float32 for vectors converted from another project."""
    texts: NDArray[np.uint64]
    """The `text_key` of each row."""
    ids: Strings
    titles: Strings
    _hashes: NDArray[np.uint32] = field(repr=False)
    """The `id_key` of each row; rows are sorted by it."""
    kinds: NDArray[np.integer[Any]] | None = field(default=None, repr=False)
    """Number of each row's entity type, if the vectors have one; None: use the types of the KB."""

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def open(cls, folder: str | Path) -> EntityVectors:
        """Map the vectors in a folder."""
        folder, lacks = Path(folder), ""
        for _ in range(3):  # another process may be replacing the files
            manifest = read_manifest(folder / "vectors.json", VECTORS_FORMAT)
            if manifest is None:
                raise KnowledgeBaseError(f"there are no vectors in {folder}; make them with: {build_command('KB')}")
            try:
                return cls.of_manifest(folder, manifest)
            except FileNotFoundError:
                lacks = f"{folder} lacks {manifest['file']}; build it again with: {build_command(manifest['kb'])}"
        raise KnowledgeBaseError(lacks)

    @classmethod
    def of_kb(
        cls, kb: KnowledgeBase, folder: str | Path | None = None, *, fingerprint: str | None = None
    ) -> EntityVectors:
        """Map the vectors of a KB; raise KnowledgeBaseError if they are of another KB or encoder."""
        vectors = cls.open(vectors_folder(kb, folder))
        if vectors.uid not in (kb.metadata["uid"], ANY):
            raise KnowledgeBaseError(
                f"{vectors.folder} has the vectors of another knowledge base than {kb.path}; make them with: "
                f"{build_command(kb.path)}"
            )
        if vectors.uid == ANY and not vectors.is_of(kb):
            raise KnowledgeBaseError(
                f"{vectors.folder} has no vector of any entity of {kb.path}, whose ids differ; give the knowledge "
                "base that it was made for (WordNet's ids: wellread convert knowbert --synsets)"
            )
        if fingerprint is not None and vectors.fingerprint != fingerprint:
            raise KnowledgeBaseError(
                f"{vectors.folder} has vectors of another encoder (fingerprint {vectors.fingerprint}) than the one "
                f"that the model was trained with ({fingerprint}); make these again, or train the model again"
            )
        return vectors

    @classmethod
    def of_manifest(cls, folder: Path, manifest: dict[str, Any]) -> EntityVectors:
        """Map the file that a manifest names."""
        try:
            path = folder / manifest["file"]
            about = (str(manifest["kb"]), str(manifest["uid"]), int(manifest["revision"]), str(manifest["fingerprint"]))
            known = (*about, int(manifest["dim"]), str(manifest["file"]))
        except (ValueError, KeyError, TypeError) as error:
            raise KnowledgeBaseError(
                f"the manifest in {folder} is damaged ({type(error).__name__}: {error}); delete {folder} and build it "
                f"again with: {build_command('KB')}"
            ) from error
        try:
            found = map_arrays(path)
            ids, titles = Strings(found, "ids"), Strings(found, "titles")
            hashes, rows, texts = (found[name] for name in ("hashes", "vectors", "texts"))
            if not len(rows) == len(texts) == len(ids) == len(titles) == len(hashes) == manifest["count"]:
                raise ValueError("its parts do not fit together")
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KnowledgeBaseError(
                f"{path} is truncated or damaged ({error}); delete {folder} and build it again with: "
                f"{build_command(manifest['kb'])}"
            ) from error
        return cls(folder, *known, rows, texts, ids, titles, hashes, found.get("kinds"))

    @classmethod
    def build(
        cls,
        kb: KnowledgeBase,
        encoder: EntityEncoder,
        folder: str | Path | None = None,
        *,
        progress: Encoding | None = None,
        chunk: int = CHUNK,
    ) -> EntityVectors:
        """Bring the vectors of a KB up to date: encode new texts, keep the other rows.

        A build that was killed continues after its last chunk.
        """
        folder = vectors_folder(kb, folder)
        progress = progress if progress is not None else Encoding()
        with locked(folder, kb.path), storage(folder):
            old = _usable(folder, encoder)
            with closing(_Part(folder, encoder)) as part:
                known = [part.texts] + ([old.texts] if old is not None else [])
                while True:  # repeated if the KB changes meanwhile
                    progress.step = "reading the knowledge base"
                    scan = Scan.of(kb)
                    missing = scan.without(part.texts, *known)
                    if not len(missing):
                        break
                    progress.total_bytes = max(progress.total_bytes, progress.done_bytes + len(missing))
                    progress.step = ""
                    _encode(kb, encoder, missing, part, progress, chunk)
                progress.kept = int(np.isin(scan.texts, np.concatenate(known)).sum())
                progress.encoded = len(scan.texts) - progress.kept
                progress.step = "putting vectors in place"
                file = old.file if old is not None and scan.equals(old) else _assemble(scan, old, part, folder)
            manifest = {"format": VECTORS_FORMAT, "kb": str(kb.path), "uid": scan.uid, "revision": scan.revision}
            manifest |= {"fingerprint": encoder.fingerprint, "dim": encoder.dim, "count": len(scan.texts), "file": file}
            write_manifest(folder / "vectors.json", manifest)
            delete_parts(folder)
            delete_unused(folder)
        progress.step = ""
        return cls.of_manifest(folder, manifest)

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of entities; -1 for unknown ids."""
        if not len(self) or not ids:
            return np.full(len(ids), -1, np.int64)
        wanted = np.fromiter(map(id_key, ids), np.uint32, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self) - 1)
        rows = np.where(self._hashes[places] == wanted, places, -1)
        hits = np.flatnonzero(rows >= 0).tolist()
        for hit, id in zip(hits, self.ids.take(rows[hits].tolist()), strict=True):
            if id != ids[hit]:  # two ids with the same hash
                rows[hit] = self._among_equals(int(rows[hit]), ids[hit])
        return rows

    def is_of(self, kb: KnowledgeBase) -> bool:
        """Return True if any entity of a KB has a vector here."""
        with sqlite_errors(kb.path):
            ids = kb.connection.execute("SELECT id FROM entities")
            while some := ids.fetchmany(_BLOCK):
                if (self.rows_of([id for (id,) in some]) >= 0).any():
                    return True
        return False

    def _among_equals(self, row: int, id: str) -> int:
        same = self._hashes[row]
        while row < len(self) and self._hashes[row] == same:
            if self.ids.take([row]) == [id]:
                return row
            row += 1
        return -1


@dataclass(frozen=True)
class Scan:
    """All entities of one revision of a KB: numbers, hashes of their texts, ids and titles."""

    uid: str
    revision: int
    nums: NDArray[np.int64]
    texts: NDArray[np.uint64]
    hashes: NDArray[np.uint32]
    strings: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, kb: KnowledgeBase) -> Scan:
        """Read the entities of a KB, sorted by `hashes`."""
        nums, texts, hashes = array("q"), array("Q"), array("L")
        ids, titles, id_ends, title_ends = bytearray(), bytearray(), array("Q", [0]), array("Q", [0])
        with sqlite_errors(kb.path), closing(connect(kb.path, writable=False, mapped=False)) as connection:
            connection.execute("BEGIN")
            about = dict(connection.execute("SELECT key, value FROM metadata"))
            for num, id, title, description in connection.execute(
                "SELECT num, id, title, description FROM entities ORDER BY num"
            ):
                nums.append(num)
                texts.append(text_key(title, description))
                hashes.append(id_key(id))
                ids += id.encode()
                titles += title.encode()
                id_ends.append(len(ids))
                title_ends.append(len(titles))
        keys = np.array(hashes, np.uint32)
        order = np.argsort(keys, kind="stable")
        strings = {
            **Strings.pack((ids[id_ends[row] : id_ends[row + 1]] for row in order.tolist()), "ids"),
            **Strings.pack((titles[title_ends[row] : title_ends[row + 1]] for row in order.tolist()), "titles"),
        }
        numbers = np.array(nums, np.int64)[order], np.array(texts, np.uint64)[order], keys[order]
        return cls(about["uid"], int(about["revision"]), *numbers, strings)

    def without(self, *known: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the numbers of entities with unknown texts, one per distinct text."""
        _, first = np.unique(self.texts, return_index=True)
        return np.sort(self.nums[first[~np.isin(self.texts[first], np.concatenate(known))]])

    def equals(self, old: EntityVectors) -> bool:
        """Return True if these are the rows of existing vectors."""
        if not np.array_equal(self.texts, old.texts):
            return False
        ours = Strings(self.strings, "ids"), Strings(self.strings, "titles")
        return all(mine.equals(theirs) for mine, theirs in zip(ours, (old.ids, old.titles), strict=True))


class _Part:
    """Rows encoded so far by a build: two files that grow by a chunk, vectors first, then their keys."""

    def __init__(self, folder: Path, encoder: EntityEncoder) -> None:
        name = f"encoding-{hashlib.blake2b(encoder.fingerprint.encode(), digest_size=8).hexdigest()}-{encoder.dim}"
        self._dim = encoder.dim
        self._rows = open(folder / f"{name}.rows.part", "ab+")  # noqa: SIM115  # closed by close
        self._keys = open(folder / f"{name}.keys.part", "ab+")  # noqa: SIM115
        wide = 2 * self._dim
        whole = min(os.fstat(self._keys.fileno()).st_size // 8, os.fstat(self._rows.fileno()).st_size // wide)
        self._keys.truncate(8 * whole)  # an incomplete chunk of a killed build
        self._rows.truncate(wide * whole)
        self._keys.seek(0)
        self.texts: NDArray[np.uint64] = np.frombuffer(self._keys.read(), np.uint64)

    def append(self, keys: Sequence[int], vectors: NDArray[np.float16]) -> None:
        for file, data in ((self._rows, vectors), (self._keys, np.array(keys, np.uint64))):
            file.write(np.ascontiguousarray(data).tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.texts = np.append(self.texts, np.array(keys, np.uint64))

    def rows(self) -> NDArray[np.float16]:
        if not len(self.texts):
            return np.zeros((0, self._dim), np.float16)
        return np.memmap(self._rows.name, np.float16, "r", shape=(len(self.texts), self._dim))

    def close(self) -> None:
        self._rows.close()
        self._keys.close()


def _usable(folder: Path, encoder: EntityEncoder) -> EntityVectors | None:
    """Return the vectors in a folder if they are complete and of the same encoder; otherwise None."""
    try:
        old = EntityVectors.open(folder)
    except KnowledgeBaseError:
        return None
    return old if (old.fingerprint, old.dim) == (encoder.fingerprint, encoder.dim) else None


def _encode(
    kb: KnowledgeBase,
    encoder: EntityEncoder,
    nums: NDArray[np.int64],
    part: _Part,
    progress: Encoding,
    chunk: int,
) -> None:
    query = "SELECT title, description FROM entities WHERE num IN (SELECT value FROM json_each(?)) ORDER BY num"
    with sqlite_errors(kb.path), closing(connect(kb.path, writable=False, mapped=False)) as connection:
        for begin in range(0, len(nums), chunk):
            wanted = nums[begin : begin + chunk].tolist()
            texts = connection.execute(query, (json.dumps(wanted),)).fetchall()
            part.append([text_key(*text) for text in texts], encode_entities(encoder, texts))
            progress.done_bytes += len(wanted)


def encode_entities(encoder: EntityEncoder, texts: Sequence[tuple[str, str]]) -> NDArray[np.float16]:
    """Return the vectors of texts as float16; raise InputError if their shape or range is wrong."""
    if not texts:
        return np.zeros((0, encoder.dim), np.float16)
    vectors = np.asarray(encoder.encode(texts), np.float32)
    if vectors.shape != (len(texts), encoder.dim):
        raise InputError(
            f"the encoder returned an array of shape {vectors.shape}; expected {(len(texts), encoder.dim)}"
        )
    beyond = ~(np.abs(vectors) < np.finfo(np.float16).max).all(1)
    if beyond.any():
        title = texts[int(np.flatnonzero(beyond)[0])][0]
        raise InputError(
            f"the encoder returned a vector for {title!r} that is not finite (or beyond 65,504); check its weights"
        )
    return vectors.astype(np.float16)


def _assemble(scan: Scan, old: EntityVectors | None, part: _Part, folder: Path) -> str:
    """Write the rows of a scan in its order, from the part file and the old vectors; return the file's name."""
    sources = [part.rows()] + ([old.rows] if old is not None else [])
    known = np.concatenate([part.texts] + ([old.texts] if old is not None else []))
    order = np.argsort(known, kind="stable")
    places = order[np.searchsorted(known, scan.texts, sorter=order)] if len(known) else np.zeros(0, np.int64)
    border = len(sources[0])

    def blocks() -> Iterator[NDArray[np.float16]]:
        for begin in range(0, len(places), _BLOCK):
            at = places[begin : begin + _BLOCK]
            block = np.empty((len(at), sources[0].shape[1]), np.float16)
            new = at < border
            block[new] = sources[0][at[new]]
            if not new.all():
                block[~new] = sources[1][at[~new] - border]
            yield block

    arrays: dict[str, NDArray[Any] | Blocks] = {
        "vectors": Blocks(np.float16, (len(places), sources[0].shape[1]), blocks()),
        "texts": scan.texts,
        "hashes": scan.hashes,
        **scan.strings,
    }
    file = f"vectors-{uuid.uuid4().hex[:12]}.safetensors"
    save_arrays(folder / file, arrays, {"format": VECTORS_FORMAT, "uid": scan.uid, "revision": str(scan.revision)})
    return file
