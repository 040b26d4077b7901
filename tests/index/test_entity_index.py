"""The index of nearest entities against a naive search of the same vectors, through every kind and change."""

import json
import multiprocessing
import os
import random
import resource
import shutil
import threading
from functools import cache

import faiss
import numpy as np
import pytest

from tests.index.test_entity_vectors import BagOfWords, things
from tests.kb.conftest import build_kb
from wellread.errors import KnowledgeBaseError, StorageError, UsageError
from wellread.index import entity_index as module
from wellread.index.entity_index import EntityIndex, build_index
from wellread.index.entity_vectors import Encoding, EntityVectors
from wellread.index.faiss_choice import choose_index, nearest, recall, trial_queries
from wellread.index.faiss_search import SEARCH_THREADS
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase

MANY = 3_000
KINDS = [("exact", "none"), ("exact", "int8"), ("exact", "pq"), ("hnsw", "none"), ("hnsw", "int8"), ("ivf", "none")]
KINDS += [("ivf", "int8"), ("ivf", "pq")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A KB of many things and its vectors, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    words = "red green blue old new small large round flat near far north south east west".split()
    chance = random.Random(4)
    many = [
        Entity(f"e{n}", f"thing {n}", " ".join(chance.choices(words, k=4)), aliases={f"thing {n}": 1.0})
        for n in range(MANY)
    ]
    build_kb(folder / "many.kb", many)
    with KnowledgeBase.open(folder / "many.kb") as kb:
        EntityVectors.build(kb, BagOfWords(32))
    return folder


@pytest.fixture(scope="module")
def built(made, tmp_path_factory):
    """An index of each kind over the KB of many things, built once; copy its folder to change it."""

    @cache
    def built(kind="auto", compression="auto"):
        folder = tmp_path_factory.mktemp("built") / "vectors"
        shutil.copytree(made / "many.kb.vectors", folder)
        return EntityIndex.build(EntityVectors.open(folder), kind=kind, compression=compression)

    return built


@pytest.fixture
def many(made, built, tmp_path):
    """The KB of many things with vectors and an index of its own."""
    shutil.copytree(made, tmp_path / "many")
    with KnowledgeBase.open(tmp_path / "many" / "many.kb", writable=True) as kb:
        put(built(), kb)
        yield kb


def put(index, kb):
    """Give a KB a copy of an index as its own."""
    shutil.rmtree(f"{kb.path}.vectors")
    shutil.copytree(index.vectors.folder, f"{kb.path}.vectors")
    return EntityIndex.open(kb, fingerprint=None)


@pytest.fixture
def few(tmp_path):
    build_kb(tmp_path / "few.kb", things(30))
    with KnowledgeBase.open(tmp_path / "few.kb", writable=True) as kb:
        yield kb


def naive(kb, encoder, queries, k):
    """Ids and scores by comparing each query with the vector of every entity as it is now."""
    entities = list(kb.entities())
    vectors = encoder.encode([(entity.title, entity.description) for entity in entities]).astype(np.float16)
    scores = queries @ vectors.astype(np.float32).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return [[entities[place].id for place in line] for line in order], np.take_along_axis(scores, order, 1)


def found_ids(index, rows):
    return [index.entities(line) for line in rows]


def share(found, true):
    return np.mean([len(set(f) & set(t)) / len(t) for f, t in zip(found, true, strict=True)])


def queries_like(vectors, count=64, seed=3):
    return trial_queries(vectors.rows, count, seed=seed)


@pytest.mark.parametrize(("kind", "compression"), KINDS)
def test_each_kind_agrees_with_a_naive_search(many, built, kind, compression):
    encoder = BagOfWords(32)
    index = built(kind, compression)
    queries = queries_like(index.vectors)
    scores, rows = index.search(queries, 10)
    ids, true = naive(many, encoder, queries, 10)
    assert share(found_ids(index, rows), ids) >= 0.98
    if (kind, compression) == ("exact", "none"):
        assert found_ids(index, rows) == ids
        assert np.abs(scores - true).max() < 1e-6
    assert (np.diff(scores, axis=1) <= 0).all()
    assert np.allclose(scores, np.einsum("qkd,qd->qk", index.vectors_of(rows).reshape(64, 10, 32), queries), atol=1e-6)
    assert np.abs(scores[:, 0] - true[:, 0]).max() < (5e-3 if index.choice.rows == "int8" else 1e-6)
    put(index, many)
    again = EntityIndex.open(many, fingerprint=encoder.fingerprint)
    assert np.array_equal(again.search(queries, 10)[1], rows)
    assert again.explain() == index.explain()
    assert (index.choice.kind, index.choice.compression) == (kind, compression)


@pytest.mark.parametrize(("kind", "compression"), KINDS)
def test_changes_are_searched_with_the_built_index(many, built, kind, compression):
    encoder = BagOfWords(32)
    index = put(built(kind, compression), many)
    queries = queries_like(index.vectors)
    near = naive(many, encoder, queries[:1], 60)[0][0]
    with many.change() as change:
        change.remove(*near[:50])
        change.update(Entity(near[51], "thing", "old flat far north"))
        change.add(*(Entity(f"n{n}", f"newcomer {n}", "red round near west") for n in range(20)))
    encoder.seen.clear()
    newer = index.refresh(many, encoder)
    assert len(encoder.seen) == 21
    assert (len(newer), newer.revision) == (len(many), many.revision)
    for state in (newer, EntityIndex.open(many, fingerprint=encoder.fingerprint)):
        ids, true = naive(many, encoder, queries, 10)
        scores, rows = state.search(queries, 10)
        found = found_ids(state, rows)
        assert share(found, ids) >= 0.98
        assert len(set(found[0]) & set(ids[0])) >= 9  # where all that was near is gone
        assert np.abs(scores - true)[0].max() < (5e-3 if state.choice.rows == "int8" else 1e-6)
        assert not set(near[:50]) & {id for line in found for id in line}
        assert state.rows_of([near[0], "n3", "nobody"]).tolist() == [-1, MANY + state.changes.places["n3"], -1]
        assert state.titles(state.rows_of(["n3", near[51], "nobody"])) == ["newcomer 3", "thing", ""]
        own = encoder.encode([("newcomer 3", "red round near west")])
        assert np.allclose(state.vectors_of(state.rows_of(["n3"])), own, atol=1e-3)
        assert state.entity(state.search(own, 1)[1][0, 0]) == "n3"
    assert len(index) == MANY  # who has the old state keeps it
    assert len(set(found_ids(index, index.search(queries[:1], 10)[1])[0]) & set(near[:10])) >= 8


def test_repeated_refreshes_equal_a_new_build(few):
    encoder, chance = BagOfWords(), random.Random(1)
    index = build_index(few, encoder)
    for step in range(25):
        ids = [entity.id for entity in few.entities()]
        with few.change() as change:
            change.add(Entity(f"s{step}", f"step {step}", chance.choice(["up", "down"])))
            gone = chance.sample(ids, 2)
            change.remove(gone[0])
            change.update(Entity(gone[1], f"thing {step}", "updated"))
        index = index.refresh(few, encoder)
        queries = encoder.encode([("thing 5", "of things"), (f"step {step}", "down"), ("updated", "")])
        ids, scores = naive(few, encoder, queries, 8)
        found, rows = index.search(queries, 8)
        assert np.allclose(found, scores, atol=1e-6)
        assert found_ids(index, rows) == ids
        assert len(index) == len(few)
    folder = index.vectors.folder
    assert len(list(folder.glob("changes-*"))) == 1
    anew = build_index(few, encoder, kind="exact")
    assert not len(anew.changes)
    assert np.allclose(anew.search(queries, 8)[0], found, atol=1e-6)
    assert not list(folder.glob("changes-*"))


def test_an_unchanged_text_is_not_encoded_again(few):
    index = build_index(few, BagOfWords())
    few.update(Entity("e3", "thing 3", "number 3 of the things", "kind", 9.0))
    encoder = BagOfWords()
    newer = index.refresh(few, encoder)
    assert encoder.seen == []
    assert newer.revision == few.revision
    assert newer.refresh(few, encoder) is newer


def test_fewer_than_k_end_in_minus_one(few):
    index = build_index(few, BagOfWords())
    scores, rows = index.search(BagOfWords().encode([("thing 1", "")]), 40)
    assert sorted(rows[0, :30]) == list(range(30))
    assert (rows[0, 30:] == -1).all()
    assert np.isneginf(scores[0, 30:]).all()
    assert index.entities(rows[0])[30:] == [""] * 10
    assert not index.vectors_of(rows[0])[30:].any()


@pytest.mark.parametrize(("kind", "compression"), [("ivf", "pq"), ("hnsw", "int8"), ("exact", "pq")])
def test_more_than_a_cluster_holds_are_found_by_comparing_all(built, kind, compression):
    index = built(kind, compression)
    queries = queries_like(index.vectors, 3)
    _, rows = index.search(queries, MANY + 5)
    assert np.array_equal(np.sort(rows[:, :MANY], axis=1), np.tile(np.arange(MANY), (3, 1)))
    assert (rows[:, MANY:] == -1).all()


def test_an_empty_kb_has_an_index_that_finds_nothing_and_can_grow(tmp_path):
    build_kb(tmp_path / "x.kb", [])
    with KnowledgeBase.open(tmp_path / "x.kb", writable=True) as kb:
        encoder = BagOfWords()
        index = build_index(kb, encoder)
        query = encoder.encode([("a", "b")])
        assert index.search(query, 3)[1].tolist() == [[-1, -1, -1]]
        assert len(index.subset(["a"])) == 0
        assert index.search(query, 3, among=index.subset(["a"]))[1].tolist() == [[-1, -1, -1]]
        kb.add(Entity("a", "a", "b"))
        index = index.refresh(kb, encoder)
        assert index.entities(index.search(query, 3)[1]) == ["a", "", ""]


def test_an_index_whose_entities_are_all_removed_finds_nothing(few):
    index = build_index(few, BagOfWords())
    few.remove([entity.id for entity in few.entities()])
    index = index.refresh(few, BagOfWords())
    assert len(index) == 0
    assert index.search(BagOfWords().encode([("thing 1", "")]), 2)[1].tolist() == [[-1, -1]]


def test_no_queries_give_no_lines(few):
    scores, rows = build_index(few, BagOfWords()).search(np.zeros((0, 16), np.float32), 4)
    assert scores.shape == rows.shape == (0, 4)


def test_ties_come_in_the_order_of_rows(tmp_path):
    build_kb(tmp_path / "x.kb", [Entity(f"t{n}", "twin", "the same") for n in range(20)])
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        index = build_index(kb, BagOfWords())
    scores, rows = index.search(BagOfWords().encode([("twin", "the same")]), 20)
    assert rows[0].tolist() == list(range(20))
    assert len(set(scores[0].tolist())) == 1


# Subsets.


@pytest.mark.parametrize(("kind", "compression"), [*KINDS[:3], ("hnsw", "int8"), ("ivf", "pq")])
@pytest.mark.parametrize("few_are", [10, 10_000])
def test_a_subset_is_searched_as_if_it_were_all(many, built, kind, compression, few_are, monkeypatch):
    monkeypatch.setattr(module, "_FEW", few_are)
    encoder = BagOfWords(32)
    index = put(built(kind, compression), many)
    many.add([Entity(f"n{n}", f"newcomer {n}", "red round near west") for n in range(30)])
    many.remove([f"e{n}" for n in range(1000, 1010)])
    index = index.refresh(many, encoder)
    chosen = {f"e{n}" for n in range(0, MANY, 3)} | {f"n{n}" for n in range(15)}
    subset = index.subset([*chosen, "nobody"])
    alive = {id for id in chosen if id in many}
    assert len(subset) == len(alive) < len(chosen)
    queries = queries_like(index.vectors)
    ids, _ = naive(many, encoder, queries, len(many))
    true = [[id for id in line if id in alive][:10] for line in ids]
    for _ in range(2):  # what a subset keeps for the next time serves as well
        found = found_ids(index, index.search(queries, 10, among=subset)[1])
        assert share(found, true) >= 0.98
        assert all(set(line) <= alive for line in found)
    everything = found_ids(index, index.search(queries[:2], len(alive) + 3, among=subset)[1])
    assert all(set(line) == alive | {""} for line in everything)


def test_a_subset_of_another_state_is_refused(few):
    index = build_index(few, BagOfWords())
    subset = index.subset(["e1", "e2"])
    few.add(Entity("new", "newcomer"))
    newer = index.refresh(few, BagOfWords())
    query = BagOfWords().encode([("thing 1", "")])
    with pytest.raises(UsageError, match=r"another state of the index; make it again with index\.subset"):
        newer.search(query, 2, among=subset)
    assert set(index.entities(index.search(query, 5, among=subset)[1])) == {"e1", "e2", ""}


# The choice.


def test_the_choice_goes_by_size_and_says_why():
    chosen = [choose_index(count, 384) for count in (0, 500, 2_000, 25_000, 40_001, 1_000_000)]
    assert [(one.kind, one.compression, one.rows) for one in chosen] == [
        ("exact", "none", "float32"),
        ("exact", "none", "float32"),
        ("exact", "none", "float32"),
        ("exact", "pq", "float32"),
        ("ivf", "pq", "float32"),
        ("ivf", "pq", "int8"),
    ]
    assert chosen[-1].clusters == 4096
    assert "above 40,000 entities, only the nearest clusters" in chosen[-1].why
    assert choose_index(1_000_000, 384, "hnsw").compression == "int8"
    assert choose_index(50, 384, "ivf", "pq").why.startswith("50 entities are too few to train")
    assert choose_index(5_000, 384, "ivf", "int8").why == "as requested"
    with pytest.raises(UsageError, match="choose the compression int8, or the kind ivf"):
        choose_index(5_000, 384, "hnsw", "pq")
    with pytest.raises(UsageError, match="kinds are auto, exact, hnsw, ivf"):
        choose_index(5_000, 384, "flat")


def test_the_measured_recall_is_explained(many):
    progress = Encoding()
    index = EntityIndex.build(EntityVectors.open(f"{many.path}.vectors"), progress=progress)
    queries = queries_like(index.vectors, 300, seed=8)
    measured = recall(index.search(queries)[1], nearest(index.vectors.rows, queries, 10))
    assert measured >= 0.98
    assert abs(index.choice.recall - measured) < 0.02
    lines = index.explain().splitlines()
    assert lines[0] == "3,000 entities, 32 numbers each: exact search, compression pq"
    assert lines[1] == "why: up to 40,000 entities, all are compared, compressed"
    assert "(measured)" in lines[3]
    assert progress.step == ""


@pytest.mark.parametrize("dim", [2, 3, 9, 64, 65])
def test_vectors_of_any_width_are_compressed(tmp_path, made, dim):
    shutil.copy(made / "many.kb", tmp_path / "x.kb")
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        vectors = EntityVectors.build(kb, BagOfWords(min(dim, 64)) if dim < 65 else Wider(dim))
    index = EntityIndex.build(vectors, kind="exact", compression="pq")
    queries = queries_like(vectors)
    true = nearest(vectors.rows, queries, 10)
    best = np.sort(np.einsum("qkd,qd->qk", vectors.rows[true].astype(np.float32), queries), axis=1)[:, ::-1]
    assert np.quantile(best - index.search(queries)[0], 0.95) < 0.02


class Wider(BagOfWords):
    def one(self, text):
        half = BagOfWords(64).one(text)
        return np.append(half, half[: self.dim - 64])


# What is refused, and what mends it.


def test_an_index_that_does_not_fit_is_refused_with_the_command_that_mends_it(few, tmp_path):
    encoder = BagOfWords()
    with pytest.raises(KnowledgeBaseError, match=r"there is no index in .*few\.kb\.vectors; build it with: wellread i"):
        EntityIndex.open(few, fingerprint="bag 1")
    build_index(few, encoder)
    with pytest.raises(
        KnowledgeBaseError, match=r"another encoder \(bag 1…, not bag 2…\); .*wellread index build --kb"
    ):
        EntityIndex.open(few, fingerprint="bag 2")
    few.add(Entity("new", "newcomer"))
    with pytest.raises(
        KnowledgeBaseError, match=r"of revision 1, .*few\.kb is at 2; .*wellread index build --kb .*few"
    ):
        EntityIndex.open(few, fingerprint="bag 1")
    stale = EntityIndex.open(few, fingerprint=None, stale="allow")
    assert len(stale.refresh(few, encoder)) == 31
    assert EntityIndex.open(few, fingerprint="bag 1").revision == 2
    build_kb(tmp_path / "other.kb", things(3))
    with KnowledgeBase.open(tmp_path / "other.kb") as other:
        folder = stale.vectors.folder
        with pytest.raises(KnowledgeBaseError, match=rf"another knowledge base than .*--kb .*other\.kb --to {folder}"):
            EntityIndex.open(other, fingerprint="bag 1", folder=folder)
        with pytest.raises(KnowledgeBaseError, match="another knowledge base or encoder; build it again"):
            stale.refresh(other, encoder)


def test_queries_that_do_not_fit_are_refused(few):
    index = build_index(few, BagOfWords())
    for queries, k in ((np.zeros((2, 5)), 3), (np.zeros(16), 3), (np.zeros((2, 16)), 0)):
        with pytest.raises(UsageError, match=r"give an array \(n, 16\) and k ≥ 1"):
            index.search(queries, k)


@pytest.mark.parametrize("name", ["index-", "rows-", "axes-", "changes-"])
@pytest.mark.parametrize("harm", ["truncated", "emptied", "lost"])
def test_a_damaged_file_is_refused_and_mended_by_a_build(many, name, harm):
    encoder = BagOfWords(32)
    index = build_index(many, encoder)
    many.add(Entity("new", "newcomer"))
    index.refresh(many, encoder)
    (path,) = index.vectors.folder.glob(f"{name}*")
    if harm == "lost":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - 9] if harm == "truncated" else b"")
    with pytest.raises(KnowledgeBaseError, match=r"(damaged|lacks) ?.*wellread index build --kb .*many\.kb"):
        EntityIndex.open(many, fingerprint=encoder.fingerprint)
    encoder.seen.clear()
    assert len(build_index(many, encoder)) == MANY + 1
    assert len(encoder.seen) == 1


