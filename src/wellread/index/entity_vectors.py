"""Entity vectors on disk: one row of numbers for every entity of a knowledge base, mapped, not read.

They lie in a folder beside the KB (`my.kb.vectors/`): `vectors.json` says which KB and revision, which encoder and
which file; it is written last, so that a crash leaves the last good state. A row is known by a hash of the text that
was encoded, so that a build encodes only texts it has not met: those of an older revision, of a killed build (whose
rows are appended to a `.part` file chunk by chunk) or of a KB that was built anew are kept.
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
from wellread.index.folder import locked, mending, read_manifest, sweep, sweep_parts, vectors_folder, write_manifest
from wellread.io.arrays import Blocks, Strings, map_arrays, save_arrays
from wellread.io.files import storage
from wellread.kb.schema import connect, sqlite_errors
from wellread.kb.store import KnowledgeBase

FORMAT = "wellread vectors 2"
ANY = ""
"""The `uid` of vectors that somebody else made: they are of every KB that has their ids."""
CHUNK = 1024
"""Entities encoded at once: what a killed build loses at most; enough for the encoder to sort by length."""

_BLOCK = 8192


class EntityEncoder(Protocol):
    """What makes vectors of entities."""

    @property
    def dim(self) -> int:
        """Numbers in a vector."""

    @property
    def fingerprint(self) -> str:
        """A hex digest that changes when the vectors would change."""

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Vectors of (title, description) pairs, in their order; sorts by length itself."""


@dataclass(slots=True)
class Encoding:
    """How far a build is (for the progress bar), and what it did."""

    done_bytes: int = 0
    total_bytes: int = 0
    step: str = ""
    encoded: int = 0
    kept: int = 0
    """Entities whose vector was there already."""


def text_key(title: str, description: str) -> int:
    """The same for the same text; what a vector is known by."""
    text = f"{title}\0{description}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def id_key(id: str) -> int:
    """What an entity's row is found by: 32 bits, for ids that share it are told apart anyway."""
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "little")


