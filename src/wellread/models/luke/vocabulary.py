"""The entities that a LUKE model has rows for: names (ids of a knowledge base, titles of a checkpoint) and their rows.

Rows begin with four that stand for no entity: [PAD], [UNK] (not in the vocabulary), [MASK] (to be guessed, or not to be
told) and [MASK2] (the second of a pair). A "lite" vocabulary has no others. Checkpoints of others may have them in
another order, so ask the vocabulary for `pad`, `unk`, `mask`, `mask2`.

It is one JSON file beside the model, {name: row}: `entity_vocab.json`, which transformers reads as well. Several names
may have one row (titles in many languages; titles and the ids of a KB).
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
"""Where transformers has it, if its tokenizer was not made from a file."""
_BLOCK = 65_536
NO_ROW = -1
_UNSIGNED = (1 << 64) - 1

Unknown = Literal["unk", "drop"]
"""What an entity becomes that is not in the vocabulary: [UNK], or -1 (it is left out)."""


class HasRows(Protocol):
    """Vectors of entities by their ids: `EntityVectors`, of texts or of a graph."""

    @property
    def rows(self) -> NDArray[np.floating]:
        """One for each entity."""

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Where the vectors of entities are; -1: nowhere."""


@dataclass(frozen=True)
class EntityVocabulary:
    """Names of entities and their rows in a model's table."""

    row_of: Mapping[str, int] = field(repr=False)

    def __post_init__(self) -> None:
        if lacking := [name for name in (PAD, UNK, MASK) if name not in self.row_of]:
            raise InputError(
                f"the entity vocabulary has no {lacking[0]}; it needs {', '.join(SPECIAL)} and then the entities"
            )

    @classmethod
    def of_ids(cls, ids: Iterable[str]) -> EntityVocabulary:
        """The special rows, then these in their order; none are "lite"."""
        return cls({name: row for row, name in enumerate(dict.fromkeys((*SPECIAL, *ids)))})

    @classmethod
    def of_kb(cls, kb: KnowledgeBase, most: int | None = None) -> EntityVocabulary:
        """All entities of a knowledge base, or those that its names mean most often; best known first."""
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
        """What a corpus links to, most often first: `most` of those that it links to `least` times or more."""
        counts = Counter(link.entity for one in documents for link in one.links if link.entity is not None)
        return cls.of_counts(counts, most=most, least=least)

    @classmethod
    def of_counts(cls, counts: Mapping[str, float], *, most: int | None = None, least: float = 1) -> EntityVocabulary:
        """Entities by how often they are linked to; the same whatever order the counts were made in."""
        ids = sorted((id for id, count in counts.items() if count >= least), key=lambda id: (-counts[id], id))
        return cls.of_ids(ids[:most])

    @classmethod
    def load(cls, path: str | Path) -> EntityVocabulary:
        """That of a model's folder, or a file: ours and transformers' JSON, or the authors' lists (TSV, JSONL)."""
        path = Path(path)
        if not path.is_dir():
            return cls(_read_list(path) if path.suffix in (".tsv", ".jsonl") else _read_json(path))
        found = cls.find(path)
        if found is None:
            raise InputError(f"{path} has no {FILE}; give the folder of a LUKE model, or the file itself")
        return found

    @classmethod
    def find(cls, folder: str | Path) -> EntityVocabulary | None:
        """That of a model's folder, if it has one; a tokenizer that transformers saved may have it in its settings."""
        folder = Path(folder)
        for name in _FILES:
            if (folder / name).exists():
                return cls.load(folder / name)
        settings = folder / SETTINGS
        told = _read_object(settings).get(IN_SETTINGS) if settings.exists() else None
        return None if told is None else cls(_checked(told, settings))

    def save(self, path: str | Path) -> None:
        """Write it into a folder, or as a file (one that ends in .json)."""
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
        """The row of what is not there."""
        return self.row_of[PAD]

    @property
    def unk(self) -> int:
        """The row of all that is not in the vocabulary."""
        return self.row_of[UNK]

    @property
    def mask(self) -> int:
        """The row of an entity that is to be guessed, or is not told."""
        return self.row_of[MASK]

    @property
    def mask2(self) -> int:
        """The row of the second of two such; that of the first where a checkpoint has no other."""
        return self.row_of.get(MASK2, self.mask)

    @property
    def masks(self) -> tuple[int, int]:
        """Both, as a model that asks about mentions is told of them (`LukeConfig.masks`)."""
        return self.mask, self.mask2

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The first name of every row; "" for a row without one."""
        found = [""] * len(self)
        for name, row in self.row_of.items():
            found[row] = found[row] or name
        return tuple(found)

    @cached_property
    def special_mask(self) -> Bool[np.ndarray, " entity"]:
        """True for rows that stand for no entity."""
        mask = np.zeros(len(self), np.bool_)
        mask[[self.row_of[name] for name in SPECIAL if name in self.row_of]] = True
        return mask

    @cached_property
    def fingerprint(self) -> str:
        """Another one for other names or rows."""
        told = "\0".join(f"{name}\0{row}" for name, row in self.row_of.items())
        return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def rows_of(self, ids: Iterable[str | None], *, unknown: Unknown = "unk") -> NDArray[np.int64]:
        """The row of each; of None (NIL) as of what is not there."""
        missing = self.unk if unknown == "unk" else -1
        return np.array([self.row_of.get(id, missing) if id is not None else missing for id in ids], np.int64)

    def grow(self, ids: Iterable[str]) -> EntityVocabulary:
        """With these behind the others: every row that is there stays what it is."""
        new = (id for id in dict.fromkeys(ids) if id not in self.row_of)
        return EntityVocabulary({**self.row_of, **{id: len(self) + place for place, id in enumerate(new)}})

    def named_by(self, kb: KnowledgeBase) -> EntityVocabulary:
        """The rows of entities under their ids in a knowledge base too, by their titles: Berlin -> Q64.

        So a checkpoint of others, which knows Wikipedia's titles, takes what a linker of yours finds. Where it knows
        them in many languages, as mLUKE does (en:Berlin), those of the KB's language are meant.
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
        """What embeddings may start with: the vectors of entities in `dim` numbers, and the rows that they are for.

        They are projected on their principal axes: nothing is to be learned first, and of all projections to so many
        numbers this one changes the products of vectors least; the table itself learns the rest. Rows are centred and
        scaled as fresh embeddings are. Vectors that are narrower fill the first numbers, the others are 0.
        """
        ids, rows = [], []
        for name, row in self.row_of.items():
            if name not in SPECIAL:
                ids.append(name)
                rows.append(row)
        where = vectors.rows_of(ids)
        known = np.flatnonzero(where >= 0)
        if not len(known):
            raise UsageError(
                "no entity of the vocabulary has a vector; make vectors of the knowledge base that its ids are of: "
                "wellread index build KB"
            )
        found = project(vectors.rows, where[known], dim)
        spread = float(found.std())
        return found * np.float32(scale / spread if spread else 1.0), np.array(rows, np.int64)[known]


