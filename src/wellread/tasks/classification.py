"""Classification and regression of texts and text pairs: GLUE, your own data, and relevance of texts to queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from wellread.data.readers.glue import glue_task, read_glue, write_glue
from wellread.data.readers.labelled import (
    LabelledColumns,
    LabelledTask,
    LabelledText,
    find_labels,
    read_labelled,
    split_labelled,
)
from wellread.data.readers.relevance import RelevanceColumns, RelevancePair, read_relevance, split_queries
from wellread.data.tables import make_each, read_records
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError
from wellread.evaluation.classification import Metric
from wellread.evaluation.ranking import ESCI_GAINS, mean_ndcg, roc_auc
from wellread.tasks.data_options import Pooling
from wellread.tasks.task import Batch, TextHead
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType, Texts, write_json_lines
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class LabelledOptions:
    """Your own texts with labels or numbers, for task = "labelled"."""

    labels: tuple[str, ...] = ()
    """Classes; by default those of the training file."""
    numbers: bool = False
    """Regression instead of classification."""
    low: float | None = None
    """Lower bound of the numbers."""
    high: float | None = None
    metrics: tuple[Metric, ...] = ()
    """By default accuracy and macro F1, or Pearson's and Spearman's correlation."""
    text: str = "text"
    text_b: str | None = None
    """Column of the second text, for pairs."""
    label: str = "label"
    id: str | None = None

    def __post_init__(self) -> None:
        if self.numbers and self.labels:
            raise UsageError("numbers = true and labels exclude each other; give one of the two")
        if (self.low is None) != (self.high is None) or (self.low is not None and not self.numbers):
            raise UsageError("low and high are the bounds of numbers; give both, with numbers = true")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise UsageError(f"low is {self.low} and high is {self.high}; expected low to be less")


@dataclass(frozen=True, slots=True)
class RelevanceOptions:
    """Queries and texts with graded labels, for task = "relevance"; the defaults are those of ESCI."""

    gains: dict[str, float] = field(default_factory=lambda: dict(ESCI_GAINS))
    """Gain of each label, for NDCG."""
    right: str | None = None
    """Positive label for AUC; by default the one with the highest gain."""
    query: str = "query"
    text: tuple[str, ...] = ("title", "brand", "bullet_points", "description")
    label: str = "esci"
    id: str = "asin"
    """Column of the text's id; "" uses the line number."""

    def __post_init__(self) -> None:
        if len(self.gains) < 2:
            raise UsageError(f"gains has {len(self.gains)} labels; give two or more, as in {{ good = 1, bad = 0 }}")
        if self.right is not None and self.right not in self.gains:
            raise UsageError(f"right is {self.right!r}, which is not one of {', '.join(self.gains)}")


class Labelling:
    """Class or number of each text; bounded numbers are scaled to 0 … 1 in training."""

    score = "score"

    def __init__(self, facts: LabelledTask, *, pooling: Pooling = "mean") -> None:
        self.facts, self.pooling = facts, pooling
        low, high = facts.bounds or (0.0, 1.0)
        self.low, self.span = low, high - low

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[LabelledText], *, learning: bool
    ) -> list[list[Tokenization]]:
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
        self, segmenter: TextTokenizer, examples: Sequence[RelevancePair], *, learning: bool
    ) -> list[list[Tokenization]]:
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


# registry


def _text_example(number: str, texts: Texts) -> LabelledText:
    return LabelledText(number, texts[0], texts[1] if len(texts) > 1 else None)


def _texts_of(task: Labelling) -> int:
    return 2 if task.facts.pair else 1


def _show_label(task: Labelling, answer: Any) -> Any:
    return task.facts.name_of(answer) if task.facts.labels else answer


def _build_glue(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Labelling:
    return Labelling(glue_task(settings.task), pooling=settings.encoder.pooling)


def _write_glue(path: str | Path, task: Labelling, examples: Sequence[Any], answers: Answers) -> None:
    write_glue(path, task.facts.name, examples, [some[0] for some in answers])


def _has_column(path: str, column: str) -> bool:
    """Return True if a table has a column, judged by its first row; test files may lack the label."""
    rows = make_each(path, read_records(path), lambda record, number: column in record, [])
    return next(rows, True)


def _labelled_metadata(settings: TaskSettings) -> dict[str, Any]:
    options: LabelledOptions = settings.options
    if options.numbers:
        return {"labels": []}
    # Broken examples are reported when the file is read.
    return {"labels": list(options.labels or find_labels(settings.train_file, options.label, skipped=[]))}


def _labelled_task(settings: TaskSettings, metadata: TaskMetadata) -> LabelledTask:
    options: LabelledOptions = settings.options
    bounds = None if options.low is None or options.high is None else (options.low, options.high)
    labels = tuple(metadata["labels"])
    if not options.numbers and len(labels) < 2:
        raise InputError(
            f"{settings.data.train} has {'no label' if not labels else f'only the label {labels[0]!r}'} in "
            f"{options.label!r}; name another column as labelled.label, or set labelled.numbers"
        )
    return LabelledTask("labelled", labels, options.metrics, options.text_b is not None, bounds)


def _read_labelled(
    settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]
) -> Iterator[LabelledText]:
    options: LabelledOptions = settings.options
    label = options.label if _has_column(path, options.label) else None
    columns = LabelledColumns(options.text, options.text_b, label, options.id)
    return read_labelled(path, _labelled_task(settings, metadata), columns, skipped=broken)


def _build_labelled(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Labelling:
    return Labelling(_labelled_task(settings, metadata), pooling=settings.encoder.pooling)


def _write_labelled(path: str | Path, task: Labelling, examples: Sequence[Any], answers: Answers) -> None:
    pairs = zip(examples, answers, strict=True)
    write_json_lines(path, ({"id": one.id, "label": _show_label(task, some[0])} for one, some in pairs))


def _read_pairs(
    settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]
) -> Iterator[RelevancePair]:
    options: RelevanceOptions = settings.options
    label = options.label if _has_column(path, options.label) else None
    columns = RelevanceColumns(options.query, options.text, label, options.id or None)
    return read_relevance(path, columns, labels=tuple(options.gains), skipped=broken)


def _build_relevance(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Relevance:
    options: RelevanceOptions = settings.options
    return Relevance(options.gains, right=options.right, pooling=settings.encoder.pooling)


def _write_relevance(path: str | Path, task: Relevance, examples: Sequence[Any], answers: Answers) -> None:
    pairs = zip(examples, answers, strict=True)
    write_json_lines(path, ({"query": one.query, "id": one.id, "gain": some[0]} for one, some in pairs))


def _relevance_example(number: str, texts: Texts) -> RelevancePair:
    query, text = texts
    return RelevancePair(number, query, text, None)


GLUE_TASK = TaskType(
    read=lambda settings, metadata, path, broken: read_glue(path, settings.task, skipped=broken),
    split=split_labelled,
    build=_build_glue,
    write=_write_glue,
    example=_text_example,
    show=_show_label,
    texts=_texts_of,
)
"""Row of all GLUE tasks."""
TASKS = {
    "labelled": TaskType(
        options="labelled",
        read=_read_labelled,
        split=split_labelled,
        build=_build_labelled,
        write=_write_labelled,
        metadata=_labelled_metadata,
        example=_text_example,
        show=_show_label,
        texts=_texts_of,
    ),
    "relevance": TaskType(
        options="relevance",
        read=_read_pairs,
        split=split_queries,
        build=_build_relevance,
        write=_write_relevance,
        example=_relevance_example,
        texts=lambda task: 2,
    ),
}
