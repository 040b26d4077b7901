"""Encoders with infusions: their configuration, forward pass and outputs.

`InfusedEncoder` is mixed into the encoder of each family (`encoders.infusion.infuse` makes these classes). The layers
are those of transformers; infusions act between them and in their attention (`encoders.infusion.hooks`). Tokens are
packed, so that no padding is computed, both for packed texts (`read`, `states`) and for padded ones (`forward`).
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
from wellread.encoders.families import EncoderFamily
from wellread.encoders.infusion.entity_attention import make_entity_aware
from wellread.encoders.infusion.hooks import ExtraTokens, Flow, Infusion, LayerAttention
from wellread.encoders.packing import PACKED, Packing, first_position, position_ids_of
from wellread.errors import UsageError

INFUSION_KINDS = {
    "kam": "wellread.models.kam.model:Kam",
    "knowbert": "wellread.models.knowbert.model:KnowBert",
    "luke": "wellread.models.luke.model:Luke",
}
"""Module and class of each kind of infusion, by its name in configurations; add your own."""


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def infusion_kind(infusion: Any) -> str:
    """Return the kind of an infusion's configuration: KamConfig() -> "kam"."""
    for kind, path in INFUSION_KINDS.items():
        if _load(path).config_class is type(infusion):
            return kind
    known = ", ".join(INFUSION_KINDS)
    raise UsageError(f"{type(infusion).__name__} is not a configuration of an infusion; expected one of: {known}")


def _names_of(entry: dict[str, Any]) -> list[str]:
    """Return the names of an infusion: its kind, and with a knowledge base "kind.kb"."""
    return [entry["kind"], f"{entry['kind']}.{entry['kb']}"] if "kb" in entry else [entry["kind"]]


def build_infusion(entry: dict[str, Any], config: PreTrainedConfig) -> Infusion:
    """Return the infusion that an entry of a configuration describes, with initial weights."""
    options = dict(entry)
    kind = options.pop("kind", None)
    if kind not in INFUSION_KINDS:
        raise UsageError(f"{kind!r} is not an infusion; expected one of: {', '.join(INFUSION_KINDS)}")
    made = _load(INFUSION_KINDS[kind])
    infusion: Infusion = made(settings.from_dict(made.config_class, options), config)
    return infusion


def build_infusions(config: PreTrainedConfig) -> nn.ModuleList:
    """Return the infusions of a configuration, with initial weights; raise UsageError for decoders."""
    for name in ("is_decoder", "add_cross_attention"):
        if getattr(config, name, False):  # packed attention has no causal mask
            raise UsageError(
                f"the model has {name} = True, and only encoders can be infused; load it with {name}=False to use it "
                "as an encoder"
            )
    return nn.ModuleList(build_infusion(entry, config) for entry in config.infusions)


class InfusedConfig:
    """Mixin for the configurations of infused models."""

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a configuration; raise UsageError for LUKE in Hugging Face's layout: entities would be lost."""
        name = pretrained_model_name_or_path
        found: tuple[dict[str, Any], dict[str, Any]] = super().get_config_dict(name, **kwargs)  # type: ignore[misc]
        if found[0].get("model_type") == "luke":
            where = name if Path(name).is_dir() else "FOLDER"
            first = "" if Path(name).is_dir() else f"download it first (hf download {name} --local-dir FOLDER), and "
            raise UsageError(
                f"{name} is a LUKE in Hugging Face's layout; {first}load it by from_pretrained of a class in "
                f"wellread.models.luke.heads.HEADS, or convert it first: wellread convert luke {where} --to NEW"
            )
        return found


class Infused:
    """Mixin for all infused models, with or without a head: initial weights and training."""

    config: Any

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Infusion):
            module.init_weights()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Enable gradient checkpointing, not reentrant: that would miss the knowledge, which is not a layer's input."""
        options: dict[str, Any] = {"use_reentrant": False}  # not torch's default
        options |= gradient_checkpointing_kwargs or {}
        if self.config.infusions and options["use_reentrant"]:
            raise UsageError(
                "reentrant gradient checkpointing would lose the gradients of infusions; give use_reentrant=False"
            )
        super().gradient_checkpointing_enable(options, *args, **kwargs)  # type: ignore[misc]

    def set_attn_implementation(self, attn_implementation: str | dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Accept packed attention only: others would let the texts of a batch attend to each other."""
        if attn_implementation not in (PACKED, {"": PACKED}):
            raise UsageError(
                f"an infused model has its own attention, and {attn_implementation!r} would ignore its knowledge; do "
                "not change it (output_attentions=True works)"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)  # type: ignore[misc]


@dataclass
class InfusedModelOutput(BaseModelOutputWithPoolingAndCrossAttentions):
    """Output of `InfusedEncoder.forward`; entity states are named and padded as in transformers' LUKE."""

    entity_last_hidden_state: Tensor | None = None
    entity_hidden_states: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, slots=True)