@dataclass(frozen=True, slots=True)
class NameCandidates:
    """Rows of a vocabulary for each name: those of name n are `rows[offsets[n]:offsets[n + 1]]`, likeliest first."""

    keys: UInt64[np.ndarray, " name"]
    """Ascending."""
    offsets: Int64[np.ndarray, " border"]
    rows: Int64[np.ndarray, " row"]

    @classmethod
    def of_lists(cls, lists: Mapping[int, Sequence[int]]) -> NameCandidates:
        """From {key: rows, likeliest first}."""
        keys = sorted(lists)
        sizes = [len(lists[key]) for key in keys]
        rows = [row for key in keys for row in lists[key]]
        return cls(np.array(keys, np.uint64), np.append(0, np.cumsum(sizes, dtype=np.int64)), np.array(rows, np.int64))

    @classmethod
    def of_kb(
        cls, kb: KnowledgeBase, vocabulary: EntityVocabulary, keys: UInt64[np.ndarray, " name"], *, most: int = 30
    ) -> NameCandidates:
        """The `most` likeliest entities of each of these names that the vocabulary has rows for."""
        asked = set(keys.tolist())
        found: dict[int, list[tuple[float, float, int]]] = {}
        query = "SELECT key, count, popularity, id FROM aliases JOIN entities ON num = entity"
        with sqlite_errors(kb.path):
            for key, count, popularity, id in kb.connection.execute(query):
                if (unsigned := key & _UNSIGNED) in asked and (row := vocabulary.row_of.get(id)) is not None:
                    found.setdefault(unsigned, []).append((-count, -popularity, row))
        lists = {key: list(dict.fromkeys(row for *_, row in sorted(some)))[:most] for key, some in found.items()}
        return cls.of_lists(lists)

    def take(self, keys: UInt64[np.ndarray, " entity"]) -> Int64[np.ndarray, "entity cand"]:
        """The rows of names, as wide as the longest list of them; `NO_ROW` where there are no more."""
        if not len(self.keys):
            return np.full((len(keys), 1), NO_ROW, np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        counts = np.where(self.keys[at] == keys, self.offsets[at + 1] - self.offsets[at], 0)
        columns = np.arange(max(1, int(counts.max(initial=0))))
        there = columns < counts[:, None]
        rows = np.full(there.shape, NO_ROW, np.int64)
        rows[there] = self.rows[(self.offsets[at][:, None] + columns)[there]]
        return rows


def project(vectors: NDArray[np.floating], rows: NDArray[np.int64], dim: int) -> Float32[np.ndarray, "known dim"]:
    """Some of mapped vectors, centred, on the principal axes of these; block by block."""
    width = vectors.shape[1]
    blocks = [rows[begin : begin + _BLOCK] for begin in range(0, len(rows), _BLOCK)]
    mean = sum((vectors[block].sum(0, dtype=np.float64) for block in blocks), np.zeros(width)) / len(rows)
    spread = np.zeros((width, width))
    for block in blocks:
        centred = vectors[block] - mean
        spread += centred.T @ centred
    _, axes = np.linalg.eigh(spread)
    axes = axes[:, ::-1][:, :dim]
    axes *= np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # an axis has no direction of its own
    found = np.zeros((len(rows), dim), np.float32)
    for number, block in enumerate(blocks):
        found[number * _BLOCK : number * _BLOCK + len(block), : axes.shape[1]] = (vectors[block] - mean) @ axes
    return found


def _read_json(path: Path) -> dict[str, int]:
    return _checked(_read_object(path), path)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; copy it again from the model's folder") from error
    return found if isinstance(found, dict) else {"": found}


def _checked(found: Any, path: Path) -> dict[str, int]:
    if not isinstance(found, dict) or not all(type(row) is int and row >= 0 for row in found.values()):
        raise InputError(f"{path} is no entity vocabulary; expected an object of names and their rows")
    return found


def _read_list(path: Path) -> dict[str, int]:
    """The authors' lists, the most frequent first: a title, a tab and a count; or titles with languages as JSON."""
    rows: dict[str, int] = {}
    for number, line in read_lines(path):
        text = decode(line, f"{path}, line {number}").rstrip("\n")
        if not text.strip():
            continue
        if path.suffix == ".tsv":
            rows.setdefault(text.split("\t")[0], number - 1)
            continue
        try:
            told = json.loads(text)
            for title, language in told["entities"]:
                plain = title in SPECIAL or language is None  # of one language: entity disambiguation
                rows.setdefault(title if plain else f"{language}:{title}", int(told["id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{path}, line {number}: expected "id" and "entities" ({error}); copy it again') from error
    return rows
