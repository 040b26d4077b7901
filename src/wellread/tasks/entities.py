"""Entities as an encoder takes them beside the words of a text (LUKE): does it, and what tasks tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wellread.nn.infusion import InfusedEncoder

ENTITIES = "entities"
"""The keyword of an encoder for entities, and the name by which their states are told."""


def takes_entities(encoder: InfusedEncoder) -> bool:
    """Whether an infusion of an encoder takes entities as positions."""
    infusions: Iterable[Any] = encoder.infusions
    return any(ENTITIES in infusion.inputs for infusion in infusions)


def entity_masks(encoder: InfusedEncoder) -> tuple[int, int]:
    """The rows of [MASK] and [MASK2] in the encoder's entity table."""
    infusions: Iterable[Any] = encoder.infusions
    taking = next(infusion for infusion in infusions if ENTITIES in infusion.inputs)
    mask, other = getattr(taking.config, "masks", (2, 3))
    return int(mask), int(other)
