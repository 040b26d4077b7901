"""Row of the task registry, the settings that its functions get, and the files they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from wellread.errors import InputError, UsageError
from wellread.io.files import write_atomically
from wellread.tasks.data_options import Data, EncoderOptions
from wellread.tasks.task import Task

TaskMetadata = Mapping[str, Any]
"""Properties of a task that its training file defines, such as labels; saved with the model."""
Texts = tuple[str, ...]
Answers = Sequence[Sequence[Any]]
AnswerWriter = Callable[[str | Path, Any, Sequence[Any], Answers], None]
"""Signature: file, task, its examples and their answers."""
_PACKED = (".xz", ".gz", ".bz2")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Part of a recipe that the functions of a task get."""

    task: str
    data: Data
    encoder: EncoderOptions
    options: Any = None
    """Options of the task: the recipe's table named by `TaskType.options`."""
    offers: Mapping[str, Any] = field(default_factory=dict)
    """Knowledge bases with candidates, by name (`CandidateOptions`)."""

    @property
    def train_file(self) -> str:
        """Path of the training file."""
        if not self.data.train:
            raise UsageError("the recipe has no training file; give --set data.train=FILE, or train in its [data]")
        return find_file(self.data.root, self.data.train)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """Row of the registry: functions that read, split, build and write one kind of task."""

    read: Callable[[TaskSettings, TaskMetadata, str, list[str]], Iterable[Any]]
    """Read the examples of a file; reasons for skipped examples are appended to the list."""
    split: Callable[[Sequence[Any], int], tuple[list[Any], list[Any]]]
    """Return (training examples, at least `count` validation examples), selected by a hash of their content."""
    build: Callable[[TaskSettings, TaskMetadata, Tokenizer], Task[Any]]
    options: str = ""
    """Name of the recipe's table with the options of the task; "" if it has none."""
    write: AnswerWriter | None = None
    """Write answers in the format of the official scorer; None if there is none."""
    metadata: Callable[[TaskSettings], dict[str, Any]] = lambda settings: {}
    """Read from the training file what the recipe does not define."""
    has_gold: Callable[[Any], bool] = lambda example: example.label is not None
    """Return True if an example has a gold answer; examples of test files have none."""
    example: Callable[[str, Texts], Any] | None = None
    """Make an example from the texts of a user; None if a task needs more than texts."""
    join: Callable[[Any, Sequence[Any]], Any] = lambda task, answers: answers[0]
    """Join the answers to the inputs of an example."""
    show: Callable[[Any, Any], Any] = lambda task, answer: answer
    """Return an answer in readable form."""
    texts: Callable[[Any], int] = lambda task: 1
    """Return the number of texts of an example."""
    extra_examples: Callable[[TaskSettings], Iterable[Any]] = lambda settings: ()
    """Return training examples besides those of the training file."""
    candidate_kbs: Callable[[TaskSettings], tuple[str, ...]] = lambda settings: ()
    """Return names of the knowledge bases whose candidates the task needs, with any encoder."""
    own_entities: Callable[[Any], bool] = lambda options: False
    """Return True if the task, with these options, adds entity tokens itself when the encoder has them (LUKE)."""


def find_files(root: str, name: str) -> list[str]:
    """Return a file, or all files that match a pattern, sorted: "semcor_*.jsonl.xz"."""
    path = find_file(root, name)
    found = [path] if Path(path).exists() or not set("*?[") & set(path) else sorted(glob(path))
    if not found:
        raise InputError(f"no file matches {path}; check the pattern")
    return found


def find_file(root: str, name: str) -> str:
    """Return the path of a file, or of its compressed version."""
    path = Path(root) / name
    packed = (path.with_name(path.name + end) for end in _PACKED)
    return str(path if path.exists() else next((other for other in packed if other.exists()), path))


def strip_ending(name: str) -> str:
    """Return a file name without its compression suffix: "train.txt.gz" -> "train.txt"."""
    return name.removesuffix(next((end for end in _PACKED if name.endswith(end)), ""))


def write_json_lines(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, atomically."""
    with write_atomically(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
