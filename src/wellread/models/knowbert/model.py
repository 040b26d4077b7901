"""KnowBERT: a layer between two layers of a pretrained encoder that links mentions, and tells the text what they mean.

Peters et al. 2019, "Knowledge Enhanced Contextual Word Representations". The layer of one knowledge base (knowledge
attention and recontextualization, KAR), with hidden states H, mentions m and their candidates k:

1. P = H W1 + b1, as wide as an entity's vector (of our own: `reads` layers' mean in place of H).
2. s_m: the pieces of a mention, pooled by attention; LayerNorm.
3. S^e = a transformer block over the mentions of a text.
4. psi_mk = MLP([s^e_m · e_mk / sqrt(E), p_mk]), with e_mk the candidate's vector, projected and normed, p_mk its prior.
5. e~_m = the candidates' vectors by the softmax of psi. `margin`: those with psi below the threshold are left out;
   `softmax`: none is. A mention that no candidate is left for takes the NULL entity.
6. S'^e = LayerNorm(S^e + dropout(e~)).
7. Every piece looks at the mentions of its text: a transformer block, queries of P, keys and values of S'^e.
8. H' = LayerNorm(H + dropout(that W2 + b2)). W2 starts as the pseudo-inverse of W1, b2 as -b1 W2.

It learns to link: `softmax` by -log of the probability of what is right, `margin` by max(0, gamma - psi) for it and
max(0, gamma + psi) for all else, a mean over candidates.

A text without mentions looks at one that is empty: a zero vector with the NULL entity. So its states change too, as in
the authors' code, where it looks at padding.

Unlike the authors' code: a mention whose meaning is not among its candidates has no loss (theirs learns the first one);
the pseudo-inverse is one (theirs inverts a singular matrix); nothing is computed for padding; where nothing is learned,
entities are projected once, not in every batch; kinds of entities have a row each, not one for every entity; NULL is
learned, and in `softmax` taken where theirs would mix padding. How candidates differ is in `models.knowbert.inputs`,
the authors' prior file of Wikipedia in `kb.readers.priors`. Of our own: `start = "zero"` with `norm = False` leaves the
encoder as it is until something is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import PreTrainedConfig
from transformers import initialization as init

from wellread.encoders.infusion.hooks import Flow, Infusion
from wellread.encoders.packing import Packing, mean_of
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.entity_tables import EntityProjection, EntityTable
from wellread.models.knowbert.kar import Block, CandidateScorer, Chosen, Mentions, SpanPooling, choose

_SPREAD = 0.02
"""Of weights that are drawn, as BERT's are."""

