"""ELQ's entity encoder: maps title and description to a vector (Li et al. 2020, section 4.2).

The encoder is frozen: a knowledge base is encoded once, afterwards only changed entities are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wellread import assets
from wellread.encoders.files import encoder_digest, find_encoder, load_tokenizer
from wellread.errors import UsageError
from wellread.io.extras import extra
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.packaged_vectors import PackagedVectors
from wellread.runtime.cache import cached_graph, digest_of_parts
from wellread.runtime.folding import fold
from wellread.runtime.ranges import measure_ranges
from wellread.runtime.session import EncoderSession
from wellread.runtime.weights import check_supported, map_words, read_encoder

Precision = Literal["auto", "fp32", "int8"]


class Pooler(Protocol):
    """Protocol of encoders of tokenized texts to one vector each."""

    @property
    def dim(self) -> int:
        """Size of a vector."""

    def pooled(
        self, windows: Sequence[NDArray[np.int64]], pooling: Literal["mean", "cls"], *, normalise: bool
    ) -> NDArray[np.float32]:
        """Return the vectors of token ids in order."""


class EntityTower:
    """Entity encoder of an ELQ model (an `index.entity_vectors.EntityEncoder`)."""

    def __init__(
        self,
        config: ElqConfig,
        encoder: Pooler,
        tokenizer: Tokenizer,
        fingerprint: str,
        packaged: PackagedVectors | None = None,
    ) -> None:
        """`packaged` are vectors of texts that need not be encoded."""
        self.config, self.encoder, self.tokenizer = config, encoder, tokenizer
        self.tokenizer.enable_truncation(config.entity_pieces)
        self.dim = encoder.dim
        self.fingerprint = fingerprint
        self.packaged = packaged
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        self._always_separates = config.separator.strip() in special

    @classmethod
    def load(cls, config: ElqConfig, *, precision: Precision = "fp32") -> EntityTower:
        """Load the entity encoder of a linker; its config suffices, as the encoder is not trained.

        With "auto" the precision is int8, unless the config asks for fp32 or the runtime does not know the encoder.
        Vectors of both precisions may be mixed: they are compared with each other, so they have one fingerprint.
        """
        if precision == "auto":
            precision = "fp32" if config.precision == "fp32" else "int8"
        name = config.entity_encoder or config.encoder
        int8, fingerprint = precision == "int8", fingerprint_of(config)
        packaged = PackagedVectors.load(fingerprint) if int8 else None
        return cls(config, _load_pooler(name, int8=int8), load_tokenizer(name), fingerprint, packaged)

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return a vector for each (title, description): [entity, dim]."""
        if self.packaged is None:
            return self._encode(entities)
        known, there = self.packaged.find(entities)
        new = np.setdiff1d(np.arange(len(entities)), known)
        vectors = np.empty((len(entities), self.dim), np.float32)
        vectors[known], vectors[new] = there, self._encode([entities[row] for row in new.tolist()])
        return vectors

    def _encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        codes = self.tokenizer.encode_batch([self._input_text(*entity) for entity in entities])
        windows = [np.array(code.ids, np.int64) for code in codes]
        return self.encoder.pooled(windows, self.config.pooling, normalise=self.config.normalised)

    def _input_text(self, title: str, description: str) -> str:
        """Join title and description; a special token as separator is added even without one, as by the authors."""
        return f"{title}{self.config.separator}{description}" if description or self._always_separates else title


def _load_pooler(name: str, *, int8: bool) -> Pooler:
    """Load an encoder for onnxruntime, or for torch in fp32 if the runtime does not support it."""
    try:
        encoder = find_encoder(name)
        check_supported(encoder)
        graph = cached_graph(
            assets.home() / "graphs" if int8 else None,
            digest_of_parts("entities", encoder_digest(name)),
            lambda: _write_graph(encoder, int8=int8),
        )
        return EncoderSession(graph, map_words(encoder))
    except UsageError:
        with extra("train", f"the encoder {name}, which onnxruntime cannot run,"):
            from wellread.encoders.load import load_encoder
            from wellread.encoders.pooling import TorchPooler

        return TorchPooler(load_encoder(name))


def _write_graph(encoder: Path, *, int8: bool) -> bytes:
    """Write the graph of an encoder; its int8 ranges are those of random windows, so that all KBs have the same."""
    from wellread.runtime.graph import write_graph, write_int8_graph  # a cached graph does not need onnx

    weights = read_encoder(encoder)
    return write_int8_graph(fold(weights, measure_ranges(weights, []))) if int8 else write_graph(weights)


def fingerprint_of(config: ElqConfig) -> str:
    """Return a digest of all that determines the entity vectors: weights, pooling and the input format."""
    parts = (config.pooling, config.normalised, config.separator, config.entity_pieces)
    return hashlib.sha256(repr((encoder_digest(config.entity_encoder or config.encoder), parts)).encode()).hexdigest()[
        :16
    ]
