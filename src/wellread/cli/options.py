"""What options of several verbs share."""

from __future__ import annotations

import math

import click


def refuse_nan(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A callback: "nan" is a float to Python, and no comparison with it is ever true."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number to compare with; give one such as 0.5")
    return value
