"""Encoders in 8-bit integers on a CPU: about 1.7 times as fast, with nearly the same states.

`quantise` takes an encoder of the BERT family for packed texts (adapters merged) and returns one for `encode`:

1. Ranges: the encoder runs on some texts, and the inputs of each projection are measured per channel.
2. Inputs become 0 … 255 by a scale and a shift per channel (SmoothQuant, Xiao et al. 2022: part of a wide channel's
   range is moved to the weights). Both are folded into the operation before: the norm, or the projection of values,
   whose attention weights sum to 1. Nothing depends on the batch, so a text's output does not depend on its neighbours.
3. Weights become -64 … 64 by a scale per row: the sum of two products then fits 16 bits, which older CPUs need.
4. Query, key and value are one product; the activation is computed in the product before it. Its output has one scale
   for all channels, so the few channels with a much larger range are computed in floats instead.
5. Floats are summed in one order, whatever the batch and the number of threads: a last bit that differs would now and
   then be rounded to another byte. So attention has no padding, texts of equal length that are adjacent are computed
   together, and the few float channels are sums of products, not matrix products. (A text of one token may still
   differ; with a tokenizer's special tokens there is none.)

Unlike `torch.ao.quantization`: no quantized tensors and no dynamic ranges; only oneDNN's product of plain integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput

from wellread.encoders.families import FAMILIES, EncoderFamily
from wellread.encoders.packing import Packing, encode, first_position
from wellread.encoders.private_ops import has_int8_linear, int8_linear, pack_int8_weights
from wellread.errors import UsageError

_MAX_WEIGHT = 64
"""Largest 8-bit weight: 2 · 255 · 64 fits 16 bits."""
_FLOAT_CHANNELS = 4
"""Number of activation channels that are computed in floats."""
_ROWS = 16
"""Rows of a product are padded to a multiple of this: oneDNN keeps compiled code for each number of rows."""
_BALANCE = 0.5
"""Share of a channel's range that stays with the input; the rest goes to the weights (SmoothQuant's alpha)."""
_HEADROOM = {"query": 1.1, "mixed": 2.0, "wide": 1.1, "narrow": 1.3}
"""Factor by which the inputs of a projection may exceed the measured range."""
_ACTIVATIONS = {
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
"""oneDNN's operation and algorithm, by transformers' name."""


def int8_available() -> bool:
    """Return True if 8-bit products work with this torch and on this CPU."""
    return has_int8_linear()


def quantise(encoder: nn.Module, sample: tuple[Tensor, Packing] | None = None) -> nn.Module:
    """Return the encoder in 8 bits, for inference by `encode` on a CPU.

    `sample` (ids, packing) are texts like those to expect; without them random tokens give nearly the same ranges.
    """
    if not int8_available():
        raise UsageError("this torch or CPU has no 8-bit products (oneDNN on x86); use the encoder without quantise")
    if len(getattr(encoder, "infusions", ())):
        raise UsageError(
            "an encoder with infusions cannot run in 8 bits, which would ignore its knowledge; use it without quantise"
        )
    return Int8Encoder(encoder, *(sample or _random_texts(encoder)))


def quantise_where_able(encoder: nn.Module, sample: tuple[Tensor, Packing] | None = None) -> nn.Module:
    """Return the encoder in 8 bits, or unchanged if the machine or its architecture does not allow it."""
    try:
        return quantise(encoder, sample)
    except UsageError:
        return encoder


class Int8Encoder(nn.Module):
    """Encoder with 8-bit projections, made by `quantise`; embeddings, norms and attention stay in floats."""

    def __init__(self, encoder: nn.Module, ids: Int[Tensor, " token"], packing: Packing) -> None:
        super().__init__()
        family = _family_of(encoder)
        config: Any = encoder.config
        self.config = config
        self.embeddings: Any = encoder.embeddings
        self.embeddings_project: Any = getattr(encoder, "embeddings_project", None)
        activation = str(getattr(config, "hidden_act", None) or getattr(config, "activation", None))
        if activation not in _ACTIVATIONS:
            raise UsageError(f"8 bits support the activations {', '.join(_ACTIVATIONS)}, not {activation}")
        layers = list(encoder.get_submodule(family.layers).children())
        with torch.no_grad():
            ranges = _measure(
                encoder, [layer.get_submodule(n) for layer in layers for n in _measured(family)], ids, packing
            )
            self.layers = [
                _Layer(layer, family, ranges, int(config.num_attention_heads), activation) for layer in layers
            ]
            for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
                layer.set_output_code(following)
        self.train(False)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Int[Tensor, "1 token"],
        position_ids: Int[Tensor, "1 token"],
        packing: Packing,
        output_hidden_states: bool = False,
    ) -> BaseModelOutput:
        """Return the states, as the encoder does."""
        states = self.embeddings(input_ids=input_ids, position_ids=position_ids)
        if self.embeddings_project is not None:
            states = self.embeddings_project(states)
        all_states = [states]
        if count := len(packing.text_of):
            padded = _PaddedPacking(packing)
            coded = pad(self.layers[0].inputs.code(states[0]), (0, 0, 0, padded.padding))
            for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
                coded = layer(coded, padded)
                if following is None:
                    all_states.append(coded[None, :count])
                elif output_hidden_states:
                    all_states.append(following.inputs.decode(coded[None, :count]))
        return BaseModelOutput(
            last_hidden_state=all_states[-1], hidden_states=tuple(all_states) if output_hidden_states else None
        )


class _PaddedPacking:
    """Packing as all layers use it: runs of texts of equal length, and the rows of padding at the end."""

    def __init__(self, packing: Packing) -> None:
        lengths = [length for length in packing.lengths.tolist() if length]
        self.texts = [len(list(run)) for _, run in groupby(lengths)]
        self.padding = -sum(lengths) % _ROWS
        self.sizes = [sum(run) for _, run in groupby(lengths)] + [self.padding]

    def attend(self, joined: Float[Tensor, "token three_dim"], heads: int) -> Float[Tensor, "token dim"]:
        """Return attention within each text; rows of padding return their own values."""
        *runs, rest = joined.view(1, len(joined), 3, heads, -1).permute(2, 0, 3, 1, 4).split_with_sizes(self.sizes, 3)
        mixed = []
        for texts, run in zip(self.texts, runs, strict=True):
            if texts > 1:  # of equal length: in one call
                run = run.reshape(3, heads, texts, run.shape[3] // texts, -1).transpose(1, 2)
            query, key, value = run.unbind()
            mixed.append(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(0, 1))
        return torch.cat((*mixed, rest[2, 0].transpose(0, 1))).flatten(1)


@dataclass(frozen=True)
class _Range:
    """Minimum and maximum of each input channel of a projection."""

    low: Float[Tensor, " dim"]
    high: Float[Tensor, " dim"]


@dataclass(frozen=True)
class _Code:
    """Scale and shift of each channel: x is stored as x / scale + shift, within -128 … 127 if it is in range."""

    scale: Float[Tensor, " dim"]
    shift: Float[Tensor, " dim"]

    @classmethod
    def of(cls, measured: _Range, weights: Float[Tensor, "out dim"], headroom: float) -> _Code:
        widths = (measured.high - measured.low).clamp(min=1e-6)
        loads = weights.abs().amax(0).clamp(min=1e-6)
        shares = widths**_BALANCE / loads ** (1 - _BALANCE)
        scale = shares * ((widths / shares).max() * headroom / 254)
        return cls(scale, -(measured.low + measured.high) / 2 / scale)

    def code(self, values: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        return values / self.scale + self.shift

    def decode(self, coded: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        return (coded - self.shift) * self.scale


def _to_bytes(coded: Float[Tensor, "token dim"]) -> UInt8[Tensor, "token dim"]:
    """Round to the nearest of 256 steps; torch converts to signed bytes much faster than to unsigned ones."""
    return coded.clamp(-128, 127).round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)


@dataclass(frozen=True)
class _Int8Linear:
    """Linear layer of bytes: output in floats, or in bytes again if there is an activation."""

    packed: Tensor
    scales: Float[Tensor, " out"]
    zeros: Int[Tensor, " out"]
    bias: Float[Tensor, " out"]
    activation: tuple[str, str] = ("none", "")
    step: float = 1.0
    zero: int = 0

    @classmethod
    def of(
        cls,
        weights: Float[Tensor, "out dim"],
        bias: Float[Tensor, " out"],
        shift: Float[Tensor, " dim"],
        **rest: Any,
    ) -> _Int8Linear:
        """Return the layer for inputs stored as x + shift; the bias subtracts the shift."""
        scales = weights.abs().amax(1).clamp(min=1e-12) / _MAX_WEIGHT
        whole: Int8[Tensor, "out dim"] = (weights / scales[:, None]).round().to(torch.int8)
        bias = bias - (whole * scales[:, None]) @ shift
        packed = pack_int8_weights(whole)
        return cls(packed, scales, torch.zeros(len(scales), dtype=torch.long), bias.contiguous(), **rest)

    def __call__(self, given: UInt8[Tensor, "token dim"]) -> Tensor:
        weights = (self.packed, self.scales, self.zeros, self.bias)
        return int8_linear(given, *weights, self.activation, self.step, self.zero)


class _Layer:
    """One layer: takes coded states, and returns states in the code of the next layer."""

    def __init__(
        self, layer: nn.Module, family: EncoderFamily, ranges: dict[nn.Module, _Range], heads: int, activation: str
    ) -> None:
        def part(name: str) -> Any:
            return layer.get_submodule(name)

        query, key, value = (part(f"{family.attention}.{name}") for name in family.projections)
        mixed, wide, narrow = part(family.attention_output), part(family.expansion), part(family.contraction)
        self.heads = heads
        self.mixed_norm, self.norm = part(family.attention_norm), part(family.output_norm)
        joined = torch.cat([query.weight, key.weight, value.weight])
        self.inputs = _Code.of(ranges[query], joined, _HEADROOM["query"])
        between = _Code.of(ranges[mixed], mixed.weight, _HEADROOM["mixed"])
        self.middle = _Code.of(ranges[wide], wide.weight, _HEADROOM["wide"])

        ones, nothing = torch.ones(2 * len(between.scale)), torch.zeros(2 * len(between.scale))
        to_between = torch.cat([ones, 1 / between.scale])
        bias = torch.cat([query.bias, key.bias, value.bias]) * to_between + torch.cat([nothing, between.shift])
        self.join = _Int8Linear.of(joined * self.inputs.scale * to_between[:, None], bias, self.inputs.shift + 128)
        # A residual is scale · coded; its shift is subtracted by the bias of the product that it is added to.
        bias = mixed.bias - self.inputs.shift * self.inputs.scale
        self.mix = _Int8Linear.of(mixed.weight * between.scale, bias, between.shift + 128)
        self._build_feed_forward(wide, narrow, ranges[narrow], activation)
        self.mixed_weight = self.mixed_norm.weight / self.middle.scale
        self.mixed_bias = self.mixed_norm.bias / self.middle.scale + self.middle.shift

    def _build_feed_forward(self, wide: Any, narrow: Any, measured: _Range, activation: str) -> None:
        order = measured.high.argsort(descending=True)
        spared, rest = order[:_FLOAT_CHANNELS], order[_FLOAT_CHANNELS:]
        low = min(float(measured.low.min()), 0.0)
        step = (float(measured.high[rest].max().clamp(min=1e-6)) * _HEADROOM["narrow"] - low) / 255
        zero = round(-low / step)
        weights = wide.weight * self.middle.scale
        self.widen = _Int8Linear.of(
            weights,
            wide.bias,
            self.middle.shift + 128,
            activation=_ACTIVATIONS[activation],
            step=step,
            zero=zero,
        )
        # The few channels in floats, whose range would make the steps of all others coarse.
        self.act = ACT2FN[activation]
        chosen = weights[spared].contiguous()
        self.paddingd_in = chosen.unbind()
        self.paddingd_bias = (wide.bias[spared] - chosen @ self.middle.shift)[:, None, None]
        self.paddingd_out = narrow.weight[:, spared].t().contiguous().unbind()
        kept = narrow.weight.clone()
        kept[:, spared] = 0
        bias = narrow.bias - self.middle.shift * self.middle.scale
        self.narrow = _Int8Linear.of(kept * step, bias, torch.full((kept.shape[1],), float(zero)))

    def set_output_code(self, following: _Layer | None) -> None:
        """Let the last norm write in the code of the next layer, or in plain numbers after the last one."""
        scale = 1.0 if following is None else following.inputs.scale
        shift = 0.0 if following is None else following.inputs.shift
        self.weight, self.bias = self.norm.weight / scale, self.norm.bias / scale + shift

    def __call__(self, coded: Float[Tensor, "token dim"], padded: _PaddedPacking) -> Float[Tensor, "token dim"]:
        mixed = self.mix(_to_bytes(padded.attend(self.join(_to_bytes(coded)), self.heads)))
        mixed.addcmul_(coded, self.inputs.scale)
        middle = torch.layer_norm(mixed, coded.shape[1:], self.mixed_weight, self.mixed_bias, self.mixed_norm.eps)
        made = self.narrow(self.widen(_to_bytes(middle)))
        spared = torch.stack([(middle * row).sum(1, keepdim=True) for row in self.paddingd_in])
        for states, out in zip(self.act(spared.add_(self.paddingd_bias)).unbind(), self.paddingd_out, strict=True):
            made.addcmul_(states, out)
        made.addcmul_(middle, self.middle.scale)
        return torch.layer_norm(made, coded.shape[1:], self.weight, self.bias, self.norm.eps)


def _family_of(encoder: nn.Module) -> EncoderFamily:
    """Return the encoder's family, if it has all parts and they are plain linear layers; raise UsageError otherwise."""
    for family in FAMILIES.values():
        try:
            layers = list(encoder.get_submodule(family.layers).children())
            names = (*_measured(family), *(f"{family.attention}.{name}" for name in family.projections[1:]))
            parts = [layer.get_submodule(name) for layer in layers for name in names]
        except AttributeError:
            continue
        odd = {type(part).__name__ for part in parts if type(part) is not nn.Linear}
        if odd:
            raise UsageError(f"8 bits need plain linear layers, not {', '.join(sorted(odd))}; merge adapters first")
        return family
    raise UsageError(
        f"8 bits support encoders of the BERT family, not {type(encoder).__name__}; use it without quantise"
    )


