"""The linkers that a server has, by knowledge base and model, and how they answer several clients at once.

Only those who read link: threads, or processes that have the shelf from a fork; others look entities up and change
them. An answer is of one revision of its knowledge base: where another process changed it meanwhile, the texts are
read again. A file that was replaced by a new build is opened beside the old one, which answers until the
new one is ready.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from wellread.document import Document
from wellread.errors import KnowledgeBaseError, ReplacedError, UsageError
from wellread.kb.records import Entity
from wellread.kb.schema import is_busy
from wellread.kb.store import KnowledgeBase, file_of
from wellread.linking.decoding import Scored
from wellread.linking.given_spans import GivenNil, Spans, link_given
from wellread.linking.linker import Linker
from wellread.linking.multi import name_kbs
from wellread.linking.prior import PriorBackend
from wellread.mentions.matcher import Overlaps
from wellread.server.served_kb import (
    Loading,
    ServedKb,
    is_elq,
    is_light,
    name_models,
    open_served_kb,
    part_of,
    placeless,
)

if TYPE_CHECKING:
    from wellread.models.elq.linker import ElqBackend

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
class LinkJob:
    """The texts of one client, and what links it wants."""

    texts: tuple[str, ...]
    threshold: float | None = None
    candidates: int = 10
    overlaps: Literal["auto", "drop", "keep"] | None = None
    nil: bool = False
    spans: tuple[Spans, ...] | None = None
    """Given spans of each text, which are linked instead of those that the model finds."""
    never_nil: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The documents of one client, to be made one after the other, and the revision of the KB that they are of."""

    documents: Iterable[Document]
    revision: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a KB: an entity to be there, or one to be gone."""

    kb: str
    id: str
    entity: Entity | None
    new: bool = False
    """Whether one that is there already is to stay as it is."""


class TakenError(KnowledgeBaseError):
    """A new entity whose id another has."""


@dataclass(frozen=True, slots=True)
class Edited:
    """What a change did."""

    what: Literal["added", "updated", "removed"]
    revision: int


class LinkerRegistry:
    """Knowledge bases by name, each with linkers by the name of their model."""

    def __init__(self, served_kbs: Mapping[str, ServedKb], note: Callable[[str], None] = lambda message: None) -> None:
        self.served_kbs = dict(served_kbs)
        self._note = note
        self._turn = threading.RLock()
        self._alone: WeakKeyDictionary[Linker, threading.Lock] = WeakKeyDictionary()
        self._parts: OrderedDict[Any, Linker] = OrderedDict()
        self._opening: dict[str, float] = {}
        self._openers: dict[str, threading.Thread] = {}
        self._opened: dict[str, ServedKb] = {}
        self.broken: dict[str, str] = {}
        """Knowledge bases that cannot be read at present, with what to do."""
        self._retired: list[KnowledgeBase] = []
        """Whose files were replaced. They stay open: closing one would let go of all locks that this process has on
        what lies beside the name, those of the new file too."""

    @classmethod
    def load(
        cls,
        kbs: Sequence[str | Path],
        models: Mapping[str, Sequence[str]] | None = None,
        note: Callable[[str], None] = lambda message: None,
        loading: Loading = lambda name, model: None,
    ) -> LinkerRegistry:
        """A linker for each KB and model; a KB without models has its usual one, and names alone to compare it with."""
        named, chosen = name_kbs(kbs), models or {}
        for name in named:
            name_models(chosen.get(name, ()))  # what is wrong with a name is told before anything is loaded
        return cls({name: open_served_kb(name, kb, chosen.get(name, ()), loading) for name, kb in named.items()}, note)

    def close(self) -> None:
        """Let go of the knowledge bases."""
        for served_kb in self.served_kbs.values():
            for linker in served_kb.linkers.values():
                linker.close()

    @property
    def shared(self) -> bool:
        """Whether several threads are worth having: whether the usual linkers can be read with by more than one."""
        return all(is_elq(next(iter(served_kb.linkers.values()))) for served_kb in self.served_kbs.values())

    def served_kb(self, kb: str | None) -> ServedKb:
        """A knowledge base by its name; the first without one."""
        name = next(iter(self.served_kbs)) if kb is None else kb
        if name not in self.served_kbs:
            raise UsageError(f"there is no knowledge base {kb!r} here; choose {', '.join(self.served_kbs)}")
        if self._turn.acquire(blocking=False):  # who asks for it now is not to wait; the next one looks too
            try:
                self._look_for_new(name)
            finally:
                self._turn.release()
        return self.served_kbs[name]

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
        linkers = self.served_kb(kb).linkers
        name = next(iter(linkers)) if model == "auto" else model
        if name not in linkers:
            raise UsageError(f"{kb} is not linked to by {name!r} here; choose {', '.join(linkers)}, or auto")
        backend = linkers[name].backend
        some = among is not None or kinds is not None
        if isinstance(backend, PriorBackend):
            if some:
                raise UsageError("names alone know no subset; leave among and kinds out, or choose another model")
            return Source(kb, name)
        deep = threshold is not None and threshold < backend.decoding.threshold
        return Source(
            kb,
            name,
            None if among is None else tuple(sorted(set(among))),
            None if kinds is None else tuple(sorted(set(kinds))),
            deep,
        )

    def link(self, source: Source, asked: Sequence[LinkJob]) -> list[Answer]:
        """The links of several clients' texts, read together."""
        with self._turn:
            self._look_for_new(source.kb)
        with placeless(self.served_kbs[source.kb].kb):
            if self.served_kbs[source.kb].overwritten:  # to look at what is mapped could end the process
                self._open_again(source.kb)
            try:
                return self._link(source, asked)
            except ReplacedError:  # this thread has never asked the old file, and cannot any more
                self._wait_for_new(source.kb)
                return self._link(source, asked)
            except KnowledgeBaseError as error:
                if not isinstance(error.__cause__, sqlite3.DatabaseError) or is_busy(error.__cause__):
                    raise
                self._open_again(source.kb)  # another file was copied over it, perhaps
                return self._link(source, asked)

    def _link(self, source: Source, asked: Sequence[LinkJob]) -> list[Answer]:
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
        if is_elq(linker):
            yield
            return
        with self._turn:
            lock = self._alone.setdefault(linker, threading.Lock())
        with lock:
            yield

    def edit(self, edit: Edit) -> Edited:
        """Change a knowledge base; what is linked next knows of it."""
        kb = self.served_kb(edit.kb).kb
        if file_of(kb.path) != kb.file:  # what is open has no name any more: its changes would be lost
            self._wait_for_new(edit.kb)
            kb = self.served_kbs[edit.kb].kb
            if file_of(kb.path) != kb.file:
                raise ReplacedError(f"{kb.path.name} was replaced and is not opened anew yet; try again in a while")
        if not kb.writable:
            raise KnowledgeBaseError(
                f"{edit.kb} is only read here; let the server write its file and folder to change it"
            )
        with placeless(kb), kb.change() as change:
            there = edit.id in kb
            if there and edit.new:
                raise TakenError(f"there is an entity {edit.id!r} already; give another id, or change that one")
            if edit.entity is None:
                change.remove(edit.id)
            elif there:
                change.update(edit.entity)
            else:
                change.add(edit.entity)
        return Edited("removed" if edit.entity is None else "updated" if there else "added", kb.revision)

    def _linker(self, source: Source) -> Linker:
        with self._turn:
            linker = self.served_kbs[source.kb].linkers[source.model]
            return linker if source.among is None and source.kinds is None else self._part(source, linker)

    def _part(self, source: Source, linker: Linker) -> Linker:
        key = (replace(source, deep=False), id(linker), linker.kb.revision if source.kinds else 0)
        if key not in self._parts:
            self._parts[key] = self._make_part(source, linker)
            while len(self._parts) > _SUBSETS:
                self._parts.popitem(last=False)
        self._parts.move_to_end(key)
        return self._parts[key]

    def _make_part(self, source: Source, linker: Linker) -> Linker:
        from wellread.kb.store import entities_of_kinds

        among: Sequence[str] | None = source.among
        if source.kinds is not None:
            among = entities_of_kinds(linker.kb, source.kinds, among)
        if not is_light(linker):  # each is a whole model: one of them is kept
            for key in [key for key, part in self._parts.items() if not is_light(part)]:
                del self._parts[key]
        models = name_models(self.served_kbs[source.kb].models)
        part = part_of(linker, models.get(source.model, source.model), among)
        # Who shares a model waits for who reads with it.
        self._alone[part] = self._alone.setdefault(linker, threading.Lock())
        return part

    def _look_for_new(self, name: str) -> None:
        """Take a KB that has been opened anew; begin to open one whose file is another than before."""
        if name in self._opened:
            self._retired.append(self.served_kbs[name].kb)
            self.served_kbs[name] = self._opened.pop(name)
            self._parts.clear()
        served_kb = self.served_kbs[name]
        found = file_of(served_kb.kb.path)
        if found is None or found == served_kb.kb.file:  # none: between two files, or gone; what is open still answers
            return
        if time.monotonic() < self._opening.get(name, 0.0):
            return
        if _has_log(served_kb):
            self._note(
                f"{name} was replaced, but changes of the old file lie beside it and would be read as the new one's; "
                f"the old one still answers: stop the server, delete {served_kb.place}-wal and -shm, and start it "
                "again (next time: wellread kb build --replace)"
            )
            self._opening[name] = time.monotonic() + _AGAIN
            return
        self._opening[name] = float("inf")
        self._openers[name] = threading.Thread(target=self._open_new, args=(name, served_kb), daemon=True)
        self._openers[name].start()

    def _open_new(self, name: str, served_kb: ServedKb, how: Literal["replaced", "overwritten"] = "replaced") -> None:
        try:
            new = open_served_kb(name, served_kb.given, served_kb.models)
            self._note(f"{name} was {how}, and is now at revision {new.kb.revision}")
            self._opened[name] = new
            self._opening[name] = 0.0
            self.broken.pop(name, None)
        except Exception as error:  # of whatever kind: it is to be tried again
            ends = "the old one still answers" if how == "replaced" else "it is not read until it can be"
            self._note(f"{name} was {how}, but cannot be opened: {error}; {ends}")
            self._opening[name] = time.monotonic() + _AGAIN
            if how == "overwritten":
                self.broken[name] = f"{name} was overwritten in place and cannot be opened: {error}"

    def problems(self) -> list[str]:
        """Return why knowledge bases cannot be read at present, after another try to open what was overwritten."""
        for name, served_kb in list(self.served_kbs.items()):
            if served_kb.overwritten:
                with suppress(ReplacedError):
                    self._open_again(name)
        return list(self.broken.values())

    def _open_again(self, name: str) -> None:
        """Open a KB anew whose file, or what is mapped beside it, was overwritten in place."""
        with self._turn:
            served_kb = self.served_kbs[name]
            if name not in self._opened and time.monotonic() >= self._opening.get(name, 0.0):
                self._open_new(name, served_kb, "overwritten")
            self._look_for_new(name)
            if self.served_kbs[name] is served_kb:
                raise ReplacedError(
                    f"{name} was overwritten while it was served, and cannot be opened again; try again in a while"
                )

    def _wait_for_new(self, name: str) -> None:
        """Take a KB that is being opened anew, when it is."""
        with self._turn:
            self._look_for_new(name)
            opener = self._openers.get(name)
        if opener is not None:
            opener.join()
        with self._turn:
            self._look_for_new(name)


