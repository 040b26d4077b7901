"""Auxiliary terms: words that are not in an input, but go with its words (Bai et al. 2022, section 3.3).

The k words of the table that the input does not have and whose mean correlation with its distinct, known words is
highest; ties are broken by the word. They are expanded to at most K pieces in the order of their rank. The first one
that does not fit ends the list: no word is cut, and none jumps the queue because it is short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float32, Int64

from wellread.errors import UsageError
from wellread.mentions.annotation_cache import cached, digest_of

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_WORDS = 1 << 20
"""Words whose ids are remembered."""


class Correlated(Protocol):
    """What a table of correlations must answer; `correlation.table.Correlation` is one."""

    @property
    def words(self) -> Any:
        """`words[id]` is the word with an id."""

    def ids_of(self, words: Sequence[str]) -> Int64[np.ndarray, " word"]:
        """-1 for a word that the table does not know."""

    def relevance_of(
        self, rows: Int64[np.ndarray, " pair"], columns: Int64[np.ndarray, " pair"]
    ) -> Float32[np.ndarray, " pair"]:
        """The relevance of each pair of ids: 1 for a word with itself, 0 for -1."""

    def related(
        self, ids: Int64[np.ndarray, " word"], k: int, *, leave_out: Collection[str]
    ) -> list[tuple[int, float]]:
        """The k words that are neither among the ids nor left out, with the highest mean relevance to the ids."""


class Vocabulary:
    """The ids of words, remembered: a table is asked once for each."""

    def __init__(self, correlation: Correlated) -> None:
        self.correlation = correlation
        self._ids: dict[str, int] = {}

    def ids_of(self, words: Iterable[str]) -> Int64[np.ndarray, " word"]:
        """-1 for a word that the table does not know."""
        words, ids = list(words), self._ids
        if new := [word for word in dict.fromkeys(words) if word not in ids]:
            if len(ids) + len(new) > _MOST_WORDS:
                ids.clear()
                new = list(dict.fromkeys(words))
            ids.update(zip(new, self.correlation.ids_of(new).tolist(), strict=True))
        return np.fromiter(map(ids.__getitem__, words), np.int64, len(words))


class TermChoice:
    """Chooses at most `words` auxiliary terms of at most `pieces` pieces in all."""

    def __init__(
        self,
        correlation: Correlated,
        *,
        tokens: int = 8,
        words: int | None = None,
        leave_out: Collection[str] = (),
    ) -> None:
        """`leave_out` are words that are never a term, such as `text.stopwords.STOP_WORDS`."""
        if tokens < 1 or (words is not None and words < 1):
            raise UsageError(
                f"auxiliary terms of {tokens} pieces and {words} words are none; let both be at least 1, or leave "
                "terms out"
            )
        self.tokens, self.words = tokens, tokens if words is None else words
        self.leave_out = frozenset(leave_out)
        self.vocabulary = Vocabulary(correlation)

    def known(self, words: Iterable[str]) -> Int64[np.ndarray, " word"]:
        """The distinct ids of the words that the table knows, sorted."""
        ids = np.unique(self.vocabulary.ids_of(words))
        return ids[ids >= 0]

    def choose(self, known: Int64[np.ndarray, " word"]) -> tuple[str, ...]:
        """The terms of an input by its `known` words, best first; a word that goes with none of them is no term."""
        if not len(known):
            return ()
        correlation = self.vocabulary.correlation
        best = correlation.related(known, self.words, leave_out=self.leave_out)
        return tuple(str(correlation.words[id]) for id, mean in best if mean > 0)

    def choose_many(
        self, inputs: Iterable[Int64[np.ndarray, " word"]], folder: Path | None = None
    ) -> dict[bytes, tuple[str, ...]]:
        """The terms of many inputs, by the bytes of their `known` words; with a `folder` they are kept there."""
        distinct = sorted({ids.tobytes() for ids in inputs})

        def make() -> pa.Table:
            import pyarrow as pa

            chosen = [list(self.choose(np.frombuffer(ids, np.int64))) for ids in distinct]
            return pa.table({"terms": pa.array(chosen, pa.large_list(pa.string()))})

        # A table's file has another name whenever it is counted anew; what has none is not to be told from another.
        fingerprint = getattr(self.vocabulary.correlation, "about", {}).get("file")
        if folder is None or fingerprint is None:
            table = make()
        else:
            settings = (str(fingerprint), str(self.words), " ".join(sorted(self.leave_out)))
            digest = digest_of(*settings, *(ids.hex() for ids in distinct))
            table = cached(folder / f"terms-{digest}.arrow", make)
        return {ids: tuple(terms) for ids, terms in zip(distinct, table.column("terms").to_pylist(), strict=True)}
