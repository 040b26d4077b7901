"""A thread, or a few, have the models or processes with them, and read what many clients ask together.

Whoever asks gets a future. While the threads are busy, others come and wait; one that is free takes the first and all
that can be read with it, so that batches are as large as there are clients. Nobody waits for one to fill, but for a
moment after others were answered: as many are about to come again, and reading one text alone would take three times
what it takes among them. Answers are given as they are ready, so that the first of a batch are back while the last are
made. What was taken and is not answered yet is bounded, and so is the time that an answer takes: who finds no room is
told by `BusyError` when to come again. Where few have taken all of it with large requests, some others may still wait;
and who comes again by itself, as streams do, has half of the room, so that others find some.
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
"""Texts that are read together, however many threads could share them: more are not much quicker for each."""
_PATIENCE = 0.25
"""Of the time that a batch took: so long may those who are there wait for others who were just answered."""
_MOMENT = 0.02
"""Seconds that they may wait at most."""


class BusyError(WellreadError):
    """More is asked than there is room for; `seconds` is when it is worth to try again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, round(seconds))
        super().__init__(f"too many texts are waiting; try again in {self.seconds} s, or send fewer at once")


class ClosedError(WellreadError):
    """The server is about to stop."""


@dataclass(eq=False, slots=True)
class Job:
    """Something to be done by the thread; jobs of the same kind are done together."""

    kind: Hashable
    given: Any
    size: int
    """Texts."""
    characters: int
    future: asyncio.Future[Any]
    patient: bool = False
    """Whether whoever asks comes again by itself."""
    asked: float = field(default_factory=time.monotonic)


Do = Callable[[Hashable, Sequence[Any]], Iterable[Sequence[Any]]]
"""Does jobs of one kind: what was given for each -> what came out for each, or the error that it is to raise; some at a
time in their order, so that the first have their answers, and may come again, while those of others are made."""


@dataclass(slots=True)
class Seen:
    """What the thread did with one batch, for whoever watches."""

    jobs: int
    texts: int
    seconds: float
    waited: float


