"""Cross-origin access (CORS) to some paths, for pages of allowed origins.

The server refuses requests from pages of other sites (`middleware`). OpenRefine is such a page: it asks a
reconciliation service from the browser. This middleware stands before that check: it answers preflight requests of
allowed origins, hides their origin from the check, and adds the CORS headers to the response.

JSONP is not offered: a script request does not tell its origin, so any web site could read the KBs of a local server.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wellread.errors import UsageError

_BROWSER = (b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user")


def check_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Return origins in lower case, or raise for one that is not scheme://host[:port]."""
    found = tuple(origin.lower().rstrip("/") for origin in origins)
    for origin in found:
        if not re.fullmatch(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]+)?", origin):
            raise UsageError(f"{origin} is not an origin; give scheme, host and port: http://127.0.0.1:3333")
    return found


class CrossOriginMiddleware:
    """Middleware that admits pages of some origins to paths below a prefix, and frames of documents below others."""

    def __init__(self, app: ASGIApp, *, prefix: str, origins: Collection[str], frames: str) -> None:
        self.app, self._prefix, self._frames = app, prefix, frames
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight request, or pass the request on."""
        if scope["type"] != "http" or not self._is_below(scope["path"]):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin.lower() not in self._origins:
            if self._origins and _is_frame(scope, headers) and scope["path"].endswith(self._frames):
                scope = _without_origin(scope)  # who may frame it is in its content security policy
            await self.app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            allowed += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", b"content-type"),
                (b"access-control-max-age", b"600"),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *allowed]}
            await send(message)

        await self.app(_without_origin(scope), receive, send_allowed)

    def _is_below(self, path: str) -> bool:
        return path == self._prefix or path.startswith(f"{self._prefix}/")


def _is_frame(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    return bool(scope["method"] == "GET" and headers.get(b"sec-fetch-dest") == b"iframe")


def _without_origin(scope: Scope) -> Scope:
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in _BROWSER]}
