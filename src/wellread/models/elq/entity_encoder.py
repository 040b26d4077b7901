"""ELQ's entity encoder: maps title and description to a vector (Li et al. 2020, section 4.2).

The encoder is frozen: a knowledge base is encoded once, afterwards only changed entities are. Entities are sorted by
length and packed, without padding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import normalize

from wellread.data.batches import gather
from wellread.encoders.load import encoder_digest, load_encoder, load_tokenizer
from wellread.encoders.packing import Packing, encode
from wellread.models.elq.model import ElqConfig

_TOKENS = 4096
"""Maximum number of tokens of a batch."""


class EntityTower:
    """Entity encoder of an ELQ model (an `index.entity_vectors.EntityEncoder`)."""

    def __init__(self, config: ElqConfig, encoder: nn.Module, tokenizer: Tokenizer, fingerprint: str) -> None:
        self.config = config
        self.encoder = encoder.eval()
        self.tokenizer = tokenizer
        self.tokenizer.enable_truncation(config.entity_pieces)
        self.dim = int(encoder.config.hidden_size)  # type: ignore[arg-type, union-attr]
        self.fingerprint = fingerprint
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        self._always_separates = config.separator.strip() in special

    @classmethod
    def load(cls, config: ElqConfig) -> EntityTower:
        """Load the entity encoder of a linker; its config suffices, as the encoder is not trained."""
        name = config.entity_encoder or config.encoder
        return cls(config, load_encoder(name), load_tokenizer(name), fingerprint_of(config))

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return a vector for each (title, description): [entity, dim]."""
        codes = self.tokenizer.encode_batch([self._input_text(*entity) for entity in entities])
        ids = [code.ids for code in codes]
        vectors = np.empty((len(ids), self.dim), np.float32)
        with torch.inference_mode():
            longest_first = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
            for rows in gather(longest_first, largest=_TOKENS, size=lambda row: len(ids[row])):
                packing = Packing.of([len(ids[row]) for row in rows])
                tokens = torch.tensor([token for row in rows for token in ids[row]])
                states = encode(self.encoder, tokens, packing)
                pooled = packing.mean(states) if self.config.pooling == "mean" else states[packing.starts]
                vectors[rows] = (normalize(pooled, dim=-1) if self.config.normalised else pooled).numpy()
        return vectors

    def _input_text(self, title: str, description: str) -> str:
        """Join title and description; a special token as separator is added even without one, as by the authors."""
        return f"{title}{self.config.separator}{description}" if description or self._always_separates else title


def fingerprint_of(config: ElqConfig) -> str:
    """Return a digest of all that determines the entity vectors: weights, pooling and the input format."""
    parts = (config.pooling, config.normalised, config.separator, config.entity_pieces)
    return hashlib.sha256(repr((encoder_digest(config.entity_encoder or config.encoder), parts)).encode()).hexdigest()[
        :16
    ]
