"""How the aliases of a knowledge base look in general: what lets one link scorer serve a KB it has never seen.

A KB of products has rare, capitalised names; an ontology has common words in lower case; an encyclopedia has both.
The same span needs more evidence in one than in another.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from wellread.kb.names import key, split
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.mentions.frequency import packaged

_SAMPLE = 2000
"""Aliases that are looked at, spread evenly over the KB."""
_COMMON, _LOWER = 0.5, 0.5
"""A word is common from this frequency (log10 per million) and share of lower-case occurrences on."""


@dataclass(frozen=True, slots=True)
class KbProfile:
    """Statistics over a sample of a KB's aliases."""

    log_entities: float
    """log10 of the number of entities."""
    aliases: float
    """Aliases of an entity."""
    words: float
    """Words of an alias."""
    rarest: float
    """Mean frequency of the rarest word of an alias (log10 per million)."""
    common: float
    """Share of aliases made of common words only."""
    lower: float
    """Share of aliases that begin with a lower-case letter."""
    inner_capitals: float
    """Share of aliases of several words with a capital letter behind the first word: names rather than terms."""
    digits: float
    """Share of aliases with a digit."""
    distinct: float
    """Distinct names per alias of the sample: less than 1 where names are ambiguous."""
    described: float
    """Share of entities with a description."""

    def numbers(self) -> tuple[float, ...]:
        """Return the statistics in their order."""
        return astuple(self)

    @classmethod
    def of(cls, kb: KnowledgeBase) -> KbProfile:
        """Compute the profile of a KB; some milliseconds, whatever its size."""
        with sqlite_errors(kb.path):
            (last,) = kb.connection.execute("SELECT coalesce(max(rowid), 0) FROM aliases").fetchone()
            step = max(1, last // _SAMPLE)
            wanted = range(1, last + 1, step)
            names = [
                row[0]
                for at in wanted
                for row in kb.connection.execute("SELECT name FROM aliases WHERE rowid >= ? LIMIT 1", (at,))
            ]
            texts = [
                row[0]
                for row in kb.connection.execute(
                    "SELECT description FROM entities WHERE rowid % ? = 0 LIMIT 500", (max(1, len(kb) // 500),)
                )
            ]
        if not names:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
        counts, rarest, common, inner = zip(*map(_look, names), strict=True)
        several = [at for at, count in enumerate(counts) if count > 1]
        return cls(
            log_entities=float(np.log10(max(len(kb), 1))),
            aliases=last / max(len(kb), 1),
            words=float(np.mean(counts)),
            rarest=float(np.mean(rarest)),
            common=float(np.mean(common)),
            lower=float(np.mean([name[0].islower() for name in names])),
            inner_capitals=float(np.mean([inner[at] for at in several])) if several else 0.5,
            digits=float(np.mean([any(letter.isdigit() for letter in name) for name in names])),
            distinct=len({key(name) for name in names}) / len(names),
            described=float(np.mean([bool(text) for text in texts])) if texts else 0.0,
        )


def _look(name: str) -> tuple[int, float, bool, bool]:
    """Return the words of an alias, its rarest word's frequency, if all are common, if a later one has a capital."""
    words = split(name)
    if not len(words.starts):
        return 0, 0.0, False, False
    frequency, lower = packaged().find(words.hashes)
    later = any(name[start].isupper() for start in words.starts[1:].tolist())
    return len(words.starts), float(frequency.min()), bool(((frequency > _COMMON) & (lower > _LOWER)).all()), later
