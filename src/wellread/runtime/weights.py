"""Weights of pretrained encoders in numpy: a checkpoint in the Hugging Face layout, and adapters merged into it.

Nothing is copied that is not changed: arrays are mapped from the file, above all the table of word embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError, UsageError
from wellread.io.arrays import map_arrays

Floats = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]

Change = Callable[[str, NDArray[Any]], NDArray[Any]]
"""Returns a weight of the encoder, given by its name and its value in the checkpoint, as training left it."""

ADAPTER_SCALE = 2.0
"""Alpha / rank of every adapter that wellread trains (`add_adapters`)."""
_FILE, _WORDS = "model.safetensors", "embeddings.word_embeddings.weight"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
_INFUSED = "infused-"
"""Prefix of the model types of infused encoders."""
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection: `x @ weight.T + bias`."""

    weight: Floats
    """(out, in)."""
    bias: Floats


@dataclass(frozen=True, slots=True)
class Norm:
    """Scale and shift of a layer normalisation."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One transformer layer with its norms behind attention and feed-forward (post-norm)."""

    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    attention_norm: Norm
    intermediate: Linear
    output: Linear
    output_norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """The weights and sizes of an encoder, as much of them as its states depend on."""

    words: NDArray[Any]
    """(token id, width): word embeddings in the precision of the file, mapped."""
    positions: Floats
    """(position, width): position embeddings from the first position on, with the embedding of token type 0 added."""
    norm: Norm
    projection: Linear | None
    """From the width of embeddings to that of states, where they differ (ELECTRA)."""
    layers: tuple[EncoderLayer, ...]
    heads: int
    activation: str
    epsilon: float

    @property
    def dim(self) -> int:
        """The width of states."""
        return len(self.layers[0].output_norm.bias)

    def first_layers(self, count: int) -> EncoderWeights:
        """Return the encoder without its layers after the first `count`."""
        return replace(self, layers=self.layers[:count])


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a layer's parts in the checkpoints of a family."""

    layers: str
    parts: Mapping[str, str]


_BERT = _Names(
    "encoder.layer",
    {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attention_output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "intermediate": "intermediate.dense",
        "output": "output.dense",
        "output_norm": "output.LayerNorm",
    },
)
_DISTILBERT = _Names(
    "transformer.layer",
    {
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "attention_output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "intermediate": "ffn.lin1",
        "output": "ffn.lin2",
        "output_norm": "output_layer_norm",
    },
)
_FAMILIES = {"bert": _BERT, "roberta": _BERT, "xlm-roberta": _BERT, "electra": _BERT, "distilbert": _DISTILBERT}


def read_encoder(folder: Path, *, change: Change | None = None, infused: bool = False) -> EncoderWeights:
    """Read config.json and model.safetensors; a `UsageError` names an encoder that the runtime cannot run.

    `change` is applied to each weight. `infused` accepts an encoder with infusions, which are left out.
    """
    config = _read_config(folder, infused)
    names = _FAMILIES[config["model_type"]]
    arrays = _map_file(folder / _FILE)
    prefix = _prefix_of(arrays, folder)
    own = {_modern(name.removeprefix(prefix)): array for name, array in arrays.items() if name.startswith(prefix)}
    if change is not None:
        own = {name: change(name, array) for name, array in own.items()}
    try:
        return _assemble(own, config, names)
    except KeyError as error:
        raise InputError(
            f"{folder} lacks weights of its encoder, e.g. {error.args[0]}; its config.json and weights must be of one "
            "model: copy it again"
        ) from error


def check_supported(folder: Path, *, infused: bool = False) -> None:
    """Raise a `UsageError` for an encoder that the runtime cannot run, without reading its weights."""
    _read_config(folder, infused)
    if not (folder / _FILE).exists():
        raise UsageError(f"the runtime reads one {_FILE}, which {folder} lacks; use torch")


def map_words(folder: Path) -> NDArray[Any]:
    """Map the word embeddings of an encoder's folder, without reading anything else."""
    arrays = _map_file(folder / _FILE)
    return arrays[_prefix_of(arrays, folder) + _WORDS]


def _modern(name: str) -> str:
    """Return the name of a weight in place of that of a checkpoint converted from TensorFlow."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _read_config(folder: Path, infused: bool) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
        kind, position_type = config.get("model_type"), config.get("position_embedding_type", "absolute")
    except _UNREADABLE as error:
        raise InputError(f"{folder} has no encoder: {error}; give a folder with config.json") from error
    if infused and str(kind).startswith(_INFUSED):
        config["model_type"] = kind = str(kind).removeprefix(_INFUSED)
    if kind not in _FAMILIES:
        raise UsageError(f"the runtime knows encoders of the types {', '.join(_FAMILIES)}, not {kind}; use torch")
    if ("infusions" in config and not infused) or config.get("is_decoder"):
        raise UsageError(f"the runtime knows plain encoders; {folder.name} is infused or a decoder: use torch")
    if position_type != "absolute" or config.get("sinusoidal_pos_embds"):
        raise UsageError(f"the runtime knows learned absolute positions, not those of {folder.name}; use torch")
    settings: dict[str, Any] = config
    return settings


def _map_file(file: Path) -> dict[str, NDArray[Any]]:
    if not file.exists():
        raise UsageError(f"the runtime reads one {file.name}, which {file.parent} lacks; use torch")
    try:
        return map_arrays(file)
    except KeyError as error:
        raise UsageError(
            f"the runtime reads floats of 16 and 32 bits, and {file} has weights in {error.args[0]}; use torch"
        ) from error
    except _UNREADABLE as error:
        raise InputError(f"{file} cannot be read as safetensors in floats ({error}); copy it again") from error


def _prefix_of(arrays: Arrays, folder: Path) -> str:
    """Return the prefix of the encoder's names: that of a model with a head is e.g. "bert."."""
    for name in arrays:
        if name.endswith(_WORDS):
            return name.removesuffix(_WORDS)
    raise InputError(f"{folder} has no word embeddings in its model.safetensors; copy it again")


