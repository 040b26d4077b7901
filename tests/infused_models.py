"""Tiny random models of every family and head, and batches of random texts: what tests of infusion need."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

FAMILIES = ("Bert", "Roberta", "XLMRoberta", "Electra", "DistilBert")
HEADS = (
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForTokenClassification",
)
VOCABULARY, LAYERS, POSITIONS = 50, 3, 40
LENGTHS = (5, 2, 7, 7, 1)


def build(
    family: str = "Bert", head: str = "Model", *, dropout: float = 0.0, attention: float | None = None, **more: Any
) -> PreTrainedModel:
    """Every weight is drawn, so that no bias or norm is left at its neutral start; `attention` is its own dropout."""
    torch.manual_seed(0)
    labels = 2 if head == "ForQuestionAnswering" else 3
    config = getattr(transformers, f"{family}Config")(
        **_sizes(family, dropout, attention) | {"num_labels": labels} | more
    )
    model: PreTrainedModel = getattr(transformers, f"{family}{head}")(config)
    shake(model)
    return model.eval()


def shake(module: torch.nn.Module, by: float = 0.1) -> None:
    """Move every weight a little."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * by)


def _sizes(family: str, dropout: float, attention: float | None) -> dict[str, Any]:
    common = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
    if family == "DistilBert":
        sizes = {"dim": 8, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 12}
        name, drops = "attention_dropout", ("dropout", "seq_classif_dropout", "qa_dropout")
    else:
        sizes = {"hidden_size": 8, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 12}
        name = "attention_probs_dropout_prob"
        drops = ("hidden_dropout_prob", "classifier_dropout", "summary_last_dropout")
    if family in ("Roberta", "XLMRoberta"):
        sizes |= {"pad_token_id": 1}
    if family == "Electra":
        sizes |= {"embedding_size": 6}
    return common | sizes | dict.fromkeys(drops, dropout) | {name: dropout if attention is None else attention}


def batch(lengths: tuple[int, ...] = LENGTHS, *, side: str = "right", family: str = "Bert") -> dict[str, Tensor]:
    """Texts of random pieces, in two segments where the family has such; the same on whatever side their padding is."""
    torch.manual_seed(1)
    width, padding = max(lengths), 1 if "Roberta" in family else 0
    ids, mask, types = (torch.full((len(lengths), width), fill) for fill in (padding, 0, 0))
    for row, length in enumerate(lengths):
        first = 0 if side == "right" else width - length
        ids[row, first : first + length] = torch.randint(3, VOCABULARY, (length,))
        mask[row, first : first + length] = 1
        types[row, first + (length + 1) // 2 : first + length] = 1
    made = {"input_ids": ids, "attention_mask": mask}
    return made | ({"token_type_ids": types} if family in ("Bert", "Electra") else {})


def draw_maps(lengths: tuple[int, ...] = LENGTHS, count: int = 2, terms: tuple[int, ...] | None = None) -> Tensor:
    """Random maps of texts and their terms, zero beyond their ends."""
    torch.manual_seed(2)
    totals = [length + extra for length, extra in zip(lengths, terms or (0,) * len(lengths), strict=True)]
    maps = torch.rand(len(lengths), count, max(totals), max(totals), dtype=torch.float64)
    for map, total in zip(maps, totals, strict=True):
        map[:, total:] = 0
        map[:, :, total:] = 0
    return maps


def draw_terms(counts: tuple[int, ...]) -> dict[str, Tensor]:
    """Random auxiliary pieces."""
    torch.manual_seed(3)
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    return {"term_ids": torch.randint(3, VOCABULARY, mask.shape) * mask, "term_mask": mask}
