"""Results of mapping: a string with the entities it may name, best first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

THRESHOLD = 0.5
"""Default probability that the best match must reach."""


@dataclass(frozen=True, slots=True)
class EntityMatch:
    """An entity that a string may name.

    `score` is the probability that it is the right one. `name` is the alias that is most similar to the string, and
    `found_by` the similarity: "exact", "case" (case or diacritics), "punctuation", "order" (of the words), "initials",
    "typo", "words" (some words, or abbreviated ones) or "meaning" (no similar name).
    """

    entity: str
    title: str
    score: float
    name: str
    found_by: str


@dataclass(frozen=True, slots=True)
class MappedString:
    """A string and its best matches; it is mapped if the first one has at least the threshold's score."""

    text: str
    matches: tuple[EntityMatch, ...] = ()
    threshold: float = THRESHOLD

    @property
    def match(self) -> EntityMatch | None:
        """The match, None if the string is unmatched."""
        return self.matches[0] if self.matches and self.matches[0].score >= self.threshold else None

    @property
    def entity(self) -> str | None:
        """Id of the matched entity, None if the string is unmatched."""
        return self.match.entity if self.match else None

    @property
    def title(self) -> str | None:
        """Title of the matched entity."""
        return self.match.title if self.match else None

    @property
    def score(self) -> float | None:
        """Score of the match."""
        return self.match.score if self.match else None

    @property
    def found_by(self) -> str | None:
        """Similarity by which the match was found."""
        return self.match.found_by if self.match else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts: the text, its match (or nulls), and the best matches as candidates."""
        return {
            "text": self.text,
            "entity": self.entity,
            "title": self.title,
            "score": self.score,
            "found_by": self.found_by,
            "candidates": [asdict(match) for match in self.matches],
        }
