"""`check` finds every kind of damage; each is done to a sound file by hand."""

import io
import random
import sqlite3
from contextlib import closing

import pytest

from tests.kb.conftest import CITIES, build_kb
from wellread.errors import KnowledgeBaseError, WellreadError
from wellread.kb.build import Origin, build
from wellread.kb.check import check
from wellread.kb.export import write_jsonl
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker

DAMAGE = {
    "DELETE FROM aliases WHERE entity = 1": "entities without a name: 1 (first: Q90)",
    "INSERT INTO aliases VALUES (99, 'x', 1, 1)": "aliases of no entity: 1 (first: x)",
    "UPDATE aliases SET count = -1 WHERE name = 'Paris'": "counts that are no numbers from 0 on: 2 (first: Paris)",
    "UPDATE aliases SET count = 9e999 WHERE name = 'Einstein'": "counts that are no numbers from 0 on: 1",
    "UPDATE entities SET popularity = -5 WHERE id = 'Q90'": "popularities that are no numbers from 0 on: 1",
    "INSERT INTO aliases VALUES (1, '_', 0, 1)": "aliases without a letter or sign: 1",
    "INSERT INTO facts VALUES (99, 1, 1)": "facts of no subject: 1",
    "INSERT INTO facts VALUES (1, 1, 99)": "facts of no object: 1",
    "INSERT INTO facts VALUES (1, 99, 1)": "facts of no relation: 1",
    "INSERT INTO metadata VALUES ('building', 'x')": "unfinished build: 1",
    "DELETE FROM metadata WHERE key = 'uid'": "metadata missing: 1 (first: uid)",
    "DELETE FROM metadata WHERE key = 'revision'": "metadata missing: 1 (first: revision)",
    "INSERT INTO changed_names VALUES (1, 7)": "changes after the last revision: 1 (first: 7)",
    "INSERT INTO changed_entities VALUES ('Q90', 8)": "changes after the last revision: 1 (first: 8)",
    "UPDATE aliases SET key = key + 1 WHERE name = 'Paris'": "the alias 'Paris' has a wrong key",
    "UPDATE aliases SET name = 'Pariss' WHERE name = 'Paris'": "the alias 'Pariss' has a wrong key",
    "UPDATE names SET aliases = '[]'": "the look-up of the name",
    "DELETE FROM names": "the look-up of the name",
    "UPDATE entities SET title = 'Other'": "the look-up of the name",
    "DROP INDEX facts_by_object": "missing indexes: facts_by_object",
    "DELETE FROM entity_text_docsize WHERE id = 1": "entities missing from the text index: 1 (first: Q90)",
    "INSERT INTO entity_text (rowid, names) VALUES (99, 'x')": "text of entities that are gone: 1 (first: 99)",
    "DELETE FROM entities WHERE id = 'Q937'": "text of entities that are gone: 1",
    "DELETE FROM entity_text_data WHERE id > 10": "the file is damaged: database disk image is malformed",
    "INSERT INTO entity_text (entity_text, rowid, names, description) VALUES ('delete', 6, 'Einstein', '')": (
        "entities missing from the text index: 1 (first: Q937)"
    ),
}


def tamper(path, statement):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement)
    connection.close()


def test_a_sound_file_has_no_problems(path):
    with KnowledgeBase.open(path) as kb:
        assert check(kb) == []


@pytest.mark.parametrize("statement", DAMAGE)
def test_each_kind_of_damage_is_found_and_named(path, statement):
    tamper(path, statement)
    with KnowledgeBase.open(path) as kb:
        assert any(problem.startswith(DAMAGE[statement]) for problem in check(kb)), check(kb)


def test_text_that_is_not_what_was_indexed_is_found(path):
    tamper(path, "UPDATE entity_text_docsize SET sz = x'0909' WHERE id = 6")
    with KnowledgeBase.open(path) as kb:
        assert check(kb)[0].startswith("the text index holds ")


def test_a_damaged_page_is_found(tmp_path):
    build_kb(tmp_path / "x.kb", CITIES)
    data = bytearray((tmp_path / "x.kb").read_bytes())
    connection = sqlite3.connect(tmp_path / "x.kb")
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'facts_by_object'").fetchone()
    connection.close()
    data[(page - 1) * 4096 + 8 : (page - 1) * 4096 + 200] = b"\xff" * 192
    (tmp_path / "x.kb").write_bytes(data)
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        problems = check(kb)
    assert problems
    assert all(problem.startswith("the file is damaged: ") for problem in problems)


def test_a_missing_table_is_an_unfinished_knowledge_base(path):
    tamper(path, "DROP TABLE facts")
    with KnowledgeBase.open(path) as kb, pytest.raises(KnowledgeBaseError, match="is an unfinished knowledge base"):
        check(kb)


def uses(path):
    """Yield the uses that commands make of a knowledge base, one by one."""
    yield lambda kb: check(kb)
    yield lambda kb: write_jsonl(kb, io.BytesIO())
    yield lambda kb: [kb.search(query, how=how) for query in ("town", "twon") for how in ("prefix", "text", "fuzzy")]
    yield lambda kb: [(kb.get(id), kb.neighbours(id)) for id in ("e1", "e7")]
    yield lambda kb: list(Linker.load(kb, "prior").link_many(["Town 3 is near Town 11, north of Town 7"]))


def test_damage_is_reported_in_one_line_whatever_is_done_with_the_file(tmp_path):
    towns = [
        Entity(f"e{number}", f"Town {number}", "a town", "town", 1.0, {f"Town {number}": 2.0}, (("near", "e1"),))
        for number in range(1, 30)
    ]
    build(lambda tally: iter(towns), tmp_path / "whole.kb", origin=Origin("test"))
    whole = (tmp_path / "whole.kb").read_bytes()
    path, messages = tmp_path / "damaged.kb", []
    for seed in range(120):
        chance, content = random.Random(seed), bytearray(whole)
        for place in chance.sample([place for place, byte in enumerate(content) if byte], chance.choice((1, 4))):
            content[place] ^= 1 << chance.randrange(8)
        for use in uses(path):
            for old in tmp_path.glob("damaged.kb*"):
                old.unlink()
            path.write_bytes(content)
            try:
                with KnowledgeBase.open(path) as kb:
                    use(kb)
            except WellreadError as error:  # and nothing else
                messages.append(str(error))
    assert len(messages) > 50
    assert not [message for message in messages if "\n" in message]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE names SET aliases = '[' || substr(aliases, 4)",
        "UPDATE names SET aliases = CAST(x'ff80' AS TEXT)",
        "UPDATE entities SET title = CAST(x'ff80' AS TEXT)",
        "UPDATE aliases SET name = CAST(x'ff80' AS TEXT)",
        "UPDATE metadata SET value = 'x' WHERE key = 'revision'",
        "DELETE FROM metadata WHERE key = 'uid'",
    ],
)
def test_each_command_tells_of_damage_with_the_fix(tmp_path, wellread, statement):
    path = tmp_path / "t.kb"
    build(lambda tally: iter([Entity("e1", "Berlin", "a town", "town")]), path, origin=Origin("test"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()
    for arguments in (
        ("kb", "check", path),
        ("kb", "export", path),
        ("link", "--kb", path, "--model", "prior", "Berlin"),
    ):
        done = wellread(*arguments)
        assert "Traceback" not in done.err
        if done.code:
            assert (done.code, "damaged" in done.err or "problems" in done.err) == (5, True)
            assert "build it again" in done.err or "build" in done.err
        if arguments[1] == "check":
            assert done.code == 5
