"""Bulk builds: records in any order, repeated ids, resuming, building over what is there, merging."""

import itertools
import os
import sqlite3

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kb.conftest import CITIES, FORMS, build_kb, content, text_index
from wellread.errors import InputError, KnowledgeBaseError, StorageError, UsageError
from wellread.kb import build as module
from wellread.kb.build import Origin, build, state_of
from wellread.kb.check import check
from wellread.kb.export import merge
from wellread.kb.records import Alias, Entity, Fact, Form, Redirect, Tally
from wellread.kb.store import KnowledgeBase

APART = (
    Alias("City of Light", "Q90", 4),
    Alias("Paree", "R1", 2),
    Alias("Paree", "Q90", 1),
    Alias("Panam", "R3", 1),
    Fact("Q90", "in", "Q142"),
    Fact("R2", "in", "Q142"),
    Fact("Q142", "capital", "R3"),
    Redirect("R1", "Q90"),
    Redirect("R2", "R1"),
    Redirect("R3", "R2"),
    Form("geese", "goose", "n"),
    Entity("Q90", "Paris", popularity=5),
    Entity("Q142", "France", facts=(("borders", "R2"),)),
)


def contents(path):
    with KnowledgeBase.open(path) as kb:
        assert check(kb) == []
        return content(kb), text_index(kb)


@settings(max_examples=25, deadline=None)
@given(st.permutations(APART), st.sampled_from([1, 3, 20_000]))
def test_records_may_come_in_any_order(tmp_path_factory, records, batch):
    path = tmp_path_factory.mktemp("build") / "x.kb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH", batch)
        tally = build_kb(path, records)
    with KnowledgeBase.open(path) as kb:
        assert kb.get("Q90").aliases == {"Paris": 1, "City of Light": 4, "Paree": 3, "Panam": 1}
        assert kb.get("Q90").facts == (("in", "Q142"),)
        assert set(kb.get("Q142").facts) == {("capital", "Q90"), ("borders", "Q90")}
        assert kb.get("Q90").popularity == 5
        assert list(kb.forms()) == [Form("geese", "goose", "n")]
        assert [e.id for e in kb.search("panam")] == ["Q90"]
        assert check(kb) == []
    assert tally.skipped == {}


def test_what_leads_nowhere_is_counted_and_left_out(tmp_path):
    records = [Alias("x", "Q0"), Alias("y", "Q0"), Fact("Q1", "in", "Q0"), Fact("Q0", "in", "Q1"), Redirect("Q0", "Q9")]
    tally = build_kb(tmp_path / "x.kb", [Entity("Q1", "One"), *records])
    assert tally.skipped == {"alias of an entity that is not there": 2, "fact with an end that is not there": 2}
    assert tally.report() == ["2 × alias of an entity that is not there", "2 × fact with an end that is not there"]
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        assert kb.neighbours("Q1") == []
        assert check(kb) == []


def test_redirects_in_a_circle_end(tmp_path):
    build_kb(tmp_path / "x.kb", [Entity("Q1", "One"), Redirect("a", "b"), Redirect("b", "a"), Alias("x", "a")])
    assert set(contents(tmp_path / "x.kb")[0][0]) == {"Q1"}


@pytest.mark.parametrize(
    ("entity", "reason"),
    [
        (Entity("", "Nothing"), "entity that has no id"),
        (Entity("a", "_", aliases={" ": 1}), "entity that has no name with a letter or sign in it"),
        (Entity("a", "A", aliases={"A": float("nan")}), "entity that has a count or popularity that is negative"),
        (Entity("a", "A", popularity=-1.0), "entity that has a count or popularity that is negative"),
        (Entity("a", "\udc00"), "entity that has half a surrogate pair in its text"),
        (Entity("a", "A", "b\0c"), "entity that has a NUL character"),
    ],
)
def test_an_entity_that_cannot_be_held_is_counted_and_left_out(tmp_path, entity, reason):
    tally = build_kb(tmp_path / "x.kb", [entity, Entity("b", "B")])
    assert [line.startswith(f"1 × {reason}") for line in tally.report()] == [True]
    assert set(contents(tmp_path / "x.kb")[0][0]) == {"b"}


