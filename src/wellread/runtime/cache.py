"""Graphs kept on disk under the digest of what they are made from, so that one is made once and read ever after.

A file is written whole or not at all, carries checksums of all its bytes, and is made again where it is damaged.
Processes that want the same graph at the same time wait for the first one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from wellread import __version__
from wellread.errors import StorageError
from wellread.io import checksum
from wellread.io.arrays import map_arrays, save_arrays

_VERSION = 1
"""Counts up whenever the graph of the same weights changes."""
_KEPT = 12
"""Graphs in a cache folder; the oldest make room for new ones."""
_PATIENCE = 300.0
"""Seconds to wait for another process that makes the same graph."""


def digest_of_parts(*parts: object) -> str:
    """Return the digest of what a graph is made from; another version of wellread has another one."""
    return hashlib.sha256(repr((__version__, _VERSION, *parts)).encode()).hexdigest()[:32]


def digest_of_file(file: Path) -> str:
    """Return the sha256 of a file's bytes; "" where there is no such file."""
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cached_graph(folder: Path | None, digest: str, build: Callable[[], bytes]) -> bytes:
    """Return the graph with this digest, built and kept where the folder lacks it; without a folder it is not kept.

    A folder that cannot be written costs time at each start, nothing else.
    """
    if folder is None:
        return build()
    file = folder / f"graph-{digest}.safetensors"
    if (graph := _read(file)) is not None:
        return graph
    with _locked(file):
        if (graph := _read(file)) is not None:  # made by another process meanwhile
            return graph
        graph = build()
        with contextlib.suppress(StorageError):
            save_arrays(file, {"graph": np.frombuffer(graph, np.uint8)}, {"format": "wellread graph 1"})
            _make_room(folder)
    return graph


def _read(file: Path) -> bytes | None:
    try:
        if checksum.holds(file.read_bytes(), all_blocks=True):
            with contextlib.suppress(OSError):
                os.utime(file)  # the graphs used last are kept
            return map_arrays(file)["graph"].tobytes()
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file; where that is not possible, go on without: two equal graphs do no harm."""
    from filelock import FileLock, Timeout  # here: what only reads starts without it

    lock = FileLock(file.with_suffix(".lock"))
    with contextlib.suppress(OSError, Timeout):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        lock.release()


def _make_room(folder: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(folder.glob("graph-*.safetensors"), key=lambda file: file.stat().st_mtime)
        for file in files[:-_KEPT]:
            file.unlink(missing_ok=True)
            file.with_suffix(".lock").unlink(missing_ok=True)
