"""Registry of tasks: one row per name that a recipe can use.

To add a task, write its file (options, examples, head, loss, metric and its row in `TASKS`) and list it here.
"""

from __future__ import annotations

from typing import Any

from wellread.data.readers.glue import GLUE, glue_task
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.tasks import (
    classification,
    cloze_qa,
    entity_typing,
    extractive_qa,
    fact_probe,
    lama,
    masked_lm,
    multiple_choice,
    ner,
    open_qa,
    relations,
    senses,
    wic,
)
from wellread.tasks.task_type import TaskMetadata, TaskSettings, TaskType, find_file

TASKS: dict[str, TaskType] = {
    **classification.TASKS,
    **multiple_choice.TASKS,
    **extractive_qa.TASKS,
    **open_qa.TASKS,
    **masked_lm.TASKS,
    **lama.TASKS,
    **ner.TASKS,
    **cloze_qa.TASKS,
    **relations.TASKS,
    **entity_typing.TASKS,
    **fact_probe.TASKS,
    **senses.TASKS,
    **wic.TASKS,
}
"""Tasks by name, besides those of GLUE."""


def find_task_type(task: str) -> TaskType:
    """Return the row of a task's name."""
    if task in TASKS:
        return TASKS[task]
    try:
        glue_task(task)
    except UsageError:
        raise UsageError(f"task is {task!r}; expected one of {', '.join((*GLUE, *TASKS))}") from None
    return classification.GLUE_TASK


def task_name(task: str) -> str:
    """Return the task's name for tables, with GLUE's spelling of GLUE tasks."""
    return task if task in TASKS else glue_task(task).name


def read_examples(settings: TaskSettings, metadata: TaskMetadata, path: str) -> list[Any]:
    """Return all examples of a file; broken ones are skipped and counted in a note."""
    broken: list[str] = []
    examples = list(find_task_type(settings.task).read(settings, metadata, path, broken))
    if not examples:
        hint = f"; the first that was skipped: {broken[0]}" if broken else "; is it the right file?"
        raise InputError(f"{path} has no examples of {task_name(settings.task)}{hint}")
    if broken:
        console.note(f"skipped {len(broken):,} broken examples; the first: {broken[0]}")
    return examples


def read_parts(settings: TaskSettings, metadata: TaskMetadata) -> tuple[list[Any], list[Any]]:
    """Return training and validation examples, the same in every run."""
    data, task_type = settings.data, find_task_type(settings.task)
    examples = _with_gold(settings, metadata, settings.train_file)
    rest, dev = task_type.split(examples, data.develop)
    if not rest:
        raise InputError(
            f"{data.train} has {len(examples):,} examples, and develop = {data.develop} takes them all; lower it"
        )
    if data.dev is not None:
        dev = task_type.split(_with_gold(settings, metadata, find_file(data.root, data.dev)), 0)[0][: data.most_dev]
    return [*rest[: data.most], *task_type.extra_examples(settings)], dev


def _with_gold(settings: TaskSettings, metadata: TaskMetadata, path: str) -> list[Any]:
    examples, task_type = read_examples(settings, metadata, path), find_task_type(settings.task)
    unlabelled = sum(not task_type.has_gold(example) for example in examples)
    if unlabelled:
        raise InputError(
            f"{path}: {unlabelled:,} of {len(examples):,} examples have no gold answer; is this a test file? "
            "Train and validate on labelled files"
        )
    return examples
