"""Starting a server, and ending it well."""

from __future__ import annotations

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

from wellread.errors import InputError, UsageError
from wellread.io.files import read_text
from wellread.server.app import create_app
from wellread.server.connection import Connection
from wellread.server.engine import Engine
from wellread.server.middleware import LOG, JsonLines

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHORTEST = 16


def read_token(path: str | Path) -> str:
    """The token in a file; one that can be guessed is refused."""
    token = read_text(str(path)).strip()
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{path} should hold one word of at least {_SHORTEST} letters and digits; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def allowed_hosts(host: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names that a server may be called by: on loopback its own and those given, elsewhere those given or any."""
    if not is_loopback(host):
        return more
    own = f"[{host}]" if ":" in host else host
    return tuple(dict.fromkeys(("127.0.0.1", "localhost", "[::1]", own, *more)))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it: "127.0.0.2" -> True."""
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def doors(host: str, port: int, *, patience: float = 30.0) -> Iterator[list[socket.socket]]:
    """Sockets at all addresses of a host, with one port (0: any that is free), which nobody listens to yet.

    They are taken before models are loaded, so that a port which is not free is told at once. A client that does not
    take its answer for `patience` seconds is let go, where the system can (Linux).
    """
    sockets: list[socket.socket] = []
    try:
        try:
            _take(sockets, host, port)
            for one in sockets:
                if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * patience))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(
                f"nothing can be served at {host}, port {port} ({why}); choose another --port or --host"
            ) from None
        yield sockets
    finally:
        for one in sockets:
            one.close()


def serve(engine: Engine, sockets: Sequence[socket.socket], *, ready: Callable[[int], None]) -> None:
    """Answer until told to stop; then finish what was taken. `ready` is told the port once clients are heard."""
    _log_lines()
    if not faulthandler.is_enabled():  # a line in the log where a signal such as SIGBUS ends the process
        faulthandler.enable()
    Server(engine, ready).run(list(sockets))
    LOG.info("stopped")


class Server(uvicorn.Server):
    """One that says when it begins and ends, and whose end, when it is told to stop, is a good end.

    uvicorn's own would then kill the process.
    """

    def __init__(self, engine: Engine, ready: Callable[[int], None]) -> None:
        limits = engine.settings.limits
        options: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False, "backlog": 512}
        options |= {"http": partial(Connection, seconds=limits.seconds), "timeout_graceful_shutdown": limits.grace}
        super().__init__(uvicorn.Config(create_app(engine), **options))
        self._engine, self._ready = engine, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        LOG.info("listening", extra={"told": {"port": port, "kbs": list(self._engine.registry.served_kbs)}})
        self._ready(port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and finish."""
        LOG.info("stopping", extra={"told": {"waiting": self._engine.worker.waiting}})
        self._engine.stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM, which only the first thread of a process hears."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _take(sockets: list[socket.socket], host: str, port: int) -> None:
    problem: OSError | None = None
    for family, kind, number, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        free = sockets[0].getsockname()[1] if sockets else port
        made = socket.socket(family, kind, number)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((address[0], free, *address[2:]))
        except OSError as error:
            made.close()
            if error.errno == errno.EADDRINUSE:
                raise
            problem = error  # a machine may go by an address that it does not have: the others do
        else:
            sockets.append(made)
    if problem is not None and not sockets:
        raise problem


def _log_lines() -> None:
    """Lines of JSON on stderr; of uvicorn's only what is wrong, since the server tells the rest itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("wellread.server", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