class InfusedOutput:
    """Output of `InfusedEncoder.read` for packed texts."""

    states: Float[Tensor, "token dim"]
    outputs: dict[str, Any]
    """Outputs of infusions besides the states, by name (`Flow.outputs`)."""
    losses: dict[str, Tensor]
    """Training losses of the infusions themselves, by name."""


class InfusedEncoder(Infused):
    """Mixin that gives a family's encoder infusions and packed computation."""

    family: ClassVar[EncoderFamily]
    infusions: nn.ModuleList
    embeddings: nn.Module

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        config._attn_implementation = PACKED
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        if not config.pooler and getattr(self, "pooler", None) is not None:
            self.pooler = None
        self.set_infusions(build_infusions(config))

    @property
    def layers(self) -> list[nn.Module]:
        """Layers of the encoder, in order."""
        return list(cast(nn.Module, self).get_submodule(self.family.layers).children())

    def set_infusions(self, infusions: nn.ModuleList) -> None:
        """Replace the encoder's infusions."""
        device: Any = self.embeddings.word_embeddings.weight.device  # type: ignore[union-attr]
        self.infusions = infusions.to(device).train(cast(nn.Module, self).training)
        if self.family.has_entity_attention:
            for layer in self.layers:
                layer.set_submodule(
                    self.family.attention, make_entity_aware(layer.get_submodule(self.family.attention))
                )

    @contextmanager
    def without(self, *kinds: str) -> Iterator[None]:
        """Switch infusions off within a `with` block: all, or those of some kinds.

        With several of a kind, name one with its knowledge base, as in "knowbert.wordnet".
        """
        all_names = [_names_of(entry) for entry in self.config.infusions]
        if unknown := set(kinds).difference(*all_names):
            known = ", ".join(names[-1] for names in all_names) or "none"
            raise UsageError(f"the encoder has no infusion {sorted(unknown)[0]!r}; it has: {known}")
        named = zip(self.infusions, all_names, strict=True)
        parts = [(part, part.on) for part, names in named if not kinds or not set(kinds).isdisjoint(names)]
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
        """Return the last hidden state of every token of packed texts."""
        return self.read(ids, packing, types, **knowledge).states

    def read(
        self,
        ids: Int[Tensor, " token"],
        packing: Packing,
        types: Int[Tensor, " token"] | None = None,
        **knowledge: Any,
    ) -> InfusedOutput:
        """Return the states of packed texts, and the outputs and losses of infusions."""
        states, flow, _ = self._run(ids, None, packing, None, types, knowledge)
        losses = {name: loss for infusion in flow.infusions for name, loss in infusion.losses(flow).items()}
        return InfusedOutput(states, flow.outputs, losses)

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
    ) -> InfusedModelOutput:
        """Return what transformers' encoder does; positions in the knowledge of a text count from its first token.

        With `packing`, inputs and outputs are packed, as one row.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise UsageError("give either input_ids or inputs_embeds")
        given = cast(Tensor, input_ids if inputs_embeds is None else inputs_embeds)
        keep_attention = self.config.output_attentions if output_attentions is None else output_attentions
        keep_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        layout = _BatchLayout.of(given, attention_mask, packing)
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
        made = InfusedModelOutput(
            last_hidden_state=last,
            pooler_output=pooler(firsts[:, None]) if pooler is not None else None,
            hidden_states=tuple(layout.spread(step[:count]) for step in steps) if keep_states else None,
            attentions=attentions if keep_attention else None,
        )
        if flow.extra_tokens is not None and flow.extra_tokens.output_name is not None:
            made.entity_last_hidden_state = flow.extra_tokens.spread(flow.outputs[flow.extra_tokens.output_name])
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
        if not len(packing.text_of):  # transformers' layers cannot reshape an empty sequence
            raise UsageError("the batch has no tokens; leave it out")
        infusions = [cast(Infusion, infusion) for infusion in self.infusions if infusion.on]
        known = self._known(knowledge, len(packing.lengths))
        flow = Flow(packing, infusions, known, types, embed=self._embed, keep_attention=keep_attention)
        if positions is None:
            first = first_position(cast(nn.Module, self))
            if packing.width > (most := int(self.config.max_position_embeddings) - first):
                raise UsageError(
                    f"a text has {packing.width} tokens, and the encoder has {most} positions; split it into windows "
                    f"(longest={most})"
                )
            positions = position_ids_of(ids, packing, first)
        states = self._embed_at(ids, positions, types, embeds)
        flow.extra_tokens = extra_tokens = _extra_tokens(flow)
        count, persistent = len(states), flow.has_persistent_tokens
        if extra_tokens is not None and persistent:
            states = torch.cat((states, extra_tokens.states))
        steps = [states]
        for number, layer in enumerate(self.layers):
            attention = LayerAttention(flow, number, self.family.projections, states if persistent else None)
            states = layer(states[None], None, packing=packing, layer_attention=attention)
            states = (states[0] if isinstance(states, tuple) else states).squeeze(0)  # [0] would copy the gradient
            for infusion in infusions:
                states = _between(infusion, flow, number, states, count)
            if keep_states:
                steps.append(states)
        if extra_tokens is not None and extra_tokens.output_name is not None:
            flow.outputs[extra_tokens.output_name] = states[count:]
        return states[:count] if persistent else states, flow, steps

    def _known(self, knowledge: dict[str, Any], texts: int) -> dict[str, Any]:
        """Return the keywords that infusions take; transformers passes others too, most of them None."""
        taken = {name for infusion in self.infusions for name in cast(Infusion, infusion).inputs}
        known = {name: value for name, value in knowledge.items() if value is not None and name in taken}
        extra = {name for name, value in knowledge.items() if value is not None and name not in taken} - _PASSED
        if extra:
            raise UsageError(
                f"no infusion takes {', '.join(sorted(extra))}; expected: {', '.join(sorted(taken)) or 'no knowledge'}"
            )
        for name, value in known.items():  # multiple-choice heads flatten only inputs that they know
            if isinstance(value, Tensor) and len(value) < texts == value.shape[:2].numel():
                known[name] = value.flatten(0, 1)
        return known

    def _embed(self, ids: Tensor, places: Tensor, types: Tensor | None) -> Tensor:
        most = int(self.config.max_position_embeddings)
        positions = places + first_position(cast(nn.Module, self))
        if len(positions) and int(positions.max()) >= most:
            raise UsageError(
                f"a text with its auxiliary tokens needs {int(places.max()) + 1} positions, more than the encoder has; "
                "split texts into shorter windows, or give fewer auxiliary tokens"
            )
        return self._embed_at(ids, positions, types, None)

    def _embed_at(self, ids: Tensor | None, positions: Tensor, types: Tensor | None, embeds: Tensor | None) -> Tensor:
        more = {} if types is None or not self.family.has_token_types else {"token_type_ids": types[None]}
        if ids is None:
            more["inputs_embeds"] = cast(Tensor, embeds)[None]
        states = self.embeddings(input_ids=None if ids is None else ids[None], position_ids=positions[None], **more)
        if hasattr(self, "embeddings_project"):
            states = self.embeddings_project(states)
        return cast(Tensor, states.squeeze(0))


_PASSED = {"return_dict", "use_cache", "num_items_in_batch"}
"""Keywords that transformers' heads and Trainer may pass, and that have no effect here."""


