"""The entity table of a LUKE model: grown for new entities, started from vectors, taken over from a model before."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.knowledge.vocabulary import EntityVocabulary
from wellread.models.luke import Luke

_BY_ROW = ("table.weight", "prediction.bias")
"""What has a row, or a number, for each entity."""


@torch.no_grad()
def carry_over(made: Luke, old: Luke) -> list[str]:
    """Give a fresh infusion what another has learned; returns the names of weights that it has no place for.

    It may have more rows (the first are those of the other) and what the other has not (the head, queries of its own);
    these stay as they start.
    """
    if made.config.dim != old.config.dim:
        raise UsageError(
            f"the entity table that is there has rows of {old.config.dim} numbers; set dim = {old.config.dim}"
        )
    if made.config.entities < old.config.entities:
        raise UsageError(
            f"the entity table that is there has {old.config.entities:,} rows, more than the {made.config.entities:,} "
            "of the vocabulary; grow the vocabulary that it was made with"
        )
    own, left = made.state_dict(), []
    for name, weight in old.state_dict().items():
        if name not in own:
            left.append(name)
        else:
            own[name][: len(weight)].copy_(weight) if name in _BY_ROW else own[name].copy_(weight)
    return left


@torch.no_grad()
def start_table(luke: Luke, rows: NDArray[np.float32], at: NDArray[np.int64]) -> None:
    """Give some rows of the table other numbers (`EntityVocabulary.start_rows`)."""
    weight = luke.table.weight
    weight[torch.from_numpy(at).to(weight.device)] = torch.from_numpy(rows).to(weight)


@torch.no_grad()
def copy_mask(luke: Luke, vocabulary: EntityVocabulary) -> None:
    """Let [MASK2], which pretraining never meets, begin as [MASK]."""
    luke.table.weight[vocabulary.mask2] = luke.table.weight[vocabulary.mask]
