"""Registry of served KBs and their linkers; it links jobs, applies edits, and reopens KBs that were replaced.

Linking runs in worker threads, or in processes forked with the registry; look-ups and edits run in other threads. A
result is of one revision of its KB: if another process changes the KB meanwhile, the texts are linked again. A KB file
that was replaced by a new build is opened beside the old one, which is used until the new one is ready.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from wellread.document import Document
from wellread.errors import KnowledgeBaseError, ReplacedError, UsageError
from wellread.kb.records import Entity
from wellread.kb.schema import is_busy
from wellread.kb.store import KnowledgeBase, file_of
from wellread.linking.linker import Linker
from wellread.linking.multi import name_kbs
from wellread.linking.prior import PriorBackend
from wellread.server.served_kb import (
    LinkJob,
    Loading,
    ServedKb,
    hide_kb_folder,
    is_thread_safe,
    link_jobs,
    name_models,
    open_served_kb,
    restrict_linker,
    shares_model,
)

if TYPE_CHECKING:
    pass

_TRIES = 3
"""Attempts to link texts while the KB changes, before a snapshot is used."""
_SUBSETS = 16
"""Maximum cached linkers to subsets of a KB."""
_AGAIN = 10.0
"""Seconds before another attempt to open a replaced file."""


@dataclass(frozen=True, slots=True)
class LinkerKey:
    """One linker: KB, model, and an optional subset of entities. Jobs with the same key are batched."""

    kb: str
    model: str
    among: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    deep: bool = False
    """True below the model's threshold: many more spans are scored, so such jobs have batches of their own."""


