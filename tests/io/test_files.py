"""Reading any compression with progress, writing all or nothing, and a disk that says no."""

import bz2
import errno
import gc
import gzip
import io
import lzma
import os
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.errors import InputError, StorageError
from wellread.io.files import open_bytes, read_lines, read_text, storage, write_atomically
from wellread.kb.records import Tally

PACK = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": partial(lzma.compress, preset=0)}
DATA = b"".join(b"line %d of many\n" % number for number in range(100_000))


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("progress", [None, Tally])
def test_a_file_is_read_whatever_its_compression_and_name(tmp_path, kind, progress):
    (tmp_path / "x").write_bytes(PACK[kind](DATA))
    tally = progress and progress()
    with open_bytes(tmp_path / "x", tally) as file:
        assert file.read() == DATA
    if tally:
        assert tally.done_bytes == tally.total_bytes == (tmp_path / "x").stat().st_size


@pytest.mark.parametrize("kind", PACK)
def test_closing_a_reader_closes_the_file_below(tmp_path, kind):
    (tmp_path / "x").write_bytes(PACK[kind](DATA))
    before = set(os.listdir("/proc/self/fd"))
    with open_bytes(tmp_path / "x", Tally()) as file:
        file.readline()
        assert set(os.listdir("/proc/self/fd")) != before
    lines = read_lines(tmp_path / "x")
    next(lines)
    lines.close()
    assert set(os.listdir("/proc/self/fd")) == before
    gc.collect()  # a file left open would warn here, and a warning is an error


@pytest.mark.parametrize("kind", PACK)
def test_standard_input_is_read_and_stays_open(monkeypatch, kind):
    stdin = io.TextIOWrapper(io.BytesIO(PACK[kind](b"one\ntwo\n")))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [line for _, line in read_lines("-", Tally())] == [b"one", b"two"]
    gc.collect()
    assert not stdin.buffer.closed


