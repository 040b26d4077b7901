"""A server that notices what is wrong: workers that died or hang, files overwritten in place, requests given up."""

import asyncio
import os
import shutil
import signal
import time
from dataclasses import dataclass

import pytest
import requests

from tests.server.test_workers import all_of, first_document, wait_until
from tests.servers import asking, engine_of, listening, write_kbs
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.server import workers as module
from wellread.server.batching import PART_CHARACTERS, PART_TEXTS, Batcher, BusyError, split_request, submit_in_parts
from wellread.server.registry import LinkerKey, LinkerRegistry
from wellread.server.served_kb import LinkJob
from wellread.server.workers import LinkWorkers, LostError

PARIS = LinkerKey("cities", "prior")


@pytest.fixture
def kbs(tmp_path):
    return write_kbs(tmp_path)


@pytest.fixture
def registry(kbs):
    made = LinkerRegistry.load(kbs, {"cities": ["prior"], "words": ["prior"]})
    yield made
    made.close()


def test_a_worker_that_hangs_at_work_is_replaced(registry, caplog):
    reasons = []
    workers = LinkWorkers(registry, 1, patience=0.5, replaced=reasons.append)
    os.kill(workers.pids[0], signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(LostError):
        all_of(workers.link(PARIS, [LinkJob(("Paris",))]))
    assert time.monotonic() - begin < 20
    assert b"Q90" in first_document(workers, PARIS, [LinkJob(("Paris",))])
    assert (reasons, workers.replaced) == (["hung"], 1)
    assert "a worker hung and was replaced" in caplog.messages
    workers.close()


def test_a_worker_that_is_stopped_takes_no_large_request_for_ever(registry):
    workers = LinkWorkers(registry, 1, patience=3)
    os.kill(workers.pids[0], signal.SIGSTOP)
    results = all_of(workers.link(PARIS, [LinkJob(("x" * 900_000,))]))
    assert len(results) == 1
    workers.close()


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGSTOP, "hung"), (signal.SIGKILL, "died")])
def test_a_free_worker_that_hangs_or_died_is_replaced_before_it_is_asked(registry, monkeypatch, number, reason):
    monkeypatch.setattr(module, "_PING_INTERVAL", 0.1)
    monkeypatch.setattr(module, "_PING_TIMEOUT", 0.5)
    reasons = []
    workers = LinkWorkers(registry, 2, replaced=reasons.append)
    os.kill(workers.pids[1], number)
    wait_until(lambda: workers.replaced == 1)
    assert reasons == [reason]
    begin = time.monotonic()
    for _ in range(4):
        assert b"Q90" in first_document(workers, PARIS, [LinkJob(("Paris",))])
    assert time.monotonic() - begin < 5
    workers.close()


