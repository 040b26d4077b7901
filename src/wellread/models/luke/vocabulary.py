"""Entity vocabulary of a LUKE model: names of entities (KB ids or titles) and their rows in the entity table.

The first four rows are special: [PAD], [UNK] (entities outside the vocabulary), [MASK] (entities to predict) and
[MASK2] (the second of a pair). A "lite" vocabulary has only these. Released checkpoints may order them differently, so
use `pad`, `unk`, `mask` and `mask2`.

A vocabulary is saved next to the model as `entity_vocab.json`, {name: row}, which transformers reads as well. Several
names may share a row (titles in many languages; titles and KB ids).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt64
from numpy.typing import NDArray

from wellread.document import Document
from wellread.errors import InputError, UsageError
from wellread.io.files import decode, read_lines, write_atomically
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase

FILE = "entity_vocab.json"
PAD, UNK, MASK, MASK2 = SPECIAL = ("[PAD]", "[UNK]", "[MASK]", "[MASK2]")
_FILES = (FILE, "entity_vocab.jsonl", "entity_vocab.tsv")
SETTINGS, IN_SETTINGS = "tokenizer_config.json", "entity_vocab"
"""File and key under which transformers saves the vocabulary of a tokenizer that was not built from a file."""
_BLOCK = 65_536
NO_ROW = -1
_UNSIGNED = (1 << 64) - 1

Unknown = Literal["unk", "drop"]
"""Treatment of entities outside the vocabulary: [UNK], or -1 (dropped)."""


class HasRows(Protocol):
    """Vectors of entities by id, such as `EntityVectors` (of texts or of a graph)."""

    @property
    def rows(self) -> NDArray[np.floating]:
        """All vectors, one row per entity."""

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id, -1 for ids without a vector."""


