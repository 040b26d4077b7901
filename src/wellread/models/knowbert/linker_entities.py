"""The entities that a knowledge layer knows: rows for their ids, names for rows, and those that are new in the KB.

A ready table (`models.knowbert.quantized_entities`) needs no vectors. What it does not know is looked for in the KB's
vectors, or encoded, if they are of the kind that the table was made of; else it is left out, and a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError, StorageError
from wellread.index.entity_vectors import ANY, EntityEncoder, EntityVectors, encode_entities
from wellread.index.folder import build_command, vectors_folder
from wellread.io import console
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Ints
from wellread.models.elq.entity_encoder import EntityTower, fingerprint_of
from wellread.models.elq.linker import PACKAGED as ELQ
from wellread.models.elq.model import ElqConfig
from wellread.models.knowbert.folder import Parts
from wellread.models.knowbert.pos_tags import KINDS
from wellread.models.knowbert.quantized_entities import ReadyEntities

_UNKNOWN = -9


@dataclass(slots=True)
class State:
    """What was read of one state of the KB, as far as somebody asked."""

    ids: dict[int, str] = field(default_factory=dict)
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    kinds: NDArray[np.int8] = field(default_factory=lambda: np.full(1 << 10, _UNKNOWN, np.int8))
    """Of rows, as far as they are known."""
    missing: set[str] = field(default_factory=set)
    told: bool = False


class Entities:
    """What `KnowBertProvider` asks for rows, and a reader for names; made anew whenever the KB has changed."""

    def __init__(self, kb: KnowledgeBase, parts: Parts, *, among: Iterable[str] | None = None) -> None:
        self.kb, self.linker, self.settings, self.config = kb, parts.linker, parts.settings, parts.config
        self._among = None if among is None else frozenset(among)
        self._ready: ReadyEntities | None = None
        self._vectors: EntityVectors | None = None
        if parts.ready is not None:
            self._ready = ReadyEntities(parts.ready, parts.linker.entities)
            parts.linker.entities = self._ready  # type: ignore[assignment]  # it answers the same questions
        else:
            self._take(EntityVectors.of_kb(kb, self.settings.vectors, fingerprint=self.settings.fingerprint))
        self._encoders: dict[str, EntityEncoder | None] = {}
        self._revision = -1
        self._forget()

    def _forget(self) -> None:
        self.state = State()
        self._added: dict[str, int] = {}
        if self._ready is not None:
            self._ready.forget()

    @property
    def vectors(self) -> EntityVectors | None:
        """Those of the KB, where the model's folder has no entities of its own."""
        return self._vectors

    @property
    def file(self) -> str:
        """What changes when rows would."""
        return f"{self._vectors.file if self._vectors is not None else ''} {self._revision}"

    def follow(self) -> None:
        """Forget what was known of another state of the KB; bring its vectors up to date if that can be done."""
        revision = self.kb.revision
        if revision == self._revision:
            return
        self._revision = revision
        self._forget()
        if self._vectors is not None and self._vectors.uid != ANY and self._vectors.revision != revision:
            encoder = self._encoder(self._vectors.fingerprint)
            if encoder is not None:
                try:
                    self._take(EntityVectors.build(self.kb, encoder, self._vectors.folder))
                except (StorageError, KnowledgeBaseError):
                    return  # not to be written, or a kind that the model does not know: what is missing is told of

    def _take(self, vectors: EntityVectors) -> None:
        self.linker.entities.take_of(self.kb, vectors)
        self._vectors = vectors  # last: rows are those of the table that was taken

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The rows of entities; -1 for what is not to be linked to, or has no vector."""
        if self._vectors is not None:
            rows = self._vectors.rows_of(ids)
        else:
            assert self._ready is not None
            rows = self._ready.table.rows_of(ids)
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

    def tell_of_missing(self) -> None:
        """Say once, for each state of the KB, that some of it cannot be linked to."""
        if self.state.missing and not self.state.told:
            self.state.told = True
            many, some = len(self.state.missing), ", ".join(sorted(self.state.missing)[:3])
            fix = f"make vectors with: {build_command(self.kb.path)}"
            if self._vectors is not None and self._vectors.uid == ANY:
                fix = f"{self._vectors.folder} has those that were converted"
            told = f"{self.kb.path.name} has entities without a vector, which are left out"
            console.note(f"{told}: {many:,} so far ({some}); {fix}")

    def names_of(self, state: State, rows: Sequence[int]) -> list[tuple[str, str]]:
        """(id, title) of rows, as they were in a state."""
        self._learn(state, (row for row in set(rows) if row not in state.names))
        return [state.names[row] for row in rows]

    def kinds_of(self, rows: Ints) -> NDArray[np.int8]:
        """The place of each row's kind in `tagging.KINDS`; negative for others, and where there is no row."""
        distinct = np.unique(rows)
        distinct = distinct[distinct >= 0]
        known = distinct[distinct < len(self.state.kinds)]
        known = known[self.state.kinds[known] != _UNKNOWN]
        if len(known) < len(distinct):
            self._learn(self.state, np.setdiff1d(distinct, known).tolist())
        return self.state.kinds[np.maximum(rows, 0)]

    def _learn(self, state: State, rows: Iterable[int]) -> None:
        """Read the names and kinds of rows from the KB."""
        asked = {state.ids[row]: row for row in rows}
        if not asked:
            return
        query = "SELECT id, title, kind FROM entities WHERE id IN (SELECT value FROM json_each(?))"
        more = max(asked.values()) + 1 - len(state.kinds)
        if more > 0:
            state.kinds = np.concatenate((state.kinds, np.full(more + len(state.kinds), _UNKNOWN, np.int8)))
        with sqlite_errors(self.kb.path):
            for id, title, kind in self.kb.connection.execute(query, (json.dumps(list(asked)),)):
                row = asked.pop(id)
                state.names[row] = id, title
                state.kinds[row] = KINDS.index(kind) if kind in KINDS else -1
        for id, row in asked.items():  # gone since its candidates were read
            state.names[row], state.kinds[row] = (id, id), -1

    def _add(self, ids: Sequence[str]) -> None:
        """Give entities that the ready table does not know a row, if vectors of its kind can be had."""
        ready = self._ready
        assert ready is not None
        found = self._raw(ids, ready.table.fingerprint)
        known = [id for id in ids if id in found]
        if not known:
            return
        kinds = None
        if ready.table.kinds:
            number = {kind: place for place, kind in enumerate(ready.table.kinds)}
            kinds = torch.tensor([number.get(self._kind(id), 0) for id in known])
        rows = ready.add(torch.from_numpy(np.stack([found[id] for id in known]).astype(np.float32)), kinds)
        self._added.update(zip(known, rows.tolist(), strict=True))

    def _kind(self, id: str) -> str:
        with sqlite_errors(self.kb.path):
            row = self.kb.connection.execute("SELECT kind FROM entities WHERE id = ?", (id,)).fetchone()
        return str(row[0]) if row else ""

    def _raw(self, ids: Sequence[str], fingerprint: str) -> dict[str, NDArray[np.floating[Any]]]:
        """Vectors of entities as they were before they were projected: from the KB's, or newly encoded."""
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
        """The encoder that has made vectors with this fingerprint, if it is one that everybody has; loaded once."""
        if fingerprint not in self._encoders:
            some = (config for config in (ElqConfig(), ElqConfig.read(ELQ)) if fingerprint_of(config) == fingerprint)
            config = next(some, None)
            self._encoders[fingerprint] = None if config is None else EntityTower.load(config)
        return self._encoders[fingerprint]
