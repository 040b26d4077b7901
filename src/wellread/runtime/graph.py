"""ONNX graphs of encoders: word embeddings of equally long windows in, states out.

Input `words` (window, token, width) are embeddings that the session looks up, so that their table stays in the
encoder's own file. Output `states` (window, token, dim) are the last layer's, or the mean of the last layers'.
The graphs use com.microsoft's operators for attention and 8-bit products, which onnxruntime's CPU build has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from wellread.errors import UsageError
from wellread.runtime.folding import MEASURED, FoldedEncoder, FoldedLayer, Product
from wellread.runtime.session import STATES, WORDS
from wellread.runtime.weights import EncoderLayer, EncoderWeights, Floats, Linear, Norm

if TYPE_CHECKING:
    from collections.abc import Sequence

_MS = "com.microsoft"
_OPSETS = (("", 18), (_MS, 1))
_IR = 9
_ACTIVATIONS = {
    "gelu": ("Gelu", _MS),
    "gelu_new": ("FastGelu", _MS),
    "gelu_pytorch_tanh": ("FastGelu", _MS),
    "relu": ("Relu", ""),
}
"""Names of transformers → operator and domain."""


class _Writer:
    """The nodes and constants of a graph under construction."""

    def __init__(self, encoder: EncoderWeights) -> None:
        if encoder.activation not in _ACTIVATIONS:
            raise UsageError(
                f"the runtime knows the activations {', '.join(_ACTIVATIONS)}, not {encoder.activation}; use torch"
            )
        self.encoder = encoder
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def add(self, operator: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or the names of its outputs."""
        names = [f"{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: NDArray[Any]) -> str:
        """Add a constant; return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        """Let a value be an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def norm(self, value: str, norm: Norm) -> str:
        epsilon = self.encoder.epsilon
        named = (self.constant(norm.weight), self.constant(norm.bias))
        name: str = self.add("LayerNormalization", value, *named, axis=-1, epsilon=epsilon)
        return name

    def linear(self, value: str, weight: Floats, bias: Floats) -> str:
        """Multiply by a weight (in, out) and add a bias."""
        product = self.add("MatMul", value, self.constant(weight))
        name: str = self.add("Add", product, self.constant(bias))
        return name

    def activation(self, value: str) -> str:
        operator, domain = _ACTIVATIONS[self.encoder.activation]
        name: str = self.add(operator, value, domain=domain)
        return name

    def embeddings(self) -> str:
        """Add positions to word embeddings, and normalise."""
        whole = np.array([0], np.int64)
        shape = self.add("Shape", WORDS, start=1, end=2)
        table = self.constant(self.encoder.positions)
        places = self.add("Slice", table, self.constant(whole), shape, self.constant(whole))
        states = self.norm(self.add("Add", WORDS, places), self.encoder.norm)
        projection = self.encoder.projection
        return states if projection is None else self.linear(states, projection.weight.T, projection.bias)

    def attend(self, joined: str) -> str:
        """Attend from every token to every token of its window; queries, keys and values lie side by side."""
        parts = self.add("Split", joined, outputs=3, axis=-1, num_outputs=3)
        name: str = self.add("MultiHeadAttention", *parts, domain=_MS, num_heads=self.encoder.heads)
        return name

    def mean(self, states: Sequence[str]) -> str:
        """Return the mean of several layers' states."""
        name: str = states[0] if len(states) == 1 else self.add("Mean", *states)
        return name

    def model(self) -> bytes:
        """Return the graph, serialised."""
        width = len(self.encoder.norm.bias)
        words = helper.make_tensor_value_info(WORDS, TensorProto.FLOAT, ["window", "token", width])
        graph = helper.make_graph(self.nodes, "encoder", [words], self.outputs, self.constants)
        opsets = [helper.make_opsetid(*opset) for opset in _OPSETS]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="wellread")
        data: bytes = model.SerializeToString(deterministic=True)
        return data


def write_graph(encoder: EncoderWeights, *, layers: int = 1, measure: bool = False) -> bytes:
    """Return the graph of an encoder in floats; its states are the mean of the last `layers`.

    With `measure` the least and greatest value of each channel that goes into the projections are outputs too.
    """
    writer = _Writer(encoder)
    every = [writer.embeddings()]
    for number, layer in enumerate(encoder.layers):
        seen: dict[str, str] = {}
        every.append(_write_layer(writer, layer, every[-1], seen))
        if measure:
            _write_ranges(writer, number, seen)
    _write_states(writer, every, layers)
    return writer.model()


