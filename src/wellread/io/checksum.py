"""Checksums inside files of the safetensors layout: a CRC-32 for the header and for each block of 64 KiB.

They are one more array of bytes at the end of the file, so any tool for safetensors can open it:

    header | block 0 | block 1 | … | last block | crc of header, crc of each block, crc of all these crcs

Opening a file checks the header, the checksums and some blocks (`holds`), about a millisecond for any size; `wellread
kb check` checks everything.
"""

from __future__ import annotations

import json
import mmap
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ARRAY = "checksums"
_BLOCK = 1 << 16
_SAMPLES = 16
"""Blocks that are checked when a file is opened, evenly spaced, the first and the last among them."""


def entry(end: int) -> dict[str, Any]:
    """Return the header entry of the checksums of `end` bytes of arrays; it is the last one."""
    size = 4 * (-(-end // _BLOCK) + 2)
    return {ARRAY: {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}}


class _Summing:
    """A file written in order that sums its blocks; the first write is the header."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._crcs = array("I")
        self._crc = self._filled = 0

    def write(self, data: Any) -> None:
        self._file.write(data)
        if not self._crcs:
            self._crcs.append(zlib.crc32(data))
            return
        view = memoryview(data)
        if not view.nbytes:  # an empty view cannot be cast
            return
        view = view.cast("B")
        while len(view):
            part = view[: _BLOCK - self._filled]
            self._crc = zlib.crc32(part, self._crc)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == _BLOCK:
                self._finish_block()

    def _finish_block(self) -> None:
        self._crcs.append(self._crc)
        self._crc = self._filled = 0

    def finish(self) -> None:
        if self._filled:
            self._finish_block()
        known = _little(self._crcs)
        self._file.write(known + zlib.crc32(known).to_bytes(4, "little"))


@contextmanager
def added(file: IO[bytes]) -> Iterator[_Summing]:
    """Write through the result: the header in one call, then all arrays; the checksums are appended at the end."""
    summing = _Summing(file)
    yield summing
    summing.finish()


def holds(content: Any, *, all_blocks: bool = False) -> bool:
    """Return whether the bytes of a file agree with its checksums; False where it has none or no header."""
    try:
        view = memoryview(content).cast("B")
        begin = 8 + int.from_bytes(view[:8], "little")
        where = json.loads(bytes(view[8:begin]))[ARRAY]["data_offsets"]
        end = begin + where[0]
        kept = bytes(view[end : begin + where[1]])
        if len(kept) != 4 * (-(-where[0] // _BLOCK) + 2) or begin + where[1] != len(view):
            return False
        crcs = _from_little(kept)
        if crcs.pop() != zlib.crc32(kept[:-4]) or crcs.pop(0) != zlib.crc32(view[:begin]):
            return False
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
        return False
    step = 1 if all_blocks else max(1, -(-len(crcs) // _SAMPLES))
    chosen = {*range(0, len(crcs), step), len(crcs) - 1} if crcs else set()
    return all(
        zlib.crc32(view[begin + number * _BLOCK : min(end, begin + (number + 1) * _BLOCK)]) == crcs[number]
        for number in chosen
    )


def has_checksums(content: Any) -> bool:
    """Return whether the header of a file names checksums; files of older versions have none."""
    view = memoryview(content).cast("B")
    return f'"{ARRAY}"'.encode() in bytes(view[8 : 8 + int.from_bytes(view[:8], "little")])


def is_damaged(path: Path) -> bool:
    """Return whether a file exists and any byte of it disagrees with its checksums; reads all of it."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # empty
        return True
    except FileNotFoundError:
        return False
    with mapped:
        content = memoryview(mapped)
        try:
            return has_checksums(content) and not holds(content, all_blocks=True)
        finally:
            content.release()


def crc_of(path: Path) -> int:
    """Return the CRC-32 of a whole file, for formats without checksums inside."""
    crc = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            crc = zlib.crc32(part, crc)
    return crc


def _little(numbers: array[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _from_little(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
