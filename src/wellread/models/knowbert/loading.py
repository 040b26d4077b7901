"""Load a knowledge layer as a linker: its encoder on onnxruntime, its mention linker in numpy.

torch loads what the runtime does not support: layers with others below them, and some encoders
(`models.knowbert.torch_linker`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wellread import assets
from wellread import config as configs
from wellread.encoders.files import encoder_digest, find_encoder, load_tokenizer, positions_of
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.io.arrays import map_arrays
from wellread.io.extras import extra
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.inference import StateEncoder
from wellread.models.folder import knowbert_layers, read_model_config
from wellread.models.knowbert.config import CandidateConfig, KnowBertConfig
from wellread.models.knowbert.folder import ENTITIES, WEIGHTS, LinkerSettings, read_settings
from wellread.models.knowbert.inference import LayerInference, MentionScorer, SingleLayer
from wellread.models.knowbert.linker_vectors import EntityProjector, Int8Entities, ProjectedEntities
from wellread.models.knowbert.quantization import Int8EntityTable, decode_4bit
from wellread.runtime.cache import digest_of_file
from wellread.runtime.int8 import int8_graph
from wellread.runtime.ranges import FILE as RANGES
from wellread.runtime.ranges import measure_ranges, save_ranges
from wellread.runtime.session import EncoderSession
from wellread.runtime.weights import EncoderWeights, Floats, check_supported, map_words, read_encoder
from wellread.text.windows import TextWindowTokenizer

Precision = Literal["auto", "fp32", "int8"]

_SAMPLE = 128
"""Entities of the KB whose texts stand for those to come when activation ranges are measured."""
_SHARED = 24
"""Tokens that two windows of a text share."""


@dataclass(frozen=True, slots=True)
class OtherKb:
    """KB of a knowledge layer below the linking one."""

    name: str
    kb: KnowledgeBase
    vectors: EntityVectors
    candidates: CandidateConfig


@dataclass(frozen=True, slots=True)
class LinkerParts:
    """Loaded model and settings of a linker."""

    settings: LinkerSettings
    config: KnowBertConfig
    layers: LayerInference
    entities: Int8Entities | ProjectedEntities
    tokenizer: Tokenizer
    below: tuple[OtherKb, ...] = ()
    """KBs of the layers that the states depend on."""

    def window_tokenizer(self) -> TextWindowTokenizer:
        """Return the tokenizer of texts into what the encoder is given."""
        return window_tokenizer_of(self.settings, self.tokenizer)


def window_tokenizer_of(settings: LinkerSettings, tokenizer: Tokenizer) -> TextWindowTokenizer:
    """Return the tokenizer of texts into sentences or windows, as the layer was trained with."""
    shared = min(_SHARED, max(2, settings.width // 4))
    return TextWindowTokenizer(tokenizer, width=settings.width, shared=shared, sentences=settings.sentences)


def load_parts(folder: Path, kb: KnowledgeBase, precision: Precision = "auto") -> LinkerParts:
    """Load the model that links to a KB of this name (or to any, if the folder has one layer)."""
    layer = SavedLayer.of(folder, kb.path.stem)
    if precision == "auto":
        precision = layer.precision
    if not layer.has_below:
        try:
            return layer.parts(*layer.load_runtime(kb, precision))
        except UsageError:
            if precision == "int8":
                raise
    elif precision == "int8":
        raise UsageError("int8 does not support knowledge layers below the linking one; leave precision out")
    with extra("train", f"the encoder of {folder}, which onnxruntime cannot run,"):
        from wellread.models.knowbert import torch_linker
    return torch_linker.load_parts(layer)


@dataclass(frozen=True, slots=True)
class SavedLayer:
    """A knowledge layer in a folder: where its weights and those of its encoder are."""

    folder: Path
    settings: LinkerSettings
    config: KnowBertConfig
    number: int | None
    """Position among the encoder's infusions; None for a small linker."""
    has_below: bool
    """True if states depend on other knowledge layers."""
    precision: Precision

    @classmethod
    def of(cls, folder: Path, kb: str) -> SavedLayer:
        """Find the layer of a KB of this name, or the only one."""
        settings = read_settings(folder, kb)
        width = min(settings.width, positions_of(settings.encoder or str(folder)))
        settings = replace(settings, width=width)
        if settings.encoder is not None:
            if settings.layer is None:
                raise InputError(f"{folder / 'linker.json'} does not say what its layer is; copy the linker again")
            return cls(folder, settings, settings.layer, None, False, "auto")
        about = read_model_config(folder)
        entries = about.get("infusions", [])
        number = next((at for at, entry in enumerate(entries) if _kb_of(entry) == settings.kb), None)
        if number is None:
            raise UsageError(f"{folder} has no knowledge layer of {settings.kb}; give a folder that has one")
        if len(knowbert_layers(folder)) < len(entries):
            kinds = sorted({str(entry.get("kind")) for entry in entries} - {"knowbert"})
            raise UsageError(
                f"{folder} was trained with other infusions ({', '.join(kinds)}); only KnowBERT layers can be used as "
                "a linker: train one without"
            )
        layers = [_config_of(entry) for entry in entries]
        own = layers[number]
        # Layers after the same encoder layer run in the order of their list.
        has_below = any(part.layer < own.layer for part in layers) or any(
            part.layer == own.layer for part in layers[:number]
        )
        precision = str(about.get("precision", "auto"))
        if precision not in ("auto", "fp32", "int8"):
            raise InputError(f"{folder / 'config.json'} has the precision {precision!r}; write auto, fp32 or int8")
        return cls(folder, settings, own, number, has_below, precision)  # type: ignore[arg-type]

    @property
    def encoder(self) -> str:
        """Name of the encoder; for a whole one its folder."""
        return self.settings.encoder or str(self.folder)

    @property
    def weights_file(self) -> Path:
        """File with the weights of the layer."""
        return self.folder / (WEIGHTS if self.number is None else "model.safetensors")

    def parts(self, encoder: StateEncoder, weights: Mapping[str, Floats]) -> LinkerParts:
        """Return the linker of an encoder and the layer's weights, named as in its `linker`."""
        try:
            own = {name.removeprefix("entities."): weights[name] for name in weights if name.startswith("entities.")}
            projector = EntityProjector.of(own)
        except KeyError as error:
            raise InputError(f"{self.weights_file} lacks the weight {error}; copy the linker again") from None
        entities = self.entities(projector)
        layers = SingleLayer(encoder, MentionScorer(self.config, weights), entities, self.config.kb)
        return LinkerParts(self.settings, self.config, layers, entities, load_tokenizer(self.encoder))

    def entities(self, projector: EntityProjector) -> Int8Entities | ProjectedEntities:
        """Return the vectors of the folder's table, or those of the KB, once they are given."""
        if (self.folder / ENTITIES).is_file():
            return Int8Entities(Int8EntityTable.load(self.folder / ENTITIES), projector)
        return ProjectedEntities(projector, self.config.raw)

    def load_runtime(self, kb: KnowledgeBase, precision: Precision) -> tuple[StateEncoder, dict[str, Floats]]:
        """Load the encoder for onnxruntime, and the layer's weights; a `UsageError` names an unsupported encoder."""
        check_supported(find_encoder(self.encoder), infused=self.number is not None)
        arrays = self.arrays()
        weights = {name: np.asarray(array, np.float32) for name, array in self.linker_arrays(arrays).items()}
        read = partial(self.encoder_weights, arrays)
        if precision == "fp32":
            from wellread.runtime.graph import write_graph

            encoder = read()
            return EncoderSession(write_graph(encoder, layers=self.config.reads), encoder.words), weights
        graph = int8_graph(
            self.weights_file,
            read,
            parts=("knowbert", encoder_digest(self.encoder), self.config.layer),
            layers=self.config.reads,
            sample=partial(self._sample, kb),
            cache=assets.home() / "graphs",
        )
        return EncoderSession(graph, self._words(arrays)), weights

    def write_ranges(self, kb: KnowledgeBase) -> None:
        """Measure the activation ranges on texts of a KB, and write them beside the weights."""
        ranges = measure_ranges(self.encoder_weights(), self._sample(kb))
        save_ranges(ranges, self.folder / RANGES, weights=digest_of_file(self.weights_file))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Map the file with the weights."""
        try:
            return map_arrays(self.weights_file)
        except KeyError as error:
            raise UsageError(f"the runtime reads floats of 16 and 32 bits, not {error}; use torch") from error
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.weights_file} cannot be read ({error}); copy the linker again") from error

    def linker_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the weights of the mention linker, named as in it."""
        start = "linker." if self.number is None else f"infusions.{self.number}.linker."
        return {name.partition(start)[2]: array for name, array in arrays.items() if start in name}

    def changes(self, arrays: Mapping[str, NDArray[Any]]) -> WeightChanges:
        """Return the trained changes of the encoder of a small linker."""
        return WeightChanges(arrays, self.weights_file)

    def encoder_weights(self, arrays: Mapping[str, NDArray[Any]] | None = None) -> EncoderWeights:
        """Read the encoder's layers up to the knowledge layer, with their trained changes."""
        if self.number is None:
            arrays = self.arrays() if arrays is None else arrays
            change = self.changes(arrays)
            encoder = read_encoder(find_encoder(self.encoder), change=change)
            change.check(self.encoder)
        else:
            encoder = read_encoder(self.folder, infused=True)
        return encoder.first_layers(self.config.layer + 1)

    def _words(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        if self.number is None and any(name.startswith("embeddings.word_embeddings.") for name in arrays):
            return self.encoder_weights(arrays).words
        return map_words(find_encoder(self.encoder))

    def _sample(self, kb: KnowledgeBase) -> Sequence[NDArray[np.int64]]:
        """Return token ids of titles and descriptions of entities from all parts of the KB."""
        step = max(1, len(kb) // _SAMPLE)
        with sqlite_errors(kb.path):
            query = "SELECT title, description FROM entities WHERE num % ? = 0 LIMIT ?"
            rows = kb.connection.execute(query, (step, _SAMPLE)).fetchall()
        windows = window_tokenizer_of(self.settings, load_tokenizer(self.encoder))
        texts = [f"{title}: {description}" for title, description in rows]
        return [window.input.ids for some in windows.tokenize(texts, words=False) for window in some]


class WeightChanges:
    """Trained changes of an encoder's weights: in 4 bits, of low rank, or whole."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], file: Path) -> None:
        self._left = {name: array for name, array in arrays.items() if not name.startswith("linker.")}
        self._file = file

    def __call__(self, name: str, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a weight with its change."""
        try:
            if f"{name}.up" in self._left:
                up, down = self._take(name, "up", "down")
                return np.asarray(weight, np.float32) + up.astype(np.float32) @ down.astype(np.float32)
            if f"{name}.codes" in self._left:
                codes, scales = self._take(name, "codes", "scales")
                return np.asarray(weight, np.float32) + decode_4bit(codes, scales, weight.shape[1])
            if name in self._left:
                whole = self._left.pop(name).astype(np.float32)
                if whole.shape != weight.shape:
                    raise ValueError(f"{name} has the shape {whole.shape}, the encoder's {weight.shape}")
                return whole
        except (ValueError, KeyError, IndexError) as error:
            raise InputError(f"{self._file} does not fit its encoder ({error}); copy the linker again") from error
        return weight

    def _take(self, name: str, *parts: str) -> tuple[NDArray[Any], ...]:
        return tuple(self._left.pop(f"{name}.{part}") for part in parts)

    def check(self, encoder: str) -> None:
        """Raise an `InputError` if there are changes of weights that the encoder does not have."""
        if self._left:
            raise InputError(f"{self._file}: {encoder} has no {min(self._left)}; copy the linker again")


def _kb_of(entry: Mapping[str, Any]) -> str | None:
    return str(entry.get("kb", "wordnet")) if entry.get("kind") == "knowbert" else None


def _config_of(entry: Mapping[str, Any]) -> KnowBertConfig:
    return configs.from_dict(KnowBertConfig, {name: value for name, value in entry.items() if name != "kind"})
