"""All that a server has: linkers, encoders, who reads with them, and the figures of what it did."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from wellread.errors import InputError, UnknownEntityError, UsageError
from wellread.io.cores import cores
from wellread.kb.records import Entity
from wellread.kb.store import How, KnowledgeBase, Neighbour
from wellread.server.batching import Worker
from wellread.server.encoders import ExplainOptions, ServedEncoder, Vectors
from wellread.server.linkers import Edit, Edited, LinkerRegistry, LinkJob, Source
from wellread.server.metrics import Metrics
from wellread.server.request_parts import in_parts, submit_parts
from wellread.server.settings import Settings
from wellread.server.threads import Aside
from wellread.server.workers import EncodedDocuments, LinkWorkers, can_fork, tell

if TYPE_CHECKING:
    from wellread.inference.embed import Rows
    from wellread.plots.attention import Seen

T = TypeVar("T")

_GRACE = 2.0
"""Seconds after the time of a request when a process that has said nothing is taken for hanging."""


def _share_cores(readers: int) -> None:
    """Let each of several threads compute with its share of the cores, where the models are torch's."""
    if readers > 1 and "torch" in sys.modules:
        import torch

        torch.set_num_threads(max(1, torch.get_num_threads() // readers))


class Engine:
    """Asks the rooms on behalf of clients; every method is for the event loop."""

    def __init__(self, registry: LinkerRegistry, settings: Settings) -> None:
        self.registry, self.settings = registry, settings
        self.readings = {name: ServedEncoder(name, encoder) for name, encoder in settings.encoders.items()}
        self.metrics = Metrics()
        limits = settings.limits
        self.readers = limits.readers or (cores() if registry.shared else 1)
        self.queue = limits.queue or 16 * self.readers
        forks = self.readers > 1 and can_fork()
        self._processes = (
            LinkWorkers(registry, self.readers, patience=limits.seconds + _GRACE, replaced=self.metrics.replace)
            if forks
            else None
        )
        _share_cores(self.readers)
        self.worker = Worker(
            self._do,
            queue=self.queue,
            together=limits.together,
            together_characters=limits.together_characters,
            threads=self.readers,
            watch=self.metrics.watch,
        )
        self.stopping = asyncio.Event()
        """Whether streams should come to an end."""
        self.metrics.waiting(lambda: self.worker.waiting)
        self.metrics.follow(lambda: self.ready, self.readers)
        self._about, self._changing = Aside("about", 1), Aside("changing", 1)
        self._looking, self._loading = Aside("looking", 2), Aside("loading", 2)
        self._searching = Aside("searching", 2)  # apart: a search may take a hundred times what a look-up takes

    @property
    def alive(self) -> bool:
        """Whether all who read still do, or can be replaced."""
        return self.worker.alive and (self._processes is None or self._processes.alive)

    @property
    def problems(self) -> list[str]:
        """What keeps the server from answering at present, a line each with what to do; none: it is ready."""
        found = self.registry.problems()
        if not self.alive:
            found.append("what reads has ended and cannot be replaced; start the server anew")
        elif self._processes is not None and not self._processes.ready:
            found.append("one process after the other ends at what it reads; look at the log, check models and KBs")
        if self.worker.stuck(self.settings.limits.seconds):
            found.append("all that read are at texts that nobody waits for any more; they are replaced soon")
        return found

    @property
    def ready(self) -> bool:
        """Whether requests can be expected to be answered."""
        return not self.problems

    @property
    def replaced(self) -> int:
        """Processes that took the place of one that died or hung."""
        return 0 if self._processes is None else self._processes.replaced

    def close(self) -> None:
        """Finish what was taken."""
        self.worker.close()
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        for some in (self._about, self._changing, self._looking, self._loading, self._searching):
            some.close()
        for reading in self.readings.values():
            reading.close()
        self.registry.close()

    def check(self, texts: Sequence[str], instead: str = "") -> int:
        """The characters of a client's texts, if they are within the limits; `instead` is what else takes more."""
        limits = self.settings.limits
        if len(texts) > limits.texts:
            raise InputError(f"there are {len(texts)} texts; send at most {limits.texts} at once{instead}")
        if (longest := max(map(len, texts))) > limits.text:
            raise InputError(f"a text has {longest:,} characters; at most {limits.text:,} are read, so cut it")
        if (characters := sum(map(len, texts))) > limits.characters:
            raise InputError(
                f"the texts have {characters:,} characters; at most {limits.characters:,} are read at once"
            )
        return characters

    def link(
        self, sources: Sequence[Source], asked: LinkJob, *, patient: bool = False
    ) -> asyncio.Future[list[EncodedDocuments]]:
        """An answer for each source; all are taken, or none. Who is `patient` asks again and leaves others room."""
        characters = self.check(asked.texts, ", or use /link/stream")
        parts = in_parts(asked.texts)
        if len(parts) > 1:
            return asyncio.ensure_future(self._link_parts(sources, asked, parts, patient))
        size = len(asked.texts)
        futures = self.worker.submit_all(sources, asked, size=size, characters=characters, patient=patient)
        return asyncio.gather(*futures)

    async def _link_parts(
        self, sources: Sequence[Source], asked: LinkJob, parts: Sequence[Sequence[str]], patient: bool
    ) -> list[EncodedDocuments]:
        made: list[list[EncodedDocuments]] = await submit_parts(
            self.worker,
            sources,
            parts,
            lambda some: replace(asked, texts=tuple(some)),
            revision=lambda told: told.revision,
            patient=patient,
        )
        return [
            EncodedDocuments([one for told in of for one in told.documents], of[0].revision)
            for of in zip(*made, strict=True)
        ]

    async def edit(self, edit: Edit) -> Edited:
        """Change a knowledge base, one change after the other; texts are read meanwhile, each of one revision."""
        return await self._changing.ask(lambda: self.registry.edit(edit))

    def reading(self, encoder: str = "auto") -> ServedEncoder:
        """An encoder by its name; the first of all where none is chosen."""
        name = next(iter(self.readings)) if encoder == "auto" else encoder
        if name not in self.readings:
            raise UsageError(f"there is no encoder {name!r} here; choose {', '.join(self.readings)}, or auto")
        return self.readings[name]

    async def embed(self, vectors: Vectors, texts: Sequence[str]) -> list[Rows]:
        """The rows of each text."""
        self.check(texts)
        await self._loading.ask(lambda: self.reading(vectors.encoder).embedder)
        made: list[list[list[Rows]]] = await submit_parts(self.worker, [vectors], in_parts(texts), lambda some: some)
        return [rows for (part,) in made for rows in part]

    async def explain(self, provided: ExplainOptions, text: str, second: str | None) -> Seen:
        """What is seen of a text."""
        self.check([text] if second is None else [text, second])
        await self._loading.ask(lambda: self.reading(provided.encoder).explainer(provided))
        seen: Seen = await self.worker.submit(provided, (text, second))
        return seen

    async def aside(self, ask: Callable[[], T]) -> T:
        """Ask how the server is, which waits for nothing that clients ask for."""
        return await self._about.ask(ask)

    async def entity(self, kb: KnowledgeBase, id: str) -> tuple[Entity, list[Neighbour], int]:
        """An entity, its neighbours, and the revision that both are of."""

        def ask() -> tuple[Entity, list[Neighbour], int]:
            with kb.snapshot():
                return kb.get(id), kb.neighbours(id), kb.revision

        try:
            return await self._looking.ask(ask)
        except UnknownEntityError:
            raise UnknownEntityError(f"there is no entity {id!r} here; look for it with /entities?search=") from None

    async def search(self, kb: KnowledgeBase, query: str, how: How, limit: int) -> list[Entity]:
        """Entities by what a person types; a search that is no longer waited for ends."""
        stop = threading.Event()
        return await self._searching.ask(lambda: kb.search(query, how=how, limit=limit, stop=stop.is_set), stop=stop)

    def _do(self, kind: Hashable, given: Sequence[Any]) -> Iterable[Sequence[Any]]:
        if isinstance(kind, Source):
            return (
                tell(self.registry.link(kind, given)) if self._processes is None else self._processes.link(kind, given)
            )
        if isinstance(kind, Vectors):
            return [self.reading(kind.encoder).embed(kind, given)]
        assert isinstance(kind, ExplainOptions)
        return [self.reading(kind.encoder).explain(kind, given)]