def test_the_manifest_names_the_files(few):
    index = build_index(few, BagOfWords())
    manifest = json.loads((index.vectors.folder / "index.json").read_text())
    assert manifest["choice"]["kind"] == "exact"
    assert manifest["vectors"]["fingerprint"] == "bag 1"
    assert manifest["files"] == {name: (index.vectors.folder / name).stat().st_size for name in manifest["files"]}


# Building with as little work as it takes.


def test_a_build_refreshes_few_changes_and_folds_in_many(many, monkeypatch):
    encoder = BagOfWords(32)
    first = build_index(many, encoder)
    many.add([Entity(f"n{n}", f"newcomer {n}") for n in range(5)])
    progress = Encoding()
    second = build_index(many, encoder, progress=progress)
    assert second.vectors.file == first.vectors.file
    assert (len(second.changes), progress.encoded, progress.kept) == (5, 5, MANY)
    progress = Encoding()
    assert build_index(many, encoder, progress=progress).state == second.state
    assert (progress.encoded, progress.kept) == (0, MANY + 5)
    monkeypatch.setattr(module, "MOST_CHANGES", 8)
    many.add([Entity(f"m{n}", f"another {n}") for n in range(5)])
    third = build_index(many, encoder)
    assert third.vectors.file != first.vectors.file
    assert (len(third), len(third.changes)) == (MANY + 10, 0)
    other = build_index(many, encoder, kind="ivf")
    assert other.choice.kind == "ivf"
    assert not list(other.vectors.folder.glob("changes-*"))
    named = {"vectors.json", "index.json", ".lock", other.vectors.file}
    files = json.loads((other.vectors.folder / "index.json").read_text())["files"]
    assert {path.name for path in other.vectors.folder.iterdir()} == named | files.keys()


