"""An encoder that takes knowledge: how it is asked, how texts go through its layers, what comes back.

`InfusedEncoder` is mixed into the encoder of each family (`encoders.infusion.infuse` makes such classes). Its layers
are those of transformers; between them and in their attention the infusions have their say (`encoders.infusion.hooks`).
Pieces are packed: no padding goes through it, whether it is asked for packed texts (`read`, `states`) or as
transformers asks (`forward`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from wellread import config as settings
from wellread.encoders.infusion.entity_attention import entity_aware_class
from wellread.encoders.infusion.hooks import ExtraTokens, Flow, Infusion, Place
from wellread.encoders.packing import PACKED, Packing, count_places, first_position
from wellread.errors import UsageError

KINDS = {
    "kam": "wellread.models.kam.model:Kam",
    "knowbert": "wellread.models.knowbert.model:KnowBert",
    "luke": "wellread.models.luke.model:Luke",
}
"""Where each kind of infusion is, by the name that configurations have for it; add your own."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is different in the encoders of a family."""

    name: str
    """As its classes begin."""
    layers: str
    projections: tuple[str, str, str]
    typed: bool = True
    """Whether pieces have types (of the first or the second segment)."""
    asking: str | None = "attention.self"
    """Where a layer has its attention, if that can leave it to guests how they ask; else it makes queries in vain."""


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def kind_of(infusion: Any) -> str:
    """The kind that a configuration is of: KamConfig() -> "kam"."""
    for kind, place in KINDS.items():
        if _load(place).config_class is type(infusion):
            return kind
    raise UsageError(f"{type(infusion).__name__} is no configuration of an infusion; there are: {', '.join(KINDS)}")


def _names_of(told: dict[str, Any]) -> list[str]:
    """What an infusion is called: its kind, and where it is of a knowledge base, of which."""
    return [told["kind"], f"{told['kind']}.{told['kb']}"] if "kb" in told else [told["kind"]]


def build_infusion(told: dict[str, Any], config: PreTrainedConfig) -> Infusion:
    """The infusion that an entry of a configuration tells of."""
    options = dict(told)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no infusion; there are: {', '.join(KINDS)}")
    made = _load(KINDS[kind])
    infusion: Infusion = made(settings.from_dict(made.config_class, options), config)
    return infusion


def build_infusions(config: PreTrainedConfig) -> nn.ModuleList:
    """The infusions that a configuration names, as they start; a decoder takes none."""
    for name in ("is_decoder", "add_cross_attention"):
        if getattr(config, name, False):  # packed attention looks both ways: a causal mask would be lost unsaid
            raise UsageError(
                f"the model has {name} = True, and only encoders can be infused; load it with {name}=False if it is to "
                "read both ways"
            )
    return nn.ModuleList(build_infusion(told, config) for told in config.infusions)


class InfusedConfig:
    """What the configurations of all infused models have in common; mixed into that of each family."""

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """As transformers' own; but of a LUKE of others a class of ours would leave out what it knows of entities."""
        name = pretrained_model_name_or_path
        found: tuple[dict[str, Any], dict[str, Any]] = super().get_config_dict(name, **kwargs)  # type: ignore[misc]
        if found[0].get("model_type") == "luke":
            where = name if Path(name).is_dir() else "FOLDER"
            first = "" if Path(name).is_dir() else f"download it first (hf download {name} --local-dir FOLDER), and "
            raise UsageError(
                f"{name} is a LUKE of Hugging Face's layout; {first}load it by from_pretrained of a class in "
                f"wellread.models.luke.heads.HEADS, or convert it first: wellread convert luke {where} --to NEW"
            )
        return found


