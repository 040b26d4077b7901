"""Linkers that many clients share: answers are those of one client alone, and of one revision."""

import gc
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from tests.toy_models import PEOPLE, PLACES, write_kb
from wellread.errors import KnowledgeBaseError, ReplacedError, StorageError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.server import registry as module
from wellread.server import served_kb
from wellread.server.registry import Edit, LinkerKey, LinkerRegistry
from wellread.server.served_kb import LinkJob
from wellread.server.workers import encode_results

TEXTS = tuple(f"who is the mayor of {place} {person}" for place, person in zip(PLACES, PEOPLE, strict=True))


@pytest.fixture(scope="module")
def registry(toy):
    made = LinkerRegistry.load([toy / "toy.kb"], {"toy": [f"model={toy / 'model'}", "prior"]})
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(toy):
    with Linker.load(toy / "toy.kb", toy / "model") as linker:
        yield linker


def answers(registry, *requested, **options):
    threshold = min((one.threshold for one in requested if one.threshold is not None), default=None)
    made = registry.link(registry.key("toy", threshold=threshold, **options), requested)
    return [replace(answer, documents=list(answer.documents)) for answer in made]


def links_of(document):
    return [(link.start, link.end, link.entity, round(link.score, 5)) for link in document.links]


def test_each_client_gets_what_it_would_get_alone(registry, alone):
    requested = [LinkJob(TEXTS[:2]), LinkJob(TEXTS[2:3], threshold=0.05), LinkJob(TEXTS[3:], threshold=0.9, nil=True)]
    together = answers(registry, *requested)
    assert [len(answer.documents) for answer in together] == [2, 1, 9]
    for one, answer in zip(requested, together, strict=True):
        for text, document in zip(one.texts, answer.documents, strict=True):
            assert links_of(document) == links_of(alone.score(text).document(threshold=one.threshold, nil=one.nil))
    assert sum(len(document.links) for answer in together for document in answer.documents)


def test_candidates_are_as_many_as_asked_for(registry):
    few, many = answers(registry, LinkJob(TEXTS[:1], 0.0, 2), LinkJob(TEXTS[:1], 0.0, 20))
    assert {len(link.candidates) for link in few.documents[0].links} == {2}
    assert max(len(link.candidates) for link in many.documents[0].links) == 10  # all that are near enough


def test_a_part_of_the_knowledge_base_can_be_linked_to(registry, toy):
    (answer,) = answers(registry, LinkJob(TEXTS, 0.0, 20), kinds=["city"])
    found = {one.entity for document in answer.documents for link in document.links for one in link.candidates}
    assert found
    assert all(id.startswith("p") and id != "planet" for id in found)
    (answer,) = answers(registry, LinkJob(TEXTS, 0.0, 20), among=["p1", "p2"])
    found = {one.entity for document in answer.documents for link in document.links for one in link.candidates}
    assert found == {"p1", "p2"}
    with pytest.raises(UsageError, match="no entity of the kinds moon"):
        answers(registry, LinkJob(TEXTS), kinds=["moon"])


def test_parts_are_kept_up_to_a_number(registry, monkeypatch):
    monkeypatch.setattr(module, "_SUBSETS", 2)
    for place in range(4):
        answers(registry, LinkJob(TEXTS[:1]), among=[f"p{place}"])
    assert len(registry._subsets) == 2


def test_a_low_threshold_is_read_apart(registry):
    assert registry.key("toy", threshold=0.0) == LinkerKey("toy", "model", deep=True)
    assert registry.key("toy", threshold=1.0) == registry.key("toy") == LinkerKey("toy", "model")
    assert registry.key("toy", "prior", threshold=0.0) == LinkerKey("toy", "prior")


@pytest.fixture
def shared(toy, tmp_path):
    """A registry with a model and a KB of its own."""
    shutil.copy(toy / "toy.kb", tmp_path)
    shutil.copytree(toy / "toy.kb.vectors", tmp_path / "toy.kb.vectors")
    made = LinkerRegistry.load([tmp_path / "toy.kb"], {"toy": [f"model={toy / 'model'}", "prior"]})
    yield made
    made.close()


