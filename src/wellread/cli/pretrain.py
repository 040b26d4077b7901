"""`wellread pretrain`: pretrain an encoder with KnowBERT's layers or LUKE's entities."""

from __future__ import annotations

from pathlib import Path

import click

from wellread.cli.defaults import Group


@click.group("pretrain", cls=Group)
def command() -> None:
    """Pretrain encoders with knowledge from recipes; an interrupted run resumes from its folder.

    Example: wellread pretrain knowbert recipes/knowbert-wiki.toml --to runs/wiki
    """


@command.command("knowbert")
@click.argument("recipe", type=click.Path())
@click.option("--to", "folder", help="Run folder.  [default: runs/<name of the recipe>]")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the recipe.")
@click.option("--anew", is_flag=True, help="Delete the run in the folder instead of resuming it.")
def knowbert(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    """Pretrain an encoder with KnowBERT's layers, as configured in RECIPE (a TOML file).

    First each new layer's linker is trained alone on linked text, then all weights on masked words and links. The
    folder gets the resolved recipe, logs, scores, plots, and in `model` the encoder: a task's recipe takes it as
    encoder.name, and so does the next pretraining, to add another knowledge base.

    \b
    Examples:
      wellread pretrain knowbert recipes/knowbert-wiki.toml --set words.root=texts --to runs/wiki
      wellread pretrain knowbert recipes/knowbert-wordnet.toml --set encoder.name=runs/wiki/model --to runs/both
    """
    from wellread import config
    from wellread.io import console
    from wellread.models.knowbert.pretraining import PretrainingRecipe, pretrain
    from wellread.training.loop import distributed_state
    from wellread.training.task import MODEL

    wanted = config.override(config.read(PretrainingRecipe, recipe), changes)
    to = Path(folder) if folder is not None else Path("runs") / Path(recipe).stem
    scores = pretrain(wanted, to, resume=not anew)
    if distributed_state().is_main_process:
        console.print_table(("score", "development"), list(scores.items()))
        console.note(f"the encoder is in {to / MODEL}; a task's recipe takes it with: --set encoder.name={to / MODEL}")


@command.command("luke")
@click.argument("recipe", type=click.Path())
@click.option("--to", "folder", help="Run folder.  [default: runs/<name of the recipe>]")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the recipe.")
@click.option("--anew", is_flag=True, help="Delete the run in the folder instead of resuming it.")
def luke(recipe: str, folder: str | None, changes: tuple[str, ...], anew: bool) -> None:
    """Pretrain an encoder with LUKE's entities on linked text, as configured in RECIPE (a TOML file).

    Words and entities are masked and predicted. First only the new weights are trained, then all. The text is
    JSONL with mentions: what `wellread kb build wikipedia --paragraphs` writes, or your own, linked by `wellread link`.
    The folder gets the resolved recipe, logs, scores, plots, and in `model` the encoder and its entity vocabulary.

    \b
    Examples:
      wellread pretrain luke recipes/luke-schools.toml --to runs/luke
      wellread link --kb my.kb --file notes.txt --lines --format json --to linked.jsonl
      wellread pretrain luke recipes/luke-schools.toml --set 'text.train=["linked.jsonl"]' --set text.root=. \\
        --set entities.start=
    """
    from wellread import config
    from wellread.io import console
    from wellread.models.luke.pretraining import LukePretrainingRecipe, pretrain_luke
    from wellread.training.loop import distributed_state
    from wellread.training.task import MODEL

    wanted = config.override(config.read(LukePretrainingRecipe, recipe), changes)
    to = Path(folder) if folder is not None else Path("runs") / Path(recipe).stem
    scores = pretrain_luke(wanted, to, resume=not anew)
    if distributed_state().is_main_process:
        console.print_table(("score", "development"), list(scores.items()))
        console.note(f"the encoder is in {to / MODEL}; a task's recipe takes it with: --set encoder.name={to / MODEL}")
