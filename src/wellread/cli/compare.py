"""`wellread compare`: train variants (arms) of a recipe on the same data and seeds, and compare them.

Linkers on the same texts (`cli/compare_linkers.py`) and a page of all comparisons (`cli/compare_report.py`) are verbs
of it.
"""

from __future__ import annotations

import click

from wellread.cli.compare_linkers import linkers
from wellread.cli.compare_report import report
from wellread.cli.defaults import DefaultGroup
from wellread.cli.options import table_option, typed_command


@click.group(
    "compare",
    cls=DefaultGroup,
    default="tasks",
    subcommand_metavar="RECIPE... | linkers DATA... | report FOLDER... [OPTIONS]",
)
def command() -> None:
    """Train arms of a recipe on the same seeds, or link the same texts with several linkers, and compare them.

    \b
    Example: wellread compare recipes/kam-rte.toml --set data.root=my-data --vary infusion=none,kam
    Example: wellread compare recipes/ner-wnut17.toml --set data.root=my-data --arms recipes/infusions.toml
    Example: wellread compare linkers --kb vital --model prior --model elq questions.jsonl
    Example: wellread compare report runs/infusions runs/linkers --to report.html

    All options of the first: wellread compare tasks --help
    """


command.add_command(linkers)
command.add_command(report)


@command.command("tasks")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE...")
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="NAME=VALUE,VALUE",
    help='Compare these values of a setting (list members joined by "+"); repeatable: every combination.',
)
@click.option("--arms", "arms_file", metavar="FILE", help="Compare the arms in the table [arms] of a TOML file.")
@click.option(
    "--arm",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="Run only this arm; repeatable. The first is the baseline.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Number of seeds per arm.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of every recipe.")
@click.option("--to", "folder", help="Folder of the comparison.  [default: runs/compare-<names of the recipes>]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Concurrent runs.")
@click.option("--keep", is_flag=True, help="Keep the weights and the model of every run.")
@click.option("--no-costs", is_flag=True, help="Do not measure time and memory of a step.")
@table_option
def tasks(
    recipes: tuple[str, ...],
    varied: tuple[str, ...],
    arms_file: str | None,
    chosen: tuple[str, ...],
    seeds: int,
    changes: tuple[str, ...],
    folder: str | None,
    jobs: int,
    keep: bool,
    no_costs: bool,
    form: str,
) -> None:
    """Train arms of each RECIPE on the same seeds, and compare them with the first arm.

    Every arm and seed is a run folder: the same command resumes after an interruption, and with more seeds or arms it
    trains only those. The table has mean ± standard deviation, the paired difference to the first arm with its
    interval and p, and what the arms cost; it is also written to the folder as table.md, table.json and table.png.

    A run that fails does not end the others. The table has "–" for it and says why below; the exit code is then 8, and
    the same command tries it again. An arm that is not for a task (LUKE, where nobody tells it of entities) has "–"
    there too, and the reason below, which is no failure.

    \b
    Examples:
      wellread compare recipes/kam-rte.toml --set data.train=RTE/train.tsv --vary infusion=none,kam
      wellread compare rte.toml mrpc.toml --vary infusion=none,kam --vary maps.maps=entity,phrase,entity+phrase
      wellread compare rte.toml --arms recipes/kam-ablations.toml --seeds 5 --jobs 2 --to runs/ablations
      wellread compare rte.toml ner.toml --arms recipes/infusions.toml --arm none --arm kam --arm kam+luke
    """
    from pathlib import Path

    from wellread.errors import TrainingError
    from wellread.io import console
    from wellread.training.compare.arms import arms_of
    from wellread.training.compare.grid import compare, read_recipes, seeds_of

    read = read_recipes(recipes, changes)
    asked = {task: arms_of(recipe, varied, arms_file, chosen) for task, recipe in read.items()}
    to = Path(folder) if folder is not None else Path("runs") / f"compare-{'-'.join(Path(r).stem for r in recipes)}"
    table = compare(
        asked, seeds_of(read.values(), seeds), to, jobs=jobs, keep=keep, measure=not no_costs, command=typed_command()
    )
    if form == "json":
        click.echo(table.to_json(), nl=False)
    elif form == "markdown":
        click.echo(table.to_markdown(), nl=False)
    else:
        console.print_table(*table.screen())
        click.echo("\n".join(table.legend()))
        if table.costs:
            console.print_table(table.cost_header, table.cost_rows())
            click.echo(table.cost_legend())
    console.note(f"the table is also in {to} as table.md, table.json and table.png")
    if table.failed:
        raise TrainingError(
            f"{len(table.failed)} of {len(table.seeds) * (sum(map(len, asked.values())) - len(table.unfit))} runs "
            "failed, the first: "
            f"{table.failed[0]}; fix the cause and run the same command again, which repeats them"
        )
