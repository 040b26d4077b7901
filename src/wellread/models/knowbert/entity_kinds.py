"""Kinds of a KB's entities as numbers, for layers that have an embedding of each kind (WordNet: parts of speech)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase


def kind_names(kb: KnowledgeBase) -> list[str]:
    """Return the kinds of a KB's entities in the order in which a model numbers them."""
    with sqlite_errors(kb.path):
        return [name for (name,) in kb.connection.execute("SELECT DISTINCT kind FROM entities ORDER BY kind")]


def find_kinds(kb: KnowledgeBase, vectors: EntityVectors, most: int) -> NDArray[np.integer[Any]]:
    """Return the kind number of every row: as saved with the vectors, else by the sorted names of the KB's kinds."""
    if vectors.kinds is not None:
        return vectors.kinds
    with sqlite_errors(kb.path), kb.snapshot():
        names = kind_names(kb)
        if len(names) > most:
            raise KnowledgeBaseError(
                f"{kb.path} has {len(names):,} kinds of entities, and the model supports {most}; set kinds = 0"
            )
        number = {name: place for place, name in enumerate(names)}
        entities = kb.connection.execute("SELECT id, kind FROM entities").fetchall()
    rows = vectors.rows_of([id for id, _ in entities])
    found = np.zeros(len(vectors), np.int64)
    found[rows[rows >= 0]] = np.array([number[kind] for _, kind in entities], np.int64)[rows >= 0]
    return found
