"""Embedding files, written in a stream: Arrow (a column of lists) or NumPy's npz (arrays of equal length).

Rows are never all in memory: Arrow is written batch by batch, and for npz, which needs the number of rows first,
columns are written to temporary files.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from wellread.errors import UsageError
from wellread.inference.embed import Rows
from wellread.io.files import write_atomically

FORMATS = {".npz": "npz", ".arrow": "arrow"}
_BLOCK = 1 << 22
_STRINGS = ("entity", "kb")
_NUMBERS = {"piece": np.dtype(np.int64), "score": np.dtype(np.float64)}
"""Types of the columns of `Rows.more`, needed if there are no rows."""


def format_of(path: str | Path) -> str:
    """Return the format of a file by its suffix."""
    try:
        return FORMATS[Path(path).suffix]
    except KeyError:
        raise UsageError(f"{path} has an unknown suffix; expected one of {', '.join(FORMATS)}") from None


def write_rows(path: str | Path, rows: Iterable[Rows], nothing: Rows, *, half: bool = False) -> int:
    """Write rows to a .npz or .arrow file, atomically; return their number.

    An empty file has the columns of `nothing` (`Embedder.nothing`).
    """
    kind = np.dtype(np.float16 if half else np.float32)
    write = _write_npz if format_of(path) == "npz" else _write_arrow
    with write_atomically(path) as file:
        stream = iter(rows)
        return write(file, chain([next(stream, nothing)], stream), kind)


def _write_arrow(file: IO[bytes], rows: Iterable[Rows], kind: np.dtype[Any]) -> int:
    import pyarrow as pa

    count, writer = 0, None
    for some in rows:
        dim = some.vectors.shape[1]
        flat = pa.array(some.vectors.astype(kind, copy=False).reshape(-1))
        columns = {
            "text": pa.array(some.texts),
            "start": pa.array(some.spans[:, 0]),
            "end": pa.array(some.spans[:, 1]),
            "name": pa.array(some.names, pa.string()),
            **{
                name: pa.array(values, pa.string() if name in _STRINGS else pa.from_numpy_dtype(_NUMBERS[name]))
                for name, values in some.more.items()
            },
            "vector": pa.FixedSizeListArray.from_arrays(flat, dim),
        }
        batch = pa.record_batch(columns)
        if writer is None:
            writer = pa.ipc.new_file(file, batch.schema)
        writer.write_batch(batch)
        count += len(some.texts)
    if writer is not None:
        writer.close()
    return count


def _write_npz(file: IO[bytes], rows: Iterable[Rows], kind: np.dtype[Any]) -> int:
    count, dim, columns = 0, 0, dict[str, Any]()
    widest: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=Path(file.name).parent) as folder:  # on the same disk
        aside = {name: open(Path(folder) / name, "wb+") for name in ("vectors", "text", "start", "end")}  # noqa: SIM115
        try:
            for some in rows:
                count, dim = count + len(some.texts), some.vectors.shape[1]
                parts = {"vectors": some.vectors.astype(kind, copy=False), "text": some.texts}
                parts |= {"start": some.spans[:, 0], "end": some.spans[:, 1]}
                for name, values in some.more.items():
                    if name not in _STRINGS:
                        parts[name] = np.asarray(values, _NUMBERS[name])
                        continue
                    widest[name] = max(widest.get(name, 1), max(map(len, values), default=1))
                    parts[name] = np.frombuffer(json.dumps(values).encode() + b"\n", np.uint8)
                for name, part in parts.items():
                    if name not in aside:
                        aside[name] = open(Path(folder) / name, "wb+")  # noqa: SIM115
                    columns[name] = part.dtype
                    aside[name].write(np.ascontiguousarray(part).tobytes())
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name, stream in aside.items():
                    stream.seek(0)
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        dtype = np.dtype(f"<U{widest[name]}") if name in widest else columns[name]
                        shape = (count, dim) if name == "vectors" else (count,)
                        about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                        npy.write_array_header_2_0(member, about)
                        for block in _strings(stream, dtype) if name in widest else _blocks(stream):
                            member.write(block)
        finally:
            for stream in aside.values():
                stream.close()
    return count


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _strings(stream: IO[bytes], dtype: np.dtype[Any]) -> Iterator[bytes]:
    for line in stream:
        yield np.array(json.loads(line), dtype).tobytes()
