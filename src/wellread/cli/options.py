"""What options of several verbs share."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable
from typing import get_args

import click

from wellread.data.formats import Format, Ids

Options = Callable[[Callable[..., None]], Callable[..., None]]
"""What puts options before a verb."""

places_option = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Where a run's knowledge lies now, if it was moved: --set maps.correlation=other/words.pmi",
)
form_option = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Of the scores."
)


def refuse_nan(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A callback: "nan" is a float to Python, and no comparison with it is ever true."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number to compare with; give one such as 0.5")
    return value


def typed_command() -> str:
    """What was typed, so that a table can tell what made it."""
    return shlex.join(["wellread", *sys.argv[1:]])


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """How a linker that reads goes about it: --sources and --precision."""
    sources = click.option(
        "--sources",
        type=click.Choice(["union", "dense", "names"]),
        default="union",
        show_default=True,
        help="elq: candidates by meaning and by name, or one of the two.",
    )
    precision = click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "int8"]),
        default="auto",
        show_default=True,
        help="floats, or 8 bits (faster); auto: the model's own, else 8 bits where possible.",
    )
    return sources(precision(command))


def nil_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --nil; --no-nil, which is the default, is still accepted."""
    shown = click.option("--nil", is_flag=True, help="Also show NIL: mentions of what the KB does not have.")
    hidden = click.option("--no-nil", is_flag=True, hidden=True, expose_value=False)
    return shown(hidden(command))


trust_option = click.option(
    "--trust",
    type=float,
    callback=refuse_nan,
    help="Override how much names count; the default suits any KB (elq: 0 as learned, 4 nearly always; LUKE: the "
    "weight of the prior).",
)


def gold_options(form: str) -> Options:
    """How files of linked text are read: their format, by this option, --ids and --prefix."""
    kind = click.option(
        form,
        "kind",
        type=click.Choice(["auto", *get_args(Format)]),
        default="auto",
        show_default=True,
        help="The format of the files; auto tells by their first line.",
    )
    ids = click.option("--ids", type=click.Choice(get_args(Ids)), help="What names an entity in an AIDA or NIF file.")
    prefix = click.option(
        "--prefix", default="", metavar="TEXT", help="Put this before the gold ids, as the KB has it: wp:"
    )
    return lambda command: kind(ids(prefix(command)))


def draw_options(command: Callable[..., None]) -> Callable[..., None]:
    """How intervals are drawn: --bootstrap and --seed."""
    bootstrap = click.option(
        "--bootstrap",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        help="Draws for the 95 % intervals; 0 for none.",
    )
    seed = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of these draws.")
    return bootstrap(seed(command))


def table_option(command: Callable[..., None]) -> Callable[..., None]:
    """How a comparison is written: --format."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "markdown", "json"]),
        default="table",
        show_default=True,
        help="What is written to standard output.",
    )(command)