def test_an_alias_that_is_no_name_is_counted_and_left_out(tmp_path):
    tally = build_kb(tmp_path / "x.kb", [Entity("a", "A", aliases={"_": 1})])
    assert tally.skipped == {"alias without a letter or sign": 1}
    assert contents(tmp_path / "x.kb")[0][0]["a"][4] == {"A": 1}


@pytest.mark.parametrize("batch", [1, 20_000])
def test_of_a_repeated_id_the_first_stays(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(module, "_BATCH", batch)
    tally = build_kb(
        tmp_path / "x.kb", [Entity("a", "A", "one", facts=(("is", "a"),)), Entity("a", "B", "two", "kind")]
    )
    assert tally.report() == ["1 × repeated id (first: a)"]
    assert contents(tmp_path / "x.kb")[0][0] == {"a": ("A", "one", "", 0.0, {"A": 1}, {("is", "a")})}


def test_repeated_ids_can_be_merged(tmp_path):
    first = Entity("a", "A", "", "", 2, {"A": 3}, (("is", "a"),))
    other = Entity("a", "B", "two", "kind", 1, {"A": 1, "b": 2}, (("was", "a"),))
    tally = build_kb(tmp_path / "x.kb", [first, other], on_repeat="merge")
    assert tally.skipped == {}
    expected = ("A", "two", "kind", 2.0, {"A": 4, "B": 1, "b": 2}, {("is", "a"), ("was", "a")})
    assert contents(tmp_path / "x.kb")[0][0] == {"a": expected}


def test_a_kb_of_nothing_is_a_kb(tmp_path):
    build_kb(tmp_path / "x.kb", [])
    with KnowledgeBase.open(tmp_path / "x.kb", writable=True) as kb:
        assert (len(kb), check(kb)) == (0, [])
        kb.add([Entity("a", "A")])
        assert (kb.candidates("a")[0].entity, check(kb)) == ("a", [])


def test_nothing_is_left_beside_a_finished_kb(path):
    assert sorted(os.listdir(path.parent)) == ["cities.kb"]


# Resuming.


class Killed(BaseException):
    """Stands for the end of the process: nobody catches it."""


def records_until(count, records=(*CITIES, *APART)):
    yield from itertools.islice(records, count)
    raise Killed


@pytest.mark.parametrize("count", range(0, len(CITIES) + len(APART), 3))
def test_a_build_that_broke_off_goes_on_and_ends_the_same(tmp_path, monkeypatch, count):
    monkeypatch.setattr(module, "_BATCH", 4)
    origin, whole = Origin("test"), (*CITIES, *APART)
    build(lambda tally: iter(whole), tmp_path / "undisturbed.kb", origin=origin)
    path = tmp_path / "x.kb"
    with pytest.raises(Killed):
        build(lambda tally: records_until(count), path, origin=origin)
    assert not path.exists()
    loaded = []
    monkeypatch.setattr(module._Loader, "load", _noting(module._Loader.load, loaded))
    build(lambda tally: iter(whole), path, origin=origin)
    assert sum(loaded) == len(whole) - count // 4 * 4
    assert contents(path) == contents(tmp_path / "undisturbed.kb")
    assert not (tmp_path / "x.kb.building").exists()


def _noting(load, loaded):
    def noting(self, batch, done):
        loaded.append(len(batch))
        load(self, batch, done)

    return noting


@pytest.mark.parametrize("step", ["_place_aliases", "_place_facts", "_place_text", "_put_in_place"])
def test_a_build_that_broke_off_while_finishing_does_not_count_twice(tmp_path, monkeypatch, step):
    origin = Origin("test")
    build(lambda tally: iter(APART), tmp_path / "undisturbed.kb", origin=origin)

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, step, kill)
        with pytest.raises(Killed):
            build(lambda tally: iter(APART), tmp_path / "x.kb", origin=origin)
    tally = build(lambda tally: iter(APART), tmp_path / "x.kb", origin=origin)
    assert contents(tmp_path / "x.kb") == contents(tmp_path / "undisturbed.kb")
    assert all(count > 0 for count in tally.skipped.values())


