"""ELQ's entity side: title and description in, one vector out (Li et al. 2020, section 4.2).

Frozen: it encodes a knowledge base once, and only what changes afterwards. Texts are sorted by length and packed, so
that encoding costs what the encoder's forward pass costs.
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
"""Pieces that are encoded together."""


class EntityTower:
    """Encodes entities as one ELQ model compares mentions with them (a `index.entity_vectors.EntityEncoder`)."""

    def __init__(self, config: ElqConfig, encoder: nn.Module, tokenizer: Tokenizer, fingerprint: str) -> None:
        self.config = config
        self.encoder = encoder.eval()
        self.tokenizer = tokenizer
        self.tokenizer.enable_truncation(config.entity_pieces)
        self.dim = int(encoder.config.hidden_size)  # type: ignore[arg-type, union-attr]
        self.fingerprint = fingerprint
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        self._ends_titles = config.separator.strip() in special

    @classmethod
    def load(cls, config: ElqConfig) -> EntityTower:
        """The entity side of a linker, from its config alone: it never learns."""
        name = config.entity_encoder or config.encoder
        return cls(config, load_encoder(name), load_tokenizer(name), fingerprint_of(config))

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """A vector for each (title, description)."""
        codes = self.tokenizer.encode_batch([self._read(*entity) for entity in entities])
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

    def _read(self, title: str, description: str) -> str:
        """A separator that is a special piece is written even before nothing, as the authors do."""
        return f"{title}{self.config.separator}{description}" if description or self._ends_titles else title


def fingerprint_of(config: ElqConfig) -> str:
    """Changes whenever the vectors of entities would: other weights, other pooling, another way to write an entity."""
    parts = (config.pooling, config.normalised, config.separator, config.entity_pieces)
    return hashlib.sha256(repr((encoder_digest(config.entity_encoder or config.encoder), parts)).encode()).hexdigest()[
        :16
    ]
