"""A knowledge base that is open: reading by id, name and neighbour, and what opens or is refused."""

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kb.conftest import CITIES, FORMS, build_kb
from wellread.errors import InputError, KnowledgeBaseError, StorageError, UnknownEntityError, UsageError
from wellread.kb import schema
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase, Neighbour, rank


def test_an_entity_comes_back_with_its_names_and_facts(kb):
    paris = kb.get("Q90")
    assert (paris.title, paris.description, paris.kind, paris.popularity) == ("Paris", "capital of France", "city", 412)
    assert paris.aliases == {"Paris": 310, "City of Light": 4}
    assert paris.facts == (("in", "Q142"),)


def test_a_title_is_a_name_even_where_no_alias_says_so(kb):
    assert kb.get("Q937").aliases == {"Albert Einstein": 9, "Einstein": 12}
    assert kb.get("Q468777").aliases == {"existence": 1}
    assert [c.entity for c in kb.candidates("united states")] == ["Q30"]


def test_length_membership_order_and_forms(kb):
    assert len(kb) == len(CITIES)
    assert "Q90" in kb
    assert "Q91" not in kb
    assert [entity.id for entity in kb.entities()] == [entity.id for entity in CITIES]
    assert set(kb.forms()) == set(FORMS)


def test_an_unknown_id_is_named_and_is_a_key_error(kb):
    for ask in (kb.get, kb.neighbours):
        with pytest.raises(UnknownEntityError, match=r"cities\.kb has no entity 'Q0'; look for it") as caught:
            ask("Q0")
        assert isinstance(caught.value, KeyError)


def test_metadata_says_where_a_kb_comes_from(kb):
    assert kb.metadata["source"] == "test"
    assert kb.metadata["licence"] == "CC0"
    assert kb.metadata["revision"] == "1"
    assert len(kb.metadata["uid"]) == 32
    assert not {"building", "done"} & set(kb.metadata)


def test_candidates_are_ranked_by_their_share_of_the_name(kb):
    found = kb.candidates("Paris")
    assert [(c.entity, c.title) for c in found] == [("Q90", "Paris"), ("Q830149", "Paris, Texas")]
    assert [c.prior for c in found] == pytest.approx([310 / 320, 10 / 320])
    assert kb.candidates("nowhere") == []
    assert kb.candidates(" _ ") == []


@pytest.mark.parametrize(
    ("name", "case", "expected"),
    [
        ("PARIS", "folded", ["Q90", "Q830149"]),
        ("PARIS", "title", []),
        ("paris", "title", ["Q90", "Q830149"]),
        ("paris", "exact", []),
        ("Tokyo", "folded", ["Q1490"]),
        ("tōkyō", "title", ["Q1490"]),
        ("us", "exact", ["Q30"]),
        ("u.s.", "exact", []),
        ("city-of  light", "title", ["Q90"]),
    ],
)
def test_a_case_policy_says_which_spellings_are_the_same_name(kb, name, case, expected):
    assert [c.entity for c in kb.candidates(name, case=case)] == expected


def test_only_the_spellings_that_match_count_for_the_prior(kb):
    kb.add([Entity("q", "pronoun", aliases={"us": 60})])
    folded = {c.entity: c.prior for c in kb.candidates("us")}
    exact = {c.entity: c.prior for c in kb.candidates("us", case="exact")}
    assert folded == pytest.approx({"Q30": 0.5, "q": 0.5})
    assert exact == pytest.approx({"Q30": 0.0, "q": 1.0})


def test_candidates_of_some_kinds_share_the_prior_among_them(kb):
    kb.add([Entity("P", "Paris", "a myth", "person", aliases={"Paris": 5})])
    assert [(c.entity, c.prior) for c in kb.candidates("Paris", kinds={"person"})] == [("P", 1.0)]
    assert len(kb.candidates("Paris", kinds={"person", "city"})) == 3
    assert kb.candidates("Paris", kinds=()) == []


def test_a_limit_keeps_the_best_and_their_priors_still_sum_to_one(kb):
    assert [(c.entity, c.prior) for c in kb.candidates("Paris", limit=1)] == [("Q90", 1.0)]


COUNTS = st.one_of(st.just(0.0), st.floats(1e-6, 1e12), st.integers(0, 50).map(float))


