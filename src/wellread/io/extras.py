"""Optional packages by purpose: the extras of pyproject.toml, and the error where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from wellread.errors import MissingExtraError, install_extra

EXTRAS = {
    "plots": ("matplotlib",),
    "counting": ("duckdb", "pyarrow", "scipy"),
    "spacy": ("spacy",),
    "spark": ("pyspark", "pandas", "pyarrow"),
    "serve": ("fastapi", "fastapi_offline", "httptools", "prometheus_client", "uvicorn", "uvloop"),
    "train": (
        "torch",
        "accelerate",
        "jaxtyping",
        "matplotlib",
        "peft",
        "pyarrow",
        "scipy",
        "sklearn",
        "transformers",
    ),
}
"""Packages that an extra installs, by the name that they are imported by, the smallest extras first: of those that have
a missing package, the first is named."""


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
    try:
        missing = package not in sys.modules and find_spec(package) is None
    except ModuleNotFoundError:  # from an import hook that hides it
        missing = True
    if missing:
        raise _error(name, package, purpose)


def _error(name: str, package: str, purpose: str) -> MissingExtraError:
    return MissingExtraError(f"{purpose} needs the extra {name}: {package} is not installed; {install_extra(name)}")