def _has_log(served_kb: ServedKb) -> bool:
    """Whether changes of the old file lie beside the new one; where a link was led elsewhere they do not."""
    if os.path.realpath(served_kb.kb.path) != served_kb.place:
        return False
    try:
        return os.stat(f"{served_kb.place}-wal").st_size > 0
    except OSError:
        return False


def read(linker: Linker, asked: Sequence[LinkJob]) -> list[Iterable[Document]]:
    """The documents of each client: the same that the linker gives when it is asked alone.

    ELQ's are made when they are looked at: it knows all that they say, where others look names up in the KB.
    """
    if any(one.spans is not None for one in asked):
        others = [one for one in asked if one.spans is None]
        found = iter(read(linker, others) if others else ())
        return [next(found) if one.spans is None else _given(linker, one, one.spans) for one in asked]
    backend, texts = linker.backend, [text for one in asked for text in one.texts]
    if isinstance(backend, PriorBackend):
        return _named(backend, asked)
    from wellread.models.elq.linker import ElqBackend

    known = isinstance(backend, ElqBackend)
    scored = iter(_scored(backend, texts, asked) if isinstance(backend, ElqBackend) else backend.score_many(texts))
    made = (map(partial(_decided, one), list(islice(scored, len(one.texts)))) for one in asked)
    return list(made) if known else [list(some) for some in made]


