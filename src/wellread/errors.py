"""Exceptions of wellread: one tree, each with a message that names the fix.

The command line prints the message and exits with `exit_code`; a traceback means a bug in wellread.
"""

from __future__ import annotations


class WellreadError(Exception):
    """Base of all errors that a user can fix; the message says what was given, what was expected and what to do."""

    exit_code = 1


class UsageError(WellreadError):
    """An option or argument that does not fit the others."""

    exit_code = 2


class InputError(WellreadError):
    """A file or text that cannot be read: missing, broken, wrong encoding, wrong format."""

    exit_code = 3


class AssetError(WellreadError):
    """A default asset that is not in the cache, was not delivered, or differs from the pinned one."""

    exit_code = 4


class KnowledgeBaseError(WellreadError):
    """A knowledge base that cannot be opened, has another format, is busy, or would be broken by a change."""

    exit_code = 5


class UnknownEntityError(KnowledgeBaseError, KeyError):
    """An entity id that is not in the knowledge base."""

    def __str__(self) -> str:
        return str(self.args[0])


class ReplacedError(KnowledgeBaseError):
    """A knowledge base whose file was replaced by another while it was open."""


class StorageError(WellreadError):
    """The disk is full, or the folder cannot be written."""

    exit_code = 6


class MissingExtraError(WellreadError, ImportError):
    """A feature whose optional package is not installed."""

    exit_code = 7


def install_extra(extra: str) -> str:
    """Return how to install an optional dependency: wellread is installed from a source checkout."""
    return f"install it in the folder of wellread's source with: pip install -c constraints.txt -e '.[{extra}]'"


class TrainingError(WellreadError):
    """A training that cannot continue: a loss that is not a number, a checkpoint that does not fit the model."""

    exit_code = 8