def test_a_crash_while_building_leaves_the_last_good_index(many, monkeypatch):
    encoder = BagOfWords(32)
    build_index(many, encoder)
    many.add(Entity("new", "newcomer"))

    def crash(*_):
        raise KeyboardInterrupt

    for place in ("write_manifest", "save_rows", "save_proposer", "locked"):
        with monkeypatch.context() as patch:
            patch.setattr(module, place, crash)
            with pytest.raises(KeyboardInterrupt):
                build_index(many, encoder, kind="ivf")
        stale = EntityIndex.open(many, fingerprint=encoder.fingerprint, stale="allow")
        assert (len(stale), stale.choice.kind) == (MANY, "exact")
        assert stale.search(queries_like(stale.vectors))[1].min() >= 0
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_manifest", crash)
        with pytest.raises(KeyboardInterrupt):
            stale.refresh(many, encoder)
    assert len(EntityIndex.open(many, fingerprint=None, stale="allow")) == MANY
    assert len(build_index(many, encoder, kind="ivf")) == MANY + 1


def test_a_late_refresh_includes_the_changes_of_another_process(few):
    encoder = BagOfWords()
    mine = build_index(few, encoder)
    few.add(Entity("a", "first newcomer"))
    theirs = EntityIndex.open(few, fingerprint=None, stale="allow").refresh(few, encoder)
    few.add(Entity("b", "second newcomer"))
    encoder.seen.clear()
    mine = mine.refresh(few, encoder)
    assert encoder.seen == [("second newcomer", "")]
    assert len(mine) == len(theirs) + 1 == 32
    assert EntityIndex.open(few, fingerprint=None).state == mine.state


