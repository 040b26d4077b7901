"""KnowBERT's knowledge layer (knowledge attention and recontextualization, KAR) between two layers of an encoder.

Peters et al. 2019, "Knowledge Enhanced Contextual Word Representations". One layer serves one KB. With hidden states H,
mentions m and candidates k:

1. P = H W1 + b1, as wide as an entity vector (our option: the mean states of `reads` layers in place of H).
2. s_m = LayerNorm(the tokens of a mention, pooled by attention).
3. S^e = a transformer block over the mentions of a text.
4. psi_mk = MLP([s^e_m · e_mk / sqrt(E), p_mk]); e_mk is the projected, normed candidate vector, p_mk its prior.
5. e~_m = mean of the candidate vectors, weighted by the softmax of psi. In `margin` mode candidates with psi below the
   threshold are excluded. A mention without candidates gets the NULL entity.
6. S'^e = LayerNorm(S^e + dropout(e~)).
7. Every token attends to the mentions of its text: a transformer block with queries P, keys and values S'^e.
8. H' = LayerNorm(H + dropout(block output · W2 + b2)). W2 is initialised as the pseudo-inverse of W1, b2 as -b1 W2.

Steps 1 to 5 are `MentionLinker` (`models.knowbert.mention_linker`), steps 6 to 8 `KnowBert`.

Linking loss: `softmax` mode, -log of the probability of the gold candidates; `margin` mode, max(0, gamma - psi) for
gold candidates and max(0, gamma + psi) for the others, averaged over candidates.

A text without mentions attends to one empty mention: a zero vector with the NULL entity. Its states change too, as in
the authors' code, where such a text attends to padding.

Differences from the authors' code: a mention whose gold entity is not a candidate has no loss (theirs trains the first
candidate); W2 is a true pseudo-inverse (theirs inverts a singular matrix); nothing is computed for padding; in
inference, entities are projected once, not in every batch; entity kinds have one row each, not one per entity; NULL is
trained, and in `softmax` mode used where theirs would mix padding. Differences in candidates are listed in
`models.knowbert.inputs`, the authors' Wikipedia priors are read by `kb.readers.priors`. Not in the paper:
`start = "zero"` with `norm = False` leaves the encoder unchanged until it is trained.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize
from transformers import PreTrainedConfig
from transformers import initialization as init

from wellread.encoders.infusion.hooks import Flow, Infusion
from wellread.encoders.packing import Packing, mean_of
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.mention_linker import (
    CandidateTensors,
    MentionLinker,
    MentionPacking,
    TransformerBlock,
)

_INIT_STD = 0.02
"""Standard deviation of initial weights, as in BERT."""


class KnowBert(Infusion):
    """Knowledge layer of one KB between two layers of an encoder.

    Input `offers`: for each KB a dict of tensors over all mentions of the batch, sorted by text:

    - `text_of` [mention]: index of its text, ascending
    - `spans` [mention, 2]: first and last token, both inclusive, counted from 0 in the text
    - `entities` [mention, cand]: rows of the entity table; -1: no candidate, -2: the MASK entity
    - `priors` [mention, cand]: probabilities
    - `gold` [mention, cand], optional: 1 for correct candidates
    - `definitions` [entity], optional: rows of the entities whose sense texts are the last texts of the batch; their
      vectors are the mean states of these texts, and replace those of the table (`models.knowbert.definitions`)
    - `judged` [mention], optional: 1 where every candidate that is not gold is known to be wrong, as in completely
      linked text; in margin mode such mentions have a loss even without a gold candidate

    Output `links`: {kb: psi [mention, cand]}, minus infinity where there is no candidate. In margin mode a mention is
    linked if its best psi reaches the threshold. Links depend only on the parameters of `linker`, which the first stage
    of the paper's training trains alone.
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
            raise UsageError("the width of entity vectors is not known; give raw, as in raw = 384")
        self.linker = MentionLinker(config, hidden)
        self.null = nn.Parameter(torch.empty(dim))
        self.mixed_norm = nn.LayerNorm(dim, eps=1e-5)
        self.block = TransformerBlock(dim, config.heads, config.inner, config.dropout)
        self.back = nn.Linear(dim, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-5) if config.norm else None
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise all weights as BERT's, W2 by `config.start`."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding) and module is not self.back:
                init.normal_(module.weight, std=_INIT_STD)
            if isinstance(module, nn.LayerNorm):
                init.ones_(module.weight)
            if isinstance(module, nn.Linear | nn.LayerNorm) and module is not self.back:
                init.zeros_(module.bias)
        for special in (self.null, self.linker.entities.mask):
            init.normal_(special, std=_INIT_STD)
        if self.config.start == "zero":
            init.zeros_(self.back.weight)
            init.zeros_(self.back.bias)
        elif self.back.weight.device.type != "meta":
            for weight, inverse in zip((self.back.weight, self.back.bias), self._inverse(), strict=True):
                init.copy_(weight, inverse)

    def invert(self) -> None:
        """Set W2 to the pseudo-inverse of the present W1, as after the first stage, which trains the linker alone."""
        with torch.no_grad():
            for weight, inverse in zip((self.back.weight, self.back.bias), self._inverse(), strict=True):
                weight.copy_(inverse)

    @torch.no_grad()
    def _inverse(self) -> tuple[Tensor, Tensor]:
        narrow = self.linker.narrow
        inverse = torch.linalg.pinv(narrow.weight.double())
        return inverse.to(narrow.weight.dtype), -(inverse @ narrow.bias.double()).to(narrow.weight.dtype)

    def take(self, table: EntityTable) -> None:
        """Set the entity vectors; needed after building or loading, because they are not weights."""
        self.linker.entities.take(table)

    def take_of(self, kb: KnowledgeBase, vectors: EntityVectors) -> None:
        """Set the entity vectors of a KB, with the kinds of its entities if the layer uses them."""
        self.linker.entities.take_of(kb, vectors)

    def between(self, flow: Flow, layer: int, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        """Return the states, recontextualized after the configured layer."""
        last = self.config.layer
        if last - self.config.reads < layer < last:
            flow.memory[self, layer] = states
        return self._recontextualize(flow, states) if layer == last else states

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the number of mentions depends on the batch
    def _recontextualize(self, flow: Flow, states: Float[Tensor, "token hidden"]) -> Float[Tensor, "token hidden"]:
        kb, drop = self.config.kb, self.config.dropout
        given = flow.knowledge.get("offers", {}).get(kb)
        if given is not None and self.linker.entities.table is None:
            raise UsageError(
                f"the layer of {kb} has no entity vectors yet, which are not saved with the weights; give "
                "it some: encoder.infusions[…].take(EntityTable.of(EntityVectors.open(FOLDER)))"
            )
        candidates = CandidateTensors.of(given, flow.packing, kb)
        mentions = MentionPacking.of(candidates.text_of, len(flow.packing.lengths))
        before = [flow.memory[self, self.config.layer - past] for past in range(1, self.config.reads)]
        read = mean_of([states, *before])
        narrow = self.linker.narrow(read)
        contextual = self.linker.contextualize(narrow, candidates, mentions)
        rows = None if given is None else given.get("definitions")
        defined = None
        if rows is not None:
            defined = rows, text_vectors(read, flow.packing)[len(flow.packing.lengths) - len(rows) :]
        scored = self.linker.score(mentions.drop_empty(contextual), candidates, defined)
        if given is not None:
            links = flow.outputs.setdefault("links", {})
            if kb in links:
                raise UsageError(f"two layers link to {kb}; give each knowledge base one")
            links[kb] = scored.scores
        mixed = torch.where(scored.kept_mask[:, None], scored.mixed, self.null.to(scored.mixed.dtype))
        mixed = mentions.add_empty(mixed, self.null)
        enhanced = self.mixed_norm(contextual + dropout(mixed, drop, self.training))
        update = self.back(self.block(narrow, flow.packing, enhanced, mentions.packing))
        after = states + dropout(update, drop, self.training)
        return (after if self.norm is None else self.norm(after)).to(states.dtype)

    def losses(self, flow: Flow) -> dict[str, Tensor]:
        """Return the linking loss of the mentions with gold candidates; empty if there are none."""
        kb = self.config.kb
        scores = flow.outputs.get("links", {}).get(kb)
        given = flow.knowledge.get("offers", {}).get(kb)
        if scores is None or given is None or given.get("gold") is None:
            return {}
        gold = given["gold"].to(scores.device).bool()
        if gold.shape != scores.shape:
            raise UsageError(
                f"gold of {kb} is {tuple(gold.shape)}, entities are {tuple(scores.shape)}; give both the same shape"
            )
        candidate_mask = scores > float("-inf")
        gold = gold & candidate_mask
        judged = gold.any(1)
        if self.config.mode == "margin" and given.get("judged") is not None:
            judged = judged | given["judged"].to(scores.device).bool() & candidate_mask.any(1)
        if not bool(judged.any()):
            return {}
        scores = scores[judged].to(torch.promote_types(scores.dtype, torch.float32))
        if self.config.mode == "softmax":
            loss = softmax_loss(scores, gold[judged])
        else:
            loss = margin_loss(scores, gold[judged], candidate_mask[judged], self.config.margin)
        return {f"links {kb}": loss}


def text_vectors(states: Float[Tensor, "token dim"], packing: Packing) -> Float[Tensor, "text dim"]:
    """Return the normalized mean state of each text."""
    return normalize(packing.mean(states).float(), dim=-1)


def softmax_loss(scores: Float[Tensor, "mention cand"], gold: Bool[Tensor, "mention cand"]) -> Float[Tensor, ""]:
    """Return -log of the summed probability of the gold candidates, averaged over mentions."""
    gold_scores = scores.masked_fill(~gold, float("-inf"))
    return (scores.logsumexp(1) - gold_scores.logsumexp(1)).mean()


def margin_loss(
    scores: Float[Tensor, "mention cand"],
    gold: Bool[Tensor, "mention cand"],
    candidate_mask: Bool[Tensor, "mention cand"],
    margin: float,
) -> Float[Tensor, ""]:
    """Return max(0, margin - psi) of gold and max(0, margin + psi) of other candidates, averaged over candidates."""
    return (margin + torch.where(gold, -scores, scores)[candidate_mask]).clamp(min=0).mean()
