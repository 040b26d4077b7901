"""Rows of a dataset as batches for transformers' Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from tests.infused_models import build
from tests.task_models import SEGMENTER, provider, tiny_encoder
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import silence
from wellread.errors import InputError
from wellread.inference.collator import Collator
from wellread.models.kam.model import KamConfig

ROWS = [
    {"text": "the old town", "text_b": "a town", "label": 1},
    {"text": "rain", "text_b": None, "label": 0},
    {"text": "the bridge of the old town in the rain", "text_b": "it rained", "label": 1},
]


def test_a_batch_has_pieces_masks_types_labels_and_maps() -> None:
    batch = Collator(SEGMENTER, provider())(ROWS)
    tokenized = SEGMENTER.tokenize_many([("the old town", "a town"), ("rain",), (ROWS[2]["text"], "it rained")])
    assert batch["attention_mask"].sum(1).tolist() == [len(one) for one in tokenized]
    for place, one in enumerate(tokenized):
        assert batch["input_ids"][place, : len(one)].tolist() == one.ids.tolist()
        assert batch["token_type_ids"][place, : len(one)].tolist() == one.types.tolist()
    assert batch["labels"].tolist() == [1, 0, 1]
    assert batch["maps"].shape[:2] == (3, 1)
    assert bool(batch["maps"].any())


def test_notes_are_what_a_batch_would_find_itself() -> None:
    provided = provider()
    texts = [tuple(row[name] for name in ("text", "text_b") if row[name]) for row in ROWS]
    with_notes = Collator(SEGMENTER, provided, notes=provided.prepare(texts))(ROWS)
    torch.testing.assert_close(with_notes, Collator(SEGMENTER, provided)(ROWS))


def test_without_labels_types_or_knowledge_there_are_none() -> None:
    batch = Collator(SEGMENTER, types=False)([{"text": "rain", "label": None}])
    assert set(batch) == {"input_ids", "attention_mask"}
    with pytest.raises(InputError, match="row 1 of a batch has no 'said'; name the column"):
        Collator(SEGMENTER, text="said")([{"said": "a"}, {"text": "b"}])


def test_trainer_learns_from_rows(tmp_path: Path) -> None:
    plain = build(head="ForSequenceClassification", vocab_size=tiny_encoder().config.vocab_size)
    model = infuse(plain, [KamConfig(maps=("letters",))])
    options: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
    arguments = TrainingArguments(str(tmp_path), max_steps=4, remove_unused_columns=False, save_steps=4, **options)
    before = model.bert.infusions[0].kernels["0"].clone()
    with silence():
        Trainer(model, arguments, Collator(SEGMENTER, provider()), train_dataset=ROWS).train()
    assert not torch.equal(model.bert.infusions[0].kernels["0"], before)
