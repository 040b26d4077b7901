"""ASGI middleware of all requests: checks of host and origin, limits on size and time, security headers, log, metrics.

Log lines are JSON with routes, sizes and times; they never contain texts, names or addresses.
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
"""Answers a request, expected errors included."""
LOG = logging.getLogger("wellread.server")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: resources of this server only, nothing inline."""
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


_FOREIGN = "the request comes from a page of another site; send it from this server's page, or without a browser"
_SIMPLE = frozenset({b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"})
"""Content types that a page may send to any site without a CORS preflight."""


class TooLarge(HTTPException):
    """413: the body has more bytes than allowed."""

    def __init__(self, most: int) -> None:
        why = f"the request is too large; send at most {most:,} bytes, or use /link/stream"
        super().__init__(413, why, {"connection": "close"})


class TooSlow(HTTPException):
    """408: the body did not arrive in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(408, f"the request did not arrive within {seconds:g} s", {"connection": "close"})


class RequestMiddleware:
    """Middleware around the application; `fast_routes` answer POST requests of some paths without the router."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, fast_routes: Mapping[str, Handler]) -> None:
        self.app, self.settings, self.metrics, self.fast_routes = app, settings, metrics, fast_routes
        self._hosts = {host.lower() for host in settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # uvicorn omits the body
            scope = {**scope, "method": "GET"}
        context = _RequestContext(self, scope, method, receive, send)
        scope.setdefault("state", {})["note"] = context.note
        try:
            refused = self._refused(scope)
            if refused is not None:
                await context.refuse(*refused)
            elif scope["method"] == "POST" and scope["path"] in self.fast_routes:
                response = await self.fast_routes[scope["path"]](Request(scope, context.receive))
                await response(scope, context.receive, context.send)
            else:
                await self.app(scope, context.receive, context.send)
        except ClientDisconnect:
            context.status = context.status or 499  # disconnected before the end of its request
        except Exception:
            LOG.exception("a request failed", extra={"fields": {"id": context.id}})
            await context.refuse(500, f"internal error; see the server's log, id {context.id}")
        finally:
            context.log()

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:  # proxies may disagree on which one counts
            return 400, "the request has more than one Host header; send one"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts and host.rpartition(":")[0] not in self._hosts and host not in self._hosts:
            return 400, "unknown Host name; start the server with --allow-host NAME to accept it"
        # Pages of other sites may link to our page, but not send forms, simple requests or image requests.
        fetch_site = headers.get(b"sec-fetch-site", b"none")
        if fetch_site not in (b"same-origin", b"none") and (scope["method"] != "GET" or not _is_page(scope)):
            return 403, _FOREIGN
        if b"sec-fetch-site" not in headers and scope["method"] != "GET" and self._is_foreign(headers, host):
            return 403, _FOREIGN
        if not _is_utf8(scope.get("raw_path") or b"") or not _is_utf8(scope.get("query_string") or b""):
            return 422, "the address is not UTF-8; encode it as UTF-8 and write each byte as %XX"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.limits.body and not _streams(scope):
            return 413, str(TooLarge(self.settings.limits.body).detail)
        return None

    def _is_foreign(self, headers: Mapping[bytes, bytes], host: str) -> bool:
        """Return True if a page of another site sent this, for browsers without Sec-Fetch-Site.

        Only content types without a CORS preflight matter: the others need a response to OPTIONS first.
        """
        origin = headers.get(b"origin")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if origin is None or kind not in _SIMPLE:
            return False
        site = origin.decode("latin-1").lower().partition("://")[2]
        return site != host and site not in self._hosts and site.rpartition(":")[0] not in self._hosts


def _streams(scope: Scope) -> bool:
    return bool(scope["path"] == "/link/stream")


def _is_utf8(address: bytes) -> bool:
    """Return True if a part of an address is UTF-8; otherwise its bytes become U+FFFD, and two ids would be equal."""
    try:
        unquote_to_bytes(address).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_page(scope: Scope) -> bool:
    """Return True for the page, the API's documentation and their files, which other sites may link to."""
    return bool(scope["path"] in ("/", "/docs") or scope["path"].startswith(("/page/", "/docs/")))


class _RequestContext:
    """State of one request: limits while its body is received, status, and fields of its log line."""

    def __init__(self, middleware: RequestMiddleware, scope: Scope, method: str, receive: Receive, send: Send) -> None:
        self.method = method if method in _METHODS else "other"
        self._middleware, self._scope, self._receive, self._send = middleware, scope, receive, send
        self._begin = time.monotonic()
        self._limits = middleware.settings.limits
        self._bytes = 0
        self._waited = 0.0
        self._whole = False
        self._streams = _streams(scope)
        self.id = f"{_HERE}{next(_NUMBERS):06x}"
        self.status = 0
        self.fields: dict[str, Any] = {}

    def note(self, **fields: Any) -> None:
        """Add fields to the log line: numbers, and names of KBs."""
        self.fields.update(fields)

    async def receive(self) -> Message:
        """Receive a part of the body within the limits; after its end, wait for the disconnect."""
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
            # A stream has that long for each line, without the time to answer the lines before.
            self._waited = 0.0 if b"\n" in body else self._waited + time.monotonic() - since
            self._whole = not message.get("more_body", False)
            if self._bytes > self._limits.body and not self._streams:
                raise TooLarge(self._limits.body)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response; add the security headers to its head."""
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
        """Send an error response unless one has started, and close the connection."""
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

    def log(self) -> None:
        """Log the request and update the metrics."""
        seconds = time.monotonic() - self._begin
        route = getattr(self._scope.get("route"), "path_format", "other")  # as the docs have it: /entities/{id}
        self._middleware.metrics.requests.labels(self.method, route, str(self.status)).inc()
        self._middleware.metrics.seconds.labels(route).observe(seconds)
        if self.status == 429:
            self._middleware.metrics.refused.inc()
        LOG.info(
            "request",
            extra={
                "fields": {
                    "id": self.id,
                    "method": self.method,
                    "route": route,
                    "status": self.status,
                    "seconds": round(seconds, 4),
                    "bytes": self._bytes,
                    **self.fields,
                }
            },
        )


_HERE, _NUMBERS = uuid.uuid4().hex[:6], count(1)
"""Parts of a request id: one of the process, and a number."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


@lru_cache(2)
def _format_second(number: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(number))


class JsonLines(logging.Formatter):
    """Log formatter that writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, message and the extra `fields`; of an exception its type and stack."""
        line: dict[str, Any] = {
            "time": f"{_format_second(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:  # its message may contain text of a request
            frames = traceback.extract_tb(record.exc_info[2])
            line["error"] = record.exc_info[0].__name__
            line["trace"] = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=True)
