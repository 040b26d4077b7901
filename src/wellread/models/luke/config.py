"""Settings of a LUKE infusion."""

from __future__ import annotations

from dataclasses import dataclass

from wellread.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LukeConfig:
    """Size of the entity table and kind of attention of a LUKE infusion."""

    entities: int
    """Rows of the entity table, including those of [PAD], [UNK], [MASK] and [MASK2]."""
    dim: int = 256
    """Width of a row; rows are projected to the encoder's hidden size if the two differ."""
    aware: bool = True
    """Entity-aware attention with four query matrices; False uses the encoder's own query for every pair."""
    seen: bool = True
    """Words attend to entities, as in the paper. If False, words attend to words only and entities to both, so that the
    states of words do not depend on the entities.
    """
    longest: int = 30
    """Maximum number of tokens of a mention that its position embedding is averaged over, counted from the first."""
    predicts: bool = False
    """Add the head that predicts masked entities (`Luke.prediction`)."""
    masks: tuple[int, int] = (2, 3)
    """Rows of [MASK] and [MASK2]; the default is that of vocabularies built here, see `EntityVocabulary.masks` for
    others."""

    def __post_init__(self) -> None:
        for name in ("entities", "dim", "longest"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1")
        if min(self.masks) < 0:
            raise UsageError(f"masks are the rows {self.masks}; expected those of [MASK] and [MASK2], counted from 0")
