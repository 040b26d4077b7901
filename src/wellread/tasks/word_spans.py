"""The words that a task asks about: their pieces in a batch, the mentions that they are offered as, parts that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.tasks.task import Batch
from wellread.text.tokenization import Mark, TextTokenizer, Tokenization, encode_many

CANDIDATES = "offers"
"""The keyword of an encoder for mentions and their candidates."""


def tokens_of_words(one: Tokenization, mark: Mark) -> tuple[int, int] | None:
    """The first and the last piece that a mark touches; None where nothing of it is left."""
    here = (one.segment_of == mark.segment) & (one.spans[:, 0] < mark.end) & (one.spans[:, 1] > mark.start)
    touched = np.flatnonzero(here)
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def takes_candidates(encoder: InfusedEncoder) -> bool:
    """Whether an infusion of an encoder is told of mentions and candidates."""
    return any(CANDIDATES in infusion.inputs for infusion in encoder.infusions)  # type: ignore[operator]


def withhold_candidates(batch: Batch) -> Batch:
    """A batch for an encoder that takes no offers, though a task does."""
    return replace(batch, knowledge={name: value for name, value in batch.knowledge.items() if name != CANDIDATES})


def mentions_of(batch: Batch, offers: Mapping[str, Any]) -> Int[Tensor, " mark"]:
    """The mention that each mark of a batch is among those of one KB's offers, by its pieces; -1: none."""
    spans = torch.column_stack((offers["text_of"], offers["spans"])).tolist()
    places: dict[tuple[int, ...], int] = {}
    for place, span in enumerate(spans):
        places.setdefault(tuple(span), place)
    found = []
    for text, one in enumerate(batch.inputs):
        for mark in one.marks:
            tokens = tokens_of_words(one, mark)
            found.append(-1 if tokens is None else places.get((text, *tokens), -1))
    return torch.tensor(found, dtype=torch.long)


def fits(text: str, segmenter: TextTokenizer) -> bool:
    """Whether an input of this text loses nothing."""
    if segmenter.longest is None:
        return True
    return len(encode_many(segmenter.tokenizer, [text])[0].ids) <= segmenter.longest


def halve(text: str, spans: Sequence[tuple[int, int]], segmenter: TextTokenizer) -> Iterator[tuple[int, int]]:
    """From where to where the parts of a text go that fit an input: halves, or halves of these, in their order.

    A text is parted at the blank nearest to its middle that is in no span, and the blank left out; what has no such
    blank stays as it is.
    """
    inside = np.zeros(len(text) + 1, np.bool_)
    for start, end in spans:
        inside[start:end] = True

    def parts(start: int, end: int) -> Iterator[tuple[int, int]]:
        middle = None
        if not fits(text[start:end], segmenter):
            gaps = (at for at in range(start + 1, end - 1) if text[at].isspace() and not inside[at])
            middle = min(gaps, key=lambda at: abs(2 * at - start - end), default=None)
        if middle is None:
            yield start, end
            return
        yield from parts(start, middle)
        yield from parts(middle + 1, end)

    return parts(0, len(text))
