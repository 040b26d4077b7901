"""Infusion: the one way in which knowledge enters a pretrained encoder.

`infuse(model, [...])` returns a model of transformers as one that takes knowledge, with the same weights under the same
names. So any checkpoint of the family loads, and adapters, `save_pretrained`, Trainer and `AutoModel` work. Without
infusions its output is the encoder's, with three differences in padded batches: padding is not computed, its states are
zeros, and positions count from the first token of each text, even if padding is on the left. (Then the first column has
the state of each text's first token, because heads look there.)

Every family is a row of `encoders.families.FAMILIES`. Each of its heads has a class `Infused…` with the model type
"infused-…", which `AutoModel`, `AutoModelForSequenceClassification` etc. know once this module is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, cast

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from wellread.encoders.families import FAMILIES
from wellread.encoders.infusion.encoder import (
    INFUSION_KINDS,
    Infused,
    InfusedConfig,
    InfusedEncoder,
    InfusedModelOutput,
    InfusedOutput,
    build_infusion,
    build_infusions,
    infusion_kind,
)
from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.packing import PACKED
from wellread.errors import UsageError

__all__ = [
    "FAMILIES",
    "INFUSED_HEADS",
    "INFUSION_KINDS",
    "Infused",
    "InfusedEncoder",
    "InfusedHead",
    "InfusedModelOutput",
    "InfusedOutput",
    "base_of",
    "build_infusion",
    "build_infusions",
    "infuse",
    "infused_class",
]

INFUSED_HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForTokenClassification",
)
"""Suffixes of the classes of transformers that can be infused, e.g. BertForMaskedLM."""


def infuse(model: PreTrainedModel, infusions: Sequence[Any]) -> PreTrainedModel:
    """Return a model of transformers, with or without a head, as one that takes these kinds of knowledge.

    `infusions` are configurations such as `KamConfig(maps=("entity",))`. The result has the weights of `model`, shared
    and not copied: use it in place of `model` from then on. A model that is already infused is changed in place: its
    infusions are replaced.
    """
    config = _infused_config(model, infusions)
    made, before = build_infusions(config), base_of(model).config
    for part in model.modules():
        if getattr(part, "config", None) is before:  # each attention module has it
            part.config = config  # type: ignore[assignment]
    infused = _with_infused_encoder(_as_infused(model))
    encoder = cast(InfusedEncoder, base_of(infused))
    encoder.set_infusions(made)
    for infusion in encoder.infusions:
        cast(Infusion, infusion).copy_from_encoder(cast(nn.Module, encoder), encoder.layers, encoder.family.projections)
    return infused


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder under a head; an encoder itself."""
    return cast(PreTrainedModel, getattr(model, model.base_model_prefix, model))


def infused_class(kind: str, head: str = "Model") -> type[PreTrainedModel]:
    """Return the infused class of a family and a head: ("bert", "ForMaskedLM") -> InfusedBertForMaskedLM."""
    found: type[PreTrainedModel] = _CLASSES[getattr(transformers, f"{FAMILIES[kind].name}{head}")]
    return found


def _as_infused(model: PreTrainedModel) -> PreTrainedModel:
    """Return an instance of the model's infused class with its attributes: submodules are shared, not copied."""
    kind: type[PreTrainedModel] | None = _CLASSES.get(type(model))
    if kind is None:
        return model
    infused = kind.__new__(kind)
    infused.__dict__.update(model.__dict__)
    return infused


def _with_infused_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Replace the encoder under a head by an infused one."""
    encoder = base_of(model)
    if encoder is not model:
        setattr(model, model.base_model_prefix, _as_infused(encoder))
    return model


def _infused_config(model: PreTrainedModel, infusions: Sequence[Any]) -> PreTrainedConfig:
    if not isinstance(model, Infused) and type(model) not in _CLASSES:
        raise UsageError(
            f"{type(model).__name__} cannot be infused; give an encoder of one of the families {', '.join(FAMILIES)} "
            f"(MiniLM is one of these), bare or as {', '.join(INFUSED_HEADS[1:])}"
        )
    kind = str(model.config.model_type).removeprefix("infused-")
    values = model.config.to_dict() | {
        "model_type": f"infused-{kind}",
        "infusions": [{"kind": infusion_kind(infusion)} | asdict(infusion) for infusion in infusions],
        "pooler": getattr(base_of(model), "pooler", None) is not None,
    }
    config = _CONFIGS[kind].from_dict(values)
    config._attn_implementation = PACKED
    return config


class InfusedHead(Infused):
    """Mixin for a head of transformers on an infused encoder."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        config._attn_implementation = PACKED
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        model = _with_infused_encoder(cast(PreTrainedModel, self))
        cast(InfusedEncoder, base_of(model)).set_infusions(build_infusions(config))

    def without(self, *kinds: str) -> AbstractContextManager[None]:
        """Switch infusions off within a `with` block (`InfusedEncoder.without`)."""
        return cast(InfusedEncoder, base_of(cast(PreTrainedModel, self))).without(*kinds)


def _make_classes() -> tuple[dict[str, type[PreTrainedConfig]], dict[type, type]]:
    """Make the infused class of each family's configuration and heads, and register them with transformers."""
    configs: dict[str, type[PreTrainedConfig]] = {}
    classes: dict[type, type] = {}
    for kind, family in FAMILIES.items():
        plain_config = getattr(transformers, f"{family.name}Config")
        body = {"model_type": f"infused-{kind}", "infusions": (), "pooler": True}
        body |= {"__annotations__": {"infusions": tuple, "pooler": bool}, "__module__": __name__}
        config = type(f"Infused{family.name}Config", (InfusedConfig, plain_config), body)
        configs[kind] = config
        AutoConfig.register(f"infused-{kind}", config)
        for head in INFUSED_HEADS:
            plain = getattr(transformers, f"{family.name}{head}")
            mixin = InfusedEncoder if head == "Model" else InfusedHead
            more = {"config_class": config, "__module__": __name__, "__doc__": f"{plain.__name__} with infusions."}
            classes[plain] = type(f"Infused{plain.__name__}", (mixin, plain), more | {"family": family})
            getattr(transformers, f"Auto{'' if head == 'Model' else 'Model'}{head}").register(config, classes[plain])
    return configs, classes


_CONFIGS, _CLASSES = _make_classes()
_BY_NAME = {made.__name__: made for made in (*_CONFIGS.values(), *_CLASSES.values())}


def __getattr__(name: str) -> Any:
    """Return a generated class by its name; pickle finds classes this way."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
