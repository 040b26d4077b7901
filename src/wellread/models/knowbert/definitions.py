"""Entity vectors from sense texts, made by the encoder that links and trained with it.

In training, sense texts follow the texts of a batch (`offers[kb]["definitions"]`), so that one pass encodes both, and
the loss of the links trains both sides (Blevins and Zettlemoyer 2020, with one encoder). A vector is the normalized
mean of a text's states, of the layers that the knowledge layer reads. After training all entities are encoded once
(`DefinitionEncoder`), and links need no definitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.batches import split_groups
from wellread.encoders.packing import Packing, first_position, mean_of
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.model import text_vectors
from wellread.models.knowbert.sense_texts import (
    LONGEST,
    NAMES,
    PREFIX,
    read_sense_texts,
    sense_text,
    tokenize_sense_texts,
)

_AT_ONCE = 8192
"""Tokens encoded together."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """Tokenized sense texts of the entities of a KB, by row of its vectors."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, kb: KnowledgeBase, rows: Sequence[str], tokenizer: Tokenizer) -> Definitions:
        """Tokenize the sense texts of the entities with these ids."""
        texts = read_sense_texts(kb)
        codes = tokenize_sense_texts(tokenizer, [texts.get(id, "") for id in rows])
        return cls(np.concatenate(codes), np.cumsum([0, *map(len, codes)]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each sense text."""
        return np.diff(self.offsets)

    def take(self, rows: Sequence[int]) -> list[NDArray[np.int32]]:
        """Return the tokens of some sense texts."""
        return [self.ids[self.offsets[row] : self.offsets[row + 1]] for row in rows]


@dataclass(frozen=True, eq=False)
class DefinitionEncoder:
    """Encoder of entities by the encoder of a knowledge layer (an `index.entity_vectors.EntityEncoder`)."""

    encoder: nn.Module = field(repr=False)
    """Encoder as `encoders.packing.encode` takes it, without infusions."""
    tokenizer: Tokenizer = field(repr=False)
    config: KnowBertConfig
    fingerprint: str
    texts: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Sense texts by title and description; others are made of these two."""
    bf16: bool = False

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return self.config.raw

    @torch.no_grad()
    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the vector of each (title, description)."""
        texts = [self.texts.get(entity) or sense_text(*entity) for entity in entities]
        codes = tokenize_sense_texts(self.tokenizer, texts)
        vectors = np.empty((len(codes), self.dim), np.float32)
        lengths = [len(code) for code in codes]
        order = sorted(range(len(codes)), key=lengths.__getitem__)
        for group in split_groups(lengths, order, tokens=_AT_ONCE):
            ids = torch.from_numpy(np.concatenate([codes[place] for place in group]).astype(np.int64))
            packing = Packing.of([lengths[place] for place in group])
            vectors[group] = text_vectors(self._states(ids, packing), packing).numpy()
        return vectors

    def _states(self, ids: Int[Tensor, " token"], packing: Packing) -> Float[Tensor, "token dim"]:
        """Return the states that the knowledge layer reads."""
        places = packing.places + first_position(self.encoder)
        end = self.config.layer + 2  # the first of the hidden states are the embeddings
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            output = self.encoder(
                input_ids=ids[None], position_ids=places[None], packing=packing, output_hidden_states=True
            )
        return mean_of([states[0] for states in output.hidden_states[end - self.config.reads : end]])


def fingerprint_of_encoder(encoder: nn.Module, config: KnowBertConfig) -> str:
    """Return a digest of all that determines the vectors of an encoder's own definitions."""
    digest = hashlib.sha256(repr((config.layer, config.reads, LONGEST, NAMES)).encode())
    for name, weight in encoder.state_dict().items():
        if not name.startswith("infusions."):
            digest.update(name.encode() + weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return f"{PREFIX}{digest.hexdigest()[:16]}"
