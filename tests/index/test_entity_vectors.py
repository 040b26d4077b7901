"""Entity vectors on disk: incremental encoding and recovery after crashes."""

import hashlib
import json
import os
import sys
from functools import cache

import numpy as np
import pytest

from tests.kb.conftest import CITIES, build_kb
from wellread.errors import InputError, KnowledgeBaseError, StorageError
from wellread.index import entity_vectors as module
from wellread.index.entity_index import build_index
from wellread.index.entity_vectors import Encoding, EntityVectors
from wellread.io.arrays import Strings, map_arrays
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase


class BagOfWords:
    """Small encoder: a text is the sum of fixed random word vectors; records its inputs."""

    def __init__(self, dim=16, fingerprint="bag 1", fail_after=None):
        self.dim, self.fingerprint, self.fail_after = dim, fingerprint, fail_after
        self.seen = []

    def encode(self, entities):
        if self.fail_after is not None and len(self.seen) >= self.fail_after:
            raise KeyboardInterrupt
        self.seen += entities
        return np.stack([self.one(f"{title} {description}") for title, description in entities])

    def one(self, text):
        summed = sum(vector_of(word)[: self.dim] for word in text.lower().split())
        return (summed / np.linalg.norm(summed)).astype(np.float32)


@cache
def vector_of(word):
    """64 numbers, always the same."""
    return (np.frombuffer(hashlib.sha512(word.encode()).digest(), np.uint8).astype(np.float32) - 127.5) / 255


def things(count, of="thing"):
    return [Entity(f"e{n}", f"{of} {n}", f"number {n} of the {of}s", aliases={f"{of} {n}": 1.0}) for n in range(count)]


@pytest.fixture
def kb(tmp_path):
    build_kb(tmp_path / "x.kb", things(50))
    with KnowledgeBase.open(tmp_path / "x.kb", writable=True) as opened:
        yield opened


def by_id(vectors):
    ids = vectors.ids.take(range(len(vectors)))
    return {id: vectors.rows[row].astype(np.float32) for row, id in enumerate(ids)}


def assert_as_encoded(vectors, kb, encoder):
    """Every entity of the KB has the vector of its text as it is now, and nothing else has one."""
    found = by_id(vectors)
    entities = {entity.id: entity for entity in kb.entities()}
    assert found.keys() == entities.keys()
    for id, entity in entities.items():
        assert np.allclose(found[id], encoder.one(f"{entity.title} {entity.description}"), atol=1e-3)
    rows = vectors.rows_of(list(entities))
    assert vectors.ids.take(rows) == list(entities)
    assert vectors.titles.take(rows) == [entity.title for entity in entities.values()]
    assert (vectors.uid, vectors.revision) == (kb.metadata["uid"], kb.revision)


def test_every_entity_has_the_vector_of_its_text(kb):
    encoder = BagOfWords()
    vectors = EntityVectors.build(kb, encoder)
    assert vectors.folder == kb.path.with_name("x.kb.vectors")
    assert_as_encoded(EntityVectors.open(vectors.folder), kb, encoder)
    assert vectors.rows.dtype == np.float16
    assert vectors.rows_of(["nobody", "e3", ""]).tolist() == [-1, vectors.rows_of(["e3"])[0], -1]
    assert sorted(path.name for path in vectors.folder.iterdir()) == [".lock", vectors.file, "vectors.json"]


def test_a_second_build_encodes_nothing(kb):
    first = EntityVectors.build(kb, BagOfWords())
    encoder, progress = BagOfWords(), Encoding()
    again = EntityVectors.build(kb, encoder, progress=progress)
    assert (encoder.seen, progress.encoded, progress.kept) == ([], 0, 50)
    assert again.file == first.file


def test_only_changed_texts_are_encoded(kb):
    EntityVectors.build(kb, BagOfWords())
    with kb.change() as change:
        change.add(Entity("new", "newcomer", "who was not here"))
        change.update(
            Entity("e7", "thing 7", "another text"), Entity("e8", "thing 8", "number 8 of the things", "kind")
        )
        change.remove("e0", "e49")
    encoder, progress = BagOfWords(), Encoding()
    vectors = EntityVectors.build(kb, encoder, progress=progress)
    assert sorted(encoder.seen) == [("newcomer", "who was not here"), ("thing 7", "another text")]
    assert (progress.encoded, progress.kept) == (2, 47)
    assert_as_encoded(vectors, kb, encoder)


def test_an_id_that_comes_back_under_a_number_used_before_has_its_new_vector(kb):
    EntityVectors.build(kb, BagOfWords())
    kb.remove("e49")
    kb.add(Entity("other", "something else", "in its place"))  # SQLite gives it the number of e49
    encoder = BagOfWords()
    vectors = EntityVectors.build(kb, encoder)
    assert_as_encoded(vectors, kb, encoder)
    assert vectors.rows_of(["e49"]).tolist() == [-1]


