"""LUKE: entities are extra tokens of a text, and attention has a query matrix for each kind of pair.

Yamada et al. 2020, "LUKE: Deep Contextualized Entity Representations with Entity-aware Self-attention".

1. The input of an entity is dropout(LayerNorm(B U + D + type)): a row of the entity table B, projected to the hidden
   size by U without bias (no U if the sizes agree), and the mean of the position embeddings D over the tokens of its
   mention, zero without a mention.
2. Words and entities go through all layers together, with the same weights.
3. The query of attention depends on the pair: word to word (the encoder's own), word to entity, entity to word,
   entity to entity. Keys and values are shared, and one softmax goes over words and entities.
4. A masked entity is predicted by softmax(B LayerNorm(gelu(W h + b)) + bias).

Unlike the authors' code: batches are packed, so no row of B is padding; and new weights start as copies of the
encoder's (the three queries, D, types, LayerNorm), so that an untrained model treats entities like words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding_bag, linear
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.activations import ACT2FN

from wellread.encoders.infusion.entity_attention import EntityAwareQueries
from wellread.encoders.infusion.hooks import ExtraTokens, Flow, Infusion
from wellread.encoders.infusion.infuse import base_of
from wellread.encoders.packing import Packing, first_position
from wellread.errors import UsageError
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.vocabulary import MASK2, EntityVocabulary

ENTITIES = "entities"
"""Keyword of the encoder's forward pass for entities, and key of their states in its output."""
PADDED = ("entity_ids", "entity_attention_mask", "entity_position_ids", "entity_token_type_ids")
"""Keywords of the same inputs in the padded form of transformers' LUKE."""
_INIT_STD = 0.02
_PER_ENTITY = ("table.weight", "prediction.bias")
"""Weights with one row, or one number, per entity."""


