"""Labels and numbers for texts and pairs of texts: the tasks of GLUE, and relevance of documents to queries."""

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
from wellread.text.tokenization import TextTokenizer, Tokenization


class Labelling:
    """A class or a number for each text; numbers with bounds are learned as shares between them."""

    score = "score"

    def __init__(self, facts: LabelledTask, *, pooling: Pooling = "mean") -> None:
        self.facts, self.pooling = facts, pooling
        low, high = facts.bounds or (0.0, 1.0)
        self.low, self.span = low, high - low

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[LabelledText], *, learning: bool
    ) -> list[list[Tokenization]]:
        """One input for each: the text, or both texts."""
        texts = [(one.text,) if one.text_b is None else (one.text, one.text_b) for one in examples]
        return [[one] for one in segmenter.tokenize_many(texts)]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """A score for each class, or one number."""
        return TextHead(int(encoder.config.hidden_size), max(1, len(self.facts.labels)), pooling=self.pooling)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With the labels as numbers of classes, or as shares."""
        labels = [example.label for example in batch.examples]
        if any(label is None for label in labels):
            if learning:
                raise InputError(f"an example of {self.facts.name} has no label to learn from")
            return batch
        if self.facts.labels:
            return replace(batch, target=torch.tensor(labels))
        return replace(batch, target=(torch.tensor(labels) - self.low) / self.span)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, or the squared error of shares."""
        found = head(states, batch.inputs, batch.packing)
        if self.facts.labels:
            return {"label": cross_entropy(found, batch.target)}
        return {"number": mse_loss(found[:, 0], batch.target)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """The best class, or the number."""
        found = head(states, batch.inputs, batch.packing)
        if self.facts.labels:
            best: list[Any] = found.argmax(1).tolist()
            return best
        numbers: list[Any] = (found[:, 0] * self.span + self.low).tolist()
        return numbers

    def scores(self, examples: Sequence[LabelledText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """The official metrics, and their mean as `score`."""
        return self.facts.score(examples, [some[0] for some in answers])


class Relevance:
    """How far a text is what a query asks for: graded labels are learned, the expected gain is the answer."""

    score = "auc"

    def __init__(
        self, gains: Mapping[str, float] = ESCI_GAINS, *, right: str | None = None, pooling: Pooling = "mean"
    ) -> None:
        """`right` is the label that AUC tells from all others; the one that gains most if none is named."""
        self.labels, self.pooling = tuple(gains), pooling
        self.gains = torch.tensor([gains[label] for label in self.labels], dtype=torch.float64)
        self.right = max(gains, key=gains.__getitem__) if right is None else right

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[RelevancePair], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Query and text."""
        return [[one] for one in segmenter.tokenize_many([(pair.query, pair.text) for pair in examples])]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """A score for each label."""
        return TextHead(int(encoder.config.hidden_size), len(self.labels), pooling=self.pooling)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With the labels as numbers."""
        labels = [pair.label for pair in batch.examples]
        if None in labels:
            if learning:
                raise InputError("a pair has no label to learn from")
            return batch
        return replace(batch, target=torch.tensor([self.labels.index(label) for label in labels]))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the labels."""
        return {"label": cross_entropy(head(states, batch.inputs, batch.packing), batch.target)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """The gain that is expected of each pair."""
        found = head(states, batch.inputs, batch.packing).softmax(1)
        expected: list[Any] = (found @ self.gains.to(found)).tolist()
        return expected

    def scores(self, examples: Sequence[RelevancePair], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """AUC of the right label against all others, and NDCG by query."""
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
