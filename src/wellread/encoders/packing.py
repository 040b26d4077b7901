"""Packed batches: the texts of a batch laid end to end, so that no padding is computed.

Everything that treats each position alone (embeddings, projections, feed-forward, norms) runs over the tokens of all
texts as one sequence; only attention is computed text by text. `pack` sets this attention on a Hugging Face encoder by
transformers' attention interface. Modules, names and weights stay the same, so adapters, quantization and
`save_pretrained` work as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from wellread.encoders.attention import packed_attention
from wellread.errors import UsageError

PACKED = "wellread_packed"
"""Name of packed attention in transformers' attention interface."""
_FEW = 6 * 1024
"""Below this mean number of attention scores per text, one padded batch is faster than a loop over texts."""


class CustomAttention(Protocol):
    """Attention of a layer that replaces packed attention (`encoders.infusion.hooks.LayerAttention`)."""

    @property
    def is_needed(self) -> bool:
        """True if it must be used in this layer."""
        ...

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, dropout: float
    ) -> Tensor:
        """Return the weighted values of all tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Packing:
    """Positions of texts of `lengths` tokens in one sequence of `sum(lengths)` tokens."""

    lengths: Int[Tensor, " batch"]
    starts: Int[Tensor, " batch"]
    text_of: Int[Tensor, " token"]
    places: Int[Tensor, " token"]
    """Position of each token in its own text, from 0."""
    width: int

    @classmethod
    def of(cls, lengths: Sequence[int] | Tensor, device: torch.device | None = None) -> Packing:
        """Return the packing of texts of these lengths."""
        counts = torch.as_tensor(lengths, dtype=torch.long, device=device)
        starts = counts.cumsum(0) - counts
        text_of = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
        places = torch.arange(len(text_of), device=device) - starts[text_of]
        return cls(counts, starts, text_of, places, int(counts.max()) if len(counts) else 0)

    @property
    def is_even(self) -> bool:
        """True if all texts have the same length: then packed and padded batches are the same."""
        return len(self.text_of) == len(self.lengths) * self.width

    def there_mask(self) -> Bool[Tensor, "batch width"]:
        """Return the mask of a padded batch: True for tokens, False for padding."""
        return torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]

    def spread(self, packed: Float[Tensor, "token ..."]) -> Float[Tensor, "batch width ..."]:
        """Return a padded batch, with zeros as padding."""
        if self.is_even:
            return packed.reshape(len(self.lengths), self.width, *packed.shape[1:])
        padded = packed.new_zeros(len(self.lengths) * self.width, *packed.shape[1:])
        filled = padded.index_copy(0, self._padded_places(), packed)
        return filled.view(len(self.lengths), self.width, *packed.shape[1:])

    def gather(self, padded: Float[Tensor, "batch width ..."]) -> Float[Tensor, "token ..."]:
        """Return the tokens of a padded batch end to end: the inverse of `spread`."""
        flat = padded.flatten(0, 1)
        return flat if self.is_even else flat.index_select(0, self._padded_places())

    def mean(self, packed: Float[Tensor, "token dim"]) -> Float[Tensor, "batch dim"]:
        """Return the mean over each text's tokens."""
        total = packed.new_zeros(len(self.lengths), packed.shape[-1]).index_add(0, self.text_of, packed)
        return total / self.lengths[:, None]

    def _padded_places(self) -> Int[Tensor, " token"]:
        return self.text_of * self.width + self.places


def pack(encoder: PreTrainedModel) -> PreTrainedModel:
    """Set packed attention on an encoder, which is then called by `encode`.

    Two short texts are encoded before and after: many encoders accept another attention and ignore it, or add to theirs
    something that packed attention does not have (the position biases of T5 and DeBERTa, the windows of ModernBERT).
    """
    if encoder.config._attn_implementation == PACKED:
        return encoder
    refusal = UsageError(
        f"the attention of {type(encoder).__name__} cannot be replaced; use an encoder such as BERT, RoBERTa, "
        "ELECTRA, XLM-R or DistilBERT"
    )
    training = encoder.training
    encoder.train(False)
    lengths = [1, 3]
    last = int(encoder.config.vocab_size) - 1  # the last ids of the vocabulary: padding is among the first
    ids = torch.arange(last, last - sum(lengths), -1, device=encoder.device)
    with torch.no_grad():
        try:
            alone = torch.cat(
                [encoder(input_ids=text[None]).last_hidden_state[0] for text in torch.split(ids, lengths)]
            )
            encoder.set_attn_implementation(PACKED)
            packed = encode(encoder, ids, Packing.of(lengths))
        except (TypeError, ValueError) as error:
            raise refusal from error
    tolerance = 1e-3 if alone.dtype == torch.float32 else 5e-2
    if not torch.allclose(packed, alone, rtol=tolerance, atol=tolerance * float(alone.abs().mean())):
        raise refusal
    encoder.train(training)
    return encoder


