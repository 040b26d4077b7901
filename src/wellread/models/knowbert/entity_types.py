"""The kinds of a KB's entities as numbers, which a model has embeddings of; for WordNet they are parts of speech."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase


def kind_names(kb: KnowledgeBase) -> list[str]:
    """The kinds of a KB's entities, in the order in which a model numbers them."""
    with sqlite_errors(kb.path):
        return [name for (name,) in kb.connection.execute("SELECT DISTINCT kind FROM entities ORDER BY kind")]


def find_kinds(kb: KnowledgeBase, vectors: EntityVectors, most: int) -> NDArray[np.integer[Any]]:
    """The kind of every row's entity: as the vectors have it, else numbered in the order of the kinds' names."""
    if vectors.kinds is not None:
        return vectors.kinds
    with sqlite_errors(kb.path), kb.snapshot():
        names = kind_names(kb)
        if len(names) > most:
            raise KnowledgeBaseError(
                f"{kb.path} has {len(names):,} kinds of entities, and the model has room for {most}; set kinds = 0"
            )
        number = {name: place for place, name in enumerate(names)}
        ids, kinds = [], []
        for id, kind in kb.connection.execute("SELECT id, kind FROM entities"):
            ids.append(id)
            kinds.append(number[kind])
    found = np.zeros(len(vectors), np.int64)
    rows = vectors.rows_of(ids)
    found[rows[rows >= 0]] = np.array(kinds, np.int64)[rows >= 0]
    return found
