"""Scores and mean states of all spans of packed texts, by cumulative sums.

A span is (first token, width - 1): row i, column w of a (token, width) tensor is the span of tokens i … i + w.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from wellread.encoders.packing import Packing


def span_mask(
    packing: Packing,
    special_mask: Bool[Tensor, " token"],
    longest: int,
    *,
    begins_mask: Bool[Tensor, " token"] | None = None,
    ends_mask: Bool[Tensor, " token"] | None = None,
) -> Bool[Tensor, "token width"]:
    """Return True for spans of at most `longest` tokens that are within one text and contain no special token.

    `begins_mask` and `ends_mask` restrict the first and the last token of a span, e.g. to keep words whole.
    """
    tokens = len(special_mask)
    specials = pad(special_mask.long().cumsum(0), (1, 0))
    firsts = torch.arange(tokens)[:, None]
    lasts = firsts + torch.arange(longest)
    ends = (packing.starts + packing.lengths)[packing.text_of][:, None]
    mask = lasts < ends
    lasts = lasts.clamp(max=tokens - 1)
    mask &= specials[lasts + 1] == specials[firsts]
    if begins_mask is not None:
        mask &= begins_mask[:, None]
    return mask if ends_mask is None else mask & ends_mask[lasts]


def span_scores(
    start: Float[Tensor, " token"], end: Float[Tensor, " token"], inside: Float[Tensor, " token"], longest: int
) -> Float[Tensor, "token width"]:
    """Return `start_i + end_j + sum(inside_i … inside_j)` for every span (ELQ, section 4.1).

    The sums run over the whole batch in double precision, so that a text's scores do not depend on its neighbours.
    Spans that cross the end of a text have meaningless scores; `span_mask` marks the valid ones.
    """
    tokens = len(start)
    sums = pad(inside.double().cumsum(0), (1, 0))
    firsts = torch.arange(tokens)[:, None]
    lasts = (firsts + torch.arange(longest)).clamp(max=tokens - 1)
    within = (sums[lasts + 1] - sums[firsts]).to(start.dtype)
    return start[:, None] + end[lasts] + within


def span_means(
    states: Float[Tensor, "token dim"], firsts: Int[Tensor, " mention"], lasts: Int[Tensor, " mention"]
) -> Float[Tensor, "mention dim"]:
    """Return the mean state of tokens first … last of each mention."""
    sums = pad(states.double().cumsum(0), (0, 0, 1, 0))
    widths = (lasts - firsts + 1)[:, None]
    return ((sums[lasts + 1] - sums[firsts]) / widths).to(states.dtype)
