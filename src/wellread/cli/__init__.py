"""The command line: one verb a file, each a thin shell around a plain function.

Verbs are loaded when they are called, results are written to stdout (a table for people, `--json` for machines), and an
error that a user can mend is one line on stderr with an exit code of its own (`errors.py`).
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

VERBS = {
    "fetch": "Bring the default assets into the cache.",
    "kb": "Build, change, search and check knowledge bases.",
    "index": "Encode entities and build the index of the nearest.",
    "correlate": "Count which words meet, and make a table of correlations.",
    "link": "Link a text to knowledge bases.",
    "annotate": "Link the texts of files and folders, with all cores or on Spark.",
    "serve": "Serve linkers, knowledge bases and a page over HTTP.",
    "embed": "Write contextual vectors of texts, words, pieces and mentions.",
    "evaluate": "Score a trained task on its data, or a linker on linked text.",
    "explain": "See what knowledge changes in the attention of a model.",
    "pretrain": "Teach an encoder to use knowledge, before any task, from a recipe.",
    "train": "Train an encoder for a task, or a linker, from a recipe.",
    "adapt": "Adapt a linker to a knowledge base and texts without labels.",
    "compare": "Compare arms of a recipe on the same seeds, or linkers, and tell what each brings.",
    "convert": "Take over checkpoints that the authors of ELQ, KnowBERT and LUKE released.",
}


class LazyGroup(click.Group):
    """A group whose verbs live in `wellread.cli.<verb>` as `command` and are imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the work."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's file."""
        if cmd_name not in VERBS:
            return None
        command = import_module(f"wellread.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="wellread")
def wellread() -> None:
    """Link text to a knowledge base, and lend that knowledge to any pretrained encoder.

    Example: wellread link --kb wordnet "The bank of the river."
    """


def main() -> None:
    """Run the command line; every expected failure is one line and an exit code."""
    # A stream that the shell closed (>&-) is None.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know every letter
    try:
        wellread(prog_name="wellread", standalone_mode=False)
    except WellreadError as error:
        _leave(f"error: {error}", error.exit_code)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        verb = error.ctx.command_path if error.ctx is not None else "wellread"
        _leave(f"error: {message}; see: {verb} --help", error.exit_code)
    except click.ClickException as error:
        _leave(f"error: {error.format_message()}", error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _leave("interrupted; run the same command again, it goes on where it stopped where it can", 130)
    except OSError as error:
        _drop_output()
        _leave(f"error: {error}; check the disk and where the output goes", StorageError.exit_code)


def _drop_output() -> None:
    """Forget what stdout does not take, or Python would try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(message: str, exit_code: int) -> None:
    click.echo(visible(message), err=True)
    sys.exit(exit_code)
