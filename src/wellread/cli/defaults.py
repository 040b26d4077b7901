"""Group with a default command: `wellread train RECIPE` is `wellread train recipe RECIPE`."""

from __future__ import annotations

from typing import Any

import click


class DefaultGroup(click.Group):
    """Group that passes arguments to its default command if the first is not a command name."""

    def __init__(self, *args: Any, default: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command unless a command or a help option is first."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)