@pytest.mark.parametrize("model", ["model", "prior"])
def test_a_document_that_is_made_late_is_of_its_revision(shared, model):
    """All that it says was there before: the KB is another when it is looked at, and so are the next answers."""
    source, requested = shared.key("toy", model), [LinkJob(TEXTS), LinkJob(TEXTS)]
    first, late = shared.link(source, requested)
    expected = list(first.documents)
    linked = {link.entity: link.title for document in expected for link in document.links}
    assert linked
    with shared.served_kbs["toy"].kb.change() as change:
        for id in linked:
            change.update(Entity(id, f"renamed {id}"))
    (new, _) = shared.link(source, requested)
    assert new.revision == late.revision + 1
    assert {link.title for document in new.documents for link in document.links}.isdisjoint(linked.values())
    assert list(late.documents) == expected


def test_documents_of_a_model_are_made_when_they_are_encoded(registry, monkeypatch):
    made, decided = [], served_kb._to_document
    monkeypatch.setattr(served_kb, "_to_document", lambda *given: made.append(given) or decided(*given))
    parts = encode_results(registry.link(registry.key("toy"), [LinkJob(TEXTS)] * 9))
    assert made == []
    assert [(len(some), len(made) // len(TEXTS)) for some in parts] == [(4, 4), (4, 8), (1, 9)]


def test_threads_share_a_linker_while_another_process_changes_its_knowledge(shared, tmp_path, alone):
    """Each answer is what one client gets alone, of whichever revision."""
    expected = {text: links_of(alone.link(text)) for text in TEXTS}
    revisions, wrong = set(), []

    def ask(model):
        for number in range(12):
            some = TEXTS[number % 4 :: 3]
            (answer,) = shared.link(shared.key("toy", model), [LinkJob(some)])
            revisions.add(answer.revision)
            if model == "model":
                wrong.extend(one.text for one in answer.documents if links_of(one) != expected[one.text])

    threads = [threading.Thread(target=ask, args=(model,)) for model in ("model", "model", "prior", "prior")]
    for thread in threads:
        thread.start()
    with KnowledgeBase.open(tmp_path / "toy.kb", writable=True) as kb:
        for number in range(6):
            kb.add([Entity(f"new {number}", f"quuxville {number}", "nothing that is asked for")])
            time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(revisions) > 1


@pytest.fixture
def names(tmp_path):
    """A registry that links by name, to a KB of its own."""
    write_kb(tmp_path / "own.kb", [Entity("0", "avon"), Entity("x", "brno")]).close()
    made = LinkerRegistry.load([tmp_path / "own.kb"], {"own": ["prior"]})
    yield made
    made.close()


def test_answers_are_of_one_revision_while_another_writes(names):
    """Every revision renames both entities, so that an answer of two would have two generations of names."""
    path, stop, source = names.served_kbs["own"].kb.path, threading.Event(), names.key("own")

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
    seen, readings = set(), 0
    try:
        while readings < 60 or (len(seen) < 2 and writer.is_alive()):  # a busy machine may let the writer wait
            readings += 1
            (answer,) = names.link(source, [LinkJob(("avon and brno", "brno, avon"))])
            generations = {link.title.partition(" ")[2] for document in answer.documents for link in document.links}
            assert len(generations) == 1
            seen.add((answer.revision, *generations))
    finally:
        stop.set()
        writer.join()
    assert len({revision for revision, _ in seen}) == len(seen) > 1


def test_links_by_name_overlap_as_each_client_wants(tmp_path):
    cities = [Entity("1", "New York City", aliases={"New York": 5, "York City": 1}), Entity("2", "York")]
    write_kb(tmp_path / "own.kb", cities).close()
    registry = LinkerRegistry.load([tmp_path / "own.kb"], {"own": ["prior"]})
    text, wishes = "New York City, and York", (None, "keep", "drop", "keep", "auto")
    answers = registry.link(registry.key("own"), [LinkJob((text, "York"), overlaps=wish) for wish in wishes])
    registry.close()
    assert [len(answer.documents[0].links) for answer in answers] == [2, 5, 2, 5, 2]
    for wish, answer in zip(wishes, answers, strict=True):
        with Linker.load(tmp_path / "own.kb", "prior", overlaps=wish or "auto") as linker:
            assert answer.documents == list(linker.link_many([text, "York"]))


def test_a_change_is_linked_to_at_once(names):
    done = names.edit(Edit("own", "new", Entity("new", "cork")))
    assert (done.what, done.revision) == ("added", 2)
    (answer,) = names.link(names.key("own"), [LinkJob(("to cork",))])
    assert (answer.documents[0].links[0].entity, answer.revision) == ("new", 2)
    assert names.edit(Edit("own", "new", Entity("new", "dover"))).what == "updated"
    assert names.edit(Edit("own", "new", None)).what == "removed"


def replace_with(path, entities):
    build(lambda tally: iter(entities), path.with_name("other.kb"), origin=Origin("test"))
    path.with_name("other.kb").replace(path)


def link_until(names, entity):
    for _ in range(2000):
        (answer,) = names.link(names.key("own"), [LinkJob(("avon",))])
        if [link.entity for link in answer.documents[0].links] == [entity]:
            return True
        time.sleep(0.01)
    return False


def test_a_replaced_file_is_opened_beside_the_old_one(names):
    replace_with(names.served_kbs["own"].kb.path, [Entity("another", "avon")])
    assert link_until(names, "another")


def test_a_file_that_cannot_be_opened_leaves_the_old_one(names, monkeypatch):
    notes, path = [], names.served_kbs["own"].kb.path
    names._note = notes.append
    kept = path.with_name("kept")
    shutil.copy(path, kept)
    path.unlink()
    path.write_bytes(b"no knowledge base at all")
    (answer,) = names.link(names.key("own"), [LinkJob(("avon",))])
    while not notes:
        time.sleep(0.01)
    (answer,) = names.link(names.key("own"), [LinkJob(("avon",))])
    assert answer.documents[0].links[0].entity == "0"
    assert "cannot be opened" in notes[0]
    monkeypatch.setattr(module, "_AGAIN", 0.0)
    names._opening.clear()
    path.unlink()
    replace_with(path, [Entity("mended", "avon")])
    assert link_until(names, "mended")


def linked(registry, text="avon"):
    (answer,) = registry.link(registry.key("own"), [LinkJob((text,))])
    return [link.entity for link in answer.documents[0].links]


def in_thread(ask):
    """Return the result, or the error, of a call in a new thread."""
    results = []

    def run():
        try:
            results.append(ask())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_that_comes_after_a_swap_mixes_no_two_files(names):
    """The new file has as many changes as the old one, so the revision alone does not distinguish them."""
    path = names.served_kbs["own"].kb.path
    assert linked(names, "avon, brno") == ["0", "x"]
    replace_with(path, [Entity("other", "brno"), Entity("0", "cork")])
    assert in_thread(lambda: linked(names, "avon, brno, cork")) == ["other", "0"]


def test_after_a_swap_the_new_file_is_still_locked_against_others(names):
    """Closing the old file would let go of the lock by which others know that somebody has it open."""
    path = names.served_kbs["own"].kb.path
    replace_with(path, [Entity("another", "avon")])
    assert link_until(names, "another")
    gc.collect()
    beside, byte = f"{path}-shm", 128  # SQLite's "dead man's switch"
    ask = f"import fcntl; fcntl.lockf(open({beside!r}, 'rb+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, {byte})"
    requested = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in requested.stderr


def test_what_a_change_left_beside_the_name_is_not_read_over_a_new_file(names):
    notes, path = [], names.served_kbs["own"].kb.path
    names._note = notes.append
    names.edit(Edit("own", "new", Entity("new", "dover")))
    replace_with(path, [Entity("another", "avon")])
    for _ in range(3):
        assert linked(names) == ["0"]
    assert names._openers == {}
    assert len(notes) == 1
    assert "own.kb-wal" in notes[0]
    assert "kb build --replace" in notes[0]
    with pytest.raises(ReplacedError, match=r"own\.kb was replaced and is being reopened; try again"):
        names.edit(Edit("own", "late", Entity("late", "lost")))
    names.close()
    for part in ("wal", "shm"):
        path.with_name(f"own.kb-{part}").unlink()
    with Linker.load(path, "prior") as linker:
        assert [link.entity for link in linker.link("avon, dover").links] == ["another"]


def test_a_link_that_is_led_to_another_file_is_followed_whatever_was_changed(tmp_path):
    for name in ("one", "two"):
        write_kb(tmp_path / f"{name}.kb", [Entity(name, "avon")]).close()
    (tmp_path / "own.kb").symlink_to("one.kb")
    registry = LinkerRegistry.load([tmp_path / "own.kb"], {"own": ["prior"]})
    registry.edit(Edit("own", "new", Entity("new", "dover")))
    (tmp_path / "next").symlink_to("two.kb")
    (tmp_path / "next").replace(tmp_path / "own.kb")
    assert link_until(registry, "two")
    registry.close()


def test_changes_go_to_the_new_file(names):
    path = names.served_kbs["own"].kb.path
    replace_with(path, [Entity("another", "avon")])
    names.edit(Edit("own", "new", Entity("new", "dover")))
    with KnowledgeBase.open(path) as other:
        assert ("another" in other, "new" in other) == (True, True)


def test_a_file_that_is_replaced_while_it_is_loaded_is_noticed(tmp_path, monkeypatch):
    path, load = tmp_path / "own.kb", Linker.load.__func__
    write_kb(path, [Entity("0", "avon")]).close()

    def slowly(cls, *given, **more):
        made = load(cls, *given, **more)
        monkeypatch.undo()
        replace_with(path, [Entity("another", "avon")])
        return made

    monkeypatch.setattr(Linker, "load", classmethod(slowly))
    registry = LinkerRegistry.load([path], {"own": ["prior"]})
    assert link_until(registry, "another")
    registry.close()


def test_any_error_of_opening_lets_it_be_tried_again(names, monkeypatch):
    notes = []
    names._note = notes.append

    def fail(*given):
        raise OSError("too many open files")

    monkeypatch.setattr(module, "_AGAIN", 0.0)
    monkeypatch.setattr(module, "open_served_kb", fail)
    replace_with(names.served_kbs["own"].kb.path, [Entity("another", "avon")])
    names.served_kb("own")
    names._openers["own"].join()
    assert "cannot be opened: too many open files" in notes[0]
    monkeypatch.undo()
    assert link_until(names, "another")


def test_who_asks_for_a_book_looks_whether_it_is_another(names):
    replace_with(names.served_kbs["own"].kb.path, [Entity("another", "avon")])
    for _ in range(2000):
        if "another" in names.served_kb("own").kb:
            return
        time.sleep(0.01)
    pytest.fail("nobody looked")


def test_errors_name_files_without_their_folders(names, monkeypatch):
    kb = names.served_kbs["own"].kb

    def fail(*given):
        raise StorageError(f"the disk is full (or fails): {kb.path} keeps its last state")

    monkeypatch.setattr(module, "link_jobs", fail)
    monkeypatch.setattr(kb, "change", fail)
    for ask in (lambda: linked(names), lambda: names.edit(Edit("own", "a", Entity("a", "avon")))):
        with pytest.raises(StorageError, match=r"fails\): own\.kb keeps"):
            ask()


def test_what_cannot_be_written_is_not_changed(names):
    names.served_kbs["own"].kb.writable = False
    with pytest.raises(KnowledgeBaseError, match="own is read-only"):
        names.edit(Edit("own", "a", Entity("a", "avon")))
