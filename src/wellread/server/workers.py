"""Worker processes that link, one per core; threads of one process would wait for the GIL.

Workers are forked, so they share the loaded models' memory. One process, the fork server, is forked before any thread
starts, and forks all workers: those of the start, and a replacement for each that dies. Requests and results go through
sockets as JSON. A worker ignores SIGINT and SIGTERM: it ends when its socket is closed, by the server or with it.

A worker that dies or hangs is replaced. A busy one hangs if it sends nothing for longer than the request timeout; an
idle one if it does not answer a ping, which is sent every few seconds.
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
from wellread.io.cores import limit_threads
from wellread.server.middleware import LOG
from wellread.server.registry import LinkerKey, LinkerRegistry, LinkResult
from wellread.server.served_kb import LinkJob

_NICE = 5
"""Niceness of workers: the event loop of the server takes precedence."""
_TRIES = 2
"""Workers that may die of one batch before it fails."""
_JOBS_PER_MESSAGE = 4
"""Jobs per message: one message per job would cost more than it gains."""


_PING, _PONG = b"?", b"!"
_PING_INTERVAL = 5.0
"""Seconds between rounds of pings."""
_PING_TIMEOUT = 5.0
"""Seconds that an idle worker has to answer a ping."""
_MAX_FAILED = 3
"""Consecutive failed batches after which the server is not ready."""


class LostError(WellreadError):
    """503: the worker died and the request was not answered."""


class _HangingError(Exception):
    """A worker has sent nothing within the timeout."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process and the socket to it."""

    connection: Connection
    pid: int


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Documents of one job as JSON, encoded in the worker, and their KB revision."""

    documents: list[bytes]
    revision: int


def encode_results(answers: Iterable[LinkResult]) -> Iterator[list[EncodedDocuments]]:
    """Encode results as JSON, a few at a time; lazy documents are built here."""
    dump = orjson.dumps
    option = orjson.OPT_SERIALIZE_NUMPY
    results = (
        EncodedDocuments([dump(document, option=option) for document in one.documents], one.revision) for one in answers
    )
    while some := list(islice(results, _JOBS_PER_MESSAGE)):
        yield some


def can_fork() -> bool:
    """Return True on Linux; system libraries elsewhere do not survive a fork."""
    return sys.platform == "linux"


class LinkWorkers:
    """Pool of forked processes with a registry; create it before any thread starts."""

    def __init__(
        self,
        registry: LinkerRegistry,
        count: int,
        *,
        patience: float = 60.0,
        replaced: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`patience` is the timeout of a busy worker in seconds; `replaced` is called with "died" or "hung"."""
        self._fork_server, child_socket = socket.socketpair()
        with warnings.catch_warnings(
            action="ignore", category=DeprecationWarning
        ):  # about BLAS's threads, which are idle
            self._pid = os.fork()
        if not self._pid:
            _run_fork_server(child_socket, registry)
        child_socket.close()
        self.count, self._patience, self._note = count, patience, replaced
        self._lock = threading.Lock()
        self.pids: list[int] = []
        """Pids of all workers ever forked, the latest last."""
        self._failed = 0
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(count):
            self._free.put(self._fork())
        self._closed = threading.Event()
        self._pinging = threading.Thread(target=self._ping, name="wellread-pings", daemon=True)
        self._pinging.start()

    @property
    def alive(self) -> bool:
        """True if the fork server runs, so that a dead worker can be replaced."""
        return not select.select([self._fork_server], [], [], 0)[0]

    @property
    def ready(self) -> bool:
        """True unless the last batches all failed because workers died."""
        return self.alive and self._failed < _MAX_FAILED

    @property
    def replaced(self) -> int:
        """Number of workers that were replaced."""
        return len(self.pids) - self.count

    def link(self, key: LinkerKey, jobs: Sequence[LinkJob]) -> Iterator[list[EncodedDocuments]]:
        """Yield results of `LinkerRegistry.link` in a worker, a few at a time; if it dies, another does the rest."""
        rest, worker = list(jobs), self._free.get()
        try:
            for _ in range(_TRIES):
                try:
                    worker.connection.send_bytes(orjson.dumps((key, rest)))
                    while rest:
                        if not worker.connection.poll(self._patience):
                            raise _HangingError
                        results = _receive_documents(worker.connection)
                        del rest[: len(results)]
                        yield results
                    self._failed = 0
                    return
                except (EOFError, OSError):
                    worker = self._replace(worker, "died")
                except _HangingError:  # the request has timed out already
                    worker = self._replace(worker, "hung")
                    break
        except OSError:
            raise LostError("the worker processes cannot be replaced; restart the server") from None
        except (GeneratorExit, MemoryError):  # unread results must not reach the next request
            worker.connection.close()
            raise
        finally:
            self._free.put(worker)
        self._failed += 1
        raise LostError("two worker processes died of this request; send less at once")

    def close(self) -> None:
        """End all workers and wait for them."""
        self._closed.set()
        self._pinging.join()
        while not self._free.empty():
            self._free.get().connection.close()
        self._fork_server.close()
        with suppress(ChildProcessError):  # it was waited for elsewhere
            os.waitpid(self._pid, 0)

    def _fork(self) -> _Worker:
        here, there = socket.socketpair()
        # A stopped process reads nothing: without a timeout a large message would block forever.
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(self._patience)), 0))
        connection = Connection(here.detach())
        with self._lock, there:
            socket.send_fds(self._fork_server, [b"+"], [there.fileno()])
            if not (pid := self._fork_server.recv(8)):
                raise BrokenPipeError
        self.pids.append(int.from_bytes(pid))
        return _Worker(connection, self.pids[-1])

    def _replace(self, worker: _Worker, reason: str) -> _Worker:
        """Return a new worker in place of a dead or hanging one; OSError if none can be forked."""
        if not worker.connection.closed:
            worker.connection.close()
        # Its pid cannot be reused yet: the fork server reaps it when it forks the next worker.
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        new = self._fork()
        self._note(reason)
        LOG.warning(
            "a worker died and was replaced" if reason == "died" else "a worker hung and was replaced",
            extra={"fields": {"pid": new.pid, "was": worker.pid}},
        )
        return new

    def _ping(self) -> None:
        """Replace idle workers that do not answer a ping."""
        while not self._closed.wait(_PING_INTERVAL):
            for _ in range(self.count):
                try:
                    worker = self._free.get_nowait()
                except Empty:
                    break
                try:
                    worker = self._check_idle(worker)
                except OSError:  # none can be forked; `alive` reports it
                    pass
                finally:
                    self._free.put(worker)

    def _check_idle(self, worker: _Worker) -> _Worker:
        if worker.connection.closed:  # the next request replaces it
            return worker
        try:
            worker.connection.send_bytes(_PING)
            if not worker.connection.poll(_PING_TIMEOUT):
                return self._replace(worker, "hung")
            worker.connection.recv_bytes()
        except (EOFError, OSError):
            return self._replace(worker, "died")
        return worker


