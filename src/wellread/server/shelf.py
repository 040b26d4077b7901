"""The linkers that a server has, by knowledge base and model, and how they answer several clients at once.

Only threads that own the models link and change; others read entities. An answer is of one revision of its
knowledge base: where another process changed it meanwhile, the texts are read again. A file that was replaced by a new
build is opened beside the old one, which answers until the new one is ready.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from wellread.errors import UsageError, WellreadError
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linker import Linker
from wellread.linker.decoding import Scored
from wellread.linker.prior import PriorReader
from wellread.linker.several import name_kbs
from wellread.text import Document

if TYPE_CHECKING:
    from wellread.linker.elq import ElqReader

Loading = Callable[[str, str], None]
"""Is told the KB and the model that are about to be loaded."""
_TRIES = 3
"""Readings of the same texts, while somebody else writes, before the KB is held still for one."""
_SUBSETS = 16
"""Linkers to parts of a KB that are kept."""
_AGAIN = 10.0
"""Seconds before a replaced file that could not be opened is tried again."""


@dataclass(frozen=True, slots=True)
class Source:
    """What texts are read with: a linker of one KB, perhaps to a part of it. Texts with the same are read together."""

    kb: str
    model: str
    among: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    deep: bool = False
    """Below the model's own threshold there are many more spans to look at: nobody else is to wait for them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The texts of one client, and what links it wants."""

    texts: tuple[str, ...]
    threshold: float | None = None
    candidates: int = 10
    overlaps: Literal["auto", "drop", "keep"] | None = None
    nil: bool | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The documents of one client, and the revision of the KB that they are of."""

    documents: list[Document]
    revision: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a KB: an entity to be there, or one to be gone."""

    kb: str
    id: str
    entity: Entity | None


@dataclass(frozen=True, slots=True)
class Edited:
    """What a change did."""

    what: Literal["added", "updated", "removed"]
    revision: int


@dataclass(slots=True)
class Book:
    """One knowledge base with its linkers, the usual one first."""

    given: str | Path
    models: tuple[str, ...]
    kb: KnowledgeBase
    linkers: dict[str, Linker]
    file: tuple[int, int]


