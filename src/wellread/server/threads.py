"""Threads for what neither the event loop nor the models should wait for, and a bound on what waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wellread.server.batching import BusyError

T = TypeVar("T")

MOST = 64
"""What may be asked before the first is answered."""


class Aside:
    """A few threads for one kind of question, so that one kind does not wait for another."""

    def __init__(self, name: str, threads: int, most: int = MOST) -> None:
        self._pool = ThreadPoolExecutor(threads, f"wellread-{name}")
        self._room = threading.Semaphore(most)

    async def ask(self, ask: Callable[[], T], *, stop: threading.Event | None = None) -> T:
        """The answer; who finds no room is told to come again, and who leaves before its turn is not asked for.

        `stop` is set when the answer is no longer waited for, so that `ask` can end early.
        """
        if not self._room.acquire(blocking=False):
            raise BusyError(1)
        asked = self._pool.submit(ask)
        asked.add_done_callback(lambda done: self._room.release())  # when it ends, not when nobody waits any more
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            if stop is not None:
                stop.set()
            raise

    def close(self) -> None:
        """Finish what was taken."""
        self._pool.shutdown()
