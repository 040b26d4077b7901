"""Heads of named entity recognition, of spans and of words, and their loss for few names."""

from __future__ import annotations

import math
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear

from wellread.encoders.spans import span_means

IGNORED = -100
"""Class of spans and words that the loss leaves out."""


class ChunkHead(nn.Module):
    """Class scores of spans from their first token, last token and span representation, concatenated.

    With entity states: one linear layer, as in LUKE. Without: the mean of the span's tokens and a dense layer first,
    which is applied once per token instead of once per span.
    """

    def __init__(self, width: int, count: int, *, entities: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = None if entities else nn.Linear(3 * width, width)
        self.out = nn.Linear(3 * width if entities else width, count)
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        states: Float[Tensor, "token dim"],
        firsts: Int[Tensor, " span"],
        lasts: Int[Tensor, " span"],
        entities: Float[Tensor, "span dim"] | None = None,
    ) -> Float[Tensor, "span count"]:
        """Return one row of scores per span of tokens first … last."""
        if self.dense is None:
            spans = span_means(states, firsts, lasts) if entities is None else entities  # LUKE may be switched off
            seen = torch.cat((states[firsts], states[lasts], spans), 1)
            return cast(Tensor, self.out(self.dropout(seen)))
        parts = linear(self.dropout(states), torch.cat(self.dense.weight.chunk(3, 1))).chunk(3, 1)
        made = parts[0][firsts] + parts[1][lasts] + span_means(parts[2], firsts, lasts) + self.dense.bias
        return cast(Tensor, self.out(self.dropout(gelu(made))))


class TagHead(nn.Module):
    """Scores of the tags of words, from the states of their first tokens."""

    def __init__(self, width: int, count: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, count)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(
        self,
        states: Float[Tensor, "token dim"],
        firsts: Int[Tensor, " word"],
        lasts: Int[Tensor, " word"],
        entities: Float[Tensor, "entity dim"] | None = None,
    ) -> Float[Tensor, "word count"]:
        """Return one row of scores per word; last tokens and entities are not used."""
        return cast(Tensor, self.out(self.dropout(states[firsts])))


def start_at(bias: Tensor, prior: float) -> None:
    """Set the bias of class 0, "not an entity", so that all other classes together have probability `prior`.

    The first steps then need not learn how rare names are (Lin et al. 2017, section 4.1).
    """
    with torch.no_grad():
        bias[0] = math.log((1 - prior) / prior) + math.log(len(bias) - 1)


def sample_negatives(classes: Int[Tensor, " row"], negatives: int) -> Int[Tensor, " row"]:
    """Return the classes with all but `negatives` random rows of class 0 per other row ignored."""
    others = torch.nonzero(classes == 0).squeeze(1)
    kept = negatives * max(1, int((classes > 0).sum()))
    left = others[torch.randperm(len(others))[kept:]]
    return classes.index_fill(0, left, IGNORED)


def names_loss(
    scores: Float[Tensor, "row class"], classes: Int[Tensor, " row"], balance: float | None
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of rows with a class; with `balance`, names have this share of the loss."""
    kept = classes != IGNORED
    if not bool(kept.any()):
        return scores.sum() * 0.0
    losses = cross_entropy(scores[kept], classes[kept], reduction="none")
    names = classes[kept] > 0
    if balance is None or bool(names.all()) or not bool(names.any()):
        return losses.mean()
    return balance * losses[names].mean() + (1 - balance) * losses[~names].mean()
