"""The `Engine`: linkers, encoders, batching, worker processes and metrics of one server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from wellread.errors import InputError, UnknownEntityError, UsageError
from wellread.io.cores import cores, granted_threads, limit_threads
from wellread.kb.records import Entity
from wellread.kb.store import How, KnowledgeBase, Neighbour
from wellread.linking.given_spans import Spans
from wellread.server.batching import Batcher, BusyError, split_request, submit_in_parts
from wellread.server.encoders import EmbedOptions, ExplainOptions, ServedEncoder
from wellread.server.metrics import Metrics
from wellread.server.registry import Edit, EditResult, LinkerKey, LinkerRegistry
from wellread.server.served_kb import LinkJob
from wellread.server.settings import Settings
from wellread.server.workers import EncodedDocuments, LinkWorkers, can_fork, encode_results

if TYPE_CHECKING:
    from wellread.inference.embed import Rows
    from wellread.linking.linker import Linker
    from wellread.mapping.results import MappedString
    from wellread.plots.attention import Seen

T = TypeVar("T")

_GRACE = 2.0
"""Seconds beyond the request timeout after which a silent worker process counts as hanging."""


MAX_PENDING = 64
"""Calls that may wait or run in one executor."""


_MAPPED_AT_ONCE = 128
"""Strings that are mapped before a look at whether the request was cancelled."""


class BoundedExecutor:
    """Thread pool for one type of call, with a bound on pending calls; types do not wait for each other."""

    def __init__(self, name: str, threads: int, most: int = MAX_PENDING) -> None:
        self._pool = ThreadPoolExecutor(threads, f"wellread-{name}")
        self._slots = threading.Semaphore(most)

    async def run(self, call: Callable[[], T], *, stop: threading.Event | None = None) -> T:
        """Return the result of `call`; raise `BusyError` if too many are pending.

        A call that is cancelled before its turn is not run; `stop` is set on cancellation, so that it can end early.
        """
        if not self._slots.acquire(blocking=False):
            raise BusyError(1)
        future = self._pool.submit(call)
        future.add_done_callback(
            lambda done: self._slots.release()
        )  # when it ends, which may be after the request was cancelled
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if stop is not None:
                stop.set()
            raise

    def close(self) -> None:
        """Finish pending calls and stop the threads."""
        self._pool.shutdown()


def _share_cores(workers: int) -> None:
    """Give each of several threads its share of the cores."""
    if workers > 1:
        limit_threads(max(1, granted_threads() // workers))


class Engine:
    """Links, embeds, explains and edits for the routes; call its methods on the event loop."""

    def __init__(self, registry: LinkerRegistry, settings: Settings) -> None:
        self.registry, self.settings = registry, settings
        self.encoders = {name: ServedEncoder(name, encoder) for name, encoder in settings.encoders.items()}
        self.metrics = Metrics()
        limits = settings.limits
        self.workers = limits.readers or (cores() if registry.shared else 1)
        self.queue = limits.queue or 16 * self.workers
        forks = self.workers > 1 and can_fork()
        self._processes = (
            LinkWorkers(registry, self.workers, patience=limits.seconds + _GRACE, replaced=self.metrics.count_replaced)
            if forks
            else None
        )
        _share_cores(self.workers)
        self.batcher = Batcher(
            self._run_batch,
            queue=self.queue,
            together=limits.together,
            together_characters=limits.together_characters,
            threads=self.workers,
            longest_wait=limits.seconds / 2,
            watch=self.metrics.observe_batch,
        )
        self.stopping = asyncio.Event()
        """Set when the server stops, so that streams end."""
        self.metrics.track_queue(lambda: self.batcher.waiting)
        self.metrics.track_workers(lambda: self.ready, self.workers)
        self._about, self._changing = BoundedExecutor("about", 1), BoundedExecutor("changing", 1)
        self._looking, self._loading = BoundedExecutor("looking", 2), BoundedExecutor("loading", 2)
        self._searching = BoundedExecutor(
            "searching", 2
        )  # separate: a search may take a hundred times as long as a look-up
        self._mapping, self._parsing = BoundedExecutor("mapping", 1), BoundedExecutor("parsing", 1)

    @property
    def alive(self) -> bool:
        """True if all threads and processes run, or can be replaced."""
        return self.batcher.alive and (self._processes is None or self._processes.alive)

    @property
    def problems(self) -> list[str]:
        """Reasons why the server cannot answer now, each with a fix; empty if it is ready."""
        problems = self.registry.problems()
        if not self.alive:
            problems.append("the worker processes have ended and cannot be replaced; restart the server")
        elif self._processes is not None and not self._processes.ready:
            problems.append("worker processes keep dying; look at the log, and check models and KBs")
        if self.batcher.stuck(self.settings.limits.seconds):
            problems.append("all workers are busy with requests that have timed out; they are replaced soon")
        return problems

    @property
    def ready(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    @property
    def replaced(self) -> int:
        """Number of worker processes that were replaced because they died or hung."""
        return 0 if self._processes is None else self._processes.replaced

    def close(self) -> None:
        """Finish accepted requests, then stop threads and processes and close the KBs."""
        self.batcher.close()
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        for executor in (
            self._about,
            self._changing,
            self._looking,
            self._loading,
            self._searching,
            self._mapping,
            self._parsing,
        ):
            executor.close()
        for encoder in self.encoders.values():
            encoder.close()
        self.registry.close()

    def check(self, texts: Sequence[str], instead: str = "") -> int:
        """Return the number of characters, or raise if the texts exceed a limit; `instead` names an alternative."""
        limits = self.settings.limits
        if len(texts) > limits.texts:
            raise InputError(f"the request has {len(texts)} texts; send at most {limits.texts} at once{instead}")
        if (longest := max(map(len, texts))) > limits.text:
            raise InputError(f"a text has {longest:,} characters; at most {limits.text:,} are accepted: split it")
        if (characters := sum(map(len, texts))) > limits.characters:
            raise InputError(f"the texts have {characters:,} characters; send at most {limits.characters:,} at once")
        return characters

    def link(
        self, keys: Sequence[LinkerKey], job: LinkJob, *, patient: bool = False
    ) -> asyncio.Future[list[EncodedDocuments]]:
        """Link texts with each linker; all are queued, or none. Streams are `patient`: they retry, with less space."""
        characters = self.check(job.texts, ", or use /link/stream")
        parts = split_request(job.texts)
        if len(parts) > 1:
            return asyncio.ensure_future(self._link_parts(keys, job, parts, patient))
        size = len(job.texts)
        futures = self.batcher.submit_all(keys, job, size=size, characters=characters, patient=patient)
        return asyncio.gather(*futures)

    async def _link_parts(
        self, keys: Sequence[LinkerKey], job: LinkJob, parts: Sequence[Sequence[str]], patient: bool
    ) -> list[EncodedDocuments]:
        spans: dict[int, tuple[Spans, ...] | None] = {}
        begin = 0
        for part in parts:
            spans[id(part)] = None if job.spans is None else job.spans[begin : begin + len(part)]
            begin += len(part)
        made: list[list[EncodedDocuments]] = await submit_in_parts(
            self.batcher,
            keys,
            parts,
            lambda some: replace(job, texts=tuple(some), spans=spans[id(some)]),
            revision=lambda result: result.revision,
            patient=patient,
        )
        return [
            EncodedDocuments([document for result in results for document in result.documents], results[0].revision)
            for results in zip(*made, strict=True)
        ]

    async def edit(self, edit: Edit) -> EditResult:
        """Change a KB, one change at a time; texts are linked meanwhile, each to one revision."""
        return await self.run_change(lambda: self.registry.edit(edit))

    def encoder(self, encoder: str = "auto") -> ServedEncoder:
        """Return an encoder by its name; "auto" is the first."""
        name = next(iter(self.encoders)) if encoder == "auto" else encoder
        if name not in self.encoders:
            raise UsageError(f"unknown encoder {name!r}; choose {', '.join(self.encoders)}, or auto")
        return self.encoders[name]

    async def embed(self, vectors: EmbedOptions, texts: Sequence[str]) -> list[Rows]:
        """Return the vectors of each text."""
        self.check(texts)
        await self._loading.run(lambda: self.encoder(vectors.encoder).embedder)
        made: list[list[list[Rows]]] = await submit_in_parts(
            self.batcher, [vectors], split_request(texts), lambda some: some
        )
        return [rows for (part,) in made for rows in part]

    async def explain(self, provided: ExplainOptions, text: str, second: str | None) -> Seen:
        """Return the attention of a text or pair, with and without knowledge."""
        self.check([text] if second is None else [text, second])
        await self._loading.run(lambda: self.encoder(provided.encoder).explainer(provided))
        seen: Seen = await self.batcher.submit(provided, (text, second))
        return seen

    async def run_info(self, call: Callable[[], T]) -> T:
        """Run a call for /health or /metrics, in a thread that no other request uses."""
        return await self._about.run(call)

    async def run_change(self, call: Callable[[], T]) -> T:
        """Run a call that writes, one at a time."""
        return await self._changing.run(call)

    async def run_look_up(self, call: Callable[[], T]) -> T:
        """Run a call that reads knowledge bases."""
        return await self._looking.run(call)

    async def entity(self, kb: KnowledgeBase, id: str) -> tuple[Entity, list[Neighbour], int]:
        """Return an entity, its neighbours, and the KB revision of both."""

        def look_up() -> tuple[Entity, list[Neighbour], int]:
            with kb.snapshot():
                return kb.get(id), kb.neighbours(id), kb.revision

        try:
            return await self._looking.run(look_up)
        except UnknownEntityError:
            raise UnknownEntityError(f"unknown entity {id!r}; search for it with /entities?search=") from None

    async def search(self, kb: KnowledgeBase, query: str, how: How, limit: int) -> list[Entity]:
        """Search entities; the search stops if the request is cancelled."""
        return await self.run_search(lambda stop: kb.search(query, how=how, limit=limit, stop=stop))

    async def run_search(self, call: Callable[[Callable[[], bool]], T]) -> T:
        """Run a call that may read much of a KB; its argument tells whether the request was cancelled."""
        stop = threading.Event()
        return await self._searching.run(lambda: call(stop.is_set), stop=stop)

    async def parse(self, call: Callable[[Callable[[], bool]], T]) -> T:
        """Run a call that reads or writes a document format; its argument tells whether the request was cancelled."""
        stop = threading.Event()
        return await self._parsing.run(lambda: call(stop.is_set), stop=stop)

    def _mapping_linker(self, kb: str) -> Linker:
        """Return a linker of a KB that compares meaning, else its default one."""
        linkers = list(self.registry.served_kb(kb).linkers.values())
        return next((linker for linker in linkers if linker.backend.kind == "elq"), linkers[0])

    def compares_meaning(self, kb: str) -> bool:
        """Return whether `map` uses meaning and contexts."""
        return self._mapping_linker(kb).backend.kind == "elq"

    async def map(
        self, kb: str, strings: Sequence[str], context: Sequence[str | None] | None, *, best: int, threshold: float
    ) -> list[MappedString]:
        """Map strings to the entities of a KB; mapping stops if the request is cancelled."""
        linker, stop = self._mapping_linker(kb), threading.Event()

        def mapped() -> list[MappedString]:
            found: list[MappedString] = []
            for begin in range(0, len(strings), _MAPPED_AT_ONCE):
                if stop.is_set():
                    break
                part = slice(begin, begin + _MAPPED_AT_ONCE)
                about = None if context is None else context[part]
                found += linker.map(strings[part], about, best=best, threshold=threshold)
            return found

        return await self._mapping.run(mapped, stop=stop)

    async def look_up(self, call: Callable[[], T]) -> T:
        """Run a short look-up in a KB, in a thread."""
        return await self._looking.run(call)

    def _run_batch(self, kind: Hashable, given: Sequence[Any]) -> Iterable[Sequence[Any]]:
        if isinstance(kind, LinkerKey):
            return (
                encode_results(self.registry.link(kind, given))
                if self._processes is None
                else self._processes.link(kind, given)
            )
        if isinstance(kind, EmbedOptions):
            return [self.encoder(kind.encoder).embed(kind, given)]
        assert isinstance(kind, ExplainOptions)
        return [self.encoder(kind.encoder).explain(kind, given)]
