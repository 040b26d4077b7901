"""Encoders that compute in 8-bit integers on a CPU: some 1.7 times as fast, and nearly the same states.

`quantise` takes an encoder of the BERT family for packed texts (adapters merged) and gives one that `encode` takes too:

1. Ranges: the encoder reads some texts, and what goes into each of its projections is measured, channel by channel.
2. Inputs become 0 … 255 by a scale and a shift a channel (SmoothQuant, Xiao et al. 2022: wide channels lend their range
   to the weights). Both are folded into what makes the input: the norm before, or the projection of values, whose
   attention sums to 1. Nothing of it depends on the batch, so a text's neighbours have no say.
3. Weights become -64 … 64 by a scale a row: two products then fit 16 bits, where older CPUs would cut them off.
4. Query, key and value are one product; the activation is computed in the product before it. Its output has one scale
   for all channels, so the few channels that go far beyond the others are left out and computed in floats.
5. What stays in floats is summed in one order, whatever else is in the batch and however many threads there are: a last
   bit that differs would now and then be rounded to another byte. So texts attend without padding, those of one length
   that stand together at once, and the few channels are sums of products, not products of matrices. (A text of a
   single piece may still differ; with the marks of a tokenizer there is none.)

Unlike `torch.ao.quantization`: no quantised tensors and no dynamic ranges; only oneDNN's product of plain integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput

from wellread.encoders.packing import Packing, encode, first_position
from wellread.errors import UsageError

_WIDEST = 64
"""Of a weight: 2 · 255 · 64 fits 16 bits."""
_SPARED = 4
"""Channels of an activation that are computed in floats."""
_ROWS = 16
"""Rows of a product are filled up to a multiple of it: oneDNN keeps what it compiles for each number that it meets."""
_BALANCE = 0.5
"""How much of a channel's range stays with the input; the rest goes to the weights."""
_ROOM = {"query": 1.1, "mixed": 2.0, "wide": 1.1, "narrow": 1.3}
"""What goes into a projection may go so far beyond what was measured."""
_ACTIVATIONS = {
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
"""Names of transformers → oneDNN's operation and algorithm."""


@dataclass(frozen=True)
class _Names:
    """What a family calls the parts of a layer."""

    layers: str
    query: str
    key: str
    value: str
    mixed: str
    mixed_norm: str
    wide: str
    narrow: str
    norm: str


_FAMILIES = (
    _Names(
        layers="encoder.layer",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        mixed="attention.output.dense",
        mixed_norm="attention.output.LayerNorm",
        wide="intermediate.dense",
        narrow="output.dense",
        norm="output.LayerNorm",
    ),
    _Names(
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        mixed="attention.out_lin",
        mixed_norm="sa_layer_norm",
        wide="ffn.lin1",
        narrow="ffn.lin2",
        norm="output_layer_norm",
    ),
)


@cache
def int8_available() -> bool:
    """Whether this torch has oneDNN's product of 8-bit integers (x86 builds have), and it works on this CPU."""
    try:
        weights = torch.eye(8, dtype=torch.int8)
        product = _Product.of(weights.float() * _WIDEST, torch.zeros(8), torch.zeros(8))
        given = torch.arange(16, dtype=torch.uint8).view(2, 8)
        return torch.equal(product(given), given.float() * _WIDEST)
    except (AttributeError, RuntimeError, TypeError):
        return False


def quantise(encoder: nn.Module, sample: tuple[Tensor, Packing] | None = None) -> nn.Module:
    """The same encoder in 8 bits, for `encode` on a CPU; it does not learn.

    `sample` (ids, packing) are texts like those to come; without them random pieces tell the ranges nearly as well.
    """
    if not int8_available():
        raise UsageError("this torch or CPU has no 8-bit products (oneDNN on x86); use the encoder as it is")
    if len(getattr(encoder, "infusions", ())):
        raise UsageError("8 bits know no infusions and would leave the knowledge out; use the encoder as it is")
    return Int8Encoder(encoder, *(sample or _random_texts(encoder)))


def quantise_where_able(encoder: nn.Module, sample: tuple[Tensor, Packing] | None = None) -> nn.Module:
    """The encoder in 8 bits, or itself where the machine or its architecture does not allow it."""
    try:
        return quantise(encoder, sample)
    except UsageError:
        return encoder


class Int8Encoder(nn.Module):
    """Made by `quantise`; embeddings, norms and attention stay in floats."""

    def __init__(self, encoder: nn.Module, ids: Int[Tensor, " token"], packing: Packing) -> None:
        super().__init__()
        names = _names_of(encoder)
        config: Any = encoder.config
        self.config = config
        self.embeddings: Any = encoder.embeddings
        self.embeddings_project: Any = getattr(encoder, "embeddings_project", None)
        activation = str(getattr(config, "hidden_act", None) or getattr(config, "activation", None))
        if activation not in _ACTIVATIONS:
            raise UsageError(f"8 bits know the activations {', '.join(_ACTIVATIONS)}, not {activation}")
        layers = list(encoder.get_submodule(names.layers).children())
        with torch.no_grad():
            ranges = _measure(
                encoder, [layer.get_submodule(n) for layer in layers for n in _inputs(names)], ids, packing
            )
            self.layers = [
                _Layer(layer, names, ranges, int(config.num_attention_heads), activation) for layer in layers
            ]
            for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
                layer.follow(following)
        self.train(False)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Int[Tensor, "1 token"],
        position_ids: Int[Tensor, "1 token"],
        packing: Packing,
        output_hidden_states: bool = False,
    ) -> BaseModelOutput:
        """As the encoder's own."""
        states = self.embeddings(input_ids=input_ids, position_ids=position_ids)
        if self.embeddings_project is not None:
            states = self.embeddings_project(states)
        every = [states]
        if count := len(packing.text_of):
            ground = _Ground(packing)
            coded = pad(self.layers[0].inputs.code(states[0]), (0, 0, 0, ground.spare))
            for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
                coded = layer(coded, ground)
                if following is None:
                    every.append(coded[None, :count])
                elif output_hidden_states:
                    every.append(following.inputs.decode(coded[None, :count]))
        return BaseModelOutput(
            last_hidden_state=every[-1], hidden_states=tuple(every) if output_hidden_states else None
        )