class Shelf:
    """Knowledge bases by name, each with linkers by the name of their model."""

    def __init__(self, books: Mapping[str, Book], note: Callable[[str], None] = lambda message: None) -> None:
        self.books = dict(books)
        self._note = note
        self._turn = threading.RLock()
        self._alone: WeakKeyDictionary[Linker, threading.Lock] = WeakKeyDictionary()
        self._parts: OrderedDict[Any, Linker] = OrderedDict()
        self._opening: dict[str, float] = {}
        self._opened: dict[str, Book] = {}

    @classmethod
    def load(
        cls,
        kbs: Sequence[str | Path],
        models: Mapping[str, Sequence[str]] | None = None,
        note: Callable[[str], None] = lambda message: None,
        loading: Loading = lambda name, model: None,
    ) -> Shelf:
        """A linker for each KB and model; a KB without models has its usual one, and names alone to compare it with."""
        named = name_kbs(kbs)
        return cls({name: _open(name, kb, (models or {}).get(name, ()), loading) for name, kb in named.items()}, note)

    def close(self) -> None:
        """Let go of the knowledge bases."""
        for book in self.books.values():
            for linker in book.linkers.values():
                linker.close()

    @property
    def shared(self) -> bool:
        """Whether several threads are worth having: whether the usual linkers can be read with by more than one."""
        return all(_is_elq(next(iter(book.linkers.values()))) for book in self.books.values())

    def book(self, kb: str | None) -> Book:
        """A knowledge base by its name; the first without one."""
        if kb is None:
            return next(iter(self.books.values()))
        if kb not in self.books:
            raise UsageError(f"there is no knowledge base {kb!r} here; choose {', '.join(self.books)}")
        return self.books[kb]

    def source(
        self,
        kb: str,
        model: str = "auto",
        *,
        among: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        threshold: float | None = None,
    ) -> Source:
        """What a client asks to be read with, checked."""
        linkers = self.book(kb).linkers
        name = next(iter(linkers)) if model == "auto" else model
        if name not in linkers:
            raise UsageError(f"{kb} is not linked to by {name!r} here; choose {', '.join(linkers)}, or auto")
        reader = linkers[name].reader
        some = among is not None or kinds is not None
        if isinstance(reader, PriorReader):
            if some:
                raise UsageError("names alone know no subset; leave among and kinds out, or choose another model")
            return Source(kb, name)
        deep = threshold is not None and threshold < reader.decoding.threshold
        return Source(
            kb,
            name,
            None if among is None else tuple(sorted(set(among))),
            None if kinds is None else tuple(sorted(set(kinds))),
            deep,
        )

    def link(self, source: Source, asked: Sequence[Asked]) -> list[Answer]:
        """The links of several clients' texts, read together."""
        with self._turn:
            self._look_for_new(source.kb)
        for _ in range(_TRIES):
            linker = self._linker(source)
            revision = linker.kb.revision
            with self._shared(linker):
                try:
                    documents = read(linker, asked)
                except Exception:
                    if linker.kb.revision == revision:
                        raise
                    continue  # another thread followed a change, and this one had begun before it
            if linker.kb.revision == revision:
                break
        else:
            with self._shared(linker), linker.kb.snapshot():
                revision = linker.kb.revision
                documents = read(linker, asked)
        return [Answer(some, revision) for some in documents]

    @contextmanager
    def _shared(self, linker: Linker) -> Iterator[None]:
        """ELQ's readers may be used by several threads at once, the others by one after the other."""
        if _is_elq(linker):
            yield
            return
        with self._turn:
            lock = self._alone.setdefault(linker, threading.Lock())
        with lock:
            yield

    def edit(self, edit: Edit) -> Edited:
        """Change a knowledge base; what is linked next knows of it."""
        kb = self.book(edit.kb).kb
        with kb.change() as change:
            there = edit.id in kb
            if edit.entity is None:
                change.remove(edit.id)
            elif there:
                change.update(edit.entity)
            else:
                change.add(edit.entity)
        return Edited("removed" if edit.entity is None else "updated" if there else "added", kb.revision)

    def _linker(self, source: Source) -> Linker:
        with self._turn:
            linker = self.books[source.kb].linkers[source.model]
            return linker if source.among is None and source.kinds is None else self._part(source, linker)

    def _part(self, source: Source, linker: Linker) -> Linker:
        key = (replace(source, deep=False), id(linker), linker.kb.revision if source.kinds else 0)
        if key not in self._parts:
            self._parts[key] = _restricted(linker, self.books[source.kb].models, source)
            while len(self._parts) > _SUBSETS:
                self._parts.popitem(last=False)
        self._parts.move_to_end(key)
        return self._parts[key]

    def _look_for_new(self, name: str) -> None:
        """Take a KB that has been opened anew; begin to open one whose file is another than before."""
        if name in self._opened:
            self.books[name] = self._opened.pop(name)
            self._parts.clear()
            self._note(f"{name} was replaced, and is now at revision {self.books[name].kb.revision}")
        book = self.books[name]
        try:
            same = _file(book.kb.path) == book.file
        except OSError:  # between two files, or gone: what is open still answers
            return
        if same or time.monotonic() < self._opening.get(name, 0.0):
            return
        self._opening[name] = float("inf")
        threading.Thread(target=self._open_new, args=(name, book), daemon=True).start()

    def _open_new(self, name: str, book: Book) -> None:
        try:
            self._opened[name] = _open(name, book.given, book.models)
            self._opening[name] = 0.0
        except WellreadError as error:
            self._note(f"{name} was replaced, but cannot be opened: {error}; the old one still answers")
            self._opening[name] = time.monotonic() + _AGAIN


