"""LUKE: entities are positions of a text beside its words, and attention knows which of them asks which.

Yamada et al. 2020, "LUKE: Deep Contextualized Entity Representations with Entity-aware Self-attention".

1. An entity enters as LayerNorm(B U + D + type): a row of the entity table B, projected to the width of the encoder
   without bias (as it is where the sizes agree), and the mean of D, a position embedding of its own, over the pieces of
   its mention; zero where it has none. Then dropout.
2. Words and entities of a text go through all layers together: every weight of the encoder serves both.
3. In the attention, the query depends on who asks whom: word to word (the encoder's own), word to entity, entity to
   word, entity to entity. Keys and values are shared, one softmax goes over words and entities.
4. Masked entities are told by LayerNorm(gelu(W h + b)), as wide as B's rows, times B, plus a bias.

Unlike the authors' code: no row of B is padding, as nothing is padded; and what is new starts as what the encoder has
of its kind (the three queries as its own; D, types and norm as those of words), so that a fresh model is the encoder,
which reads entities as it reads words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
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

ENTITIES = "entities"
"""The keyword of an encoder for entities of texts, and the name by which their states are told."""
PADDED = ("entity_ids", "entity_attention_mask", "entity_position_ids", "entity_token_type_ids")
"""The same as transformers' LUKE has it."""
_SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LukeConfig:
    """The entities that a model knows, and how they are asked."""

    entities: int
    """Rows of the entity table, with those of [PAD], [UNK], [MASK] and [MASK2]."""
    dim: int = 256
    """How wide a row is."""
    aware: bool = True
    """Entity-aware attention; else words and entities ask with the encoder's own queries."""
    seen: bool = True
    """Whether words look at entities, as in the paper. If not, words are read as without entities, however many these
    are, and entities look at words and each other."""
    longest: int = 30
    """A mention's position is the mean over so many of its pieces, from its first on."""
    predicts: bool = False
    """Whether there is a head that tells masked entities (`Luke.prediction`)."""
    masks: tuple[int, int] = (2, 3)
    """The rows of [MASK] and [MASK2]: as a vocabulary of ours has them; else `EntityVocabulary.masks`."""

    def __post_init__(self) -> None:
        for name in ("entities", "dim", "longest"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1")
        if min(self.masks) < 0:
            raise UsageError(f"masks are the rows {self.masks}; expected those of [MASK] and [MASK2], from 0")


class Luke(Infusion):
    """Entities as positions of an encoder.

    It takes `entities`, a dict of tensors over all entities of the batch, text by text:

    - `text_of` [entity]: the text that it is in, ascending
    - `ids` [entity]: its row of the entity table
    - `spans` [entity, 2]: the first and last piece of its mention, both included, in the text's own places from 0 (so
      that the first piece of all, [CLS] or <s>, is 0); -1 -1: it has no place. Or, where a mention is no range,
      `places` [entity, most]: its pieces, filled up with -1
    - `types` [entity], if there are any: of the first or the second segment

    and tells `entities`: their states [entity, dim] after the last layer, in the same order (an empty tensor, where no
    entity is given). The states of words are where they always are. Instead, a padded batch may come as transformers'
    LUKE takes it: `entity_ids` [text, entity] with `entity_attention_mask`, `entity_position_ids` and
    `entity_token_type_ids`; then the encoder's output has `entity_last_hidden_state`, padded likewise.
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
        share = getattr(encoder, "hidden_dropout_prob", getattr(encoder, "dropout", 0.0))
        self.dropout = nn.Dropout(float(share))
        self.layers = int(encoder.num_hidden_layers)
        self.queries = nn.ModuleList(EntityQueries(width) for _ in range(self.layers if config.aware else 0))
        activation = getattr(encoder, "hidden_act", getattr(encoder, "activation", "gelu"))
        self.prediction = EntityPrediction(width, config, activation, eps) if config.predicts else None
        self.init_weights()

    def init_weights(self) -> None:
        """As BERT's weights start."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                init.normal_(part.weight, std=_SPREAD)
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
        """Queries as copies of the encoder's own; positions, types and norm as those of words, where they fit."""
        for made, layer in zip(self.queries, layers, strict=False):
            own = next(part for name, part in layer.named_modules() if name.split(".")[-1] == projections[0])
            for query in made.children():
                query.load_state_dict(own.state_dict())
        words: Any = getattr(encoder, "embeddings", None)
        places = getattr(words, "position_embeddings", None)
        if places is not None and places.weight.shape == self.positions.weight.shape:
            first = first_position(encoder)
            self.positions.weight[: len(places.weight) - first] = places.weight[first:]
        for name, part in (("token_type_embeddings", self.types), ("LayerNorm", self.norm)):
            found = getattr(words, name, None)
            if found is not None and found.weight.shape == part.weight.shape:
                part.load_state_dict(found.state_dict())

    def extra_tokens(self, flow: Flow) -> ExtraTokens | None:
        """The entities of all texts, which stay."""
        told, laid = _told(flow.knowledge)
        if told is None or (laid is None and not len(told["ids"])):
            flow.outputs[ENTITIES] = self.norm.weight.new_zeros(0, self.norm.weight.shape[0])
            return None
        self._check(told, flow.packing)
        counts = torch.bincount(told["text_of"], minlength=len(flow.packing.lengths))
        packing = Packing.of(counts, counts.device)
        if not self.config.seen and any(flow.attending(layer) for layer in range(self.layers)):
            raise UsageError(
                "maps would show words what they are not to look at; let words see entities (luke.seen = true), or "
                "leave one of the two infusions out"
            )
        queries = self.ask if self.config.aware else None
        return ExtraTokens(
            self.embed(told), packing, output_name=ENTITIES, queries=queries, visible=self.config.seen, padded_mask=laid
        )

    def embed(self, told: Mapping[str, Tensor]) -> Float[Tensor, "entity dim"]:
        """Entities as they enter the first layer."""
        states = self.table(told["ids"])
        if self.wide is not None:
            states = self.wide(states)
        places, counts = self._places(told)
        starts = counts.cumsum(0) - counts
        means = embedding_bag(places, self.positions.weight, starts, mode="mean") if len(places) else 0
        types = told.get("types")
        types = torch.zeros_like(told["ids"]) if types is None else types
        made: Tensor = self.dropout(self.norm(states + means + self.types(types)))
        return made

    def ask(
        self,
        layer: int,
        words: Float[Tensor, "token dim"],
        entities: Float[Tensor, "entity dim"],
        query: Float[Tensor, "token head dim"],
    ) -> EntityAwareQueries:
        """What words and entities ask each other in a layer, which has its own queries of words for words."""
        own, shape = cast(EntityQueries, self.queries[layer]), query.shape[1:]
        return EntityAwareQueries(
            query,
            own.entity_to_word(entities).unflatten(-1, shape),
            own.word_to_entity(words).unflatten(-1, shape),
            own.entity_to_entity(entities).unflatten(-1, shape),
        )

    def predict(self, states: Float[Tensor, "entity dim"]) -> Float[Tensor, "entity row"]:
        """How much each row of the entity table is what these (masked) entities are; before the softmax."""
        if self.prediction is None:
            raise UsageError("this model has no head for entities; infuse it with predicts = true")
        return linear(self.prediction(states), self.table.weight, self.prediction.bias)

    def predict_among(
        self, states: Float[Tensor, "*entity dim"], rows: Int[Tensor, "*entity cand"]
    ) -> Float[Tensor, "*entity cand"]:
        """Score these rows of the entity table for each (masked) entity; minus infinity where a row is negative."""
        if self.prediction is None:
            raise UsageError("this model has no head for entities; infuse it with predicts = true")
        there_mask = rows >= 0
        rows = rows.clamp(min=0)
        made: Tensor = self.prediction(states)
        scores = (made[..., None, :] * self.table.weight[rows]).sum(-1) + self.prediction.bias[rows]
        return scores.masked_fill(~there_mask, -torch.inf)

    def _places(self, told: Mapping[str, Tensor]) -> tuple[Int[Tensor, " place"], Int[Tensor, " entity"]]:
        """The pieces of all mentions end to end, and how many each has."""
        if "places" in told:
            there = told["places"] >= 0
            return told["places"][there], there.sum(1)
        first, last = told["spans"].unbind(1)
        counts = (last - first + 1).clamp(max=self.config.longest) * (first >= 0)
        packing = Packing.of(counts, counts.device)
        return first[packing.text_of] + packing.places, counts

    def _check(self, told: Mapping[str, Tensor], packing: Packing) -> None:
        """Refuse what would else be wrong silently, or an error far from its cause."""
        ids, text_of, lengths = told["ids"], told["text_of"], packing.lengths
        if len(text_of) != len(ids) or bool((text_of.diff() < 0).any()):
            raise UsageError("entities must come text by text; sort them by text_of, and give each an id")
        if (at := _first((text_of < 0) | (text_of >= len(lengths)))) is not None:
            raise UsageError(f"an entity is in text {int(text_of[at])}, but the batch has {len(lengths)} texts, from 0")
        if (at := _first((ids < 0) | (ids >= self.config.entities))) is not None:
            raise UsageError(
                f"entity {int(ids[at])} is not one of the {self.config.entities} rows of the entity table; take ids "
                "of the model's own vocabulary"
            )
        places = told["places"] if "places" in told else told["spans"]
        if places.dim() != 2 or len(places) != len(ids) or ("places" not in told and places.shape[1] != 2):
            raise UsageError(
                f"mentions of {len(ids)} entities are told as {tuple(places.shape)}; give each its first and last "
                "piece, or -1 -1"
            )
        wrong = (places >= lengths[text_of, None]).any(1)
        if "places" not in told:
            first, last = places.unbind(1)
            wrong |= (last < first) | ((first < 0) != (last < 0))
        if (at := _first(wrong)) is not None:
            raise UsageError(
                f"entity {at} of the batch lies at {places[at].tolist()} in a text of {int(lengths[text_of[at]])} "
                "pieces; give its first and last piece, from 0, or -1 -1 if it has no place"
            )
        types, known = told.get("types"), len(self.types.weight)
        if types is None:
            return
        if types.shape != ids.shape:
            raise UsageError(f"{len(types)} types are told of {len(ids)} entities; give each one, or none")
        if (at := _first((types < 0) | (types >= known))) is not None:
            raise UsageError(f"an entity has the type {int(types[at])}, but the encoder has {known} types, from 0")


class EntityQueries(nn.Module):
    """The queries of one layer that words alone have not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_to_entity = nn.Linear(width, width)
        self.entity_to_word = nn.Linear(width, width)
        self.entity_to_entity = nn.Linear(width, width)


class EntityPrediction(nn.Module):
    """Which entity a masked one is: its state, as wide as a row of the entity table, and a bias for each row."""

    def __init__(self, width: int, config: LukeConfig, activation: str, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.dim)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(config.dim, eps=eps)
        self.bias = nn.Parameter(torch.empty(config.entities))

    def forward(self, states: Float[Tensor, "entity dim"]) -> Float[Tensor, "entity ent"]:
        """States as rows of the entity table are compared with them."""
        made: Tensor = self.norm(self.activation(self.dense(states)))
        return made


def candidate_loss(
    scores: Float[Tensor, "entity cand"], rows: Int[Tensor, "entity cand"], gold: Int[Tensor, " entity"]
) -> Float[Tensor, ""]:
    """Cross-entropy of the gold row among the candidates of each entity (Yamada et al. 2022).

    Entities whose gold row is not a candidate have no part in it; the loss is 0 where no entity has one.
    """
    right_mask = (rows == gold[:, None]) & (rows >= 0)
    known = right_mask.any(1)
    if not bool(known.any()):
        return scores.where(scores.isfinite(), 0).sum() * 0.0
    return cross_entropy(scores[known].float(), right_mask[known].int().argmax(1))


def _first(wrong: Bool[Tensor, " entity"]) -> int | None:
    """The first place where it is so, if any."""
    found = wrong.nonzero()
    return int(found[0, 0]) if len(found) else None


def luke_in(model: Any) -> Luke | None:
    """What an encoder (or one under a head) knows of entities, if anything."""
    infusions: Any = getattr(base_of(model), "infusions", ())
    return next((part for part in infusions if isinstance(part, Luke)), None)


def luke_of(model: Any) -> Luke:
    """What an encoder (or one under a head) knows of entities."""
    found = luke_in(model)
    if found is None:
        raise UsageError("this model knows no entities; infuse it with a LukeConfig")
    return found


def _told(knowledge: Mapping[str, Any]) -> tuple[Mapping[str, Tensor] | None, Bool[Tensor, "text entity"] | None]:
    """The entities of a batch, however they came; and where they are, if it was filled up."""
    if ENTITIES in knowledge:
        return knowledge[ENTITIES], None
    ids, mask, places, types = (knowledge.get(name) for name in PADDED)
    if ids is None:
        return None, None
    there = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    told = {"text_of": there.nonzero()[:, 0], "ids": ids[there]}
    told["places"] = torch.full((len(told["ids"]), 1), -1, device=ids.device) if places is None else places[there]
    return (told if types is None else told | {"types": types[there]}), there
