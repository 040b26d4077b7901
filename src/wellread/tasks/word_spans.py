"""Marked words of an input: their tokens, their mentions among the candidates, and splits of long texts."""

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
"""Encoder keyword for mentions and their candidates."""


def tokens_of_words(one: Tokenization, mark: Mark) -> tuple[int, int] | None:
    """Return the first and last token that a mark overlaps; None if it was truncated."""
    here = (one.segment_of == mark.segment) & (one.spans[:, 0] < mark.end) & (one.spans[:, 1] > mark.start)
    touched = np.flatnonzero(here)
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def takes_candidates(encoder: InfusedEncoder) -> bool:
    """Return True if an infusion of the encoder takes mentions and candidates."""
    return any(CANDIDATES in infusion.inputs for infusion in encoder.infusions)  # type: ignore[operator]


def withhold_candidates(batch: Batch) -> Batch:
    """Remove the candidates from a batch, for an encoder that does not take them."""
    return replace(batch, knowledge={name: value for name, value in batch.knowledge.items() if name != CANDIDATES})


def mentions_of(batch: Batch, candidates: Mapping[str, Any]) -> Int[Tensor, " mark"]:
    """Return the index of each mark among the candidates' mentions, matched by token span; -1 if absent."""
    spans = torch.column_stack((candidates["text_of"], candidates["spans"])).tolist()
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
    """Return True if the text fits in one input."""
    if segmenter.longest is None:
        return True
    return len(encode_many(segmenter.tokenizer, [text])[0].ids) <= segmenter.longest


def halve(text: str, spans: Sequence[tuple[int, int]], segmenter: TextTokenizer) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the parts of a text that fit in an input: halves, or halves of these, in order.

    A text is split at the blank nearest to its middle that is outside all spans, and the blank is dropped; a part
    without such a blank stays whole.
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
