"""ELQ's text side for inference: states of windows from any encoder, scores and vectors of spans in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wellread.encoders.files import encoder_digest, find_encoder
from wellread.models.elq.config import WEIGHTS, ElqConfig
from wellread.runtime import spans
from wellread.runtime.int8 import Sample, int8_graph
from wellread.runtime.session import EncoderSession, normalised
from wellread.runtime.spans import Ints, PackedWindows
from wellread.runtime.weights import (
    EncoderWeights,
    Floats,
    check_supported,
    map_words,
    merge_adapters,
    read_encoder,
    read_trained,
)

HEADS = (
    "mention_head.weight",
    "mention_head.bias",
    "entity_head.weight",
    "names_head.weight",
    "log_scale",
    "nil_head",
)


@dataclass(frozen=True, slots=True)
class ElqHeads:
    """The trained weights of an ELQ linker beside its encoder."""

    mention_weight: Floats
    """(3, dim): start, end and inside."""
    mention_bias: Floats
    entity_weight: Floats
    """(entity dim, dim)."""
    names: tuple[float, float]
    """Weights of a candidate's being named, and of its log prior."""
    nil: float
    log_scale: float

    @classmethod
    def of(cls, arrays: dict[str, Floats]) -> ElqHeads:
        """Return the heads as they are named in a linker's model.safetensors."""
        named, prior = arrays["names_head.weight"].ravel().tolist()
        return cls(
            arrays["mention_head.weight"],
            arrays["mention_head.bias"],
            arrays["entity_head.weight"],
            (named, prior),
            float(arrays["nil_head"]),
            float(arrays["log_scale"]),
        )


class StateEncoder(Protocol):
    """Protocol of encoders of windows: a session of the runtime, or a torch encoder (`models.elq.model`)."""

    def states(self, windows: Sequence[NDArray[np.int64]]) -> Floats:
        """Return the last state of every token, windows concatenated."""


class ElqInference:
    """The text side of an ELQ model for inference: states, mention scores, mention and context vectors."""

    def __init__(self, config: ElqConfig, encoder: StateEncoder, heads: ElqHeads) -> None:
        self.config, self.encoder, self.heads = config, encoder, heads
        # In double precision, so that rounding to single hides the order of summation, which depends on the batch.
        self._mention_weight = heads.mention_weight.astype(np.float64)
        self._entity_weight = heads.entity_weight.astype(np.float64)

    @property
    def scale(self) -> float:
        """Learned length of mention vectors."""
        return float(np.exp(np.float32(self.heads.log_scale)))

    def states(self, windows: Sequence[NDArray[np.int64]]) -> Floats:
        """Return the last state of every token, windows concatenated."""
        return self.encoder.states(windows)

    def mention_logits(self, states: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the logits of every token to start a mention, to end one, and to be inside one."""
        logits = (states @ self._mention_weight.T + self.heads.mention_bias).astype(np.float32)
        start, end, inside = np.ascontiguousarray(logits.T)
        return start, end, inside

    def mention_vectors(self, states: Floats, firsts: Ints, lasts: Ints, packed: PackedWindows) -> Floats:
        """Return the mentions' query vectors; their dot products with entity vectors are the scores."""
        means = spans.span_means(states, firsts, lasts)
        vectors = (means @ self._entity_weight.T).astype(np.float32)  # independent of the number of mentions
        if self.config.normalised:
            vectors = normalised(vectors) * np.float32(self.scale)
        if self.config.context:
            contexts = self.context_vectors(states, packed)[packed.window_of[firsts]]
            vectors = vectors + np.float32(self.config.context) * contexts
        return vectors

    def context_vectors(self, states: Floats, packed: PackedWindows) -> Floats:
        """Return the direction of the mean state of each window, without its first and last token ([CLS], [SEP])."""
        inner = (packed.lengths > 2).astype(np.int64)
        firsts, lasts = packed.starts + inner, packed.starts + packed.lengths - 1 - inner
        return normalised(spans.span_means(states, firsts, lasts))


def load_inference(
    folder: Path,
    config: ElqConfig,
    *,
    precision: Literal["fp32", "int8"] = "int8",
    sample: Sample | None = None,
    cache: Path | None = None,
    threads: int | None = None,
) -> ElqInference:
    """Load the text side of the linker in a folder for onnxruntime; a `UsageError` names an unsupported encoder.

    An int8 graph is read from the cache. If it is not there, it is built with the ranges in the linker's folder, or
    with those measured on the sample.
    """
    encoder = find_encoder(config.encoder)
    check_supported(encoder)
    heads, adapters = read_trained(folder / WEIGHTS, HEADS)

    def merged() -> EncoderWeights:
        return merge_adapters(read_encoder(encoder), adapters)

    if precision == "fp32":
        from wellread.runtime.graph import write_graph

        graph = write_graph(merged())
    else:
        parts = ("elq", encoder_digest(config.encoder))
        graph = int8_graph(folder / WEIGHTS, merged, parts=parts, sample=sample, cache=cache, threads=threads)
    return ElqInference(config, EncoderSession(graph, map_words(encoder), threads=threads), ElqHeads.of(heads))
