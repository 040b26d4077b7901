"""`wellread train`: learn from a recipe."""

from __future__ import annotations

import click


@click.group("train")
def command() -> None:
    """Train models from recipes; a run is a folder that can be interrupted and goes on where it stopped.

    Example: wellread train linker recipes/kb-only.toml --set kb=my.kb --to runs/my-linker
    """


@command.command("linker")
@click.argument("recipe", type=click.Path())
@click.option("--to", "folder", help="The run's folder.  [default: runs/<name of the recipe>]")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the recipe.")
@click.option("--anew", is_flag=True, help="Forget what is in the folder instead of going on with it.")
def linker(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    """Train a linker as RECIPE (a TOML file) says, or go on with the run in the folder.

    The folder gets the resolved recipe, a log, scores, plots, and in `model` the linker with the best F1 on the
    development documents: use it with --model FOLDER/model.

    \b
    Examples:
      wellread train linker recipes/kb-only.toml --set kb=vital --to runs/vital
      wellread train linker my.toml --set schedule.seed=1 --set schedule.epochs=5 --to runs/seed-1
    """
    from pathlib import Path

    from wellread import config, console
    from wellread.training.linker import MODEL, LinkerRecipe, train_linker

    wanted = config.override(config.read(LinkerRecipe, recipe), changes)
    to = Path(folder) if folder is not None else Path("runs") / Path(recipe).stem
    scores = train_linker(wanted, to, resume=not anew)
    console.print_table(("score", "development"), list(scores.items()))
    console.note(f"the linker is in {to / MODEL}; use it with: wellread link --model {to / MODEL} --kb {wanted.kb}")
