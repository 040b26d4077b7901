"""Looking things up and changing them hold up neither each other, nor what is linked, nor word of how the server is."""

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import requests

from tests.servers import BEARER, asking, engine_of, listening, write_kbs
from wellread.kb import schema
from wellread.server.batching import BusyError
from wellread.server.engine import MAX_PENDING, BoundedExecutor


@pytest.fixture
def kbs(tmp_path):
    return write_kbs(tmp_path)


@contextmanager
def held(engine, monkeypatch, kb="cities"):
    """Searches in a KB that last until the block ends."""
    served_kb, event = engine.registry.served_kb(kb), threading.Event()
    monkeypatch.setattr(served_kb.kb, "search", lambda *requested, **options: (event.wait(20), [])[1])
    try:
        yield event
    finally:
        event.set()


def test_health_and_metrics_are_served_while_all_searches_wait(kbs, monkeypatch):
    with engine_of(kbs) as engine, listening(engine) as address, ThreadPoolExecutor(8) as pool:
        with held(engine, monkeypatch):
            requested = [pool.submit(requests.get, f"{address}/entities?search=a", timeout=60) for _ in range(8)]
            time.sleep(0.3)
            assert requests.get(f"{address}/health", timeout=5).status_code == 200
            assert requests.get(f"{address}/metrics", timeout=5).status_code == 200
            assert requests.post(f"{address}/link", json={"text": "Paris"}, timeout=5).status_code == 200
        assert [one.result().status_code for one in requested] == [200] * 8


def test_a_search_that_takes_too_long_is_given_up(kbs, monkeypatch):
    with engine_of(kbs, seconds=0.3) as engine, asking(engine) as client, held(engine, monkeypatch):
        answer = client.get("/entities?search=a")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_search_that_was_given_up_is_stopped_and_entities_are_shown_meanwhile(kbs, monkeypatch):
    with engine_of(kbs, seconds=0.5) as engine, listening(engine) as address, ThreadPoolExecutor(8) as pool:
        served_kb, stopped = engine.registry.served_kb("cities"), []

        def slow(*requested, stop, **options):
            while not stop():
                time.sleep(0.01)
            stopped.append(True)
            return []

        monkeypatch.setattr(served_kb.kb, "search", slow)
        requested = [pool.submit(requests.get, f"{address}/entities?search=a", timeout=60) for _ in range(6)]
        time.sleep(0.1)
        assert requests.get(f"{address}/entities/Q90", timeout=0.4).status_code == 200
        assert [one.result().status_code for one in requested] == [503] * 6
        deadline = time.monotonic() + 10
        while len(stopped) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 2 <= len(stopped) <= 6  # those that had begun


def test_a_call_to_a_full_executor_is_refused_as_busy():
    async def scenario():
        aside, event = BoundedExecutor("test", 1, most=3), threading.Event()
        requested = [asyncio.ensure_future(aside.run(lambda: event.wait(20))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await aside.run(lambda: True)
        requested[2].cancel()  # it had not begun
        await asyncio.sleep(0.01)
        last = asyncio.ensure_future(aside.run(lambda: True))
        requested[0].cancel()  # it goes on, though nobody waits: its room is not free
        await asyncio.sleep(0.01)
        with pytest.raises(BusyError):
            await aside.run(lambda: True)
        event.set()
        assert await last
        aside.close()

    asyncio.run(scenario())


def test_too_many_searches_are_refused_and_counted(kbs, monkeypatch):
    with engine_of(kbs) as engine, listening(engine) as address, ThreadPoolExecutor(MAX_PENDING + 4) as pool:
        with held(engine, monkeypatch) as event:
            ask = lambda: requests.get(f"{address}/entities?search=a", timeout=60)  # noqa: E731
            requested = [pool.submit(ask) for _ in range(MAX_PENDING + 4)]
            while sum(one.done() for one in requested) < 4:
                time.sleep(0.01)
            event.set()
        statuses = sorted(one.result().status_code for one in requested)
        assert statuses == [200] * MAX_PENDING + [429] * 4
        assert "wellread_refused_total 4.0" in requests.get(f"{address}/metrics", timeout=20).text


@contextmanager
def changing(path):
    """Another process changes a KB, and takes its time."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_texts_are_linked_while_a_change_waits_for_another_process(kbs):
    with engine_of(kbs) as engine, listening(engine) as address, ThreadPoolExecutor(2) as pool:
        ask = {"json": {"title": "Avon"}, "headers": BEARER, "timeout": 60}
        with changing(kbs[0]):
            put = pool.submit(requests.put, f"{address}/entities/x", **ask)
            time.sleep(0.3)
            for _ in range(3):
                assert requests.post(f"{address}/link", json={"text": "Paris"}, timeout=3).json()["documents"]
            assert not put.done()
        assert put.result().status_code == 201
        info = requests.post(f"{address}/link", json={"text": "Avon", "kb": "cities"}, timeout=20).json()
        assert [link["entity"] for link in info["documents"][0]["links"]] == ["x"]


def test_a_knowledge_base_that_another_process_holds_is_unavailable_for_a_while(kbs, monkeypatch):
    monkeypatch.setattr(schema, "_PATIENCE", 0.2)
    with engine_of(kbs) as engine, asking(engine) as client:
        with changing(kbs[0]):
            answer = client.put("/entities/x", json={"title": "Avon"}, headers=BEARER)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"] == "cities is locked by another process; try again in a few seconds"
        assert client.put("/entities/x", json={"title": "Avon"}, headers=BEARER).status_code == 201
