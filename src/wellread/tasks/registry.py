"""Registry of tasks: one row per name that a recipe can use.

To add a task, write its file (options, examples, head, loss, metric and its `TASKS`) and add it to `TASKS` here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from wellread.data.readers.glue import GLUE, glue_task, read_glue, write_glue
from wellread.data.readers.labelled import (
    LabelledColumns,
    LabelledTask,
    LabelledText,
    find_labels,
    read_labelled,
    split_labelled,
)
from wellread.data.readers.lama import MaskedFact, has_parts, read_probe, read_vocabulary
from wellread.data.readers.multiple_choice import read_choices, split_choices, write_choices
from wellread.data.readers.open_qa import OpenQuestion, read_openqa, read_quasar, read_searchqa
from wellread.data.readers.relevance import RelevanceColumns, RelevancePair, read_relevance, split_queries
from wellread.data.readers.squad import read_squad, split_squad, squad_version, write_predictions
from wellread.data.splits import split_by
from wellread.data.tables import make_each, read_records
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.files import write_atomically
from wellread.tasks import registry_entities, registry_relations, registry_senses
from wellread.tasks.classification import Labelling, Relevance
from wellread.tasks.extractive_qa import ExtractiveQa
from wellread.tasks.lama import Probing
from wellread.tasks.masked_lm import Masking, read_texts
from wellread.tasks.multiple_choice import Choosing
from wellread.tasks.open_qa import OpenQa
from wellread.tasks.task import Task
from wellread.tasks.task_type import Answers, Facts, TaskType, Texts, find_file, strip_ending, train_file

if TYPE_CHECKING:
    from wellread.tasks.recipe import TaskRecipe


def find_task_type(task: str) -> TaskType:
    """Return the row of a task's name."""
    if task in KINDS:
        return KINDS[task]
    try:
        glue_task(task)
    except UsageError:
        raise UsageError(f"task is {task!r}; expected one of {', '.join((*GLUE, *KINDS))}") from None
    return _GLUE


def name_of(recipe: TaskRecipe) -> str:
    """Return the task's name for tables, with GLUE's spelling of GLUE tasks."""
    return recipe.task if recipe.task in KINDS else glue_task(recipe.task).name


def read_examples(recipe: TaskRecipe, facts: Facts, path: str) -> list[Any]:
    """Return all examples of a file; broken ones are skipped and counted in a note."""
    broken: list[str] = []
    examples = list(find_task_type(recipe.task).read(recipe, facts, path, broken))
    if not examples:
        hint = f"; the first that was skipped: {broken[0]}" if broken else "; is it the right file?"
        raise InputError(f"{path} has no examples of {name_of(recipe)}{hint}")
    if broken:
        console.note(f"skipped {len(broken):,} broken examples; the first: {broken[0]}")
    return examples


def read_parts(recipe: TaskRecipe, facts: Facts) -> tuple[list[Any], list[Any]]:
    """Return training and validation examples, the same in every run."""
    data, kind = recipe.data, find_task_type(recipe.task)
    examples = _with_gold(recipe, facts, train_file(recipe))
    rest, dev = kind.split(examples, data.develop)
    if not rest:
        raise InputError(
            f"{data.train} has {len(examples):,} examples, and develop = {data.develop} takes them all; lower it"
        )
    if data.dev is not None:
        dev = kind.split(_with_gold(recipe, facts, find_file(data.root, data.dev)), 0)[0][: data.most_dev]
    return [*rest[: data.most], *kind.more(recipe)], dev


def _with_gold(recipe: TaskRecipe, facts: Facts, path: str) -> list[Any]:
    examples, kind = read_examples(recipe, facts, path), find_task_type(recipe.task)
    secret = sum(not kind.has_gold(example) for example in examples)
    if secret:
        raise InputError(
            f"{path}: {secret:,} of {len(examples):,} examples have no gold answer; is this a test file? "
            "Train and validate on labelled files"
        )
    return examples


def _has_column(path: str, column: str) -> bool:
    """Return True if a table has a column, judged by its first row; test files may lack the label."""
    rows = make_each(path, read_records(path), lambda record, number: column in record, [])
    return next(rows, True)


# texts with labels: GLUE, and your own