def test_a_rebuilt_kb_keeps_the_vectors_of_known_texts(kb, tmp_path):
    EntityVectors.build(kb, BagOfWords())
    kb.close()
    build_kb(tmp_path / "x.kb", [*things(40), Entity("last", "one more")])
    encoder = BagOfWords()
    with KnowledgeBase.open(tmp_path / "x.kb") as anew:
        assert_as_encoded(EntityVectors.build(anew, encoder), anew, encoder)
    assert encoder.seen == [("one more", "")]


def test_another_encoder_starts_from_scratch(kb):
    EntityVectors.build(kb, BagOfWords())
    for other in (BagOfWords(fingerprint="bag 2"), BagOfWords(dim=8, fingerprint="bag 2")):
        vectors = EntityVectors.build(kb, other)
        assert len(other.seen) == 50
        assert_as_encoded(vectors, kb, other)
        assert vectors.rows.shape == (50, other.dim)


def test_equal_texts_are_encoded_once(tmp_path):
    twins = [Entity(f"t{n}", "twin", "the same") for n in range(5)]
    build_kb(tmp_path / "x.kb", twins)
    encoder = BagOfWords()
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        assert_as_encoded(EntityVectors.build(kb, encoder), kb, encoder)
    assert encoder.seen == [("twin", "the same")]


def test_an_interrupted_build_goes_on_after_its_last_chunk(kb):
    with pytest.raises(KeyboardInterrupt):
        EntityVectors.build(kb, BagOfWords(fail_after=20), chunk=8)
    with pytest.raises(KnowledgeBaseError, match="there are no vectors"):
        EntityVectors.open(f"{kb.path}.vectors")
    encoder, progress = BagOfWords(), Encoding()
    vectors = EntityVectors.build(kb, encoder, progress=progress, chunk=8)
    assert len(encoder.seen) == 50 - 24
    assert (progress.encoded, progress.kept) == (26, 24)
    assert_as_encoded(vectors, kb, encoder)
    assert not list(vectors.folder.glob("*.part"))


def test_files_of_a_killed_build_are_deleted_if_nothing_is_left_to_do(kb):
    index = build_index(kb, BagOfWords())
    left = index.vectors.folder / "encoding-0123-8.rows.part"
    left.write_bytes(b"left by a kill")
    build_index(kb, BagOfWords())
    assert not left.exists()


@pytest.mark.parametrize("cut", ["rows", "keys", "both"])
def test_half_a_chunk_that_a_kill_left_is_dropped(kb, cut):
    with pytest.raises(KeyboardInterrupt):
        EntityVectors.build(kb, BagOfWords(fail_after=20), chunk=8)
    for path in kb.path.with_name("x.kb.vectors").glob("*.part"):
        if cut in path.name or cut == "both":
            os.truncate(path, path.stat().st_size - 5)
    encoder = BagOfWords()
    assert_as_encoded(EntityVectors.build(kb, encoder), kb, encoder)
    assert len(encoder.seen) == 50 - 23


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("chunks", [0, 1, 3, 6])
def test_a_build_killed_between_chunks_goes_on(kb, chunks):
    append = module._Part.append

    def append_and_die(part, keys, rows):
        if len(part.texts) == 8 * chunks:
            os.kill(os.getpid(), 9)
        append(part, keys, rows)

    child = os.fork()
    if not child:
        module._Part.append = append_and_die
        EntityVectors.build(kb, BagOfWords(), chunk=8)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9
    encoder = BagOfWords()
    assert_as_encoded(EntityVectors.build(kb, encoder, chunk=8), kb, encoder)
    assert len(encoder.seen) == 50 - 8 * chunks


def test_entities_changed_during_the_build_are_encoded_again(kb):
    class Meddler(BagOfWords):
        def encode(self, entities):
            if not self.seen:
                kb.update(Entity("e40", "thing 40", "changed meanwhile"))
                kb.remove("e41")
            return super().encode(entities)

    encoder = Meddler()
    assert_as_encoded(EntityVectors.build(kb, encoder, chunk=8), kb, encoder)


def test_a_crash_while_updating_leaves_the_last_good_state(kb, monkeypatch):
    before = EntityVectors.build(kb, BagOfWords())
    kb.add(Entity("new", "newcomer"))

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_manifest", crash)
    with pytest.raises(KeyboardInterrupt):
        EntityVectors.build(kb, BagOfWords())
    after = EntityVectors.open(before.folder)
    assert (after.file, after.revision, len(after)) == (before.file, 1, 50)
    monkeypatch.undo()
    encoder = BagOfWords()
    vectors = EntityVectors.build(kb, encoder)
    assert encoder.seen == []
    assert_as_encoded(vectors, kb, encoder)
    assert len(list(before.folder.glob("*.safetensors"))) == 1


