"""Checkpoints of other projects: loaded without running their code, with weights renamed by a table.

Only BERT is rebuilt here. Its sizes are inferred from the shapes of its weights, except the number of attention heads.
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
"""Prefixes of names in the checkpoints of ELQ's authors (facebookresearch/BLINK, elq/), and the part each belongs to.
"""

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
"""Prefixes of names in a KnowBERT layer of the authors (allenai/kb), and the prefixes in `models.knowbert.model`."""

KNOWBERT_ENTITIES = {
    f"{_LINKER}entity_embeddings.weight": "vectors",
    f"{_LINKER}entity_embeddings.entity_embeddings.weight": "vectors",
    f"{_LINKER}entity_embeddings.entity_id_to_pos_index": "kinds",
    f"{_LINKER}entity_embeddings.pos_embeddings.weight": "kind_embeddings",
    f"{_LINKER}entity_embeddings.null_embedding": "idle",
}
"""Full names of their entity data, which are not weights in wellread; "idle" occurs twice."""

IDLE = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Suffixes of buffers that some versions of transformers saved although they are never trained."""

_HEAD_DIM = 64
"""Every BERT released by Google has heads of this size."""


def read_weights(file: str | Path, *, name: str | None = None, such_as: str = "elq_wiki_large.bin") -> Weights:
    """Return the weights in a file of `torch.save`, on the CPU, without DataParallel's prefix.

    `name` replaces the file's name in messages, e.g. if it is a copy of the user's file; `such_as` is an example for
    them.
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
            f"{name} is not a file of weights ({type(error).__name__}: {reason}); give a state dict of torch.save, "
            f"such as {such_as}, or download it again"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(part, Tensor) for part in state.values()):
        raise InputError(f"{name} does not contain weights alone; give a state dict, such as {such_as}")
    prefix = "module." if state and all(key.startswith("module.") for key in state) else ""
    return {key.removeprefix(prefix): part for key, part in state.items()}


def sort_weights(weights: Mapping[str, Tensor], table: Mapping[str, str], file: str | Path) -> dict[str, Weights]:
    """Return the weights of each part, e.g. {"mention_head": {"weight": …}}; raise InputError for unknown names."""
    parts: dict[str, Weights] = {part: {} for part in table.values()}
    unknown = []
    for name, weight in weights.items():
        prefix = next((prefix for prefix in table if name.startswith(prefix)), None)
        if prefix is None:
            unknown.append(name)
        elif not name.endswith(IDLE):
            parts[table[prefix]][name.removeprefix(prefix)] = weight.float()
    missing = [f"{prefix}*" for prefix, part in table.items() if not parts[part]]
    if missing:
        raise InputError(
            f"{file} has no weights named {some(missing)} (but e.g. {some(list(weights)[:1])}); give a checkpoint of "
            "the authors' ELQ, such as elq_wiki_large.bin: a bi-encoder of BLINK does not detect mentions"
        )
    if unknown:
        raise InputError(
            f"{file} has weights that ELQ's released models do not have: {some(unknown)}; only models with "
            "mention_aggregation_type all_avg and without add_linear can be converted"
        )
    return parts


def rename_weights(weights: Mapping[str, Tensor], table: Mapping[str, str]) -> Weights:
    """Return weights with their prefixes replaced by the table; other names stay the same."""
    renamed = {}
    for name, weight in weights.items():
        prefix = max((prefix for prefix in table if name.startswith(prefix)), key=len, default="")
        renamed[table.get(prefix, "") + name.removeprefix(prefix)] = weight
    return renamed


def build_bert(weights: Mapping[str, Tensor], heads: int | None, *, where: str) -> BertModel:
    """Return the BERT model of these weights; `where` is their prefix in the file, for messages."""
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
        raise InputError(
            f"{where}*: {str(error).splitlines()[-1].strip()}; the weights do not fit a BERT model"
        ) from error
    for names, problem in ((missing, "are missing"), (unknown, "are not BERT's")):
        if names:
            raise InputError(
                f"weights {problem}: {some([where + name for name in names])}; copy or download the checkpoint again, "
                "or convert one whose encoders are BERT"
            )
    bert.train(False)
    return bert


def some(names: list[str]) -> str:
    """Return a few names for a message: a, b, c and 2 more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
