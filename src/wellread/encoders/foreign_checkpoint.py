"""Checkpoints of others: read without running anything that is in them, their weights' names looked up in a table.

Only BERT is rebuilt here. Its sizes are told by the shapes of its weights, all but the number of attention heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from wellread.encoders.pretrained import reason_of
from wellread.errors import InputError

Weights = dict[str, Tensor]

ELQ = {
    "context_encoder.bert_model.": "encoder",
    "cand_encoder.bert_model.": "entities",
    "classification_heads.mention_scores.bound_classifier.": "mention_head",
}
"""How names begin in the checkpoints of ELQ's authors (facebookresearch/BLINK, elq/), and the part of ours they are."""

_LINKER = "entity_linker.disambiguator."
KNOWBERT = {
    f"{_LINKER}bert_to_kg_projector.": "linker.narrow.",
    f"{_LINKER}span_extractor._global_attention._module.": "linker.pooling.score.",
    f"{_LINKER}projected_span_layer_norm.": "linker.mention_norm.",
    f"{_LINKER}span_encoder.layer.0.attention.self.": "linker.block.",
    f"{_LINKER}span_encoder.layer.0.attention.output.dense.": "linker.block.mixed.",
    f"{_LINKER}span_encoder.layer.0.attention.output.LayerNorm.": "linker.block.mixed_norm.",
    f"{_LINKER}span_encoder.layer.0.intermediate.dense.": "linker.block.wide.",
    f"{_LINKER}span_encoder.layer.0.output.dense.": "linker.block.narrow.",
    f"{_LINKER}span_encoder.layer.0.output.LayerNorm.": "linker.block.norm.",
    f"{_LINKER}entity_embeddings.proj_feed_forward.": "linker.entities.linear.",
    f"{_LINKER}kg_layer_norm.": "linker.entities.norm.",
    f"{_LINKER}dot_attention_with_prior.out_layer_1.": "linker.scorer.wide.",
    f"{_LINKER}dot_attention_with_prior.out_layer_2.": "linker.scorer.narrow.",
    f"{_LINKER}dot_attention_with_prior.null_embedding": "null",
    "weighted_entity_layer_norm.": "mixed_norm.",
    "span_attention_layer.attention.attention.": "block.",
    "span_attention_layer.attention.output.dense.": "block.mixed.",
    "span_attention_layer.attention.output.LayerNorm.": "block.mixed_norm.",
    "span_attention_layer.intermediate.dense.": "block.wide.",
    "span_attention_layer.output.dense.": "block.narrow.",
    "span_attention_layer.output.LayerNorm.": "block.norm.",
    "kg_to_bert_projection.": "back.",
    "output_layer_norm.": "norm.",
}
"""How names begin in a soldered layer of KnowBERT's authors (allenai/kb), and how they begin in
`models.knowbert.model`."""

KNOWBERT_ENTITIES = {
    f"{_LINKER}entity_embeddings.weight": "vectors",
    f"{_LINKER}entity_embeddings.entity_embeddings.weight": "vectors",
    f"{_LINKER}entity_embeddings.entity_id_to_pos_index": "kinds",
    f"{_LINKER}entity_embeddings.pos_embeddings.weight": "kind_embeddings",
    f"{_LINKER}entity_embeddings.null_embedding": "idle",
}
"""What they have of entities, by its whole name, that is no weight of ours; "idle" is there twice."""

IDLE = ("embeddings.position_ids", "embeddings.token_type_ids")
"""How names end of what some versions of transformers saved though it never learns."""

_HEAD_DIM = 64
"""Every BERT that Google released has a head for each 64 of its width."""


