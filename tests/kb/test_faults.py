"""Faults around a knowledge base: killed processes, a full disk, a folder that cannot be written.

A child process works on real files and is killed with SIGKILL at moments spread over the time that the same work takes
undisturbed. After each kill the file must open in its old or its new state and pass `check`.
"""

import multiprocessing
import random
import resource
import shutil
import signal
import subprocess
import time
from itertools import count, islice
from pathlib import Path

import pytest

from tests.kb.conftest import CITIES, build_kb, content, text_index
from wellread.errors import StorageError
from wellread.kb import build as module
from wellread.kb.build import Origin, build
from wellread.kb.check import check
from wellread.kb.records import Alias, Entity, Fact, Redirect, Tally
from wellread.kb.store import KnowledgeBase

KILLS = 50
THINGS = 120
SLOWED = 0.1
"""Seconds that the source of a build takes, so that kills fall on its batches and not only on its end."""


def records():
    """A source with everything apart from everything: joined only when all is read."""
    for number in range(THINGS):
        yield Entity(f"e{number}", f"Thing {number}", "a thing", aliases={f"name {number % 50}": number})
        yield Alias(f"late {number}", f"r{number}", 2)
        yield Redirect(f"r{number}", f"e{number}")
        yield Fact(f"e{number}", "next", f"r{(number + 1) % THINGS}")


def slowly(tally):
    for number, record in enumerate(records()):
        if number % 20 == 0:
            time.sleep(SLOWED / (4 * THINGS / 20))
        yield record


def entity(number):
    """The entity that `_add` adds as its n-th: its names and facts must come together with it."""
    return Entity(f"a{number}", f"Added {number}", aliases={"added": 1}, facts=(("on", "Q90"),))


# What the children do.


def _build(path):
    module._BATCH = 60
    build(slowly, path, origin=Origin("faults"))


def _add(path):
    with KnowledgeBase.open(path, writable=True) as kb:
        for number in count(len(kb) - len(CITIES)):
            kb.add([entity(number)])


def _write_too_much(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    for name in ("x.kb", "new.kb"):
        with pytest.raises(StorageError, match="the disk is full"):
            build(lambda tally: big_records(), folder / name, origin=Origin("big"))
    with (
        KnowledgeBase.open(folder / "x.kb", writable=True) as kb,
        pytest.raises(StorageError, match="the disk is full"),
    ):
        kb.add(big_records())


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


def _begin(tell, work, *given):
    tell.send("here")
    work(*given)


def start(work, *given):
    """A child that begins the work now, forked from a process that has all modules loaded and no file open."""
    hear, tell = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=_begin, args=(tell, work, *given))
    child.start()
    hear.recv()  # however long it took to get there
    return child


def kill_after(seconds, work, *given):
    """Start the work and kill it after some seconds; says whether that came in time."""
    child = start(work, *given)
    time.sleep(seconds)
    child.kill()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), "the child failed by itself"
    return child.exitcode != 0


def moments(seconds):
    """One random moment in each of `KILLS` equal parts of the time, and a little more for a slower child."""
    generator = random.Random(2)
    part = 1.1 * seconds / KILLS
    return [part * (number + generator.random()) for number in range(KILLS)]


