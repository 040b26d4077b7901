"""From a knowledge base and an encoder to an index: what `wellread index build` does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from wellread.errors import KnowledgeBaseError, StorageError
from wellread.index.entity_index import MOST_CHANGES, EntityIndex
from wellread.index.entity_vectors import Encoding, EntityEncoder, EntityVectors
from wellread.index.faiss_choice import choose
from wellread.index.folder import locked, sweep_parts, vectors_folder
from wellread.io.files import storage
from wellread.kb.store import KnowledgeBase


def build_index(
    kb: KnowledgeBase,
    encoder: EntityEncoder,
    folder: str | Path | None = None,
    *,
    kind: Literal["auto", "exact", "hnsw", "ivf"] = "auto",
    compression: Literal["auto", "none", "int8", "pq"] = "auto",
    progress: Encoding | None = None,
) -> EntityIndex:
    """Bring vectors and index of a KB up to date with as little work as that takes.

    Few changes are written beside the index that is there; with many, or another choice, it is built anew.
    """
    progress = progress if progress is not None else Encoding()
    folder = vectors_folder(kb, folder)
    choose(0, encoder.dim, kind, compression)  # what cannot be is refused before the work
    index: EntityIndex | None = None
    with suppress(KnowledgeBaseError):  # there is none, or one that must be built anew
        index = EntityIndex.open(kb, fingerprint=encoder.fingerprint, folder=folder, stale="allow")
    if index is not None and index.asked == [kind, compression]:
        changed = len(kb.changed_entities(index.revision))
        few = changed + len(index.changes) + len(index.changes.gone) <= min(MOST_CHANGES, len(index.vectors) // 10)
        if few or index.revision == kb.revision:
            progress.kept = len(index)
            index = index.refresh(kb, encoder, progress=progress)
            if any(folder.glob("*.part")):  # of a build that was killed, before something else brought it up to date
                with suppress(StorageError, KnowledgeBaseError), locked(folder, kb.path), storage(folder):
                    sweep_parts(folder)
            return index
    vectors = EntityVectors.build(kb, encoder, folder, progress=progress)
    return EntityIndex.build(vectors, kind=kind, compression=compression, progress=progress)