def test_where_the_folder_cannot_be_written_changes_are_kept_in_memory(few, monkeypatch):
    index = build_index(few, BagOfWords())
    few.add(Entity("new", "newcomer"))

    def refuse(*_):
        raise StorageError("read-only")

    monkeypatch.setattr(module, "locked", refuse)
    newer = index.refresh(few, BagOfWords())
    assert "new" in newer.entities(newer.search(BagOfWords().encode([("newcomer", "")]), 1)[1])
    assert newer.state != index.state
    assert len(EntityIndex.open(few, fingerprint=None, stale="allow")) == 30


def _build_within(limit, path, folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with KnowledgeBase.open(path) as kb:
        try:
            build_index(kb, BagOfWords(32), folder)
        except StorageError as error:
            os._exit(7 if "the disk is full" in str(error) else 8)


@pytest.mark.parametrize("limit", [10_000, 100_000, 500_000])
def test_a_full_disk_is_one_message(many, tmp_path, limit):
    child = multiprocessing.get_context("forkserver").Process(
        target=_build_within, args=(limit, many.path, tmp_path / "folder")
    )
    child.start()
    child.join()
    assert child.exitcode == (7 if limit < 500_000 else 0)
    assert not (tmp_path / "folder" / "index.json").exists() or limit == 500_000
    assert len(build_index(many, BagOfWords(32), tmp_path / "folder")) == MANY


# Threads and processes.


def test_threads_and_forked_processes_search_one_index(many):
    index = build_index(many, BagOfWords(32))
    queries = queries_like(index.vectors, 80)
    expected = index.search(queries)[1]
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(index.search(queries)[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(answer, expected) for answer in answers)
    assert len(answers) == 4
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(index.search(queries)[1], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_with_one_core_the_search_runs_in_the_calling_thread():
    """In a thread of its own, since how many cores there are is set for each."""
    queries, here = np.zeros((80, 4), np.float32), []

    def work(part):
        here.append(threading.current_thread() is asking)
        return part, part

    def ask():
        faiss.omp_set_num_threads(1)
        SEARCH_THREADS.share(work, queries)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    assert here == [True]


def test_readers_keep_their_mapped_files_during_a_build(many):
    encoder = BagOfWords(32)
    index = build_index(many, encoder)
    queries = queries_like(index.vectors)
    before = index.search(queries)[1]
    many.remove([f"e{n}" for n in range(1000)])
    build_index(many, encoder, kind="ivf")
    assert np.array_equal(index.search(queries)[1], before)
    assert len(index.entities(before)) == before.size
