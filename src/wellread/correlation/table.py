"""Table of term correlations: how much more often than by chance two words occur together (KAM-BERT, eq. 7).

1. An event is a document or a window of one; a word is in it or not, however often (`events`).
2. PMI(x, y) = log p(x, y) - log p(x) - log p(y), natural logarithm, over all events (`counting`, `pmi`).
3. The relevance of two words is max(PMI, 0) / Z, where Z is the largest PMI of the table, or NPMI = PMI / -log p(x, y)
   if the table was made so. A word's relevance to itself is 1; that of unknown words is 0.
4. Auxiliary terms are the words that a text does not have and that are, on average, most relevant to its words.

Unlike the paper: words in fewer than `min_count` events and pairs in fewer than `min_pair` are left out, because rare
pairs would dominate Z and the auxiliary terms.

A table is a folder (`my.pmi`). Rows of neighbours, sorted by id, are mapped from one file, so that it opens in
milliseconds and processes share its memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError
from wellread.io.arrays import Strings, map_arrays
from wellread.text.words import word_hash

TABLE_FORMAT = "wellread correlation 1"
MANIFEST = "correlation.json"
Measure = Literal["pmi", "npmi"]

Ids = NDArray[np.int64]


class WordList(Sequence[str]):
    """Words of a table by id, read on access; the most frequent has id 0."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings

    def __len__(self) -> int:
        return len(self._strings)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self.take(np.arange(*at.indices(len(self))))
        if not -len(self) <= at < len(self):
            raise IndexError(f"word {at} is out of range: the table has {len(self)}")
        return self._strings.take([at % len(self)])[0]

    def take(self, ids: Sequence[int] | Ids) -> list[str]:
        """Return the words of some ids."""
        return self._strings.take(ids)


@dataclass(frozen=True)
class RelatedWord:
    """A word that is correlated with another: its relevance, and the numbers of events with both and with itself."""

    word: str
    relevance: float
    together: int
    events: int


