"""Classification and regression of texts and text pairs: GLUE, your own data, and relevance of texts to queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from wellread.data.readers.labelled import LabelledTask, LabelledText
from wellread.data.readers.relevance import RelevancePair
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError
from wellread.evaluation.ranking import ESCI_GAINS, mean_ndcg, roc_auc
from wellread.tasks.task import Batch, Pooling, TextHead
from wellread.text.segments import Segmented, Segmenter


class Labelling:
    """Class or number of each text; bounded numbers are scaled to 0 … 1 in training."""

    score = "score"

    def __init__(self, facts: LabelledTask, *, pooling: Pooling = "mean") -> None:
        self.facts, self.pooling = facts, pooling
        low, high = facts.bounds or (0.0, 1.0)
        self.low, self.span = low, high - low

    def tokenize(
        self, segmenter: Segmenter, examples: Sequence[LabelledText], *, learning: bool
    ) -> list[list[Segmented]]:
        """Return one input per example: the text, or both texts."""
        texts = [(one.text,) if one.text_b is None else (one.text, one.text_b) for one in examples]
        return [[one] for one in segmenter.tokenize_many(texts)]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with a score per class, or one number."""
        return TextHead(int(encoder.config.hidden_size), max(1, len(self.facts.labels)), pooling=self.pooling)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the labels as class numbers or scaled numbers."""
        labels = [example.label for example in batch.examples]
        if any(label is None for label in labels):
            if learning:
                raise InputError(f"an example of {self.facts.name} has no label to train on")
            return batch
        if self.facts.labels:
            return replace(batch, target=torch.tensor(labels))
        return replace(batch, target=(torch.tensor(labels) - self.low) / self.span)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy, or the squared error of scaled numbers."""
        found = head(states, batch.inputs, batch.packing)
        if self.facts.labels:
            return {"label": cross_entropy(found, batch.target)}
        return {"number": mse_loss(found[:, 0], batch.target)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the best class, or the number."""
        found = head(states, batch.inputs, batch.packing)
        if self.facts.labels:
            best: list[Any] = found.argmax(1).tolist()
            return best
        numbers: list[Any] = (found[:, 0] * self.span + self.low).tolist()
        return numbers

    def scores(self, examples: Sequence[LabelledText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the official metrics, and their mean as `score`."""
        return self.facts.score(examples, [some[0] for some in answers])


class Relevance:
    """Relevance of a text to a query: trained on graded labels, answered by the expected gain."""

    score = "auc"

    def __init__(
        self, gains: Mapping[str, float] = ESCI_GAINS, *, right: str | None = None, pooling: Pooling = "mean"
    ) -> None:
        """Set the gain of each label; `right` is the positive label for AUC, by default that with the most gain."""
        self.labels, self.pooling = tuple(gains), pooling
        self.gains = torch.tensor([gains[label] for label in self.labels], dtype=torch.float64)
        self.right = max(gains, key=gains.__getitem__) if right is None else right

    def tokenize(
        self, segmenter: Segmenter, examples: Sequence[RelevancePair], *, learning: bool
    ) -> list[list[Segmented]]:
        """Return one input per pair: query and text."""
        return [[one] for one in segmenter.tokenize_many([(pair.query, pair.text) for pair in examples])]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with a score per label."""
        return TextHead(int(encoder.config.hidden_size), len(self.labels), pooling=self.pooling)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the labels as class numbers."""
        labels = [pair.label for pair in batch.examples]
        if None in labels:
            if learning:
                raise InputError("a pair has no label to train on")
            return batch
        return replace(batch, target=torch.tensor([self.labels.index(label) for label in labels]))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the labels."""
        return {"label": cross_entropy(head(states, batch.inputs, batch.packing), batch.target)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the expected gain of each pair."""
        found = head(states, batch.inputs, batch.packing).softmax(1)
        expected: list[Any] = (found @ self.gains.to(found)).tolist()
        return expected

    def scores(self, examples: Sequence[RelevancePair], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the AUC of the positive label against all others, and NDCG by query."""
        values = [some[0] for some in answers]
        labels = [pair.label for pair in examples if pair.label is not None]
        if secret := len(examples) - len(labels):
            raise InputError(f"{secret} of {len(examples)} pairs have no label to score against")
        gains = [float(self.gains[self.labels.index(label)]) for label in labels]
        queries = [pair.query for pair in examples]
        return {
            "auc": roc_auc([label == self.right for label in labels], values),
            "ndcg": mean_ndcg(queries, gains, values, gainless="skip"),
        }
