"""What every request passes: its host, its size, its time, the headers of its answer, a line in the log, a count.

Lines are JSON, and know routes, sizes and times, never what a text, a name or an address says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wellread.server.metrics import Metrics
from wellread.server.settings import Settings

Handler = Callable[[Request], Awaitable[Response]]
"""Answers a request; errors that are expected, too."""
LOG = logging.getLogger("wellread.server")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a browser lets the page do: only what comes from here, and nothing inline."""
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


_FOREIGN = "this was sent by a page of another site; send it from here, or not by a browser"
_SIMPLE = frozenset({b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"})
"""Kinds of bodies that a page may send to any site."""


class TooLarge(HTTPException):
    """A body with more bytes than are taken."""

    def __init__(self, most: int) -> None:
        why = f"a request has at most {most:,} bytes; send fewer texts, or use /link/stream"
        super().__init__(413, why, {"connection": "close"})


class TooSlow(HTTPException):
    """A body that did not arrive in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(408, f"the request did not arrive within {seconds:g} s", {"connection": "close"})


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, quick: Mapping[str, Handler]) -> None:
        """`quick` answers what is posted to some paths without the application: see `reading_routes`."""
        self.app, self.settings, self.metrics, self.quick = app, settings, metrics, quick
        self._hosts = {host.lower() for host in settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # answered as GET is; what sends it leaves the body out
            scope = {**scope, "method": "GET"}
        passage = _Passage(self, scope, method, receive, send)
        scope.setdefault("state", {})["note"] = passage.note
        try:
            refused = self._refused(scope)
            if refused is not None:
                await passage.refuse(*refused)
            elif scope["method"] == "POST" and scope["path"] in self.quick:
                answer = await self.quick[scope["path"]](Request(scope, passage.receive))
                await answer(scope, passage.receive, passage.send)
            else:
                await self.app(scope, passage.receive, passage.send)
        except ClientDisconnect:
            passage.status = passage.status or 499  # it left in the middle of its request
        except Exception:
            LOG.exception("a request failed", extra={"told": {"id": passage.id}})
            await passage.refuse(500, f"something went wrong here; the log tells more under {passage.id}")
        finally:
            passage.tell()

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:  # two servers on its way may take one each
            return 400, "the request has more than one Host header; send one"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts and host.rpartition(":")[0] not in self._hosts and host not in self._hosts:
            return 400, "this server does not go by that name; start it with --allow-host to let it"
        # A form, a simple request or an image of another site's page comes unasked; links to our page are fine.
        site = headers.get(b"sec-fetch-site", b"none")
        if site not in (b"same-origin", b"none") and (scope["method"] != "GET" or not _is_page(scope)):
            return 403, _FOREIGN
        if b"sec-fetch-site" not in headers and scope["method"] != "GET" and self._is_foreign(headers, host):
            return 403, _FOREIGN
        if not _is_utf8(scope.get("raw_path") or b"") or not _is_utf8(scope.get("query_string") or b""):
            return 422, "the address is not UTF-8; write its letters as UTF-8 and each byte as %XX"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.limits.body and not _streams(scope):
            return 413, str(TooLarge(self.settings.limits.body).detail)
        return None

    def _is_foreign(self, headers: Mapping[bytes, bytes], host: str) -> bool:
        """Return whether a page of another site sent this, where a browser does not say so itself.

        Only kinds of bodies that browsers send without asking first: others would need an answer to OPTIONS.
        """
        origin = headers.get(b"origin")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if origin is None or kind not in _SIMPLE:
            return False
        theirs = origin.decode("latin-1").lower().partition("://")[2]
        return theirs != host and theirs not in self._hosts and theirs.rpartition(":")[0] not in self._hosts


def _streams(scope: Scope) -> bool:
    return bool(scope["path"] == "/link/stream")


def _is_utf8(address: bytes) -> bool:
    """Return whether a part of an address is UTF-8; else its bytes would all become U+FFFD, and two ids one."""
    try:
        unquote_to_bytes(address).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_page(scope: Scope) -> bool:
    """Return whether an address is the page or a part of it, which other sites may link to; the rest is data."""
    return bool(scope["path"] == "/" or scope["path"].startswith("/page/"))


class _Passage:
    """One request on its way."""

    def __init__(self, guard: Guard, scope: Scope, method: str, receive: Receive, send: Send) -> None:
        self.method = method if method in _METHODS else "other"
        self._guard, self._scope, self._receive, self._send = guard, scope, receive, send
        self._begin = time.monotonic()
        self._limits = guard.settings.limits
        self._bytes = 0
        self._waited = 0.0
        self._whole = False
        self._streams = _streams(scope)
        self.id = f"{_HERE}{next(_NUMBERS):06x}"
        self.status = 0
        self.told: dict[str, Any] = {}

    def note(self, **told: Any) -> None:
        """Something for the line in the log: numbers and names of ours."""
        self.told.update(told)

    async def receive(self) -> Message:
        """A part of the body, in time and not too much; after all of it, word that the client has left."""
        if self._whole:
            return await self._receive()
        since = time.monotonic()
        left = self._limits.seconds - (self._waited if self._streams else since - self._begin)
        try:
            async with asyncio.timeout(max(0.001, left)):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(self._limits.seconds) from None
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._bytes += len(body)
            # A stream has that long for each line, in which the time to answer those before does not count.
            self._waited = 0.0 if b"\n" in body else self._waited + time.monotonic() - since
            self._whole = not message.get("more_body", False)
            if self._bytes > self._limits.body and not self._streams:
                raise TooLarge(self._limits.body)
        return message

    async def send(self, message: Message) -> None:
        """A part of the answer, its head with our headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message["headers"])
            names = {name for name, _ in headers}
            headers += [(b"x-request-id", self.id.encode()), *_HEADERS]
            if b"content-security-policy" not in names:
                headers.append((b"content-security-policy", POLICY.encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, status: int, why: str) -> None:
        """Say no, if nothing was said yet; and hear no more of that client."""
        if self.status:
            return
        body = json.dumps({"error": why}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def tell(self) -> None:
        """The line in the log, and the counts."""
        seconds = time.monotonic() - self._begin
        route = getattr(self._scope.get("route"), "path_format", "other")  # as the docs have it: /entities/{id}
        self._guard.metrics.requests.labels(self.method, route, str(self.status)).inc()
        self._guard.metrics.seconds.labels(route).observe(seconds)
        if self.status == 429:
            self._guard.metrics.refused.inc()
        LOG.info(
            "request",
            extra={
                "told": {
                    "id": self.id,
                    "method": self.method,
                    "route": route,
                    "status": self.status,
                    "seconds": round(seconds, 4),
                    "bytes": self._bytes,
                    **self.told,
                }
            },
        )


_HERE, _NUMBERS = uuid.uuid4().hex[:6], count(1)
"""An id for each request: of this process, and its number."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


@lru_cache(2)
def _second(number: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(number))


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, and what was told with it."""
        line: dict[str, Any] = {
            "time": f"{_second(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "told", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:  # its message may quote a text
            frames = traceback.extract_tb(record.exc_info[2])
            line["error"] = record.exc_info[0].__name__
            line["trace"] = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=True)
