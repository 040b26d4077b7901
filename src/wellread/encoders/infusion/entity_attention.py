"""Entity-aware self-attention (Yamada et al. 2020, section 3.2) of packed texts.

A position meets the keys of words with one query and the keys of entities with another; keys, values and the softmax
are shared. Packed tensors hold the tokens of all texts, then the entities of all texts. Both implementations are exact,
and neither pads nor masks anything:

- Training: the entities of a text are placed after its words, so that few products are needed. Its scores are one
  matrix, words on the left and entities on the right, with one softmax. For the backward pass the probabilities are
  kept, and one byte each that says if it was dropped.
- Inference: PyTorch's fused attention runs over words and over entities, and both results are merged by the logarithms
  of their sums of exponentials. That is faster by a third, but has no dropout.

Short texts are trained in chunks if there are several threads (`encoders.infusion.hooks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from wellread.encoders.attention import draw_kept, through_softmax
from wellread.encoders.private_ops import attention_with_logsumexp

PackedHeads = Float[Tensor, "position head dim"]
Counts = tuple[list[int], list[int]]
"""Number of words and of entities of each text."""


@dataclass(frozen=True, slots=True)
class EntityAwareQueries:
    """The four queries of section 3.2, of the words and the entities of all texts."""

    words: PackedHeads
    """Queries of words for words."""
    entities: PackedHeads
    """Queries of entities for words."""
    words_to_entities: PackedHeads | None = None
    """Queries of words for entities; None: the same as for words."""
    entities_to_entities: PackedHeads | None = None

    def packed(self) -> tuple[PackedHeads, PackedHeads | None]:
        """Return the queries of all positions for words, and those for entities if they differ."""
        to_words = torch.cat((self.words, self.entities))
        if self.words_to_entities is None or self.entities_to_entities is None:
            return to_words, None
        return to_words, torch.cat((self.words_to_entities, self.entities_to_entities))


def entity_attention(
    queries: EntityAwareQueries,
    key: PackedHeads,
    value: PackedHeads,
    words: Sequence[int],
    entities: Sequence[int],
    *,
    scaling: float,
    drop: float = 0.0,
    entities_visible: bool = True,
) -> PackedHeads:
    """Return softmax(scaling · queries keys^T) value within each text; `words` and `entities` are counts per text.

    If entities are not visible, words attend to words alone.
    """
    to_entities = (queries.words_to_entities, queries.entities_to_entities)
    parts = (queries.words, queries.entities, *to_entities, key, value)
    counts = (list(words), list(entities))
    needs_grad = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)
    if not needs_grad and not drop and key.device.type == "cpu":
        return _merged_attention(queries, key, value, counts, scaling, entities_visible)
    key_parts, value_parts = (
        part.split_with_sizes((len(queries.words), len(queries.entities))) for part in (key, value)
    )
    output: Tensor = _EntityAttention.apply(  # type: ignore[no-untyped-call]
        _interleave((queries.words, queries.entities), counts),
        None if to_entities[0] is None or to_entities[1] is None else _interleave(to_entities, counts),  # type: ignore[arg-type]
        _interleave(key_parts, counts),
        _interleave(value_parts, counts),
        *counts,
        scaling,
        drop,
        entities_visible,
    )
    return _separate(output, counts)


def _merged_attention(
    queries: EntityAwareQueries,
    key: PackedHeads,
    value: PackedHeads,
    counts: Counts,
    scaling: float,
    entities_visible: bool,
) -> PackedHeads:
    """Attend to words and to entities separately, and merge both by their log-sum-exp."""
    output = torch.empty_like(value)
    to_words = [_split_texts(part, some) for part, some in zip((queries.words, queries.entities), counts, strict=True)]
    to_entities = [
        to_words[side] if part is None else _split_texts(part, counts[side])
        for side, part in enumerate((queries.words_to_entities, queries.entities_to_entities))
    ]
    keys, values, outputs = (_split_both(part, counts) for part in (key, value, output))
    for text, count in enumerate(counts[1]):
        for side in (0, 1) if count else (0,):
            found, weight = attention_with_logsumexp(to_words[side][text], keys[0][text], values[0][text], scaling)
            if count and (entities_visible or side):
                more, other = attention_with_logsumexp(to_entities[side][text], keys[1][text], values[1][text], scaling)
                found = more.lerp_(found, (weight - other).sigmoid_().to(found.dtype)[..., None])
            outputs[side][text].copy_(found)
    return output


class EntityAwareSelfAttention:
    """Mixin for transformers' self-attention modules that computes only the queries that are needed.

    If the extra tokens come with queries of their own, the module's queries are computed for tokens alone.
    """

    def forward(
        self, hidden_states: Tensor, *args: Any, layer_attention: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and the weights, as the module of transformers does."""
        if layer_attention is None or not layer_attention.has_entity_queries:
            made: tuple[Tensor, Tensor | None] = super().forward(  # type: ignore[misc]
                hidden_states, *args, layer_attention=layer_attention, **kwargs
            )
            return made
        own: Any = self
        states, shape = hidden_states.squeeze(0), (own.num_attention_heads, own.attention_head_size)
        parts = layer_attention.split(states)
        projected = (part.unflatten(-1, shape) for part in (own.query(parts[0]), own.key(states), own.value(states)))
        dropout = own.dropout.p if own.training else 0.0
        output: Tensor = layer_attention.attend_entity_aware(
            parts, *projected, scaling=shape[1] ** -0.5, dropout=dropout
        )
        return output.flatten(-2)[None], None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle by the class of transformers, because the generated class is not an attribute of this module."""
        plain = next(kind for kind in type(self).__mro__ if not issubclass(kind, EntityAwareSelfAttention))
        return _new_entity_aware, (plain,), self.__dict__


def make_entity_aware(attention: nn.Module) -> nn.Module:
    """Return an entity-aware self-attention module with the submodules and settings of `attention`."""
    if isinstance(attention, EntityAwareSelfAttention):
        return attention
    made: nn.Module = _new_entity_aware(type(attention))
    made.__dict__.update(attention.__dict__)
    return made


def _new_entity_aware(plain: type) -> Any:
    kind: Any = _entity_aware_class(plain)
    return kind.__new__(kind)


@cache
def _entity_aware_class(plain: type) -> type:
    return type(plain.__name__, (EntityAwareSelfAttention, plain), {"__module__": __name__})


class _EntityAttention(torch.autograd.Function):
    """Attention over interleaved tensors: the words of a text, then its entities, text by text."""

    @staticmethod
    def forward(
        ctx: Any,
        to_words: Tensor,
        to_entities: Tensor | None,
        key: Tensor,
        value: Tensor,
        words: list[int],
        entities: list[int],
        scaling: float,
        drop: float,
        entities_visible: bool,
    ) -> Tensor:
        inputs = (to_words, to_words if to_entities is None else to_entities, key, value)
        output, kept, growth = torch.empty_like(value), [], 1.0
        ctx.counts = [own + more for own, more in zip(words, entities, strict=True)]
        ctx.words = words if to_entities is not None else ctx.counts  # one query meets all keys in one product
        for text, (own, first, second, keys, values, out) in enumerate(_texts(ctx.words, ctx.counts, *inputs, output)):
            scores = key.new_empty(len(keys), keys.shape[1], keys.shape[1])
            for query, columns in ((first, slice(own)), (second, slice(own, None))):
                _multiply(scores[..., columns], query, keys[:, columns].transpose(1, 2), scaling)
            if not entities_visible:
                scores[:, : words[text], words[text] :] = float("-inf")
            weights = scores.softmax(-1)
            kept_mask, growth = draw_kept(weights, drop)
            _multiply(out, _drop(weights, kept_mask), values, growth)
            kept += [weights, kept_mask]
        ctx.save_for_backward(*inputs, *kept)
        ctx.scaling, ctx.growth, ctx.one_query = scaling, growth, to_entities is None
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # may be read only once with gradient checkpointing
        inputs, kept = saved[:4], saved[4:]
        gradients = [torch.empty_like(part) for part in inputs]
        texts = _texts(ctx.words, ctx.counts, *inputs, d_output, *gradients)
        for text, (own, first, second, keys, values, d_out, d_first, d_second, d_keys, d_values) in enumerate(texts):
            weights, kept_mask = kept[2 * text : 2 * text + 2]
            d_scores, dropped = torch.empty_like(weights), _drop(weights, kept_mask)
            _multiply(d_scores, d_out, values.transpose(1, 2), ctx.growth)
            _multiply(d_values, dropped.transpose(1, 2), d_out, ctx.growth)
            d_scores = through_softmax(d_scores, weights, dropped)
            for query, d_query, columns in ((first, d_first, slice(own)), (second, d_second, slice(own, None))):
                _multiply(d_query, d_scores[..., columns], keys[:, columns], ctx.scaling)
                _multiply(d_keys[:, columns], d_scores[..., columns].transpose(1, 2), query, ctx.scaling)
        d_to_words, d_to_entities, d_key, d_value = gradients
        return d_to_words, None if ctx.one_query else d_to_entities, d_key, d_value, *(None,) * 5


def _drop(weights: Tensor, kept_mask: Tensor | None) -> Tensor:
    return weights if kept_mask is None else weights * kept_mask


def _texts(words: list[int], counts: list[int], *packed: PackedHeads) -> Iterator[tuple[Any, ...]]:
    """Yield each text's number of words and its part of every tensor, head by head."""
    return zip(words, *(_split_texts(part, counts) for part in packed), strict=True)