def test_a_server_whose_workers_die_one_after_the_other_is_not_ready(kbs):
    with engine_of(kbs, readers=2) as engine, asking(engine) as client:
        link = engine.registry.link
        engine._processes.close()
        engine.registry.link = lambda source, requested: (
            os._exit(9) if requested[0].texts == ("deadly",) else link(source, requested)
        )
        engine._processes = LinkWorkers(engine.registry, 2, replaced=engine.metrics.count_replaced)
        for _ in range(3):
            assert client.get("/health").json()["problems"] == []
            assert client.post("/link", json={"text": "deadly", "kb": "cities"}).status_code == 503
        response = client.get("/health")
        assert (response.status_code, response.json()["status"], response.json()["ready"]) == (503, "failing", False)
        assert "look at the log" in response.json()["problems"][0]
        assert response.json()["workers"] == {"count": 2, "replaced": 6}
        figures = client.get("/metrics").text
        assert "wellread_ready 0.0" in figures
        assert 'wellread_workers_replaced_total{reason="died"} 6.0' in figures
        assert client.post("/link", json={"text": "Paris"}).status_code == 200
        assert client.get("/health").json()["ready"]
        assert "wellread_ready 1.0" in client.get("/metrics").text


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("overwrite", ["other", "nothing"])
def test_names_that_are_overwritten_in_place_do_no_harm(kbs, workers, overwrite):
    names = kbs[0].with_name("cities.kb.names")
    with LinkerRegistry.load(kbs, {"cities": ["prior"], "words": ["prior"]}).served_kbs["cities"].kb:
        pass  # now they are beside the KBs, and mapped by who opens them next
    with engine_of(kbs, readers=workers) as engine, listening(engine) as address:

        def link():
            answer = requests.post(f"{address}/link", json={"text": "Paris"}, timeout=60)
            return answer.status_code, [link["entity"] for link in answer.json()["documents"][0]["links"]]

        assert link() == (200, ["Q90"])
        content = kbs[1].with_name("words.kb.names").read_bytes() if overwrite == "other" else b""
        with open(names, "r+b") as file:  # as cp and rsync --inplace do
            file.truncate(0)
            file.write(content)
        for _ in range(6):
            assert link() == (200, ["Q90"])
        assert requests.get(f"{address}/health", timeout=20).json()["workers"]["replaced"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_that_is_overwritten_in_place_is_reported_and_opened_again(toy, tmp_path, workers):
    shutil.copytree(toy, tmp_path / "copy")
    kb, model = tmp_path / "copy" / "toy.kb", str(tmp_path / "copy" / "model")
    rows = next((tmp_path / "copy" / "toy.kb.vectors").glob("rows-*.safetensors"))
    whole = rows.read_bytes()
    with engine_of([kb], [model], readers=workers) as engine, listening(engine) as address:
        engine.registry._note = lambda message: None

        def link():
            return requests.post(f"{address}/link", json={"text": "who is ada"}, timeout=60).status_code

        assert link() == 200
        with open(rows, "r+b") as file:
            file.truncate(0)
        assert link() == 503
        response = requests.get(f"{address}/health", timeout=20)
        assert (response.status_code, response.json()["ready"]) == (503, False)
        assert "overwritten in place" in response.json()["problems"][0]
        assert "wellread index build" in response.json()["problems"][0]
        rows.write_bytes(whole)
        wait_until(lambda: link() == 200)
        wait_until(lambda: requests.get(f"{address}/health", timeout=20).json()["ready"])


def test_a_knowledge_base_that_is_copied_over_is_opened_again(kbs, tmp_path):
    towns = [Entity(f"T{number}", f"Town {number}", "a town", "town") for number in range(400)]
    build(
        lambda tally: iter([*towns, Entity("new", "Paris", "another", "city")]), tmp_path / "n.kb", origin=Origin("n")
    )
    with engine_of(kbs[:1]) as engine, asking(engine) as client:
        assert client.post("/link", json={"text": "Paris"}).status_code == 200
        content = (tmp_path / "n.kb").read_bytes()
        with open(kbs[0], "r+b") as file:
            file.truncate(0)
            file.write(content)

        def entities():
            answer = client.post("/link", json={"text": "Paris"})
            return [link["entity"] for link in answer.json()["documents"][0]["links"]] if answer.is_success else None

        wait_until(lambda: entities() == ["new"], seconds=30)


# Requests in parts


def test_parts_are_bounded_and_all_texts_are_in_one():
    for texts in (
        ["a"],
        ["a"] * 16,
        ["a"] * 17,
        ["a" * PART_CHARACTERS, "b"],
        ["a" * 9_000] * 5,
        ["a" * 99_000, "b", "c"],
    ):
        parts = split_request(texts)
        assert [text for part in parts for text in part] == texts
        assert all(len(part) <= PART_TEXTS for part in parts)
        assert all(len(part) == 1 or sum(map(len, part)) <= PART_CHARACTERS for part in parts)
    assert [len(part) for part in split_request(["a" * 6_200] * 5)] == [2, 2, 1]


@dataclass
class Made:
    texts: list
    revision: int = 0


def slow(seconds, done, revisions=lambda: 0):
    def do(kind, given):
        for texts in given:
            time.sleep(seconds * len(texts))
            done.extend(texts)
            yield [Made(list(texts), revisions())]

    return do


def worker_of(do, threads=2):
    return Batcher(do, queue=32, together=48, together_characters=32_000, threads=threads)


def test_two_maximal_requests_do_not_starve_a_small_one():
    done = []
    worker = worker_of(slow(0.02, done))

    async def scenario():
        large = []
        for name in "xy":
            parts = split_request([f"{name}{n}" for n in range(64)])
            large.append(asyncio.ensure_future(submit_in_parts(worker, ["a"], parts, list)))
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        small = await asyncio.wait_for(worker.submit("a", ["small"]), 5)
        assert small.texts == ["small"]
        assert not any(one.done() for one in large)
        for one, name in zip(large, "xy", strict=True):
            made = await one
            assert [text for (part,) in made for text in part.texts] == [f"{name}{n}" for n in range(64)]
        assert worker._taken == worker._jobs == worker._texts == 0

    asyncio.run(scenario())
    worker.close()


def test_a_request_that_was_given_up_is_not_worked_on():
    done = []
    worker = worker_of(slow(0.01, done), threads=1)

    async def scenario():
        requested = asyncio.ensure_future(
            submit_in_parts(worker, ["a"], split_request([str(n) for n in range(64)]), list)
        )
        await asyncio.sleep(0.05)
        requested.cancel()
        await asyncio.sleep(0.5)
        assert len(done) == PART_TEXTS
        assert worker._taken == worker._jobs == worker._texts == 0
        assert (await worker.submit("a", ["next"])).texts == ["next"]

    asyncio.run(scenario())
    worker.close()


def test_a_request_counts_as_a_whole_and_is_refused_as_a_whole():
    done = []
    worker = worker_of(slow(0.01, done), threads=1)

    async def scenario():
        parts = split_request([str(n) for n in range(64)])
        first = asyncio.ensure_future(submit_in_parts(worker, ["a"], parts, list))
        await asyncio.sleep(0.02)
        assert worker._taken == 64
        others = [worker.submit("a", ["x"]) for _ in range(8)]
        with pytest.raises(BusyError):
            await submit_in_parts(worker, ["a"], parts, list)
        await asyncio.gather(first, *others)
        assert worker._taken == 0

    asyncio.run(scenario())
    worker.close()


def test_all_parts_of_an_answer_are_of_one_revision():
    done, seen = [], iter([1, 1, 2, 2, 2, 2, 2, 2, 2, 2])
    worker = worker_of(slow(0, done, lambda: next(seen)), threads=1)

    async def scenario():
        parts = split_request([str(n) for n in range(64)])
        made = await submit_in_parts(worker, ["a"], parts, list, revision=lambda one: one.revision)
        assert [one.revision for (one,) in made] == [2, 2, 2, 2]
        assert [text for (one,) in made for text in one.texts] == [str(n) for n in range(64)]

    asyncio.run(scenario())
    worker.close()


def test_where_revisions_never_settle_all_is_read_at_once():
    done, seen = [], iter(range(1000))
    worker = worker_of(slow(0, done, lambda: next(seen)), threads=1)

    async def scenario():
        parts = split_request([str(n) for n in range(40)])
        made = await submit_in_parts(worker, ["a"], parts, list, revision=lambda one: one.revision)
        assert [len(one.texts) for (one,) in made] == [40]

    asyncio.run(scenario())
    worker.close()


def test_a_large_request_is_answered_as_many_small_ones_are(kbs):
    texts = [f"Paris and France, number {number}" for number in range(60)]
    with engine_of(kbs) as engine, asking(engine) as client:
        large = client.post("/link", json={"texts": texts}).json()["documents"]
        small = [client.post("/link", json={"text": text}).json()["documents"][0] for text in texts]
    assert large == small