def encode(
    encoder: nn.Module, ids: Int[Tensor, " token"], packing: Packing, reads: int = 1
) -> Float[Tensor, "token dim"]:
    """Return the last hidden state of every token of packed texts, each as if its text were alone.

    With `reads` > 1, return the mean of the last `reads` layers.
    """
    places = packing.places + first_position(encoder)
    given: dict[str, Any] = {"input_ids": ids[None], "position_ids": places[None], "packing": packing}
    if reads == 1:
        states: Tensor = encoder(**given).last_hidden_state[0]
        return states
    return mean_of([some[0] for some in encoder(**given, output_hidden_states=True).hidden_states[-reads:]])


def mean_of(states: Sequence[Float[Tensor, "token dim"]]) -> Float[Tensor, "token dim"]:
    """Return the mean of several layers' states."""
    return states[0] if len(states) == 1 else torch.stack(tuple(states)).mean(0)


def first_position(encoder: nn.Module) -> int:
    """Return the first position id: RoBERTa and similar encoders count from padding id + 1."""
    embeddings = getattr(encoder, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def position_ids_of(ids: Tensor | None, packing: Packing, first: int) -> Int[Tensor, " token"]:
    """Return position ids of packed tokens, from `first` on.

    As in transformers, encoders that count from padding id + 1 do not count padding tokens, if the ids contain some.
    """
    if ids is None or not first or not bool((ids == first - 1).any()):
        return packing.places + first
    there = (ids != first - 1).long()
    total = there.cumsum(0)
    before = (total - there)[packing.starts]
    return (total - before[packing.text_of]) * there + first - 1


def _attend(
    module: nn.Module,
    query: Float[Tensor, "one head token dim"],
    key: Float[Tensor, "one head token dim"],
    value: Float[Tensor, "one head token dim"],
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    layer_attention: CustomAttention | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "one token head dim"], None]:
    """Compute attention within each text; an attention function of transformers."""
    if attention_mask is not None or sliding_window is not None:
        raise ValueError("packed attention has no mask and no sliding window")
    if layer_attention is not None and layer_attention.is_needed:
        return layer_attention.attend(module, query, key, value, scaling=scaling, dropout=dropout), None
    packed = [part.squeeze(0).transpose(0, 1) for part in (query, key, value)]
    if _goes_text_by_text(packing, query, dropout):
        return _attend_text_by_text(packed, packing, scaling, dropout)[None], None
    query, key, value = (packing.spread(part).transpose(1, 2) for part in packed)
    mask = None if packing.is_even else packing.there_mask()[:, None, None, :]
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return packing.gather(mixed.transpose(1, 2))[None], None


def _goes_text_by_text(packing: Packing, query: Tensor, dropout: float) -> bool:
    """Return True if a loop over texts is faster than one padded batch: on a CPU, unless texts are short or even.

    PyTorch's fast attention has no dropout on a CPU; with dropout even texts gain, too.
    """
    if query.device.type != "cpu" or torch.compiler.is_compiling() or not len(packing.lengths):
        return False
    mean = len(packing.text_of) / len(packing.lengths)
    if query.shape[1] * mean**2 < _FEW:
        return False
    return query.dtype in (torch.float32, torch.float64) if dropout else not packing.is_even


def _attend_text_by_text(
    packed: Sequence[Float[Tensor, "token head dim"]], packing: Packing, scaling: float | None, dropout: float
) -> Float[Tensor, "token head dim"]:
    """Compute attention text by text, without copies, padding or masks."""
    query, key, value = packed
    lengths = packing.lengths.tolist()
    if dropout:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        return packed_attention(query, key, value, lengths, scaling=scaling, drop=dropout)
    texts = zip(*(part.transpose(0, 1)[None].split_with_sizes(lengths, 2) for part in packed), strict=True)
    mixed = [scaled_dot_product_attention(queries, keys, values, scale=scaling) for queries, keys, values in texts]
    return torch.cat([text.transpose(1, 2) for text in mixed], 1).squeeze(0)


AttentionInterface.register(PACKED, _attend)
AttentionMaskInterface.register(PACKED, lambda *args, **kwargs: None)