@given(st.lists(st.tuples(COUNTS, st.integers(0, 6), COUNTS), max_size=40), st.integers(1, 40))
def test_priors_sum_to_one_and_never_rise(counts, limit):
    rows = [("name", count, f"Q{number}", "title", popularity, "") for count, number, popularity in counts]
    found = rank(rows, limit)
    assert len(found) == min(limit, len({row[2] for row in rows}))
    assert sum(c.prior for c in found) == pytest.approx(1.0 if rows else 0.0)
    assert all(a.prior >= b.prior for a, b in pairwise(found))
    assert all(c.prior == c.score >= 0 for c in found)


def test_equal_counts_go_by_popularity_then_by_id():
    rows = [("x", 1.0, "b", "B", 5, ""), ("x", 1.0, "a", "A", 5, ""), ("x", 1.0, "c", "C", 9, "")]
    assert [c.entity for c in rank(rows)] == ["c", "a", "b"]


def test_neighbours_are_joined_in_both_directions(kb):
    assert kb.neighbours("Q90") == [
        Neighbour("in", "Q142", "France", outgoing=True),
        Neighbour("capital", "Q142", "France", outgoing=False),
    ]
    assert kb.neighbours("Q90", relation="capital") == [Neighbour("capital", "Q142", "France", outgoing=False)]
    assert kb.neighbours("Q90", relation="nothing") == []
    assert kb.neighbours("Q937") == []


def test_what_is_open_for_reading_cannot_be_changed(path):
    with KnowledgeBase.open(path) as kb:
        with pytest.raises(
            KnowledgeBaseError, match=r"is open for reading; use KnowledgeBase\.open\(path, writable=True\)"
        ):
            kb.remove(["Q90"])
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            kb.connection.execute("DELETE FROM entities")
        assert len(kb) == len(CITIES)


# What is refused, each with one clear message.


def newer(path):
    build_kb(path, CITIES)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {schema.SCHEMA + 1}")
    connection.close()


