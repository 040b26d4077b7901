"""Texts without end: a text a line in, a document a line out, in their order, while more are still coming.

A line is a JSON string, or an object with `text` and perhaps `id`. Nothing is refused for being much: a stream reads
as fast as it is answered. A line that is wrong, or takes too long, is answered with its error, and the others go on.
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
from wellread.server.responses import LATE

Answer = Callable[[str], Awaitable[dict[str, Any]]]
"""A text -> what is told of it; taken by the model when this returns its awaitable."""

_AGAIN = 0.005
"""Seconds before a stream asks again whether there is room."""
_REST = 0.05
"""Seconds in which a stream that is told to stop may show that it has ended."""


async def lines_of(chunks: AsyncIterator[bytes], longest: int) -> AsyncIterator[bytes]:
    """Lines, without their ends; an empty one is none."""
    rest = bytearray()
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first  # what came before is not looked through again
        for other in others:
            if rest.strip():
                yield bytes(rest)
            rest = bytearray(other)
        if len(rest) > longest:
            raise InputError(f"a line has more than {longest:,} bytes; send shorter texts")
    if rest.strip():
        yield bytes(rest)


def parse(line: bytes) -> tuple[str, str | None]:
    """Text and id of a line."""
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}") from None
    if isinstance(said, str):
        return said, None
    if isinstance(said, dict) and isinstance(said.get("text"), str) and isinstance(said.get("id"), str | None):
        return said["text"], said.get("id")
    raise InputError('a line is a text, "…", or an object {"text": "…", "id": "…"}')


class LineStream(Response):
    """Answers lines while it reads them, until they end or the server is `stopping`."""

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
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a line for each that comes."""
        asked: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(self._ahead)
        reading = asyncio.create_task(self._read(asked))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            number = 0
            while (one := await asked.get()) is not None:
                number += 1
                body = await self._in_time(number, one)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            reading.cancel()
            while not asked.empty():
                if (left := asked.get_nowait()) is not None:
                    left.cancel()
            self._done()

    async def _read(self, asked: asyncio.Queue[asyncio.Task[bytes] | None]) -> None:
        number = 0
        try:
            async for line in lines_of(self._chunks(), self._longest):
                number += 1
                await asked.put(asyncio.create_task(self._told(number, line)))
        except ClientDisconnect:
            pass
        except TooSlow:
            await asked.put(asyncio.create_task(_wrong(number + 1, "the next line did not arrive in time")))
        except (InputError, ClosedError) as error:
            await asked.put(asyncio.create_task(_wrong(number + 1, str(error))))
        await asked.put(None)

    async def _chunks(self) -> AsyncIterator[bytes]:
        chunks = self._request.stream()
        stop: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        chunk: asyncio.Future[Any] = asyncio.ensure_future(anext(chunks, None))
        try:
            while True:
                await asyncio.wait({chunk, stop}, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    await asyncio.wait({chunk}, timeout=_REST)  # perhaps there was no more to come
                    if not chunk.done() or chunk.result():
                        raise ClosedError("the server is about to stop; send the rest when it is back")
                if (some := chunk.result()) is None:
                    return
                yield some
                chunk = asyncio.ensure_future(anext(chunks, None))
        finally:
            chunk.cancel()
            stop.cancel()

    async def _in_time(self, number: int, told: asyncio.Task[bytes]) -> bytes:
        """What is told of a line, for which the time to answer those before does not count."""
        try:
            async with asyncio.timeout(self._seconds):  # which cancels it too: what nobody waits for is not read
                return await told
        except TimeoutError:
            return await _wrong(number, LATE)

    async def _told(self, number: int, line: bytes) -> bytes:
        try:
            text, id = parse(line)
            async with self._turn:  # else a line behind would take the room of the one that is waited for
                taken = await self._taken(text)
            told = await taken
            if id is not None:
                told["id"] = id
            return orjson.dumps(told) + b"\n"
        except WellreadError as error:
            return await _wrong(number, str(error))
        except Exception:
            LOG.exception("a line of a stream failed")
            return await _wrong(number, "something went wrong here with this line; the log tells more")

    async def _taken(self, text: str) -> Awaitable[dict[str, Any]]:
        while True:
            try:
                return self._answer(text)
            except BusyError:
                await asyncio.sleep(_AGAIN)


async def _wrong(number: int, why: str) -> bytes:
    return orjson.dumps({"line": number, "error": why}) + b"\n"