@dataclass(frozen=True, slots=True)
class LinkResult:
    """Linked documents of one job, built lazily, and the KB revision they belong to."""

    documents: Iterable[Document]
    revision: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a KB: an entity to add or replace, or None to remove it."""

    kb: str
    id: str
    entity: Entity | None
    new: bool = False
    """True to refuse an id that exists (If-None-Match: *)."""


class EntityExistsError(KnowledgeBaseError):
    """412: an entity with this id exists already."""


@dataclass(frozen=True, slots=True)
class EditResult:
    """Outcome of an edit."""

    what: Literal["added", "updated", "removed"]
    revision: int


class LinkerRegistry:
    """Served KBs by name, each with linkers by model name."""

    def __init__(self, served_kbs: Mapping[str, ServedKb], note: Callable[[str], None] = lambda message: None) -> None:
        self.served_kbs = dict(served_kbs)
        self._note = note
        self._lock = threading.RLock()
        self._linker_locks: WeakKeyDictionary[Linker, threading.Lock] = WeakKeyDictionary()
        self._subsets: OrderedDict[Any, Linker] = OrderedDict()
        self._opening: dict[str, float] = {}
        self._openers: dict[str, threading.Thread] = {}
        self._opened: dict[str, ServedKb] = {}
        self.broken: dict[str, str] = {}
        """KBs that cannot be read now, with the reason and the fix."""
        self._retired: list[KnowledgeBase] = []
        """KBs whose files were replaced. They stay open: closing one would release all POSIX locks that this process
        holds on the files beside it, those of the new KB included."""

    @classmethod
    def load(
        cls,
        kbs: Sequence[str | Path],
        models: Mapping[str, Sequence[str]] | None = None,
        note: Callable[[str], None] = lambda message: None,
        loading: Loading = lambda name, model: None,
    ) -> LinkerRegistry:
        """Load a linker for each KB and model; a KB without models gets its default linker and `prior`."""
        named, chosen = name_kbs(kbs), models or {}
        for name in named:
            name_models(chosen.get(name, ()))  # reports a wrong name before anything is loaded
        return cls({name: open_served_kb(name, kb, chosen.get(name, ()), loading) for name, kb in named.items()}, note)

    def close(self) -> None:
        """Close all linkers and KBs."""
        for served_kb in self.served_kbs.values():
            for linker in served_kb.linkers.values():
                linker.close()

    @property
    def shared(self) -> bool:
        """True if the default linker of every KB is thread-safe, so that several workers are useful."""
        return all(is_thread_safe(next(iter(served_kb.linkers.values()))) for served_kb in self.served_kbs.values())

    def served_kb(self, kb: str | None) -> ServedKb:
        """Return a served KB by its name; None is the first."""
        name = next(iter(self.served_kbs)) if kb is None else kb
        if name not in self.served_kbs:
            raise UsageError(f"unknown knowledge base {kb!r}; choose {', '.join(self.served_kbs)}")
        if self._lock.acquire(blocking=False):  # do not wait: the next call looks again
            try:
                self._switch_if_reopened(name)
            finally:
                self._lock.release()
        return self.served_kbs[name]

    def key(
        self,
        kb: str,
        model: str = "auto",
        *,
        among: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        threshold: float | None = None,
    ) -> LinkerKey:
        """Return the key of the requested linker; raise if there is none."""
        linkers = self.served_kb(kb).linkers
        name = next(iter(linkers)) if model == "auto" else model
        if name not in linkers:
            raise UsageError(f"{kb} has no linker {name!r}; choose {', '.join(linkers)}, or auto")
        backend = linkers[name].backend
        subset = among is not None or kinds is not None
        if isinstance(backend, PriorBackend):
            if subset:
                raise UsageError(
                    "prior cannot be restricted to a subset; omit among and kinds, or choose another model"
                )
            return LinkerKey(kb, name)
        deep = threshold is not None and threshold < backend.decoding.threshold
        return LinkerKey(
            kb,
            name,
            None if among is None else tuple(sorted(set(among))),
            None if kinds is None else tuple(sorted(set(kinds))),
            deep,
        )

    def link(self, key: LinkerKey, jobs: Sequence[LinkJob]) -> list[LinkResult]:
        """Link the texts of several jobs in one batch."""
        with self._lock:
            self._switch_if_reopened(key.kb)
        with hide_kb_folder(self.served_kbs[key.kb].kb):
            if self.served_kbs[key.kb].overwritten:  # reading the mapped file could raise SIGBUS
                self._reopen_overwritten(key.kb)
            try:
                return self._link(key, jobs)
            except ReplacedError:  # this thread has no connection to the old file, and cannot open one
                self._wait_until_reopened(key.kb)
                return self._link(key, jobs)
            except KnowledgeBaseError as error:
                if not isinstance(error.__cause__, sqlite3.DatabaseError) or is_busy(error.__cause__):
                    raise
                self._reopen_overwritten(key.kb)  # another file may have been copied over it
                return self._link(key, jobs)

    def _link(self, key: LinkerKey, jobs: Sequence[LinkJob]) -> list[LinkResult]:
        for _ in range(_TRIES):
            linker = self._linker(key)
            revision = linker.kb.revision
            with self._locked(linker):
                try:
                    documents = link_jobs(linker, jobs)
                except Exception:
                    if linker.kb.revision == revision:
                        raise
                    continue  # another thread applied a change meanwhile
            if linker.kb.revision == revision:
                break
        else:
            with self._locked(linker), linker.kb.snapshot():
                revision = linker.kb.revision
                documents = link_jobs(linker, jobs)
        return [LinkResult(one, revision) for one in documents]

    @contextmanager
    def _locked(self, linker: Linker) -> Iterator[None]:
        """Lock a linker that is not thread-safe."""
        if is_thread_safe(linker):
            yield
            return
        with self._lock:
            lock = self._linker_locks.setdefault(linker, threading.Lock())
        with lock:
            yield

    def edit(self, edit: Edit) -> EditResult:
        """Change a KB; the next texts are linked to the new revision."""
        kb = self.served_kb(edit.kb).kb
        if file_of(kb.path) != kb.file:  # the open file was replaced, so the change would be lost
            self._wait_until_reopened(edit.kb)
            kb = self.served_kbs[edit.kb].kb
            if file_of(kb.path) != kb.file:
                raise ReplacedError(f"{kb.path.name} was replaced and is being reopened; try again in a few seconds")
        if not kb.writable:
            raise KnowledgeBaseError(f"{edit.kb} is read-only; give the server write permission on its file and folder")
        with hide_kb_folder(kb), kb.change() as change:
            exists = edit.id in kb
            if exists and edit.new:
                raise EntityExistsError(
                    f"the entity {edit.id!r} exists already; give another id, or replace it without If-None-Match"
                )
            if edit.entity is None:
                change.remove(edit.id)
            elif exists:
                change.update(edit.entity)
            else:
                change.add(edit.entity)
        return EditResult("removed" if edit.entity is None else "updated" if exists else "added", kb.revision)

    def _linker(self, key: LinkerKey) -> Linker:
        with self._lock:
            linker = self.served_kbs[key.kb].linkers[key.model]
            return linker if key.among is None and key.kinds is None else self._subset(key, linker)

    def _subset(self, key: LinkerKey, linker: Linker) -> Linker:
        cache_key = (replace(key, deep=False), id(linker), linker.kb.revision if key.kinds else 0)
        if cache_key not in self._subsets:
            self._subsets[cache_key] = self._make_subset(key, linker)
            while len(self._subsets) > _SUBSETS:
                self._subsets.popitem(last=False)
        self._subsets.move_to_end(cache_key)
        return self._subsets[cache_key]

    def _make_subset(self, key: LinkerKey, linker: Linker) -> Linker:
        from wellread.kb.store import entities_of_kinds

        among: Sequence[str] | None = key.among
        if key.kinds is not None:
            among = entities_of_kinds(linker.kb, key.kinds, among)
        if not shares_model(linker):  # each is a whole model, so only one is kept
            for old in [old for old, part in self._subsets.items() if not shares_model(part)]:
                del self._subsets[old]
        models = name_models(self.served_kbs[key.kb].models)
        part = restrict_linker(linker, models.get(key.model, key.model), among)
        # Linkers that share a model share its lock.
        self._linker_locks[part] = self._linker_locks.setdefault(linker, threading.Lock())
        return part

    def _switch_if_reopened(self, name: str) -> None:
        """Switch to a reopened KB; start to reopen one whose file was replaced."""
        if name in self._opened:
            self._retired.append(self.served_kbs[name].kb)
            self.served_kbs[name] = self._opened.pop(name)
            self._subsets.clear()
        served_kb = self.served_kbs[name]
        found = file_of(served_kb.kb.path)
        if found is None or found == served_kb.kb.file:  # None: deleted; the open file is still used
            return
        if time.monotonic() < self._opening.get(name, 0.0):
            return
        if _has_log(served_kb):
            self._note(
                f"{name} was replaced, but the write-ahead log of the old file is still there and would be applied to "
                f"the new one; the old one is still served: stop the server, delete {served_kb.place}-wal and -shm, "
                "and restart it (next time: wellread kb build --replace)"
            )
            self._opening[name] = time.monotonic() + _AGAIN
            return
        self._opening[name] = float("inf")
        self._openers[name] = threading.Thread(target=self._reopen, args=(name, served_kb), daemon=True)
        self._openers[name].start()

    def _reopen(self, name: str, served_kb: ServedKb, how: Literal["replaced", "overwritten"] = "replaced") -> None:
        try:
            new = open_served_kb(name, served_kb.given, served_kb.models)
            self._note(f"{name} was {how}, and is now at revision {new.kb.revision}")
            self._opened[name] = new
            self._opening[name] = 0.0
            self.broken.pop(name, None)
        except Exception as error:  # of any type: another attempt follows
            ends = "the old one is still served" if how == "replaced" else "it is not served until it can be opened"
            self._note(f"{name} was {how}, but cannot be opened: {error}; {ends}")
            self._opening[name] = time.monotonic() + _AGAIN
            if how == "overwritten":
                self.broken[name] = f"{name} was overwritten in place and cannot be opened: {error}"

    def problems(self) -> list[str]:
        """Return why KBs cannot be read now, after another attempt to open overwritten ones."""
        for name, served_kb in list(self.served_kbs.items()):
            if served_kb.overwritten:
                with suppress(ReplacedError):
                    self._reopen_overwritten(name)
        return list(self.broken.values())

    def _reopen_overwritten(self, name: str) -> None:
        """Reopen a KB whose file, or a mapped file of its index, was overwritten in place."""
        with self._lock:
            served_kb = self.served_kbs[name]
            if name not in self._opened and time.monotonic() >= self._opening.get(name, 0.0):
                self._reopen(name, served_kb, "overwritten")
            self._switch_if_reopened(name)
            if self.served_kbs[name] is served_kb:
                raise ReplacedError(
                    f"{name} was overwritten while it was served, and cannot be reopened yet; try again later"
                )

    def _wait_until_reopened(self, name: str) -> None:
        """Wait until a KB that is being reopened is open, and switch to it."""
        with self._lock:
            self._switch_if_reopened(name)
            opener = self._openers.get(name)
        if opener is not None:
            opener.join()
        with self._lock:
            self._switch_if_reopened(name)


def _has_log(served_kb: ServedKb) -> bool:
    """Return True if a write-ahead log of the old file is beside the new one; not if a symlink was changed."""
    if os.path.realpath(served_kb.kb.path) != served_kb.place:
        return False
    try:
        return os.stat(f"{served_kb.place}-wal").st_size > 0
    except OSError:
        return False