def test_an_empty_kb_has_no_rows(tmp_path):
    build_kb(tmp_path / "x.kb", [])
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        vectors = EntityVectors.build(kb, BagOfWords())
    assert (len(vectors), vectors.rows.shape) == (0, (0, 16))
    assert vectors.rows_of(["x"]).tolist() == [-1]
    assert vectors.rows_of([]).tolist() == []


def test_ids_and_titles_of_any_script_come_back(tmp_path):
    build_kb(tmp_path / "x.kb", (*CITIES, Entity("東京", "とうきょう 🗼")))
    encoder = BagOfWords()
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        assert_as_encoded(EntityVectors.build(kb, encoder), kb, encoder)


def test_two_ids_with_the_same_hash_are_distinguished(kb, monkeypatch):
    monkeypatch.setattr(module, "id_key", lambda id: len(id))
    vectors = EntityVectors.build(kb, BagOfWords())
    ids = [f"e{n}" for n in range(50)]
    assert vectors.ids.take(vectors.rows_of(ids)) == ids
    assert vectors.rows_of(["f1"]).tolist() == [-1]


@pytest.mark.parametrize("bytes_left", [0, 7, 100, -10])
def test_a_truncated_file_is_refused_with_the_command_that_mends_it_and_mended_by_it(kb, bytes_left):
    vectors = EntityVectors.build(kb, BagOfWords())
    path = vectors.folder / vectors.file
    data = path.read_bytes()
    path.write_bytes(data[:bytes_left])
    with pytest.raises(KnowledgeBaseError, match=r"truncated or damaged .*wellread index build --kb .*x\.kb"):
        EntityVectors.open(vectors.folder)
    encoder = BagOfWords()
    assert_as_encoded(EntityVectors.build(kb, encoder), kb, encoder)


def test_a_missing_file_and_a_damaged_manifest_name_the_fix(kb):
    vectors = EntityVectors.build(kb, BagOfWords())
    (vectors.folder / vectors.file).unlink()
    with pytest.raises(KnowledgeBaseError, match=r"lacks vectors-.*; build it again with: wellread index build"):
        EntityVectors.open(vectors.folder)
    (vectors.folder / "vectors.json").write_text("{")
    with pytest.raises(KnowledgeBaseError, match=r"vectors\.json is damaged .* and build it again"):
        EntityVectors.open(vectors.folder)
    assert len(EntityVectors.build(kb, BagOfWords())) == 50


def test_vectors_that_cannot_be_stored_are_refused(kb):
    class Strange(BagOfWords):
        def encode(self, entities):
            return super().encode(entities) * np.float32(np.inf)

    class Narrow(BagOfWords):
        def encode(self, entities):
            return super().encode(entities)[:, 1:]

    with pytest.raises(InputError, match=r"for 'thing 0' that is not finite .*check its weights"):
        EntityVectors.build(kb, Strange())
    with pytest.raises(InputError, match=r"returned an array of shape \(50, 15\); expected \(50, 16\)"):
        EntityVectors.build(kb, Narrow())


def test_a_folder_that_cannot_be_made_is_one_message(kb, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        EntityVectors.build(kb, BagOfWords(), tmp_path / "file" / "folder")


def test_a_folder_in_use_says_to_wait(kb, monkeypatch):
    from filelock import FileLock

    from wellread.index import folder

    vectors = EntityVectors.build(kb, BagOfWords())
    monkeypatch.setattr(folder, "PATIENCE", 0.01)
    with FileLock(vectors.folder / ".lock"), pytest.raises(KnowledgeBaseError, match="another process is writing to"):
        EntityVectors.build(kb, BagOfWords())


def test_the_file_is_one_that_safetensors_reads(kb):
    from safetensors.numpy import load_file

    vectors = EntityVectors.build(kb, BagOfWords())
    theirs = load_file(vectors.folder / vectors.file)
    ours = map_arrays(vectors.folder / vectors.file)
    assert theirs.keys() - {"checksums"} == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in ours)
    assert json.loads((vectors.folder / "vectors.json").read_text())["fingerprint"] == "bag 1"


def test_strings_are_taken_by_row():
    for texts in ([], ["a", "", "żółć"], [f"{n} " * (n % 9) for n in range(300)], ["long " * 2000] * 80):
        strings = Strings(Strings.pack(map(str.encode, texts), "x"), "x")
        assert len(strings) == len(texts)
        assert strings.take(range(len(texts))) == texts
    assert Strings(Strings.pack([b"a", b"", b"c"], "x"), "x").take([2, 0, 1, 2]) == ["c", "a", "", "c"]


def test_torch_is_not_needed():
    import subprocess

    code = "import sys, wellread.index.entity_index, wellread.index.entity_index; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
