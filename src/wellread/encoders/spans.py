"""All spans of packed texts at once: their scores and their mean states, by cumulative sums.

A span is (first piece, width - 1): row i, column w of a (piece, width) tensor is the span of pieces i … i + w.
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
    """True for spans of at most `longest` pieces that stay in their text and hold no special piece.

    `begins_mask` and `ends_mask` leave only those whose first and last piece may be one, e.g. to keep words whole.
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
    """`start_i + end_j + sum(inside_i … inside_j)` for every span (ELQ, section 4.1).

    The sums run over the whole batch in double precision, so that a text's scores do not depend on its neighbours.
    What crosses the end of a text is a number without a meaning; `span_mask` says which spans are real.
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
    """The mean state of pieces first … last of each mention."""
    sums = pad(states.double().cumsum(0), (0, 0, 1, 0))
    widths = (lasts - firsts + 1)[:, None]
    return ((sums[lasts + 1] - sums[firsts]) / widths).to(states.dtype)
