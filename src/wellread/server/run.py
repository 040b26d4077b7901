"""Starting and stopping the server: token, sockets, HTTP protocol with limits, signals, log."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import ipaddress
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from wellread.errors import InputError, UsageError
from wellread.io.files import read_text
from wellread.server.app import create_app
from wellread.server.engine import Engine
from wellread.server.middleware import LOG, JsonLines

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MIN_TOKEN = 16
MAX_HEAD_BYTES = 32 << 10
"""Maximum bytes of a request's head: method, address, headers."""
MAX_CONNECTIONS = 512
"""Maximum open connections, idle ones included."""


def read_token(path: str | Path) -> str:
    """Return the token in a file; refuse one that is too short to be secret."""
    token = read_text(str(path)).strip()
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{path} should hold one word of at least {_MIN_TOKEN} letters and digits; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def allowed_hosts(host: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the accepted Host names: on loopback its own and `more`, elsewhere `more`, or any if that is empty."""
    if not is_loopback(host):
        return more
    own = f"[{host}]" if ":" in host else host
    return tuple(dict.fromkeys(("127.0.0.1", "localhost", "[::1]", own, *more)))


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host: "127.0.0.2" -> True."""
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def bind_sockets(host: str, port: int, *, patience: float = 30.0) -> Iterator[list[socket.socket]]:
    """Bind sockets at all addresses of a host to one port (0: any free one), without listening yet.

    They are bound before models are loaded, so that an occupied port is reported at once. A client that does not
    acknowledge data for `patience` seconds is disconnected (TCP_USER_TIMEOUT, Linux only).
    """
    sockets: list[socket.socket] = []
    try:
        try:
            _bind(sockets, host, port)
            for one in sockets:
                if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * patience))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"cannot listen on {host}, port {port} ({why}); choose another --port or --host") from None
        yield sockets
    finally:
        for one in sockets:
            one.close()


def serve(engine: Engine, sockets: Sequence[socket.socket], *, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM, then finish accepted requests; `ready` is called with the port when listening."""
    _configure_logging()
    if not faulthandler.is_enabled():  # logs the stack if a signal such as SIGBUS ends the process
        faulthandler.enable()
    Server(engine, ready).run(list(sockets))
    LOG.info("stopped")


class Server(uvicorn.Server):
    """uvicorn server that logs its start and end, and returns after SIGINT or SIGTERM.

    `uvicorn.Server` raises the signal again after the shutdown, which would end the process with an error.
    """

    def __init__(self, engine: Engine, ready: Callable[[int], None]) -> None:
        limits = engine.settings.limits
        options: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False, "backlog": 512}
        options |= {
            "http": partial(LimitedHttpProtocol, seconds=limits.seconds),
            "timeout_graceful_shutdown": limits.grace,
            # uvicorn's 5 s are a usual Retry-After: a client that waits so long would write to a closing connection.
            "timeout_keep_alive": limits.seconds,
        }
        super().__init__(uvicorn.Config(create_app(engine), **options))
        self._engine, self._ready = engine, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and call `ready`."""
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        LOG.info("listening", extra={"fields": {"port": port, "kbs": list(self._engine.registry.served_kbs)}})
        self._ready(port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end streams and finish accepted requests."""
        LOG.info("stopping", extra={"fields": {"waiting": self._engine.batcher.waiting}})
        self._engine.stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM; Python delivers signals to the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class LimitedHttpProtocol(HttpToolsProtocol):
    """HTTP connection with limits on the size and time of a request's head, and on the number of connections.

    uvicorn does not limit these: it collects header lines for as long as they arrive. `middleware` limits the body.
    """

    def __init__(
        self, *given: Any, seconds: float, longest: int = MAX_HEAD_BYTES, most: int = MAX_CONNECTIONS, **options: Any
    ) -> None:
        """`seconds` is the timeout of a head, of an idle connection, and of the rest of a request answered early."""
        super().__init__(*given, **options)
        self._seconds, self._longest, self._most = seconds, longest, most
        self._in_head = True
        self._bytes = 0
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it with 503 if too many are open."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(503, "too many connections are open; try again later")
        else:
            self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._cancel_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse a head that is too long."""
        if self.transport.is_closing():
            return
        self._bytes += len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            if self._bytes > self._longest:
                self._refuse_head()
            elif self._timeout is None:
                self._start_timeout()

    def on_message_begin(self) -> None:
        """Start to count the head of a request; it may begin in the same bytes that end the previous one."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Check the size of the complete head."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._longest:
            self._refuse_head()
            raise ValueError("too long")  # ends the parser
        self._in_head = False
        self._cancel_timeout()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Send 400 unless a response was sent already."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        """Reset the counts for the next request."""
        super().on_message_complete()
        self._in_head, self._bytes = True, 0
        self._cancel_timeout()

    def on_response_complete(self) -> None:
        """Start the timeout anew, for the next request or for a client that is still sending its body."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._start_timeout()

    def _start_timeout(self) -> None:
        self._cancel_timeout()
        self._timeout = self.loop.call_later(self._seconds, self.shutdown)  # finishes a response that has started

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of the request is too long; send at most {self._longest:,} bytes")

    def _refuse(self, status: int, why: str) -> None:
        self._cancel_timeout()
        body = f'{{"error": "{why}"}}'.encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def _bind(sockets: list[socket.socket], host: str, port: int) -> None:
    problem: OSError | None = None
    for family, kind, number, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        free = sockets[0].getsockname()[1] if sockets else port
        bound = socket.socket(family, kind, number)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address[0], free, *address[2:]))
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                raise
            problem = error  # a host name may resolve to an address this machine does not have
        else:
            sockets.append(bound)
    if problem is not None and not sockets:
        raise problem


def _configure_logging() -> None:
    """Log JSON lines to stderr; from uvicorn warnings only, since the server logs requests itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("wellread.server", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
