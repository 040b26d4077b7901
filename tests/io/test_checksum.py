"""Checksums of derived files: every damaged bit is found, at open or by `kb check`, and never a traceback."""

import json
import mmap
import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.toy_models import write_kb
from wellread.errors import KnowledgeBaseError
from wellread.index.entity_index import EntityIndex
from wellread.index.entity_vectors import EntityVectors
from wellread.index.folder import damaged_in
from wellread.io import checksum
from wellread.io.arrays import map_arrays, save_arrays
from wellread.kb.store import KnowledgeBase
from wellread.mentions.compiled_names import load
from wellread.mentions.matcher import Matcher, names_path


@pytest.fixture
def kb(tmp_path):
    with write_kb(tmp_path / "toy.kb") as opened:
        yield opened


@pytest.fixture
def vectors(toy, tmp_path):
    shutil.copytree(toy, tmp_path / "copy")
    return tmp_path / "copy" / "toy.kb.vectors"


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 3_000_000])
def test_whole_files_hold_and_other_tools_open_them(tmp_path, size):
    path = tmp_path / "a.safetensors"
    save_arrays(path, {"x": np.arange(size, dtype=np.uint8), "y": np.arange(3.0, dtype=np.float32)}, {})
    assert checksum.holds(path.read_bytes(), all_blocks=True)
    assert not checksum.is_damaged(path)
    assert np.array_equal(map_arrays(path)["x"], load_file(path)["x"])
    assert map_arrays(path).keys() == {"x", "y"}


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    path, chance = tmp_path / "a.safetensors", random.Random(1)
    save_arrays(path, {"x": np.arange(40_000, dtype=np.uint64)}, {"about": "x"})
    whole = path.read_bytes()
    for at in [0, 1, 7, 8, 20, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(60))]:
        path.write_bytes(whole)
        flip(path, at, chance.randrange(8))
        assert not checksum.holds(path.read_bytes(), all_blocks=True), at
        with pytest.raises((ValueError, KeyError)):  # five blocks: all are looked at when it is opened
            map_arrays(path)
    for end in (0, 4, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert not checksum.holds(path.read_bytes())


def test_opening_reads_some_blocks_and_checking_all(tmp_path):
    path = tmp_path / "a.safetensors"
    save_arrays(path, {"x": np.zeros(4 << 20, np.uint8)}, {})
    missed = 0
    for block in range(64):
        flip(path, 4_096 + block * 65_536)
        missed += checksum.holds(path.read_bytes())
        assert checksum.is_damaged(path)
        flip(path, 4_096 + block * 65_536)
    assert 0 < missed < 64


def test_damaged_names_are_made_again(kb):
    whole = Matcher.of(kb)
    path, uid = names_path(kb), kb.metadata["uid"]
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    damaged = [
        content[:header] + bytes(len(content) - header),
        content.replace(b'"U64"', b'"V64"', 1),
        content.replace(b'"max_words": "', b'"max_words": [', 1),
        content[: len(content) // 2],
        b"",
    ]
    for broken in damaged:
        path.write_bytes(broken)
        assert load(path, uid=uid) is None
        assert Matcher.of(kb).find("who is ada").spans() == whole.find("who is ada").spans() == [(7, 10)]
        assert path.read_bytes() == content


def test_names_that_are_overwritten_in_place_are_made_again(kb):
    matcher = Matcher.of(kb)
    matcher = Matcher.of(kb)
    assert matcher.names.mapped is not None
    assert matcher.refresh(kb) is matcher
    path = names_path(kb)
    with open(path, "r+b") as file:  # as cp does
        file.truncate(0)
    fresh = matcher.refresh(kb)
    assert fresh is not matcher
    assert fresh.find("who is ada").spans() == [(7, 10)]
    replaced = path.with_name("other")
    shutil.copy(path, replaced)
    mapped = Matcher.of(kb)
    replaced.replace(path)  # by rename: what is mapped stays
    assert mapped.refresh(kb) is mapped


def test_links_beside_a_knowledge_base_are_not_written_through(kb, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("keep me")
    names_path(kb).symlink_to(secret)
    assert Matcher.of(kb).find("who is ada").spans() == [(7, 10)]
    assert secret.read_text() == "keep me"
    assert not names_path(kb).is_symlink()


@pytest.mark.parametrize("name", ["vectors.json", "index.json"])
def test_a_damaged_manifest_is_reported_in_one_line(vectors, name):
    path = vectors / name
    info = json.loads(path.read_bytes())
    for change in ({"revision": "x" if name == "index.json" else 7}, {"format": info["format"], "checksum": 1}):
        path.write_text(json.dumps(info | change))
        assert damaged_in(vectors) == [path]
        with pytest.raises(KnowledgeBaseError, match="is damaged"):
            EntityVectors.open(vectors) if name == "vectors.json" else EntityIndex.load(vectors)
    for key in info:
        for value in (None, 7, [], {}):
            path.write_text(json.dumps({**info, key: value} | {"checksum": None}))
            try:
                EntityVectors.open(vectors) if name == "vectors.json" else EntityIndex.load(vectors)
            except KnowledgeBaseError:
                continue


def test_damaged_vectors_are_refused_and_checked(vectors, wellread):
    kb = vectors.parent / "toy.kb"
    assert wellread("kb", "check", kb).code == 0
    for path in sorted(vectors.glob("*.safetensors")):
        flip(path, path.stat().st_size // 2)
        result = wellread("kb", "check", kb)
        assert (result.code, str(path) in result.err, "wellread index build" in result.err) == (5, True, True)
        with pytest.raises(KnowledgeBaseError, match="damaged"):
            EntityIndex.load(vectors)
        flip(path, path.stat().st_size // 2)
    with KnowledgeBase.open(kb) as opened:
        Matcher.of(opened)
        names = names_path(opened)
    flip(names, names.stat().st_size // 2)
    result = wellread("kb", "check", kb)
    assert (result.code, "delete it, it is rebuilt on the next use" in result.err) == (5, True)


def test_a_mapped_file_holds_too(tmp_path):
    path = tmp_path / "a.safetensors"
    save_arrays(path, {"x": np.arange(10)}, {})
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert checksum.holds(mapped)
