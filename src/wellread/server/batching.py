"""Dynamic batching: requests are queued, and a free thread takes all waiting jobs that can run in one batch.

`submit` returns a future, and raises `BusyError` (429, Retry-After) if the queue is full. A batch is as large as the
number of waiting clients. A thread waits for more jobs only for a moment after a batch was answered: those clients
usually send their next text at once, and a text alone takes three times as long as one in a batch. Results are
delivered as they are ready, so the first jobs of a batch return before the last are computed.

If a few large requests fill the queue, some small ones are still accepted. Streams, which retry by themselves, may use
half of the queue. Large requests are submitted in parts, so that other requests run in between.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wellread.errors import WellreadError

_FEW = 8
"""Minimum batch size in texts, whatever the number of threads: larger batches gain little per text."""
_PATIENCE = 0.25
"""Share of the last batch's time that waiting jobs wait for the clients just answered."""
_MOMENT = 0.02
"""Maximum of that wait, in seconds."""

PART_TEXTS, PART_CHARACTERS = 16, 16_000
"""Maximum size of a part of a large request: about a second of model time."""
_TRIES = 3
"""Times that parts of an older KB revision are repeated before the whole request is linked at once."""


class BusyError(WellreadError):
    """The queue is full; `seconds` is the estimated time until there is room."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, round(seconds))
        super().__init__(f"too many texts are waiting; try again in {self.seconds} s, or send fewer at once")


class ClosedError(WellreadError):
    """The server is stopping and accepts no more jobs."""


@dataclass(eq=False, slots=True)
class Job:
    """One queued job; jobs with the same `kind` can run in one batch."""

    kind: Hashable
    given: Any
    size: int
    """Number of texts."""
    characters: int
    future: asyncio.Future[Any]
    patient: bool = False
    """True for streams, which retry when the queue is full."""
    submitted: float = field(default_factory=time.monotonic)


RunBatch = Callable[[Hashable, Sequence[Any]], Iterable[Sequence[Any]]]
"""Runs jobs of one kind: inputs -> results in order, some at a time; an exception as a result fails its job only."""


@dataclass(slots=True)
class BatchStats:
    """Size and times of one batch, for metrics."""

    jobs: int
    texts: int
    seconds: float
    waited: float


class Batcher:
    """Queue of jobs and the threads that run them in batches."""

    def __init__(
        self,
        run_batch: RunBatch,
        *,
        queue: int,
        together: int,
        together_characters: int,
        threads: int = 1,
        longest_wait: float = 15.0,
        watch: Callable[[BatchStats], None] = lambda seen: None,
    ) -> None:
        """`longest_wait` is the maximum of `BusyError.seconds`: less than idle connections are kept open."""
        self._run_batch, self._watch = run_batch, watch
        self._queue, self._characters, self._longest_wait = queue, together_characters, longest_wait
        # A full queue is shared by the threads: otherwise one would take all of it and the others would be idle.
        self._together = min(together, max(_FEW, -(-queue // threads)))
        self._waiting: deque[Job] = deque()
        self._texts = self._taken = self._patient = 0
        """Texts that wait; that wait or run; and that wait and belong to streams."""
        self._jobs = 0
        """Jobs that wait or run, without those of streams."""
        self._most = max(queue, threads + 1)
        """Maximum of `_jobs`; at least one job may wait, however small the queue is."""
        self._share = max(1, queue // 2)
        self._least = max(1, queue // 4)
        """Texts that may wait when a few large requests, or streams, have filled the queue."""
        self._expected, self._until = 0, 0.0
        """Texts just answered, whose clients may send more, and the time until which to wait for them."""
        self._pace = 0.02
        """Moving average of seconds per text."""
        self._since: list[float | None] = [None] * threads
        """Time at which each busy thread started, or last delivered a result; None if idle."""
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"wellread-model-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of texts in the queue."""
        return self._texts

    @property
    def _interactive(self) -> int:
        return self._texts - self._patient

    @property
    def alive(self) -> bool:
        """True if all threads are running."""
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, kind: Hashable, given: Any, *, size: int = 1, characters: int = 0) -> asyncio.Future[Any]:
        """Queue a job; call it on the event loop. A future cancelled before its turn is not run."""
        return self.submit_all([kind], given, size=size, characters=characters)[0]

    def submit_all(
        self,
        kinds: Sequence[Hashable],
        given: Any,
        *,
        size: int = 1,
        characters: int = 0,
        patient: bool = False,
        admitted: bool = False,
    ) -> list[asyncio.Future[Any]]:
        """Queue the same input for several kinds; accept all of them or none.

        Only what is already queued counts against the limit, not the size of this request: otherwise a large request
        would never be accepted. `admitted` jobs, further parts of an accepted request, are always taken.
        """
        loop = asyncio.get_running_loop()
        jobs = [Job(kind, given, size, characters, loop.create_future(), patient) for kind in kinds]
        with self._changed:
            if self._closed:
                raise ClosedError("the server is stopping; send the request again when it is back")
            full, many = self._taken >= self._queue, self._jobs >= self._most
            refused = (
                (full or self._patient >= self._share)
                if patient
                else (many or (full and self._interactive >= self._least))
            )
            if refused and not admitted:
                raise BusyError(min(self._pace * self._taken, self._longest_wait))
            self._jobs += len(jobs) * (not patient)
            self._texts += size * len(jobs)
            self._taken += size * len(jobs)
            self._patient += size * len(jobs) * patient
            self._expected = max(0, self._expected - size * len(jobs))
            first = not self._waiting
            self._waiting.extend(jobs)
            if first or self._ready:  # otherwise a thread is already waiting for more
                self._changed.notify(len(jobs))
        return [job.future for job in jobs]

    def hold(self, texts: int) -> None:
        """Reserve queue space for texts that are submitted later; a negative number releases it."""
        with self._changed:
            self._taken += texts

    def stuck(self, seconds: float) -> bool:
        """Return True if every thread has delivered nothing for more than `seconds`."""
        now = time.monotonic()
        return all(since is not None and now - since > seconds for since in self._since)

    def close(self) -> None:
        """Finish all accepted jobs, then stop the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while batch := self._take():
            self._release(gone := [job for job in batch if job.future.cancelled()])
            self._since[number] = time.monotonic()
            try:
                if len(gone) < len(batch):
                    self._run_jobs([job for job in batch if job not in gone], number)
            except RuntimeError:  # the event loop is closed, so no result can be delivered
                return
            finally:
                self._since[number] = None

    def _run_jobs(self, batch: Sequence[Job], number: int) -> None:
        begin, left = time.monotonic(), len(batch)
        for jobs, results in self._results(batch):
            seconds, left = time.monotonic() - begin, left - len(jobs)
            self._since[number] = begin + seconds
            self._release(jobs, seconds)  # before delivery: clients send their next text at once
            if not left:  # before delivery: a client may read the metrics next
                texts = sum(job.size for job in batch)
                self._pace += 0.2 * (seconds / max(1, texts) / len(self._threads) - self._pace)
                self._watch(BatchStats(len(batch), texts, seconds, begin - min(job.submitted for job in batch)))
            jobs[0].future.get_loop().call_soon_threadsafe(_deliver, jobs, results)

    def _results(self, batch: Sequence[Job]) -> Iterator[tuple[Sequence[Job], Sequence[Any]]]:
        """Yield jobs with their results; if a batch fails, run each remaining job alone."""
        rest: Sequence[Job] = batch
        failed: BaseException = LookupError("fewer results than inputs")
        try:
            for results in self._run_batch(batch[0].kind, [job.given for job in batch]):
                head, rest = rest[: len(results)], rest[len(results) :]
                if head:
                    yield head, results
        except GeneratorExit:
            raise
        except BaseException as error:  # any error belongs to the remaining jobs; the thread must survive
            failed = error
        if len(batch) > 1 and isinstance(failed, Exception):
            for job in rest:
                yield from self._results([job])
        elif rest:
            yield rest, [failed] * len(rest)

    def _release(self, jobs: Sequence[Job], seconds: float | None = None) -> None:
        """Remove jobs from the counts; `seconds`, if they were answered, sets how long to wait for their clients."""
        texts = sum(job.size for job in jobs)
        with self._changed:
            self._taken -= texts
            self._jobs -= sum(not job.patient for job in jobs)
            if seconds is not None:
                now = time.monotonic()
                self._expected = texts + (self._expected if now < self._until else 0)
                self._until = now + min(_MOMENT, _PATIENCE * seconds)

    def _take(self) -> list[Job]:
        """Take the first waiting job and the following ones of its kind that fit into the batch."""
        with self._changed:
            free = time.monotonic()
            while (moment := self._moment(free)) is None or moment > 0:
                if self._closed and not self._waiting:
                    return []
                self._changed.wait(moment)
            batch = [self._waiting.popleft()]
            texts, characters = batch[0].size, batch[0].characters
            left: deque[Job] = deque()
            while self._waiting:
                job = self._waiting.popleft()
                if (
                    job.kind == batch[0].kind
                    and texts + job.size <= self._together
                    and characters + job.characters <= self._characters
                ):
                    batch.append(job)
                    texts, characters = texts + job.size, characters + job.characters
                else:
                    left.append(job)
            self._waiting = left
            if left:
                self._changed.notify()  # for another thread
            self._texts -= texts
            self._patient -= sum(job.size for job in batch if job.patient)
            return batch

    @property
    def _ready(self) -> bool:
        """True if there is no reason to wait for more jobs."""
        return self._closed or not self._expected or self._texts >= self._together

    def _moment(self, free: float) -> float | None:
        """Return the seconds until a thread idle since `free` should take the waiting jobs; None if there are none.

        Every answered batch extends `_until`, so the wait of the first job is bounded by `_MOMENT`.
        """
        if not self._waiting:
            return None
        latest = max(free, self._waiting[0].submitted) + _MOMENT
        return 0.0 if self._ready else min(self._until, latest) - time.monotonic()


def _deliver(jobs: Sequence[Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():
            continue
        if isinstance(result, BaseException):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)


Given = Callable[[Sequence[str]], Any]
"""Builds the input of a job from some of the texts."""


def split_request(texts: Sequence[str]) -> list[Sequence[str]]:
    """Split texts into runs of at most PART_TEXTS texts and PART_CHARACTERS characters, or one longer text."""
    parts: list[Sequence[str]] = []
    begin = characters = 0
    for place, text in enumerate(texts):
        if place > begin and (place - begin == PART_TEXTS or characters + len(text) > PART_CHARACTERS):
            parts.append(texts[begin:place])
            begin, characters = place, 0
        characters += len(text)
    return [*parts, texts[begin:]]


async def submit_in_parts(
    batcher: Batcher,
    kinds: Sequence[Hashable],
    parts: Sequence[Sequence[str]],
    given: Given,
    *,
    revision: Callable[[Any], Any] = lambda results: None,
    patient: bool = False,
) -> list[list[Any]]:
    """Submit the parts one after the other; return for each part a result per kind, all of one `revision`.

    The first part is accepted or refused for the whole request. If the client disconnects or the request times out,
    the next part is not submitted.
    """

    async def read(part: Sequence[str], *, admitted: bool) -> list[Any]:
        size, characters = len(part), sum(map(len, part))
        futures = batcher.submit_all(
            kinds, given(part), size=size, characters=characters, patient=patient, admitted=admitted
        )
        return await asyncio.gather(*futures)

    texts = [text for part in parts for text in part]
    left = len(kinds) * (len(texts) - len(parts[0]))
    first = asyncio.ensure_future(read(parts[0], admitted=False))
    await asyncio.sleep(0)  # lets it be submitted or refused
    if first.done():
        first.result()
    batcher.hold(left)
    try:
        results = [await first]
        for part in parts[1:]:
            batcher.hold(-len(kinds) * len(part))
            left -= len(kinds) * len(part)
            results.append(await read(part, admitted=True))
    finally:
        first.cancel()
        batcher.hold(-left)
    latest = [revision(one) for one in results[-1]]
    for _ in range(_TRIES):
        old = [place for place, some in enumerate(results) if [revision(one) for one in some] != latest]
        if not old:
            return results
        for place in old:
            results[place] = await read(parts[place], admitted=True)
            latest = [revision(one) for one in results[place]]
    return [await read(texts, admitted=True)]
