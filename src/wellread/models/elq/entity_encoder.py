"""ELQ's entity encoder: maps title and description to a vector (Li et al. 2020, section 4.2).

The encoder is frozen: a knowledge base is encoded once, afterwards only changed entities are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wellread.encoders.files import encoder_digest, find_encoder, load_tokenizer
from wellread.errors import UsageError
from wellread.io.extras import extra
from wellread.models.elq.config import ElqConfig
from wellread.runtime.session import EncoderSession
from wellread.runtime.weights import read_encoder


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

    def __init__(self, config: ElqConfig, encoder: Pooler, tokenizer: Tokenizer, fingerprint: str) -> None:
        self.config, self.encoder, self.tokenizer = config, encoder, tokenizer
        self.tokenizer.enable_truncation(config.entity_pieces)
        self.dim = encoder.dim
        self.fingerprint = fingerprint
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        self._always_separates = config.separator.strip() in special

    @classmethod
    def load(cls, config: ElqConfig) -> EntityTower:
        """Load the entity encoder of a linker; its config suffices, as the encoder is not trained."""
        name = config.entity_encoder or config.encoder
        return cls(config, _load_pooler(name), load_tokenizer(name), fingerprint_of(config))

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return a vector for each (title, description): [entity, dim]."""
        codes = self.tokenizer.encode_batch([self._input_text(*entity) for entity in entities])
        windows = [np.array(code.ids, np.int64) for code in codes]
        return self.encoder.pooled(windows, self.config.pooling, normalise=self.config.normalised)

    def _input_text(self, title: str, description: str) -> str:
        """Join title and description; a special token as separator is added even without one, as by the authors."""
        return f"{title}{self.config.separator}{description}" if description or self._always_separates else title


def _load_pooler(name: str) -> Pooler:
    """Load an encoder for onnxruntime in fp32, or for torch if the runtime does not support it."""
    from wellread.runtime.graph import write_graph  # onnx is needed only to encode entities

    try:
        weights = read_encoder(find_encoder(name))
        return EncoderSession(write_graph(weights), weights.words)
    except UsageError:
        with extra("train", f"the encoder {name}, which onnxruntime cannot run,"):
            from wellread.encoders.load import load_encoder
            from wellread.encoders.pooling import TorchPooler

        return TorchPooler(load_encoder(name))


def fingerprint_of(config: ElqConfig) -> str:
    """Return a digest of all that determines the entity vectors: weights, pooling and the input format."""
    parts = (config.pooling, config.normalised, config.separator, config.entity_pieces)
    return hashlib.sha256(repr((encoder_digest(config.entity_encoder or config.encoder), parts)).encode()).hexdigest()[
        :16
    ]
