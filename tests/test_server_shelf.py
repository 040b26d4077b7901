"""Linkers that many clients share: answers are those of one client alone, and of one revision."""

import shutil
import threading
import time

import pytest

from tests.tiny import PEOPLE, PLACES, write_kb
from wellread.errors import UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linker import Linker
from wellread.server import shelf as room
from wellread.server.shelf import Asked, Edit, Shelf, Source

TEXTS = tuple(f"who is the mayor of {place} {person}" for place, person in zip(PLACES, PEOPLE, strict=True))


@pytest.fixture(scope="module")
def shelf(toy):
    made = Shelf.load([toy / "toy.kb"], {"toy": [str(toy / "model"), "prior"]})
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(toy):
    with Linker.load(toy / "toy.kb", toy / "model") as linker:
        yield linker


def answers(shelf, *asked, **options):
    threshold = min((one.threshold for one in asked if one.threshold is not None), default=None)
    return shelf.link(shelf.source("toy", threshold=threshold, **options), asked)


def told(document):
    return [(link.start, link.end, link.entity, round(link.score, 5)) for link in document.links]


def test_each_client_gets_what_it_would_get_alone(shelf, alone):
    asked = [Asked(TEXTS[:2]), Asked(TEXTS[2:3], threshold=0.05), Asked(TEXTS[3:], threshold=0.9, nil=False)]
    together = answers(shelf, *asked)
    assert [len(answer.documents) for answer in together] == [2, 1, 9]
    for one, answer in zip(asked, together, strict=True):
        for text, document in zip(one.texts, answer.documents, strict=True):
            assert told(document) == told(alone.score(text).document(threshold=one.threshold, nil=one.nil))
    assert sum(len(document.links) for answer in together for document in answer.documents)


def test_candidates_are_as_many_as_asked_for(shelf):
    few, many = answers(shelf, Asked(TEXTS[:1], 0.0, 2), Asked(TEXTS[:1], 0.0, 20))
    assert {len(link.candidates) for link in few.documents[0].links} == {2}
    assert max(len(link.candidates) for link in many.documents[0].links) == 10  # all that are near enough


def test_a_part_of_the_knowledge_base_can_be_linked_to(shelf, toy):
    (answer,) = answers(shelf, Asked(TEXTS, 0.0, 20), kinds=["city"])
    found = {one.entity for document in answer.documents for link in document.links for one in link.candidates}
    assert found
    assert all(id.startswith("p") and id != "planet" for id in found)
    (answer,) = answers(shelf, Asked(TEXTS, 0.0, 20), among=["p1", "p2"])
    found = {one.entity for document in answer.documents for link in document.links for one in link.candidates}
    assert found == {"p1", "p2"}
    with pytest.raises(UsageError, match="no entity of the kinds moon"):
        answers(shelf, Asked(TEXTS), kinds=["moon"])


def test_parts_are_kept_up_to_a_number(shelf, monkeypatch):
    monkeypatch.setattr(room, "_SUBSETS", 2)
    for place in range(4):
        answers(shelf, Asked(TEXTS[:1]), among=[f"p{place}"])
    assert len(shelf._parts) == 2


def test_a_low_threshold_is_read_apart(shelf):
    assert shelf.source("toy", threshold=0.0) == Source("toy", "model", deep=True)
    assert shelf.source("toy", threshold=1.0) == shelf.source("toy") == Source("toy", "model")
    assert shelf.source("toy", "prior", threshold=0.0) == Source("toy", "prior")


