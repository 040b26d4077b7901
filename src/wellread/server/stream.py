"""Streaming of linked documents: one JSON line per text in, one per document out, in order.

A line is a JSON string, or an object with `text` and optionally `id`. The stream has no total limit: the server reads
as fast as it answers. A line that is invalid or times out is answered with an error; the stream continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wellread.errors import InputError, WellreadError
from wellread.server.batching import BusyError, ClosedError
from wellread.server.middleware import LOG, TooSlow
from wellread.server.responses import TIMEOUT_MESSAGE

Answer = Callable[[str], Awaitable[dict[str, Any]]]
"""Queues a text and returns an awaitable of its document; raises `BusyError` if the queue is full."""

_AGAIN = 0.005
"""Seconds between attempts to queue a text."""
_REST = 0.05
"""Seconds to wait for the end of a stream when the server stops."""


async def lines_of(chunks: AsyncIterator[bytes], longest: int) -> AsyncIterator[bytes]:
    """Yield lines without their ends; skip empty ones."""
    rest = bytearray()
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first  # bytes before it are not searched again
        for other in others:
            if rest.strip():
                yield bytes(rest)
            rest = bytearray(other)
        if len(rest) > longest:
            raise InputError(f"a line has more than {longest:,} bytes; send shorter texts")
    if rest.strip():
        yield bytes(rest)


def parse(line: bytes) -> tuple[str, str | None]:
    """Return text and id of a line."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}") from None
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and isinstance(value.get("text"), str) and isinstance(value.get("id"), str | None):
        return value["text"], value.get("id")
    raise InputError('a line is a text, "…", or an object {"text": "…", "id": "…"}')


class LineStream(Response):
    """Response that reads lines and answers them concurrently, until they end or the server is `stopping`."""

    def __init__(
        self,
        request: Request,
        answer: Answer,
        *,
        ahead: int,
        longest: int,
        seconds: float,
        stopping: asyncio.Event,
        done: Callable[[], None],
    ) -> None:
        super().__init__(media_type="application/x-ndjson")
        del self.headers["content-length"]
        self._request, self._answer, self._stopping, self._done = request, answer, stopping, done
        self._ahead, self._longest, self._seconds = ahead, longest, seconds
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send one line for each line received."""
        lines: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(self._ahead)
        reading = asyncio.create_task(self._read(lines))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            number = 0
            while (task := await lines.get()) is not None:
                number += 1
                body = await self._in_time(number, task)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            reading.cancel()
            while not lines.empty():
                if (left := lines.get_nowait()) is not None:
                    left.cancel()
            self._done()

    async def _read(self, lines: asyncio.Queue[asyncio.Task[bytes] | None]) -> None:
        number = 0
        try:
            async for line in lines_of(self._chunks(), self._longest):
                number += 1
                await lines.put(asyncio.create_task(self._answer_line(number, line)))
        except ClientDisconnect:
            pass
        except TooSlow:
            await lines.put(asyncio.create_task(_error_line(number + 1, "the next line did not arrive in time")))
        except (InputError, ClosedError) as error:
            await lines.put(asyncio.create_task(_error_line(number + 1, str(error))))
        await lines.put(None)

    async def _chunks(self) -> AsyncIterator[bytes]:
        chunks = self._request.stream()
        stop: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        chunk: asyncio.Future[Any] = asyncio.ensure_future(anext(chunks, None))
        try:
            while True:
                await asyncio.wait({chunk, stop}, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    await asyncio.wait({chunk}, timeout=_REST)  # the stream may have ended at the same time
                    if not chunk.done() or chunk.result():
                        raise ClosedError("the server is stopping; send the rest when it is back")
                if (data := chunk.result()) is None:
                    return
                yield data
                chunk = asyncio.ensure_future(anext(chunks, None))
        finally:
            chunk.cancel()
            stop.cancel()

    async def _in_time(self, number: int, line_task: asyncio.Task[bytes]) -> bytes:
        """Await the answer to a line; its timeout starts after the previous line was answered."""
        try:
            async with asyncio.timeout(self._seconds):  # also cancels the queued text
                return await line_task
        except TimeoutError:
            return await _error_line(number, TIMEOUT_MESSAGE)

    async def _answer_line(self, number: int, line: bytes) -> bytes:
        try:
            text, id = parse(line)
            async with self._lock:  # otherwise a later line could take the queue space of an earlier one
                queued = await self._queue(text)
            document = await queued
            if id is not None:
                document["id"] = id
            return orjson.dumps(document) + b"\n"
        except WellreadError as error:
            return await _error_line(number, str(error))
        except Exception:
            LOG.exception("a line of a stream failed")
            return await _error_line(number, "internal error at this line; see the server's log")

    async def _queue(self, text: str) -> Awaitable[dict[str, Any]]:
        while True:
            try:
                return self._answer(text)
            except BusyError:
                await asyncio.sleep(_AGAIN)


async def _error_line(number: int, why: str) -> bytes:
    return orjson.dumps({"line": number, "error": why}) + b"\n"