@dataclass(frozen=True)
class EntityVocabulary:
    """Rows of named entities in the entity table of a model."""

    row_of: Mapping[str, int] = field(repr=False)

    def __post_init__(self) -> None:
        if lacking := [name for name in (PAD, UNK, MASK) if name not in self.row_of]:
            raise InputError(
                f"the entity vocabulary has no {lacking[0]}; expected {', '.join(SPECIAL)} and then the entities"
            )

    @classmethod
    def of_ids(cls, ids: Iterable[str]) -> EntityVocabulary:
        """Build from ids in their order, after the special rows; without ids the vocabulary is "lite"."""
        return cls({name: row for row, name in enumerate(dict.fromkeys((*SPECIAL, *ids)))})

    @classmethod
    def of_kb(cls, kb: KnowledgeBase, most: int | None = None) -> EntityVocabulary:
        """Build from the entities of a KB, by the link counts of their aliases and then popularity; at most `most`."""
        query = (
            "SELECT id FROM entities LEFT JOIN (SELECT entity, sum(count) AS links FROM aliases GROUP BY entity) "
            "ON entity = num ORDER BY links DESC, popularity DESC, num LIMIT ?"
        )
        with sqlite_errors(kb.path):
            return cls.of_ids(id for (id,) in kb.connection.execute(query, (-1 if most is None else most,)))

    @classmethod
    def of_documents(
        cls, documents: Iterable[Document], *, most: int | None = None, least: int = 1
    ) -> EntityVocabulary:
        """Build from the entities that documents link to, by frequency: `most` at most, each linked `least` times."""
        counts = Counter(link.entity for document in documents for link in document.links if link.entity is not None)
        return cls.of_counts(counts, most=most, least=least)

    @classmethod
    def of_counts(cls, counts: Mapping[str, float], *, most: int | None = None, least: float = 1) -> EntityVocabulary:
        """Build from link counts, most frequent first; ties by id, so that the order of `counts` is irrelevant."""
        ids = sorted((id for id, count in counts.items() if count >= least), key=lambda id: (-counts[id], id))
        return cls.of_ids(ids[:most])

    @classmethod
    def load(cls, path: str | Path) -> EntityVocabulary:
        """Read a model folder or a file: JSON (ours and transformers'), or the authors' lists (TSV, JSONL)."""
        path = Path(path)
        if not path.is_dir():
            return cls(_read_list(path) if path.suffix in (".tsv", ".jsonl") else _checked(_read_object(path), path))
        found = cls.find(path)
        if found is None:
            raise InputError(f"{path} has no {FILE}; give the folder of a LUKE model, or the file itself")
        return found

    @classmethod
    def find(cls, folder: str | Path) -> EntityVocabulary | None:
        """Return the vocabulary of a model folder, also one in a saved tokenizer's settings, or None."""
        folder = Path(folder)
        for name in _FILES:
            if (folder / name).exists():
                return cls.load(folder / name)
        settings = folder / SETTINGS
        entry = _read_object(settings).get(IN_SETTINGS) if settings.exists() else None
        return None if entry is None else cls(_checked(entry, settings))

    def save(self, path: str | Path) -> None:
        """Write to a folder, or to a file if `path` ends in .json."""
        path = Path(path)
        with write_atomically(path if path.suffix == ".json" else path / FILE) as file:
            file.write(json.dumps(dict(self.row_of), ensure_ascii=False, indent=0).encode("utf-8", "surrogatepass"))
            file.write(b"\n")

    def __len__(self) -> int:
        return self._size

    def __contains__(self, name: object) -> bool:
        return name in self.row_of

    @cached_property
    def _size(self) -> int:
        return max(self.row_of.values()) + 1

    @property
    def pad(self) -> int:
        """Row of [PAD]."""
        return self.row_of[PAD]

    @property
    def unk(self) -> int:
        """Row of [UNK], for all entities outside the vocabulary."""
        return self.row_of[UNK]

    @property
    def mask(self) -> int:
        """Row of [MASK], an entity to predict."""
        return self.row_of[MASK]

    @property
    def mask2(self) -> int:
        """Row of [MASK2], the second of a pair; that of [MASK] in checkpoints without it."""
        return self.row_of.get(MASK2, self.mask)

    @property
    def masks(self) -> tuple[int, int]:
        """Rows of [MASK] and [MASK2] (`LukeConfig.masks`)."""
        return self.mask, self.mask2

    @cached_property
    def names(self) -> tuple[str, ...]:
        """First name of every row; "" for rows without a name."""
        found = [""] * len(self)
        for name, row in self.row_of.items():
            found[row] = found[row] or name
        return tuple(found)

    @cached_property
    def special_mask(self) -> Bool[np.ndarray, " entity"]:
        """True for the special rows."""
        mask = np.zeros(len(self), np.bool_)
        mask[[self.row_of[name] for name in SPECIAL if name in self.row_of]] = True
        return mask

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all names and rows."""
        content = "\0".join(f"{name}\0{row}" for name, row in self.row_of.items())
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def rows_of(self, ids: Iterable[str | None], *, unknown: Unknown = "unk") -> NDArray[np.int64]:
        """Return the row of each id; None (NIL) is treated as unknown."""
        missing = self.unk if unknown == "unk" else -1
        return np.array([self.row_of.get(id, missing) if id is not None else missing for id in ids], np.int64)

    def grow(self, ids: Iterable[str]) -> EntityVocabulary:
        """Return a vocabulary with new ids appended; existing rows are unchanged."""
        new = (id for id in dict.fromkeys(ids) if id not in self.row_of)
        return EntityVocabulary({**self.row_of, **{id: len(self) + offset for offset, id in enumerate(new)}})

    def named_by(self, kb: KnowledgeBase) -> EntityVocabulary:
        """Return a vocabulary in which entities also have their KB ids, found by title: Berlin -> Q64.

        So the output of a linker can be used with released checkpoints, which know Wikipedia titles. Of mLUKE's titles
        in many languages (en:Berlin), those in the KB's language are used.
        """
        language, found = kb.metadata["language"], {}
        with sqlite_errors(kb.path):
            for id, title in kb.connection.execute("SELECT id, title FROM entities ORDER BY popularity, num DESC"):
                row = self.row_of.get(title, self.row_of.get(f"{language}:{title}"))
                if row is not None and title not in SPECIAL:
                    found[id] = row
        return EntityVocabulary({**found, **self.row_of})

    def start_rows(
        self, vectors: HasRows, dim: int, *, scale: float = 0.02
    ) -> tuple[Float32[np.ndarray, "known dim"], NDArray[np.int64]]:
        """Return initial embeddings of width `dim` from entity vectors, and the rows they are for.

        Vectors are centred and projected on their principal axes, which of all linear projections to `dim` dimensions
        changes inner products least, and scaled to the standard deviation of fresh embeddings. Narrower vectors are
        padded with zeros.
        """
        ids = [name for name in self.row_of if name not in SPECIAL]
        rows = [self.row_of[id] for id in ids]
        vector_rows = vectors.rows_of(ids)
        known = np.flatnonzero(vector_rows >= 0)
        if not len(known):
            raise UsageError(
                "no entity of the vocabulary has a vector; build vectors of the knowledge base with these ids: "
                "wellread index build KB"
            )
        projected = project(vectors.rows, vector_rows[known], dim)
        std = float(projected.std())
        return projected * np.float32(scale / std if std else 1.0), np.array(rows, np.int64)[known]


@dataclass(frozen=True, slots=True)
class NameCandidates:
    """Candidate entities of names, as rows of a vocabulary.

    Name n has the candidates `rows[offsets[n]:offsets[n + 1]]`, most likely first. Names are identified by their keys
    (`text.words.key`), which windows of linked text store instead of the names.

        candidates = NameCandidates.of_kb(kb, vocabulary, windows.name_keys(), most=30)
        candidates.take(keys)      # rows, padded with -1
    """

    keys: UInt64[np.ndarray, " name"]
    """Ascending."""
    offsets: Int64[np.ndarray, " border"]
    rows: Int64[np.ndarray, " row"]

    @classmethod
    def of_lists(cls, lists: Mapping[int, Sequence[int]]) -> NameCandidates:
        """Build from {key: rows, most likely first}."""
        keys = sorted(lists)
        sizes = [len(lists[key]) for key in keys]
        rows = [row for key in keys for row in lists[key]]
        return cls(np.array(keys, np.uint64), np.append(0, np.cumsum(sizes, dtype=np.int64)), np.array(rows, np.int64))

    @classmethod
    def of_kb(
        cls, kb: KnowledgeBase, vocabulary: EntityVocabulary, keys: UInt64[np.ndarray, " name"], *, most: int = 30
    ) -> NameCandidates:
        """Build from the aliases of a KB: for each key the `most` likely entities that the vocabulary has rows for."""
        wanted = set(keys.tolist())
        found: dict[int, list[tuple[float, float, int]]] = {}
        query = "SELECT key, count, popularity, id FROM aliases JOIN entities ON num = entity"
        with sqlite_errors(kb.path):
            for key, count, popularity, id in kb.connection.execute(query):
                if (unsigned := key & _UNSIGNED) in wanted and (row := vocabulary.row_of.get(id)) is not None:
                    found.setdefault(unsigned, []).append((-count, -popularity, row))
        lists = {key: list(dict.fromkeys(row for *_, row in sorted(rows)))[:most] for key, rows in found.items()}
        return cls.of_lists(lists)

    def take(self, keys: UInt64[np.ndarray, " entity"]) -> Int64[np.ndarray, "entity cand"]:
        """Return the candidate rows of each key, padded with `NO_ROW` to the longest list."""
        if not len(self.keys):
            return np.full((len(keys), 1), NO_ROW, np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        counts = np.where(self.keys[at] == keys, self.offsets[at + 1] - self.offsets[at], 0)
        columns = np.arange(max(1, int(counts.max(initial=0))))
        mask = columns < counts[:, None]
        rows = np.full(mask.shape, NO_ROW, np.int64)
        rows[mask] = self.rows[(self.offsets[at][:, None] + columns)[mask]]
        return rows


def project(vectors: NDArray[np.floating], rows: NDArray[np.int64], dim: int) -> Float32[np.ndarray, "known dim"]:
    """Project the given rows of memory-mapped vectors on their principal axes, after centring, in blocks."""
    width = vectors.shape[1]
    blocks = [rows[begin : begin + _BLOCK] for begin in range(0, len(rows), _BLOCK)]
    mean = sum((vectors[block].sum(0, dtype=np.float64) for block in blocks), np.zeros(width)) / len(rows)
    covariance = np.zeros((width, width))
    for block in blocks:
        centred = vectors[block] - mean
        covariance += centred.T @ centred
    _, axes = np.linalg.eigh(covariance)
    axes = axes[:, ::-1][:, :dim]
    axes *= np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # eigenvectors have an arbitrary sign
    found = np.zeros((len(rows), dim), np.float32)
    for number, block in enumerate(blocks):
        found[number * _BLOCK : number * _BLOCK + len(block), : axes.shape[1]] = (vectors[block] - mean) @ axes
    return found


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; copy it again from the model's folder") from error
    return found if isinstance(found, dict) else {"": found}


def _checked(found: Any, path: Path) -> dict[str, int]:
    if not isinstance(found, dict) or not all(type(row) is int and row >= 0 for row in found.values()):
        raise InputError(f"{path} is not an entity vocabulary; expected a JSON object {{name: row}}")
    return found


def _read_list(path: Path) -> dict[str, int]:
    """Read the authors' lists, most frequent first: title, tab, count; or JSON lines of titles with languages."""
    rows: dict[str, int] = {}
    for number, line in read_lines(path):
        text = decode(line, f"{path}, line {number}").rstrip("\n")
        if not text.strip():
            continue
        if path.suffix == ".tsv":
            rows.setdefault(text.split("\t")[0], number - 1)
            continue
        try:
            entry = json.loads(text)
            for title, language in entry["entities"]:
                plain = title in SPECIAL or language is None  # checkpoints for entity disambiguation have one language
                rows.setdefault(title if plain else f"{language}:{title}", int(entry["id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{path}, line {number}: expected "id" and "entities" ({error}); copy it again') from error
    return rows
