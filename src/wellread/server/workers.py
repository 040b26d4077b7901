"""Readers: processes that link, each on a core of its own. Threads of one process would wait for each other's Python.

They are forked, so that they have the models without loading them, and share what memory they only read. One process,
the nursery, is forked before there are threads, and forks all others: those of the start, and one for each that dies.
What is asked and told goes through sockets as JSON. A reader hears no signals: it ends when its socket does, which is
when the server closes it or ends, in whatever way.

One that has died is replaced, and so is one that hangs: at work, where it says nothing for longer than any client
waits; free, where it does not answer a ping, which each gets every few seconds.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import orjson

from wellread import errors
from wellread.errors import WellreadError
from wellread.server.linkers import Answer, LinkerRegistry, LinkJob, Source
from wellread.server.middleware import LOG

_NICE = 5
"""Who talks to clients goes before who reads: it takes a moment, and others wait for it."""
_TRIES = 2
"""Readers that a batch may end before those who asked are told so."""
_SOME = 4
"""Clients who get their answers together: each by itself would cost more than it gains."""


_PING, _PONG = b"?", b"!"
_LOOK = 5.0
"""Seconds between two rounds of pings."""
_QUICK = 5.0
"""Seconds that a free reader has to answer one."""
_LOST = 3
"""Batches in a row that no reader survived, after which the server is not ready."""


class LostError(WellreadError):
    """A reader has ended, and what it was asked for is not answered."""


class _HangingError(Exception):
    """A reader that says nothing."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process and the socket by which it is asked."""

    connection: Connection
    pid: int


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """An answer as JSON, a document for each text: made by who read, so that the event loop need not."""

    documents: list[bytes]
    revision: int


def tell(answers: Iterable[Answer]) -> Iterator[list[EncodedDocuments]]:
    """Answers as clients get them, some at a time: documents are made here, so that the first need not wait for all."""
    dump = orjson.dumps
    option = orjson.OPT_SERIALIZE_NUMPY
    told = (
        EncodedDocuments([dump(document, option=option) for document in one.documents], one.revision) for one in answers
    )
    while some := list(islice(told, _SOME)):
        yield some


def can_fork() -> bool:
    """Whether readers can be processes here: other systems' libraries do not survive a fork, if there is one."""
    return sys.platform == "linux"


