"""A connection whose requests have heads that end: within a size, within a time, and not too many at once.

uvicorn bounds none of these: it collects the lines of a head for as long as they come. A body is the guard's to watch.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

LONGEST = 32 << 10
"""Bytes of a head: a method, an address, headers."""
MOST = 512
"""Connections at the same time, whether or not they ask for something."""


class Connection(HttpToolsProtocol):
    """One client's."""

    def __init__(self, *given: Any, seconds: float, longest: int = LONGEST, most: int = MOST, **options: Any) -> None:
        """`seconds` are for a head to arrive, and for what is left of a request that has its answer already."""
        super().__init__(*given, **options)
        self._seconds, self._longest, self._most = seconds, longest, most
        self._in_head = True
        self._bytes = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(503, "too many connections are open; try again later")
        else:
            self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes more."""
        if self.transport.is_closing():
            return
        self._bytes += len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            if self._bytes > self._longest:
                self._refuse_head()
            elif self._late is None:
                self._hurry()

    def on_message_begin(self) -> None:
        """A request begins, perhaps in bytes that ended another."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Its head is here."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._longest:
            self._refuse_head()
            raise ValueError("too long")  # the parser hears no more of it
        self._in_head = False
        self._rest()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Say that it is no HTTP, unless more was said already."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        """All of it is here, and what comes next is another."""
        super().on_message_complete()
        self._in_head, self._bytes = True, 0
        self._rest()

    def on_response_complete(self) -> None:
        """It has its answer; whoever is still sending should come to an end."""
        super().on_response_complete()
        if not self._in_head and not self.transport.is_closing():
            self._hurry()

    def _hurry(self) -> None:
        self._rest()
        self._late = self.loop.call_later(self._seconds, self.shutdown)  # an answer that is under way is finished

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of a request has at most {self._longest:,} bytes")

    def _refuse(self, status: int, why: str) -> None:
        self._rest()
        body = f'{{"error": "{why}"}}'.encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