class Luke(Infusion):
    """Infusion that adds entities as extra tokens of an encoder.

    Its input `entities` is a dict of tensors over all entities of the batch, ordered by text:

    - `text_of` [entity]: number of the text in the batch, ascending
    - `ids` [entity]: row of the entity table
    - `spans` [entity, 2]: first and last token of the mention, inclusive, counted from 0 in its text
      ([CLS] or <s> is 0); -1 -1 for an entity without a mention. For mentions that are not contiguous, `places`
      [entity, most] instead: the positions of its tokens, padded with -1
    - `types` [entity], optional: token type (first or second segment)

    Its output `entities` has the last states [entity, dim] in the same order (an empty tensor without entities).
    Alternatively a batch may have the padded inputs of transformers' LUKE: `entity_ids` [text, entity] with
    `entity_attention_mask`, `entity_position_ids` and `entity_token_type_ids`; then the encoder's output has
    `entity_last_hidden_state`, padded likewise.
    """

    config_class: ClassVar[type[LukeConfig]] = LukeConfig
    inputs = (ENTITIES, *PADDED)

    def __init__(self, config: LukeConfig, encoder: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.masks = config.masks
        width, eps = int(encoder.hidden_size), float(getattr(encoder, "layer_norm_eps", 1e-12))
        self.heads = int(encoder.num_attention_heads)
        self.table = nn.Embedding(config.entities, config.dim)
        self.wide = nn.Linear(config.dim, width, bias=False) if config.dim != width else None
        self.positions = nn.Embedding(int(encoder.max_position_embeddings), width)
        self.types = nn.Embedding(int(getattr(encoder, "type_vocab_size", None) or 1), width)
        self.norm = nn.LayerNorm(width, eps=eps)
        dropout = getattr(encoder, "hidden_dropout_prob", getattr(encoder, "dropout", 0.0))
        self.dropout = nn.Dropout(float(dropout))
        self.layers = int(encoder.num_hidden_layers)
        self.queries = nn.ModuleList(EntityQueries(width) for _ in range(self.layers if config.aware else 0))
        activation = getattr(encoder, "hidden_act", getattr(encoder, "activation", "gelu"))
        self.prediction = EntityPrediction(width, config, activation, eps) if config.predicts else None
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise all weights as BERT does."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                init.normal_(part.weight, std=_INIT_STD)
            if isinstance(part, nn.LayerNorm):
                init.ones_(part.weight)
            if isinstance(part, nn.Linear | nn.LayerNorm) and part.bias is not None:
                init.zeros_(part.bias)
        if self.prediction is not None:
            init.zeros_(self.prediction.bias)

    @torch.no_grad()
    def copy_from_encoder(
        self, encoder: nn.Module, layers: Sequence[nn.Module], projections: tuple[str, str, str]
    ) -> None:
        """Copy the encoder's queries, position and type embeddings and LayerNorm where the shapes agree."""
        for queries, layer in zip(self.queries, layers, strict=False):
            own = next(part for name, part in layer.named_modules() if name.split(".")[-1] == projections[0])
            for query in queries.children():
                query.load_state_dict(own.state_dict())
        words: Any = getattr(encoder, "embeddings", None)
        positions = getattr(words, "position_embeddings", None)
        if positions is not None and positions.weight.shape == self.positions.weight.shape:
            first = first_position(encoder)  # RoBERTa's positions start behind its padding id, entity positions at 0
            self.positions.weight[: len(positions.weight) - first] = positions.weight[first:]
        for name, part in (("token_type_embeddings", self.types), ("LayerNorm", self.norm)):
            own = getattr(words, name, None)
            if own is not None and own.weight.shape == part.weight.shape:
                part.load_state_dict(own.state_dict())

    def extra_tokens(self, flow: Flow) -> ExtraTokens | None:
        """Return the entities of all texts as extra tokens that go through all layers."""
        inputs, entity_mask = _entity_inputs(flow.knowledge)
        if inputs is None or (entity_mask is None and not len(inputs["ids"])):
            flow.outputs[ENTITIES] = self.norm.weight.new_zeros(0, self.norm.weight.shape[0])
            return None
        self._check(inputs, flow.packing)
        counts = torch.bincount(inputs["text_of"], minlength=len(flow.packing.lengths))
        packing = Packing.of(counts, counts.device)
        if not self.config.seen and any(flow.attending(layer) for layer in range(self.layers)):
            raise UsageError(
                "another infusion changes attention scores, but words must not attend to entities (luke.seen = false); "
                "set luke.seen = true, or remove one of the two infusions"
            )
        queries = self.project_queries if self.config.aware else None
        return ExtraTokens(
            self.embed(inputs),
            packing,
            output_name=ENTITIES,
            queries=queries,
            visible=self.config.seen,
            padded_mask=entity_mask,
        )

    def embed(self, inputs: Mapping[str, Tensor]) -> Float[Tensor, "entity dim"]:
        """Return the inputs of the first layer for all entities: dropout(LayerNorm(B U + mean of D + type))."""
        states = self.table(inputs["ids"])
        if self.wide is not None:
            states = self.wide(states)
        positions, counts = self.mention_positions(inputs)
        starts = counts.cumsum(0) - counts
        means = embedding_bag(positions, self.positions.weight, starts, mode="mean") if len(positions) else 0
        types = inputs.get("types")
        types = torch.zeros_like(inputs["ids"]) if types is None else types
        return cast(Tensor, self.dropout(self.norm(states + means + self.types(types))))

    def project_queries(
        self,
        layer: int,
        words: Float[Tensor, "token dim"],
        entities: Float[Tensor, "entity dim"],
        query: Float[Tensor, "token head dim"],
    ) -> EntityAwareQueries:
        """Return the queries of one layer for the four kinds of pairs; `query` is the encoder's own, word to word."""
        queries, shape = cast(EntityQueries, self.queries[layer]), query.shape[1:]
        return EntityAwareQueries(
            query,
            queries.entity_to_word(entities).unflatten(-1, shape),
            queries.word_to_entity(words).unflatten(-1, shape),
            queries.entity_to_entity(entities).unflatten(-1, shape),
        )

    @property
    def entity_head(self) -> EntityPrediction:
        """Head for masked entities; raise `UsageError` if the model was built without."""
        if self.prediction is None:
            raise UsageError("this model has no head for entities; infuse it with predicts = true")
        return self.prediction

    def predict(self, states: Float[Tensor, "entity dim"]) -> Float[Tensor, "entity row"]:
        """Return the logits of (masked) entities over all rows of the entity table."""
        head = self.entity_head
        return linear(head(states), self.table.weight, head.bias)

    def predict_among(
        self, states: Float[Tensor, "*entity dim"], rows: Int[Tensor, "*entity cand"]
    ) -> Float[Tensor, "*entity cand"]:
        """Return the logits of (masked) entities for the given rows; minus infinity for negative rows (padding)."""
        head, padding_mask = self.entity_head, rows < 0
        rows = rows.clamp(min=0)
        logits: Tensor = (head(states)[..., None, :] * self.table.weight[rows]).sum(-1) + head.bias[rows]
        return logits.masked_fill(padding_mask, -torch.inf)

    def mention_positions(self, inputs: Mapping[str, Tensor]) -> tuple[Int[Tensor, " token"], Int[Tensor, " entity"]]:
        """Return the token positions of all mentions, concatenated, and the number of each mention's tokens."""
        if "places" in inputs:
            token_mask = inputs["places"] >= 0
            return inputs["places"][token_mask], token_mask.sum(1)
        first, last = inputs["spans"].unbind(1)
        counts = (last - first + 1).clamp(max=self.config.longest) * (first >= 0)
        packing = Packing.of(counts, counts.device)
        return first[packing.text_of] + packing.places, counts

    def _check(self, inputs: Mapping[str, Tensor], packing: Packing) -> None:
        """Raise `UsageError` for inputs that would be wrong silently or fail far from their cause."""
        ids, text_of, lengths = inputs["ids"], inputs["text_of"], packing.lengths
        if len(text_of) != len(ids) or bool((text_of.diff() < 0).any()):
            raise UsageError("entities must be ordered by text; sort them by text_of, and give each an id")
        if (at := _first((text_of < 0) | (text_of >= len(lengths)))) is not None:
            raise UsageError(
                f"an entity is in text {int(text_of[at])}, but the batch has {len(lengths)} texts (counted from 0)"
            )
        if (at := _first((ids < 0) | (ids >= self.config.entities))) is not None:
            raise UsageError(
                f"entity {int(ids[at])} is not one of the {self.config.entities} rows of the entity table; use ids "
                "of the model's own vocabulary"
            )
        places = inputs["places"] if "places" in inputs else inputs["spans"]
        if places.dim() != 2 or len(places) != len(ids) or ("places" not in inputs and places.shape[1] != 2):
            raise UsageError(
                f"the mentions of {len(ids)} entities have the shape {tuple(places.shape)}; give each entity its "
                "first and last token, or -1 -1"
            )
        wrong = (places >= lengths[text_of, None]).any(1)
        if "places" not in inputs:
            first, last = places.unbind(1)
            wrong |= (last < first) | ((first < 0) != (last < 0))
        if (at := _first(wrong)) is not None:
            raise UsageError(
                f"entity {at} of the batch is at {places[at].tolist()} in a text of {int(lengths[text_of[at]])} "
                "tokens; give its first and last token, counted from 0, or -1 -1 for an entity without a mention"
            )
        types, known = inputs.get("types"), len(self.types.weight)
        if types is None:
            return
        if types.shape != ids.shape:
            raise UsageError(f"{len(types)} types were given for {len(ids)} entities; give one per entity, or none")
        if (at := _first((types < 0) | (types >= known))) is not None:
            raise UsageError(f"an entity has type {int(types[at])}, but the encoder has {known} types (counted from 0)")


class EntityQueries(nn.Module):
    """The three query projections that entity-aware attention adds to a layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_to_entity = nn.Linear(width, width)
        self.entity_to_word = nn.Linear(width, width)
        self.entity_to_entity = nn.Linear(width, width)


class EntityPrediction(nn.Module):
    """Head that maps the state of a masked entity to the width of the entity table, with an output bias per row."""

    def __init__(self, width: int, config: LukeConfig, activation: str, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.dim)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(config.dim, eps=eps)
        self.bias = nn.Parameter(torch.empty(config.entities))

    def forward(self, states: Float[Tensor, "entity dim"]) -> Float[Tensor, "entity ent"]:
        """Return LayerNorm(gelu(W h + b)), to be multiplied by the entity table."""
        return cast(Tensor, self.norm(self.activation(self.dense(states))))


def candidate_loss(
    scores: Float[Tensor, "entity cand"], rows: Int[Tensor, "entity cand"], gold: Int[Tensor, " entity"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy of the gold row among the candidates of each entity (Yamada et al. 2022).

    Entities whose gold row is not among their candidates are ignored; the loss is 0 if that is all of them.
    """
    gold_mask = (rows == gold[:, None]) & (rows >= 0)
    known_mask = gold_mask.any(1)
    if not bool(known_mask.any()):
        return scores.where(scores.isfinite(), 0).sum() * 0.0
    return cross_entropy(scores[known_mask].float(), gold_mask[known_mask].int().argmax(1))


def _first(wrong: Bool[Tensor, " entity"]) -> int | None:
    """Return the index of the first True, or None."""
    found = wrong.nonzero()
    return int(found[0, 0]) if len(found) else None


def luke_in(model: Any) -> Luke | None:
    """Return the LUKE infusion of an encoder (or of one under a head), or None."""
    infusions: Any = getattr(base_of(model), "infusions", ())
    return next((part for part in infusions if isinstance(part, Luke)), None)


def luke_of(model: Any) -> Luke:
    """Return the LUKE infusion of an encoder (or of one under a head); raise `UsageError` if it has none."""
    found = luke_in(model)
    if found is None:
        raise UsageError("this model has no entities; infuse it with a LukeConfig")
    return found


def _entity_inputs(
    knowledge: Mapping[str, Any],
) -> tuple[Mapping[str, Tensor] | None, Bool[Tensor, "text entity"] | None]:
    """Return the entities of a batch in packed form, and the mask of real entities if they were padded."""
    if ENTITIES in knowledge:
        return knowledge[ENTITIES], None
    ids, mask, places, types = (knowledge.get(name) for name in PADDED)
    if ids is None:
        return None, None
    entity_mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    inputs = {"text_of": entity_mask.nonzero()[:, 0], "ids": ids[entity_mask]}
    inputs["places"] = (
        torch.full((len(inputs["ids"]), 1), -1, device=ids.device) if places is None else places[entity_mask]
    )
    return (inputs if types is None else inputs | {"types": types[entity_mask]}), entity_mask


def same_rows(ours: EntityVocabulary, theirs: EntityVocabulary) -> NDArray[np.int64]:
    """Return pairs (row in `ours`, row in `theirs`) of the names in both.

    If `theirs` lacks [MASK2], its [MASK] is used.
    """
    names = [name for name in ours.row_of if name in theirs]
    rows = np.stack((ours.rows_of(names), theirs.rows_of(names)), axis=1)
    second = [] if MASK2 in theirs else [(ours.mask2, theirs.mask)]
    return np.concatenate((rows, np.array(second, np.int64).reshape(-1, 2)))


@torch.no_grad()
def carry_over(new: Luke, old: Luke, rows: NDArray[np.int64] | None = None) -> list[str]:
    """Copy the weights of a trained infusion into a fresh one; return the names of weights that have no counterpart.

    `rows` are pairs of a row here and a row there (`same_rows`); without them all rows of the old table come first, in
    their order. Additional rows, and weights that the old infusion lacks, keep their initial values.
    """
    if new.config.dim != old.config.dim:
        raise UsageError(f"the existing entity table has rows of {old.config.dim} numbers; set dim = {old.config.dim}")
    if rows is None and new.config.entities < old.config.entities:
        raise UsageError(
            f"the existing entity table has {old.config.entities:,} rows, more than the {new.config.entities:,} "
            "of the vocabulary; extend the vocabulary it was built with (EntityVocabulary.grow)"
        )
    if rows is None:
        rows = np.repeat(np.arange(old.config.entities)[:, None], 2, axis=1)
    here, there = torch.from_numpy(np.ascontiguousarray(rows.T))
    own, left = new.state_dict(), []
    for name, weight in old.state_dict().items():
        if name not in own:
            left.append(name)
        elif name in _PER_ENTITY:
            own[name][here] = weight[there]
        else:
            own[name].copy_(weight)
    return left


@torch.no_grad()
def start_table(luke: Luke, rows: NDArray[np.float32], at: NDArray[np.int64]) -> None:
    """Set rows `at` of the entity table to initial vectors (`EntityVocabulary.start_rows`)."""
    weight = luke.table.weight
    weight[torch.from_numpy(at).to(weight.device)] = torch.from_numpy(rows).to(weight)


@torch.no_grad()
def copy_mask(luke: Luke, vocabulary: EntityVocabulary) -> None:
    """Set the row of [MASK2], which pretraining never uses, to that of [MASK]."""
    luke.table.weight[vocabulary.mask2] = luke.table.weight[vocabulary.mask]
