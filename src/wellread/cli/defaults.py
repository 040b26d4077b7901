"""Groups of commands: with a default command, `wellread train RECIPE` is `wellread train recipe RECIPE`."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from wellread.io.similar import suggestion


class Group(click.Group):
    """Group that lists its commands with their whole first sentence; click cuts it after 45 characters."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of the commands, and the first sentence of each one's help."""
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        rows = sorted((name, _first_sentence(command.help or "")) for name, command in shown)
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _first_sentence(help_text: str) -> str:
    """Return the first sentence of a help text; "FILE..." does not end one.

    "Add entities. All or none." -> "Add entities."
    """
    paragraph = " ".join(help_text.partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.) ", paragraph, maxsplit=1)[0]


class DefaultGroup(Group):
    """Group that passes arguments to its default command if the first is not a command name."""

    def __init__(self, *args: Any, default: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command unless a command or a help option is first."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            # A word that is not a file, before another argument, may be a command with a typo.
            if len(args) > 1 and not args[1].startswith("-") and args[0].isalpha() and not os.path.exists(args[0]):
                shown = [name for name, command in self.commands.items() if not command.hidden]
                if similar := suggestion(args[0], shown):
                    raise click.UsageError(f"No such command {args[0]!r}{similar}", ctx)
            args = [self.default, *args]
        return super().parse_args(ctx, args)
