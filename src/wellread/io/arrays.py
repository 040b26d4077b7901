"""Memory-mapped arrays in one file of the safetensors layout (a JSON header, then plain arrays).

Any tool for safetensors opens it. It is written atomically, and a large array may be written block by block.
"""

from __future__ import annotations

import array
import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wellread.io import checksum
from wellread.io.files import MappedFile, write_atomically

_CODES = {
    "F16": np.float16,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "I8": np.int8,
}
_IN_BLOCK = 64


@dataclass(frozen=True)
class Blocks:
    """An array that is written block by block, so that it need not fit in memory."""

    dtype: type[np.generic]
    shape: tuple[int, ...]
    blocks: Iterable[NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any] | Blocks], about: Mapping[str, str]) -> None:
    """Write arrays with checksums and metadata; the widest numbers come first, so that all are aligned."""
    codes = {np.dtype(dtype): code for code, dtype in _CODES.items()}
    order = sorted(arrays.items(), key=lambda entry: -np.dtype(entry[1].dtype).itemsize)
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for name, given in order:
        begin, end = end, end + given.nbytes
        code = codes[np.dtype(given.dtype)]
        header[name] = {"dtype": code, "shape": list(given.shape), "data_offsets": [begin, end]}
    header |= checksum.entry(end)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with write_atomically(path, follow_links=False) as whole, checksum.added(whole) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, given in order:
            for block in given.blocks if isinstance(given, Blocks) else (given,):
                file.write(np.ascontiguousarray(block).view(np.uint8).data)


@dataclass(frozen=True)
class MappedArrays:
    """Arrays of a file, its metadata, and the file itself, to notice that it was overwritten in place."""

    arrays: dict[str, NDArray[Any]]
    metadata: dict[str, str]
    file: MappedFile


def open_arrays(path: Path) -> MappedArrays:
    """Map the arrays of a file with checksums; a truncated or damaged file, or one without them, is a ValueError."""
    with open(path, "rb") as file:
        arrays, metadata, has_checksums = _map(file)
        if not has_checksums:
            raise ValueError("it has no checksum")
        return MappedArrays(arrays, metadata, MappedFile(file.fileno()))


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Map the arrays of a file; a truncated or damaged one, or another kind of file, is a ValueError."""
    with open(path, "rb") as file:
        return _map(file)[0]


def map_with_metadata(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Map the arrays of a file, and return its metadata too; errors as by `map_arrays`."""
    with open(path, "rb") as file:
        return _map(file)[:2]


def _map(file: IO[bytes]) -> tuple[dict[str, NDArray[Any]], dict[str, str], bool]:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = 8 + int.from_bytes(mapped[:8], "little")
    if size > len(mapped):
        raise ValueError("it has no header")
    header: dict[str, Any] = json.loads(mapped[8:size])
    has_checksums = header.pop(checksum.ARRAY, None) is not None
    if has_checksums and not checksum.holds(mapped):
        raise ValueError("its checksum is wrong")
    metadata: dict[str, str] = header.pop("__metadata__", {})
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if size + end > len(mapped):
            raise ValueError("its end is missing")
        dtype = np.dtype(_CODES[entry["dtype"]])
        flat = np.frombuffer(mapped, dtype, (end - begin) // dtype.itemsize, size + begin)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays, metadata, has_checksums


class Strings:
    """Many strings as one array of UTF-8 bytes and an array of the offsets where each ends.

    Offsets are relative to the block of 64 strings, so that they take two bytes, not eight.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        self.text = memoryview(arrays[name])  # type: ignore[arg-type]  # an array is a buffer
        self._offsets, self._blocks = arrays[f"{name}_offsets"], arrays[f"{name}_blocks"]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Size of strings and offsets in bytes."""
        return self.text.nbytes + self._offsets.nbytes + self._blocks.nbytes

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the strings of some rows: [2, 0] -> ["c", "a"]."""
        places = np.asarray(rows, np.int64)
        begins, ends = self._ends_at(places).tolist(), self._ends_at(places + 1).tolist()
        text = self.text
        return [str(text[begin:end], "utf-8") for begin, end in zip(begins, ends, strict=True)]

    def _ends_at(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self._blocks.take(at // _IN_BLOCK) + self._offsets.take(at), np.int64)

    def equals(self, other: Strings) -> bool:
        """Return True for the same strings in the same order."""
        return np.array_equal(self._offsets, other._offsets) and bytes(self.text) == bytes(other.text)

    @staticmethod
    def pack(strings: Iterable[bytes | bytearray], name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays for `Strings`, with the prefix `name`."""
        text, ends = bytearray(), array.array("q", [0])
        for string in strings:
            text += string
            ends.append(len(text))
        places = np.array(ends, np.int64)
        blocks = places[::_IN_BLOCK].copy()
        offsets = places - np.repeat(blocks, _IN_BLOCK)[: len(places)]
        return {
            name: np.frombuffer(text, np.uint8) if text else np.zeros(0, np.uint8),
            f"{name}_offsets": offsets.astype(np.uint16 if offsets.max() < 1 << 16 else np.int64),
            f"{name}_blocks": blocks,
        }
