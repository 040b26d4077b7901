"""Choice of the definitions that are encoded with a batch of marked words.

A batch of some dozens of sentences has thousands of candidates, and their definitions are far more text than the
sentences. In training only some words get theirs: all candidates of a word or none, as a model could else tell the
right one by its age; and the words whose candidates were encoded longest ago first. The other words are linked to the
vectors that their candidates had when they were last encoded. A word with a candidate that was never encoded has no
loss. So rare words are encoded whenever they occur, frequent ones every few dozen batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from wellread.encoders.packing import Packing
from wellread.models.knowbert.definitions import Definitions
from wellread.tasks.task import Batch

_NEVER = -1


class DefinitionDraw:
    """Adds definitions of candidates to batches; remembers when each was last encoded."""

    def __init__(self, definitions: Definitions, tokens: int, *, encoded: bool = False) -> None:
        """`encoded`: the entity vectors were made from these definitions by the encoder as it starts."""
        self.definitions, self.tokens = definitions, tokens
        self._lengths = definitions.lengths
        self._encoded_at = np.full(len(self._lengths), 0 if encoded else _NEVER, np.int64)
        self._batches = 1

    def add(
        self, batch: Batch, candidates: dict[str, Tensor], mentions: Int[Tensor, " mark"], *, learning: bool
    ) -> tuple[Batch, dict[str, Any]]:
        """Return the batch with definitions as its last texts, and the candidates that say whose they are.

        In training the definitions are at most some `tokens`; else those of all candidates of marked words.
        """
        marks = mentions[mentions >= 0]
        rows = candidates["entities"][marks].numpy()
        if not learning:
            return self._joined(batch, candidates, np.unique(rows[rows >= 0]))
        chosen = self._choose(rows[candidates["gold"][marks].numpy().any(1)])
        self._encoded_at[chosen] = self._batches
        self._batches += 1
        unknown = ((rows >= 0) & (self._encoded_at[rows] == _NEVER)).any(1)
        gold = candidates["gold"].clone()
        gold[marks[torch.from_numpy(unknown)]] = 0
        return self._joined(batch, candidates | {"gold": gold}, chosen)

    def _choose(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the candidates of some words, those encoded longest ago first."""
        rows = rows[(rows >= 0).sum(1) > 1]
        if not len(rows):
            return np.zeros(0, np.int64)
        ages = np.where(rows >= 0, self._encoded_at[rows], np.iinfo(np.int64).max).min(1)
        order = np.lexsort((np.random.random(len(rows)), ages))
        chosen: dict[int, None] = {}
        left = self.tokens
        for place in order.tolist():
            new = [row for row in rows[place].tolist() if row >= 0 and row not in chosen]
            cost = int(self._lengths[new].sum())
            if cost <= left:
                chosen.update(dict.fromkeys(new))
                left -= cost
        return np.array(sorted(chosen), np.int64)

    def _joined(
        self, batch: Batch, candidates: dict[str, Tensor], rows: NDArray[np.int64]
    ) -> tuple[Batch, dict[str, Any]]:
        texts = self.definitions.take(rows.tolist())
        lengths = [*batch.packing.lengths.tolist(), *map(len, texts)]
        ids = torch.cat([batch.ids, *(torch.from_numpy(text).to(batch.ids.dtype) for text in texts)])
        types = torch.cat([batch.types, batch.types.new_zeros(len(ids) - len(batch.types))])
        joined = replace(batch, ids=ids, types=types, packing=Packing.of(lengths))
        return joined, candidates | {"definitions": torch.from_numpy(rows)}
