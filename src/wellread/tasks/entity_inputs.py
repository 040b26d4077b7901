"""Entities as an encoder takes them beside the words of a text (LUKE): does it, and what tasks tell it.

A task that asks about mentions gives each a [MASK] entity at its place, and judges it by that entity's state. With an
encoder that takes none, the same task goes by the pieces alone.
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
    """The rows of [MASK] and [MASK2] in the encoder's entity table; None where it takes no entities."""
    infusions: Iterable[Any] = encoder.infusions
    taking = next((infusion for infusion in infusions if ENTITIES in infusion.inputs), None)
    return None if taking is None else taking.masks


def with_entities(
    batch: Batch, text_of: Int[Tensor, " entity"], ids: Int[Tensor, " entity"], spans: Int[Tensor, "entity 2"]
) -> Batch:
    """A batch whose texts have these entities; they are of the type that the first piece of their span is of.

    Spans are first and last piece in a text of the batch, from 0; `text_of` ascends.
    """
    types = batch.types[batch.packing.starts[text_of] + spans[:, 0]]
    told: Any = {"text_of": text_of, "ids": ids, "spans": spans, "types": types}
    return replace(batch, knowledge={**batch.knowledge, ENTITIES: told})