def write_int8_graph(folded: FoldedEncoder, *, layers: int = 1) -> bytes:
    """Return the graph of an encoder in 8-bit integers; its states are the mean of the last `layers`."""
    writer = _Writer(folded.encoder)
    every, coded = [], writer.embeddings()
    for layer in folded.layers:
        every.append((coded, layer))
        coded = _write_int8_layer(writer, layer, coded)
    plain = [coded]
    for value, layer in every[::-1][: layers - 1]:
        away = writer.constant(layer.code.shift * layer.code.scale)
        plain.append(writer.add("Sub", writer.add("Mul", value, writer.constant(layer.code.scale)), away))
    _write_states(writer, plain[::-1], layers)
    return writer.model()


def range_name(layer: int, part: str, end: str) -> str:
    """Return the name of an output that holds one end ("low", "high") of a measured range."""
    return f"{layer}.{part}.{end}"


def _write_states(writer: _Writer, every: Sequence[str], layers: int) -> None:
    if not 1 <= layers <= len(writer.encoder.layers) + 1:
        raise UsageError(f"the encoder has {len(writer.encoder.layers)} layers; the mean of {layers} cannot be read")
    writer.output(writer.mean(every[-layers:]), STATES, ["window", "token", writer.encoder.dim])


def _write_layer(writer: _Writer, layer: EncoderLayer, states: str, seen: dict[str, str]) -> str:
    parts = (layer.query, layer.key, layer.value)
    weight, bias = np.concatenate([part.weight for part in parts]).T, np.concatenate([part.bias for part in parts])
    attended = writer.attend(writer.linear(states, weight, bias))
    mixed = _linear(writer, attended, layer.attention_output)
    middle = writer.norm(writer.add("Add", mixed, states), layer.attention_norm)
    wide = writer.activation(_linear(writer, middle, layer.intermediate))
    seen |= zip(MEASURED, (states, attended, middle, wide), strict=True)
    return writer.norm(writer.add("Add", _linear(writer, wide, layer.output), middle), layer.output_norm)


def _linear(writer: _Writer, value: str, linear: Linear) -> str:
    return writer.linear(value, linear.weight.T, linear.bias)


def _write_ranges(writer: _Writer, number: int, seen: dict[str, str]) -> None:
    axes = writer.constant(np.array([0, 1], np.int64))
    for part, value in seen.items():
        for end, operator in (("low", "ReduceMin"), ("high", "ReduceMax")):
            reduced = writer.add(operator, value, axes, keepdims=0)
            writer.output(reduced, range_name(number, part, end), ["channel"])


def _write_int8_layer(writer: _Writer, layer: FoldedLayer, coded: str) -> str:
    joined = _product(writer, _bytes(writer, coded), layer.joined)
    attended = writer.attend(joined)
    mixed = _product(writer, _bytes(writer, attended), layer.mixed)
    residual = writer.add("Mul", coded, writer.constant(layer.code.scale))
    middle = writer.norm(writer.add("Add", mixed, residual), layer.attention_norm)
    wide = writer.activation(_product(writer, _bytes(writer, middle), layer.intermediate))
    made = _product(writer, _bytes(writer, wide, layer.step, layer.zero), layer.output, layer.step, layer.zero)
    spared = writer.activation(writer.linear(middle, layer.spared_in, layer.spared_bias))
    made = writer.add("Add", made, writer.add("MatMul", spared, writer.constant(layer.spared_out)))
    residual = writer.add("Mul", middle, writer.constant(layer.middle.scale))
    return writer.norm(writer.add("Add", made, residual), layer.output_norm)


def _bytes(writer: _Writer, value: str, step: float = 1.0, zero: int = 128) -> str:
    """Round to the nearest of 256 steps."""
    name: str = writer.add("QuantizeLinear", value, *_scale(writer, step, zero))
    return name


def _scale(writer: _Writer, step: float, zero: int) -> tuple[str, str]:
    return writer.constant(np.float32(step)), writer.constant(np.uint8(zero))  # type: ignore[arg-type]


def _product(writer: _Writer, given: str, product: Product, step: float = 1.0, zero: int = 128) -> str:
    (scale, zero_name), weight = _scale(writer, step, zero), writer.constant(product.weight)
    zeros = writer.constant(np.zeros(len(product.scales), np.int8))
    inputs = (given, weight, scale, writer.constant(product.scales), zero_name, zeros, writer.constant(product.bias))
    name: str = writer.add("MatMulIntegerToFloat", *inputs, domain=_MS)
    return name
