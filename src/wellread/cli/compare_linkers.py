"""`wellread compare linkers`: accuracy, speed and size of several linkers on the same texts and KB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import click

from wellread.cli.options import draw_options, gold_options, reading_options, table_option, typed_command
from wellread.data.formats import Format, Ids
from wellread.errors import TrainingError, UsageError


@click.command("linkers")
@click.argument("data", nargs=-1, required=True, metavar="[NAME=]FILE...")
@click.option("--kb", required=True, help="Knowledge base, by name or path.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="prior, elq, knowbert, or a folder, as in luke=runs/luke/model; repeatable. The first is the baseline.  "
    "[default: prior and elq]",
)
@reading_options
@gold_options("--data-format")
@click.option(
    "--develop",
    "parts",
    multiple=True,
    metavar="NAME=N",
    help="Use only the part of a data set that a recipe with develop = N holds out.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Take only the first N documents of each data set.")
@click.option("--skip-broken", is_flag=True, help="Skip and count broken documents instead of stopping.")
@click.option("--to", "folder", help="Folder of the comparison.  [default: runs/linkers-<name of the KB>]")
@draw_options
@table_option
def linkers(
    data: tuple[str, ...],
    kb: str,
    models: tuple[str, ...],
    sources: Literal["union", "dense", "names"],
    precision: Literal["auto", "fp32", "int8"],
    kind: Format | Literal["auto"],
    ids: Ids | None,
    prefix: str,
    parts: tuple[str, ...],
    limit: int | None,
    skip_broken: bool,
    folder: str | None,
    bootstrap: int,
    seed: int,
    form: str,
) -> None:
    """Link the texts of every FILE with every model, and score the links against those in the files.

    The files are those of wellread evaluate linking. Every model and data set is linked in a process of its own: the
    table has micro F1 by overlapping and by exact spans with intervals, the difference to the first model, texts a
    second, processor time, memory and sizes on disk. It is also written to the folder as table.md, table.json and
    table.png. What is linked is kept: the same command goes on, and with more models or files it links only those.

    A model that cannot link a file does not end the others: the table has "–" for it and says why below; the exit code
    is then 8.

    \b
    Examples:
      wellread compare linkers --kb vital questions.jsonl
      wellread compare linkers --kb my.kb --model prior --model elq --model luke=runs/luke/model a.jsonl b.jsonl.xz
      wellread compare linkers --kb shared webqsp=train.jsonl --develop webqsp=600 --limit 300 --format markdown
    """
    from wellread.io import console
    from wellread.kb.packaged import kb_path
    from wellread.training.compare.linkers import DataSet, Loading, compare_linkers

    files = _named(data, lambda file: Path(file).name.split(".")[0], "data set")
    develop = _numbers(parts, files)
    sets = {
        name: DataSet(file, None if kind == "auto" else kind, ids, prefix, develop.get(name), limit, skip_broken)
        for name, file in files.items()
    }
    to = Path(folder) if folder is not None else Path("runs") / f"linkers-{kb_path(kb).stem}"
    table = compare_linkers(
        _named(models or ("prior", "elq"), str, "model"),
        sets,
        Loading(kb, sources, precision),
        to,
        bootstrap=bootstrap,
        seed=seed,
        command=typed_command(),
    )
    if form == "json":
        click.echo(table.to_json(), nl=False)
    elif form == "markdown":
        click.echo(table.to_markdown(), nl=False)
    else:
        console.print_table(*table.screen())
        click.echo("\n".join(table.legend()))
        console.print_table(table.cost_header, table.cost_rows())
        click.echo(table.cost_legend())
    written = [name for name in ("table.md", "table.json", "table.png") if (Path(to) / name).exists()]
    console.note(f"the table is also in {to} as {', '.join(written[:-1])} and {written[-1]}")
    if table.failed:
        raise TrainingError(
            f"{len(table.failed)} of {len(table.linkers) * len(table.data)} cells failed, the first: "
            f"{table.failed[0]}; fix the cause and run the same command again, which repeats them"
        )


def _named(given: Sequence[str], name_of: Callable[[str], str], what: str) -> dict[str, str]:
    """Return values by name: ["luke=runs/luke"] -> {"luke": "runs/luke"}; a value without a name gets one."""
    named: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or "/" in name:  # a path may have "=" in it
            name, value = name_of(one), one
        if not name or not value:
            raise UsageError(f"{one!r} has no {what}; expected NAME=VALUE, or the value alone")
        if name in named:
            raise UsageError(f"two have the name {name!r}, {named[name]} and {value}; rename one: other={value}")
        named[name] = value
    return named


def _numbers(given: Sequence[str], names: dict[str, str]) -> dict[str, int]:
    found = {}
    for one in given:
        name, _, number = one.partition("=")
        if name not in names or not number.isdecimal() or not int(number):
            raise UsageError(f"--develop {one}: expected NAME=N, with NAME one of {', '.join(names)} and N 1 or more")
        found[name] = int(number)
    return found
