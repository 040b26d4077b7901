"""Ctrl-C and SIGTERM: stop after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from os import write

_late: list[int] = []
"""Signals that arrived after the last step."""


@contextmanager
def listening() -> Iterator[list[int]]:
    """Collect signals in a list that is checked between steps; a second signal interrupts at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        # Not print, which the signal may have interrupted.
        write(2, b"stopping after this step; once more stops at once, without saving\n")

    kinds = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = [(kind, signal.signal(kind, note)) for kind in kinds]
    try:
        yield received
        _late.extend(received)
    finally:
        for kind, handler in before:
            signal.signal(kind, handler)


def stop_if_requested() -> None:
    """Raise `KeyboardInterrupt` if a stop was requested too late for the loop to notice."""
    if _late:
        _late.clear()
        raise KeyboardInterrupt