class LinkWorkers:
    """Some processes with a shelf; made before there are threads, and asked by as many threads as there are readers."""

    def __init__(
        self,
        registry: LinkerRegistry,
        count: int,
        *,
        patience: float = 60.0,
        replaced: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`patience` is how many seconds one at work may be silent; `replaced` is called with "died" or "hung"."""
        self._fork_server, theirs = socket.socketpair()
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # torch's threads, which are asleep
            self._pid = os.fork()
        if not self._pid:
            _run_fork_server(theirs, registry)
        theirs.close()
        self.count, self._patience, self._note = count, patience, replaced
        self._turn = threading.Lock()
        self.pids: list[int] = []
        """All that were ever forked, the last one last."""
        self._lost = 0
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(count):
            self._free.put(self._fork())
        self._closed = threading.Event()
        self._pinging = threading.Thread(target=self._ping, name="wellread-pings", daemon=True)
        self._pinging.start()

    @property
    def alive(self) -> bool:
        """Whether a reader that dies can be replaced."""
        return not select.select([self._fork_server], [], [], 0)[0]

    @property
    def ready(self) -> bool:
        """Whether they can be expected to answer: not where one after the other died of what it was asked."""
        return self.alive and self._lost < _LOST

    @property
    def replaced(self) -> int:
        """How many have taken the place of one that died or hung."""
        return len(self.pids) - self.count

    def link(self, source: Source, asked: Sequence[LinkJob]) -> Iterator[list[EncodedDocuments]]:
        """Return answers of a worker to `LinkerRegistry.link`, some at a time; if it dies, another does the rest."""
        rest, worker = list(asked), self._free.get()
        try:
            for _ in range(_TRIES):
                try:
                    worker.connection.send_bytes(orjson.dumps((source, rest)))
                    while rest:
                        if not worker.connection.poll(self._patience):
                            raise _HangingError
                        told = _heard(worker.connection)
                        del rest[: len(told)]
                        yield told
                    self._lost = 0
                    return
                except (EOFError, OSError):
                    worker = self._replace(worker, "died")
                except _HangingError:  # whoever asked has been told already that it took too long
                    worker = self._replace(worker, "hung")
                    break
        except OSError:
            raise LostError("the processes that read cannot be replaced; the server must be started anew") from None
        except (GeneratorExit, MemoryError):  # nobody listens any more, and what it says next is not for who asks next
            worker.connection.close()
            raise
        finally:
            self._free.put(worker)
        self._lost += 1
        raise LostError("the process that read this has ended, and so did another; send less at once")

    def close(self) -> None:
        """Let them end, and wait until they have."""
        self._closed.set()
        self._pinging.join()
        while not self._free.empty():
            self._free.get().connection.close()
        self._fork_server.close()
        with suppress(ChildProcessError):  # where somebody else has waited for it
            os.waitpid(self._pid, 0)

    def _fork(self) -> _Worker:
        here, there = socket.socketpair()
        # A process that is stopped takes nothing: whoever sends it more than fits would wait for ever.
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(self._patience)), 0))
        connection = Connection(here.detach())
        with self._turn, there:
            socket.send_fds(self._fork_server, [b"+"], [there.fileno()])
            if not (pid := self._fork_server.recv(8)):
                raise BrokenPipeError
        self.pids.append(int.from_bytes(pid))
        return _Worker(connection, self.pids[-1])

    def _replace(self, worker: _Worker, reason: str) -> _Worker:
        """Put another in the place of one that has ended or says nothing; OSError where there is none to be had."""
        if not worker.connection.closed:
            worker.connection.close()
        # Its number cannot be another's yet: whoever forked it takes note of its end when it forks the next one.
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        new = self._fork()
        self._note(reason)
        LOG.warning(
            "a reader has ended and was replaced" if reason == "died" else "a reader was hanging and was replaced",
            extra={"told": {"pid": new.pid, "was": worker.pid}},
        )
        return new

    def _ping(self) -> None:
        """Replace those that are free but do not answer, before anybody waits for them."""
        while not self._closed.wait(_LOOK):
            for _ in range(self.count):
                try:
                    worker = self._free.get_nowait()
                except Empty:
                    break
                try:
                    worker = self._answering(worker)
                except OSError:  # no other can be had; `alive` tells
                    pass
                finally:
                    self._free.put(worker)

    def _answering(self, worker: _Worker) -> _Worker:
        if worker.connection.closed:  # the next one who asks has it replaced
            return worker
        try:
            worker.connection.send_bytes(_PING)
            if not worker.connection.poll(_QUICK):
                return self._replace(worker, "hung")
            worker.connection.recv_bytes()
        except (EOFError, OSError):
            return self._replace(worker, "died")
        return worker


def _heard(worker: Connection) -> list[EncodedDocuments]:
    """What a reader tells next; its errors are raised again."""
    head = orjson.loads(worker.recv_bytes())
    if "error" not in head:
        body, place, told = memoryview(worker.recv_bytes()), 0, list[EncodedDocuments]()
        for sizes in head["sizes"]:
            ends = [place := place + size for size in sizes]
            documents = [bytes(body[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
            told.append(EncodedDocuments(documents, head["revision"]))
        return told
    kind = getattr(errors, head["error"], None)
    if kind is not None:
        raise kind(head["why"])
    LOG.error("a reader failed", extra={"told": {"error": head["error"], "trace": head["trace"]}})
    raise RuntimeError(head["error"])  # its message may quote a text


def _run_fork_server(asked: socket.socket, registry: LinkerRegistry) -> NoReturn:
    """Fork a reader for each socket that arrives; end when no more can, and all readers have."""
    try:
        _drop_sockets(asked.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):  # the whole group hears them; the server finishes what it took
            signal.signal(number, signal.SIG_IGN)
        logging.disable()  # what there is to say of a knowledge base, the server says
        os.nice(_NICE)
        gc.collect()
        gc.freeze()  # what is looked at by the collector is written to, and shared no more
        while True:
            some, sockets, _, _ = socket.recv_fds(asked, 1, 1)
            if not some:
                break
            _bury()
            if not (pid := os.fork()):
                asked.close()
                _read(Connection(sockets[0]), registry)
                os._exit(0)
            os.close(sockets[0])
            asked.send(pid.to_bytes(8))
        _bury(wait=True)
    finally:
        os._exit(0)


def _read(asked: Connection, registry: LinkerRegistry) -> None:
    """Answer until there is nobody who asks."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)  # OpenMP's threads stayed behind
    try:
        while True:
            if (message := asked.recv_bytes()) == _PING:
                asked.send_bytes(_PONG)
                continue
            for part in _answer(registry, *orjson.loads(message)):
                asked.send_bytes(part)
    except (EOFError, OSError):
        return


def _answer(registry: LinkerRegistry, source: dict[str, Any], asked: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    """For some after the other what is said before the documents, and the documents; of an error only the former."""
    try:
        for told in tell(registry.link(Source(**_hashable(source)), [LinkJob(**_hashable(one)) for one in asked])):
            sizes = [[len(document) for document in one.documents] for one in told]
            head = orjson.dumps({"revision": told[0].revision, "sizes": sizes})
            body = b"".join(document for one in told for document in one.documents)
            yield from (head, body)  # made before either is sent: an error is never taken for documents
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        trace = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        yield orjson.dumps({"error": type(error).__name__, "why": str(error), "trace": trace})


def _hashable(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _drop_sockets(mine: int) -> None:
    """Those of clients and of other readers are the server's alone: it should be heard when it lets go of them."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and number != mine and stat.S_ISSOCK(os.fstat(number).st_mode):  # the log may be one too
                os.close(number)
        except OSError:  # the one by which the folder was read
            continue


def _bury(*, wait: bool = False) -> None:
    """Take note of children that have ended."""
    try:
        while os.waitpid(-1, 0 if wait else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
