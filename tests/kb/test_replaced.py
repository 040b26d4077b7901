"""A knowledge base under whose name another file was put while it was open."""

import threading

import pytest

from tests.toy_models import write_kb
from wellread.errors import ReplacedError
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions.matcher import Matcher


@pytest.fixture
def two(tmp_path):
    """A KB and another with as many changes, which a test may put in its place."""
    with write_kb(tmp_path / "a.kb", [Entity("0", "avon")]), write_kb(tmp_path / "b.kb", [Entity("1", "brno")]):
        pass
    with KnowledgeBase.open(tmp_path / "a.kb") as kb:
        yield kb, tmp_path / "b.kb"


def test_a_thread_is_not_connected_to_another_file_than_the_others(two):
    kb, other = two
    other.replace(kb.path)
    results = []

    def ask():
        try:
            results.append("1" in kb)
        except ReplacedError as error:
            results.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert results == [f"{kb.path} was replaced by another file while it was open; open it again"]
    assert "0" in kb  # this thread still asks the old one
    with KnowledgeBase.open(kb.path) as new:
        assert "1" in new


def test_names_are_not_kept_for_another_knowledge_base_of_the_same_revision(two):
    kb, other = two
    matcher = Matcher.of(kb)
    with KnowledgeBase.open(other) as new:
        assert new.revision == kb.revision
        fresh = matcher.refresh(new)
        assert (len(fresh.find("avon")), len(fresh.find("brno"))) == (0, 1)
    assert matcher.refresh(kb) is matcher