def state(path):
    with KnowledgeBase.open(path) as kb:
        assert check(kb) == []
        return content(kb), text_index(kb)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the result of a build that is not killed, and the seconds it takes (the best of three)."""
    seconds = []
    for number in range(3):
        path = tmp_path_factory.mktemp("undisturbed") / f"{number}.kb"
        child, begin = start(_build, path), time.monotonic()
        child.join()
        seconds.append(time.monotonic() - begin)
    return state(path), min(seconds)


def test_a_killed_build_leaves_nothing_or_all_and_goes_on_when_started_again(tmp_path, undisturbed):
    expected, seconds = undisturbed
    killed, resumed = 0, 0
    for number, moment in enumerate(moments(seconds)):
        path = tmp_path / str(number) / "x.kb"
        path.parent.mkdir()
        killed += kill_after(moment, _build, path)
        if path.exists():
            assert state(path) == expected
            continue
        resumed += Path(f"{path}.building").exists()
        build(lambda tally: records(), path, origin=Origin("faults"))
        assert state(path) == expected
        assert not list(path.parent.glob("*.building*"))
    assert killed > KILLS // 3
    assert resumed > KILLS // 5


def test_a_killed_build_over_a_kb_leaves_the_old_or_the_new(tmp_path, undisturbed):
    new, seconds = undisturbed
    seen = []
    build_kb(tmp_path / "old.kb", CITIES)
    old = state(tmp_path / "old.kb")
    for number, moment in enumerate(moments(seconds)):
        path = tmp_path / str(number) / "x.kb"
        path.parent.mkdir()
        shutil.copy(tmp_path / "old.kb", path)
        with KnowledgeBase.open(path) as reader:  # an open reader must not stand in the way
            assert len(reader) == len(CITIES)
            kill_after(moment, _build, path)
            found = state(path)
            assert found in (old, new)
            seen.append(found == new)
            assert reader.revision == (2 if found == new else 1)
            assert len(reader) == len(found[0][0])
        # Killed between writing the last page and telling the readers: who opens the file alone finds it written.
        with KnowledgeBase.open(path) as alone:
            before = alone.revision
        assert before in ((2,) if seen[-1] else (1, 2))
        assert state(path) == (old if before == 1 else new)
        build(lambda tally: records(), path, origin=Origin("faults"))
        assert state(path) == new
        with KnowledgeBase.open(path) as again:
            assert again.revision == before + 1
    assert seen.count(False) > KILLS // 3


def test_killed_adds_are_there_or_not_each_as_a_whole(tmp_path):
    path = tmp_path / "x.kb"
    build_kb(path, CITIES)
    numbers = []
    for moment in moments(0.1):
        assert kill_after(0.01 + moment, _add, path)
        with KnowledgeBase.open(path) as kb:
            assert check(kb) == []
            added = len(kb) - len(CITIES)
            assert kb.revision == 1 + added
            numbers.append(added)
            assert {c.entity for c in kb.candidates("added", limit=10**6)} == {f"a{n}" for n in range(added)}
            assert len(kb.neighbours("Q90", relation="on")) == added
            if added:
                assert kb.get(f"a{added - 1}").facts == (("on", "Q90"),)
                assert kb.search(f"added {added - 1}")[0].id == f"a{added - 1}"
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > KILLS // 4


# Disks that say no.


@pytest.fixture
def mounted(tmp_path):
    """Mount something and unmount it after the test; needs the right to."""
    folders = []

    def mount(*options):
        folder = tmp_path / f"mounted{len(folders)}"
        folder.mkdir()
        done = subprocess.run(["mount", *map(str, options), folder], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no right to mount here: {done.stderr.decode().strip()}")
        folders.append(folder)
        return folder

    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    yield mount
    for folder in reversed(folders):
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def small_disk(mounted):
    return mounted("-t", "tmpfs", "-o", "size=1m", "none")


def big_records():
    for number in range(100_000):
        yield Entity(f"e{number}", f"Thing {number}", "a long description of a thing " * 10)


def test_a_build_on_a_full_disk_is_one_message_and_keeps_the_old_state(small_disk):
    build_kb(small_disk / "x.kb", CITIES)
    before = state(small_disk / "x.kb")
    for name in ("x.kb", "new.kb"):
        with pytest.raises(StorageError, match=rf"the disk is full .*{name}.*; free some space and run it again"):
            build(lambda tally: big_records(), small_disk / name, origin=Origin("big"))
    assert state(small_disk / "x.kb") == before
    assert not (small_disk / "new.kb").exists()


def test_a_disk_that_fills_up_while_the_new_state_is_put_in_place_keeps_the_old_one(small_disk):
    path = small_disk / "x.kb"
    build_kb(path, CITIES)
    before, tally = state(path), Tally()
    with pytest.raises(StorageError, match=r"the disk is full .*x\.kb keeps its last state"):
        build(lambda tally: islice(big_records(), 700), path, origin=Origin("some"), tally=tally)
    assert tally.step == "putting in place"
    assert state(path) == before


def test_adds_on_a_full_disk_are_one_message_and_undone(small_disk):
    path = small_disk / "x.kb"
    build_kb(path, CITIES)
    with KnowledgeBase.open(path, writable=True) as kb:
        before = content(kb)
        with pytest.raises(StorageError, match=r"the disk is full .*x\.kb keeps its last state"):
            kb.add(big_records())
        assert content(kb) == before
        assert kb.revision == 1
        assert check(kb) == []
    assert state(path)[0] == before


def test_a_limit_on_the_size_of_files_is_one_message(tmp_path):
    build_kb(tmp_path / "x.kb", CITIES)
    before = state(tmp_path / "x.kb")
    child = start(_write_too_much, tmp_path)
    child.join()
    assert child.exitcode == 0
    assert state(tmp_path / "x.kb") == before
    assert not (tmp_path / "new.kb").exists()


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path, mounted):
    (tmp_path / "folder").mkdir()
    build_kb(tmp_path / "folder" / "x.kb", CITIES)
    there = mounted("--bind", tmp_path / "folder")
    subprocess.run(["mount", "-o", "remount,bind,ro", there], check=True)
    with pytest.raises(StorageError, match=r"cannot write .*new\.kb: Read-only file system; choose another folder"):
        build_kb(there / "new.kb", CITIES)
    with pytest.raises(StorageError, match=r"cannot write .*x\.kb"):
        build_kb(there / "x.kb", [])
    with pytest.raises(StorageError, match=r"x\.kb cannot be written; change its permissions"):
        KnowledgeBase.open(there / "x.kb", writable=True)
    assert len(state(there / "x.kb")[0][0]) == len(CITIES)


def test_the_command_line_says_a_full_disk_in_one_line(small_disk, tmp_path, wellread):
    lines = "".join(f'{{"id": "e{n}", "title": "Thing {n}", "description": "{"long " * 60}"}}\n' for n in range(9000))
    (tmp_path / "x.jsonl").write_text(lines)
    done = wellread("kb", "build", "jsonl", tmp_path / "x.jsonl", "--to", small_disk / "x.kb")
    assert (done.code, done.out) == (6, "")
    assert done.err.startswith("error: the disk is full")
    assert done.err.count("\n") == 1
