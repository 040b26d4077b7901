"""Infusion: the one way in which knowledge enters a pretrained encoder.

`infuse(encoder, [...])` makes an encoder of Hugging Face one that takes knowledge, in place: the weights and their
names stay, so that any checkpoint of the family loads, and adapters, `save_pretrained`, Trainer and `AutoModel` go on
to work. With nothing to infuse it is the encoder; it only computes no padding, gives zeros there, and counts positions
from the first piece of each text on whatever side its padding is. (Where that is on the left, the first column has the
first piece of each text nevertheless: there heads look for it.)

Every family of encoders is a row of `FAMILIES`; every head of it becomes a class `Infused…` with the model type
"infused-…", which `AutoModel`, `AutoModelForSequenceClassification` and their kin know as soon as this is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, cast

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from wellread.encoders.infusion.encoder import (
    KINDS,
    Family,
    Infused,
    InfusedConfig,
    InfusedEncoder,
    Output,
    Read,
    build_infusion,
    build_infusions,
    kind_of,
)
from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.packing import PACKED
from wellread.errors import UsageError

__all__ = [
    "FAMILIES",
    "HEADS",
    "KINDS",
    "Family",
    "Infused",
    "InfusedEncoder",
    "InfusedHead",
    "Output",
    "Read",
    "base_of",
    "build_infusion",
    "build_infusions",
    "infuse",
    "infused_class",
]

_BERT = ("query", "key", "value")
FAMILIES = {
    "bert": Family("Bert", "encoder.layer", _BERT),
    "roberta": Family("Roberta", "encoder.layer", _BERT),
    "xlm-roberta": Family("XLMRoberta", "encoder.layer", _BERT),
    "electra": Family("Electra", "encoder.layer", _BERT),
    "distilbert": Family("DistilBert", "transformer.layer", ("q_lin", "k_lin", "v_lin"), typed=False, asking=None),
}
"""MiniLM's encoders are BERT's or XLM-R's."""
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForTokenClassification",
)


def infuse(model: PreTrainedModel, infusions: Sequence[Any]) -> PreTrainedModel:
    """Make a model of transformers, with or without a head, one that takes these kinds of knowledge.

    `infusions` are configurations such as `KamConfig(maps=("entity",))`. Infusing again replaces what was there.
    """
    config = _infused_config(model, infusions)
    before, made = base_of(model).config, build_infusions(config)
    for part in model.modules():
        if getattr(part, "config", None) is before:  # every attention has it
            part.config = config  # type: ignore[assignment]
        if type(part) in _CLASSES:
            part.__class__ = _CLASSES[type(part)]
    encoder = cast(InfusedEncoder, base_of(model))
    encoder.take_in(made)
    for infusion in encoder.infusions:
        cast(Infusion, infusion).adopt(cast(nn.Module, encoder), encoder.layers, encoder.family.projections)
    return model


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """The encoder under a head; an encoder is its own."""
    return cast(PreTrainedModel, getattr(model, model.base_model_prefix, model))


def infused_class(kind: str, head: str = "Model") -> type[PreTrainedModel]:
    """The infused class of a family and a head: ("bert", "ForMaskedLM") -> InfusedBertForMaskedLM."""
    found: type[PreTrainedModel] = _CLASSES[getattr(transformers, f"{FAMILIES[kind].name}{head}")]
    return found


def _infused_config(model: PreTrainedModel, infusions: Sequence[Any]) -> PreTrainedConfig:
    if not isinstance(model, Infused) and type(model) not in _CLASSES:
        raise UsageError(
            f"{type(model).__name__} cannot be infused; give an encoder of one of the families {', '.join(FAMILIES)} "
            f"(MiniLM is one of these), bare or as {', '.join(HEADS[1:])}"
        )
    kind = str(model.config.model_type).removeprefix("infused-")
    told = model.config.to_dict() | {
        "model_type": f"infused-{kind}",
        "infusions": [{"kind": kind_of(infusion)} | asdict(infusion) for infusion in infusions],
        "pooler": getattr(base_of(model), "pooler", None) is not None,
    }
    config = _CONFIGS[kind].from_dict(told)
    config._attn_implementation = PACKED
    return config


class InfusedHead(Infused):
    """A head of transformers on an infused encoder."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        config._attn_implementation = PACKED
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        encoder = base_of(cast(PreTrainedModel, self))
        encoder.__class__ = _CLASSES[type(encoder)]
        cast(InfusedEncoder, encoder).take_in(build_infusions(config))

    def without(self, *kinds: str) -> AbstractContextManager[None]:
        """As its encoder's: switch infusions off for a while."""
        return cast(InfusedEncoder, base_of(cast(PreTrainedModel, self))).without(*kinds)


def _make_classes() -> tuple[dict[str, type[PreTrainedConfig]], dict[type, type]]:
    """The infused twin of every family's configuration and heads, made known to transformers."""
    configs: dict[str, type[PreTrainedConfig]] = {}
    classes: dict[type, type] = {}
    for kind, family in FAMILIES.items():
        plain_config = getattr(transformers, f"{family.name}Config")
        body = {"model_type": f"infused-{kind}", "infusions": (), "pooler": True}
        body |= {"__annotations__": {"infusions": tuple, "pooler": bool}, "__module__": __name__}
        config = type(f"Infused{family.name}Config", (InfusedConfig, plain_config), body)
        configs[kind] = config
        AutoConfig.register(f"infused-{kind}", config)
        for head in HEADS:
            plain = getattr(transformers, f"{family.name}{head}")
            mixin = InfusedEncoder if head == "Model" else InfusedHead
            more = {"config_class": config, "__module__": __name__, "__doc__": f"{plain.__name__} with infusions."}
            classes[plain] = type(f"Infused{plain.__name__}", (mixin, plain), more | {"family": family})
            getattr(transformers, f"Auto{'' if head == 'Model' else 'Model'}{head}").register(config, classes[plain])
    return configs, classes


_CONFIGS, _CLASSES = _make_classes()
# Where pickle looks for a class: tools that start processes send models so.
globals().update({made.__name__: made for made in (*_CONFIGS.values(), *_CLASSES.values())})
