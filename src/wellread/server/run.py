"""Starting a server, and ending it well."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from wellread.errors import InputError, UsageError
from wellread.files import read_text
from wellread.server.app import create_app
from wellread.server.engine import Engine
from wellread.server.guard import LOG, JsonLines

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
    if host in LOOPBACK:
        return ("127.0.0.1", "localhost", "[::1]", *more)
    return more


def serve(engine: Engine, *, host: str, port: int) -> None:
    """Answer until told to stop; then finish what was taken."""
    _log_lines()
    limits = engine.settings.limits
    options: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False}
    config = uvicorn.Config(
        create_app(engine),
        host=host,
        port=port,
        timeout_graceful_shutdown=limits.grace,
        backlog=512,
        **options,
    )
    server = _Server(config)
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it could not start
        raise UsageError(f"nothing can be served at {host}, port {port}: is it taken? choose another --port") from None
    LOG.info("stopped")


class _Server(uvicorn.Server):
    """One whose end, when it is told to stop, is a good end: uvicorn's own would then kill the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _log_lines() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("wellread.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
