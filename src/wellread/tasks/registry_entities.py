"""Rows of the table of tasks: names in sentences, and cloze questions about the entities of a passage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from wellread.data.readers.conll import NamedText, find_labels, longest_name, split_sentences, write_conll
from wellread.data.readers.ner_jsonl import read_named, report_missed, write_names
from wellread.data.readers.record import ClozeQuestion, read_record, split_record
from wellread.data.readers.squad import write_predictions
from wellread.io import console
from wellread.tasks.cloze_qa import Cloze
from wellread.tasks.ner import LONGEST, NamedEntities
from wellread.tasks.task import Task
from wellread.tasks.task_type import Answers, Facts, TaskType, Texts, train_file

if TYPE_CHECKING:
    from wellread.tasks.recipe import TaskRecipe


def _read_sentences(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[NamedText]:
    return report_missed(_named(recipe, path, broken), console.note)


def _named(recipe: TaskRecipe, path: str, broken: list[str]) -> Iterator[NamedText]:
    return read_named(path, recipe.ner.columns, borders=recipe.ner.borders, skipped=broken)


def _ner_facts(recipe: TaskRecipe) -> dict[str, Any]:
    sentences = list(_named(recipe, train_file(recipe), []))
    return {"labels": list(find_labels(sentences)), "longest": longest_name(sentences)}


def _build_ner(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    longest = recipe.ner.longest or min(facts.get("longest", LONGEST), LONGEST)
    return NamedEntities(facts["labels"], replace(recipe.ner, longest=longest))


def _write_ner(path: str | Path, task: NamedEntities, examples: Sequence[NamedText], answers: Answers) -> None:
    if Path(path).suffix == ".jsonl":
        write_names(path, examples, [task.tell(some) for some in answers])
    else:
        write_conll(path, examples, task.chosen(answers))


def _sentence(number: str, texts: Texts) -> NamedText:
    return NamedText.of_text(number, texts[0])


def _read_questions(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[ClozeQuestion]:
    return read_record(path, skipped=broken)


def _build_cloze(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    options, longest = recipe.questions, recipe.encoder.longest
    return Cloze(
        tokenizer,
        longest=longest,
        stride=longest // 4 if options.stride is None else options.stride,
        longest_question=min(options.longest_question, longest // 3),
    )


def _write_cloze(path: str | Path, task: Cloze, examples: Sequence[ClozeQuestion], answers: Answers) -> None:
    write_predictions(path, task.texts(examples, answers))


KINDS: dict[str, TaskType] = {
    "ner": TaskType(
        _read_sentences,
        split_sentences,
        _build_ner,
        _write_ner,
        facts=_ner_facts,
        has_gold=lambda sentence: sentence.chunks is not None,
        example=_sentence,
        join=lambda task, answers: answers,
        tell=lambda task, answers: task.tell(answers),
        own_entities=True,
    ),
    "record": TaskType(
        _read_questions,
        split_record,
        _build_cloze,
        _write_cloze,
        has_gold=lambda question: bool(question.answers),
        own_entities=True,
    ),
}
"""The tasks of this family, by the name that a recipe has for them."""
