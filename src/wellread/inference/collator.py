"""For transformers' Trainer: texts as they are in a dataset, in; pieces, labels and lent knowledge, out.

    collate = Collator(lender.segmenter, lender, notes=lender.prepare(texts, cache="runs/notes"))
    Trainer(model, TrainingArguments(…, remove_unused_columns=False), collate, train_dataset=rows)

The maps of a batch are drawn when its turn comes; what taggers find in the texts is best found before, as here.
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
    """Rows with a text, or two, and perhaps a label, as the batch that an infused model takes."""

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
        """`notes` are what the lender found in all texts; without them each batch is annotated when its turn comes.

        `types` is whether the model takes token_type_ids: DistilBERT's heads do not.
        """
        self.segmenter, self.provider, self.notes, self.types = segmenter, provider, notes, types
        self._texts, self._label = (text, text_b), label

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A padded batch: input_ids, attention_mask, token_type_ids, labels if there are any, and what is lent."""
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