@dataclass(frozen=True, slots=True)
class _BatchLayout:
    """Conversion between a padded batch, as callers have it, and a packed one."""

    packing: Packing
    width: int
    where: Tensor | None
    """Indices of the tokens in the flattened padded batch; None: there is no padding."""
    packed: bool
    is_left: bool = False
    """Some text has padding before its first token."""

    @classmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # depends on the mask's values
    def of(cls, given: Tensor, mask: Tensor | None, packing: Packing | None) -> _BatchLayout:
        batch, width = given.shape[:2]
        if packing is not None:
            return cls(packing, width, None, packed=True)
        if mask is None or bool(mask.all()):
            return cls(Packing.of([width] * batch, given.device), width, None, packed=False)
        if mask.dim() != 2:
            raise UsageError(f"the attention_mask has {mask.dim()} dimensions; expected two: texts, tokens")
        there = mask.bool()
        lengths = there.sum(1)
        if not bool(lengths.all()):
            raise UsageError("a text of the batch has no tokens; leave it out")
        begins = there & ~there.roll(1, 1)
        begins[:, 0] = there[:, 0]
        if bool((begins.sum(1) > 1).any()):
            raise UsageError("the attention_mask hides tokens within a text; mask padding alone, on one side or both")
        where, is_left = there.flatten().nonzero()[:, 0], not bool(there[:, 0].all())
        return cls(Packing.of(lengths, given.device), width, where, packed=False, is_left=is_left)

    def gather(self, padded: Tensor | None) -> Tensor | None:
        if padded is None:
            return None
        if padded.shape[0] == 1 and len(self.packing.lengths) > 1:  # one row for all texts, e.g. positions
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
    """Apply `Infusion.between` to the first `count` states, those of tokens; extra tokens after them stay the same."""
    if not flow.has_persistent_tokens:
        return infusion.between(flow, layer, states)
    tokens = states[:count]
    changed = infusion.between(flow, layer, tokens)
    return states if changed is tokens else torch.cat((changed, states[count:]))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _extra_tokens(flow: Flow) -> ExtraTokens | None:
    """Return the extra tokens of the one infusion that has some; None if there are none."""
    found = [extra for infusion in flow.infusions if (extra := infusion.extra_tokens(flow)) is not None]
    if len(found) > 1:
        raise UsageError("two infusions add extra tokens to the texts; switch one of them off")
    return found[0] if found and (len(found[0].states) or found[0].padded_mask is not None) else None
