"""Where the words that a task asks about lie among the pieces of a batch, and among the mentions that it is offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from wellread.mentions.segments import Mark, Segmented, Segmenter
from wellread.nn.infusion import InfusedEncoder
from wellread.tasks.task import Batch

OFFERS = "offers"
"""The keyword of an encoder for mentions and their candidates."""


def pieces_of(one: Segmented, mark: Mark) -> tuple[int, int] | None:
    """The first and the last piece that a mark touches; None where nothing of it is left."""
    here = (one.segment_of == mark.segment) & (one.spans[:, 0] < mark.end) & (one.spans[:, 1] > mark.start)
    touched = np.flatnonzero(here)
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def takes_offers(encoder: InfusedEncoder) -> bool:
    """Whether an infusion of an encoder is told of mentions and candidates."""
    return any(OFFERS in infusion.inputs for infusion in encoder.infusions)  # type: ignore[operator]


def withhold_offers(batch: Batch) -> Batch:
    """A batch for an encoder that takes no offers, though a task does."""
    return replace(batch, knowledge={name: value for name, value in batch.knowledge.items() if name != OFFERS})


def mentions_of(batch: Batch, offers: Mapping[str, Any]) -> Int[Tensor, " mark"]:
    """The mention that each mark of a batch is among those of one KB's offers, by its pieces; -1: none."""
    spans = torch.column_stack((offers["text_of"], offers["spans"])).tolist()
    places: dict[tuple[int, ...], int] = {}
    for place, span in enumerate(spans):
        places.setdefault(tuple(span), place)
    found = []
    for text, one in enumerate(batch.inputs):
        for mark in one.marks:
            pieces = pieces_of(one, mark)
            found.append(-1 if pieces is None else places.get((text, *pieces), -1))
    return torch.tensor(found, dtype=torch.long)


def fits(text: str, segmenter: Segmenter) -> bool:
    """Whether an input of this text loses nothing."""
    if segmenter.longest is None:
        return True
    return len(segmenter.tokenizer.encode(text).ids) <= segmenter.longest
