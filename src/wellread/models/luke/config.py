"""Settings of a LUKE infusion."""

from __future__ import annotations

from dataclasses import dataclass

from wellread.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LukeConfig:
    """The entities that a model knows, and how they are asked."""

    entities: int
    """Rows of the entity table, with those of [PAD], [UNK], [MASK] and [MASK2]."""
    dim: int = 256
    """How wide a row is."""
    aware: bool = True
    """Entity-aware attention; else words and entities ask with the encoder's own queries."""
    seen: bool = True
    """Whether words look at entities, as in the paper. If not, words are read as without entities, however many these
    are, and entities look at words and each other."""
    longest: int = 30
    """A mention's position is the mean over so many of its pieces, from its first on."""
    predicts: bool = False
    """Whether there is a head that tells masked entities (`Luke.prediction`)."""
    masks: tuple[int, int] = (2, 3)
    """The rows of [MASK] and [MASK2]: as a vocabulary of ours has them; else `EntityVocabulary.masks`."""

    def __post_init__(self) -> None:
        for name in ("entities", "dim", "longest"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1")
        if min(self.masks) < 0:
            raise UsageError(f"masks are the rows {self.masks}; expected those of [MASK] and [MASK2], from 0")
