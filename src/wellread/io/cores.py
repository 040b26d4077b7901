"""Number of processor cores, and of threads that this process may use for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import LibController

_limit: int | None = None


def cores() -> int:
    """Return the number of cores that this process may use; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def granted_threads() -> int:
    """Return the number of threads for one computation; OMP_NUM_THREADS and `limit_threads` lower it."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    granted = min(cores(), int(asked)) if asked.isdecimal() and int(asked) else cores()
    return granted if _limit is None else min(granted, _limit)


def limit_threads(count: int) -> None:
    """Use at most `count` threads for one computation in this process: in the runtime, BLAS, OpenMP and torch."""
    global _limit
    _limit = count
    for library, threads in _libraries():
        library.set_num_threads(min(count, threads))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(min(count, torch.get_num_threads()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for each computation in a `with` block, e.g. where several processes share the cores."""
    global _limit
    before, torch = _limit, sys.modules.get("torch")
    torch_before = None if torch is None else torch.get_num_threads()
    libraries_before = _libraries()
    limit_threads(1)
    try:
        yield
    finally:
        _limit = before
        for library, threads in libraries_before:
            library.set_num_threads(threads)
        if torch is not None:
            torch.set_num_threads(torch_before)


def _libraries() -> list[tuple[LibController, int]]:
    """Return the loaded libraries of BLAS and OpenMP, each with its number of threads.

    numpy and faiss bring their own: BLAS's idle threads wait in a loop, at the cost of the other processes.
    """
    from threadpoolctl import ThreadpoolController  # here: a single link does not limit threads

    return [(library, library.num_threads) for library in ThreadpoolController().lib_controllers]
