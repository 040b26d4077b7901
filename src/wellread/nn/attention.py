"""Attention whose scores are seen: mixed text by text, and convolved with maps in one step.

`convolved_attention` is exact and made for the cache: scores and maps lie in one buffer, one convolution with the
folded kernel gives the fused scores. For the backward pass it keeps the probabilities and makes the buffer anew, which
is cheaper than to keep it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, dropout, pad

Scores = Float[Tensor, "text head row column"]


def mix(
    scores: Scores,
    value: Float[Tensor, "text head column dim"],
    column_mask: Bool[Tensor, "text column"] | None,
    drop: float = 0.0,
) -> tuple[Float[Tensor, "text head row dim"], Scores]:
    """Values weighed by the softmax of scores over the columns that are there; also the weights themselves."""
    weights = _softmax(scores, column_mask)
    return dropout(weights, drop) @ value, weights


def convolved_attention(
    query: Float[Tensor, "text head row dim"],
    key: Float[Tensor, "text head column dim"],
    value: Float[Tensor, "text head column dim"],
    maps: Float[Tensor, "text map row column"] | None,
    kernel: Float[Tensor, "head channel 3 3"],
    *,
    scaling: float,
    mixed_rows: int | None = None,
    below: Scores | None = None,
    own: Tensor | None = None,
    carry: Tensor | None = None,
    column_mask: Bool[Tensor, "text column"] | None = None,
    drop: float = 0.0,
) -> tuple[Float[Tensor, "text head mixed dim"], Scores]:
    """Softmax(kernel * [own · scaling · query key^T + carry · below ; maps]) value, and the scores before the softmax.

    Rows from `mixed_rows` on have scores, which their neighbours see, but nothing is mixed for them. Padding counts as
    zero in the convolution: rows of `query` and `key` that are not there must be zero, and so must `below` and `maps`.
    `column_mask` keeps such columns out of the softmax.
    """
    query = query * scaling
    made: tuple[Tensor, Tensor] = _Convolved.apply(  # type: ignore[no-untyped-call]
        query, key, value, maps, kernel, below, own, carry, column_mask, drop, mixed_rows
    )
    return made


def _softmax(scores: Scores, column_mask: Bool[Tensor, "text column"] | None) -> Scores:
    if column_mask is not None:
        scores = scores.masked_fill(~column_mask[:, None, None, :], float("-inf"))
    return torch.softmax(scores, -1)


def _buffer(
    query: Tensor, key: Tensor, maps: Tensor | None, below: Tensor | None, own: Tensor | None, carry: Tensor | None
) -> Float[Tensor, "text channel row column"]:
    """Scores and maps as the channels of one picture a text."""
    texts, heads, rows, _ = query.shape
    channels = heads + (0 if maps is None else maps.shape[1])
    buffer = query.new_empty(texts, channels, rows, key.shape[2])
    for text in range(texts):
        scores, columns = buffer[text, :heads], key[text].transpose(1, 2)
        if below is None:
            torch.bmm(query[text], columns, out=scores)
        else:
            alpha, beta = (1.0 if part is None else float(part) for part in (own, carry))
            torch.baddbmm(below[text], query[text], columns, beta=beta, alpha=alpha, out=scores)
    if maps is not None:
        buffer[:, heads:] = maps
    return buffer


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        maps: Tensor | None,
        kernel: Tensor,
        below: Tensor | None,
        own: Tensor | None,
        carry: Tensor | None,
        column_mask: Tensor | None,
        drop: float,
        mixed_rows: int | None,
    ) -> tuple[Tensor, Tensor]:
        scores = conv2d(_buffer(query, key, maps, below, own, carry), kernel, padding=1)
        weights = _softmax(scores[:, :, :mixed_rows], column_mask)
        kept = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - drop) if drop else None
        ctx.save_for_backward(query, key, value, maps, kernel, below, own, carry, weights, kept)
        ctx.drop = drop
        ctx.set_materialize_grads(False)
        return _drop(weights, kept, drop) @ value, scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor | None, d_scores: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, maps, kernel, below, own, carry, weights, kept = ctx.saved_tensors
        d_value = None
        if d_mixed is not None:
            d_value = _drop(weights, kept, ctx.drop).transpose(2, 3) @ d_mixed
            d_weights = _drop(d_mixed @ value.transpose(2, 3), kept, ctx.drop)
            through = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            through = pad(through, (0, 0, 0, query.shape[2] - through.shape[2]))
            d_scores = through if d_scores is None else d_scores + through
        if d_scores is None:
            return (None,) * 11
        buffer = _buffer(query, key, maps, below, own, carry)
        d_buffer, d_kernel, _ = torch.ops.aten.convolution_backward(
            d_scores, buffer, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, (True, True, False)
        )
        heads = query.shape[1]
        d_fused = d_buffer[:, :heads]
        d_maps = d_buffer[:, heads:] if ctx.needs_input_grad[3] else None
        d_below = d_own = d_carry = None
        if below is not None:
            if ctx.needs_input_grad[6]:
                d_own = (d_fused * (query @ key.transpose(2, 3))).sum()
            d_carry = (d_fused * below).sum()
            d_below = d_fused * carry
            d_fused = d_fused if own is None else d_fused * own
        d_query, d_key = d_fused @ key, d_fused.transpose(2, 3) @ query
        return d_query, d_key, d_value, d_maps, d_kernel, d_below, d_own, d_carry, None, None, None


def _drop(weights: Tensor, kept: Tensor | None, drop: float) -> Tensor:
    return weights if kept is None else weights * kept / (1 - drop)