def _build_glue(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return Labelling(glue_task(recipe.task), pooling=recipe.encoder.pooling)


def _write_glue(path: str | Path, task: Labelling, examples: Sequence[Any], answers: Answers) -> None:
    write_glue(path, task.facts.name, examples, [some[0] for some in answers])


def _text_example(number: str, texts: Texts) -> LabelledText:
    return LabelledText(number, texts[0], texts[1] if len(texts) > 1 else None)


def _texts_of(task: Labelling) -> int:
    return 2 if task.facts.pair else 1


def _tell_label(task: Labelling, answer: Any) -> Any:
    return task.facts.name_of(answer) if task.facts.labels else answer


def _labelled_facts(recipe: TaskRecipe) -> dict[str, Any]:
    options = recipe.labelled
    if options.numbers:
        return {"labels": []}
    # Broken examples are reported when the file is read.
    return {"labels": list(options.labels or find_labels(train_file(recipe), options.label, skipped=[]))}


def _labelled_task(recipe: TaskRecipe, facts: Facts) -> LabelledTask:
    options = recipe.labelled
    bounds = None if options.low is None or options.high is None else (options.low, options.high)
    labels = tuple(facts["labels"])
    if not options.numbers and len(labels) < 2:
        raise InputError(
            f"{recipe.data.train} has {'no label' if not labels else f'only the label {labels[0]!r}'} in "
            f"{options.label!r}; name another column as labelled.label, or set labelled.numbers"
        )
    return LabelledTask("labelled", labels, options.metrics, options.text_b is not None, bounds)


def _read_labelled(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[LabelledText]:
    options = recipe.labelled
    label = options.label if _has_column(path, options.label) else None
    columns = LabelledColumns(options.text, options.text_b, label, options.id)
    return read_labelled(path, _labelled_task(recipe, facts), columns, skipped=broken)


def _build_labelled(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return Labelling(_labelled_task(recipe, facts), pooling=recipe.encoder.pooling)


def _write_labelled(path: str | Path, task: Labelling, examples: Sequence[Any], answers: Answers) -> None:
    pairs = zip(examples, answers, strict=True)
    _write_lines(path, ({"id": one.id, "label": _tell_label(task, some[0])} for one, some in pairs))


# relevance of texts to queries


def _read_pairs(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[RelevancePair]:
    options = recipe.relevance
    label = options.label if _has_column(path, options.label) else None
    columns = RelevanceColumns(options.query, options.text, label, options.id or None)
    return read_relevance(path, columns, labels=tuple(options.gains), skipped=broken)


def _build_relevance(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return Relevance(recipe.relevance.gains, right=recipe.relevance.right, pooling=recipe.encoder.pooling)


def _write_relevance(path: str | Path, task: Relevance, examples: Sequence[Any], answers: Answers) -> None:
    pairs = zip(examples, answers, strict=True)
    _write_lines(path, ({"query": one.query, "id": one.id, "gain": some[0]} for one, some in pairs))


def _pair(number: str, texts: Texts) -> RelevancePair:
    query, text = texts
    return RelevancePair(number, query, text, None)


def _write_lines(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with write_atomically(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


# questions


def _write_choices(path: str | Path, task: Choosing, examples: Sequence[Any], answers: Answers) -> None:
    write_choices(path, task.choose(answers))


def _build_reading(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    options, longest = recipe.questions, recipe.encoder.longest
    return ExtractiveQa(
        facts["version"],
        longest=longest,
        stride=_stride(recipe),
        longest_answer=options.longest_answer,
        longest_question=min(options.longest_question, longest // 3),
        threshold=options.threshold,
    )


def _build_open_reading(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    options, longest = recipe.questions, recipe.encoder.longest
    return OpenQa(
        longest=longest,
        stride=_stride(recipe),
        longest_answer=options.longest_answer,
        longest_question=min(options.longest_question, longest // 3),
        sampled=options.sampled,
        most_passages=options.most_passages,
        pooling=recipe.encoder.pooling,
    )


def _stride(recipe: TaskRecipe) -> int:
    return recipe.encoder.longest // 4 if recipe.questions.stride is None else recipe.questions.stride


def _read_open(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[OpenQuestion]:
    if recipe.questions.layout == "searchqa":
        return read_searchqa(path, skipped=broken)
    read = read_quasar if recipe.questions.layout == "quasar" else read_openqa
    return read(path, _contexts_of(recipe, Path(path)), skipped=broken)


def _contexts_of(recipe: TaskRecipe, file: Path) -> str:
    """Return the file of passages: `train.json` for `train.txt`, `train_contexts` for Quasar-T's `train_questions`."""
    given, plain = recipe.questions.contexts, Path(strip_ending(file.name))
    place = None if given is None else Path(find_file(recipe.data.root, given))
    if place is not None and not place.is_dir():
        return str(place)
    name = plain.name.replace("questions", "contexts")
    name = name if recipe.questions.layout == "quasar" else str(plain.with_suffix(".json"))
    found = find_file(str(place or file.parent), name)
    if not Path(found).exists() or Path(found) == file:
        raise InputError(
            f"the passages of {file} are not in {found}; set it: --set questions.contexts=FOLDER, or a file"
        )
    return found


def _write_texts(path: str | Path, task: Any, examples: Sequence[Any], answers: Answers) -> None:
    write_predictions(path, task.texts(examples, answers))


# masked words


def _read_texts(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[str]:
    from wellread.encoders.load import load_tokenizer
    from wellread.text.segments import Segmenter

    return read_texts([path], Segmenter(load_tokenizer(recipe.encoder.name), longest=recipe.encoder.longest))


def _build_masking(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return Masking(tokenizer, share=recipe.masking.share, units=recipe.masking.units, start=recipe.encoder.name)


# facts with their objects masked


def _lama_facts(recipe: TaskRecipe) -> dict[str, Any]:
    """Return the vocabulary, to be saved with the model, since its file may be moved."""
    name = recipe.lama.vocabulary
    return {"vocabulary": None if name is None else sorted(read_vocabulary(find_file(recipe.data.root, name)))}


def _read_facts(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[MaskedFact]:
    """Yield the facts whose object is one token of the vocabulary."""
    from wellread.encoders.load import load_tokenizer

    task = _build_probing(recipe, facts, load_tokenizer(recipe.encoder.name))
    unknown: list[str] = []
    # The training file must have the part; other files are read whole if they have no parts.
    part = recipe.lama.part if path == train_file(recipe) or has_parts(path) else None
    yield from task.usable(read_probe(path, part, skipped=broken), skipped=unknown)
    broken += (f"{path}: {word!r} is not one token, or not in the vocabulary" for word in unknown)


def _build_probing(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Probing:
    return Probing(tokenizer, facts.get("vocabulary"), start=recipe.encoder.name)


def _write_ranks(path: str | Path, task: Probing, examples: Sequence[Any], answers: Answers) -> None:
    pairs = zip(examples, answers, strict=True)
    rows = ({"id": one.id, "relation": one.relation, "rank": some[0] if some else None} for one, some in pairs)
    _write_lines(path, rows)


_GLUE = TaskType(
    lambda recipe, facts, path, broken: read_glue(path, recipe.task, skipped=broken),
    split_labelled,
    _build_glue,
    _write_glue,
    example=_text_example,
    tell=_tell_label,
    texts=_texts_of,
)
KINDS: dict[str, TaskType] = {
    "labelled": TaskType(
        _read_labelled,
        split_labelled,
        _build_labelled,
        _write_labelled,
        facts=_labelled_facts,
        example=_text_example,
        tell=_tell_label,
        texts=_texts_of,
    ),
    "relevance": TaskType(
        _read_pairs, split_queries, _build_relevance, _write_relevance, example=_pair, texts=lambda task: 2
    ),
    "choice": TaskType(
        lambda recipe, facts, path, broken: read_choices(path, skipped=broken),
        split_choices,
        lambda recipe, facts, tokenizer: Choosing(pooling=recipe.encoder.pooling),
        _write_choices,
    ),
    "squad": TaskType(
        lambda recipe, facts, path, broken: read_squad(path, misplaced=broken),
        split_squad,
        _build_reading,
        _write_texts,
        facts=lambda recipe: {"version": squad_version(train_file(recipe))},
        has_gold=lambda question: bool(question.answers) or question.impossible,
    ),
    "openqa": TaskType(
        _read_open,
        lambda questions, count: split_by(questions, count, lambda one: one.question),
        _build_open_reading,
        _write_texts,
        has_gold=lambda question: bool(question.answers),
    ),
    "masking": TaskType(
        _read_texts,
        lambda texts, count: split_by(texts, count, lambda text: text),
        _build_masking,
        has_gold=lambda text: True,
    ),
    "lama": TaskType(
        _read_facts,
        lambda facts, count: split_by(facts, count, lambda fact: fact.subject),
        _build_probing,
        _write_ranks,
        facts=_lama_facts,
        has_gold=lambda fact: True,
    ),
    **registry_entities.KINDS,
    **registry_relations.KINDS,
    **registry_senses.KINDS,
}
"""The families that are no GLUE task, by the name that a recipe has for them."""