class _Ground:
    """What all layers need of a packing: runs of texts that have the same length, and rows to fill up with."""

    def __init__(self, packing: Packing) -> None:
        lengths = [length for length in packing.lengths.tolist() if length]
        self.texts = [len(list(run)) for _, run in groupby(lengths)]
        self.spare = -sum(lengths) % _ROWS
        self.sizes = [sum(run) for _, run in groupby(lengths)] + [self.spare]

    def attend(self, joined: Float[Tensor, "token three_dim"], heads: int) -> Float[Tensor, "token dim"]:
        """What each piece makes of the others of its text; rows to fill up with stay to themselves."""
        *runs, rest = joined.view(1, len(joined), 3, heads, -1).permute(2, 0, 3, 1, 4).split_with_sizes(self.sizes, 3)
        mixed = []
        for texts, run in zip(self.texts, runs, strict=True):
            if texts > 1:  # of one length: at once
                run = run.reshape(3, heads, texts, run.shape[3] // texts, -1).transpose(1, 2)
            query, key, value = run.unbind()
            mixed.append(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(0, 1))
        return torch.cat((*mixed, rest[2, 0].transpose(0, 1))).flatten(1)


@dataclass(frozen=True)
class _Range:
    """The least and the greatest value of each channel that goes into a projection."""

    low: Float[Tensor, " dim"]
    high: Float[Tensor, " dim"]


@dataclass(frozen=True)
class _Code:
    """A channel's value x is held as x / scale + shift, which lies in -128 … 127 where nothing is out of range."""

    scale: Float[Tensor, " dim"]
    shift: Float[Tensor, " dim"]

    @classmethod
    def of(cls, measured: _Range, weights: Float[Tensor, "out dim"], room: float) -> _Code:
        widths = (measured.high - measured.low).clamp(min=1e-6)
        loads = weights.abs().amax(0).clamp(min=1e-6)
        shares = widths**_BALANCE / loads ** (1 - _BALANCE)
        scale = shares * ((widths / shares).max() * room / 254)
        return cls(scale, -(measured.low + measured.high) / 2 / scale)

    def code(self, values: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        return values / self.scale + self.shift

    def decode(self, coded: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        return (coded - self.shift) * self.scale


def _cut(coded: Float[Tensor, "token dim"]) -> UInt8[Tensor, "token dim"]:
    """The nearest of 256 steps; torch converts to signed bytes much faster than to unsigned ones."""
    return coded.clamp(-128, 127).round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)


@dataclass(frozen=True)
class _Product:
    """Bytes @ weights + bias, in floats or, where there is an activation, in bytes again."""

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
    ) -> _Product:
        """For inputs held as x + shift, of which the bias takes the shift away again."""
        scales = weights.abs().amax(1).clamp(min=1e-12) / _WIDEST
        whole: Int8[Tensor, "out dim"] = (weights / scales[:, None]).round().to(torch.int8)
        bias = bias - (whole * scales[:, None]) @ shift
        packed = torch.ops.onednn.qlinear_prepack(whole, None)
        return cls(packed, scales, torch.zeros(len(scales), dtype=torch.long), bias.contiguous(), **rest)

    def __call__(self, given: UInt8[Tensor, "token dim"]) -> Tensor:
        name, algorithm = self.activation
        kind = torch.float32 if name == "none" else torch.uint8
        weights = (self.packed, self.scales, self.zeros, self.bias)
        made: Tensor = torch.ops.onednn.qlinear_pointwise(
            given, 1.0, 0, *weights, self.step, self.zero, kind, name, [], algorithm
        )
        return made


class _Layer:
    """One layer: coded states in, states in the code of the next layer out."""

    def __init__(
        self, layer: nn.Module, names: _Names, ranges: dict[nn.Module, _Range], heads: int, activation: str
    ) -> None:
        def part(name: str) -> Any:
            return layer.get_submodule(name)

        query, key, value = part(names.query), part(names.key), part(names.value)
        mixed, wide, narrow = part(names.mixed), part(names.wide), part(names.narrow)
        self.heads = heads
        self.mixed_norm, self.norm = part(names.mixed_norm), part(names.norm)
        joined = torch.cat([query.weight, key.weight, value.weight])
        self.inputs = _Code.of(ranges[query], joined, _ROOM["query"])
        between = _Code.of(ranges[mixed], mixed.weight, _ROOM["mixed"])
        self.middle = _Code.of(ranges[wide], wide.weight, _ROOM["wide"])

        ones, nothing = torch.ones(2 * len(between.scale)), torch.zeros(2 * len(between.scale))
        to_between = torch.cat([ones, 1 / between.scale])
        bias = torch.cat([query.bias, key.bias, value.bias]) * to_between + torch.cat([nothing, between.shift])
        self.join = _Product.of(joined * self.inputs.scale * to_between[:, None], bias, self.inputs.shift + 128)
        # a residual is scale · coded: the shift in it is taken away by the bias of what it is added to
        bias = mixed.bias - self.inputs.shift * self.inputs.scale
        self.mix = _Product.of(mixed.weight * between.scale, bias, between.shift + 128)
        self._build_feed_forward(wide, narrow, ranges[narrow], activation)
        self.mixed_weight = self.mixed_norm.weight / self.middle.scale
        self.mixed_bias = self.mixed_norm.bias / self.middle.scale + self.middle.shift

    def _build_feed_forward(self, wide: Any, narrow: Any, measured: _Range, activation: str) -> None:
        order = measured.high.argsort(descending=True)
        spared, rest = order[:_SPARED], order[_SPARED:]
        low = min(float(measured.low.min()), 0.0)
        step = (float(measured.high[rest].max().clamp(min=1e-6)) * _ROOM["narrow"] - low) / 255
        zero = round(-low / step)
        weights = wide.weight * self.middle.scale
        self.widen = _Product.of(
            weights,
            wide.bias,
            self.middle.shift + 128,
            activation=_ACTIVATIONS[activation],
            step=step,
            zero=zero,
        )
        # in floats: the few channels that would make the steps of all others coarse
        self.act = ACT2FN[activation]
        chosen = weights[spared].contiguous()
        self.spared_in = chosen.unbind()
        self.spared_bias = (wide.bias[spared] - chosen @ self.middle.shift)[:, None, None]
        self.spared_out = narrow.weight[:, spared].t().contiguous().unbind()
        kept = narrow.weight.clone()
        kept[:, spared] = 0
        bias = narrow.bias - self.middle.shift * self.middle.scale
        self.narrow = _Product.of(kept * step, bias, torch.full((kept.shape[1],), float(zero)))

    def follow(self, following: _Layer | None) -> None:
        """Let the last norm write in the code of the layer that follows, or plainly where none does."""
        scale = 1.0 if following is None else following.inputs.scale
        shift = 0.0 if following is None else following.inputs.shift
        self.weight, self.bias = self.norm.weight / scale, self.norm.bias / scale + shift

    def __call__(self, coded: Float[Tensor, "token dim"], ground: _Ground) -> Float[Tensor, "token dim"]:
        mixed = self.mix(_cut(ground.attend(self.join(_cut(coded)), self.heads)))
        mixed.addcmul_(coded, self.inputs.scale)
        middle = torch.layer_norm(mixed, coded.shape[1:], self.mixed_weight, self.mixed_bias, self.mixed_norm.eps)
        made = self.narrow(self.widen(_cut(middle)))
        spared = torch.stack([(middle * row).sum(1, keepdim=True) for row in self.spared_in])
        for states, out in zip(self.act(spared.add_(self.spared_bias)).unbind(), self.spared_out, strict=True):
            made.addcmul_(states, out)
        made.addcmul_(middle, self.middle.scale)
        return torch.layer_norm(made, coded.shape[1:], self.weight, self.bias, self.norm.eps)


def _names_of(encoder: nn.Module) -> _Names:
    """The family's names, where all of its parts are there and are what they should be."""
    for names in _FAMILIES:
        try:
            layers = list(encoder.get_submodule(names.layers).children())
            parts = [
                layer.get_submodule(name) for layer in layers for name in (*_inputs(names), names.key, names.value)
            ]
        except AttributeError:
            continue
        odd = {type(part).__name__ for part in parts if type(part) is not nn.Linear}
        if odd:
            raise UsageError(f"8 bits need plain projections, not {', '.join(sorted(odd))}; merge adapters first")
        return names
    raise UsageError(f"8 bits know encoders of the BERT family, not {type(encoder).__name__}; use it as it is")


def _inputs(names: _Names) -> tuple[str, str, str, str]:
    return names.query, names.mixed, names.wide, names.narrow


def _measure(
    encoder: nn.Module, projections: list[nn.Module], ids: Int[Tensor, " token"], packing: Packing
) -> dict[nn.Module, _Range]:
    """What goes into each projection when the encoder reads these texts."""
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
    """24 texts of random pieces, the same each time."""
    config: Any = encoder.config
    longest = min(64, int(config.max_position_embeddings) - first_position(encoder))
    draw = torch.Generator().manual_seed(0)
    packing = Packing.of(torch.randint(1, longest + 1, (24,), generator=draw))
    return torch.randint(0, int(config.vocab_size), (len(packing.text_of),), generator=draw), packing