def foreign(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()


def tableless(path):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        connection.execute(f"PRAGMA user_version = {schema.SCHEMA}")
    connection.close()


def truncated(path):
    build_kb(path, CITIES)
    path.write_bytes(path.read_bytes()[:9000])


def garbled(path):
    build_kb(path, CITIES)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"garbage!" * (len(data) // 8 - 512))


REFUSED = {
    "missing": (lambda path: None, "there is no knowledge base at .*; build one with: wellread kb build SOURCE --to"),
    "folder": (lambda path: path.mkdir(), "is a folder; a knowledge base is one file"),
    "text": (
        lambda path: path.write_text("no database" * 100),
        "is not a knowledge base; check the path, or build one",
    ),
    "empty": (lambda path: path.touch(), "is an SQLite file but not a knowledge base"),
    "foreign": (foreign, "is an SQLite file but not a knowledge base; build one"),
    "truncated": (truncated, r"is damaged \(database disk image is malformed\)"),
    "newer": (newer, r"was written by a newer wellread \(schema 2, this one reads up to 1\); upgrade wellread: pull"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("writable", [False, True])
def test_what_is_not_a_knowledge_base_of_ours_is_refused(tmp_path, what, writable):
    make, message = REFUSED[what]
    make(tmp_path / "x.kb")
    with pytest.raises(KnowledgeBaseError, match=message):
        KnowledgeBase.open(tmp_path / "x.kb", writable=writable)


def test_a_refused_file_is_not_kept_open(tmp_path):
    foreign(tmp_path / "x.kb")
    with pytest.raises(KnowledgeBaseError):
        KnowledgeBase.open(tmp_path / "x.kb")
    held = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    ]
    assert not [name for name in held if name.endswith("x.kb")]


@pytest.mark.parametrize(
    "use",
    [
        lambda kb: list(kb.entities()),
        lambda kb: kb.get("Q90"),
        lambda kb: kb.candidates("Paris"),
        lambda kb: kb.neighbours("Q90"),
        lambda kb: kb.search("par"),
        lambda kb: list(kb.forms()),
        lambda kb: kb.changed_names(0),
        lambda kb: kb.changed_entities(0),
        lambda kb: kb.metadata,
        lambda kb: kb.revision,
        lambda kb: "Q90" in kb,
        len,
    ],
)
@pytest.mark.parametrize("damage", [garbled, tableless])
def test_damage_met_while_reading_is_our_error(tmp_path, use, damage):
    damage(tmp_path / "x.kb")

    def attempt():
        with KnowledgeBase.open(tmp_path / "x.kb") as kb:
            use(kb)

    with pytest.raises(KnowledgeBaseError, match=r"damaged|unfinished"):
        attempt()


def test_a_path_with_odd_letters_opens(tmp_path):
    odd = tmp_path / "a ?&#%20é.kb"
    build_kb(odd, CITIES)
    with KnowledgeBase.open(odd) as kb:
        assert len(kb) == len(CITIES)


# Folders that cannot be written, and other processes.


@pytest.fixture
def frozen(tmp_path):
    """Make a folder a read-only mount; needs to be root."""
    mounted = []

    def freeze(folder):
        there = tmp_path / "frozen"
        there.mkdir(exist_ok=True)
        commands = (["mount", "--bind", folder, there], ["mount", "-o", "remount,bind,ro", there])
        for command in commands:
            done = subprocess.run(command, capture_output=True, check=False) if shutil.which("mount") else None
            if done is None or done.returncode:
                pytest.skip("no right to mount a folder read-only here")
            mounted[:] = [there]
        return there

    yield freeze
    for there in mounted:
        subprocess.run(["umount", there], check=True)


@pytest.mark.parametrize("left", [[], ["-wal", "-shm"], ["-wal"]])
def test_a_kb_in_a_folder_that_cannot_be_written_opens_for_reading_only(path, frozen, left):
    KnowledgeBase.open(path).close()  # a reader leaves both behind, empty
    for suffix in ("-wal", "-shm"):
        if suffix not in left:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert len(os.listdir(path.parent)) == 1 + len(left)
    there = frozen(path.parent) / path.name
    with KnowledgeBase.open(there) as kb:
        assert [c.entity for c in kb.candidates("Paris")] == ["Q90", "Q830149"]
        assert [e.id for e in kb.search("alb")] == ["Q937"]
    with pytest.raises(StorageError, match="cannot be written; change its permissions or copy it elsewhere"):
        KnowledgeBase.open(there, writable=True)


def test_a_kb_without_permission_to_write_opens_for_reading_only(path, monkeypatch):
    # Root may write everywhere, so permissions are answered by a stand-in.
    monkeypatch.setattr(os, "access", lambda file, mode: mode != os.W_OK)
    with KnowledgeBase.open(path) as kb:
        assert len(kb) == len(CITIES)
    with pytest.raises(StorageError, match="cannot be written"):
        KnowledgeBase.open(path, writable=True)


def _read_until(path, last, problems):
    """Look again and again; each look must see a whole state: entity n is there exactly when the revision says so."""
    try:
        with KnowledgeBase.open(path) as kb:
            seen = 0
            while seen < last:
                kb.connection.execute("BEGIN")
                seen, count, found = kb.revision, len(kb), len(kb.candidates("thing", limit=1000))
                kb.connection.execute("COMMIT")
                if not count == found == seen + 1:
                    problems.put(f"revision {seen}: {count} entities, {found} candidates")
                    return
            problems.put("")
    except BaseException as error:
        problems.put(repr(error))


def test_other_processes_read_whole_states_while_one_writes(tmp_path):
    path, context = tmp_path / "x.kb", multiprocessing.get_context("spawn")
    build_kb(path, [Entity("0", "thing"), Entity("1", "thing")])
    problems = context.Queue()
    readers = [context.Process(target=_read_until, args=(path, 60, problems)) for _ in range(2)]
    for reader in readers:
        reader.start()
    with KnowledgeBase.open(path, writable=True) as kb:
        for number in range(2, 61):
            kb.add([Entity(str(number), "thing")])
            time.sleep(0.01)
        assert kb.revision == 60
    assert [problems.get(timeout=60) for _ in readers] == ["", ""]
    for reader in readers:
        reader.join()


def test_two_writers_wait_for_each_other(path):
    with KnowledgeBase.open(path, writable=True) as one, KnowledgeBase.open(path, writable=True) as other:
        other.connection.execute("PRAGMA busy_timeout = 50")
        with one.change() as change:
            change.remove("Q90")
            with pytest.raises(KnowledgeBaseError, match="is being changed by another process; try again"):
                other.remove(["Q142"])
        other.remove(["Q142"])
        assert other.revision == one.revision == 3


def test_a_snapshot_stays_as_it_is_while_others_write(path):
    with KnowledgeBase.open(path) as reader, KnowledgeBase.open(path, writable=True) as writer:
        with reader.snapshot():
            before = (len(reader), reader.revision)
            writer.add([Entity("new", "Newcomer")])
            assert (len(reader), reader.revision) == before
            assert reader.candidates("Newcomer") == []
            with reader.snapshot():  # one within another is the same
                assert "new" not in reader
        assert reader.candidates("Newcomer")[0].entity == "new"


def test_a_snapshot_that_fails_is_over(path):
    with KnowledgeBase.open(path, writable=True) as kb:
        with pytest.raises(ZeroDivisionError), kb.snapshot():
            1 / 0  # noqa: B018
        kb.add([Entity("new", "Newcomer")])
        assert "new" in kb


def test_a_policy_that_is_none_is_refused(kb):
    with pytest.raises(UsageError, match="exact, title, folded"):
        kb.candidates("Paris", case="weird")


def test_an_id_that_is_no_text_is_refused(kb):
    for ask in (kb.get, kb.__contains__, kb.describe):
        with pytest.raises(InputError, match="surrogate"):
            ask("\udcff")


def test_a_closed_kb_says_so(path):
    kb = KnowledgeBase.open(path)
    kb.close()
    kb.close()
    for ask in (lambda: len(kb), lambda: kb.get("Q90"), lambda: kb.candidates("Paris"), lambda: kb.search("Paris")):
        with pytest.raises(KnowledgeBaseError, match="was closed"):
            ask()


def test_a_description_alone(kb):
    assert kb.describe("Q90") == kb.get("Q90").description
    assert kb.describe("nobody") == ""


def test_the_largest_counts_still_share_a_prior_of_one(kb):
    kb.add([Entity("a", "Huge", aliases={"Huge": 1e300}), Entity("b", "Huge", aliases={"Huge": 1e300})])
    assert [candidate.prior for candidate in kb.candidates("Huge")] == [0.5, 0.5]
    with pytest.raises(KnowledgeBaseError, match="not a number"):
        kb.add(Entity("c", "Huge", aliases={"Huge": 1e308}))


def test_a_kb_is_built_from_csv_into_a_file(tmp_path):
    (tmp_path / "cities.csv").write_text("sku,name,synonyms\nQ1,Paris,City of Light|Lutetia\nQ2,Riga,\n")
    (tmp_path / "facts.tsv").write_text("Q1\ttwin town\tQ2\n")
    columns = {"id": "sku", "title": "name", "aliases": ["synonyms"]}
    target = tmp_path / "cities.kb"
    with KnowledgeBase.from_csv(
        tmp_path / "cities.csv", target, columns=columns, facts=[tmp_path / "facts.tsv"], licence="CC0"
    ) as kb:
        assert len(kb) == 2
        assert kb.candidates("lutetia")[0].entity == "Q1"
        assert kb.get("Q1").facts == (("twin town", "Q2"),)
        assert (kb.metadata["source"], kb.metadata["licence"]) == ("csv: cities.csv", "CC0")
    assert target.is_file()
    with pytest.raises(KnowledgeBaseError, match="exists already; open it with"):
        KnowledgeBase.from_csv(tmp_path / "cities.csv", target, columns=columns)


def test_a_kb_from_jsonl_without_a_path_is_temporary_and_can_be_changed(tmp_path):
    (tmp_path / "cities.jsonl").write_text('{"id": "Q1", "title": "Paris", "aliases": ["Lutetia"]}\n')
    with KnowledgeBase.from_jsonl(tmp_path / "cities.jsonl") as kb:
        kb.add({"id": "Q2", "title": "Riga", "facts": [("twin town", "Q1")]})
        assert [entity.title for entity in kb.entities()] == ["Paris", "Riga"]
        path = kb.path
        assert path.is_file()
    assert not path.parent.exists()


def test_a_temporary_kb_of_a_broken_file_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "broken.csv").write_text("name\nParis\n")
    with pytest.raises(InputError, match="has no column id, title"):
        KnowledgeBase.from_csv(tmp_path / "broken.csv")
    with pytest.raises(UsageError, match="no field 'sku' to map; choose from id, title"):
        KnowledgeBase.from_csv(tmp_path / "broken.csv", columns={"sku": "name"})
    assert list((tmp_path / "temporary").iterdir()) == []


def test_entities_may_be_given_as_mappings(path):
    with KnowledgeBase.open(path, writable=True) as kb:
        count = len(kb)
        kb.add([{"id": "new1", "title": "New one", "aliases": {"Newcomer": 3}, "popularity": 2}, Entity("new2", "Two")])
        assert len(kb) == count + 2
        assert kb.get("new1") == Entity("new1", "New one", popularity=2.0, aliases=kb.get("new1").aliases)
        assert kb.candidates("newcomer")[0].entity == "new1"
        kb.update({"id": "new1", "title": "Renamed"})
        assert kb.get("new1").title == "Renamed"
        with pytest.raises(UsageError, match="no field 'tittle'; choose from id, title"):
            kb.add({"id": "new3", "tittle": "Three"})
        with pytest.raises(InputError, match="needs 'id' and 'title'"):
            kb.add({"id": "new3"})
        assert "new3" not in kb
