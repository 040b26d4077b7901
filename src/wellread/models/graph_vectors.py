"""Vectors of entities from facts: a fact (subject, relation, object) is likely when its three embeddings fit together.

All three models turn subject and relation into one vector, the query; the score of an object is its inner product with
it. So all objects are scored by one matrix product.

1. TuckER (Balažević et al. 2019): query = e_s W_r, where W_r = sum_k r_k W_k is the core tensor seen by the relation.
   Batch norm and dropout before, dropout on W_r, batch norm and dropout behind.
2. ComplEx (Trouillon et al. 2016): Re(<e_s, r, conj(e_o)>) with complex numbers: query = e_s * r.
3. DistMult (Yang et al. 2015): query = e_s * r, with real numbers.

Unlike the authors' code: TuckER makes W_r once for each relation of a batch and not for each query, and so its dropout
is drawn once for each relation too: of WordNet's facts that are at most 31 matrices instead of 512. Real and imaginary
parts of ComplEx lie in one vector, so that `entity_dim` is the width of the vectors that come out of each of the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding

from wellread.errors import UsageError

Kind = Literal["tucker", "complex", "distmult"]


@dataclass(frozen=True, slots=True)
class FactorsConfig:
    """Which model, and how wide."""

    kind: Kind = "tucker"
    entity_dim: int = 200
    """Numbers of an entity; complex has half as many complex numbers."""
    relation_dim: int = 30
    """tucker: numbers of a relation. The others need as many as an entity has."""
    input_dropout: float = 0.2
    """Dropout of the subject's embedding."""
    core_dropout: float = 0.2
    """tucker: dropout of a relation's matrix."""
    query_dropout: float = 0.3
    """Dropout of the query vector."""

    def __post_init__(self) -> None:
        for name in ("entity_dim", "relation_dim"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.kind == "complex" and self.entity_dim % 2:
            raise UsageError(f"entity_dim is {self.entity_dim}; complex needs an even number: real and imaginary parts")
        for name in ("input_dropout", "core_dropout", "query_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected a share from 0 to less than 1")


class Factors(nn.Module):
    """Embeddings of entities and relations, and how a query is made of two of them."""

    def __init__(self, config: FactorsConfig, entities: int, relations: int) -> None:
        super().__init__()
        self.config = config
        wide = config.relation_dim if config.kind == "tucker" else config.entity_dim
        self.entities = nn.Parameter(torch.empty(entities, config.entity_dim))
        self.relations = nn.Parameter(torch.empty(relations, wide))
        for weight in (self.entities, self.relations):
            self._start(weight)

    @staticmethod
    def build(config: FactorsConfig, entities: int, relations: int) -> Factors:
        """The model of a config, not trained."""
        return KINDS[config.kind](config, entities, relations)

    def query(
        self, subjects: Float[Tensor, "query dim"], relations: Int64[Tensor, " query"]
    ) -> Float[Tensor, "query dim"]:
        """Return queries, whose dot products with objects are scores, from subject embeddings and relation ids."""
        raise NotImplementedError

    def forward(
        self, subjects: Int64[Tensor, " query"], relations: Int64[Tensor, " query"]
    ) -> Float[Tensor, "query entity"]:
        """The score of every entity as the object."""
        return self.query(embedding(subjects, self.entities), relations) @ self.entities.T

    @staticmethod
    def _start(weight: nn.Parameter) -> None:
        nn.init.normal_(weight, std=_SMALL)

    def _dropped(self, states: Tensor, share: float) -> Tensor:
        return dropout(states, share, self.training) if share else states


class Tucker(Factors):
    """A core tensor that all relations share."""

    def __init__(self, config: FactorsConfig, entities: int, relations: int) -> None:
        super().__init__(config, entities, relations)
        dim = config.entity_dim
        self.core = nn.Parameter(torch.empty(config.relation_dim, dim, dim))
        self.before = nn.BatchNorm1d(dim)
        self.behind = nn.BatchNorm1d(dim)
        nn.init.uniform_(self.core, -1, 1)

    @staticmethod
    def _start(weight: nn.Parameter) -> None:
        nn.init.xavier_normal_(weight)

    def query(
        self, subjects: Float[Tensor, "query dim"], relations: Int64[Tensor, " query"]
    ) -> Float[Tensor, "query dim"]:
        """e_s W_r, normed."""
        config, dim = self.config, self.config.entity_dim
        states = self._dropped(self.before(subjects), config.input_dropout)
        distinct, which, counts = torch.unique(relations, return_inverse=True, return_counts=True)
        matrices = embedding(distinct, self.relations) @ self.core.view(config.relation_dim, -1)
        matrices = self._dropped(matrices, config.core_dropout).view(-1, dim, dim)
        order = torch.argsort(which)
        groups = zip(torch.split(states[order], counts.tolist()), matrices.unbind(), strict=True)
        seen = torch.cat([group @ matrix for group, matrix in groups])[torch.argsort(order)]
        return self._dropped(self.behind(seen), config.query_dropout)


class DistMult(Factors):
    """A relation weighs the numbers of subject and object: the same both ways round."""

    def query(
        self, subjects: Float[Tensor, "query dim"], relations: Int64[Tensor, " query"]
    ) -> Float[Tensor, "query dim"]:
        """e_s * r."""
        states = self._dropped(subjects, self.config.input_dropout)
        return self._dropped(states * embedding(relations, self.relations), self.config.query_dropout)


class ComplEx(Factors):
    """A relation also turns: what holds one way round need not hold the other."""

    def query(
        self, subjects: Float[Tensor, "query dim"], relations: Int64[Tensor, " query"]
    ) -> Float[Tensor, "query dim"]:
        """e_s * r in complex numbers; the real part of its product with conj(e_o) is a plain inner product."""
        states = self._dropped(subjects, self.config.input_dropout)
        real, imaginary = states.chunk(2, -1)
        other_real, other_imaginary = embedding(relations, self.relations).chunk(2, -1)
        product = torch.cat(
            [
                real * other_real - imaginary * other_imaginary,
                real * other_imaginary + imaginary * other_real,
            ],
            -1,
        )
        return self._dropped(product, self.config.query_dropout)


_SMALL = 0.1
"""The spread of products of embeddings at the start: scores begin near 0, but gradients do not."""

KINDS: dict[Kind, type[Factors]] = {"tucker": Tucker, "complex": ComplEx, "distmult": DistMult}
