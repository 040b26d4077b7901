"""Reading compressed files with progress, and writing files atomically."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import errno
import gzip
import io
import lzma
import os
import re
import shutil
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, TypeVar, cast

from wellread.errors import InputError, StorageError, WellreadError


def _open_zstd(below: IO[bytes]) -> io.BufferedIOBase:
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(below, "r"), "zstd"))


_ARCHIVES: tuple[tuple[bytes, Callable[[IO[bytes]], io.BufferedIOBase]], ...] = (
    (b"\x1f\x8b", lambda below: gzip.GzipFile(fileobj=below)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", _open_zstd),
)
"""First bytes of an archive -> function that opens it."""

BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""Errors of reading a truncated or damaged file, for all compressions."""
_CHUNK = 1 << 20
_T = TypeVar("_T")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
    *(errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL),
)
_FRESH = 60.0
"""Seconds for which an unfinished file counts as being written, locked or not."""
_OPEN = ("/dev/std", "/dev/fd/", "/proc/")
"""Prefixes of the paths of files that are open already."""


class Progress(Protocol):
    """Protocol of the two numbers that a progress bar needs (`kb.records.Tally` has them)."""

    done_bytes: int
    total_bytes: int


class _Stream(io.RawIOBase):
    """A stream over another that counts bytes and closes the files opened for it."""

    def __init__(self, file: io.BufferedIOBase, opened: Sequence[io.IOBase], progress: Progress | None = None) -> None:
        self._file = file
        self._opened = opened
        self._progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than Buffer
        count = self._file.readinto1(buffer)  # what is available: a pipe may be slow
        if self._progress is not None:
            self._progress.done_bytes += count
        return count

    def close(self) -> None:
        for file in self._opened:
            file.close()
        super().close()


def path_name(path: str | Path) -> str:
    """Return the name of a file for messages: its path, or "standard input" for "-"."""
    return "standard input" if str(path) == "-" else str(path)


def open_bytes(path: str | Path, progress: Progress | None = None) -> io.BufferedReader:
    """Open a plain, gz, bz2, xz or zst file (detected by its first bytes) decompressed; "-" is standard input."""
    if str(path) == "-":
        # Standard input must stay open.
        below: io.BufferedReader = io.BufferedReader(
            _Stream(cast(io.BufferedIOBase, sys.stdin.buffer), (), progress), _CHUNK
        )
    else:
        try:
            raw = open(path, "rb")  # noqa: SIM115  # closed with the stream over it
        except IsADirectoryError:
            raise InputError(f"{path} is a folder; give a file in it") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error
        if progress is not None:
            progress.total_bytes += os.fstat(raw.fileno()).st_size
        below = io.BufferedReader(_Stream(raw, (raw,), progress), _CHUNK)
    head = below.peek(6)[:6]
    for magic, unpack in _ARCHIVES:
        if head.startswith(magic):
            archive = unpack(below)
            return io.BufferedReader(_Stream(archive, (archive, below)), _CHUNK)
    return below


def is_packed(path: str | Path) -> bool:
    """Return whether a file is compressed in a way that `open_bytes` decompresses."""
    with open(path, "rb") as file:
        head = file.read(6)
    return any(head.startswith(magic) for magic, _ in _ARCHIVES)


