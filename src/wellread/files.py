"""Reading files of any compression with a sense of how far we are, and writing files all or nothing."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from wellread.errors import InputError, StorageError

_MAGIC = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"))
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Progress(Protocol):
    """Anything with the two numbers that a progress bar needs (`kb.records.Tally` is one)."""

    done_bytes: int
    total_bytes: int


class _Counted(io.RawIOBase):
    """A file that notes how many of its bytes were read."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than RawIOBase's Buffer
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._progress.done_bytes += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_bytes(path: str | Path, progress: Progress | None = None) -> IO[bytes]:
    """The decompressed bytes of a plain, gz, bz2 or xz file (told by its first bytes); "-" is standard input."""
    if str(path) == "-":
        raw: BinaryIO = sys.stdin.buffer
    else:
        try:
            raw = open(path, "rb")
        except IsADirectoryError:
            raise InputError(f"{path} is a folder; give a file in it") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error
        if progress is not None:
            progress.total_bytes += os.fstat(raw.fileno()).st_size
    counted: IO[bytes] = io.BufferedReader(_Counted(raw, progress), 1 << 20) if progress is not None else raw  # type: ignore[assignment]
    if not hasattr(counted, "peek"):
        counted = io.BufferedReader(counted, 1 << 20)  # type: ignore[arg-type]
    head = counted.peek(6)[:6]  # type: ignore[attr-defined]
    kind = next((kind for magic, kind in _MAGIC if head.startswith(magic)), "plain")
    if kind == "gz":
        return gzip.open(counted)  # type: ignore[return-value]
    if kind == "bz2":
        return bz2.open(counted)
    if kind == "xz":
        return lzma.open(counted)
    return counted


def read_lines(path: str | Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbered lines (from 1) as bytes without their end; a truncated archive is an `InputError`."""
    with open_bytes(path, progress) as file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip(b"\r\n")
        except _BROKEN as error:
            raise InputError(f"{path} is truncated or damaged after line {number}: {error}; fetch or copy it again") from error
        except OSError as error:
            raise InputError(f"{path} cannot be decompressed after line {number}: {error}; fetch or copy it again") from error


def read_text(path: str | Path) -> str:
    """A whole UTF-8 text (a byte-order mark is dropped); another encoding is an `InputError` that says where."""
    with open_bytes(path) as file:
        try:
            data = file.read()
        except (*_BROKEN, OSError) as error:
            raise InputError(f"{path} is truncated or damaged: {error}; fetch or copy it again") from error
    return decode(data, str(path))


def decode(data: bytes, where: str) -> str:
    """UTF-8 bytes as text; `where` names the place in the message when they are not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 (byte {error.start}: 0x{data[error.start]:02x}); convert it, e.g. iconv -f LATIN1 -t UTF-8"
        ) from None


@contextlib.contextmanager
def storage(path: str | Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one clear message that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"the disk is full: {path} was not written; free some space and run the same command again") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(f"cannot write {path}: {error.strerror}; choose another folder or change its permissions") from error
        raise


@contextlib.contextmanager
def write_atomically(path: str | Path, mode: str = "wb") -> Iterator[IO[bytes]]:
    """A file that appears under its name whole, or not at all: written beside it, synced, then renamed."""
    path = Path(path)
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, mode) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
