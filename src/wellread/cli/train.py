"""`wellread train`: train a task or a linker from a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from wellread.cli.defaults import DefaultGroup


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all training commands."""
    options = (
        click.argument("recipe", type=click.Path()),
        click.option("--to", "folder", help="Run folder.  [default: runs/<name of the recipe>]"),
        click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the recipe."),
        click.option("--anew", is_flag=True, help="Delete the run in the folder instead of resuming it."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group("train", cls=DefaultGroup, default="recipe", subcommand_metavar="[linker|task] RECIPE [OPTIONS]")
def command() -> None:
    """Train models from recipes; an interrupted run resumes from its folder.

    RECIPE is a TOML file: one that names a task trains an encoder for it, one that names a knowledge base trains a
    linker. The word before it is needed only if the recipe leaves that to --set.

    \b
    Example: wellread train linker recipes/kb-only.toml --set kb=my.kb --to runs/my-linker
    Example: wellread train recipes/kam-rte.toml --set data.root=my-data --to runs/rte
    """


@command.command("recipe", hidden=True)
@_options
def recipe(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    """Train the task or linker of RECIPE.

    Example: wellread train recipes/kam-rte.toml --set data.root=my-data --to runs/rte
    """
    from wellread import config
    from wellread.errors import InputError
    from wellread.io.files import path_name

    given = config.read_table(recipe).keys() | {change.partition("=")[0].strip() for change in changes}
    if "task" in given:
        _train_task(recipe, folder, changes, anew)
    elif "kb" in given:
        _train_linker(recipe, folder, changes, anew)
    else:
        raise InputError(
            f'{path_name(recipe)} names neither a task nor a knowledge base; give task = "RTE" for a task, or '
            'kb = "vital" for a linker'
        )


@command.command("linker")
@_options
def linker(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    """Train a linker as configured in RECIPE (a TOML file), or resume the run in the folder.

    The folder gets the resolved recipe, a log, scores, plots, and in `model` the linker with the best F1 on the
    development documents: use it with --model FOLDER/model.

    \b
    Examples:
      wellread train linker recipes/kb-only.toml --set kb=vital --to runs/vital
      wellread train linker my.toml --set schedule.seed=1 --set schedule.epochs=5 --to runs/seed-1
    """
    _train_linker(recipe, folder, changes, anew)


@command.command("task")
@_options
def task(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    """Train an encoder for a task as configured in RECIPE (a TOML file), or resume the run in the folder.

    The folder gets the resolved recipe, a log, scores, plots, and in `model` the encoder and its head with the best
    score on the development examples: score it on other data with wellread evaluate FOLDER DATA.

    \b
    Examples:
      wellread train task recipes/kam-rte.toml --set data.root=my-data --to runs/rte
      wellread train task my.toml --set infusion=none --set schedule.seed=1 --to runs/plain-1
    """
    _train_task(recipe, folder, changes, anew)


def _train_linker(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    from wellread import config
    from wellread.io import console
    from wellread.models.elq.recipe import LinkerRecipe

    wanted = config.override(config.read(LinkerRecipe, recipe), changes)
    from wellread.models.elq.training import MODEL, train_linker  # after the recipe was checked: it imports torch

    to = _place(recipe, folder)
    scores = train_linker(wanted, to, resume=not anew)
    console.print_table(("score", "development"), list(scores.items()))
    if wanted.is_made_up:
        console.note(
            "F1 on synthetic sentences; on real text it will be lower. Adapt to your texts with: "
            f"wellread adapt --kb {wanted.kb} --texts PATH --to FOLDER"
        )
    console.note(f"the linker is in {to / MODEL}; use it with: wellread link --model {to / MODEL} --kb {wanted.kb}")


def _train_task(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    from wellread import config
    from wellread.io import console
    from wellread.tasks.data_options import check_shared_settings

    check_shared_settings(recipe, changes)
    from wellread.tasks.recipe import TaskRecipe  # after that check: it imports torch
    from wellread.training.loop import distributed_state
    from wellread.training.task import train_task

    wanted = config.override(config.read(TaskRecipe, recipe), changes)
    to = _place(recipe, folder)
    scores = train_task(wanted, to, resume=not anew)
    if distributed_state().is_main_process:
        console.print_table(("score", "development"), list(scores.items()))
        console.note(f"the model is in {to}; score it on other data with: wellread evaluate {to} DATA")


def _place(recipe: str, folder: str | None) -> Any:
    from pathlib import Path

    return Path(folder) if folder is not None else Path("runs") / Path(recipe).stem
