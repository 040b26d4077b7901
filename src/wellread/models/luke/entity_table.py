"""The entity table of a LUKE model: grown for new entities, started from vectors, taken over from a model before."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.models.luke.model import Luke
from wellread.models.luke.vocabulary import MASK2, EntityVocabulary

_BY_ROW = ("table.weight", "prediction.bias")
"""What has a row, or a number, for each entity."""


def same_rows(ours: EntityVocabulary, theirs: EntityVocabulary) -> NDArray[np.int64]:
    """(our row, their row) of each name that both have; [MASK2] is their [MASK] where they have but that."""
    names = [name for name in ours.row_of if name in theirs]
    rows = np.stack((ours.rows_of(names), theirs.rows_of(names)), axis=1)
    lacks = [] if MASK2 in theirs else [(ours.mask2, theirs.mask)]
    return np.concatenate((rows, np.array(lacks, np.int64).reshape(-1, 2)))


@torch.no_grad()
def carry_over(made: Luke, old: Luke, rows: NDArray[np.int64] | None = None) -> list[str]:
    """Give a fresh infusion what another has learned; returns the names of weights that it has no place for.

    `rows` are pairs of a row here and one there (`same_rows`); without them the first rows are those of the other. More
    rows, and what the other has not (the head, queries of its own), stay as they start.
    """
    if made.config.dim != old.config.dim:
        raise UsageError(
            f"the entity table that is there has rows of {old.config.dim} numbers; set dim = {old.config.dim}"
        )
    if rows is None and made.config.entities < old.config.entities:
        raise UsageError(
            f"the entity table that is there has {old.config.entities:,} rows, more than the {made.config.entities:,} "
            "of the vocabulary; grow the vocabulary that it was made with"
        )
    if rows is None:
        rows = np.repeat(np.arange(old.config.entities)[:, None], 2, axis=1)
    here, there = torch.from_numpy(np.ascontiguousarray(rows.T))
    own, left = made.state_dict(), []
    for name, weight in old.state_dict().items():
        if name not in own:
            left.append(name)
        elif name in _BY_ROW:
            own[name][here] = weight[there]
        else:
            own[name].copy_(weight)
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
