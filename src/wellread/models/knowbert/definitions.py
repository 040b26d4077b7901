"""Entity vectors from definitions, made by the encoder that links and trained with it.

The sense text of an entity is its names and its definition, without example sentences:

    bank, depository financial institution: a financial institution that accepts deposits …

In training, sense texts follow the texts of a batch (`offers[kb]["definitions"]`), so one pass encodes both, and the
loss of the links trains both sides (as Blevins and Zettlemoyer 2020, with one encoder). A vector is the normalized mean
of a sense text's states, of the layers that the knowledge layer reads. After training all entities are encoded once
(`DefinitionEncoder`), and links need no definitions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.batches import split_groups
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.packing import Packing
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.model import KnowBert

LONGEST = 40
"""Maximum number of tokens of a sense text."""
_NAMES = 3
"""Maximum number of names in a sense text."""
_AT_ONCE = 8192
"""Tokens encoded together."""

SenseTexts = Mapping[tuple[str, str], str]
"""Sense texts by title and description."""


def read_sense_texts(kb: KnowledgeBase) -> dict[tuple[str, str], str]:
    """Return the sense text of every entity of a KB, by its title and description."""
    query = (
        "SELECT title, description, (SELECT json_group_array(name) FROM "
        "(SELECT name FROM aliases WHERE entity = entities.num ORDER BY count DESC, name LIMIT ?)) FROM entities"
    )
    with sqlite_errors(kb.path):
        rows = kb.connection.execute(query, (_NAMES + 1,)).fetchall()
    return {(title, text): sense_text(title, text, json.loads(names)) for title, text, names in rows}


def sense_text(title: str, description: str, names: Iterable[str] = ()) -> str:
    """Return names and definition: ("bank", 'sloping land; "on the bank"') -> "bank: sloping land"."""
    others = [name for name in names if name != title]
    definition = description.partition('; "')[0]
    return f"{', '.join([title, *others][:_NAMES])}: {definition}"


@dataclass(frozen=True, slots=True)
class Definitions:
    """Tokenized sense texts of the entities of a KB, by row of its vectors."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, kb: KnowledgeBase, rows: Sequence[str], tokenizer: Tokenizer) -> Definitions:
        """Tokenize the sense texts of the entities with these ids."""
        texts = read_sense_texts(kb)
        with sqlite_errors(kb.path):
            found = kb.connection.execute("SELECT id, title, description FROM entities").fetchall()
        text_of = {id: texts[title, description] for id, title, description in found}
        codes = _tokenize(tokenizer, [text_of.get(id, "") for id in rows])
        return cls(np.concatenate(codes), np.cumsum([0, *map(len, codes)]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each sense text."""
        return np.diff(self.offsets)

    def take(self, rows: Sequence[int]) -> list[NDArray[np.int32]]:
        """Return the tokens of some sense texts."""
        return [self.ids[self.offsets[row] : self.offsets[row + 1]] for row in rows]


class DefinitionEncoder:
    """Encoder of entities by the encoder of a knowledge layer (an `index.entity_vectors.EntityEncoder`)."""

    def __init__(self, encoder: InfusedEncoder, layer: KnowBert, tokenizer: Tokenizer, texts: SenseTexts, *, bf16: bool = False) -> None:
        self.encoder, self.layer, self.tokenizer, self.texts = encoder, layer, tokenizer, texts
        self.bf16, self.dim = bf16, int(encoder.config.hidden_size)
        digest = hashlib.sha256(repr((layer.config.layer, layer.config.reads, LONGEST, _NAMES)).encode())
        for name, weight in cast(nn.Module, encoder).state_dict().items():
            if not name.startswith("infusions."):
                digest.update(name.encode() + weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    @torch.no_grad()
    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the vector of each (title, description)."""
        codes = _tokenize(self.tokenizer, [self.texts.get(entity) or sense_text(*entity) for entity in entities])
        vectors = np.empty((len(codes), self.dim), np.float32)
        lengths = [len(code) for code in codes]
        order = sorted(range(len(codes)), key=lengths.__getitem__)
        for group in split_groups(lengths, order, tokens=_AT_ONCE):
            ids = torch.from_numpy(np.concatenate([codes[place] for place in group]).astype(np.int64))
            vectors[group] = self._vectors(ids, Packing.of([lengths[place] for place in group])).float().numpy()
        return vectors

    def _vectors(self, ids: Int[Tensor, " token"], packing: Packing) -> Tensor:
        kb, device = self.layer.config.kb, self.layer.null.device
        none = torch.zeros(0, dtype=torch.long, device=device)
        offers = {
            "text_of": none,
            "spans": none.view(0, 2),
            "entities": none.view(0, 1),
            "priors": none.view(0, 1).float(),
            "definitions": torch.arange(len(packing.lengths), device=device),
        }
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            output = self.encoder.read(ids.to(device), Packing.of(packing.lengths, device), None, offers={kb: offers})
        vectors: Tensor = output.outputs["definitions"][kb]
        return vectors.cpu()


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return [np.array(code.ids, np.int32) for code in tokenizer.encode_batch(list(texts))]
