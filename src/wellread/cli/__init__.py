"""Command line: one file per command, each a thin wrapper around a function of the library.

Commands are imported when called. Results go to stdout (a table, or JSON with `--json`). An error that a user can fix
is one line on stderr, with the exit code of its class (`errors.py`).
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

import click
from click.exceptions import NoArgsIsHelpError

from wellread import __version__
from wellread.errors import StorageError, WellreadError
from wellread.io.console import visible
from wellread.io.extras import missing_extras
from wellread.io.similar import suggestion
from wellread.mentions.spacy_import import leave_torch_out

VERBS = {
    "fetch": "Fetch the default assets into the cache.",
    "kb": "Build, change, search and check knowledge bases.",
    "index": "Encode entities and build the nearest-entity index.",
    "correlate": "Count word co-occurrences and build a correlation table.",
    "link": "Link a text to knowledge bases.",
    "map": "Map a column of strings to a knowledge base.",
    "annotate": "Link the texts of files and folders, with all cores or on Spark.",
    "serve": "Serve linkers, knowledge bases and a page over HTTP.",
    "embed": "Write contextual vectors of texts, words, tokens and mentions.",
    "evaluate": "Score a trained task on its data, or a linker on linked text.",
    "explain": "Show how knowledge changes the attention of a model.",
    "pretrain": "Pretrain an encoder with knowledge, from a recipe.",
    "train": "Train an encoder for a task, or a linker, from a recipe.",
    "adapt": "Adapt a linker to a knowledge base and texts without labels.",
    "compare": "Compare arms of a recipe on the same seeds, or linkers on the same texts.",
    "convert": "Convert released checkpoints of ELQ, KnowBERT and LUKE.",
}


class LazyGroup(click.Group):
    """Group whose commands are `wellread.cli.<name>.command`, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of a typical workflow."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in VERBS:
            return None
        command = import_module(f"wellread.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments; suggest a similar one for a typo."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}{suggestion(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="wellread")
def wellread() -> None:
    """Link text to a knowledge base, and infuse that knowledge into pretrained encoders.

    Example: wellread link --kb wordnet "The bank of the river."
    """


def main() -> None:
    """Run the command line; report every expected error in one line, with an exit code."""
    # The stream is None if the shell closed it (>&-).
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal's encoding may not have every character
    leave_torch_out()
    try:
        with missing_extras("this command"):
            wellread(prog_name="wellread", standalone_mode=False)
    except WellreadError as error:
        _leave(f"error: {error}", error.exit_code)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        verb = error.ctx.command_path if error.ctx is not None else "wellread"
        _leave(f"error: {message}{' See' if message.endswith('?') else '; see'}: {verb} --help", error.exit_code)
    except click.ClickException as error:
        _leave(f"error: {error.format_message()}", error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _leave("interrupted; run the same command again to resume", 130)
    except OSError as error:
        _drop_output()
        _leave(f"error: {error}; check the disk and the output path", StorageError.exit_code)


def _drop_output() -> None:
    """Redirect stdout to /dev/null; otherwise Python flushes again at exit, and fails."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(message: str, exit_code: int) -> None:
    click.echo(visible(message), err=True)
    sys.exit(exit_code)