def _assemble(arrays: Arrays, config: Mapping[str, Any], names: _Names) -> EncoderWeights:
    distil = names is _DISTILBERT
    positions = _floats(arrays["embeddings.position_embeddings.weight"])
    if "roberta" in config["model_type"]:  # positions count from behind the padding id
        positions = positions[int(config["pad_token_id"]) + 1 :]
    if not distil:
        positions = positions + _floats(arrays["embeddings.token_type_embeddings.weight"])[0]
    projection = _linear(arrays, "embeddings_project") if "embeddings_project.weight" in arrays else None
    count = int(config["n_layers" if distil else "num_hidden_layers"])
    layers = tuple(_layer(arrays, names, f"{names.layers}.{number}") for number in range(count))
    return EncoderWeights(
        words=arrays[_WORDS],
        positions=positions,
        norm=_norm(arrays, "embeddings.LayerNorm"),
        projection=projection,
        layers=layers,
        heads=int(config["n_heads" if distil else "num_attention_heads"]),
        activation=str(config.get("activation" if distil else "hidden_act", "gelu")),
        epsilon=1e-12 if distil else float(config.get("layer_norm_eps", 1e-12)),
    )


def _layer(arrays: Arrays, names: _Names, at: str) -> EncoderLayer:
    parts: dict[str, Any] = {
        part: (_norm if part.endswith("norm") else _linear)(arrays, f"{at}.{name}")
        for part, name in names.parts.items()
    }
    return EncoderLayer(**parts)


def _linear(arrays: Arrays, name: str) -> Linear:
    return Linear(_floats(arrays[f"{name}.weight"]), _floats(arrays[f"{name}.bias"]))


def _norm(arrays: Arrays, name: str) -> Norm:
    return Norm(_floats(arrays[f"{name}.weight"]), _floats(arrays[f"{name}.bias"]))


def _floats(array: NDArray[Any]) -> Floats:
    return np.asarray(array, np.float32)


def merge_adapters(encoder: EncoderWeights, adapters: Arrays, scale: float = ADAPTER_SCALE) -> EncoderWeights:
    """Return the encoder with adapters added: W + scale · B · A for each projection that has A and B.

    Names are those of the checkpoint without a prefix: `encoder.layer.0.output.dense.lora_A.default.weight`.
    """
    left = {name.removesuffix(_A) for name in adapters if name.endswith(_A)}
    names = next((family for family in (_BERT, _DISTILBERT) if any(n.startswith(family.layers) for n in left)), _BERT)

    def merged(linear: Linear, name: str) -> Linear:
        if name not in left:
            return linear
        left.discard(name)
        try:
            update = np.float32(scale) * (_floats(adapters[name + _B]) @ _floats(adapters[name + _A]))
            return Linear(linear.weight + update, linear.bias)
        except (KeyError, ValueError) as error:
            raise InputError(f"the adapter of {name} does not fit its encoder ({error}); train it again") from error

    layers = []
    for number, layer in enumerate(encoder.layers):
        parts = {part: getattr(layer, part) for part in names.parts}
        for part, name in names.parts.items():
            if isinstance(parts[part], Linear):
                parts[part] = merged(parts[part], f"{names.layers}.{number}.{name}")
        layers.append(EncoderLayer(**parts))
    projection = None if encoder.projection is None else merged(encoder.projection, "embeddings_project")
    if left:
        raise InputError(f"the encoder has no projection for the adapter of {min(left)}; give the one it was made for")
    return replace(encoder, projection=projection, layers=tuple(layers))


def read_trained(file: Path, wanted: Iterable[str]) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Read a trained linker's model.safetensors: its heads by name, and the adapters of its encoder.

    `wanted` are the heads; a file that lacks one, or holds others, is refused.
    """
    try:
        arrays = {name: _floats(array) for name, array in map_arrays(file).items()}
    except _UNREADABLE as error:
        raise InputError(f"{file} cannot be read as safetensors ({error}); copy or train the model again") from error
    adapters = {name.removeprefix("encoder."): array for name, array in arrays.items() if name.startswith("encoder.")}
    heads = {name: array for name, array in arrays.items() if not name.startswith("encoder.")}
    if odd := sorted(set(wanted) ^ set(heads)) + sorted(n for n in adapters if not n.endswith((_A, _B))):
        raise InputError(
            f"{file} does not fit its config.json: {len(odd)} weights are missing or too many, e.g. {odd[0]}; they "
            "must come from the same run"
        )
    return heads, adapters
