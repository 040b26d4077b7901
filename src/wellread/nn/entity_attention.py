"""Attention of texts with entities: words and entities ask each other with queries of their own.

Yamada et al. 2020, section 3.2. Lines are the pieces of all texts, then the entities of all texts, each text by text.
A position meets the keys of words with one query and those of entities with another; keys, values and the softmax are
shared. Both ways to compute it are exact, and nothing is copied together, filled up or masked in them:

- To learn, the scores of a text are one matrix of four blocks, each written where it belongs, and one softmax goes over
  it. For the backward pass its probabilities are kept.
- Else PyTorch's fused attention goes over words and over entities, and what both found is weighed by the sums of their
  exponentials. That is faster by a third, but knows no dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from wellread.nn.attention import drop_weights, through_softmax

Line = Float[Tensor, "position head dim"]
_BLOCKS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Who asks whom: 0 words, 1 entities."""


@dataclass(frozen=True, slots=True)
class Queries:
    """What the words and the entities of all texts ask each other."""

    words: Line
    """Of words, for words."""
    entities: Line
    """Of entities, for words."""
    words_to_entities: Line | None = None
    """Of words, for entities; None: the same as for words."""
    entities_to_entities: Line | None = None

    def lines(self) -> tuple[Line, Line | None]:
        """The queries of all positions for words, and those for entities if they are others."""
        first = torch.cat((self.words, self.entities))
        if self.words_to_entities is None or self.entities_to_entities is None:
            return first, None
        return first, torch.cat((self.words_to_entities, self.entities_to_entities))


def entity_attention(
    asks: Queries,
    key: Line,
    value: Line,
    words: Sequence[int],
    entities: Sequence[int],
    *,
    scaling: float,
    drop: float = 0.0,
) -> Line:
    """Softmax(scaling · queries keys^T) value within each text, which has so many words and entities."""
    parts = (asks.words, asks.entities, asks.words_to_entities, asks.entities_to_entities, key, value)
    learned = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)
    if not learned and not drop and key.device.type == "cpu":
        return _merge(asks, key, value, list(words), list(entities), scaling)
    made: Tensor = _Entities.apply(  # type: ignore[no-untyped-call]
        asks.words,
        asks.words if asks.words_to_entities is None else asks.words_to_entities,
        asks.entities,
        asks.entities if asks.entities_to_entities is None else asks.entities_to_entities,
        key,
        value,
        list(words),
        list(entities),
        scaling,
        drop,
    )
    return made


def _merge(
    asks: Queries, key: Line, value: Line, words: list[int], entities: list[int], scaling: float
) -> Float[Tensor, "position head dim"]:
    """Words and entities apart, and then together."""
    mixed, counts = torch.empty_like(value), (words, entities)
    others = (asks.words_to_entities, asks.entities_to_entities)
    queries = [_cut(line, some) for line, some in zip((asks.words, asks.entities), counts, strict=True)]
    seconds = [
        queries[who] if line is None else _cut(line, some)
        for who, (line, some) in enumerate(zip(others, counts, strict=True))
    ]
    keys, values, into = (_cut_both(line, counts) for line in (key, value, mixed))
    for text, count in enumerate(entities):
        for who in (0, 1) if count else (0,):
            found, weight = _fused(queries[who][text], keys[0][text], values[0][text], scaling)
            if count:
                more, other = _fused(seconds[who][text], keys[1][text], values[1][text], scaling)
                found = more.lerp_(found, (weight - other).sigmoid_().to(found.dtype)[..., None])
            into[who][text].copy_(found)
    return mixed


def _fused(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attention head by head, and the logarithm of the sum of each row's exponentials."""
    parts = (part[None] for part in (query, key, value))
    mixed, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts, scale=scaling)
    return mixed[0], weight[0]


