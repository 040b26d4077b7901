"""What a kind of task is to the training room: how its data is read, split, asked and written (`tasks.registry`)."""

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
"""A file, the task, its examples and the answers to them."""
_PACKED = (".xz", ".gz", ".bz2")


@dataclass(frozen=True, slots=True)
class TaskType:
    """A family of tasks: everything that is different between one and another."""

    read: Callable[[TaskRecipe, Facts, str, list[str]], Iterable[Any]]
    """The examples of a file; what is broken is left out and told in the list."""
    split: Callable[[Sequence[Any], int], tuple[list[Any], list[Any]]]
    """(the rest, so many for development), by what examples say."""
    build: Callable[[TaskRecipe, Facts, Tokenizer], Task[Any]]
    write: Writes | None = None
    """Answers of the task as its official script takes them; None where there is no such thing."""
    facts: Callable[[TaskRecipe], dict[str, Any]] = lambda recipe: {}
    """What the training file says that the recipe does not."""
    has_gold: Callable[[Any], bool] = lambda example: example.label is not None
    """Whether an example says what is right; test files keep it secret."""
    example: Callable[[str, Texts], Any] | None = None
    """An example of a text or two that a user asks about; None where that is not enough to ask."""
    join: Callable[[Any, Sequence[Any]], Any] = lambda task, answers: answers[0]
    """One answer of those to the inputs of an example."""
    tell: Callable[[Any, Any], Any] = lambda task, answer: answer
    """The task's answer as a person reads it."""
    texts: Callable[[Any], int] = lambda task: 1
    """How many texts the task is asked of at once."""
    more: Callable[[TaskRecipe], Iterable[Any]] = lambda recipe: ()
    """What is learned from besides the training file."""
    offers: Callable[[TaskRecipe], tuple[str, ...]] = lambda recipe: ()
    """Knowledge bases whose candidates the task asks for, whatever the encoder is."""
    own_entities: bool = False
    """Whether the task itself gives entities to an encoder that takes them (LUKE)."""


def train_file(recipe: TaskRecipe) -> str:
    """What a recipe learns from."""
    if not recipe.data.train:
        raise UsageError("the recipe has nothing to learn from; give --set data.train=FILE, or train in its [data]")
    return find_file(recipe.data.root, recipe.data.train)


def find_files(root: str, name: str) -> list[str]:
    """A file, or all whose names fit a pattern, in the order of letters: "semcor_*.jsonl.xz"."""
    path = find_file(root, name)
    found = [path] if Path(path).exists() or not set("*?[") & set(path) else sorted(glob(path))
    if not found:
        raise InputError(f"no file fits {path}; check the pattern")
    return found


def find_file(root: str, name: str) -> str:
    """A file, or its compressed twin."""
    path = Path(root) / name
    twins = (path.with_name(path.name + end) for end in _PACKED)
    return str(path if path.exists() else next((twin for twin in twins if twin.exists()), path))


def strip_ending(name: str) -> str:
    """A file's name without what says how it is compressed: "train.txt.gz" -> "train.txt"."""
    return name.removesuffix(next((end for end in _PACKED if name.endswith(end)), ""))