def _measured(family: EncoderFamily) -> tuple[str, str, str, str]:
    """Return the paths of the projections whose inputs are measured; key and value have the input of query."""
    query = f"{family.attention}.{family.projections[0]}"
    return query, family.attention_output, family.expansion, family.contraction


def _measure(
    encoder: nn.Module, projections: list[nn.Module], ids: Int[Tensor, " token"], packing: Packing
) -> dict[nn.Module, _Range]:
    """Return the range of each projection's inputs when the encoder runs on these texts."""
    ranges: dict[nn.Module, _Range] = {}

    def note(projection: nn.Module, given: tuple[Tensor, ...]) -> None:
        flat = given[0].flatten(0, -2)
        ranges[projection] = _Range(flat.amin(0), flat.amax(0))

    hooks = [projection.register_forward_pre_hook(note) for projection in projections]
    training = encoder.training
    encoder.train(False)
    try:
        encode(encoder, ids, packing)
    finally:
        encoder.train(training)
        for hook in hooks:
            hook.remove()
    return ranges


def _random_texts(encoder: nn.Module) -> tuple[Int[Tensor, " token"], Packing]:
    """Return 24 texts of random tokens, always the same."""
    config: Any = encoder.config
    longest = min(64, int(config.max_position_embeddings) - first_position(encoder))
    draw = torch.Generator().manual_seed(0)
    packing = Packing.of(torch.randint(1, longest + 1, (24,), generator=draw))
    return torch.randint(0, int(config.vocab_size), (len(packing.text_of),), generator=draw), packing
