"""Data collator for transformers' Trainer: from texts of a dataset to tokens, labels and knowledge inputs.

    collate = Collator(provider.segmenter, provider, notes=provider.prepare(texts, cache="runs/notes"))
    Trainer(model, TrainingArguments(…, remove_unused_columns=False), collate, train_dataset=rows)

Knowledge inputs are built per batch; annotations of the texts are best prepared before, as here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wellread.encoders.infusion.providers import KnowledgeProvider
from wellread.errors import InputError
from wellread.tasks.task import as_tensors
from wellread.text.tokenization import TextTokenizer


class Collator:
    """Collates rows with one or two texts, and optionally a label, for an infused model."""

    def __init__(
        self,
        segmenter: TextTokenizer,
        provider: KnowledgeProvider | None = None,
        *,
        notes: Any = None,
        text: str = "text",
        text_b: str = "text_b",
        label: str = "label",
        types: bool = True,
    ) -> None:
        """Set columns and knowledge; without `notes` (annotations of all texts) each batch is annotated on the fly.

        Set `types` to False for models without token_type_ids, such as DistilBERT.
        """
        self.segmenter, self.provider, self.notes, self.types = segmenter, provider, notes, types
        self._texts, self._label = (text, text_b), label

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a padded batch: input_ids, attention_mask, token_type_ids, labels if any, and knowledge inputs."""
        given = [tuple(row[name] for name in self._texts if row.get(name) is not None) for row in rows]
        if not all(given):
            raise InputError(f"row {given.index(())} of a batch has no {self._texts[0]!r}; name the column of the text")
        tokenized = self.segmenter.tokenize_many(given)
        width = max(map(len, tokenized))
        batch = {"input_ids": _padded([one.ids for one in tokenized], width)}
        batch["attention_mask"] = _padded([torch.ones(len(one), dtype=torch.long) for one in tokenized], width)
        if self.types:
            batch["token_type_ids"] = _padded([one.types for one in tokenized], width)
        if all(row.get(self._label) is not None for row in rows):
            batch["labels"] = torch.tensor([row[self._label] for row in rows])
        return batch if self.provider is None else batch | as_tensors(self.provider.collate(tokenized, self.notes))


def _padded(rows: Sequence[Any], width: int) -> Tensor:
    made = torch.zeros(len(rows), width, dtype=torch.long)
    for place, row in enumerate(rows):
        made[place, : len(row)] = torch.as_tensor(row)
    return made