@dataclass(frozen=True)
class EntityVectors:
    """Rows of vectors for the entities of one KB at one revision, memory-mapped."""

    folder: Path
    kb: str
    uid: str
    revision: int
    fingerprint: str
    dim: int
    file: str
    """The name of the file they are mapped from; another one after every change."""
    rows: NDArray[np.floating[Any]]
    """float16; float32 where they are somebody else's that were converted, to the last bit."""
    texts: NDArray[np.uint64]
    """Of every row, the `text_key` of what was encoded."""
    ids: Strings
    titles: Strings
    _hashes: NDArray[np.uint32] = field(repr=False)
    """Of every row, the `id_key` of its entity: rows are in the order of these."""
    kinds: NDArray[np.integer[Any]] | None = field(default=None, repr=False)
    """Of every row, the number of its entity's kind, where vectors come with it; None: the KB's kinds are numbered."""

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def open(cls, folder: str | Path) -> EntityVectors:
        """Map the vectors in a folder."""
        folder, lacks = Path(folder), ""
        for _ in range(3):  # somebody may put other files in place just now
            told = read_manifest(folder / "vectors.json", FORMAT)
            if told is None:
                raise KnowledgeBaseError(f"there are no vectors in {folder}; make them with: {mending('KB')}")
            try:
                return cls.of_manifest(folder, told)
            except FileNotFoundError:
                lacks = f"{folder} lacks {told['file']}; build it again with: {mending(told['kb'])}"
        raise KnowledgeBaseError(lacks)

    @classmethod
    def of_kb(
        cls, kb: KnowledgeBase, folder: str | Path | None = None, *, fingerprint: str | None = None
    ) -> EntityVectors:
        """Map the vectors of a KB, which lie beside it unless a folder is named; others than asked for are refused."""
        vectors = cls.open(vectors_folder(kb, folder))
        if vectors.uid not in (kb.metadata["uid"], ANY):
            raise KnowledgeBaseError(
                f"{vectors.folder} has the vectors of another knowledge base than {kb.path}; make them with: "
                f"{mending(kb.path)}"
            )
        if vectors.uid == ANY and not vectors.is_of(kb):
            raise KnowledgeBaseError(
                f"{vectors.folder} has no vector of any entity of {kb.path}, whose ids are others; give the knowledge "
                "base that it was made for (WordNet's ids: wellread convert knowbert --synsets)"
            )
        if fingerprint is not None and vectors.fingerprint != fingerprint:
            raise KnowledgeBaseError(
                f"{vectors.folder} has vectors of another encoder (fingerprint {vectors.fingerprint}) than those that "
                f"the model has learned with ({fingerprint}); make these again, or train the model anew"
            )
        return vectors

    @classmethod
    def of_manifest(cls, folder: Path, told: dict[str, Any]) -> EntityVectors:
        """Map the file that a manifest names."""
        try:
            path = folder / told["file"]
            about = (str(told["kb"]), str(told["uid"]), int(told["revision"]), str(told["fingerprint"]))
            known = (*about, int(told["dim"]), str(told["file"]))
        except (ValueError, KeyError, TypeError) as error:
            raise KnowledgeBaseError(
                f"the manifest in {folder} is damaged ({type(error).__name__}: {error}); delete {folder} and build it "
                f"again with: {mending('KB')}"
            ) from error
        try:
            found = map_arrays(path)
            ids, titles = Strings(found, "ids"), Strings(found, "titles")
            hashes, rows, texts = (found[name] for name in ("hashes", "vectors", "texts"))
            if not len(rows) == len(texts) == len(ids) == len(titles) == len(hashes) == told["count"]:
                raise ValueError("its parts do not fit together")
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KnowledgeBaseError(
                f"{path} is truncated or damaged ({error}); delete {folder} and build it again with: "
                f"{mending(told['kb'])}"
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
        """Bring the vectors of a KB up to date: encode the texts that are new, keep the others.

        A build that was killed goes on where its last chunk was written.
        """
        folder = vectors_folder(kb, folder)
        progress = progress if progress is not None else Encoding()
        with locked(folder, kb.path), storage(folder):
            old = _usable(folder, encoder)
            with closing(_Part(folder, encoder)) as part:
                known = [part.texts] + ([old.texts] if old is not None else [])
                while True:  # once, unless the KB changes meanwhile
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
            told = {"format": FORMAT, "kb": str(kb.path), "uid": scan.uid, "revision": scan.revision}
            told |= {"fingerprint": encoder.fingerprint, "dim": encoder.dim, "count": len(scan.texts), "file": file}
            write_manifest(folder / "vectors.json", told)
            sweep_parts(folder)
            sweep(folder)
        progress.step = ""
        return cls.of_manifest(folder, told)

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The rows of entities; -1 for an id that is not there."""
        if not len(self) or not ids:
            return np.full(len(ids), -1, np.int64)
        asked = np.fromiter(map(id_key, ids), np.uint32, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, asked), len(self) - 1)
        rows = np.where(self._hashes[places] == asked, places, -1)
        hits = np.flatnonzero(rows >= 0).tolist()
        for hit, id in zip(hits, self.ids.take(rows[hits].tolist()), strict=True):
            if id != ids[hit]:  # two ids of one hash
                rows[hit] = self._among_equals(int(rows[hit]), ids[hit])
        return rows

    def is_of(self, kb: KnowledgeBase) -> bool:
        """Whether any entity of a KB has a vector here."""
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
    """All entities of one state of a KB: numbers, hashes of their texts, ids and titles."""

    uid: str
    revision: int
    nums: NDArray[np.int64]
    texts: NDArray[np.uint64]
    hashes: NDArray[np.uint32]
    strings: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, kb: KnowledgeBase) -> Scan:
        """Read them, in the order of `hashes`."""
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
        """Numbers of the entities whose text is not known, one of each text."""
        _, first = np.unique(self.texts, return_index=True)
        return np.sort(self.nums[first[~np.isin(self.texts[first], np.concatenate(known))]])

    def equals(self, old: EntityVectors) -> bool:
        """Are these the very rows that are there?"""
        if not np.array_equal(self.texts, old.texts):
            return False
        ours = Strings(self.strings, "ids"), Strings(self.strings, "titles")
        return all(mine.equals(theirs) for mine, theirs in zip(ours, (old.ids, old.titles), strict=True))


class _Part:
    """The rows that a build has encoded so far: two files that grow by a chunk, vectors first, then their keys."""

    def __init__(self, folder: Path, encoder: EntityEncoder) -> None:
        name = f"encoding-{hashlib.blake2b(encoder.fingerprint.encode(), digest_size=8).hexdigest()}-{encoder.dim}"
        self._dim = encoder.dim
        self._rows = open(folder / f"{name}.rows.part", "ab+")  # noqa: SIM115  # closed by close
        self._keys = open(folder / f"{name}.keys.part", "ab+")  # noqa: SIM115
        wide = 2 * self._dim
        whole = min(os.fstat(self._keys.fileno()).st_size // 8, os.fstat(self._rows.fileno()).st_size // wide)
        self._keys.truncate(8 * whole)  # what a killed build had begun to write
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
    """The vectors in a folder if they are of the same encoder and whole; else all is encoded anew."""
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
            asked = nums[begin : begin + chunk].tolist()
            texts = connection.execute(query, (json.dumps(asked),)).fetchall()
            part.append([text_key(*text) for text in texts], encode(encoder, texts))
            progress.done_bytes += len(asked)


def encode(encoder: EntityEncoder, texts: Sequence[tuple[str, str]]) -> NDArray[np.float16]:
    """Vectors of texts, as they are stored; refused where they cannot be."""
    if not texts:
        return np.zeros((0, encoder.dim), np.float16)
    vectors = np.asarray(encoder.encode(texts), np.float32)
    if vectors.shape != (len(texts), encoder.dim):
        raise InputError(
            f"the encoder gave an array of {vectors.shape} for {len(texts)} entities of {encoder.dim} numbers; mend it"
        )
    beyond = ~(np.abs(vectors) < np.finfo(np.float16).max).all(1)
    if beyond.any():
        title = texts[int(np.flatnonzero(beyond)[0])][0]
        raise InputError(
            f"the encoder gave a vector for {title!r} that is not finite (or beyond 65,504); check its weights"
        )
    return vectors.astype(np.float16)


def _assemble(scan: Scan, old: EntityVectors | None, part: _Part, folder: Path) -> str:
    """Write the rows of a scan in its order, each from where it is known; gives the file's name."""
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
    save_arrays(folder / file, arrays, {"format": FORMAT, "uid": scan.uid, "revision": str(scan.revision)})
    return file
