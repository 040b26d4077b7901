"""Arms of a comparison: variants of one recipe, by name.

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
from wellread.tasks.registry import task_name

Arms = dict[str, TaskRecipe]
Arm = TypeVar("Arm")

_OF_LINKED_TEXT = ("kb", "given", "start")
"""Settings of [luke] that do not apply to a task with its own entity tokens."""
_TABLES = {"maps": "kam", "kam": "kam", "knowbert": "knowbert", "luke": "luke"}
"""Infusion that each table of a recipe belongs to."""


def vary(recipe: TaskRecipe, varied: Sequence[str]) -> Arms:
    """Return the arms of every combination: ["infusion=none,kam", "maps.maps=entity,entity+phrase"].

    A list value is its members joined by "+", or a TOML list: ["entity","phrase"]. Combinations that are equivalent
    make one arm: with infusion=none the maps are ignored, so there is one such arm, "none".
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
        names = [
            _arm_name(name, value)
            for (name, _), value in zip(choices, values, strict=True)
            if name.split(".")[0] not in idle
        ]
        arms[", ".join(names) or changed.infusion] = changed
    return arms


def read_arms(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read the table [arms] of a TOML file: settings by the name of the arm."""
    table = config.read_table(path)
    arms = table.pop("arms", None)
    if table or not isinstance(arms, dict) or not arms or not all(isinstance(arm, dict) for arm in arms.values()):
        raise InputError(
            f"{files.path_name(path)}: expected a table [arms] and nothing else, with lines like: "
            'plain = { infusion = "none" }'
        )
    return arms


def apply_arms(recipe: TaskRecipe, arms: Mapping[str, Mapping[str, Any]]) -> Arms:
    """Return the recipe with the settings of each arm.

    One file of arms serves many tasks, so settings of LUKE's links are dropped for tasks with their own entity tokens.
    """
    made: Arms = {}
    for name, changes in arms.items():
        try:
            made[name] = config.from_dict(TaskRecipe, _merged(config.to_dict(recipe), _fitting(recipe, changes)))
        except WellreadError as error:
            raise InputError(f"the arm {name!r}: {error}") from error
    return made


def unfit(recipe: TaskRecipe) -> str | None:
    """Return why an arm does not apply to its task (no knowledge for it, or incompatible infusions), or None."""
    provided = set(recipe.infusions)
    if "luke" in provided and not recipe.luke.links and not recipe.own_entities:
        name = task_name(recipe.task)
        return f"luke has no entities: {name} marks no mentions, and its texts are not linked; give luke.kb"
    if {"kam", "luke"} <= provided and recipe.maps.terms:
        return "kam's auxiliary terms and luke's entities both use extra token positions; set maps.terms = 0"
    return None


def _fitting(recipe: TaskRecipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an arm that apply to the task."""
    luke = changes.get("luke")
    if not isinstance(luke, Mapping) or not recipe.own_entities:
        return dict(changes)
    return {**changes, "luke": {name: value for name, value in luke.items() if name not in _OF_LINKED_TEXT}}


def _choices(varied: str) -> tuple[str, list[str]]:
    name, equals, values = varied.partition("=")
    found = [value.strip() for value in _split(values)]
    if not equals or not name.strip() or not all(found):
        raise UsageError(f"{varied!r} is not a varied setting; expected name=value,value as in infusion=none,kam")
    return name.strip(), found


def _split(values: str) -> list[str]:
    """Split values at commas outside brackets, braces and quotes: '["a", "b"],none' has two values."""
    return re.findall(r"""(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+|(?<=,)(?=,|$)|^(?=,|$)""", values)


def _arm_name(name: str, value: str) -> str:
    """Return the part of an arm's name for a setting: words as they are, numbers with the setting's name."""
    if value.startswith("["):  # as if it were joined by "+"
        value = "+".join(member.strip(" \"'") for member in value[1:-1].split(",") if member.strip()) or "none"
    return value if value[0].isalpha() and value not in ("true", "false") else f"{name.split('.')[-1]} {value}"


def _effective(recipe: TaskRecipe) -> TaskRecipe:
    """Return the recipe with unused tables reset, to compare recipes by effect."""
    usual: dict[str, Any] = {"maps": MapsConfig(), "kam": KamConfig(), "knowbert": {}, "luke": LukeOptions()}
    return replace(recipe, **{table: usual[table] for table in _idle(recipe)})


def _idle(recipe: TaskRecipe) -> list[str]:
    """Return the tables that are ignored, because their infusion is not used."""
    return [table for table, infusion in _TABLES.items() if infusion not in recipe.infusions]


def _merged(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; `changes` win."""
    merged = dict(table)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(value, Mapping) and isinstance(below, dict) else value
    return merged


def arms_of(recipe: TaskRecipe, varied: Sequence[str], file: str | Path | None, chosen: Sequence[str] = ()) -> Arms:
    """Return the arms of a command line: varied or from a file; all, or the chosen ones in the chosen order.

    From a file only the chosen arms are built, so the others may be incomplete.
    """
    if bool(varied) == (file is not None):
        raise UsageError("no arms to compare; give --vary infusion=none,kam, or --arms FILE (one of the two)")
    if file is None:
        arms = _chosen(vary(recipe, varied), chosen)
    else:
        arms = apply_arms(recipe, _chosen(read_arms(file), chosen))
    if len(arms) < 2:
        raise UsageError(f"one arm ({', '.join(arms)}) cannot be compared; give two values or more")
    return arms


def _chosen(arms: Mapping[str, Arm], chosen: Sequence[str]) -> dict[str, Arm]:
    """Return the chosen arms in the chosen order; all if none is chosen."""
    if unknown := set(chosen) - arms.keys():
        raise UsageError(f"there is no arm {min(unknown)!r}; there are: {', '.join(arms)}")
    return {name: arms[name] for name in chosen or arms}