def test_another_source_does_not_go_on_with_the_rest_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 1)
    with pytest.raises(Killed):
        build(lambda tally: records_until(4), tmp_path / "x.kb", origin=Origin("one"))
    other = [Entity(f"other{number}", "Other") for number in range(9)]
    build(lambda tally: iter(other), tmp_path / "x.kb", origin=Origin("two"))
    assert set(contents(tmp_path / "x.kb")[0][0]) == {entity.id for entity in other}


@pytest.mark.parametrize("rubbish", [b"", b"no database at all", b"SQLite format 3\0" + b"\0" * 5000])
def test_rubbish_under_the_name_of_an_unfinished_build_is_replaced(tmp_path, rubbish):
    (tmp_path / "x.kb.building").write_bytes(rubbish)
    build_kb(tmp_path / "x.kb", CITIES)
    assert len(contents(tmp_path / "x.kb")[0][0]) == len(CITIES)


def test_files_are_distinguished_from_later_ones_at_the_same_path(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("one")
    first = state_of(tmp_path / "a", tmp_path)
    assert first == state_of(tmp_path / "a", tmp_path)
    os.utime(tmp_path / "b", ns=(1, 1))
    assert first != state_of(tmp_path / "a", tmp_path)
    assert state_of(tmp_path / "a") != state_of(tmp_path / "b")
    assert state_of(tmp_path / "pipe") != state_of(tmp_path / "pipe")


def test_two_builds_of_one_kb_do_not_run_at_once(tmp_path):
    with (
        FileLock(tmp_path / "x.kb.building.lock"),
        pytest.raises(KnowledgeBaseError, match="another process is building"),
    ):
        build_kb(tmp_path / "x.kb", CITIES)
    build_kb(tmp_path / "x.kb", CITIES)


# Building over what is there.


def test_a_new_build_takes_the_place_of_an_old_kb_and_its_readers_live_on(path):
    with KnowledgeBase.open(path, writable=True) as writer, KnowledgeBase.open(path) as reader:
        writer.add([Entity("x", "Ex")])
        uid = reader.metadata["uid"]
        reader.connection.execute("BEGIN")
        assert [c.entity for c in reader.candidates("Paris")] == ["Q90", "Q830149"]
        assert [e.id for e in reader.search("par")] == ["Q90", "Q830149"]

        build_kb(path, [Entity("P", "Paris", aliases={"Paname": 1}), Entity("P2", "Parma")])

        assert [c.entity for c in reader.candidates("Paris")] == ["Q90", "Q830149"]
        assert reader.revision == 2
        reader.connection.execute("COMMIT")
        assert [c.entity for c in reader.candidates("Paris")] == ["P"]
        assert [e.id for e in reader.search("pa")] == ["P", "P2"]
        assert reader.revision == 3
        assert reader.metadata["uid"] != uid
        assert len(reader) == 2
        writer.add([Entity("y", "Why")])
        assert (reader.revision, "y" in reader, check(reader)) == (4, True, [])
    assert sorted(os.listdir(path.parent)) == ["cities.kb"]


@pytest.mark.parametrize("what", ["text", "newer", "folder"])
def test_what_is_no_kb_is_not_built_over_and_that_is_said_before_the_work(tmp_path, what):
    path = tmp_path / "x.kb"
    if what == "folder":
        path.mkdir()
    elif what == "text":
        path.write_text("my only copy")
    else:
        build_kb(path, CITIES)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 9")
        connection.close()

    def never(tally):
        raise AssertionError("the source was read")

    with pytest.raises(KnowledgeBaseError):
        build(never, path, origin=Origin("test"))
    assert what != "text" or path.read_text() == "my only copy"


def test_what_an_older_file_left_beside_its_name_does_not_reach_the_new_one(path):
    with KnowledgeBase.open(path, writable=True) as kb:
        kb.add([Entity("old", "Old")])
        left = path.with_name("cities.kb-wal").read_bytes()
    assert left
    path.unlink()
    path.with_name("cities.kb-wal").write_bytes(left)
    build_kb(path, [Entity("new", "New")])
    assert set(contents(path)[0][0]) == {"new"}


def test_a_source_that_breaks_leaves_the_old_kb_as_it_was(path):
    before = contents(path)

    def broken(tally):
        yield Entity("x", "Ex")
        raise InputError("line 2 is broken")

    with pytest.raises(InputError, match="line 2 is broken"):
        build(broken, path, origin=Origin("test"))
    assert contents(path) == before


def test_a_place_that_is_a_file_is_no_folder_to_build_in(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*file/x\.kb: "):
        build_kb(tmp_path / "file" / "x.kb", CITIES)


# Merging, and what the progress bar sees.


def test_several_kbs_become_one(tmp_path):
    build_kb(tmp_path / "a.kb", [Entity("a", "A", "first", aliases={"A": 3}, facts=(("is", "b"),)), Entity("b", "B")])
    extra = Origin("test", "MIT", "de", extra={"inflection": "wordnet"})
    other = [Entity("b", "Bee", "second", "insect", aliases={"B": 2}, facts=(("is", "c"),)), Entity("c", "C"), *FORMS]
    build(lambda tally: iter(other), tmp_path / "b.kb", origin=extra)
    tally = merge([tmp_path / "a.kb", tmp_path / "b.kb"], tmp_path / "both.kb")
    with KnowledgeBase.open(tmp_path / "both.kb") as kb:
        assert content(kb)[0] == {
            "a": ("A", "first", "", 0.0, {"A": 3}, {("is", "b")}),
            "b": ("B", "second", "insect", 0.0, {"B": 3, "Bee": 1}, {("is", "c")}),
            "c": ("C", "", "", 0.0, {"C": 1}, set()),
        }
        assert set(kb.forms()) == set(FORMS)
        assert check(kb) == []
        said = kb.metadata
    assert (said["source"], said["licence"]) == ("merge of a.kb, b.kb", "CC0; MIT")
    assert (said["language"], said["inflection"]) == ("en", "wordnet")
    sizes = sum((tmp_path / name).stat().st_size for name in ("a.kb", "b.kb"))
    assert (tally.read, tally.total_bytes) == (4, sizes)
    assert tally.done_bytes == pytest.approx(sizes, rel=0.01)


def test_a_kb_can_be_merged_into_one_of_its_sources(tmp_path, path):
    build_kb(tmp_path / "b.kb", [Entity("b", "B")])
    merge([path, tmp_path / "b.kb"], path)
    assert len(contents(path)[0][0]) == len(CITIES) + 1


def test_merging_needs_something_that_is_there(tmp_path):
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([], tmp_path / "x.kb")
    with pytest.raises(KnowledgeBaseError, match="there is no knowledge base at"):
        merge([tmp_path / "none.kb"], tmp_path / "x.kb")


def test_the_tally_says_what_is_done_when_all_is_read(tmp_path, monkeypatch):
    tally, steps = Tally(), []
    for name in ("_place_aliases", "_place_text", "_put_in_place"):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, original=original: (steps.append(tally.step), original(*given))
        )
    build_kb(tmp_path / "x.kb", CITIES, tally=tally)
    assert steps == ["joining names and facts", "indexing", "putting in place"]
    assert tally.step == ""