class Correlation:
    """Memory-mapped table of correlated words.

    >>> table = Correlation.load("wordnet.pmi")
    >>> river, bank, bank_again, unknown = table.ids_of(["river", "bank", "Bank", "qwertz"])
    >>> table.relevance([river], [river, bank, unknown])
    array([[1.        , 0.39...  , 0.        ]], dtype=float32)
    """

    def __init__(self, folder: Path, about: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.folder = folder
        self.about = about
        """Manifest: settings, corpora, figures."""
        self.words = WordList(Strings(arrays, "words"))
        self.counts: NDArray[np.int64] = arrays["counts"]
        """Number of events with each word."""
        self._hashes, self._hashed_ids = arrays["hashes"], arrays["hashed_ids"]
        self._starts: NDArray[np.int64] = arrays["starts"]
        self._neighbours: NDArray[np.uint32] = arrays["neighbours"]
        self._scores: NDArray[np.float32] = arrays["scores"]
        self._together: NDArray[np.uint32] = arrays["together"]

    @classmethod
    def load(cls, folder: str | Path) -> Correlation:
        """Map the table in a folder of `wellread correlate`."""
        folder = Path(folder)
        for _ in range(3):  # another process may be replacing the table
            about = read_about(folder)
            try:
                return cls(folder, about, map_arrays(folder / about["file"]))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError) as error:
                raise InputError(f"{folder} is damaged ({error}); delete it and count again") from error
        raise InputError(f"{folder} has no table file; delete it and count again with: wellread correlate")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def events(self) -> int:
        """Number of documents or windows that were counted."""
        return int(self.about["events"])

    @property
    def measure(self) -> Measure:
        """Measure of relevance."""
        return "npmi" if self.about["measure"] == "npmi" else "pmi"

    def ids_of(self, words: Sequence[str]) -> Ids:
        """Return the ids of words, -1 for unknown ones; case and diacritics are ignored."""
        hashes = np.fromiter((word_hash(word) if word else 0 for word in words), np.uint64, len(words))
        return self.ids_of_hashes(hashes)

    def ids_of_hashes(self, hashes: NDArray[np.uint64]) -> Ids:
        """Return the ids of words by their hashes, as `text.words.split` returns them."""
        if not len(self._hashes):
            return np.full(len(hashes), -1)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[places] == hashes, self._hashed_ids[places].astype(np.int64), -1)

    def relevance(
        self, left: Sequence[int] | NDArray[np.integer[Any]], right: Sequence[int] | NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Return the relevance of every word of `left` to every word of `right`: [left, right]."""
        lefts, left_at = np.unique(np.asarray(left, np.int64), return_inverse=True)
        rights, right_at = np.unique(np.asarray(right, np.int64), return_inverse=True)
        if np.array_equal(lefts, rights):
            rows, columns = np.triu_indices(len(lefts))
            block = np.zeros((len(lefts), len(lefts)), np.float32)
            block[rows, columns] = block[columns, rows] = self.relevance_of(lefts[rows], lefts[columns])
        else:
            pairs = self.relevance_of(np.repeat(lefts, len(rights)), np.tile(rights, len(lefts)))
            block = pairs.reshape(len(lefts), len(rights))
        return block[np.ix_(left_at, right_at)]

    def relevance_of(self, rows: NDArray[np.integer[Any]], columns: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return the relevance of pairs of words: two arrays of ids of equal length in, one number per pair out."""
        rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
        scores: NDArray[np.float32] = ((rows == columns) & (rows >= 0)).astype(np.float32)
        needed = np.flatnonzero((rows != columns) & (rows >= 0) & (columns >= 0))
        if len(needed):
            rows, columns = rows[needed], columns[needed]
            swap = self._degrees[rows] > self._degrees[columns]  # search the shorter row
            places = self._find(np.where(swap, columns, rows), np.where(swap, rows, columns))
            met = places >= 0
            scores[needed[met]] = self._scores[places[met]]
        return scores

    @cached_property
    def _degrees(self) -> NDArray[np.int64]:
        return np.diff(self._starts)

    def _find(self, rows: Ids, columns: Ids) -> Ids:
        """Return the position of each column in its pair's row, or -1, by one binary search for all pairs."""
        last = len(self._neighbours) - 1
        if last < 0:
            return np.full(len(rows), -1)
        low, ends = self._starts[rows], self._starts[rows + 1]
        steps = int(self._degrees[rows].max(initial=0)).bit_length()
        high = ends.copy()
        for _ in range(steps):
            middle = (low + high) >> 1
            below = (self._neighbours[np.minimum(middle, last)] < columns) & (low < high)
            low = np.where(below, middle + 1, low)
            high = np.where(below, high, middle)
        found = (low < ends) & (self._neighbours[np.minimum(low, last)] == columns)
        return np.where(found, low, -1)

    def related(
        self, ids: Sequence[int] | NDArray[np.integer[Any]], k: int, *, leave_out: Collection[str] | Ids = ()
    ) -> list[tuple[int, float]]:
        """Return the k words not in `ids` with the highest mean relevance to the distinct known ids; ties by the word.

        Words of `leave_out` (strings or ids) are never returned, nor words without relevance: there may be fewer than
        k.
        """
        known = np.unique(np.asarray(ids, np.int64))
        known = known[known >= 0]
        if k < 1 or not len(known):
            return []
        spans = [slice(*self._starts[at : at + 2]) for at in known]
        sums = np.bincount(
            np.concatenate([self._neighbours[span] for span in spans]),
            np.concatenate([self._scores[span] for span in spans]),
            len(self),
        )
        sums[known] = 0
        sums[self._banned(leave_out)] = 0
        found = np.flatnonzero(sums)
        if len(found) > k:
            least = np.partition(sums[found], len(found) - k)[len(found) - k]
            found = found[sums[found] >= least]
        means = (sums[found] / len(known)).tolist()
        ranked = sorted(
            zip(means, self.words.take(found), found.tolist(), strict=True), key=lambda one: (-one[0], one[1])
        )
        return [(id, mean) for mean, _, id in ranked[:k]]

    def _banned(self, leave_out: Collection[str] | Ids) -> Ids:
        if isinstance(leave_out, np.ndarray):
            return leave_out[leave_out >= 0]
        return self._ids_to_leave_out(frozenset(leave_out)) if leave_out else np.zeros(0, np.int64)

    @cached_property
    def _ids_to_leave_out(self) -> Any:
        @lru_cache(8)
        def find(words: frozenset[str]) -> Ids:
            ids = self.ids_of(list(words))
            return ids[ids >= 0]

        return find

    def neighbours(self, word: str, k: int | None = None) -> list[RelatedWord]:
        """Return the words most relevant to a word, best first; ties by the word. An unknown word has none."""
        at = int(self.ids_of([word])[0])
        if at < 0:
            return []
        span = slice(*self._starts[at : at + 2])
        found = zip(
            self.words.take(self._neighbours[span].astype(np.int64)),
            self._scores[span].tolist(),
            self._together[span].tolist(),
            self.counts[self._neighbours[span]].tolist(),
            strict=True,
        )
        return [RelatedWord(*one) for one in sorted(found, key=lambda one: (-one[1], one[0]))[:k]]


def read_about(folder: Path) -> dict[str, Any]:
    """Return the manifest of a table; raise InputError for a folder without a finished table."""
    try:
        about = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        if (folder / "counted").is_dir():
            raise InputError(
                f"{folder} is not finished; run the same wellread correlate again, it continues where it stopped"
            ) from None
        raise InputError(
            f"there is no table of correlations in {folder}; make one with: wellread correlate TEXT --to {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / MANIFEST} is damaged ({error}); delete {folder} and count again") from error
    if not isinstance(about, dict) or about.get("format") != TABLE_FORMAT:
        raise InputError(f"{folder} was made by another version of wellread; delete it and count again")
    return about
