"""How many things are worth doing at once."""

from __future__ import annotations

import os


def cores() -> int:
    """The cores that this process may use, where the system tells; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
