"""Processes that link: they answer as one would, are replaced when they die, and are gone when the server is."""

import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest
import requests

from tests.servers import BEARER, asking, engine_of, listening, serving, write_kbs
from tests.toy_models import PEOPLE, PLACES
from wellread.errors import UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.server import workers as module
from wellread.server.registry import LinkerKey, LinkerRegistry
from wellread.server.served_kb import LinkJob
from wellread.server.workers import EncodedDocuments, LinkWorkers, LostError, encode_results

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are threads where processes are not forked")
TEXTS = ("Paris in France", "AC/DC and a city", "", "nothing \u202e 😀")


@pytest.fixture
def kbs(tmp_path):
    return write_kbs(tmp_path)


@pytest.fixture
def registry(kbs):
    made = LinkerRegistry.load(kbs, {"cities": ["prior"], "words": ["prior"]})
    yield made
    made.close()


@pytest.fixture
def workers(registry):
    made = LinkWorkers(registry, 2)
    yield made
    made.close()


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def all_of(parts):
    return [one for some in parts for one in some]


def first_document(workers, source, requested):
    return all_of(workers.link(source, requested))[0].documents[0]


def test_they_answer_as_the_registry_does(workers, registry):
    requested = [LinkJob(TEXTS), LinkJob(TEXTS[:1], threshold=0.95, candidates=1, overlaps="keep"), LinkJob(("city",))]
    for kb in ("cities", "words"):
        source = registry.key(kb)
        results = all_of(workers.link(source, requested))
        assert results == all_of(encode_results(registry.link(source, requested)))
        assert [len(one.documents) for one in results] == [4, 1, 1]
    assert orjson.loads(first_document(workers, registry.key("cities"), requested))["links"][0]["entity"] == "Q90"


def test_a_model_reads_there_as_it_does_here(toy):
    """Parts of the knowledge base too, and errors that are the client's."""
    registry = LinkerRegistry.load([toy / "toy.kb"], {"toy": [f"model={toy / 'model'}", "prior"]})
    workers = LinkWorkers(registry, 2)
    texts = tuple(f"who is the mayor of {place} {person}" for place, person in zip(PLACES, PEOPLE, strict=True))
    try:
        for options in ({}, {"threshold": 0.05}, {"kinds": ["city"]}, {"among": ["p1", "p2"], "threshold": 0.0}):
            source, requested = (
                registry.key("toy", **options),
                [LinkJob(texts[:5], options.get("threshold")), LinkJob(texts)],
            )
            assert all_of(workers.link(source, requested)) == all_of(encode_results(registry.link(source, requested)))
        with pytest.raises(UsageError, match="no entity of the kinds moon"):
            all_of(workers.link(registry.key("toy", kinds=["moon"]), requested))
    finally:
        workers.close()
        registry.close()


def test_an_internal_error_is_reported_without_its_text(registry, caplog):
    def fail(source, requested):
        raise ValueError(requested[0].texts[0])

    registry.link = fail
    workers = LinkWorkers(registry, 1)
    with pytest.raises(RuntimeError, match=r"^ValueError$"):
        all_of(workers.link(LinkerKey("cities", "prior"), [LinkJob(("secret",))]))
    workers.close()
    (record,) = caplog.records
    assert record.fields["error"] == "ValueError"
    assert record.fields["trace"][-1].startswith("test_workers.py")
    assert "secret" not in str(record.fields)


def test_one_that_was_killed_is_replaced_and_nobody_notices(kbs, caplog):
    with engine_of(kbs, readers=2) as engine, asking(engine) as client:
        first = list(engine._processes.pids)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        for _ in range(2):  # each waits for its turn
            assert client.post("/link", json={"text": "Paris"}).json()["documents"][0]["links"][0]["entity"] == "Q90"
        assert client.get("/health").json()["status"] == "ok"
        wait_until(lambda: not any(map(is_there, first)))
        assert len(engine._processes.pids) == 4
    assert caplog.text.count("a worker died and was replaced") == 2


def test_one_that_is_killed_at_work_is_replaced_too(registry):
    link = registry.link
    registry.link = lambda source, requested: (time.sleep(0.3), link(source, requested))[1]
    workers = LinkWorkers(registry, 1)
    with ThreadPoolExecutor(1) as pool:
        requested = pool.submit(first_document, workers, LinkerKey("cities", "prior"), [LinkJob(("Paris",))])
        time.sleep(0.1)
        os.kill(workers.pids[0], signal.SIGKILL)
        assert b"Q90" in requested.result()
    workers.close()


