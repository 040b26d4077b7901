"""Multiple choice: choose the right answer to a question about a context (CosmosQA).

1. Each answer is one input: the context, then question and answer.
2. The head scores each input; a softmax over the inputs of a question gives probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wellread.data.readers.multiple_choice import (
    ChoiceQuestion,
    read_choices,
    score_choices,
    split_choices,
    write_choices,
)
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError
from wellread.evaluation.ranking import ranked
from wellread.tasks.data_options import Pooling
from wellread.tasks.task import Batch, TextHead
from wellread.tasks.task_type import Answers, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization


class Choosing:
    """Choice among the answers of a question."""

    score = "accuracy"

    def __init__(self, *, pooling: Pooling = "mean") -> None:
        self.pooling = pooling

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[ChoiceQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return one input per answer."""
        texts = [(one.context, f"{one.question} {answer}") for one in examples for answer in one.answers]
        inputs = iter(segmenter.tokenize_many(texts))
        return [[next(inputs) for _ in one.answers] for one in examples]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with one score per input."""
        return TextHead(int(encoder.config.hidden_size), 1, pooling=self.pooling)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the index of each right answer as the target."""
        labels = [question.label for question in batch.examples]
        if None in labels:
            if learning:
                raise InputError("a question has no label to train on; is this a test file?")
            return batch
        return replace(batch, target=torch.tensor(labels))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the right answer among those of its question."""
        return {"choice": cross_entropy(batch.in_rows(head(states, batch.inputs, batch.packing)[:, 0]), batch.target)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the score of each answer."""
        found: list[Any] = head(states, batch.inputs, batch.packing)[:, 0].tolist()
        return found

    def choose(self, answers: Sequence[Sequence[float]]) -> list[int]:
        """Return the index of each question's best answer; the first one on ties."""
        return [int(ranked(some)[0]) for some in answers]

    def scores(self, examples: Sequence[ChoiceQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the accuracy."""
        return score_choices(examples, self.choose(answers))


# registry


def _write_choices(path: str | Path, task: Choosing, examples: Sequence[Any], answers: Answers) -> None:
    write_choices(path, task.choose(answers))


TASKS = {
    "choice": TaskType(
        read=lambda settings, metadata, path, broken: read_choices(path, skipped=broken),
        split=split_choices,
        build=lambda settings, metadata, tokenizer: Choosing(pooling=settings.encoder.pooling),
        write=_write_choices,
    )
}
