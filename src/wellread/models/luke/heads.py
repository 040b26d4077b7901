"""Heads of transformers' LUKE on an infused encoder, so that released checkpoints can be used.

`HEADS["ForMaskedLM"]["bert"]` is a model class as in transformers; families are BERT, RoBERTa and XLM-R. Inputs and
outputs are those of transformers' LUKE (`entity_ids`, `entity_attention_mask`, `entity_position_ids`,
`entity_token_type_ids`); instead, `entities` may be given (see `models.luke.model.Luke`).

- ForMaskedLM: masked words and masked entities, with the sum of both losses.
- ForEntityClassification: the first entity of each text.
- ForEntityPairClassification: the first two.
- ForEntitySpanClassification: every entity, with the first and last token of its span.
- ForEntityDisambiguation: every entity among its candidates, as in the authors' code (Yamada et al. 2022); not in
  transformers.
- Model, ForSequenceClassification, ForTokenClassification, ForQuestionAnswering, ForMultipleChoice: as for any infused
  encoder, so that `AutoModel`, `AutoModelForSequenceClassification` and so on load what they save.

`from_pretrained` takes folders of wellread's layout and of Hugging Face's; `models.luke.conversion.load` chooses the
head that a folder was saved with.

Unlike the authors' code and transformers: with labels, ForMaskedLM computes logits only where there is a label, and
the loss of a batch without labels is zero (theirs: NaN). With multi-label targets, ForEntitySpanClassification leaves
padded entities out of the loss (theirs counts them). The auto classes load a RoBERTa's ForSequenceClassification with
RoBERTa's own head, which has a second dropout before its dense layer; the classes here have LUKE's one dropout.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertPooler
from transformers.models.luke.modeling_luke import (
    EntityClassificationOutput,
    EntitySpanClassificationOutput,
    LukeMaskedLMOutput,
)
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead
from transformers.utils.generic import can_return_tuple

from wellread.encoders.infusion.infuse import FAMILIES, InfusedHead, base_of, infused_class
from wellread.encoders.infusion.infuse import INFUSED_HEADS as INFUSED
from wellread.errors import UsageError
from wellread.models.luke.checkpoint import DISAMBIGUATION, is_hf, read_hf
from wellread.models.luke.model import candidate_loss, luke_of

_NOT_A_CANDIDATE = -1e32
"""Logit of rows that are not candidates."""
_IGNORED = -100
"""Label of positions that are not scored."""


_CHANGES = {
    *("num_labels", "id2label", "label2id", "problem_type", "output_attentions", "output_hidden_states"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
}
"""Settings that may differ from those in a folder of Hugging Face's layout."""
_TAKEN = _CHANGES | {"dtype", "torch_dtype", "ignore_mismatched_sizes", "local_files_only"}


class _EitherLayout:
    """Mixin for classes that load folders of wellread's and of Hugging Face's layout."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does; a new head on a folder of Hugging Face's layout needs `num_labels`."""
        name = pretrained_model_name_or_path
        if name is None or not is_hf(name):
            return super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]
        if args or kwargs.keys() - _TAKEN:
            unknown = ", ".join(sorted(kwargs.keys() - _TAKEN)) or "second argument"
            raise UsageError(
                f"{name} is a LUKE of Hugging Face's layout, which does not support {unknown}; leave it out "
                f"(supported: {', '.join(sorted(_TAKEN))}), or convert it first: wellread convert luke {name} --to NEW"
            )
        dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
        if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise UsageError(f"dtype is {dtype!r}; expected one of torch's, such as torch.bfloat16, or its name")
        return read_hf(
            name,
            cast(type[PreTrainedModel], cls),
            dtype=dtype,
            changes={option: value for option, value in kwargs.items() if option in _CHANGES},
            resizes=bool(kwargs.get("ignore_mismatched_sizes")),
        )


class _Masked(_EitherLayout):
    """Mixin that adds masked entities to a head for masked words."""

    config: Any

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        encoder: Any = base_of(cast(PreTrainedModel, self))
        if self.config.pooler and getattr(encoder, "pooler", None) is None:
            encoder.pooler = BertPooler(config)  # type: ignore[no-untyped-call]  # unused, but saved with the checkpoint

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "text token"] | None = None,
        entity_labels: Int[Tensor, "text entity"] | None = None,
        **more: Any,
    ) -> LukeMaskedLMOutput:
        """Return logits and losses of words and entities; with labels, `logits` has one row per labelled token."""
        model = cast(PreTrainedModel, self)
        read = base_of(model)(input_ids, attention_mask, return_dict=True, **more)
        head: Any = getattr(self, "lm_head", None) or self.cls  # type: ignore[attr-defined]
        logits, word_loss = _score(head, read.last_hidden_state, labels)
        entity_logits = entity_loss = None
        if read.entity_last_hidden_state is not None:
            entity_logits, entity_loss = _score(luke_of(model).predict, read.entity_last_hidden_state, entity_labels)
        parts = [part for part in (word_loss, entity_loss) if part is not None]
        return LukeMaskedLMOutput(
            loss=sum(parts[1:], parts[0]) if parts else None,  # type: ignore[arg-type]
            mlm_loss=word_loss,  # type: ignore[arg-type]
            mep_loss=entity_loss,  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            entity_logits=entity_logits,  # type: ignore[arg-type]
            hidden_states=read.hidden_states,
            entity_hidden_states=read.entity_hidden_states,
            attentions=read.attentions,
        )


