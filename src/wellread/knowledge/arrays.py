"""Arrays in one file that is mapped, not read: the safetensors layout (a JSON header, then plain arrays).

Any tool that knows safetensors opens it. It is written whole or not at all, and a large array may come in blocks.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.files import write_atomically

_CODES = {
    "F16": np.float16,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "U32": np.uint32,
    "U8": np.uint8,
    "I8": np.int8,
}


@dataclass(frozen=True)
class Blocks:
    """An array that is written block by block, so that nobody holds the whole."""

    dtype: type[np.generic]
    shape: tuple[int, ...]
    blocks: Iterable[NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any] | Blocks], about: Mapping[str, str]) -> None:
    """Write the arrays, the widest numbers first, so that all are aligned."""
    codes = {np.dtype(dtype): code for code, dtype in _CODES.items()}
    order = sorted(arrays.items(), key=lambda entry: -np.dtype(entry[1].dtype).itemsize)
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for name, array in order:
        begin, end = end, end + array.nbytes
        code = codes[np.dtype(array.dtype)]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with write_atomically(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, array in order:
            for block in array.blocks if isinstance(array, Blocks) else (array,):
                file.write(np.ascontiguousarray(block).view(np.uint8).data)


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Map the arrays of a file; what is truncated or no such file is a ValueError."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = 8 + int.from_bytes(mapped[:8], "little")
    if size > len(mapped):
        raise ValueError("it has no header")
    header: dict[str, Any] = json.loads(mapped[8:size])
    header.pop("__metadata__", None)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if size + end > len(mapped):
            raise ValueError("its end is missing")
        dtype = np.dtype(_CODES[entry["dtype"]])
        flat = np.frombuffer(mapped, dtype, (end - begin) // dtype.itemsize, size + begin)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays


class Strings:
    """Many strings as one run of UTF-8 bytes and the places where each ends."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.unsignedinteger]) -> None:
        self.text = memoryview(text)  # type: ignore[arg-type]  # an array is a buffer
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of strings and ends."""
        return self.text.nbytes + self.ends.nbytes

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """The strings of some rows: [2, 0] -> ["c", "a"]."""
        places = np.asarray(rows, np.int64)
        begins, ends = self.ends[places].tolist(), self.ends[places + 1].tolist()
        text = self.text
        return [str(text[begin:end], "utf-8") for begin, end in zip(begins, ends, strict=True)]

    @staticmethod
    def pack(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """What `Strings` is made of."""
        parts = [string.encode() for string in strings]
        ends = np.zeros(len(parts) + 1, np.uint64)
        np.cumsum([len(part) for part in parts], out=ends[1:])
        return np.frombuffer(b"".join(parts), np.uint8), ends
