"""Auxiliary terms: words that are not in an input, but correlate with its words (Bai et al. 2022, section 3.3).

The k words of the table that the input does not have and whose mean correlation with its distinct, known words is
highest; ties are broken by the word. They are tokenized to at most K tokens in the order of their rank. The first one
that does not fit ends the list: no word is truncated, and no shorter one takes its place.
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
"""Maximum number of words whose ids are cached."""


class WordCorrelation(Protocol):
    """Protocol of a table of word correlations, such as `correlation.table.Correlation`."""

    @property
    def words(self) -> Any:
        """Words of the table by id."""

    def ids_of(self, words: Sequence[str]) -> Int64[np.ndarray, " word"]:
        """Return the ids of words; -1 for unknown ones."""

    def relevance_of(
        self, rows: Int64[np.ndarray, " pair"], columns: Int64[np.ndarray, " pair"]
    ) -> Float32[np.ndarray, " pair"]:
        """Return the relevance of each pair of ids: 1 for a word with itself, 0 for -1."""

    def related(
        self, ids: Int64[np.ndarray, " word"], k: int, *, leave_out: Collection[str]
    ) -> list[tuple[int, float]]:
        """Return the k words, neither in `ids` nor in `leave_out`, with the highest mean relevance to the ids."""


class Vocabulary:
    """Cache of a table's word ids."""

    def __init__(self, correlation: WordCorrelation) -> None:
        self.correlation = correlation
        self._ids: dict[str, int] = {}

    def ids_of(self, words: Iterable[str]) -> Int64[np.ndarray, " word"]:
        """Return the ids of words; -1 for unknown ones."""
        words, ids = list(words), self._ids
        if new := [word for word in dict.fromkeys(words) if word not in ids]:
            if len(ids) + len(new) > _MOST_WORDS:
                ids.clear()
                new = list(dict.fromkeys(words))
            ids.update(zip(new, self.correlation.ids_of(new).tolist(), strict=True))
        return np.fromiter(map(ids.__getitem__, words), np.int64, len(words))


class TermChoice:
    """Selects at most `words` auxiliary terms of at most `tokens` tokens in all."""

    def __init__(
        self,
        correlation: WordCorrelation,
        *,
        tokens: int = 8,
        words: int | None = None,
        leave_out: Collection[str] = (),
    ) -> None:
        """Set the limits; words of `leave_out` are never a term, e.g. `text.stopwords.STOP_WORDS`."""
        if tokens < 1 or (words is not None and words < 1):
            raise UsageError(
                f"auxiliary terms with at most {tokens} tokens and {words} words; expected at least 1 of both, or no "
                "TermChoice"
            )
        self.tokens, self.words = tokens, tokens if words is None else words
        self.leave_out = frozenset(leave_out)
        self.vocabulary = Vocabulary(correlation)

    def known(self, words: Iterable[str]) -> Int64[np.ndarray, " word"]:
        """Return the distinct ids of the words that the table has, sorted."""
        ids = np.unique(self.vocabulary.ids_of(words))
        return ids[ids >= 0]

    def choose(self, known: Int64[np.ndarray, " word"]) -> tuple[str, ...]:
        """Return the terms of an input by its `known` words, best first; each correlates with some of them."""
        if not len(known):
            return ()
        correlation = self.vocabulary.correlation
        best = correlation.related(known, self.words, leave_out=self.leave_out)
        return tuple(str(correlation.words[id]) for id, mean in best if mean > 0)

    def choose_many(
        self, inputs: Iterable[Int64[np.ndarray, " word"]], folder: Path | None = None
    ) -> dict[bytes, tuple[str, ...]]:
        """Return the terms of many inputs, by the bytes of their `known` words; cached in `folder` if given."""
        distinct = sorted({ids.tobytes() for ids in inputs})

        def make() -> pa.Table:
            import pyarrow as pa

            chosen = [list(self.choose(np.frombuffer(ids, np.int64))) for ids in distinct]
            return pa.table({"terms": pa.array(chosen, pa.large_list(pa.string()))})

        # A table's file gets a new name with every count; a table without a file cannot be cached.
        fingerprint = getattr(self.vocabulary.correlation, "about", {}).get("file")
        if folder is None or fingerprint is None:
            table = make()
        else:
            settings = (str(fingerprint), str(self.words), " ".join(sorted(self.leave_out)))
            digest = digest_of(*settings, *(ids.hex() for ids in distinct))
            table = cached(folder / f"terms-{digest}.arrow", make)
        return {ids: tuple(terms) for ids, terms in zip(distinct, table.column("terms").to_pylist(), strict=True)}