_LEAST = {"dim": 1, "raw": 0, "kinds": 0, "kind_width": 1, "heads": 1, "inner": 1, "prior_width": 1}
"""The least that sizes of a layer can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowBertConfig:
    """The layer of one knowledge base: where it is, how it links and how large it is."""

    kb: str = "wordnet"
    """The name of its knowledge base among the offers of a batch."""
    layer: int
    """It comes after this layer of the encoder, from 0."""
    reads: int = 1
    """It links by the mean of so many layers' states, this one's and those before it."""
    mode: Literal["softmax", "margin"] = "softmax"
    """softmax: every mention means one of its candidates. margin: those below the threshold are none."""
    dim: int = 200
    """How wide entities are in the model (E)."""
    raw: int = 0
    """How wide the entity vectors are that it is given; recipes leave it to those vectors."""
    project: bool = True
    """Whether vectors are projected from `raw` to `dim`; else they are taken as they are."""
    kinds: int = 0
    """Kinds of entities that have an embedding, to be projected together with the vector; 0: kinds are not used."""
    kind_width: int = 25
    heads: int = 4
    inner: int = 1024
    prior_width: int = 100
    """The inner width of the network that scores a candidate by similarity and prior."""
    threshold: float = 0.0
    """Of psi, in margin mode (delta)."""
    margin: float = 0.2
    """By how much a score is to lie on its side of zero (gamma)."""
    dropout: float = 0.1
    norm: bool = True
    """Whether states are normed at the end, as in the authors' code."""
    start: Literal["inverse", "zero"] = "inverse"
    """W2 at the start; zero, without the norm, changes nothing until it is learned."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name} is {value}; expected {least} or more")
        if self.dim % self.heads:
            raise UsageError(f"{self.heads} heads cannot share dim = {self.dim}; give a multiple of {self.heads}")
        if not self.project and self.raw not in (0, self.dim):
            raise UsageError(
                f"entity vectors of raw = {self.raw} numbers are not dim = {self.dim} wide; project them, or set "
                f"dim = {self.raw}"
            )
        if self.kinds and not self.project:
            raise UsageError("kinds are joined to vectors that are projected; set project = true or kinds = 0")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; expected a share below 1")


class KnowBert(Infusion):
    """The knowledge of one knowledge base, between two layers of an encoder.

    It takes `offers`, for each knowledge base a dict of tensors over all mentions of the batch, text by text:

    - `text_of` [mention]: the text that it is in, ascending
    - `spans` [mention, 2]: its first and last piece, both included, in the text's own places from 0
    - `entities` [mention, cand]: rows of the entity table; -1: no candidate, -2: the MASK entity
    - `priors` [mention, cand]: probabilities
    - `gold` [mention, cand], if known: 1 where a candidate is right
    - `judged` [mention], if known: 1 where all candidates are wrong unless `gold` says otherwise, as where a text is
      linked completely; in margin mode, such a mention is learned from though nothing is right

    and tells `links`: {kb: psi [mention, cand]}, minus infinity where there is no candidate. In margin mode a mention
    is linked if the best psi is not below the threshold. Parameters of `linker` are what links depend on: the first
    stage of the paper's training learns them alone.
    """

    config_class: ClassVar[type[KnowBertConfig]] = KnowBertConfig
    inputs = ("offers",)

    def __init__(self, config: KnowBertConfig, encoder: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        count, hidden, dim = int(encoder.num_hidden_layers), int(encoder.hidden_size), config.dim
        if not 0 <= config.layer < count:
            raise UsageError(f"layer {config.layer} is not one of the encoder's {count}, which count from 0")
        if not 1 <= config.reads <= config.layer + 1:
            raise UsageError(
                f"reads is {config.reads}; up to layer {config.layer} there are {config.layer + 1}, from 1"
            )
        if config.raw < 1:
            raise UsageError("how wide entity vectors are is not known; give raw, as in raw = 384")
        self.linker = MentionLinker(config, hidden)
        self.null = nn.Parameter(torch.empty(dim))
        self.mixed_norm = nn.LayerNorm(dim, eps=1e-5)
        self.block = Block(dim, config.heads, config.inner, config.dropout)
        self.back = nn.Linear(dim, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-5) if config.norm else None
        self.init_weights()

    def init_weights(self) -> None:
        """As BERT's weights start, but for W2."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding) and part is not self.back:
                init.normal_(part.weight, std=_SPREAD)
            if isinstance(part, nn.LayerNorm):
                init.ones_(part.weight)
            if isinstance(part, nn.Linear | nn.LayerNorm) and part is not self.back:
                init.zeros_(part.bias)
        for special in (self.null, self.linker.entities.mask):
            init.normal_(special, std=_SPREAD)
        if self.config.start == "zero":
            init.zeros_(self.back.weight)
            init.zeros_(self.back.bias)
        elif self.back.weight.device.type != "meta":
            for weight, first in zip((self.back.weight, self.back.bias), self._inverse(), strict=True):
                init.copy_(weight, first)

    def invert(self) -> None:
        """Set W2 to the pseudo-inverse of what W1 has become: after the first stage, where the linker learned alone."""
        with torch.no_grad():
            for weight, first in zip((self.back.weight, self.back.bias), self._inverse(), strict=True):
                weight.copy_(first)

    @torch.no_grad()
    def _inverse(self) -> tuple[Tensor, Tensor]:
        first = self.linker.narrow
        inverse = torch.linalg.pinv(first.weight.double())
        return inverse.to(first.weight.dtype), -(inverse @ first.bias.double()).to(first.weight.dtype)

    def take(self, table: EntityTable) -> None:
        """Have these entity vectors: after building or loading, since they are no weights."""
        self.linker.entities.take(table)

    def take_of(self, kb: KnowledgeBase, vectors: EntityVectors) -> None:
        """Have the entity vectors of a knowledge base."""
        self.linker.entities.take_of(kb, vectors)

    def between(self, flow: Flow, layer: int, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        """After its layer, the states with what the mentions mean."""
        last = self.config.layer
        if last - self.config.reads < layer < last:
            flow.memory[self, layer] = states
        return self._recontextualize(flow, states) if layer == last else states

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # how many mentions there are is known when they are there
    def _recontextualize(self, flow: Flow, states: Float[Tensor, "token hidden"]) -> Float[Tensor, "token hidden"]:
        drop = self.config.dropout
        told = flow.knowledge.get("offers", {}).get(self.config.kb)
        if told is not None and self.linker.entities.table is None:
            raise UsageError(
                f"the layer of {self.config.kb} has no entity vectors yet, which are not saved with the weights; give "
                "it some: encoder.infusions[…].take(EntityTable.of(EntityVectors.open(FOLDER)))"
            )
        offers = CandidateTensors.of(told, flow.packing, self.config.kb)
        mentions = Mentions.of(offers.text_of, len(flow.packing.lengths))
        before = [flow.memory[self, self.config.layer - past] for past in range(1, self.config.reads)]
        narrow = self.linker.narrow(mean_of([states, *before]))
        contextual = self.linker.contextualize(narrow, offers, mentions)
        chosen = self.linker.choose(mentions.pick(contextual), offers)
        if told is not None:
            links = flow.outputs.setdefault("links", {})
            if self.config.kb in links:
                raise UsageError(f"two layers link to {self.config.kb}; give each knowledge base one")
            links[self.config.kb] = chosen.scores
        mixed = torch.where(chosen.left_mask[:, None], chosen.mixed, self.null.to(chosen.mixed.dtype))
        mixed = mentions.lay(mixed, self.null)
        known = self.mixed_norm(contextual + dropout(mixed, drop, self.training))
        told_of = self.back(self.block(narrow, flow.packing, known, mentions.packing))
        after = states + dropout(told_of, drop, self.training)
        return (after if self.norm is None else self.norm(after)).to(states.dtype)

    def losses(self, flow: Flow) -> dict[str, Tensor]:
        """How badly it links, where it is known what is right."""
        kb = self.config.kb
        scores = flow.outputs.get("links", {}).get(kb)
        told = flow.knowledge.get("offers", {}).get(kb)
        if scores is None or told is None or told.get("gold") is None:
            return {}
        gold = told["gold"].to(scores.device).bool()
        if gold.shape != scores.shape:
            raise UsageError(
                f"gold of {kb} is {tuple(gold.shape)}, entities are {tuple(scores.shape)}; make them alike"
            )
        there = scores > float("-inf")
        gold = gold & there
        judged = gold.any(1)
        if self.config.mode == "margin" and told.get("judged") is not None:
            judged = judged | told["judged"].to(scores.device).bool() & there.any(1)
        if not bool(judged.any()):
            return {}
        found = scores[judged].to(torch.promote_types(scores.dtype, torch.float32))
        if self.config.mode == "softmax":
            loss = softmax_loss(found, gold[judged])
        else:
            loss = margin_loss(found, gold[judged], there[judged], self.config.margin)
        return {f"links {kb}": loss}


class MentionLinker(nn.Module):
    """Steps 1 to 5: from hidden states to mentions that know each other, and how well each candidate fits."""

    def __init__(self, config: KnowBertConfig, hidden: int) -> None:
        super().__init__()
        dim = config.dim
        self.threshold = config.threshold if config.mode == "margin" else None
        self.narrow = nn.Linear(hidden, dim)
        self.pooling = SpanPooling(dim)
        self.mention_norm = nn.LayerNorm(dim, eps=1e-5)
        self.block = Block(dim, config.heads, config.inner, config.dropout)
        self.entities = EntityProjection(
            config.raw,
            dim,
            project=config.project,
            kinds=config.kinds,
            kind_width=config.kind_width,
            drop=config.dropout,
        )
        self.scorer = CandidateScorer(config.prior_width)

    def contextualize(
        self, narrow: Float[Tensor, "token dim"], offers: CandidateTensors, mentions: Mentions
    ) -> Float[Tensor, "all dim"]:
        """The mentions of every text, as they look at each other; an empty one looks at itself."""
        pooled = self.pooling(narrow, offers.firsts, offers.lasts)
        line = self.mention_norm(mentions.lay(pooled, pooled.new_zeros(pooled.shape[1])))
        states: Tensor = self.block(line, mentions.packing, line, mentions.packing)
        return states

    def choose(self, mentions: Float[Tensor, "mention dim"], offers: CandidateTensors) -> Chosen:
        """Score each mention's candidates and mix their vectors."""
        vectors, rows = self.entities.look_up(offers.entities)
        return choose(self.scorer, mentions, vectors, rows, offers.priors, self.threshold)


@dataclass(frozen=True, slots=True)
class CandidateTensors:
    """The mentions of a batch and their candidates, as `KnowBert` takes them; pieces by their places in the batch."""

    text_of: Int[Tensor, " mention"]
    firsts: Int[Tensor, " mention"]
    lasts: Int[Tensor, " mention"]
    entities: Int[Tensor, "mention cand"]
    priors: Float[Tensor, "mention cand"]

    @classmethod
    def of(cls, told: Mapping[str, Tensor] | None, packing: Packing, kb: str) -> CandidateTensors:
        """What a batch tells of one knowledge base; nothing told: there are no mentions."""
        starts = packing.starts
        if told is None:
            none, nobody = starts[:0], starts.new_zeros(0, 0)
            return cls(none, none, none, nobody, nobody.float())
        try:
            parts = [told[name].to(starts.device) for name in ("text_of", "spans", "entities", "priors")]
        except KeyError as missing:
            raise UsageError(f"offers of {kb} lack {missing}; give text_of, spans, entities and priors") from None
        text_of, spans, entities, priors = parts
        count = len(text_of)
        if spans.shape != (count, 2) or entities.dim() != 2 or len(entities) != count or priors.shape != entities.shape:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise UsageError(
                f"offers of {kb} do not fit together: text_of, spans, entities and priors are {shapes}; expected "
                "(mentions), (mentions, 2) and twice (mentions, candidates)"
            )
        if count:
            if bool((text_of.diff() < 0).any()) or int(text_of[0]) < 0 or int(text_of[-1]) >= len(starts):
                raise UsageError(f"mentions of {kb} must be in the order of the batch's {len(starts)} texts, from 0")
            wrong = (spans[:, 0] < 0) | (spans[:, 1] < spans[:, 0]) | (spans[:, 1] >= packing.lengths[text_of])
            if bool(wrong.any()):
                place = int(wrong.nonzero()[0, 0])
                length = int(packing.lengths[text_of[place]])
                raise UsageError(
                    f"mention {place} of {kb} has the span {spans[place].tolist()} in a text of {length} pieces; give "
                    "its first and last piece, from 0"
                )
        firsts, lasts = (starts[text_of][:, None] + spans).unbind(1)
        return cls(text_of, firsts, lasts, entities, priors)


def softmax_loss(scores: Float[Tensor, "mention cand"], gold: Bool[Tensor, "mention cand"]) -> Float[Tensor, ""]:
    """Minus the log of the probability of what is right, together where several are: a mean over mentions."""
    right = scores.masked_fill(~gold, float("-inf"))
    return (scores.logsumexp(1) - right.logsumexp(1)).mean()


def margin_loss(
    scores: Float[Tensor, "mention cand"],
    gold: Bool[Tensor, "mention cand"],
    there: Bool[Tensor, "mention cand"],
    margin: float,
) -> Float[Tensor, ""]:
    """How far what is right stays below the margin, and all else above its negative: a mean over candidates."""
    return (margin + torch.where(gold, -scores, scores)[there]).clamp(min=0).mean()
