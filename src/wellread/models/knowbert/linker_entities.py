"""Entities of a linker: rows of entity ids, titles and kinds of rows, and entities that are new in the KB.

An 8-bit table (`models.knowbert.quantization`) needs no vectors. An entity that it lacks is taken from the KB's
vectors, or encoded, if the fingerprint matches that of the table; else it is left out, and a note is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError, StorageError
from wellread.index.entity_vectors import ANY, EntityEncoder, EntityVectors, encode_entities
from wellread.index.folder import build_command, vectors_folder
from wellread.io import console
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Ints
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower, fingerprint_of
from wellread.models.elq.load import PACKAGED as ELQ
from wellread.models.knowbert.folder import LinkerSettings
from wellread.models.knowbert.linker_vectors import Int8Entities
from wellread.models.knowbert.pos_tags import KINDS
from wellread.models.knowbert.sense_texts import PREFIX

_UNKNOWN = -9


@dataclass(slots=True)
class KbState:
    """Cache of ids, titles and kinds of one revision of the KB, filled on demand."""

    ids: dict[int, str] = field(default_factory=dict)
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    kinds: NDArray[np.int8] = field(default_factory=lambda: np.full(1 << 10, _UNKNOWN, np.int8))
    """Part of speech of each row, as its position in `KINDS`."""
    missing: set[str] = field(default_factory=set)
    reported: bool = False


class VectorUser(Protocol):
    """Protocol of what computes with the entity vectors of a KB: a projection in numpy or in torch."""

    def take_of(self, kb: KnowledgeBase, vectors: EntityVectors) -> None:
        """Use the vectors of a KB, with the kinds of its entities if these have embeddings."""


class LinkerEntities:
    """Rows, titles and kinds of the entities that a knowledge layer can link to; follows changes of the KB."""

    def __init__(
        self,
        kb: KnowledgeBase,
        settings: LinkerSettings,
        vectors: Int8Entities | VectorUser,
        *,
        among: Iterable[str] | None = None,
    ) -> None:
        self.kb, self.settings = kb, settings
        self._among = None if among is None else frozenset(among)
        self._int8 = vectors if isinstance(vectors, Int8Entities) else None
        self._user = None if isinstance(vectors, Int8Entities) else vectors
        self._vectors: EntityVectors | None = None
        if self._user is not None:
            self._take(EntityVectors.of_kb(kb, settings.vectors, fingerprint=settings.fingerprint))
        self.own: EntityEncoder | None = None
        """Encoder of sense texts, for a table whose vectors the linker's own encoder made."""
        self._encoders: dict[str, EntityEncoder | None] = {}
        self._revision = -1
        self._reset()

    def _reset(self) -> None:
        self.state = KbState()
        self._added: dict[str, int] = {}
        if self._int8 is not None:
            self._int8.clear_added()

    @property
    def vectors(self) -> EntityVectors | None:
        """Entity vectors of the KB; None if the model has an 8-bit table."""
        return self._vectors

    @property
    def file(self) -> str:
        """Identifier that changes whenever rows may change."""
        return f"{self._vectors.file if self._vectors is not None else ''} {self._revision}"

    def follow(self) -> None:
        """Clear caches of an older revision of the KB; update its vectors if their encoder is available."""
        revision = self.kb.revision
        if revision == self._revision:
            return
        self._revision = revision
        self._reset()
        if self._vectors is not None and self._vectors.uid != ANY and self._vectors.revision != revision:
            encoder = self._encoder(self._vectors.fingerprint)
            if encoder is not None:
                try:
                    self._take(EntityVectors.build(self.kb, encoder, self._vectors.folder))
                except (StorageError, KnowledgeBaseError):
                    return  # read-only, or a kind the model does not have: `report_missing` names what is missing

    def _take(self, vectors: EntityVectors) -> None:
        assert self._user is not None
        self._user.take_of(self.kb, vectors)
        self._vectors = vectors  # last: rows must be those of the table that was set

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of entities; -1 for those that are excluded or have no vector."""
        if self._vectors is not None:
            rows = self._vectors.rows_of(ids)
        else:
            assert self._int8 is not None
            rows = self._int8.table.rows_of(ids)
            new = [id for id, row in zip(ids, rows.tolist(), strict=True) if row < 0 and id not in self._added]
            if new := [id for id in dict.fromkeys(new) if id not in self.state.missing]:
                self._add(new)
            if self._added:
                rows = np.array(
                    [row if row >= 0 else self._added.get(id, -1) for id, row in zip(ids, rows.tolist(), strict=True)],
                    np.int64,
                ).reshape(-1)
        if self._among is not None:
            rows = np.where([id in self._among for id in ids], rows, -1).astype(np.int64)
        for id, row in zip(ids, rows.tolist(), strict=True):
            if row >= 0:
                self.state.ids[row] = id
            elif self._among is None or id in self._among:
                self.state.missing.add(id)
        return rows

    def report_missing(self) -> None:
        """Print a note, once for each revision of the KB, if some entities cannot be linked to."""
        if self.state.missing and not self.state.reported:
            self.state.reported = True
            many, some = len(self.state.missing), ", ".join(sorted(self.state.missing)[:3])
            fix = f"make vectors with: {build_command(self.kb.path)}"
            if self._vectors is not None and self._vectors.uid == ANY:
                fix = f"{self._vectors.folder} has those that were converted"
            problem = f"{self.kb.path.name} has entities without a vector, which are left out"
            console.note(f"{problem}: {many:,} so far ({some}); {fix}")

    def names_of(self, state: KbState, rows: Sequence[int]) -> list[tuple[str, str]]:
        """Return (id, title) of rows in a state of the KB."""
        self._read(state, (row for row in set(rows) if row not in state.names))
        return [state.names[row] for row in rows]

    def kinds_of(self, rows: Ints) -> NDArray[np.int8]:
        """Return the position of each row's kind in `pos_tags.KINDS`; negative for other kinds and for padding."""
        distinct = np.unique(rows)
        distinct = distinct[distinct >= 0]
        known = distinct[distinct < len(self.state.kinds)]
        known = known[self.state.kinds[known] != _UNKNOWN]
        if len(known) < len(distinct):
            self._read(self.state, np.setdiff1d(distinct, known).tolist())
        return self.state.kinds[np.maximum(rows, 0)]

    def _read(self, state: KbState, rows: Iterable[int]) -> None:
        """Read the names and kinds of rows from the KB."""
        row_of = {state.ids[row]: row for row in rows}
        if not row_of:
            return
        query = "SELECT id, title, kind FROM entities WHERE id IN (SELECT value FROM json_each(?))"
        more = max(row_of.values()) + 1 - len(state.kinds)
        if more > 0:
            state.kinds = np.concatenate((state.kinds, np.full(more + len(state.kinds), _UNKNOWN, np.int8)))
        with sqlite_errors(self.kb.path):
            for id, title, kind in self.kb.connection.execute(query, (json.dumps(list(row_of)),)):
                row = row_of.pop(id)
                state.names[row] = id, title
                state.kinds[row] = KINDS.index(kind) if kind in KINDS else -1
        for id, row in row_of.items():  # deleted since its candidates were found
            state.names[row], state.kinds[row] = (id, id), -1

    def _add(self, ids: Sequence[str]) -> None:
        """Add entities that the 8-bit table lacks, if vectors with its fingerprint are available."""
        int8 = self._int8
        assert int8 is not None
        found = self._raw(ids, int8.table.fingerprint)
        known = [id for id in ids if id in found]
        if not known:
            return
        kinds = None
        if int8.table.kinds:
            number = {kind: place for place, kind in enumerate(int8.table.kinds)}
            kinds = np.array([number.get(self._kind(id), 0) for id in known], np.int64)
        rows = int8.add(np.stack([found[id] for id in known]), kinds)
        self._added.update(zip(known, rows.tolist(), strict=True))

    def _kind(self, id: str) -> str:
        with sqlite_errors(self.kb.path):
            row = self.kb.connection.execute("SELECT kind FROM entities WHERE id = ?", (id,)).fetchone()
        return str(row[0]) if row else ""

    def _raw(self, ids: Sequence[str], fingerprint: str) -> dict[str, NDArray[np.floating[Any]]]:
        """Return the original vectors of entities: from the KB's vectors, or newly encoded."""
        found: dict[str, NDArray[np.floating[Any]]] = {}
        if not fingerprint:
            return found
        try:
            vectors = EntityVectors.open(vectors_folder(self.kb, self.settings.vectors))
            if (vectors.uid, vectors.fingerprint) == (self.kb.metadata["uid"], fingerprint):
                rows = vectors.rows_of(ids)
                found = {id: vectors.rows[row] for id, row in zip(ids, rows.tolist(), strict=True) if row >= 0}
        except KnowledgeBaseError:
            pass
        left = [id for id in ids if id not in found]
        encoder = self._encoder(fingerprint) if left else None
        if encoder is None:
            return found
        query = "SELECT id, title, description FROM entities WHERE id IN (SELECT value FROM json_each(?))"
        with sqlite_errors(self.kb.path):
            texts = self.kb.connection.execute(query, (json.dumps(left),)).fetchall()
        made = encode_entities(encoder, [(title, description) for _, title, description in texts])
        return found | {row[0]: vector for row, vector in zip(texts, made, strict=True)}

    def _encoder(self, fingerprint: str) -> EntityEncoder | None:
        """Return the encoder that made vectors with this fingerprint, own or packaged; None if there is none."""
        if fingerprint.startswith(PREFIX):
            return self.own
        if fingerprint not in self._encoders:
            packaged = (ElqConfig(), ElqConfig.read(ELQ))
            config = next((config for config in packaged if fingerprint_of(config) == fingerprint), None)
            self._encoders[fingerprint] = None if config is None else EntityTower.load(config)
        return self._encoders[fingerprint]
