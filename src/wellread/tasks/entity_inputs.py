"""Entity tokens for encoders that take them (LUKE), as tasks on mentions add them.

Such a task puts a [MASK] entity at each mention and classifies its state. Other encoders use the word tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.models.luke.model import ENTITIES
from wellread.tasks.task import Batch


def masks_of(encoder: InfusedEncoder) -> tuple[int, int] | None:
    """Return the rows of [MASK] and [MASK2] in the encoder's entity table; None if it has no entity tokens."""
    infusions: Iterable[Any] = encoder.infusions
    taking = next((infusion for infusion in infusions if ENTITIES in infusion.inputs), None)
    return None if taking is None else taking.masks


def with_entities(
    batch: Batch, text_of: Int[Tensor, " entity"], ids: Int[Tensor, " entity"], spans: Int[Tensor, "entity 2"]
) -> Batch:
    """Add entity tokens to a batch; their segment type is that of the first token of their span.

    Spans are first and last token within a text, from 0; `text_of` is ascending.
    """
    types = batch.types[batch.packing.starts[text_of] + spans[:, 0]]
    entities: Any = {"text_of": text_of, "ids": ids, "spans": spans, "types": types}
    return replace(batch, knowledge={**batch.knowledge, ENTITIES: entities})
