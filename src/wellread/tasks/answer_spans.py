"""Answers that are spans of a passage: start and end scores of tokens, and spans in characters.

A window is an input of two segments, a question and part of a passage. Every token of the passage may start or end an
answer; the first token of the window stands for "no answer here". All other tokens are excluded from the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import pad

from wellread.encoders.packing import Packing
from wellread.tasks.task import in_full
from wellread.text.segments import Segmented
from wellread.text.tokenization import encode_many

_PASSAGE = 1
"""Segment number of the passage."""


@dataclass(frozen=True, slots=True)
class Span:
    """Character span of a passage, with its score as an answer."""

    score: float
    start: int
    end: int


class SpanHead(nn.Module):
    """Two scores per token: start and end of an answer."""

    def __init__(self, width: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, 2)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, states: Float[Tensor, "token dim"], inputs: Sequence[Segmented], packing: Packing
    ) -> tuple[Float[Tensor, "input width"], Float[Tensor, "input width"]]:
        """Return the scores of starts and ends, window by window; -inf where no answer can be."""
        there = np.concatenate([answerable(one) for one in inputs])
        there[packing.starts.cpu().numpy()] = True
        mask = packing.spread(torch.from_numpy(there).to(states.device))
        both = packing.spread(in_full(self.out(self.dropout(states)))).masked_fill(~mask[:, :, None], -math.inf)
        begins, ends = both.unbind(2)
        return begins, ends


def answerable(window: Segmented) -> NDArray[np.bool_]:
    """Return True for the tokens that an answer may start or end with: those of the passage that are not blank."""
    return np.asarray((window.segment_of == _PASSAGE) & (window.spans[:, 0] < window.spans[:, 1]))


def gold_tokens(windows: Sequence[Segmented], start: int, end: int) -> list[tuple[int, int] | None]:
    """Return first and last token of a character span in each window that contains the whole span, else None."""
    touched = [np.flatnonzero(answerable(one) & (one.spans[:, 0] < end) & (one.spans[:, 1] > start)) for one in windows]
    reach = [
        (int(one.spans[some[0], 0]), int(one.spans[some[-1], 1]))
        for one, some in zip(windows, touched, strict=True)
        if len(some)
    ]
    if not reach:
        return [None] * len(windows)
    # Compare with the union over all windows: a tokenizer may drop characters at the span's ends.
    first, last = min(low for low, _ in reach), max(high for _, high in reach)
    return [
        (int(some[0]), int(some[-1]))
        if len(some) and one.spans[some[0], 0] == first and one.spans[some[-1], 1] == last
        else None
        for one, some in zip(windows, touched, strict=True)
    ]


def best_spans(
    begins: Float[Tensor, "input width"],
    ends: Float[Tensor, "input width"],
    inputs: Sequence[Segmented],
    *,
    longest: int,
    count: int,
) -> list[tuple[Span, ...]]:
    """Return the best spans of each window by start + end score, of at most `longest` tokens; never "no answer"."""
    begins = begins.clone()
    begins[:, 0] = -math.inf
    # pairs[w, i, d]: starts at token i, ends at token i + d
    pairs = begins[:, :, None] + pad(ends, (0, longest - 1), value=-math.inf).unfold(1, longest, 1)
    flat = pairs.flatten(1)
    scores, places = (part.tolist() for part in flat.topk(min(count, flat.shape[1]), dim=1))
    found = []
    for one, values, chosen in zip(inputs, scores, places, strict=True):
        tokens = [(value, *divmod(place, longest)) for value, place in zip(values, chosen, strict=True)]
        spans = [
            Span(value, int(one.spans[first, 0]), int(one.spans[first + more, 1]))
            for value, first, more in tokens
            if value > -math.inf
        ]
        found.append(tuple(spans))
    return found


def shorten(tokenizer: Tokenizer, questions: Sequence[str], most: int) -> list[str]:
    """Truncate questions to at most `most` tokens, so that there is space for the passage."""
    codes = encode_many(tokenizer, questions, special=False)
    return [
        question if len(code) <= most else question[: code.offsets[most - 1][1]]
        for question, code in zip(questions, codes, strict=True)
    ]
