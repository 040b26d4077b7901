"""Tiny random LUKE models of transformers, their checkpoints, and batches of texts with entities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import LukeConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertEmbeddings
from transformers.utils import logging

from tests.infused_models import shake

WORDS, ENTITIES, WIDTH, LAYERS = 50, 11, 16, 3
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForEntityClassification",
    "ForEntityPairClassification",
    "ForEntitySpanClassification",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
DISAMBIGUATED = ("[PAD]", "[UNK]", "[MASK]", *(f"Entity {number}" for number in range(ENTITIES - 3)))
"""Entity vocabulary of a checkpoint for disambiguation, without [MASK2]."""
LENGTHS, COUNTS = (9, 5, 9, 2), (3, 2, 0, 1)


def build(
    head: str = "Model", *, aware: bool = True, dim: int = 6, dropout: float = 0.0, **more: Any
) -> PreTrainedModel:
    """Return a model of transformers with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 20}
    settings = {
        "vocab_size": WORDS,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "entity_vocab_size": ENTITIES,
        "entity_emb_size": dim,
        "use_entity_aware_attention": aware,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "num_labels": 2 if head == "ForQuestionAnswering" else 3,
    }
    model: PreTrainedModel = getattr(transformers, f"Luke{head}")(LukeConfig(**sizes | settings | more))
    shake(model)
    model.tie_weights()
    return model.eval()


def build_disambiguation(folder: Path, *, named: bool = True, prefix: str = "luke.") -> tuple[PreTrainedModel, Tensor]:
    """Write a checkpoint in the layout of the authors' LukeForEntityDisambiguation (studio-ousia/luke).

    Facts of that class: words have BERT's embeddings, whose positions begin at 0; [MASK] entities of the input, row 2,
    have a vector of their own. Returns a model that gives its states and, but for row 2, its scores, and that vector.
    """
    model = build("ForMaskedLM", aware=False, pad_token_id=0)
    torch.manual_seed(5)
    model.luke.embeddings = BertEmbeddings(model.config).eval()
    vector = torch.randn(model.config.entity_emb_size)
    names = ("embeddings.", "encoder.", "entity_embeddings.", "pooler.")
    weights = {
        name.replace("luke.", prefix): part.clone()
        for name, part in model.state_dict().items()
        if name.removeprefix("luke.").startswith((*names, "entity_predictions."))
    }
    weights = {name: part for name, part in weights.items() if not name.endswith(("position_ids", "decoder.weight"))}
    weights[f"{prefix}entity_embeddings.mask_embedding"] = vector
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    about = {"architectures": ["LukeForEntityDisambiguation"] if named else None}
    (folder / "config.json").write_text(json.dumps(model.config.to_dict() | about))
    lines = [{"id": row, "entities": [[name, None]], "count": 1} for row, name in enumerate(DISAMBIGUATED)]
    (folder / "entity_vocab.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with torch.no_grad():
        model.luke.entity_embeddings.entity_embeddings.weight[2] = vector
    return model, vector


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Save a model with transformers, without progress bars; return the folder."""
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()
    return folder


def batch(head: str = "Model", counts: tuple[int, ...] = COUNTS) -> dict[str, Tensor]:
    """Return a padded batch of texts of several lengths with entities, one of them without a position."""
    torch.manual_seed(1)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    there = (torch.arange(max(counts)) < torch.tensor(counts)[:, None]).long()
    places = torch.randint(0, min(LENGTHS), (*there.shape, 5))
    places = torch.where(torch.arange(5) < torch.randint(1, 6, there.shape)[..., None], places, -1)
    places[0, 1] = -1
    made = {
        "input_ids": torch.randint(3, WORDS, mask.shape) * mask + 1 - mask,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, mask.shape),
        "entity_ids": torch.randint(1, ENTITIES, there.shape) * there,
        "entity_attention_mask": there,
        "entity_token_type_ids": torch.randint(0, 2, there.shape),
        "entity_position_ids": torch.where(there[..., None] > 0, places, -1),
    }
    if head == "ForEntitySpanClassification":
        made |= {f"entity_{end}_positions": torch.randint(0, min(LENGTHS), there.shape) for end in ("start", "end")}
    if head == "ForMultipleChoice":
        made = {name: part.view(2, 2, *part.shape[1:]) for name, part in made.items()}
    return made


def labels(head: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return labels of a head for a batch."""
    torch.manual_seed(2)
    mask, there = given["attention_mask"], given["entity_attention_mask"]
    if head == "ForMaskedLM":
        words, entities = (torch.randint(0, ENTITIES, part.shape) for part in (mask, there))
        labelled = [(torch.rand(part.shape) < 0.5) & (part > 0) for part in (mask, there)]
        return {"labels": words.where(labelled[0], -100), "entity_labels": entities.where(labelled[1], -100)}
    if head == "ForQuestionAnswering":
        return {f"{end}_positions": torch.randint(0, min(LENGTHS), (len(mask),)) for end in ("start", "end")}
    shapes = {"ForTokenClassification": mask, "ForEntitySpanClassification": there}
    if head in shapes:
        return {"labels": torch.randint(0, 3, shapes[head].shape).where(shapes[head] > 0, -100)}
    return {"labels": torch.randint(0, 2 if head == "ForMultipleChoice" else 3, (len(mask),))}


def packed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entities of a padded batch in packed form."""
    there = given["entity_attention_mask"] > 0
    return {
        "text_of": there.nonzero()[:, 0],
        "ids": given["entity_ids"][there],
        "places": given["entity_position_ids"][there],
        "types": given["entity_token_type_ids"][there],
    }
