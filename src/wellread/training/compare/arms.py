"""Arms of a comparison: the same recipe with some settings changed, by name.

They come from `--vary` (every combination of the values) or from the table [arms] of a TOML file:

    [arms]
    plain = { infusion = "none" }
    "convolution alone" = { infusion = "kam", maps.maps = [] }
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from wellread import config
from wellread.errors import InputError, UsageError, WellreadError
from wellread.io import files
from wellread.models.kam.inputs import MapsConfig
from wellread.models.kam.model import KamConfig
from wellread.models.luke.recipe import LukeOptions
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.registry import find_task_type, name_of

Arms = dict[str, TaskRecipe]
Arm = TypeVar("Arm")

_OF_LINKED_TEXT = ("kb", "given", "start")
"""Settings of [luke] that a task with entities of its own has no use for."""
_TABLES = {"maps": "kam", "kam": "kam", "knowbert": "knowbert", "luke": "luke"}
"""Whose settings the tables of a recipe are."""


def vary(recipe: TaskRecipe, varied: Sequence[str]) -> Arms:
    """The arms of every combination: ["infusion=none,kam", "maps.maps=entity,entity+phrase"].

    A value that is a list is its members joined by "+", or a list as TOML has it: ["entity","phrase"]. What makes no
    difference makes no arm: with infusion=none, maps are not looked at, so there is one such arm, "none".
    """
    choices = [_choices(each) for each in varied]
    if len({name for name, _ in choices}) < len(choices):
        raise UsageError(f"{' '.join(varied)} varies a setting twice; name each once, with all its values")
    arms: Arms = {}
    seen: list[TaskRecipe] = []
    for values in product(*(values for _, values in choices)):
        changed = recipe
        for (name, _), value in zip(choices, values, strict=True):
            changed = config.override(changed, [f"{name}={value}"])
        if (plain := _effective(changed)) in seen:
            continue
        seen.append(plain)
        idle = _idle(changed)
        told = [
            _told(name, value)
            for (name, _), value in zip(choices, values, strict=True)
            if name.split(".")[0] not in idle
        ]
        arms[", ".join(told) or changed.infusion] = changed
    return arms


def read_arms(path: str | Path) -> dict[str, dict[str, Any]]:
    """The table [arms] of a TOML file: settings by the name of the arm."""
    table = config.read_table(path)
    arms = table.pop("arms", None)
    if table or not isinstance(arms, dict) or not arms or not all(isinstance(arm, dict) for arm in arms.values()):
        raise InputError(
            f"{files.path_name(path)}: expected a table [arms] and nothing else, with lines like: "
            'plain = { infusion = "none" }'
        )
    return arms


def apply_arms(recipe: TaskRecipe, arms: Mapping[str, Mapping[str, Any]]) -> Arms:
    """A recipe with the settings of each arm.

    One file of arms serves many tasks. So what an arm says of links for LUKE is left out where a task asks about
    mentions by entities of its own.
    """
    made: Arms = {}
    for name, changes in arms.items():
        try:
            made[name] = config.from_dict(TaskRecipe, _merged(config.to_dict(recipe), _fitting(recipe, changes)))
        except WellreadError as error:
            raise InputError(f"the arm {name!r}: {error}") from error
    return made


def unfit(recipe: TaskRecipe) -> str | None:
    """Why an arm is not for its task, if so: it would be lent nothing, or what it is lent cannot be together."""
    provided = set(recipe.infusions)
    if "luke" in provided and not recipe.luke.links and not find_task_type(recipe.task).own_entities:
        return (
            f"luke has no entities to tell: {name_of(recipe)} asks about none, and nobody links its texts; give luke.kb"
        )
    if {"kam", "luke"} <= provided and recipe.maps.terms:
        return "kam's auxiliary terms and luke's entities are both positions beside the words; set maps.terms = 0"
    return None


def _fitting(recipe: TaskRecipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What of an arm's settings a task has a use for."""
    luke = changes.get("luke")
    if not isinstance(luke, Mapping) or not find_task_type(recipe.task).own_entities:
        return dict(changes)
    return {**changes, "luke": {name: value for name, value in luke.items() if name not in _OF_LINKED_TEXT}}


def _choices(varied: str) -> tuple[str, list[str]]:
    name, equals, values = varied.partition("=")
    found = [value.strip() for value in _split(values)]
    if not equals or not name.strip() or not all(found):
        raise UsageError(f"{varied!r} varies no setting; expected name=value,value as in infusion=none,kam")
    return name.strip(), found


def _split(values: str) -> list[str]:
    """Values at their commas, but for those within brackets, braces and quotes: '["a", "b"],none' are two."""
    return re.findall(r"""(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+|(?<=,)(?=,|$)|^(?=,|$)""", values)


def _told(name: str, value: str) -> str:
    """How an arm is called by a setting: words speak for themselves, numbers do not."""
    if value.startswith("["):  # as if it were joined by "+"
        value = "+".join(member.strip(" \"'") for member in value[1:-1].split(",") if member.strip()) or "none"
    return value if value[0].isalpha() and value not in ("true", "false") else f"{name.split('.')[-1]} {value}"


def _effective(recipe: TaskRecipe) -> TaskRecipe:
    """What of a recipe makes a difference."""
    usual: dict[str, Any] = {"maps": MapsConfig(), "kam": KamConfig(), "knowbert": {}, "luke": LukeOptions()}
    return replace(recipe, **{table: usual[table] for table in _idle(recipe)})


def _idle(recipe: TaskRecipe) -> list[str]:
    """The tables that are not looked at: those of infusions that are not there."""
    return [table for table, infusion in _TABLES.items() if infusion not in recipe.infusions]


def _merged(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with those of another in it, table by table."""
    merged = dict(table)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(value, Mapping) and isinstance(below, dict) else value
    return merged


def arms_of(recipe: TaskRecipe, varied: Sequence[str], file: str | Path | None, chosen: Sequence[str] = ()) -> Arms:
    """The arms that a command line asks for: varied, or of a file; all, or the chosen ones as they are chosen.

    Of a file only the chosen ones are made, so others may need what is not there.
    """
    if bool(varied) == (file is not None):
        raise UsageError("there is nothing to compare; give --vary infusion=none,kam, or --arms FILE (one of the two)")
    if file is None:
        arms = _chosen(vary(recipe, varied), chosen)
    else:
        arms = apply_arms(recipe, _chosen(read_arms(file), chosen))
    if len(arms) < 2:
        raise UsageError(f"one arm ({', '.join(arms)}) cannot be compared; give two values or more")
    return arms


def _chosen(arms: Mapping[str, Arm], chosen: Sequence[str]) -> dict[str, Arm]:
    """Some of the arms, in the order of the choice; all if there is none."""
    if unknown := set(chosen) - arms.keys():
        raise UsageError(f"there is no arm {min(unknown)!r}; there are: {', '.join(arms)}")
    return {name: arms[name] for name in chosen or arms}
