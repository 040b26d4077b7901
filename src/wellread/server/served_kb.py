"""What stands on a server's shelf: a knowledge base with its linkers by their names, and linkers to parts of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wellread.errors import KnowledgeBaseError, StorageError, UsageError, WellreadError
from wellread.io.files import MappedFile
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.linking.prior import PriorBackend

Loading = Callable[[str, str], None]
"""Is told the KB and the model that are about to be loaded."""
_AUTO = "auto"


@dataclass(slots=True)
class ServedKb:
    """One knowledge base with its linkers, the usual one first."""

    given: str | Path
    models: tuple[str, ...]
    kb: KnowledgeBase
    linkers: dict[str, Linker]
    place: str
    """Where the file was when it was opened, without links: SQLite's log of changes lies beside it."""
    mapped: tuple[MappedFile, ...] = ()
    """Files of its index that are mapped; one that is overwritten in place must not be looked at any more."""

    @property
    def overwritten(self) -> bool:
        """Whether one of them was."""
        return any(state.overwritten() for state in self.mapped)


def open_served_kb(
    name: str, kb: str | Path, models: Sequence[str], loading: Loading = lambda name, model: None
) -> ServedKb:
    """A knowledge base with a linker for each model; without models its usual one, and names alone beside it."""
    given = tuple(models) or (_AUTO,)
    linkers: dict[str, Linker] = {}
    first: Linker | None = None
    for one, (called, model) in zip(given, name_models(given).items(), strict=True):
        loading(name, one)
        linker = Linker.load(kb if first is None else first.kb, model, name=name)
        first = first or linker
        called = _kind(linker) if called == _AUTO else called
        if called in linkers:
            raise _twice(called, model)
        linkers[called] = linker
    assert first is not None
    if not models and "prior" not in linkers:
        loading(name, "prior")
        linkers["prior"] = Linker.load(first.kb, "prior", name=name)
    folder = Path(f"{first.kb.path}.vectors")
    files = [*folder.glob("*.safetensors"), *folder.glob("*.faiss")]
    mapped = tuple(state for state in map(MappedFile.at, files) if state is not None)
    return ServedKb(kb, tuple(models), first.kb, linkers, os.path.realpath(first.kb.path), mapped)


def name_models(given: Sequence[str]) -> dict[str, str]:
    """What clients call linkers, and their models: ["prior", "a=x/model"] -> {"prior": "prior", "a": "x/model"}.

    One without a name is called after its folder, or the folder above where that is only "model", as those of trainings
    are. The usual one, "auto", is called after what it is when it is loaded.
    """
    named: dict[str, str] = {}
    for one in given:
        name, equals, model = one.partition("=")
        if not equals or "/" in name or Path(one).exists():  # a path may have "=" in it
            name, model = _called(one), one
        elif name == _AUTO:
            raise UsageError(f"--model {one}: auto is what clients call the usual linker; give another name")
        if not name or not model:
            raise UsageError(f"--model {one} is not understood; give NAME=MODEL, or the model alone")
        if name in named:
            raise _twice(name, model)
        named[name] = model
    return named


def _called(model: str) -> str:
    path = Path(model)
    if path.name == "model":
        return path.absolute().parent.name or path.name
    return path.name or model


def _twice(name: str, model: str) -> UsageError:
    return UsageError(f"two linkers are called {name}; give one of them another name: --model NAME={model}")


def _kind(linker: Linker) -> str:
    kinds = {"PriorBackend": "prior", "ElqBackend": "elq", "LukeBackend": "luke"}
    return kinds.get(type(linker.backend).__name__, "knowbert")


def is_elq(linker: Linker) -> bool:
    """Whether several threads may read with it at once."""
    if isinstance(linker.backend, PriorBackend):  # who links by name need not load torch
        return False
    from wellread.models.elq.linker import ElqBackend

    return isinstance(linker.backend, ElqBackend)


def is_light(linker: Linker) -> bool:
    """Whether linkers to parts of its KB share its model."""
    from wellread.models.knowbert.linker import KnowBertBackend

    return not isinstance(linker.backend, KnowBertBackend)


def part_of(linker: Linker, model: str, among: Sequence[str] | None) -> Linker:
    """A linker to some entities only; it shares the model, but for a knowledge layer's, which is loaded anew."""
    from wellread.models.elq.linker import ElqBackend
    from wellread.models.luke.linker import LukeBackend

    backend = linker.backend
    if isinstance(backend, ElqBackend | LukeBackend):
        return Linker(linker.kb, backend.part(among))
    return Linker.load(linker.kb, model, among=among, name=backend.name)


@contextmanager
def placeless(kb: KnowledgeBase) -> Iterator[None]:
    """Errors of a KB without the folder that it is in, which is no business of clients."""
    try:
        yield
    except (KnowledgeBaseError, StorageError) as error:
        raise without_folder(error, kb) from error.__cause__


def without_folder(error: WellreadError, kb: KnowledgeBase) -> WellreadError:
    """The same error, in which a knowledge base is called by its file's name."""
    told = str(error).replace(str(kb.path), kb.path.name)
    return error if told == str(error) else type(error)(told)