def test_where_one_dies_after_some_answers_another_gives_the_rest(registry):
    link, begun = registry.link, []

    def dying(source, requested):
        for answer in link(source, requested):
            yield answer
            if len(requested) == 9 and (begun.append(answer) or len(begun) == 6):
                os._exit(9)

    registry.link = dying
    workers = LinkWorkers(registry, 1)
    requested = [LinkJob((f"Paris {number}",)) for number in range(9)]
    results = list(workers.link(LinkerKey("cities", "prior"), requested))
    assert [len(some) for some in results] == [4, 4, 1]
    assert [orjson.loads(one.documents[0])["text"] for one in all_of(results)] == [one.texts[0] for one in requested]
    assert len(workers.pids) == 2
    workers.close()


def test_what_one_says_to_who_listens_no_more_is_not_heard_by_the_next(registry):
    workers, source = LinkWorkers(registry, 1), LinkerKey("cities", "prior")
    results = workers.link(source, [LinkJob((f"Paris {number}",)) for number in range(9)])
    assert len(next(results)) == 4
    results.close()
    assert orjson.loads(first_document(workers, source, [LinkJob(("York",))]))["text"] == "York"
    workers.close()


def test_who_listens_no_more_needs_no_other_reader(registry):
    """The next request needs it; the forking process may have ended, and an abandoned generator cannot report that."""
    workers, source = LinkWorkers(registry, 1), LinkerKey("cities", "prior")
    results = workers.link(source, [LinkJob(("Paris",))] * 9)
    next(results)
    os.kill(workers._pid, signal.SIGKILL)
    wait_until(lambda: not workers.alive)
    results.close()
    with pytest.raises(LostError, match="cannot be replaced"):
        first_document(workers, source, [LinkJob(("York",))])
    workers.close()


def test_where_there_is_no_memory_for_an_answer_nobody_else_gets_the_rest(registry, monkeypatch):
    workers, source, heard = LinkWorkers(registry, 1), LinkerKey("cities", "prior"), module._receive_documents

    def hear(worker):
        heard(worker)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(module, "_receive_documents", hear)
        with pytest.raises(MemoryError):
            all_of(workers.link(source, [LinkJob((f"secret {number}",)) for number in range(9)]))
    assert orjson.loads(first_document(workers, source, [LinkJob(("York",))]))["text"] == "York"
    workers.close()


def test_where_a_reader_has_no_memory_for_an_answer_it_says_so(registry, monkeypatch):
    """The error is not taken for documents, whose sizes would have been sent before."""

    class Large(list):
        """Documents that can be looked at, but not put together."""

        def __iter__(self):
            if looked := getattr(self, "looked", False):
                raise MemoryError
            self.looked = not looked
            return super().__iter__()

    monkeypatch.setattr(module, "encode_results", lambda answers: iter([[EncodedDocuments(Large([b"secret"]), 1)]]))
    workers = LinkWorkers(registry, 1)
    with pytest.raises(RuntimeError, match=r"^MemoryError$"):
        all_of(workers.link(LinkerKey("cities", "prior"), [LinkJob(("secret",))]))
    workers.close()


def test_a_text_that_ends_readers_is_given_up(registry):
    link = registry.link
    registry.link = lambda source, requested: (
        os._exit(9) if requested[0].texts == ("deadly",) else link(source, requested)
    )
    workers = LinkWorkers(registry, 1)
    with pytest.raises(LostError, match="send less at once"):
        all_of(workers.link(LinkerKey("cities", "prior"), [LinkJob(("deadly",))]))
    assert b"Q90" in first_document(workers, LinkerKey("cities", "prior"), [LinkJob(("Paris",))])
    assert len(workers.pids) == 3
    workers.close()


def test_health_tells_when_none_could_be_replaced(kbs):
    with engine_of(kbs, readers=2) as engine, asking(engine) as client:
        os.kill(engine._processes._pid, signal.SIGKILL)
        wait_until(lambda: client.get("/health").status_code == 503)
        assert client.get("/health").json()["status"] == "failing"
        assert client.post("/link", json={"text": "Paris"}).status_code == 200  # those that are there go on
        for pid in engine._processes.pids:
            os.kill(pid, signal.SIGKILL)
        answer = client.post("/link", json={"text": "Paris"})
        assert (answer.status_code, "restart" in answer.json()["error"]) == (503, True)


