"""Names by their letters: TF-IDF vectors of character 3-grams, and the names nearest to a string.

The vectors are sparse rows; a search is one sparse product for a batch of strings. Grams are 64-bit numbers of three
code points, so that nothing is split or joined letter by letter in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_SIZE = 3
_BITS = np.uint64(21)


@dataclass(frozen=True)
class NgramIndex:
    """TF-IDF vectors of names."""

    grams: NDArray[np.uint64]
    """Sorted grams of the names; a gram's place is its column."""
    weights: NDArray[np.float32]
    """Inverse document frequency of each gram."""
    rows: sparse.csr_matrix
    """[name, gram], rows of length 1."""
    columns: sparse.csr_matrix
    """The same transposed: the names of each gram."""

    @classmethod
    def build(cls, names: Sequence[str]) -> NgramIndex:
        """Build the vectors of names."""
        owner, grams = _grams(names)
        distinct, column, spread = np.unique(grams, return_inverse=True, return_counts=True)
        weights = (1 + np.log(max(1, len(names)) / spread)).astype(np.float32)
        rows = _matrix(owner, column.ravel(), weights, len(names))
        return cls(distinct, weights, rows, rows.T.tocsr())

    def encode(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Return the vectors of strings; unknown grams count in the length, with the highest weight."""
        owner, grams = _grams(texts)
        column = np.searchsorted(self.grams, grams)
        known = column < len(self.grams)
        known[known] = self.grams[column[known]] == grams[known]
        most = self.weights.max(initial=1.0)
        unknown = np.bincount(owner[~known], minlength=len(texts)) * most**2
        return _matrix(owner[known], column[known], self.weights, len(texts), unknown)

    def nearest(self, vectors: sparse.csr_matrix, count: int) -> list[NDArray[np.int64]]:
        """Return up to `count` names nearest to each vector, best first."""
        products = vectors @ self.columns
        data, columns, begins = products.data, products.indices, products.indptr.tolist()
        found = []
        for begin, end in pairwise(begins):
            scores = data[begin:end]
            if end - begin > count:
                best = np.argpartition(scores, -count)[-count:]
                best = best[np.argsort(-scores[best], kind="stable")]
            else:
                best = np.argsort(-scores, kind="stable")
            found.append(columns[begin:end][best].astype(np.int64))
        return found

    def cosines(
        self, vectors: sparse.csr_matrix, rows: NDArray[np.int64], names: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the cosine of pairs: row rows[i] of `vectors` and name names[i]."""
        return np.asarray(vectors[rows].multiply(self.rows[names]).sum(1), np.float32).ravel()


def _grams(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the grams of all texts, and the text of each; a text has a blank on either side."""
    if not texts:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    codes = np.frombuffer("".join(f" {text} " for text in texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts)) + 2
    owner = np.repeat(np.arange(len(texts)), lengths)
    wide = codes.astype(np.uint64)
    if len(wide) < _SIZE:
        return owner[:0], wide[:0]
    grams = (wide[:-2] << (_BITS + _BITS)) | (wide[1:-1] << _BITS) | wide[2:]
    whole = owner[:-2] == owner[2:]
    return owner[:-2][whole], grams[whole]


def _matrix(
    owner: NDArray[np.int64],
    column: NDArray[np.int64],
    weights: NDArray[np.float32],
    count: int,
    unknown: NDArray[np.float64] | None = None,
) -> sparse.csr_matrix:
    """Return rows of length 1; a repeated gram counts by the root of its number."""
    shape = (count, len(weights))
    made = sparse.csr_matrix((np.ones(len(owner), np.float32), (owner, column)), shape)
    made.sum_duplicates()
    made.data = np.sqrt(made.data) * weights[made.indices]
    squares = np.asarray(made.multiply(made).sum(1), np.float64).ravel()
    if unknown is not None:
        squares += unknown
    lengths = np.sqrt(np.maximum(squares, 1e-12)).astype(np.float32)
    made.data /= np.repeat(lengths, np.diff(made.indptr))
    return made
