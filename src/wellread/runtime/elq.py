"""ELQ's text side without torch: states of windows from a session, scores and vectors of spans in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wellread.runtime import spans
from wellread.runtime.cache import cached_graph, digest_of_file, digest_of_parts
from wellread.runtime.folding import fold
from wellread.runtime.ranges import FILE as RANGES
from wellread.runtime.ranges import load_ranges, measure_ranges
from wellread.runtime.session import EncoderSession, normalised
from wellread.runtime.weights import (
    EncoderWeights,
    Floats,
    map_words,
    merge_adapters,
    read_encoder,
    read_trained,
)

WEIGHTS = "model.safetensors"
HEADS = (
    "mention_head.weight",
    "mention_head.bias",
    "entity_head.weight",
    "names_head.weight",
    "log_scale",
    "nil_head",
)

Sample = Callable[[], Sequence[NDArray[np.int64]]]
"""Gives windows of token ids like those to come, to measure ranges on."""


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


class ElqRuntime:
    """The text side of an ELQ linker: states, mention scores and mention vectors, as `models.elq.Elq` has them."""

    def __init__(self, session: EncoderSession, heads: ElqHeads, *, longest: int, normalise: bool) -> None:
        self.session, self.heads = session, heads
        self.longest, self.normalise = longest, normalise

    @classmethod
    def load(
        cls,
        folder: Path,
        encoder: Path,
        *,
        digest: str,
        longest: int,
        normalise: bool,
        precision: Literal["fp32", "int8"] = "int8",
        sample: Sample | None = None,
        cache: Path | None = None,
        threads: int | None = None,
    ) -> ElqRuntime:
        """Open the linker in a folder on the encoder in another, whose weights have this digest.

        In 8 bits the graph is taken from the cache. Where it is not there, it is made with the ranges in the linker's
        folder, or with those measured on the sample.
        """
        heads, adapters = read_trained(folder / WEIGHTS, HEADS)

        def merged() -> EncoderWeights:
            return merge_adapters(read_encoder(encoder), adapters)

        def build() -> bytes:
            from wellread.runtime.graph import write_int8_graph  # here: a cached graph needs no onnx

            weights, file = merged(), folder / RANGES
            if file.exists():
                ranges = load_ranges(file, weights)
            else:
                ranges = measure_ranges(weights, () if sample is None else sample(), threads)
            return write_int8_graph(fold(weights, ranges))

        if precision == "fp32":
            from wellread.runtime.graph import write_graph

            graph = write_graph(merged())
        else:
            parts = ("elq", digest, digest_of_file(folder / WEIGHTS), digest_of_file(folder / RANGES))
            graph = cached_graph(cache, digest_of_parts(*parts), build)
        session = EncoderSession(graph, map_words(encoder), threads=threads)
        return cls(session, ElqHeads.of(heads), longest=longest, normalise=normalise)

    @property
    def scale(self) -> float:
        """The learned length of mention vectors."""
        return float(np.exp(np.float32(self.heads.log_scale)))

    def states(self, windows: Sequence[NDArray[np.int64]]) -> Floats:
        """Return the last state of every token, windows end to end."""
        return self.session.states(windows)

    def mention_logits(self, states: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the logits of every token to start a mention, to end one, and to be inside one."""
        weight = self.heads.mention_weight.astype(np.float64)  # so that rounding hides the order of summation
        logits = (states @ weight.T + self.heads.mention_bias).astype(np.float32)
        start, end, inside = np.ascontiguousarray(logits.T)
        return start, end, inside

    def mention_scores(self, states: Floats) -> Floats:
        """Return the logit of every span being a mention, (token, width)."""
        return spans.span_scores(*self.mention_logits(states), self.longest)

    def mention_scores_of(
        self, states: Floats, firsts: NDArray[np.int64], lasts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the mention logits of spans of any width."""
        return spans.scores_of(*self.mention_logits(states), firsts, lasts)

    def mention_vectors(self, states: Floats, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Floats:
        """Return the vectors that the index is searched with: dot products with entity vectors are scores."""
        vectors = spans.span_means(states, firsts, lasts) @ self.heads.entity_weight.T
        return normalised(vectors) * np.float32(self.scale) if self.normalise else vectors