class Infused:
    """What all infused models have in common: how their weights start, and are learned."""

    config: Any

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Infusion):
            module.start()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """As transformers' own; knowledge reaches a layer beside its states, where the reentrant kind sees nothing."""
        options: dict[str, Any] = {"use_reentrant": False}  # torch has another default
        options |= gradient_checkpointing_kwargs or {}
        if self.config.infusions and options["use_reentrant"]:
            raise UsageError(
                "reentrant gradient checkpointing would lose gradients of what is infused; give use_reentrant=False"
            )
        super().gradient_checkpointing_enable(options, *args, **kwargs)  # type: ignore[misc]

    def set_attn_implementation(self, attn_implementation: str | dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """As transformers' own; but any attention than ours would let texts of a batch see each other."""
        if attn_implementation not in (PACKED, {"": PACKED}):
            raise UsageError(
                f"an infused model attends in its own way, and {attn_implementation!r} would leave knowledge out; keep "
                "it as it is (output_attentions=True works)"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)  # type: ignore[misc]


@dataclass
class Output(BaseModelOutputWithPoolingAndCrossAttentions):
    """What transformers' encoders give, and the states of entities, named and filled up as those of its LUKE."""

    entity_last_hidden_state: Tensor | None = None
    entity_hidden_states: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """What an infused encoder makes of packed texts."""

    states: Float[Tensor, "token dim"]
    told: dict[str, Any]
    """What infusions say besides the states (`Flow.told`)."""
    losses: dict[str, Tensor]
    """What infusions are to learn by themselves, by name."""


class InfusedEncoder(Infused):
    """An encoder that takes knowledge; mixed into the encoder of each family."""

    family: ClassVar[Family]
    infusions: nn.ModuleList
    embeddings: nn.Module

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        config._attn_implementation = PACKED
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        if not config.pooler and getattr(self, "pooler", None) is not None:
            self.pooler = None
        self.take_in(build_infusions(config))

    @property
    def layers(self) -> list[nn.Module]:
        """The encoder's layers, from the first on."""
        return list(cast(nn.Module, self).get_submodule(self.family.layers).children())

    def take_in(self, infusions: nn.ModuleList) -> None:
        """Have these infusions, instead of those that were here."""
        device: Any = self.embeddings.word_embeddings.weight.device  # type: ignore[union-attr]
        self.infusions = infusions.to(device).train(cast(nn.Module, self).training)
        if self.family.asking is not None:
            for layer in self.layers:
                attention = layer.get_submodule(self.family.asking)
                kind: Any = type(attention)
                attention.__class__ = entity_aware_class(kind)

    @contextmanager
    def without(self, *kinds: str) -> Iterator[None]:
        """Switch infusions off for a while, all or by their kinds: what would the encoder say without them?

        One of several of a kind is named by its knowledge base too, as in "knowbert.wordnet".
        """
        told = [_names_of(entry) for entry in self.config.infusions]
        if unknown := set(kinds).difference(*told):
            known = ", ".join(names[-1] for names in told) or "none"
            raise UsageError(f"no infusion {sorted(unknown)[0]!r} here; there are: {known}")
        some = zip(self.infusions, told, strict=True)
        parts = [(part, part.on) for part, names in some if not kinds or not set(kinds).isdisjoint(names)]
        try:
            for part, _ in parts:
                part.on = False  # type: ignore[assignment]
            yield
        finally:
            for part, was in parts:
                part.on = was

    def states(
        self,
        ids: Int[Tensor, " token"],
        packing: Packing,
        types: Int[Tensor, " token"] | None = None,
        **knowledge: Any,
    ) -> Float[Tensor, "token dim"]:
        """The last hidden state of every piece of packed texts."""
        return self.read(ids, packing, types, **knowledge).states

    def read(
        self,
        ids: Int[Tensor, " token"],
        packing: Packing,
        types: Int[Tensor, " token"] | None = None,
        **knowledge: Any,
    ) -> Read:
        """The states of packed texts, and what infusions say besides."""
        states, flow, _ = self._run(ids, None, packing, None, types, knowledge)
        losses = {name: loss for infusion in flow.infusions for name, loss in infusion.losses(flow).items()}
        return Read(states, flow.told, losses)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        packing: Packing | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **knowledge: Any,
    ) -> Output:
        """As transformers' own, with knowledge beside; a text's knowledge is told in its own positions, from 0.

        With `packing`, what is given and what comes back is packed, as one row.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise UsageError("give either input_ids or inputs_embeds")
        given = cast(Tensor, input_ids if inputs_embeds is None else inputs_embeds)
        keep_attention = self.config.output_attentions if output_attentions is None else output_attentions
        keep_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        layout = _Layout.of(given, attention_mask, packing)
        ids, embeds, types = (layout.gather(part) for part in (input_ids, inputs_embeds, token_type_ids))
        places = layout.gather(position_ids)
        states, flow, steps = self._run(
            ids, embeds, layout.packing, places, types, knowledge, bool(keep_attention), bool(keep_states)
        )
        count = len(layout.packing.text_of)
        last, firsts = layout.spread(states), states[layout.packing.starts]
        if layout.is_left:
            last = torch.cat((firsts[:, None], last[:, 1:]), 1)
        pooler = getattr(self, "pooler", None)
        attentions: Any = tuple(flow.attentions[layer] for layer in sorted(flow.attentions))
        made = Output(
            last_hidden_state=last,
            pooler_output=pooler(firsts[:, None]) if pooler is not None else None,
            hidden_states=tuple(layout.spread(step[:count]) for step in steps) if keep_states else None,
            attentions=attentions if keep_attention else None,
        )
        if flow.extra_tokens is not None and flow.extra_tokens.stay is not None:
            made.entity_last_hidden_state = flow.extra_tokens.spread(flow.told[flow.extra_tokens.stay])
            if keep_states:
                made.entity_hidden_states = tuple(flow.extra_tokens.spread(step[count:]) for step in steps)
        return made

    def _run(
        self,
        ids: Tensor | None,
        embeds: Tensor | None,
        packing: Packing,
        positions: Tensor | None,
        types: Tensor | None,
        knowledge: dict[str, Any],
        keep_attention: bool = False,
        keep_states: bool = False,
    ) -> tuple[Float[Tensor, "token dim"], Flow, list[Tensor]]:
        if not len(packing.text_of):  # of which transformers' layers can make no heads
            raise UsageError("the batch has no piece at all; leave it out")
        infusions = [cast(Infusion, infusion) for infusion in self.infusions if infusion.on]
        known = self._known(knowledge, len(packing.lengths))
        flow = Flow(packing, infusions, known, types, embed=self._embed, keep_attention=keep_attention)
        if positions is None:
            first = first_position(cast(nn.Module, self))
            if packing.width > (room := int(self.config.max_position_embeddings) - first):
                raise UsageError(
                    f"a text has {packing.width} pieces, and the encoder reads {room} at once; cut it into windows "
                    f"(longest={room})"
                )
            positions = count_places(ids, packing, first)
        states = self._embed_at(ids, positions, types, embeds)
        flow.extra_tokens = extra_tokens = _invite(flow)
        count, staying = len(states), extra_tokens is not None and extra_tokens.stay is not None
        if extra_tokens is not None and staying:
            states = torch.cat((states, extra_tokens.states))
        steps = [states]
        for number, layer in enumerate(self.layers):
            place = Place(flow, number, self.family.projections, states if staying else None)
            states = layer(states[None], None, packing=packing, at=place)
            states = (states[0] if isinstance(states, tuple) else states).squeeze(0)  # its gradient is not copied
            for infusion in infusions:
                states = _between(infusion, flow, number, states, count)
            if keep_states:
                steps.append(states)
        if extra_tokens is not None and extra_tokens.stay is not None:
            flow.told[extra_tokens.stay] = states[count:]
        return states[:count] if staying else states, flow, steps

    def _known(self, knowledge: dict[str, Any], texts: int) -> dict[str, Any]:
        """What is told to infusions, text by text; transformers passes more, most of it None."""
        taken = {name for infusion in self.infusions for name in cast(Infusion, infusion).inputs}
        known = {name: value for name, value in knowledge.items() if value is not None and name in taken}
        extra = {name for name, value in knowledge.items() if value is not None and name not in taken} - _PASSED
        if extra:
            raise UsageError(
                f"no infusion here takes {', '.join(sorted(extra))}; they take: {', '.join(sorted(taken)) or 'nothing'}"
            )
        for name, value in known.items():  # heads of choices make one text of each choice, but only of what they know
            if isinstance(value, Tensor) and len(value) < texts == value.shape[:2].numel():
                known[name] = value.flatten(0, 1)
        return known

    def _embed(self, ids: Tensor, places: Tensor, types: Tensor | None) -> Tensor:
        most = int(self.config.max_position_embeddings)
        positions = places + first_position(cast(nn.Module, self))
        if len(positions) and int(positions.max()) >= most:
            raise UsageError(
                f"a text with its auxiliary pieces needs {int(places.max()) + 1} positions, more than the encoder has; "
                "cut the texts shorter or give fewer auxiliary pieces"
            )
        return self._embed_at(ids, positions, types, None)

    def _embed_at(self, ids: Tensor | None, positions: Tensor, types: Tensor | None, embeds: Tensor | None) -> Tensor:
        more = {} if types is None or not self.family.typed else {"token_type_ids": types[None]}
        if ids is None:
            more["inputs_embeds"] = cast(Tensor, embeds)[None]
        states = self.embeddings(input_ids=None if ids is None else ids[None], position_ids=positions[None], **more)
        if hasattr(self, "embeddings_project"):
            states = self.embeddings_project(states)
        return cast(Tensor, states.squeeze(0))


_PASSED = {"return_dict", "use_cache", "num_items_in_batch"}
"""What transformers' heads and Trainer may pass on, and nobody here needs."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Between a padded batch, as callers have it, and a packed one."""

    packing: Packing
    width: int
    where: Tensor | None
    """The places of the pieces in the flat padded batch; None: all of them."""
    packed: bool
    is_left: bool = False
    """Some text has padding before its first piece."""

    @classmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # how texts lie is known when they are there
    def of(cls, given: Tensor, mask: Tensor | None, packing: Packing | None) -> _Layout:
        batch, width = given.shape[:2]
        if packing is not None:
            return cls(packing, width, None, packed=True)
        if mask is None or bool(mask.all()):
            return cls(Packing.of([width] * batch, given.device), width, None, packed=False)
        if mask.dim() != 2:
            raise UsageError(f"the attention_mask has {mask.dim()} dimensions; give one of texts by pieces")
        there = mask.bool()
        lengths = there.sum(1)
        if not bool(lengths.all()):
            raise UsageError("a text of the batch has no piece at all; leave it out")
        begins = there & ~there.roll(1, 1)
        begins[:, 0] = there[:, 0]
        if bool((begins.sum(1) > 1).any()):
            raise UsageError("the attention_mask hides pieces within a text; hide padding alone, on one side or both")
        where, is_left = there.flatten().nonzero()[:, 0], not bool(there[:, 0].all())
        return cls(Packing.of(lengths, given.device), width, where, packed=False, is_left=is_left)

    def gather(self, padded: Tensor | None) -> Tensor | None:
        if padded is None:
            return None
        if padded.shape[0] == 1 and len(self.packing.lengths) > 1:  # one row for all texts, as of positions
            padded = padded.expand(1 if self.packed else len(self.packing.lengths), *padded.shape[1:])
        flat = padded.flatten(0, 1)
        return flat if self.where is None else flat.index_select(0, self.where)

    def spread(self, states: Tensor) -> Tensor:
        if self.packed:
            return states[None]
        batch = len(self.packing.lengths)
        if self.where is None:
            return states.view(batch, self.width, *states.shape[1:])
        padded = states.new_zeros(batch * self.width, *states.shape[1:])
        return padded.index_copy(0, self.where, states).view(batch, self.width, *states.shape[1:])


def _between(infusion: Infusion, flow: Flow, layer: int, states: Tensor, count: int) -> Tensor:
    """The states of pieces as an infusion would have them; those of guests, behind them, stay as they are."""
    if not flow.stays:
        return infusion.between(flow, layer, states)
    tokens = states[:count]
    changed = infusion.between(flow, layer, tokens)
    return states if changed is tokens else torch.cat((changed, states[count:]))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _invite(flow: Flow) -> ExtraTokens | None:
    """The guests of all infusions."""
    extra_tokens = [found for infusion in flow.infusions if (found := infusion.extra_tokens(flow)) is not None]
    if len(extra_tokens) > 1:
        raise UsageError("two infusions want to add positions to the texts; switch one of them off")
    return (
        extra_tokens[0] if extra_tokens and (len(extra_tokens[0].states) or extra_tokens[0].laid is not None) else None
    )
