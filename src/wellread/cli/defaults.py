"""A verb whose first word may be left out: `wellread train RECIPE` is `wellread train recipe RECIPE`."""

from __future__ import annotations

from typing import Any

import click


class DefaultGroup(click.Group):
    """A group that takes what is none of its verbs for the arguments of its default one."""

    def __init__(self, *args: Any, default: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default verb first where no verb, and no cry for help, stands there."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)
