"""Statistics of a knowledge base's aliases: features that let a link scorer generalise to unseen KBs.

A KB of products has rare, capitalised names; an ontology has common words in lower case; an encyclopedia has both.
The evidence that a link needs differs between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.text.frequency import packaged
from wellread.text.words import keys, split

Flags = NDArray[np.bool_]

_SAMPLE = 500
"""Number of entities sampled, evenly spaced over the KB; up to twice as many."""
_COMMON, _LOWER = 0.5, 0.5
"""A word above this frequency (log10 per million) and share of lower-case occurrences is common."""


@dataclass(frozen=True, slots=True)
class KbProfile:
    """Statistics over a sample of a KB's aliases."""

    log_entities: float
    """log10 of the number of entities."""
    aliases: float
    """Mean number of aliases of an entity."""
    words: float
    """Mean number of words of an alias."""
    rarest: float
    """Mean frequency of the rarest word of an alias (log10 per million)."""
    common: float
    """Share of aliases made of common words only."""
    lower: float
    """Share of aliases that begin with a lower-case letter."""
    inner_capitals: float
    """Share of aliases of several words with a capital letter after the first word: names rather than terms."""
    digits: float
    """Share of aliases with a digit."""
    distinct: float
    """Distinct names per alias of the sample; below 1 if names are ambiguous."""
    described: float
    """Share of entities with a description."""
    popularities: tuple[float, ...] = field(default=(), repr=False)
    """Popularities of a sample of entities, sorted."""

    def numbers(self) -> tuple[float, ...]:
        """Return the statistics in the order of `STATISTICS`."""
        return tuple(getattr(self, name) for name in STATISTICS)

    def rank(self, popularities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of sampled entities that are less popular; ties count half, so 0.5 if all are equal."""
        if not self.popularities:
            return np.full(len(popularities), 0.5)
        sample = np.array(self.popularities)
        below, up_to = (np.searchsorted(sample, popularities, side) for side in ("left", "right"))
        return np.asarray((below + up_to) / (2 * len(sample)))

    @classmethod
    def of(cls, kb: KnowledgeBase) -> KbProfile:
        """Compute the profile of a KB; takes milliseconds for any size, as entities are sampled."""
        with sqlite_errors(kb.path):
            (last,) = kb.connection.execute("SELECT coalesce(max(num), 0) FROM entities").fetchone()
            numbers = range(1, last + 1, max(1, last // _SAMPLE))
            texts, names, popularities = [], [], []
            for number in numbers:
                row = kb.connection.execute(
                    "SELECT num, description, popularity FROM entities WHERE num >= ? LIMIT 1", (number,)
                ).fetchone()
                texts.append(row[1])
                popularities.append(float(row[2]))
                names += kb.connection.execute("SELECT name FROM aliases WHERE entity = ?", (row[0],)).fetchall()
        names = [name for (name,) in names if name]
        if not names:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
        counts, rarest, common, inner = _describe_aliases(names)
        several = counts > 1
        return cls(
            log_entities=float(np.log10(max(len(kb), 1))),
            aliases=len(names) / len(texts),
            words=float(np.mean(counts)),
            rarest=float(np.mean(rarest)),
            common=float(np.mean(common)),
            lower=float(np.mean([name[0].islower() for name in names])),
            inner_capitals=float(np.mean(inner[several])) if several.any() else 0.5,
            digits=float(np.mean([any(letter.isdigit() for letter in name) for name in names])),
            distinct=len(np.unique(keys(names))) / len(names),
            described=float(np.mean([bool(text) for text in texts])),
            popularities=tuple(sorted(popularities)),
        )


def _describe_aliases(names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.float32], Flags, Flags]:
    """Return for each alias (words, frequency of the rarest, all are common, a later word is capitalised)."""
    joined = "\n".join(name.replace("\n", " ") for name in names)
    words = split(joined)
    lengths = np.fromiter(map(len, names), np.int64, len(names)) + 1
    borders = np.searchsorted(words.starts, np.append(0, np.cumsum(lengths)))
    counts = np.diff(borders)
    frequency, lower = packaged().find(words.hashes)
    is_common = (frequency > _COMMON) & (lower > _LOWER)
    capital = np.array([joined[start].isupper() for start in words.starts.tolist()], np.bool_)
    rarest, common = np.zeros(len(names), np.float32), np.zeros(len(names), np.bool_)
    later = np.zeros(len(names), np.bool_)
    for name in np.flatnonzero(counts).tolist():
        own = slice(int(borders[name]), int(borders[name + 1]))
        rarest[name], common[name] = frequency[own].min(), is_common[own].all()
        later[name] = capital[own][1:].any()
    return counts, rarest, common, later


STATISTICS = tuple(part.name for part in fields(KbProfile) if part.name != "popularities")
"""Names of a profile's statistics, in order."""
