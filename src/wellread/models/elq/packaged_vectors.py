"""Vectors of the packaged articles, shipped with the packaged linker so that set-up does not encode them.

A vector belongs to a text, whatever KB has it: rows are found by the digest of title and description, and used only by
an entity encoder with the same fingerprint. Texts that are not there are encoded. Numbers are 8-bit: of a vector of
length 1 only the direction counts (cosine .9999 to the one encoded in fp32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wellread.index.entity_vectors import EntityVectors, text_key
from wellread.io.arrays import open_arrays, save_arrays
from wellread.runtime.session import normalised

PATH = Path(__file__).parents[2] / "weights" / "elq-minilm" / "articles.safetensors"
_FORMAT = "wellread packaged vectors 1"
_HIGHEST = 127


@dataclass(frozen=True, slots=True)
class PackagedVectors:
    """Vectors of length 1 by the key of their text, in 8-bit integers."""

    texts: NDArray[np.uint64]
    """`text_key` of each row, sorted."""
    codes: NDArray[np.int8]

    @classmethod
    def load(cls, fingerprint: str) -> PackagedVectors | None:
        """Map the vectors of an entity encoder; None for another one's, and without a readable file."""
        try:
            mapped = open_arrays(PATH)
            if (mapped.metadata["format"], mapped.metadata["fingerprint"]) != (_FORMAT, fingerprint):
                return None
            return cls(mapped.arrays["texts"], mapped.arrays["codes"])
        except (OSError, ValueError, KeyError):
            return None

    def find(self, entities: Sequence[tuple[str, str]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return which of the (title, description) pairs are there, and their vectors."""
        keys = np.array([text_key(*entity) for entity in entities], np.uint64)
        rows = np.searchsorted(self.texts, keys)
        rows[rows == len(self.texts)] = 0
        known = np.flatnonzero(self.texts[rows] == keys) if len(self.texts) else np.zeros(0, np.int64)
        return known, normalised(self.codes[rows[known]].astype(np.float32))


def package(vectors: EntityVectors, path: Path) -> None:
    """Write vectors of length 1, encoded in fp32, as `PackagedVectors`."""
    texts, rows = np.unique(vectors.texts, return_index=True)
    numbers = np.asarray(vectors.rows[rows], np.float32)
    largest = np.abs(numbers).max(1, keepdims=True)
    codes = np.rint(numbers / np.maximum(largest, np.float32(1e-12)) * _HIGHEST).astype(np.int8)
    save_arrays(path, {"texts": texts, "codes": codes}, {"format": _FORMAT, "fingerprint": vectors.fingerprint})