class _Asking:
    """Self-attention of transformers that projects for each position what it needs; mixed into that of a family."""

    def forward(self, hidden_states: Tensor, *args: Any, at: Any = None, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """As its own; where entities ask in their own way, its queries are made of words alone."""
        if at is None or not at.asks:
            made: tuple[Tensor, Tensor | None] = super().forward(hidden_states, *args, at=at, **kwargs)  # type: ignore[misc]
            return made
        own: Any = self
        states, shape = hidden_states.squeeze(0), (own.num_attention_heads, own.attention_head_size)
        parts = at.split(states)
        lines = (line.unflatten(-1, shape) for line in (own.query(parts[0]), own.key(states), own.value(states)))
        dropout = own.dropout.p if own.training else 0.0
        mixed: Tensor = at.attend_as_asked(parts, *lines, scaling=shape[1] ** -0.5, dropout=dropout)
        return mixed.flatten(-2)[None], None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """By the class of transformers, which pickle can find; that of `asking_class` is made where it is needed."""
        plain = next(kind for kind in type(self).__mro__ if not issubclass(kind, _Asking))
        return _make_asking, (plain,), self.__dict__


def _make_asking(kind: type) -> Any:
    made: Any = asking_class(kind)
    return made.__new__(made)


@cache
def asking_class(kind: type) -> type:
    """The class of a self-attention that leaves it to entities how they ask."""
    return kind if issubclass(kind, _Asking) else type(kind.__name__, (_Asking, kind), {"__module__": __name__})


class _Entities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        words: Tensor,
        words_to_entities: Tensor,
        entities: Tensor,
        entities_to_entities: Tensor,
        key: Tensor,
        value: Tensor,
        word_counts: list[int],
        entity_counts: list[int],
        scaling: float,
        drop: float,
    ) -> Tensor:
        counts = (word_counts, entity_counts)
        lines = (words, words_to_entities, entities, entities_to_entities)
        mixed, kept, growth = torch.empty_like(value), [], 1.0
        asks = [_cut(line, counts[who]) for line, (who, _) in zip(lines, _BLOCKS, strict=True)]
        keys, values, into = (_cut_both(line, counts) for line in (key, value, mixed))
        for text, places in enumerate(_places(counts)):
            scores = key.new_empty(key.shape[1], places[1].stop, places[1].stop)
            for ask, (row, column) in zip(asks, _BLOCKS, strict=True):
                block = scores[:, places[row], places[column]]
                _multiply(block, ask[text], keys[column][text].transpose(1, 2), scaling)
            weights = scores.softmax(-1)
            dropped, growth = drop_weights(weights, drop)
            for row, column in _BLOCKS:
                block = dropped[:, places[row], places[column]]
                _multiply(into[row][text], block, values[column][text], growth, more=column == 1)
            kept += [weights, dropped]
        ctx.save_for_backward(*lines, key, value, *kept)
        ctx.counts, ctx.scaling, ctx.growth, ctx.dropping = counts, scaling, growth, drop > 0
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor) -> tuple[Tensor | None, ...]:
        *lines, key, value = (saved := ctx.saved_tensors)[:6]  # which may be asked for but once (checkpointing)
        kept, counts = saved[6:], ctx.counts
        made = [torch.empty_like(part) for part in (*lines, key, value)]
        asks, d_asks = (
            [_cut(line, counts[who]) for line, (who, _) in zip(some, _BLOCKS, strict=True)]
            for some in (lines, made[:4])
        )
        parts = (_cut_both(line, counts) for line in (key, value, d_mixed, *made[4:]))
        keys, values, d_into, d_keys, d_values = parts
        for text, places in enumerate(_places(counts)):
            weights, dropped = kept[2 * text : 2 * text + 2]
            through = torch.empty_like(weights)
            for row, column in _BLOCKS:
                where, d_rows = (slice(None), places[row], places[column]), d_into[row][text]
                _multiply(through[where], d_rows, values[column][text].transpose(1, 2), ctx.growth)
                turned = dropped[where].transpose(1, 2)
                _multiply(d_values[column][text], turned, d_rows, ctx.growth, more=row == 1)
            through = through_softmax(through, weights, dropped if ctx.dropping else weights)
            for ask, d_ask, (row, column) in zip(asks, d_asks, _BLOCKS, strict=True):
                block = through[:, places[row], places[column]]
                _multiply(d_ask[text], block, keys[column][text], ctx.scaling)
                _multiply(d_keys[column][text], block.transpose(1, 2), ask[text], ctx.scaling, more=row == 1)
        return *made, None, None, None, None


def _places(counts: tuple[list[int], list[int]]) -> list[tuple[slice, slice]]:
    """Where the words and the entities of each text lie among its rows, and among its columns."""
    return [(slice(0, words), slice(words, words + more)) for words, more in zip(*counts, strict=True)]


def _cut(line: Line, counts: list[int]) -> tuple[Tensor, ...]:
    """The part of each text, head by head."""
    return line.transpose(0, 1).split_with_sizes(counts, 1)


def _cut_both(line: Line, counts: tuple[list[int], list[int]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The words of each text, and its entities."""
    parts = _cut(line, [*counts[0], *counts[1]])
    return parts[: len(counts[0])], parts[len(counts[0]) :]


def _multiply(into: Tensor, left: Tensor, right: Tensor, alpha: float, *, more: bool = False) -> None:
    """`into` (+)= alpha · left · right."""
    if into.numel() and (right.numel() or not more):
        into.baddbmm_(left, right, beta=int(more), alpha=alpha)
