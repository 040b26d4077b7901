from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wellread.runtime import cache
from wellread.runtime.cache import cached_graph, digest_of_file, digest_of_parts


class Builder:
    """Builds a graph and counts how often."""

    def __init__(self, graph: bytes = b"graph" * 500_000) -> None:
        self.graph, self.times = graph, 0

    def __call__(self) -> bytes:
        self.times += 1
        return self.graph


def test_a_graph_is_built_once(tmp_path: Path) -> None:
    build = Builder()
    assert [cached_graph(tmp_path, "a", build) for _ in range(3)] == [build.graph] * 3
    assert build.times == 1
    cached_graph(tmp_path, "b", build)
    cached_graph(None, "a", build)
    assert build.times == 3


@pytest.mark.parametrize("at", [0, 100, 100_000, 2_000_000, -1])
def test_a_damaged_graph_is_built_again(tmp_path: Path, at: int) -> None:
    build = Builder()
    cached_graph(tmp_path, "a", build)
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert cached_graph(tmp_path, "a", build) == build.graph
    assert build.times == 2
    file.write_bytes(b"")
    assert cached_graph(tmp_path, "a", build) == build.graph
    file.write_bytes(bytes(content[:1000]))
    assert cached_graph(tmp_path, "a", build) == build.graph
    assert build.times == 4
    cached_graph(tmp_path, "a", build)
    assert build.times == 4


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached_graph(tmp_path, "a", fail)
    assert not list(tmp_path.glob("*.safetensors"))
    build = Builder()
    assert cached_graph(tmp_path, "a", build) == build.graph


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    build = Builder()
    assert cached_graph(tmp_path / "file", "a", build) == build.graph


def test_two_processes_build_one_graph(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from wellread.runtime.cache import cached_graph
folder = Path({str(tmp_path)!r})
def build():
    (folder / "builds").open("a").write("x")
    time.sleep(0.5)
    return b"graph" * 50_000
print(len(cached_graph(folder, "a", build)))
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == [b"250000"] * 3
    assert (tmp_path / "builds").read_text() == "x"


def test_old_graphs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_KEPT", 2)
    build = Builder()
    for name in "abc":
        cached_graph(tmp_path, name, build)
    assert {file.name for file in tmp_path.glob("*.safetensors")} == {"graph-b.safetensors", "graph-c.safetensors"}


def test_digests_change_with_every_part(tmp_path: Path) -> None:
    assert digest_of_parts("a", 1) == digest_of_parts("a", 1)
    assert len({digest_of_parts("a", 1), digest_of_parts("a", 2), digest_of_parts("a1"), digest_of_parts()}) == 4
    file = tmp_path / "file"
    assert digest_of_file(file) == ""
    file.write_bytes(b"a")
    before = digest_of_file(file)
    file.write_bytes(b"b")
    assert digest_of_file(file) != before
