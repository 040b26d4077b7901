"""Labelled texts or pairs of texts: the definition of such a task, and your own data for it.

Your data is TSV or CSV with a header, or JSONL, with the columns `text`, `text_b` (for pairs), `label`, and optionally
`id`; `LabelledColumns` names other columns. GLUE's own files are read by `data.readers.glue`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from wellread.data.splits import split_by
from wellread.data.tables import Form, Record, make_each, read_records, text_of
from wellread.errors import InputError
from wellread.evaluation.classification import METRICS, Metric, score_labels


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text or a pair of texts; `label` is the number of a class, a value, or None if it is secret."""

    id: str
    text: str
    text_b: str | None = None
    label: int | float | None = None


@dataclass(frozen=True, slots=True)
class LabelledTask:
    """A classification task with `labels`, or a regression task without, and its metrics."""

    name: str
    labels: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """By default accuracy and macro F1 for labels, Pearson's and Spearman's correlation for numbers."""
    pair: bool = False
    bounds: tuple[float, float] | None = None
    """Lowest and highest number of a regression."""

    def __post_init__(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", ("accuracy", "macro_f1") if self.labels else ("pearson", "spearman"))
        if unknown := set(self.metrics) - METRICS.keys():
            raise InputError(f"the task {self.name!r} is scored by {min(unknown)!r}; choose from {', '.join(METRICS)}")
        numeric = {"pearson", "spearman"}.intersection(self.metrics)
        if self.labels and (numeric or len(set(self.labels)) < max(2, len(self.labels))):
            raise InputError(
                f"the task {self.name!r} has the labels {', '.join(self.labels)} and is scored by "
                f"{', '.join(self.metrics)}; give two labels or more, each once, and metrics of labels"
            )
        if not self.labels and len(numeric) < len(self.metrics):
            raise InputError(f"the task {self.name!r} has numbers as labels; score it by pearson, spearman or both")

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Type of the task: labels or numbers."""
        return "classification" if self.labels else "regression"

    def label_of(self, value: str) -> int | float:
        """Return the class or number of a label in a file."""
        if self.labels:
            if value not in self.labels:
                raise InputError(f"the label is {value!r}, expected one of {', '.join(self.labels)}")
            return self.labels.index(value)
        low, high = self.bounds or (-math.inf, math.inf)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and low <= number <= high):
            within = f" from {low:g} to {high:g}" if self.bounds else ""
            raise InputError(f"the label is {value!r}, expected a number{within}")
        return number

    def name_of(self, label: int | float) -> str:
        """Return a class or a number as files write it."""
        if self.labels:
            return self.labels[int(label)]
        low, high = self.bounds or (-math.inf, math.inf)
        return f"{min(max(label, low), high):.3f}"

    def score(self, examples: Sequence[LabelledText], predicted: Sequence[int | float]) -> dict[str, float]:
        """Return each metric, and as `score` their mean."""
        gold = [example.label for example in examples if example.label is not None]
        if len(gold) < len(examples):
            raise InputError(
                f"{len(examples) - len(gold)} of {len(examples)} examples of {self.name} have no label to score against"
            )
        return score_labels(gold, list(predicted), self.metrics)


@dataclass(frozen=True, slots=True)
class LabelledColumns:
    """Names of the columns of a file."""

    text: str = "text"
    text_b: str | None = None
    label: str | None = "label"
    """None for texts without labels."""
    id: str | None = None


def read_labelled(
    path: str | Path,
    task: LabelledTask,
    columns: LabelledColumns | None = None,
    *,
    form: Form | None = None,
    skipped: list[str] | None = None,
) -> Iterator[LabelledText]:
    """Yield examples of your own data; for pairs the second text is in `text_b` unless another column is named."""
    make = partial(_example, task=task, columns=columns or LabelledColumns())
    return make_each(path, read_records(path, form), make, skipped)


def find_labels(
    path: str | Path, column: str = "label", *, form: Form | None = None, skipped: list[str] | None = None
) -> tuple[str, ...]:
    """Return the labels of a file, sorted as numbers if they are numbers, else as text."""
    labels = set(make_each(path, read_records(path, form), lambda record, number: _written(record, column), skipped))
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(sorted(labels))


def split_labelled(examples: Sequence[LabelledText], count: int) -> tuple[list[LabelledText], list[LabelledText]]:
    """Return (the rest, `count` for validation); equal texts, or equal pairs, stay on one side."""
    return split_by(examples, count, lambda example: f"{example.text.strip()}\n{(example.text_b or '').strip()}")


def _example(record: Record, number: str, *, task: LabelledTask, columns: LabelledColumns) -> LabelledText:
    texts = [text_of(record, columns.text)]
    if task.pair:
        texts.append(text_of(record, columns.text_b or "text_b"))
    if not all(text.strip() for text in texts):
        raise InputError("a text is empty")
    return LabelledText(
        number if columns.id is None else _written(record, columns.id),
        texts[0],
        texts[1] if task.pair else None,
        None if columns.label is None else task.label_of(_written(record, columns.label)),
    )


def _written(record: Record, column: str) -> str:
    """Return a cell as text: in JSON a label may be a number or a boolean."""
    value: Any = record.get(column)
    if value is None or isinstance(value, dict | list):
        raise InputError(f"no {column!r} (there are {', '.join(record)})")
    return value.strip() if isinstance(value, str) else json.dumps(value)