def _score(
    head: Any, states: Float[Tensor, "text place dim"], labels: Int[Tensor, "text place"] | None
) -> tuple[Tensor, Tensor | None]:
    """Return the logits of all positions; with labels, those of labelled positions, and the loss."""
    if labels is None:
        return head(states), None
    labels = labels.to(states.device)
    labelled_mask = labels != _IGNORED
    scores = head(states[labelled_mask])
    return scores, cross_entropy(scores, labels[labelled_mask]) if len(scores) else scores.sum()


class _OnEncoder:
    """Mixin that builds an encoder of one family under a head; the other base is that family's `PreTrainedModel`."""

    family_name: ClassVar[str]
    base_model_prefix: str

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        encoder = getattr(transformers, f"{self.family_name}Model")(config)
        encoder.pooler = encoder.pooler if config.pooler else None
        setattr(self, self.base_model_prefix, encoder)
        self.build_head(config)
        self.post_init()  # type: ignore[attr-defined]

    def build_head(self, config: PreTrainedConfig) -> None:
        """Add the modules of the head."""


class _Entities(_OnEncoder):
    """Linear classifier of entity states."""

    reads: ClassVar[Literal["entity", "pair", "span"]]

    def build_head(self, config: PreTrainedConfig) -> None:
        """Add dropout and the linear layer; as in LUKE, the classifier of pairs has no bias."""
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        parts = {"entity": 1, "pair": 2, "span": 3}[self.reads]
        labels: Any = config.num_labels
        self.classifier = nn.Linear(parts * config.hidden_size, labels, bias=self.reads != "pair")

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        entity_start_positions: Int[Tensor, "text entity"] | None = None,
        entity_end_positions: Int[Tensor, "text entity"] | None = None,
        **more: Any,
    ) -> EntityClassificationOutput | EntitySpanClassificationOutput:
        """Return logits, and the loss of class numbers or of multi-label targets."""
        read = base_of(cast(PreTrainedModel, self))(input_ids, attention_mask, return_dict=True, **more)
        entities, needed = read.entity_last_hidden_state, 2 if self.reads == "pair" else 1
        if entities is None or entities.shape[1] < needed:
            raise UsageError(f"this head needs {needed} or more entities per text; give entity_ids, or entities")
        if self.reads == "span":
            found = (
                _at(read.last_hidden_state, place, name)
                for name, place in (
                    ("entity_start_positions", entity_start_positions),
                    ("entity_end_positions", entity_end_positions),
                )
            )
            states = torch.cat((*found, entities), -1)
        else:
            states = entities[:, :needed].flatten(1)
        logits = self.classifier(self.dropout(states))
        output_class: Any = EntitySpanClassificationOutput if self.reads == "span" else EntityClassificationOutput
        present_mask = _present_mask(logits, more) if self.reads == "span" else None
        output: EntityClassificationOutput = output_class(
            loss=None if labels is None else _loss(logits, labels, present_mask),
            logits=logits,
            hidden_states=read.hidden_states,
            entity_hidden_states=read.entity_hidden_states,
            attentions=read.attentions,
        )
        return output


class _Disambiguation(_OnEncoder):
    """Prediction of entities among candidates by the encoder's entity head."""

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        entity_candidate_ids: Int[Tensor, "text entity cand"] | None = None,
        labels: Int[Tensor, "text entity"] | None = None,
        **more: Any,
    ) -> EntitySpanClassificationOutput:
        """Return logits over all rows of the entity table, -1e32 (as the authors) for rows that are not candidates.

        Candidates are padded with 0, the row of [PAD]; without candidates all rows are allowed. Labels below 0, and
        entities whose label is not a candidate, are ignored in the loss (theirs: a loss of 1e32).
        """
        read = base_of(cast(PreTrainedModel, self))(input_ids, attention_mask, return_dict=True, **more)
        states, luke = read.entity_last_hidden_state, luke_of(self)
        if states is None:
            raise UsageError("this head needs the entities of each text; give entity_ids, or entities")
        loss = None
        if entity_candidate_ids is None:
            logits = luke.predict(states)
            if labels is not None:
                labelled_mask = labels.to(logits.device) >= 0
                gold = labels.to(logits.device)[labelled_mask]
                loss = cross_entropy(logits[labelled_mask], gold) if len(gold) else logits.sum() * 0.0
        else:
            rows = _without_repeats(entity_candidate_ids.to(states.device))
            scores = luke.predict_among(states, rows)
            logits = scores.new_full((*rows.shape[:2], luke.config.entities), _NOT_A_CANDIDATE)
            logits = logits.scatter_reduce(2, rows.clamp(min=0), scores.clamp(min=_NOT_A_CANDIDATE), "amax")
            if labels is not None:
                loss = candidate_loss(scores.flatten(0, 1), rows.flatten(0, 1), labels.to(rows.device).flatten())
        return EntitySpanClassificationOutput(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            hidden_states=read.hidden_states,
            entity_hidden_states=read.entity_hidden_states,
            attentions=read.attentions,
        )


