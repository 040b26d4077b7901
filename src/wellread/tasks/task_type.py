"""Row of the task registry, and the files that a row reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from wellread.errors import InputError, UsageError
from wellread.tasks.task import Task

if TYPE_CHECKING:
    from wellread.tasks.recipe import TaskRecipe

Facts = Mapping[str, Any]
Texts = tuple[str, ...]
Answers = Sequence[Sequence[Any]]
Writes = Callable[[str | Path, Any, Sequence[Any], Answers], None]
"""Signature: file, task, its examples and their answers."""
_PACKED = (".xz", ".gz", ".bz2")


@dataclass(frozen=True, slots=True)
class TaskType:
    """One kind of task: functions that read, split, build and write it."""

    read: Callable[[TaskRecipe, Facts, str, list[str]], Iterable[Any]]
    """Read the examples of a file; reasons for skipped examples are appended to the list."""
    split: Callable[[Sequence[Any], int], tuple[list[Any], list[Any]]]
    """Return (training examples, at least `count` validation examples), selected by a hash of their content."""
    build: Callable[[TaskRecipe, Facts, Tokenizer], Task[Any]]
    write: Writes | None = None
    """Write answers in the format of the official scorer; None if there is none."""
    facts: Callable[[TaskRecipe], dict[str, Any]] = lambda recipe: {}
    """Metadata from the training file that the recipe does not have, such as labels; saved with the model."""
    has_gold: Callable[[Any], bool] = lambda example: example.label is not None
    """Return True if an example has a gold answer; examples of test files have none."""
    example: Callable[[str, Texts], Any] | None = None
    """Make an example from one or two texts of a user; None if a task needs more than texts."""
    join: Callable[[Any, Sequence[Any]], Any] = lambda task, answers: answers[0]
    """Join the answers to the inputs of an example."""
    tell: Callable[[Any, Any], Any] = lambda task, answer: answer
    """Return an answer in readable form."""
    texts: Callable[[Any], int] = lambda task: 1
    """Number of texts that an example has."""
    more: Callable[[TaskRecipe], Iterable[Any]] = lambda recipe: ()
    """Return training examples besides those of the training file."""
    offers: Callable[[TaskRecipe], tuple[str, ...]] = lambda recipe: ()
    """Return names of the knowledge bases whose candidates the task needs, with any encoder."""
    own_entities: bool = False
    """The task itself adds entity tokens, if the encoder has them (LUKE)."""


def train_file(recipe: TaskRecipe) -> str:
    """Return the training file of a recipe."""
    if not recipe.data.train:
        raise UsageError("the recipe has no training file; give --set data.train=FILE, or train in its [data]")
    return find_file(recipe.data.root, recipe.data.train)


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
