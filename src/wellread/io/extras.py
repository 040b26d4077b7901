"""Optional packages by purpose: the extras of `pip install 'wellread[…]'`, and the error where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from wellread.errors import MissingExtraError

EXTRAS = {
    "train": ("torch", "transformers", "accelerate", "einops", "jaxtyping", "peft", "sklearn"),
    "serve": ("fastapi", "httptools", "prometheus_client", "uvicorn", "uvloop"),
    "counting": ("duckdb", "pyarrow", "scipy"),
    "plots": ("matplotlib",),
    "spacy": ("spacy",),
    "spark": ("pyspark", "pandas"),
}
"""Packages that an extra installs, by the name that they are imported by; the first extra that has one is named."""


@contextmanager
def missing_extras(purpose: str) -> Iterator[None]:
    """Name the extra where an import in the `with` block fails because a package of any extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        name = next((name for name, packages in EXTRAS.items() if package in packages), None)
        if name is None:
            raise
        raise _error(name, package, purpose) from error


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Name the extra where an import in the `with` block fails because one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[name]:
            raise
        raise _error(name, package, purpose) from None


def require(name: str, purpose: str) -> None:
    """Raise a `MissingExtraError` if an extra's main package is not installed; nothing is imported."""
    package = EXTRAS[name][0]
    if package not in sys.modules and find_spec(package) is None:
        raise _error(name, package, purpose)


def _error(name: str, package: str, purpose: str) -> MissingExtraError:
    return MissingExtraError(
        f"{purpose} needs {package}, which is not installed; install it with: pip install 'wellread[{name}]'"
    )