def test_a_slow_pipe_is_handed_on_line_by_line(monkeypatch):
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as below, os.fdopen(write_end, "wb", buffering=0) as out:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(below))
        out.write(b"first line\n")
        lines = read_lines("-")
        assert next(lines) == (1, b"first line")  # would wait for ever if it asked for a whole buffer
        out.write(b"second\n")
        assert next(lines) == (2, b"second")
        out.close()
        assert list(lines) == []


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"")), max_size=9))
def test_lines_are_numbered_from_one_without_their_ends(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "x"
    path.write_bytes(b"-" + b"".join(line + end for line, end in zip(lines, [b"\n", b"\r\n"] * 9, strict=False)))
    expected = [b"-" + lines[0], *lines[1:]] if lines else [b"-"]
    assert list(read_lines(path)) == list(enumerate(expected, 1))


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert list(read_lines(tmp_path / "x")) == [(1, b"one"), (2, b"\xef\xbb\xbftwo")]
    assert read_text(tmp_path / "x").startswith("one")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("harm", ["truncated", "garbled"])
def test_a_damaged_archive_is_one_clear_message(tmp_path, kind, harm):
    packed = bytearray(PACK[kind](os.urandom(1000) + DATA))
    if harm == "truncated":
        packed = packed[: len(packed) // 2]
    else:
        packed[len(packed) // 2 :] = b"?" * (len(packed) - len(packed) // 2)
    (tmp_path / "x").write_bytes(packed)
    with pytest.raises(InputError, match=r"x is truncated or damaged after line \d+: .*; fetch or copy it again"):
        list(read_lines(tmp_path / "x"))
    with pytest.raises(InputError, match=r"x is truncated or damaged: .*; fetch or copy it again"):
        read_text(tmp_path / "x")


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none: No such file or directory; check the path"):
        open_bytes(tmp_path / "none")
    with pytest.raises(InputError, match="is a folder; give a file in it"):
        open_bytes(tmp_path)


def test_a_text_that_is_not_utf8_says_where(tmp_path):
    (tmp_path / "x").write_bytes("caf\xe9".encode("latin1"))
    with pytest.raises(InputError, match=r"x is not UTF-8 \(byte 3: 0xe9\); convert it, e\.g\. iconv"):
        read_text(tmp_path / "x")


# Writing.


def test_a_file_appears_whole_with_the_permissions_of_any_other(tmp_path):
    with write_atomically(tmp_path / "new" / "x") as file:
        file.write(b"data")
        assert not (tmp_path / "new" / "x").exists()
    assert (tmp_path / "new" / "x").read_bytes() == b"data"
    (tmp_path / "usual").touch()
    assert (tmp_path / "new" / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert os.listdir(tmp_path / "new") == ["x"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "x").write_bytes(b"old")

    def attempt():
        with write_atomically(tmp_path / "x") as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        attempt()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_or_a_file_in_the_way_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x", tmp_path / "file" / "y" / "x", tmp_path / ("long" * 100)):
        with (
            pytest.raises(StorageError, match=r"cannot write .*; choose another folder"),
            write_atomically(path) as file,
        ):
            file.write(b"data")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full: x was not written; free some space"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EFBIG, "the disk is full"),
        (errno.EROFS, "cannot write x: Read-only file system; choose another folder"),
        (errno.EACCES, "cannot write x: Permission denied"),
        (errno.ENOTDIR, "cannot write x: Not a directory"),
        (errno.EISDIR, "cannot write x: Is a directory"),
        (errno.EIO, "the disk fails: x was not written"),
    ],
)
def test_each_way_a_disk_says_no_has_its_message(number, message):
    with pytest.raises(StorageError, match=message), storage("x"):
        raise OSError(number, os.strerror(number))


def test_other_errors_are_not_the_disks():
    with pytest.raises(ConnectionRefusedError), storage("x"):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no")


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "x")
    (tmp_path / "dangling").symlink_to("there/y")
    for link in ("link", "dangling"):
        with write_atomically(tmp_path / link) as file:
            file.write(b"new")
        assert (tmp_path / link).is_symlink()
    assert [(tmp_path / "there" / name).read_bytes() for name in ("x", "y")] == [b"new", b"new"]


def test_a_derived_file_takes_the_place_of_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine")
    link.symlink_to(target)
    with write_atomically(link, follow_links=False) as file:
        file.write(b"derived")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("mine", "derived", False)


def test_what_a_killed_writer_left_is_swept_but_not_what_is_being_written(tmp_path):
    path = tmp_path / "x.names"
    names = (".x.names.0123abcd.part", ".x.names.89abcdef.part", ".y.part")
    left, fresh, other = (tmp_path / name for name in names)
    for one in (left, fresh, other):
        one.write_bytes(b"half")
    with write_atomically(path) as file:
        (mine,) = [one for one in tmp_path.glob(".x.names.*.part") if one not in (left, fresh)]
        for one in (left, mine, other):
            os.utime(one, (0, 0))
        with write_atomically(path) as second:
            second.write(b"second")
        assert {one.name for one in tmp_path.iterdir()} == {"x.names", mine.name, fresh.name, other.name}
        file.write(b"first")
    assert path.read_bytes() == b"first"


def test_a_pipe_is_written_into_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with write_atomically(tmp_path / "pipe") as file:
        file.write(b"data")
    assert os.read(reader, 99) == b"data"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
def test_what_stdout_was_redirected_to_keeps_what_it_has(tmp_path):
    # Not by the name /dev/stdout: if this ever failed, it would be the machine's that is overwritten.
    (tmp_path / "log").write_text("before\n")
    code = (
        "from wellread.io.files import write_atomically\n"
        "with write_atomically('/proc/self/fd/1') as f: f.write(b'after')"
    )
    subprocess.run(f'"{sys.executable}" -c "{code}" >> log', shell=True, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "before\nafter"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
def test_a_folder_that_cannot_be_made_is_a_storage_error():
    with pytest.raises(StorageError, match="cannot write /proc/x/z"), write_atomically("/proc/x/z"):
        pass


def test_standard_input_is_called_so(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    with pytest.raises(InputError, match=r"^standard input is not UTF-8"):
        read_text("-")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_tells_what_to_convert_from(tmp_path, encoding):
    (tmp_path / "x").write_bytes("\ufeffhello".encode(encoding))
    with pytest.raises(InputError, match="iconv -f UTF-16 -t UTF-8"):
        read_text(tmp_path / "x")
