"""Attention of texts with entities: words and entities ask each other with queries of their own.

Yamada et al. 2020, section 3.2. Lines are the pieces of all texts, then the entities of all texts, each text by text.
A position meets the keys of words with one query and those of entities with another; keys, values and the softmax are
shared. Both ways to compute it are exact, and nothing is filled up or masked in them:

- To learn, the entities of a text are laid behind its words, so that few products make it: its scores are one matrix,
  of words on the left and of entities on the right, and one softmax goes over it. For the backward pass its
  probabilities are kept, and a byte for each that says whether it was dropped.
- Else PyTorch's fused attention goes over words and over entities, and what both found is weighed by the sums of their
  exponentials. That is faster by a third, but knows no dropout.

Short texts are learned in chunks where there are several threads (`encoders.infusion.hooks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from wellread.encoders.attention import draw_kept, through_softmax

Line = Float[Tensor, "position head dim"]


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
    seen: bool = True,
) -> Line:
    """Softmax(scaling · queries keys^T) value within each text, which has so many words and entities.

    Where entities are not `seen`, words look at words alone.
    """
    parts = (asks.words, asks.entities, asks.words_to_entities, asks.entities_to_entities, key, value)
    learned = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)
    if not learned and not drop and key.device.type == "cpu":
        return _merge(asks, key, value, list(words), list(entities), scaling, seen)
    counts = (list(words), list(entities))
    both = [part.split_with_sizes((len(asks.words), len(asks.entities))) for part in (key, value)]
    made: Tensor = _Entities.apply(  # type: ignore[no-untyped-call]
        _lay((asks.words, asks.entities), counts),
        None
        if asks.words_to_entities is None or asks.entities_to_entities is None
        else _lay((asks.words_to_entities, asks.entities_to_entities), counts),
        *(_lay(parts, counts) for parts in both),
        *counts,
        scaling,
        drop,
        seen,
    )
    return _lay_apart(made, counts)


def _merge(
    asks: Queries, key: Line, value: Line, words: list[int], entities: list[int], scaling: float, seen: bool
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
            if count and (seen or who):
                more, other = _fused(seconds[who][text], keys[1][text], values[1][text], scaling)
                found = more.lerp_(found, (weight - other).sigmoid_().to(found.dtype)[..., None])
            into[who][text].copy_(found)
    return mixed


def _fused(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attention head by head, and the logarithm of the sum of each row's exponentials."""
    parts = (part[None] for part in (query, key, value))
    mixed, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts, scale=scaling)
    return mixed[0], weight[0]


class _EntityAwareSelfAttention:
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
        """Pickle by the class of transformers; that of `entity_aware_class` is made where it is needed."""
        plain = next(kind for kind in type(self).__mro__ if not issubclass(kind, _EntityAwareSelfAttention))
        return _make_entity_aware, (plain,), self.__dict__


def _make_entity_aware(kind: type) -> Any:
    made: Any = entity_aware_class(kind)
    return made.__new__(made)


@cache
def entity_aware_class(kind: type) -> type:
    """The class of a self-attention that leaves it to entities how they ask."""
    return (
        kind
        if issubclass(kind, _EntityAwareSelfAttention)
        else type(kind.__name__, (_EntityAwareSelfAttention, kind), {"__module__": __name__})
    )


class _Entities(torch.autograd.Function):
    """Lines have the words of a text and then its entities, text by text."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        second: Tensor | None,
        key: Tensor,
        value: Tensor,
        words: list[int],
        entities: list[int],
        scaling: float,
        drop: float,
        seen: bool,
    ) -> Tensor:
        lines = (query, query if second is None else second, key, value)
        mixed, kept, growth = torch.empty_like(value), [], 1.0
        ctx.counts = [own + more for own, more in zip(words, entities, strict=True)]
        ctx.words = words if second is not None else ctx.counts  # with one query all are met at once
        for text, (own, ask, other, keys, values, into) in enumerate(_texts(ctx.words, ctx.counts, *lines, mixed)):
            scores = key.new_empty(len(keys), keys.shape[1], keys.shape[1])
            for line, of in ((ask, slice(own)), (other, slice(own, None))):
                _multiply(scores[..., of], line, keys[:, of].transpose(1, 2), scaling)
            if not seen:
                scores[:, : words[text], words[text] :] = float("-inf")
            weights = scores.softmax(-1)
            there, growth = draw_kept(weights, drop)
            _multiply(into, _drop(weights, there), values, growth)
            kept += [weights, there]
        ctx.save_for_backward(*lines, *kept)
        ctx.scaling, ctx.growth, ctx.alone = scaling, growth, second is None
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor) -> tuple[Tensor | None, ...]:
        lines, kept = (saved := ctx.saved_tensors)[:4], saved[4:]  # which may be asked for but once (checkpointing)
        made = [torch.empty_like(line) for line in lines]
        texts = _texts(ctx.words, ctx.counts, *lines, d_mixed, *made)
        for text, (own, ask, other, keys, values, d_into, d_ask, d_other, d_keys, d_values) in enumerate(texts):
            weights, there = kept[2 * text : 2 * text + 2]
            through, dropped = torch.empty_like(weights), _drop(weights, there)
            _multiply(through, d_into, values.transpose(1, 2), ctx.growth)
            _multiply(d_values, dropped.transpose(1, 2), d_into, ctx.growth)
            through = through_softmax(through, weights, dropped)
            for line, d_line, of in ((ask, d_ask, slice(own)), (other, d_other, slice(own, None))):
                _multiply(d_line, through[..., of], keys[:, of], ctx.scaling)
                _multiply(d_keys[:, of], through[..., of].transpose(1, 2), line, ctx.scaling)
        d_query, d_second, d_key, d_value = made
        return d_query, None if ctx.alone else d_second, d_key, d_value, None, None, None, None, None


def _drop(weights: Tensor, there: Tensor | None) -> Tensor:
    return weights if there is None else weights * there


def _texts(words: list[int], counts: list[int], *lines: Line) -> Iterator[tuple[Any, ...]]:
    """How many words each text has, and its part of every line, head by head."""
    return zip(words, *(_cut(line, counts) for line in lines), strict=True)


def _lay(both: Sequence[Line], counts: tuple[list[int], list[int]]) -> Line:
    """Words and entities text by text, its entities behind its words."""
    texts = zip(*(line.split_with_sizes(some) for line, some in zip(both, counts, strict=True)), strict=True)
    return torch.cat([part for text in texts for part in text])


def _lay_apart(line: Line, counts: tuple[list[int], list[int]]) -> Line:
    """The words of all texts, and behind them all entities."""
    parts = line.split_with_sizes([count for text in zip(*counts, strict=True) for count in text])
    return torch.cat((*parts[::2], *parts[1::2]))


def _cut(line: Line, counts: list[int]) -> tuple[Tensor, ...]:
    """The part of each text, head by head."""
    return line.transpose(0, 1).split_with_sizes(counts, 1)


def _cut_both(line: Line, counts: tuple[list[int], list[int]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The words of each text, and its entities."""
    parts = _cut(line, [*counts[0], *counts[1]])
    return parts[: len(counts[0])], parts[len(counts[0]) :]


def _multiply(into: Tensor, left: Tensor, right: Tensor, alpha: float) -> None:
    """`into` = alpha · left · right."""
    if into.numel():
        into.baddbmm_(left, right, beta=0, alpha=alpha)
