"""What options of several verbs share."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable

import click


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
        help="elq: floats, or 8 bits (faster, nearly the same); auto: 8 bits where they can be had.",
    )
    return sources(precision(command))
