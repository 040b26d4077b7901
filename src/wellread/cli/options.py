"""Options and callbacks used by several commands."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable
from typing import get_args

import click

from wellread.data.formats import Format, Ids

Options = Callable[[Callable[..., None]], Callable[..., None]]
"""Decorator that adds options to a command."""

places_option = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="New path of a run's knowledge, if it was moved: --set maps.correlation=other/words.pmi",
)
form_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the scores.",
)


def refuse_nan(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Callback that refuses nan, which click's float ranges accept."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number; give one such as 0.5")
    return value


def kbs_or_default(kbs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the knowledge bases given, or the default one, which is named on stderr."""
    if kbs:
        return kbs
    from wellread.io import console
    from wellread.kb.packaged import DEFAULT_KB

    console.note(f"knowledge base: {DEFAULT_KB}, the default; choose another with --kb")
    return (DEFAULT_KB,)


def typed_command() -> str:
    """Return the command line as typed, to be stored with its results."""
    return shlex.join(["wellread", *sys.argv[1:]])


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --sources and --precision."""
    sources = click.option(
        "--sources",
        type=click.Choice(["union", "dense", "names"]),
        default="union",
        show_default=True,
        help="elq: find candidates by meaning and by name, or by one of them.",
    )
    precision = click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "int8"]),
        default="auto",
        show_default=True,
        help="Numeric precision; auto: the model's own, else int8 (faster) where possible.",
    )
    return sources(precision(command))


def nil_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --nil; --no-nil, which is the default, is still accepted."""
    shown = click.option("--nil", is_flag=True, help="Include NIL links: mentions without an entity in the KB.")
    hidden = click.option("--no-nil", is_flag=True, hidden=True, expose_value=False)
    return shown(hidden(command))


trust_option = click.option(
    "--trust",
    type=float,
    callback=refuse_nan,
    help="Override the weight of names (elq: 0 as trained, 4 nearly always; LUKE: the weight of the prior).",
)


def gold_options(form: str) -> Options:
    """Add options for reading linked text: the format, --ids and --prefix."""
    kind = click.option(
        form,
        "kind",
        type=click.Choice(["auto", *get_args(Format)]),
        default="auto",
        show_default=True,
        help="Format of the files; auto detects it from the first line.",
    )
    ids = click.option("--ids", type=click.Choice(get_args(Ids)), help="Identifier of entities in an AIDA or NIF file.")
    prefix = click.option(
        "--prefix", default="", metavar="TEXT", help="Prefix to add to the gold ids, as in the KB: wp:"
    )
    return lambda command: kind(ids(prefix(command)))


def draw_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --bootstrap and --seed."""
    bootstrap = click.option(
        "--bootstrap",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        help="Bootstrap samples for 95 % intervals; 0 for none.",
    )
    seed = click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the bootstrap."
    )
    return bootstrap(seed(command))


def table_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --format for comparisons."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "markdown", "json"]),
        default="table",
        show_default=True,
        help="Format of standard output.",
    )(command)
