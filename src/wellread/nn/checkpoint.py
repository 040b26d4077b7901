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

from wellread.errors import InputError

Weights = dict[str, Tensor]

ELQ = {
    "context_encoder.bert_model.": "encoder",
    "cand_encoder.bert_model.": "entities",
    "classification_heads.mention_scores.bound_classifier.": "mention_head",
}
"""How names begin in the checkpoints of ELQ's authors (facebookresearch/BLINK, elq/), and the part of ours they are."""

IDLE = ("embeddings.position_ids", "embeddings.token_type_ids")
"""How names end of what some versions of transformers saved though it never learns."""

_HEAD_DIM = 64
"""Every BERT that Google released has a head for each 64 of its width."""


def read_weights(file: str | Path) -> Weights:
    """The weights in a file that `torch.save` wrote, on the CPU, without DataParallel's prefix."""
    try:
        with open(file, "rb") as stream:
            state = torch.load(stream, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; check the path and its permissions") from error
    except Exception as error:  # a broken pickle may raise anything
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{file} is no file of weights alone ({type(error).__name__}: {reason}); give a state dict that torch.save "
            "wrote, as elq_wiki_large.bin, or download it again"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(part, Tensor) for part in state.values()):
        raise InputError(f"{file} holds more than weights or none; give a state dict, as elq_wiki_large.bin")
    prefix = "module." if state and all(name.startswith("module.") for name in state) else ""
    return {name.removeprefix(prefix): part for name, part in state.items()}


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
            f"{file} has no weights named {_some(missing)} (but e.g. {_some(list(weights)[:1])}); give a checkpoint of "
            "the authors' ELQ, as elq_wiki_large.bin: a bi-encoder of BLINK finds no mentions"
        )
    if unknown:
        raise InputError(
            f"{file} has weights that ELQ's released models have not: {_some(unknown)}; only models with "
            "mention_aggregation_type all_avg and without add_linear can be converted"
        )
    return parts


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
                f"weights {told}: {_some([where + name for name in names])}; copy or download the checkpoint again, or "
                "convert one whose encoders are BERT"
            )
    bert.train(False)
    return bert


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