def _given(linker: Linker, asked: LinkJob, spans: Sequence[Spans]) -> list[Document]:
    """Link the given spans of one client."""
    nil: GivenNil = "never" if asked.never_nil else "model"
    how: dict[str, Any] = {"threshold": asked.threshold, "candidates": asked.candidates}
    return list(link_given(linker.backend, asked.texts, spans, nil=nil, **how))


def _named(backend: PriorBackend, asked: Sequence[LinkJob]) -> list[Iterable[Document]]:
    """Links by name; texts of those who want the same of overlaps are matched together."""
    rules: dict[str | None, Overlaps] = {"keep": "all", "drop": "longest"}
    made = {}
    for overlaps in {one.overlaps for one in asked}:
        texts = [text for one in asked if one.overlaps == overlaps for text in one.texts]
        made[overlaps] = backend.link_many(texts, overlaps=rules.get(overlaps), nil=True)
    return [[_weighed(next(made[one.overlaps]), one) for _ in one.texts] for one in asked]


def _scored(backend: ElqBackend, texts: Sequence[str], asked: Sequence[LinkJob]) -> Sequence[Scored]:
    """Scores of the spans that can pass the lowest threshold of all."""
    if backend.scorer is not None:  # its threshold is none of p(mention) · p(entity | mention)
        return backend.score_many(texts)
    least = min(backend.decoding.threshold if one.threshold is None else one.threshold for one in asked)
    floor = replace(backend.decoding, threshold=least).log_threshold(backend.calibration)
    return backend.score_many(texts, floor=max(backend.search.floor, floor))


def _decided(asked: LinkJob, scored: Scored) -> Document:
    if asked.candidates != scored.decoding.candidates:
        scored = replace(scored, decoding=replace(scored.decoding, candidates=asked.candidates))
    return scored.document(threshold=asked.threshold, overlaps=asked.overlaps, nil=asked.nil)


def _weighed(document: Document, asked: LinkJob) -> Document:
    """Links by name with a score of at least the threshold, if there is one."""
    links = tuple(
        replace(link, candidates=link.candidates[: asked.candidates])
        for link in document.links
        if (link.entity is None and asked.nil) or (link.entity is not None and link.score >= (asked.threshold or 0.0))
    )
    return replace(document, links=links)
