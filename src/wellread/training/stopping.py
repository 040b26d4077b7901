"""Ctrl-C and polite kills: what was begun is brought to a point from which it can go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from os import write

_late: list[int] = []
"""Signals that came when what listened was at its end anyway."""


@contextmanager
def listening() -> Iterator[list[int]]:
    """The signals that came, for whoever looks at them between two steps; a second one is obeyed at once."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        # Not by print, which a signal may have interrupted.
        write(2, b"stopping after this step; once more stops at once, without saving\n")

    kinds = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = [(kind, signal.signal(kind, note)) for kind in kinds]
    try:
        yield asked
        _late.extend(asked)
    finally:
        for kind, handler in before:
            signal.signal(kind, handler)


def stop_if_requested() -> None:
    """Stop here if that was asked for in the last moments of something that ended all the same."""
    if _late:
        _late.clear()
        raise KeyboardInterrupt