def _without_repeats(rows: Int[Tensor, "text entity cand"]) -> Int[Tensor, "text entity cand"]:
    """Replace padding and repeated candidates ([UNK] may occur twice) by -1."""
    again = (rows[..., :, None] == rows[..., None, :]).tril(-1).any(-1)
    return rows.masked_fill(again | (rows <= 0), -1)


def _at(
    states: Float[Tensor, "text token dim"], places: Int[Tensor, "text entity"] | None, name: str
) -> Float[Tensor, "text entity dim"]:
    if places is None:
        raise UsageError(
            f"this head needs the states of words; give {name}, the token of each entity's span in its text"
        )
    return states.gather(1, places.to(states.device)[..., None].expand(-1, -1, states.shape[-1]))


def _present_mask(logits: Float[Tensor, "text entity label"], more: dict[str, Any]) -> Bool[Tensor, "text entity"]:
    """Return True for entities and False for padding, for either form of entity inputs."""
    if (mask := more.get("entity_attention_mask")) is not None:
        return cast(Tensor, mask).to(logits.device) > 0
    if (entities := more.get("entities")) is not None:
        counts = torch.bincount(entities["text_of"], minlength=len(logits)).to(logits.device)
        return torch.arange(logits.shape[1], device=logits.device) < counts[:, None]
    return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)


def _loss(logits: Tensor, labels: Tensor, present_mask: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of class numbers, or the binary cross-entropy of multi-label targets."""
    labels = labels.to(logits.device)
    if labels.dim() < logits.dim():
        return cross_entropy(logits.flatten(0, -2), labels.flatten())
    if present_mask is not None:
        logits, labels = logits[present_mask], labels[present_mask]
    if not len(logits):
        return logits.sum()
    return binary_cross_entropy_with_logits(logits.flatten(), labels.flatten().type_as(logits))


class _OneDropoutHead(nn.Module):
    """RoBERTa's classification head without its first dropout, as in LUKE's pooler."""

    def __init__(self, head: RobertaClassificationHead) -> None:
        super().__init__()
        self.dense, self.dropout, self.out_proj = head.dense, head.dropout, head.out_proj

    def forward(self, features: Float[Tensor, "text token dim"], **more: Any) -> Float[Tensor, "text label"]:
        """Return the logits from the state of the first token."""
        scores: Tensor = self.out_proj(self.dropout(torch.tanh(self.dense(features[:, 0]))))
        return scores


class _OneDropout:
    """Mixin that replaces the head of a RoBERTa for sequence classification by one with LUKE's single dropout."""

    classifier: nn.Module

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.classifier = _OneDropoutHead(cast(RobertaClassificationHead, self.classifier))


_READS = {
    "ForEntityClassification": "entity",
    "ForEntityPairClassification": "pair",
    "ForEntitySpanClassification": "span",
}


_PLAIN = tuple(name for name in INFUSED if name != "ForMaskedLM")
"""Heads that do not use entities themselves."""


def _make_heads() -> dict[str, dict[str, type[PreTrainedModel]]]:
    heads: dict[str, dict[str, type[PreTrainedModel]]] = {
        name: {} for name in ("ForMaskedLM", DISAMBIGUATION, *_READS, *_PLAIN)
    }
    for kind in ("bert", "roberta", "xlm-roberta"):
        family = FAMILIES[kind]
        masked = infused_class(kind, "ForMaskedLM")
        about = {"__module__": __name__, "family": family, "family_name": family.name}
        heads["ForMaskedLM"][kind] = type(f"Luke{family.name}ForMaskedLM", (_Masked, masked), about)
        start = getattr(transformers, f"{family.name}PreTrainedModel")
        for name, reads in _READS.items():
            body = about | {"reads": reads, "config_class": masked.config_class}
            heads[name][kind] = type(f"Luke{family.name}{name}", (_EitherLayout, InfusedHead, _Entities, start), body)
        body = about | {"config_class": masked.config_class}
        bases = (_EitherLayout, InfusedHead, _Disambiguation, start)
        heads[DISAMBIGUATION][kind] = type(f"Luke{family.name}{DISAMBIGUATION}", bases, body)
        for name in _PLAIN:
            own = (_OneDropout,) if name == "ForSequenceClassification" and kind != "bert" else ()
            heads[name][kind] = type(
                f"Luke{family.name}{name}", (_EitherLayout, *own, infused_class(kind, name)), about
            )
    return heads


HEADS = _make_heads()
"""Model classes by head and encoder family."""


def __getattr__(name: str) -> type[PreTrainedModel]:
    """Return a class of `HEADS` by its own name, as pickle looks it up."""
    for classes in HEADS.values():
        for model_class in classes.values():
            if model_class.__name__ == name:
                return model_class
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
