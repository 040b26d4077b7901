"""Sense texts: names and definition of an entity, without example sentences, as text for an encoder. Free of torch.

    bank, depository financial institution: a financial institution that accepts deposits …

Examples are left out because training reads them as texts with a marked sense, where they would give it away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.inference import StateEncoder
from wellread.runtime.session import normalised

PREFIX = "definitions-"
"""Start of the fingerprint of entity vectors that a linker's own encoder makes of sense texts."""
LONGEST = 40
"""Maximum number of tokens of a sense text."""
NAMES = 3
"""Maximum number of names in a sense text."""


def sense_text(title: str, description: str, names: Iterable[str] = ()) -> str:
    """Return names and definition of an entity.

    >>> sense_text("bank", 'sloping land; "on the bank"')
    'bank: sloping land'
    """
    others = [name for name in names if name != title]
    definition = description.partition('; "')[0]
    return f"{', '.join([title, *others][:NAMES])}: {definition}"


def read_sense_texts(kb: KnowledgeBase) -> dict[str, str]:
    """Return the sense text of every entity of a KB, by its id."""
    return {id: text for id, _, _, text in _read(kb)}


def sense_texts_by_entity(kb: KnowledgeBase) -> dict[tuple[str, str], str]:
    """Return the sense text of every entity of a KB, by its title and description."""
    return {(title, description): text for _, title, description, text in _read(kb)}


def _read(kb: KnowledgeBase) -> Iterator[tuple[str, str, str, str]]:
    query = (
        "SELECT id, title, description, (SELECT json_group_array(name) FROM "
        "(SELECT name FROM aliases WHERE entity = entities.num ORDER BY count DESC, name LIMIT ?)) FROM entities"
    )
    with sqlite_errors(kb.path):
        for id, title, description, names in kb.connection.execute(query, (NAMES + 1,)):
            yield id, title, description, sense_text(title, description, json.loads(names))


def tokenize_sense_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """Return the token ids of each text, cut to `LONGEST`."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return [np.array(code.ids, np.int32) for code in tokenizer.encode_batch(list(texts))]


@dataclass(frozen=True, slots=True)
class SenseTextEncoder:
    """Encoder of entities by the encoder of a linker, at inference (an `index.entity_vectors.EntityEncoder`)."""

    encoder: StateEncoder = field(repr=False)
    """Encoder of the states that the knowledge layer reads."""
    tokenizer: Tokenizer = field(repr=False)
    dim: int
    fingerprint: str

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the vector of each (title, description): the normalized mean state of its sense text."""
        codes = tokenize_sense_texts(self.tokenizer, [sense_text(*entity) for entity in entities])
        states = self.encoder.states([code.astype(np.int64) for code in codes])
        lengths = np.array([len(code) for code in codes], np.int64)
        sums = np.add.reduceat(states, np.cumsum(lengths) - lengths, axis=0, dtype=np.float64)
        return normalised((sums / lengths[:, None]).astype(np.float32))
