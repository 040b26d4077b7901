"""Import of spaCy; in a command without torch, which spaCy imports wherever it is installed.

That import takes longer than linking a text. The packaged pipeline does not use torch, so a process that runs one
command of wellread and nothing else leaves it out. In a program of the user nothing is left out.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

from wellread.errors import MissingExtraError, install_extra

NO_SPACY = f"spaCy is not installed; {install_extra('spacy')}"

_torch_unused = False


def leave_torch_out() -> None:
    """Import spaCy without torch from now on, where only the packaged pipeline is wanted."""
    global _torch_unused
    _torch_unused = True


def import_spacy(*, needs_torch: bool = True) -> ModuleType:
    """Return the module; `needs_torch` is for pipelines that may use torch."""
    try:
        if _torch_unused and not needs_torch:
            with _without_torch():
                import spacy
        else:
            import spacy
    except ImportError:
        raise MissingExtraError(NO_SPACY) from None
    module: ModuleType = spacy
    return module


@contextmanager
def _without_torch() -> Iterator[None]:
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NoTorch:
    """Finder that tells the thread that made it that torch is not installed."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is left out", name=name)
        return None