def read_lines(path: str | Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines (from 1) as bytes without line end or byte-order mark; a damaged file is an `InputError`."""
    with open_bytes(path, progress) as file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                yield number, (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip(b"\r\n")
        except BROKEN as error:
            raise InputError(
                f"{path_name(path)} is truncated or damaged after line {number}: {error}; fetch or copy it again"
            ) from error


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text without its byte-order mark; another encoding is an `InputError` that says where."""
    with open_bytes(path) as file:
        try:
            data = file.read()
        except BROKEN as error:
            raise InputError(f"{path_name(path)} is truncated or damaged: {error}; fetch or copy it again") from error
    return decode(data, path_name(path))


def make_or_skip(make: Callable[[], _T], skipped: list[str] | None, where: str = "") -> Iterator[_T]:
    """Yield the result of `make`, or nothing if it raises `InputError`.

    The message then goes to `skipped`, with `where`; without such a list the error is raised.
    """
    try:
        made = make()
    except InputError as error:
        message = f"{where}: {error}" if where else str(error)
        if skipped is None:
            raise InputError(message) from error
        skipped.append(message)
    else:
        yield made


def decode(data: bytes, where: str) -> str:
    """Decode UTF-8 bytes; `where` is named in the error if they are not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 (byte {error.start}: 0x{data[error.start]:02x}); {conversion(data)}"
        ) from None


def conversion(data: bytes) -> str:
    """Return a command that converts data to UTF-8: from UTF-16 by its byte-order mark, else an 8-bit one."""
    encoding = "UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "LATIN1"
    return f"convert it, e.g. iconv -f {encoding} -t UTF-8"


@contextlib.contextmanager
def storage(path: str | Path) -> Iterator[None]:
    """Turn disk errors into a `StorageError` that names the file: full, failing or not writable."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageError(
                f"the disk is full: {path} was not written; free some space and run the same command again"
            ) from error
        if error.errno in _CLOSED:
            raise StorageError(
                f"cannot write {path}: {error.strerror}; choose another folder or change its permissions"
            ) from error
        if error.errno == errno.EIO:
            raise StorageError(f"the disk fails: {path} was not written; check the disk, or use another") from error
        raise


@contextlib.contextmanager
def write_atomically(path: str | Path, *, follow_links: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name complete or not at all: written beside it, synced, then renamed.

    A symbolic link stays and its target is written; a pipe or a device, which cannot be renamed over, is written
    directly. Derived files that no user named are written without `follow_links`: they replace a link, which may have
    come with an archive and point to any file of the user.
    """
    path = Path(path)
    with storage(path):
        if follow_links and path.exists() and (not path.is_file() or str(path).startswith(_OPEN)):
            with open(path, "ab") as file:  # /dev/stdout may be a file with content
                yield file
            return
        target = Path(os.path.realpath(path) if follow_links else path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")  # mkstemp's are private to the owner
        _sweep_parts(target)
        try:
            with open(part, "xb") as file:
                _claim(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _claim(file: IO[bytes]) -> bool:
    """Lock an open file for this process until it is closed; False if another process holds it."""
    try:
        import fcntl
    except ImportError:  # no locks on this system, so nothing is deleted there
        return False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep_parts(target: Path) -> None:
    """Delete unfinished files of a target whose writers were killed: those that no process has locked."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in [entry for entry in entries if name.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _FRESH:  # may not be locked yet
                    continue
                with open(entry.path, "rb") as file:
                    left = _claim(file)
                if left:
                    os.unlink(entry.path)


def sweep_leftovers(*folders: Path) -> None:
    """Delete files of killed writers in folders that only this process writes: `.NAME.part`, `.tmpXXXXXX`.

    The latter come from safetensors, which writes each file under such a name first.
    """
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            if not re.fullmatch(r"\..*\.part|\.tmp\w{6}", path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


class MappedFile:
    """State of a mapped file when it was opened; replacing it by rename does not affect the mapping.

    Overwriting or truncating it in place (`cp`, `rsync --inplace`) does: access to a missing page ends the process
    (SIGBUS). So `overwritten` is checked before each use. It looks at the mapped file itself, not at the file that has
    its name by then.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._content = self._state()

    @classmethod
    def at(cls, path: Path) -> MappedFile | None:
        """Return the file at a path; None if there is none."""
        try:
            with open(path, "rb") as file:
                return cls(file.fileno())
        except OSError:
            return None

    def overwritten(self) -> bool:
        """Return whether the content has changed since it was opened."""
        return self._state() != self._content

    def _state(self) -> tuple[int, int]:
        about = os.fstat(self._descriptor)
        return about.st_size, about.st_mtime_ns

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)


@contextlib.contextmanager
def only_writer(folder: Path, refusal: WellreadError, *, patience: float = 10.0) -> Iterator[None]:
    """Lock a folder (made if missing) for one writing process; raise `refusal` after `patience` seconds."""
    from filelock import FileLock, Timeout  # here: programs that only read start without it

    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise refusal from None
    try:
        yield
    finally:
        lock.release()


def csv_fault(error: Exception) -> str:
    """Return the reason why a table cannot be read, in plain words."""
    unclosed = "unexpected end of data" in str(error)
    return "a quote is not closed, all that follows is in one cell" if unclosed else str(error)
