"""Mentions with candidates for the tiny models of `infused`, and random entities: what tests of KnowBERT need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.infused_models import build, shake
from tests.sense_data import Hashing
from tests.toy_models import write_kb
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.records import Entity
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable

LENGTHS = (6, 3, 7, 1, 5)
ENTITIES, RAW, DIM, KINDS = 20, 6, 8, 3
MENTIONS = {  # of each text: first and last token, candidates, which of them are right
    0: [(1, 1, (3, 4, 5), (1,)), (1, 3, (7,), ()), (2, 5, (4, 9, 11, 2), (0, 3))],
    2: [(0, 6, (8, -2), (0,)), (4, 5, (), ()), (6, 6, (-2,), ())],
    3: [(0, 0, (19, 0, 3, 12, 5), (4,))],
    4: [(2, 3, (1, 2), ())],
}
"""Text 1 has none; one mention has no candidate, two have the MASK entity."""


def candidate_inputs(only: tuple[int, ...] = tuple(range(len(LENGTHS))), wide: int = 6) -> dict[str, Tensor]:
    """The mentions of some of the texts, as of a batch of these alone."""
    mentions = [(place, mention) for place, text in enumerate(only) for mention in MENTIONS.get(text, [])]
    entities = torch.full((len(mentions), wide), -1)
    gold, priors = torch.zeros_like(entities), torch.zeros(len(mentions), wide)
    for row, (_, (first, last, candidates, right)) in enumerate(mentions):
        draw = torch.Generator().manual_seed(100 * first + last)
        entities[row, : len(candidates)] = torch.tensor(candidates, dtype=torch.long)
        shares = torch.rand(len(candidates), generator=draw)
        priors[row, : len(candidates)] = shares / shares.sum()
        gold[row, list(right)] = 1
    return {
        "text_of": torch.tensor([place for place, _ in mentions], dtype=torch.long),
        "spans": torch.tensor([mention[:2] for _, mention in mentions], dtype=torch.long).view(-1, 2),
        "entities": entities,
        "priors": priors,
        "gold": gold,
    }


def table(raw: int = RAW, seed: int = 0, **more: Any) -> EntityTable:
    """Random entities; their kinds too."""
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((ENTITIES, raw)).astype(np.float32)
    vectors.flags.writeable = False  # as what is mapped
    return EntityTable(vectors, draw.integers(0, KINDS, ENTITIES).astype(np.uint8), **more)


def config(**options: Any) -> KnowBertConfig:
    return KnowBertConfig(**{"layer": 1, "raw": RAW, "dim": DIM, "heads": 2, "inner": 12, "prior_width": 5} | options)


def make(*configs: KnowBertConfig, head: str = "Model", learned: float = 0.4, **options: Any) -> PreTrainedModel:
    """Return a tiny model with changed knowledge layers and their tables."""
    model = infuse(build(head=head, **options), list(configs) or [config(dropout=0.0)])
    torch.manual_seed(7)
    for seed, infusion in enumerate(getattr(model, model.base_model_prefix, model).infusions):
        if learned:
            shake(infusion, learned)
        if hasattr(infusion, "take"):
            infusion.take(table(infusion.config.raw, seed))
    return model


def write_with_layer(home: Path, encoder: str) -> str:
    """A saved encoder with a knowledge layer of the KB `toy`, which lies where a wellread with this home looks."""
    (home / "kb").mkdir()
    with write_kb(home / "kb" / "toy.kb", [Entity("c", "Cork", "a city", "city", 1, {"Cork": 2})]) as kb:
        EntityVectors.build(kb, Hashing())
    sizes = {"layer": 0, "raw": 6, "dim": 8, "heads": 2, "inner": 12, "prior_width": 5}
    model = infuse(load_encoder(encoder), [KnowBertConfig(kb="toy", **sizes)]).eval()
    shake(model.infusions[0], 0.5)
    model.save_pretrained(home / "model")
    load_tokenizer(encoder).save(str(home / "model" / "tokenizer.json"))
    return str(home / "model")