def _interleave(both: Sequence[PackedHeads], counts: Counts) -> PackedHeads:
    """Return words and entities text by text: the entities of a text after its words."""
    texts = zip(*(part.split_with_sizes(some) for part, some in zip(both, counts, strict=True)), strict=True)
    return torch.cat([part for text in texts for part in text])


def _separate(interleaved: PackedHeads, counts: Counts) -> PackedHeads:
    """Return the words of all texts, then the entities of all texts: the inverse of `_interleave`."""
    parts = interleaved.split_with_sizes([count for text in zip(*counts, strict=True) for count in text])
    return torch.cat((*parts[::2], *parts[1::2]))


def _split_texts(packed: PackedHeads, counts: list[int]) -> tuple[Tensor, ...]:
    """Return the part of each text, head by head."""
    return packed.transpose(0, 1).split_with_sizes(counts, 1)


def _split_both(packed: PackedHeads, counts: Counts) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the words of each text, and the entities of each text."""
    parts = _split_texts(packed, [*counts[0], *counts[1]])
    return parts[: len(counts[0])], parts[len(counts[0]) :]


def _multiply(output: Tensor, left: Tensor, right: Tensor, alpha: float) -> None:
    """Set `output` to alpha · left · right."""
    if output.numel():
        output.baddbmm_(left, right, beta=0, alpha=alpha)