def test_all_of_them_know_what_was_changed(kbs):
    """By this server, and by another process; what two layers say is of the same moment for each."""
    with engine_of(kbs, readers=3) as engine, listening(engine) as address, ThreadPoolExecutor(8) as pool:
        body = {"title": "Cork", "description": "a city in Ireland"}
        assert requests.put(f"{address}/entities/Q36647", json=body, headers=BEARER, timeout=60).status_code == 201
        ask = lambda n: requests.post(f"{address}/link", json={"text": f"a city: Cork {n}"}, timeout=60).json()  # noqa: E731
        for answer in pool.map(ask, range(24)):
            assert [link["entity"] for link in answer["documents"][0]["links"]] == ["w2", "Q36647"]
            assert answer["revisions"] == {"cities": 2, "words": 1}
        with KnowledgeBase.open(kbs[0], writable=True) as kb:
            kb.add([Entity("Q1761", "Dublin")])
        ask = lambda n: requests.post(f"{address}/link", json={"text": "Dublin", "kb": "cities"}, timeout=60).json()  # noqa: E731
        for answer in pool.map(ask, range(24)):
            assert (answer["revisions"], len(answer["documents"][0]["links"])) == ({"cities": 3}, 1)


def test_all_of_them_open_a_file_that_was_replaced_and_so_does_a_new_one(kbs):
    with engine_of(kbs, readers=2) as engine, listening(engine) as address, ThreadPoolExecutor(4) as pool:

        def ask(number=0):
            answer = requests.post(f"{address}/link", json={"text": "Paris", "kb": "cities"}, timeout=60)
            return [link["entity"] for document in answer.json()["documents"] for link in document["links"]]

        assert list(pool.map(ask, range(8))) == [["Q90"]] * 8
        build(lambda tally: iter([Entity("new", "Paris")]), kbs[0].with_name("new.kb"), origin=Origin("test"))
        kbs[0].with_name("new.kb").replace(kbs[0])
        wait_until(lambda: list(pool.map(ask, range(8))) == [["new"]] * 8)
        for pid in engine._processes.pids[:2]:
            os.kill(pid, signal.SIGKILL)
        assert list(pool.map(ask, range(8))) == [["new"]] * 8


def test_several_threads_ask_and_get_their_own(workers, registry):
    source, wrong = registry.key("cities"), []

    def ask(thread):
        for number in range(100):
            text = f"Paris {thread} {number}"
            if orjson.loads(first_document(workers, source, [LinkJob((text,))]))["text"] != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_none_is_left_when_they_are_closed(registry):
    workers = LinkWorkers(registry, 3)
    assert all(map(is_there, workers.pids))
    workers.close()
    assert not any(map(is_there, [workers._pid, *workers.pids]))


def children_of(pid):
    found = [pid]
    for one in found:
        found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found[1:]


def test_none_is_left_when_the_server_is_killed_and_its_port_is_free(kbs, tmp_path):
    with serving(kbs[0], tmp_path / "log", "--readers", "2") as server:
        assert requests.post(f"{server.address}/link", json={"text": "Paris"}, timeout=60).status_code == 200
        family = children_of(server.process.pid)
        assert len(family) == 3
        server.process.kill()
        server.process.wait(60)
        wait_until(lambda: not any(map(is_there, family)))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=10)


def test_a_signal_to_all_of_them_lets_the_server_finish_what_it_took(kbs, tmp_path):
    with serving(kbs[0], tmp_path / "log", "--readers", "2") as server:
        family = children_of(server.process.pid)
        lines = "".join(json.dumps(f"Paris {number}") + "\n" for number in range(300))
        with ThreadPoolExecutor(1) as pool:
            requested = pool.submit(requests.post, f"{server.address}/link/stream", data=lines, timeout=60)
            time.sleep(0.1)
            for pid in (*family, server.process.pid):
                os.kill(pid, signal.SIGTERM)
            answers = [json.loads(line) for line in requested.result().text.splitlines()]
        assert server.process.wait(60) == 0
        assert all(one["links"][0]["entity"] == "Q90" for one in answers if "error" not in one)
        assert not any("ended" in one["error"] for one in answers if "error" in one)
        assert len(answers) == 300
        assert not any(map(is_there, family))
        assert [line["message"] for line in server.lines() if line["level"] == "warning"] == []