def test_threads_share_a_linker_while_another_process_changes_its_knowledge(toy, tmp_path, alone):
    """Each answer is what one client gets alone, of whichever revision."""
    shutil.copy(toy / "toy.kb", tmp_path)
    shutil.copytree(toy / "toy.kb.vectors", tmp_path / "toy.kb.vectors")
    shared = Shelf.load([tmp_path / "toy.kb"], {"toy": [str(toy / "model"), "prior"]})
    expected = {text: told(alone.link(text)) for text in TEXTS}
    revisions, wrong = set(), []

    def ask(model):
        for number in range(12):
            some = TEXTS[number % 4 :: 3]
            (answer,) = shared.link(shared.source("toy", model), [Asked(some)])
            revisions.add(answer.revision)
            if model == "model":
                wrong.extend(one.text for one in answer.documents if told(one) != expected[one.text])

    threads = [threading.Thread(target=ask, args=(model,)) for model in ("model", "model", "prior", "prior")]
    for thread in threads:
        thread.start()
    with KnowledgeBase.open(tmp_path / "toy.kb", writable=True) as kb:
        for number in range(6):
            kb.add([Entity(f"new {number}", f"quuxville {number}", "nothing that is asked for")])
            time.sleep(0.02)
    for thread in threads:
        thread.join()
    shared.close()
    assert wrong == []
    assert len(revisions) > 1


@pytest.fixture
def names(tmp_path):
    """A shelf that links by name, to a KB of its own."""
    write_kb(tmp_path / "own.kb", [Entity("0", "avon"), Entity("x", "brno")]).close()
    made = Shelf.load([tmp_path / "own.kb"], {"own": ["prior"]})
    yield made
    made.close()


def test_answers_are_of_one_revision_while_another_writes(names):
    """Every revision renames both entities, so that an answer of two would have two generations of names."""
    path, stop, source = names.books["own"].kb.path, threading.Event(), names.source("own")

    def write():
        with KnowledgeBase.open(path, writable=True) as kb:
            for generation in range(10_000):
                if stop.is_set():
                    return
                kb.update(
                    Entity(id, f"{name} {generation}", aliases={name: 1}) for id, name in (("0", "avon"), ("x", "brno"))
                )

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    try:
        for _ in range(60):
            (answer,) = names.link(source, [Asked(("avon and brno", "brno, avon"))])
            generations = {link.title.partition(" ")[2] for document in answer.documents for link in document.links}
            assert len(generations) == 1
            seen.add((answer.revision, *generations))
    finally:
        stop.set()
        writer.join()
    assert len({revision for revision, _ in seen}) == len(seen) > 1


def test_a_change_is_linked_to_at_once(names):
    done = names.edit(Edit("own", "new", Entity("new", "cork")))
    assert (done.what, done.revision) == ("added", 2)
    (answer,) = names.link(names.source("own"), [Asked(("to cork",))])
    assert (answer.documents[0].links[0].entity, answer.revision) == ("new", 2)
    assert names.edit(Edit("own", "new", Entity("new", "dover"))).what == "updated"
    assert names.edit(Edit("own", "new", None)).what == "removed"


def replace_with(path, entities):
    build(lambda tally: iter(entities), path.with_name("other.kb"), origin=Origin("test"))
    path.with_name("other.kb").replace(path)


def link_until(names, entity):
    for _ in range(2000):
        (answer,) = names.link(names.source("own"), [Asked(("avon",))])
        if [link.entity for link in answer.documents[0].links] == [entity]:
            return True
        time.sleep(0.01)
    return False


def test_a_replaced_file_is_opened_beside_the_old_one(names):
    replace_with(names.books["own"].kb.path, [Entity("another", "avon")])
    assert link_until(names, "another")


def test_a_file_that_cannot_be_opened_leaves_the_old_one(names, monkeypatch):
    notes, path = [], names.books["own"].kb.path
    names._note = notes.append
    kept = path.with_name("kept")
    shutil.copy(path, kept)
    path.unlink()
    path.write_bytes(b"no knowledge base at all")
    (answer,) = names.link(names.source("own"), [Asked(("avon",))])
    while not notes:
        time.sleep(0.01)
    (answer,) = names.link(names.source("own"), [Asked(("avon",))])
    assert answer.documents[0].links[0].entity == "0"
    assert "cannot be opened" in notes[0]
    monkeypatch.setattr(room, "_AGAIN", 0.0)
    names._opening.clear()
    path.unlink()
    replace_with(path, [Entity("mended", "avon")])
    assert link_until(names, "mended")
