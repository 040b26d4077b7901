"""Readers: processes that link, each on a core of its own. Threads of one process would wait for each other's Python.

They are forked, so that they have the models without loading them, and share what memory they only read. One process,
the nursery, is forked before there are threads, and forks all others: those of the start, and one for each that dies.
What is asked and told goes through sockets as JSON. A reader hears no signals: it ends when its socket does, which is
when the server closes it or ends, in whatever way.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import orjson

from wellread import errors
from wellread.errors import WellreadError
from wellread.server.guard import LOG
from wellread.server.shelf import Answer, Asked, Shelf, Source

_NICE = 5
"""Who talks to clients goes before who reads: it takes a moment, and others wait for it."""
_TRIES = 2
"""Readers that a batch may end before those who asked are told so."""
_SOME = 4
"""Clients who get their answers together: each by itself would cost more than it gains."""


class LostError(WellreadError):
    """A reader has ended, and what it was asked for is not answered."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as JSON, a document for each text: made by who read, so that the event loop need not."""

    documents: list[bytes]
    revision: int


def tell(answers: Iterable[Answer]) -> Iterator[list[Told]]:
    """Answers as clients get them, some at a time: documents are made here, so that the first need not wait for all."""
    dump = orjson.dumps
    option = orjson.OPT_SERIALIZE_NUMPY
    told = (Told([dump(document, option=option) for document in one.documents], one.revision) for one in answers)
    while some := list(islice(told, _SOME)):
        yield some


def can_fork() -> bool:
    """Whether readers can be processes here: other systems' libraries do not survive a fork, if there is one."""
    return sys.platform == "linux"


class Readers:
    """Some processes with a shelf; made before there are threads, and asked by as many threads as there are readers."""

    def __init__(self, shelf: Shelf, count: int) -> None:
        self._nursery, theirs = socket.socketpair()
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # torch's threads, which are asleep
            self._pid = os.fork()
        if not self._pid:
            _nurse(theirs, shelf)
        theirs.close()
        self._turn = threading.Lock()
        self.pids: list[int] = []
        """All that were ever forked, the last one last."""
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for _ in range(count):
            self._free.put(self._fork())

    @property
    def alive(self) -> bool:
        """Whether a reader that dies can be replaced."""
        return not select.select([self._nursery], [], [], 0)[0]

    def link(self, source: Source, asked: Sequence[Asked]) -> Iterator[list[Told]]:
        """What a reader says to `Shelf.link`, some at a time; where it dies of it, another is asked for the rest."""
        rest, reader = list(asked), self._free.get()
        try:
            for _ in range(_TRIES):
                try:
                    reader.send_bytes(orjson.dumps((source, rest)))
                    while rest:
                        told = _heard(reader)
                        del rest[: len(told)]
                        yield told
                    return
                except (EOFError, OSError):
                    reader.close()
                    reader = self._fork()
                    LOG.warning("a reader has ended and was replaced", extra={"told": {"pid": self.pids[-1]}})
        except OSError:
            raise LostError("the processes that read cannot be replaced; the server must be started anew") from None
        except (GeneratorExit, MemoryError):  # nobody listens any more, and what it says next is not for who asks next
            reader.close()
            raise
        finally:
            self._free.put(reader)
        raise LostError("the process that read this has ended, and so did another; send less at once")

    def close(self) -> None:
        """Let them end, and wait until they have."""
        while not self._free.empty():
            self._free.get().close()
        self._nursery.close()
        with suppress(ChildProcessError):  # where somebody else has waited for it
            os.waitpid(self._pid, 0)

    def _fork(self) -> Connection:
        here, there = socket.socketpair()
        reader = Connection(here.detach())
        with self._turn, there:
            socket.send_fds(self._nursery, [b"+"], [there.fileno()])
            if not (pid := self._nursery.recv(8)):
                raise BrokenPipeError
        self.pids.append(int.from_bytes(pid))
        return reader


def _heard(reader: Connection) -> list[Told]:
    """What a reader tells next; its errors are raised again."""
    head = orjson.loads(reader.recv_bytes())
    if "error" not in head:
        body, place, told = memoryview(reader.recv_bytes()), 0, list[Told]()
        for sizes in head["sizes"]:
            ends = [place := place + size for size in sizes]
            documents = [bytes(body[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
            told.append(Told(documents, head["revision"]))
        return told
    kind = getattr(errors, head["error"], None)
    if kind is not None:
        raise kind(head["why"])
    LOG.error("a reader failed", extra={"told": {"error": head["error"], "trace": head["trace"]}})
    raise RuntimeError(head["error"])  # its message may quote a text


def _nurse(asked: socket.socket, shelf: Shelf) -> NoReturn:
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
                _read(Connection(sockets[0]), shelf)
                os._exit(0)
            os.close(sockets[0])
            asked.send(pid.to_bytes(8))
        _bury(wait=True)
    finally:
        os._exit(0)


def _read(asked: Connection, shelf: Shelf) -> None:
    """Answer until there is nobody who asks."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)  # OpenMP's threads stayed behind
    try:
        while True:
            for part in _answer(shelf, *orjson.loads(asked.recv_bytes())):
                asked.send_bytes(part)
    except (EOFError, OSError):
        return


def _answer(shelf: Shelf, source: dict[str, Any], asked: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    """For some after the other what is said before the documents, and the documents; of an error only the former."""
    try:
        for told in tell(shelf.link(Source(**_hashable(source)), [Asked(**_hashable(one)) for one in asked])):
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
