"""Attention with explicit scores: packed texts in training, and KAM's convolution of scores and maps in one step.

`convolved_attention` is exact and keeps its data in the cache: scores and maps share one buffer, and one convolution
with the folded kernel gives the fused scores. For the backward pass it keeps the probabilities and computes the buffer
again, which is cheaper than keeping it. `packed_attention` is plain attention in training, for texts laid end to end.

Products are written directly to their destination (`_multiply`): the heads of a text are interleaved with its tokens,
and one product of many texts would first copy them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, dropout, pad

from wellread.encoders.private_ops import convolution_backward, softmax_backward

Scores = Float[Tensor, "text head row column"]


def attend_with_scores(
    scores: Scores,
    value: Float[Tensor, "text head column dim"],
    column_mask: Bool[Tensor, "text column"] | None,
    drop: float = 0.0,
) -> tuple[Float[Tensor, "text head row dim"], Scores]:
    """Return values weighted by the softmax of scores over the columns that are not padding, and the weights."""
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
    """Return softmax(S) value with S = kernel * [own · scaling · query key^T + carry · below ; maps], and S itself.

    Rows from `mixed_rows` on have scores, which their neighbours see, but no output. Padding counts as zero in the
    convolution: padded rows of `query` and `key` must be zero, and so must `below` and `maps` there. `column_mask`
    keeps padded columns out of the softmax.
    """
    made: tuple[Tensor, Tensor] = _Convolved.apply(  # type: ignore[no-untyped-call]
        query, key, value, maps, kernel, below, own, carry, column_mask, scaling, drop, mixed_rows
    )
    return made


def packed_attention(
    query: Float[Tensor, "token head dim"],
    key: Float[Tensor, "token head dim"],
    value: Float[Tensor, "token head dim"],
    lengths: Sequence[int],
    *,
    scaling: float,
    drop: float = 0.0,
) -> Float[Tensor, "token head dim"]:
    """Return softmax(scaling · query key^T) value within each text; texts of these lengths are laid end to end."""
    made: Tensor = _Packed.apply(query, key, value, lengths, scaling, drop)  # type: ignore[no-untyped-call]
    return made


def _softmax(scores: Scores, column_mask: Bool[Tensor, "text column"] | None) -> Scores:
    if column_mask is not None:
        scores = scores.masked_fill(~column_mask[:, None, None, :], float("-inf"))
    return torch.softmax(scores, -1)


def drop_weights(weights: Tensor, share: float) -> tuple[Tensor, float]:
    """Return weights with a share of them set to zero, and the factor that makes up for it."""
    kept, growth = draw_kept(weights, share)
    return weights if kept is None else weights * kept, growth


def draw_kept(weights: Tensor, share: float) -> tuple[UInt8[Tensor, "..."] | None, float]:
    """Return 1 where a weight is kept and 0 where it is dropped (None: all are kept), and the factor for those kept.

    Random 16-bit numbers are drawn four at a time, which takes a quarter of the time of `dropout`; the share is met to
    1 in 100,000. Bytes take a quarter of the memory of dropped weights, and bool would be slow to multiply.
    """
    if not share:
        return None, 1.0
    steps = 1 << 16
    drops = round(share * steps)
    drawn = torch.empty((weights.numel() + 3) // 4, dtype=torch.int64, device=weights.device).random_(-(1 << 63), None)
    kept = drawn.view(torch.int16)[: weights.numel()].view(weights.shape) >= drops - steps // 2
    return kept.view(torch.uint8), 1 / (1 - share) if share < 1 else 0.0


def through_softmax(d_dropped: Scores, weights: Scores, dropped: Scores) -> Scores:
    """Return the gradient of scores, from that of the dropped weights (times their factor), which it may overwrite."""
    if dropped is weights:
        return softmax_backward(d_dropped, weights)
    product = d_dropped.mul_(dropped)
    return product.addcmul_(weights, product.sum(-1, keepdim=True), value=-1)


def _multiply(output: Tensor, left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    """Set `output` to alpha · left · right, text by text, and return it."""
    for made, one, other in zip(output.unbind(), left.unbind(), right.unbind(), strict=True):
        made.baddbmm_(one, other, beta=0, alpha=alpha)
    return output


def _token_major(like: Tensor, rows: int) -> Float[Tensor, "text head row dim"]:
    """Return an empty tensor stored position by position, not head by head, as the tokens of a sequence are."""
    texts, heads, _, dim = like.shape
    return like.new_empty(texts, rows, heads, dim).transpose(1, 2)


def _buffer(
    query: Tensor,
    key: Tensor,
    scaling: float,
    maps: Tensor | None,
    below: Tensor | None,
    own: Tensor | None,
    carry: Tensor | None,
) -> Float[Tensor, "text channel row column"]:
    """Return scores and maps as the channels of one image per text."""
    texts, heads, rows, _ = query.shape
    channels = heads + (0 if maps is None else maps.shape[1])
    buffer = query.new_empty(texts, channels, rows, key.shape[2])
    columns = key.transpose(2, 3)
    if below is None:
        _multiply(buffer[:, :heads], query, columns, scaling)
    else:
        alpha, beta = (1.0 if part is None else float(part) for part in (own, carry))
        for text in range(texts):
            scores = buffer[text, :heads]
            torch.baddbmm(below[text], query[text], columns[text], beta=beta, alpha=alpha * scaling, out=scores)
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
        scaling: float,
        drop: float,
        mixed_rows: int | None,
    ) -> tuple[Tensor, Tensor]:
        scores = conv2d(_buffer(query, key, scaling, maps, below, own, carry), kernel, padding=1)
        weights = _softmax(scores[:, :, :mixed_rows], column_mask).to(value.dtype)
        dropped, growth = drop_weights(weights, drop)
        ctx.save_for_backward(query, key, value, maps, kernel, below, own, carry, weights, dropped)
        ctx.scaling, ctx.growth, ctx.dropping = scaling, growth, drop > 0
        ctx.set_materialize_grads(False)
        return _multiply(_token_major(value, weights.shape[2]), dropped, value, growth), scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor | None, d_scores: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, maps, kernel, below, own, carry, weights, dropped = ctx.saved_tensors
        d_value = None
        if d_mixed is not None:
            d_value = _multiply(_token_major(value, value.shape[2]), dropped.transpose(2, 3), d_mixed, ctx.growth)
            through = _multiply(torch.empty_like(weights), d_mixed, value.transpose(2, 3), ctx.growth)
            through = through_softmax(through, weights, dropped if ctx.dropping else weights)
            if more := query.shape[2] - through.shape[2]:
                through = pad(through, (0, 0, 0, more))
            d_scores = through if d_scores is None else d_scores + through
        if d_scores is None:
            return (None,) * 12
        buffer = _buffer(query, key, ctx.scaling, maps, below, own, carry)
        d_buffer, d_kernel = convolution_backward(d_scores, buffer, kernel)
        heads = query.shape[1]
        d_fused = d_buffer[:, :heads]
        d_maps = d_buffer[:, heads:] if ctx.needs_input_grad[3] else None
        d_below = d_own = d_carry = None
        if below is not None:
            if ctx.needs_input_grad[6]:
                d_own = (d_fused * (query @ key.transpose(2, 3))).sum() * ctx.scaling
            d_carry = (d_fused * below).sum()
            d_below = d_fused * carry
            d_fused = d_fused if own is None else d_fused * own
        d_query = _multiply(_token_major(query, query.shape[2]), d_fused, key, ctx.scaling)
        d_key = _multiply(_token_major(key, key.shape[2]), d_fused.transpose(2, 3), query, ctx.scaling)
        return d_query, d_key, d_value, d_maps, d_kernel, d_below, d_own, d_carry, None, None, None, None


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scaling: float, drop: float
    ) -> Tensor:
        mixed, kept, growth = torch.empty_like(value), [], 1.0
        for queries, keys, values, output in _texts(lengths, query, key, value, mixed):
            scores = query.new_empty(*queries.shape[:2], keys.shape[1])
            weights = scores.baddbmm_(queries, keys.transpose(1, 2), beta=0, alpha=scaling).softmax(-1)
            dropped, growth = drop_weights(weights, drop)
            output.baddbmm_(dropped, values, beta=0, alpha=growth)
            kept += [weights, dropped]
        ctx.save_for_backward(query, key, value, *kept)
        ctx.lengths, ctx.scaling, ctx.growth, ctx.dropping = lengths, scaling, growth, drop > 0
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        made = [torch.empty_like(part) for part in (query, key, value)]
        texts = _texts(ctx.lengths, query, key, value, d_mixed, *made)
        for text, (queries, keys, values, d_output, d_queries, d_keys, d_values) in enumerate(texts):
            weights, dropped = kept[2 * text : 2 * text + 2]
            d_values.baddbmm_(dropped.transpose(1, 2), d_output, beta=0, alpha=ctx.growth)
            d_scores = torch.empty_like(weights).baddbmm_(d_output, values.transpose(1, 2), beta=0, alpha=ctx.growth)
            d_scores = through_softmax(d_scores, weights, dropped if ctx.dropping else weights)
            d_queries.baddbmm_(d_scores, keys, beta=0, alpha=ctx.scaling)
            d_keys.baddbmm_(d_scores.transpose(1, 2), queries, beta=0, alpha=ctx.scaling)
        return *made, None, None, None


def _texts(lengths: Sequence[int], *packed: Float[Tensor, "token head dim"]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the part of each text in every tensor, head by head."""
    return zip(*(part.transpose(0, 1).split_with_sizes(list(lengths), 1) for part in packed), strict=True)