def read_weights(file: str | Path, *, name: str | None = None, such_as: str = "elq_wiki_large.bin") -> Weights:
    """The weights in a file that `torch.save` wrote, on the CPU, without DataParallel's prefix.

    Messages call it by `name`, if it is a copy of what the user gave.
    """
    name = name or str(file)
    try:
        with open(file, "rb") as stream:
            state = torch.load(stream, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}; check the path and its permissions") from error
    except Exception as error:  # a broken pickle may raise anything
        reason = reason_of(error).partition("\n")[0]
        raise InputError(
            f"{name} is no file of weights alone ({type(error).__name__}: {reason}); give a state dict that torch.save "
            f"wrote, as {such_as}, or download it again"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(part, Tensor) for part in state.values()):
        raise InputError(f"{name} holds more than weights or none; give a state dict, as {such_as}")
    prefix = "module." if state and all(key.startswith("module.") for key in state) else ""
    return {key.removeprefix(prefix): part for key, part in state.items()}


def sort_weights(weights: Mapping[str, Tensor], table: Mapping[str, str], file: str | Path) -> dict[str, Weights]:
    """The weights of each part: {"mention_head": {"weight": …, "bias": …}, …}; names the table lacks are refused."""
    parts: dict[str, Weights] = {part: {} for part in table.values()}
    unknown = []
    for name, weight in weights.items():
        begin = next((begin for begin in table if name.startswith(begin)), None)
        if begin is None:
            unknown.append(name)
        elif not name.endswith(IDLE):
            parts[table[begin]][name.removeprefix(begin)] = weight.float()
    missing = [f"{begin}*" for begin, part in table.items() if not parts[part]]
    if missing:
        raise InputError(
            f"{file} has no weights named {some(missing)} (but e.g. {some(list(weights)[:1])}); give a checkpoint of "
            "the authors' ELQ, as elq_wiki_large.bin: a bi-encoder of BLINK finds no mentions"
        )
    if unknown:
        raise InputError(
            f"{file} has weights that ELQ's released models have not: {some(unknown)}; only models with "
            "mention_aggregation_type all_avg and without add_linear can be converted"
        )
    return parts


def rename_weights(weights: Mapping[str, Tensor], table: Mapping[str, str]) -> Weights:
    """Names as ours begin, where theirs begin as the table says; a name it lacks stays."""
    renamed = {}
    for name, weight in weights.items():
        begin = max((begin for begin in table if name.startswith(begin)), key=len, default="")
        renamed[table.get(begin, "") + name.removeprefix(begin)] = weight
    return renamed


def build_bert(weights: Mapping[str, Tensor], heads: int | None, *, where: str) -> BertModel:
    """The BERT that these are the weights of; `where` is how their names begin in the file, for messages."""
    layers = {int(match[1]) for name in weights if (match := re.match(r"encoder\.layer\.(\d+)\.", name))}
    try:
        vocab_size, width = weights["embeddings.word_embeddings.weight"].shape
        config = BertConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            num_hidden_layers=len(layers),
            num_attention_heads=heads or max(1, width // _HEAD_DIM),
            intermediate_size=len(weights["encoder.layer.0.intermediate.dense.weight"]),
            max_position_embeddings=len(weights["embeddings.position_embeddings.weight"]),
            type_vocab_size=len(weights["embeddings.token_type_embeddings.weight"]),
        )
    except KeyError as error:
        raise InputError(
            f"the weight {where}{error.args[0]} is missing; copy or download the checkpoint again"
        ) from None
    if width % config.num_attention_heads:
        raise InputError(
            f"{config.num_attention_heads} attention heads do not divide a width of {width}; give their number "
            "(--heads)"
        )
    bert = BertModel(config)  # type: ignore[no-untyped-call]
    try:
        missing, unknown = bert.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise InputError(f"{where}*: {str(error).splitlines()[-1].strip()}; the weights fit no BERT") from error
    for names, told in ((missing, "are missing"), (unknown, "are not BERT's")):
        if names:
            raise InputError(
                f"weights {told}: {some([where + name for name in names])}; copy or download the checkpoint again, or "
                "convert one whose encoders are BERT"
            )
    bert.train(False)
    return bert


def some(names: list[str]) -> str:
    """A few of them, for a message: a, b, c and 2 more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