class Worker:
    """The threads, and the queue before them."""

    def __init__(
        self,
        do: Do,
        *,
        queue: int,
        together: int,
        together_characters: int,
        threads: int = 1,
        watch: Callable[[Seen], None] = lambda seen: None,
    ) -> None:
        self._do, self._watch = do, watch
        self._queue, self._characters = queue, together_characters
        # Of a full queue a part for each thread: else one would take all, and another would have nothing to do.
        self._together = min(together, max(_FEW, -(-queue // threads)))
        self._waiting: deque[Job] = deque()
        self._texts = self._taken = self._patient = 0
        """Of all who wait; with those that are being read; and of who waits and comes again by itself."""
        self._jobs = 0
        """Who wait or are being read, but for those who come again by themselves."""
        self._most = max(queue, threads + 1)
        """Of these: as many as texts, but however small the queue, one may wait."""
        self._share = max(1, queue // 2)
        self._least = max(1, queue // 4)
        """Texts that may wait where few have sent so much that the queue is full, and whatever streams have sent."""
        self._expected, self._until = 0, 0.0
        """Texts that were just answered, so that as many may be about to come, and until when it is worth to wait."""
        self._pace = 0.02
        """Seconds for a text, of late."""
        self._since: list[float | None] = [None] * threads
        """When each thread that is at work began, or last gave an answer."""
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
        """Texts in the queue."""
        return self._texts

    @property
    def _others(self) -> int:
        return self._texts - self._patient

    @property
    def alive(self) -> bool:
        """Whether all threads still work."""
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, kind: Hashable, given: Any, *, size: int = 1, characters: int = 0) -> asyncio.Future[Any]:
        """Ask for something; called on the event loop. A future that is cancelled before its turn is not done."""
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
        """Ask for the same in several kinds: all are taken, or none.

        It is those before that count, not how much is asked for: else whoever asks for much would never find room.
        What belongs to a request of which a part was taken before is `admitted` in any case.
        """
        loop = asyncio.get_running_loop()
        jobs = [Job(kind, given, size, characters, loop.create_future(), patient) for kind in kinds]
        with self._changed:
            if self._closed:
                raise ClosedError("the server is about to stop; ask again when it is back")
            full, many = self._taken >= self._queue, self._jobs >= self._most
            no_room = (
                (full or self._patient >= self._share) if patient else (many or (full and self._others >= self._least))
            )
            if no_room and not admitted:
                raise BusyError(self._pace * self._taken)
            self._jobs += len(jobs) * (not patient)
            self._texts += size * len(jobs)
            self._taken += size * len(jobs)
            self._patient += size * len(jobs) * patient
            self._expected = max(0, self._expected - size * len(jobs))
            first = not self._waiting
            self._waiting.extend(jobs)
            if first or self._ready:  # else a thread waits for more already
                self._changed.notify(len(jobs))
        return [job.future for job in jobs]

    def hold(self, texts: int) -> None:
        """Count texts as taken that are submitted later, or no more (less than 0)."""
        with self._changed:
            self._taken += texts

    def stuck(self, seconds: float) -> bool:
        """Return whether every thread has been at one batch, without an answer, for more than so many seconds."""
        now = time.monotonic()
        return all(since is not None and now - since > seconds for since in self._since)

    def close(self) -> None:
        """Finish all that was taken, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while batch := self._take():
            self._leave(gone := [job for job in batch if job.future.cancelled()])
            self._since[number] = time.monotonic()
            try:
                if len(gone) < len(batch):
                    self._read([job for job in batch if job not in gone], number)
            except RuntimeError:  # the loop is gone, and with it all who waited
                return
            finally:
                self._since[number] = None

    def _read(self, asked: Sequence[Job], number: int) -> None:
        begin, left = time.monotonic(), len(asked)
        for jobs, made in self._done(asked):
            seconds, left = time.monotonic() - begin, left - len(jobs)
            self._since[number] = begin + seconds
            self._leave(jobs, seconds)  # before those who get their answers come again
            if not left:  # before the last of them may ask what was counted
                texts = sum(job.size for job in asked)
                self._pace += 0.2 * (seconds / max(1, texts) / len(self._threads) - self._pace)
                self._watch(Seen(len(asked), texts, seconds, begin - min(job.asked for job in asked)))
            jobs[0].future.get_loop().call_soon_threadsafe(_deliver, jobs, made)

    def _done(self, asked: Sequence[Job]) -> Iterator[tuple[Sequence[Job], Sequence[Any]]]:
        """What came out for some after the other; where a batch fails, each that is left is tried by itself."""
        rest: Sequence[Job] = asked
        failed: BaseException = LookupError("fewer came out than went in")
        try:
            for made in self._do(asked[0].kind, [job.given for job in asked]):
                some, rest = rest[: len(made)], rest[len(made) :]
                if some:
                    yield some, made
        except GeneratorExit:
            raise
        except BaseException as error:  # whatever it is belongs to who is left, and the thread goes on
            failed = error
        if len(asked) > 1 and isinstance(failed, Exception):
            for job in rest:
                yield from self._done([job])
        elif rest:
            yield rest, [failed] * len(rest)

    def _leave(self, jobs: Sequence[Job], seconds: float | None = None) -> None:
        """These wait no more; where they are answered, after so long, whoever asked may come again."""
        texts = sum(job.size for job in jobs)
        with self._changed:
            self._taken -= texts
            self._jobs -= sum(not job.patient for job in jobs)
            if seconds is not None:
                now = time.monotonic()
                self._expected = texts + (self._expected if now < self._until else 0)
                self._until = now + min(_MOMENT, _PATIENCE * seconds)

    def _take(self) -> list[Job]:
        """The first that waits, and those of its kind that go with it, in their order."""
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
                self._changed.notify()  # there is something for another thread
            self._texts -= texts
            self._patient -= sum(job.size for job in batch if job.patient)
            return batch

    @property
    def _ready(self) -> bool:
        """Whether there is no reason to wait for more."""
        return self._closed or not self._expected or self._texts >= self._together

    def _moment(self, free: float) -> float | None:
        """Seconds until those who wait are to be read by one that is free since then; None where nobody does.

        Others may give answers all the while, each of which is worth a moment: who waits, waits for one.
        """
        if not self._waiting:
            return None
        latest = max(free, self._waiting[0].asked) + _MOMENT
        return 0.0 if self._ready else min(self._until, latest) - time.monotonic()


def _deliver(jobs: Sequence[Job], made: Sequence[Any]) -> None:
    for job, result in zip(jobs, made, strict=True):
        if job.future.done():
            continue
        if isinstance(result, BaseException):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
