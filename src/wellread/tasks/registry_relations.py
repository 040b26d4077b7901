"""Rows of the table of tasks: relations of entities, types of entities, and facts that sentences render."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from wellread.errors import UsageError
from wellread.tasks.entity_typing import (
    EntityTyping,
    TypedMention,
    find_types,
    parse_mention,
    read_types,
    split_mentions,
    write_types,
)
from wellread.tasks.fact_probe import FactProbing, RenderedFact, read_rendered, split_facts
from wellread.tasks.relations import (
    EntityPair,
    Relating,
    Rule,
    find_relations,
    parse_pair,
    read_semeval2010,
    read_tacred,
    split_pairs,
    write_semeval2010,
    write_tacred,
)
from wellread.tasks.task import Task
from wellread.tasks.task_type import Answers, Facts, TaskType, Texts, train_file

if TYPE_CHECKING:
    from wellread.tasks.recipe import TaskRecipe

_READERS = {"tacred": read_tacred, "semeval2010": read_semeval2010}


# relations


def _read_pairs(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[EntityPair]:
    return _READERS[recipe.task](path, skipped=broken)


def _relation_facts(recipe: TaskRecipe) -> dict[str, Any]:
    pairs = _READERS[recipe.task](train_file(recipe), skipped=[])
    return {"labels": list(find_relations(pairs, _rule(recipe)))}


def _build_relating(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return Relating(tokenizer, facts["labels"], rule=_rule(recipe), options=recipe.relations)


def _rule(recipe: TaskRecipe) -> Rule:
    return "tacred" if recipe.task == "tacred" else "semeval2010"


def _write_semeval2010(path: str | Path, task: Any, examples: Sequence[Any], answers: Answers) -> None:
    write_semeval2010(path, examples, [some[0] for some in answers])


def _write_tacred(path: str | Path, task: Any, examples: Sequence[Any], answers: Answers) -> None:
    write_tacred(path, [some[0] for some in answers])


def _tagged_pair(number: str, texts: Texts) -> EntityPair:
    return parse_pair(number, _single(texts))


# types


def _read_mentions(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[TypedMention]:
    return read_types(path, skipped=broken)


def _type_facts(recipe: TaskRecipe) -> dict[str, Any]:
    named = recipe.types.types
    return {"types": list(named or find_types(read_types(train_file(recipe), skipped=[])))}


def _build_typing(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return EntityTyping(tokenizer, facts["types"], options=recipe.types)


def _write_types(path: str | Path, task: Any, examples: Sequence[Any], answers: Answers) -> None:
    write_types(path, examples, [some[0] for some in answers])


def _tagged_mention(number: str, texts: Texts) -> TypedMention:
    return parse_mention(number, _single(texts))


# facts


def _read_facts(recipe: TaskRecipe, facts: Facts, path: str, broken: list[str]) -> Iterator[RenderedFact]:
    return read_rendered(path, skipped=broken)


def _build_probing(recipe: TaskRecipe, facts: Facts, tokenizer: Tokenizer) -> Task[Any]:
    return FactProbing(tokenizer, start=recipe.encoder.name)


def _single(texts: Texts) -> str:
    if len(texts) != 1:
        raise UsageError(f"one text with its entities in tags is asked about, not {len(texts)} texts; give one")
    return texts[0]


def _has_relation(pair: EntityPair) -> bool:
    return pair.relation is not None


KINDS: dict[str, TaskType] = {
    "tacred": TaskType(
        _read_pairs,
        split_pairs,
        _build_relating,
        _write_tacred,
        facts=_relation_facts,
        has_gold=_has_relation,
        example=_tagged_pair,
        own_entities=True,
    ),
    "semeval2010": TaskType(
        _read_pairs,
        split_pairs,
        _build_relating,
        _write_semeval2010,
        facts=_relation_facts,
        has_gold=_has_relation,
        example=_tagged_pair,
        own_entities=True,
    ),
    "entity-types": TaskType(
        _read_mentions,
        split_mentions,
        _build_typing,
        _write_types,
        facts=_type_facts,
        has_gold=lambda mention: mention.types is not None,
        example=_tagged_mention,
        own_entities=True,
    ),
    "fact-probe": TaskType(_read_facts, split_facts, _build_probing, has_gold=lambda fact: True),
}
"""The tasks of this family, by the name that a recipe has for them."""