def _is_elq(linker: Linker) -> bool:
    if isinstance(linker.reader, PriorReader):  # who links by name need not load torch
        return False
    from wellread.linker.elq import ElqReader

    return isinstance(linker.reader, ElqReader)


def read(linker: Linker, asked: Sequence[Asked]) -> list[list[Document]]:
    """The documents of each client: the same that the linker gives when it is asked alone."""
    reader, texts = linker.reader, [text for one in asked for text in one.texts]
    if isinstance(reader, PriorReader):
        made = iter(reader.link_many(texts))
        return [[_weighed(next(made), one) for _ in one.texts] for one in asked]
    from wellread.linker.elq import ElqReader

    some: Sequence[Scored] = (
        _scored(reader, texts, asked) if isinstance(reader, ElqReader) else reader.score_many(texts)
    )
    scored = iter(some)
    return [[_decided(next(scored), one) for _ in one.texts] for one in asked]


def _scored(reader: ElqReader, texts: Sequence[str], asked: Sequence[Asked]) -> Sequence[Scored]:
    """Scores of the spans that can pass the lowest threshold of all."""
    least = min(reader.decoding.threshold if one.threshold is None else one.threshold for one in asked)
    floor = replace(reader.decoding, threshold=least).log_threshold(reader.calibration)
    return reader.score_many(texts, floor=max(reader.search.floor, floor))


def _decided(scored: Scored, asked: Asked) -> Document:
    if asked.candidates != scored.decoding.candidates:
        scored = replace(scored, decoding=replace(scored.decoding, candidates=asked.candidates))
    return scored.document(threshold=asked.threshold, overlaps=asked.overlaps, nil=asked.nil)


def _weighed(document: Document, asked: Asked) -> Document:
    """Links by name with a score of at least the threshold, if there is one."""
    links = tuple(
        replace(link, candidates=link.candidates[: asked.candidates])
        for link in document.links
        if (link.entity is None and asked.nil is not False)
        or (link.entity is not None and link.score >= (asked.threshold or 0.0))
    )
    return replace(document, links=links)


def _open(name: str, kb: str | Path, models: Sequence[str], loading: Loading = lambda name, model: None) -> Book:
    loading(name, models[0] if models else "auto")
    first = Linker.load(kb, models[0] if models else "auto", name=name)
    linkers = {_called(first, models[0] if models else "auto"): first}
    for model in models[1:] or (() if models else ("prior",)):
        if (called := _called(None, model)) not in linkers:
            loading(name, model)
            linkers[called] = Linker.load(first.kb, model, name=name)
    return Book(kb, tuple(models), first.kb, linkers, _file(first.kb.path))


def _called(linker: Linker | None, model: str) -> str:
    """What clients call a linker: the name of its model, or of the folder it is in."""
    if model == "auto":
        assert linker is not None
        reader = type(linker.reader).__name__
        return {"PriorReader": "prior", "ElqReader": "elq"}.get(reader, "knowbert")
    return Path(model).name or model


def _file(path: Path) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_dev, about.st_ino


def _restricted(linker: Linker, models: Sequence[str], source: Source) -> Linker:
    """A linker to a part of the KB; ELQ's shares its model."""
    from wellread.linker.elq import ElqReader, of_kinds

    reader = linker.reader
    among: Sequence[str] | None = source.among
    if source.kinds is not None:
        among = of_kinds(linker.kb, source.kinds, among)
    if not isinstance(reader, ElqReader):
        folder = next((model for model in models if _called(linker, model) == source.model), source.model)
        return Linker.load(linker.kb, folder, among=among, name=source.kb)
    # The index of now: a subset is made of rows.
    reader.pool.follow(lambda: reader.tower)
    part = ElqReader(
        reader.model,
        linker.kb,
        reader.pool.index,
        search=reader.search,
        among=among,
        decoding=reader.decoding,
        trust=reader.trust,
        name=reader.name,
    )
    return Linker(linker.kb, part)