def _receive_documents(worker: Connection) -> list[EncodedDocuments]:
    """Receive the next results of a worker; raise its errors."""
    head = orjson.loads(worker.recv_bytes())
    if "error" not in head:
        body, place, results = memoryview(worker.recv_bytes()), 0, list[EncodedDocuments]()
        for sizes in head["sizes"]:
            ends = [place := place + size for size in sizes]
            documents = [bytes(body[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
            results.append(EncodedDocuments(documents, head["revision"]))
        return results
    kind = getattr(errors, head["error"], None)
    if kind is not None:
        raise kind(head["why"])
    LOG.error("a worker failed", extra={"fields": {"error": head["error"], "trace": head["trace"]}})
    raise RuntimeError(head["error"])  # its message may contain text of a request


def _run_fork_server(control: socket.socket, registry: LinkerRegistry) -> NoReturn:
    """Fork a worker for each socket received; end when the server and all workers have ended."""
    try:
        _drop_sockets(control.fileno())
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # sent to the whole process group; the server finishes accepted requests
            signal.signal(number, signal.SIG_IGN)
        logging.disable()  # the server logs changes of KBs
        os.nice(_NICE)
        gc.collect()
        gc.freeze()  # the garbage collector writes to objects, which would unshare their pages
        while True:
            some, sockets, _, _ = socket.recv_fds(control, 1, 1)
            if not some:
                break
            _reap_children()
            if not (pid := os.fork()):
                control.close()
                _serve_requests(Connection(sockets[0]), registry)
                os._exit(0)
            os.close(sockets[0])
            control.send(pid.to_bytes(8))
        _reap_children(wait=True)
    finally:
        os._exit(0)


def _serve_requests(connection: Connection, registry: LinkerRegistry) -> None:
    """Answer requests until the socket is closed."""
    limit_threads(1)  # one core each; threads of OpenMP do not survive the fork
    try:
        while True:
            if (message := connection.recv_bytes()) == _PING:
                connection.send_bytes(_PONG)
                continue
            for part in _encode_messages(registry, *orjson.loads(message)):
                connection.send_bytes(part)
    except (EOFError, OSError):
        return


def _encode_messages(registry: LinkerRegistry, key: dict[str, Any], jobs: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    """Yield messages: a header with sizes, then the documents; a header alone for an error."""
    try:
        for results in encode_results(
            registry.link(LinkerKey(**_hashable(key)), [LinkJob(**_hashable(one)) for one in jobs])
        ):
            sizes = [[len(document) for document in one.documents] for one in results]
            head = orjson.dumps({"revision": results[0].revision, "sizes": sizes})
            body = b"".join(document for one in results for document in one.documents)
            yield from (head, body)  # both are built before either is sent, so an error is never taken for documents
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        trace = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        yield orjson.dumps({"error": type(error).__name__, "why": str(error), "trace": trace})


def _hashable(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _drop_sockets(mine: int) -> None:
    """Close inherited sockets of clients and other workers, so that they close when the server closes them."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and number != mine and stat.S_ISSOCK(os.fstat(number).st_mode):  # stderr may be a socket
                os.close(number)
        except OSError:  # the descriptor of /proc/self/fd itself
            continue


def _reap_children(*, wait: bool = False) -> None:
    """Wait for child processes that have ended."""
    try:
        while os.waitpid(-1, 0 if wait else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
