"""Weights of an encoder that computes in 8-bit integers, folded in numpy.

1. Inputs of projections become 0 … 255 by a scale and a shift per channel (SmoothQuant, Xiao et al. 2022: wide
   channels give some of their range to the weights). Both are folded into the operation that makes the input: the norm
   before it, or the projection of values, whose attention sums to 1. Nothing depends on the batch.
2. Weights become -64 … 64 by a scale per output: two products then fit 16 bits, where CPUs without VNNI saturate.
3. The activation's output has one scale for all channels; the few channels that go far beyond the others are left out
   and computed in floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wellread.runtime.weights import EncoderLayer, EncoderWeights, Floats, Linear, Norm

_WIDEST = 64
"""Largest value of a weight: 2 · 255 · 64 fits 16 bits."""
_SPARED = 4
"""Channels of an activation that are computed in floats."""
_BALANCE = 0.5
"""Share of a channel's range that stays with the input; the rest goes to the weights."""
_ROOM = {"query": 1.1, "attention_output": 2.0, "intermediate": 1.1, "output": 1.3}
"""Factors by which inputs of projections may exceed the measured ranges."""
MEASURED = tuple(_ROOM)
"""Projections of a layer whose inputs are measured; key and value have the input of query."""


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value of each channel that goes into a projection."""

    low: Floats
    high: Floats

    def joined(self, other: Range) -> Range:
        """Return the range of both."""
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))


Ranges = tuple[Mapping[str, Range], ...]
"""For each layer the ranges of the inputs of its projections, by `MEASURED`."""


@dataclass(frozen=True, slots=True)
class Code:
    """A channel's value x is held as x / scale + shift, in -128 … 127 where nothing is out of range."""

    scale: Floats
    shift: Floats

    @classmethod
    def of(cls, measured: Range, weights: Floats, room: float) -> Code:
        """Return the code of an input with this range that weights (out, in) are multiplied with."""
        widths = np.maximum(measured.high - measured.low, 1e-6)
        loads = np.maximum(np.abs(weights).max(0), 1e-6)
        shares = widths**_BALANCE / loads ** (1 - _BALANCE)
        scale = shares * ((widths / shares).max() * room / 254)
        return cls(_float(scale), _float(-(measured.low + measured.high) / 2 / scale))

    def folded(self, norm: Norm) -> Norm:
        """Return the norm that writes in this code."""
        return Norm(norm.weight / self.scale, norm.bias / self.scale + self.shift)


@dataclass(frozen=True, slots=True)
class Product:
    """Bytes minus zero point, times weights, times scales, plus bias."""

    weight: NDArray[np.int8]
    """(in, out)."""
    scales: Floats
    bias: Floats

    @classmethod
    def of(cls, weights: Floats, bias: Floats, shift: Floats | None = None) -> Product:
        """Return the product for inputs held as x + shift; the bias takes the shift away again."""
        scales = _float(np.maximum(np.abs(weights).max(1), 1e-12) / _WIDEST)
        whole = np.round(weights / scales[:, None]).astype(np.int8)
        if shift is not None:
            bias = bias - (whole * scales[:, None].astype(np.float64)) @ shift
        return cls(np.ascontiguousarray(whole.T), scales, _float(bias))


@dataclass(frozen=True, slots=True)
class FoldedLayer:
    """One layer in 8 bits: coded states in, states in the code of the next layer out."""

    code: Code
    """Ranges of the input states."""
    joined: Product
    """Query, key and value side by side; values come out in the code of the attention's output."""
    mixed: Product
    attention_norm: Norm
    """Writes in the code `middle`."""
    middle: Code
    intermediate: Product
    step: float
    """One step of the activation's bytes."""
    zero: int
    """The byte that stands for 0."""
    spared_in: Floats
    """(in, spared channel): weights of the channels that are computed in floats."""
    spared_bias: Floats
    spared_out: Floats
    """(spared channel, out)."""
    output: Product
    output_norm: Norm
    """Writes in the code of the next layer; the last one writes plain states."""


@dataclass(frozen=True, slots=True)
class FoldedEncoder:
    """An encoder whose embeddings are written in the code of the first layer."""

    encoder: EncoderWeights
    """The floats outside the layers: norm or projection of embeddings are folded."""
    layers: tuple[FoldedLayer, ...]


def fold(encoder: EncoderWeights, ranges: Ranges) -> FoldedEncoder:
    """Return the encoder in 8 bits, for inputs like those that the ranges were measured on."""
    made = [_fold_layer(layer, measured) for layer, measured in zip(encoder.layers, ranges, strict=True)]
    layers = [
        layer if following is None else replace(layer, output_norm=following.code.folded(layer.output_norm))
        for layer, following in zip(made, [*made[1:], None], strict=True)
    ]
    first = made[0].code
    if encoder.projection is None:
        encoder = replace(encoder, norm=first.folded(encoder.norm))
    else:
        linear = encoder.projection
        coded = Linear(linear.weight / first.scale[:, None], linear.bias / first.scale + first.shift)
        encoder = replace(encoder, projection=coded)
    return FoldedEncoder(encoder, tuple(layers))


def _fold_layer(layer: EncoderLayer, ranges: Mapping[str, Range]) -> FoldedLayer:
    parts = (layer.query, layer.key, layer.value)
    weights, bias = np.concatenate([p.weight for p in parts]), np.concatenate([p.bias for p in parts])
    code = Code.of(ranges["query"], weights, _ROOM["query"])
    between = Code.of(ranges["attention_output"], layer.attention_output.weight, _ROOM["attention_output"])
    middle = Code.of(ranges["intermediate"], layer.intermediate.weight, _ROOM["intermediate"])
    ones = np.ones(2 * len(between.scale), np.float32)
    to_between = np.concatenate([ones, 1 / between.scale])
    bias = bias * to_between + np.concatenate([0 * ones, between.shift])
    measured = ranges["output"]
    order = np.argsort(-measured.high, kind="stable")
    spared, rest = order[:_SPARED], order[_SPARED:]
    low = min(float(measured.low.min()), 0.0)
    step = (max(float(measured.high[rest].max(initial=0.0)), 1e-6) * _ROOM["output"] - low) / 255
    wide = layer.intermediate.weight * middle.scale
    chosen = wide[spared]
    kept = layer.output.weight.copy()
    kept[:, spared] = 0
    # a residual is scale · coded: the shift in it is taken away by the bias of the product that it is added to
    return FoldedLayer(
        code=code,
        joined=Product.of(weights * code.scale * to_between[:, None], bias, code.shift),
        mixed=Product.of(
            layer.attention_output.weight * between.scale,
            layer.attention_output.bias - code.shift * code.scale,
            between.shift,
        ),
        attention_norm=middle.folded(layer.attention_norm),
        middle=middle,
        intermediate=Product.of(wide, layer.intermediate.bias, middle.shift),
        step=step,
        zero=round(-low / step),
        spared_in=np.ascontiguousarray(chosen.T),
        spared_bias=_float(layer.intermediate.bias[spared] - chosen @ middle.shift),
        spared_out=np.ascontiguousarray(layer.output.weight[:, spared].T),
        output=Product.of(kept, layer.output.bias - middle.shift * middle.scale),
        output_norm=layer.output_norm,
    )


def _float(array: NDArray[np.floating]) -> Floats:
    return np.ascontiguousarray(array, np.float32)
