"""The rows of word senses and words in context: how they are read, split, asked and written.

A recipe's settings are in [senses] (`SenseOptions`) and [wic] (`WicOptions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from wellread.data.readers.raganato import (
    SenseText,
    document_of,
    join_sentences,
    read_data_sets,
    unknown_keys,
    write_keys,
)
from wellread.data.readers.wordnet_examples import read_examples
from wellread.data.splits import split_by
from wellread.io import console
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.knowbert.recipe import open_candidate_kb
from wellread.tasks.senses import Senses
from wellread.tasks.task import Task
from wellread.tasks.task_type import Answers, Facts, TaskType, find_files
from wellread.tasks.wic import WordInContext, WordPair, read_wic, read_wic_tsv, split_wic, write_labels

if TYPE_CHECKING:
    from wellread.tasks.recipe import TaskRecipe


def _read_senses(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[SenseText]:
    """Yield the sentences of a file, or of all files that match a pattern: "semcor_*.jsonl.xz"."""
    options = recipe.senses
    paths = find_files("", path)
    keys = SenseKeys.read(options.wordnet or None)
    for one, sentences in zip(paths, read_data_sets(paths, secret=True, skipped=broken), strict=True):
        texts = list(join_sentences(sentences, options.together))
        if unknown := unknown_keys(texts, keys):
            console.note(f"{one}: WordNet does not know {len(unknown):,} of the gold keys; the first: {unknown[0]}")
        yield from texts


def _more_senses(recipe: TaskRecipe) -> Iterator[SenseText]:
    return read_examples(recipe.senses.wordnet or None) if recipe.senses.examples else iter(())


def _split_senses(texts: Sequence[SenseText], count: int) -> tuple[list[SenseText], list[SenseText]]:
    """Split by document: within a document a word mostly keeps its sense."""
    return split_by(texts, count, document_of)


def _build_senses(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    options = recipe.senses
    kb, vectors = open_candidate_kb(recipe, options.kb)
    kb.close()
    return Senses(SenseKeys.read(options.wordnet or None), vectors, options)


def _write_senses(path: str | Path, task: Senses, examples: Sequence[SenseText], answers: Answers) -> None:
    write_keys(path, task.chosen(examples, answers))


def _read_wic(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[WordPair]:
    return read_wic(path, skipped=broken)


def _read_wic_tsv(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[WordPair]:
    return read_wic_tsv(path, given=recipe.wic.given, skipped=broken)


def _build_wic(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return WordInContext()


def _write_wic(path: str | Path, task: WordInContext, examples: Sequence[WordPair], answers: Answers) -> None:
    write_labels(path, task.labels(answers))


KINDS: dict[str, TaskType] = {
    "senses": TaskType(
        _read_senses,
        _split_senses,
        _build_senses,
        _write_senses,
        has_gold=lambda text: text.has_gold,
        more=_more_senses,
        offers=lambda recipe: (recipe.senses.kb,),
    ),
    "wic": TaskType(_read_wic, split_wic, _build_wic, _write_wic),
    "wic-tsv": TaskType(_read_wic_tsv, split_wic, _build_wic, _write_wic),
}
"""By the name that a recipe has for them."""
