"""A head that does not end, or is too long, and clients that are too many, take nothing from the others."""

import asyncio
import socket
import time
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest
import requests

from tests.servers import engine_of, listening, write_kbs
from wellread.server import run
from wellread.server.engine import Engine
from wellread.server.run import MAX_HEAD_BYTES


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


def reach(address):
    where = urlsplit(address)
    return socket.create_connection((where.hostname, where.port), timeout=20)


def receive_all(client):
    """All that is said until the connection is closed."""
    parts = []
    with suppress(ConnectionError):
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def drip(client, piece):
    for _ in range(80):
        client.sendall(piece)
        time.sleep(0.05)


WHOLE = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
HALF = b"GET /openapi.json HTTP/1.1\r\nhost: 127"


@pytest.mark.parametrize("sent", [b"", HALF, b"\r\n\r\n", WHOLE + HALF], ids=["nothing", "half", "blank", "a second"])
def test_who_does_not_end_a_head_is_let_go(kbs, sent):
    with engine_of(kbs, seconds=0.5) as engine, listening(engine) as address, closing(reach(address)) as client:
        client.sendall(sent)
        begin = time.monotonic()
        said = receive_all(client)
        assert 0.4 < time.monotonic() - begin < 4  # uvicorn's own patience, where it has any, is 5 s
        assert said.count(b"HTTP/1.1 200") == sent.count(WHOLE)


def test_a_byte_now_and_then_does_not_hold_a_connection(kbs):
    with engine_of(kbs, seconds=0.5) as engine, listening(engine) as address, closing(reach(address)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            drip(client, b"x")


def test_who_sends_on_after_the_answer_is_let_go(kbs):
    with engine_of(kbs, seconds=0.5) as engine, listening(engine) as address, closing(reach(address)) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            drip(client, b"1\r\nx\r\n")


ENDLESS = {
    "an address": b"GET /" + b"a" * (8 << 20),
    "a header": b"GET / HTTP/1.1\r\nx: " + b"a" * (8 << 20),
    "headers": b"GET / HTTP/1.1\r\n" + b"x: a\r\n" * (1 << 20),
    "blank lines": b"\r\n" * (4 << 20),
}


@pytest.mark.parametrize("sent", ENDLESS.values(), ids=ENDLESS)
def test_a_head_without_end_is_not_collected(kbs, sent, monkeypatch):
    taken = []
    feed = run.LimitedHttpProtocol.data_received
    monkeypatch.setattr(run.LimitedHttpProtocol, "data_received", lambda *to: (taken.append(len(to[1])), feed(*to)))
    with engine_of(kbs) as engine, listening(engine) as address, closing(reach(address)) as client:
        with suppress(ConnectionError):
            client.sendall(sent)
        assert receive_all(client)[:12] in (b"HTTP/1.1 431", b"")
        assert requests.get(f"{address}/health", timeout=20).status_code == 200
    assert sum(taken) < 1 << 20


def test_a_head_is_as_long_as_it_may_be_and_no_longer(kbs):
    with engine_of(kbs) as engine, listening(engine) as address:
        ask = lambda size: requests.get(f"{address}/health", headers={"x": "a" * size}, timeout=20).status_code  # noqa: E731
        assert ask(MAX_HEAD_BYTES - 1000) == 200
        assert ask(MAX_HEAD_BYTES + 1) == 431
        assert requests.get(f"{address}/health", timeout=20).status_code == 200


def test_an_idle_connection_is_kept_as_long_after_each_answer(kbs, monkeypatch):
    async def slow(engine, call):
        await asyncio.sleep(0.6)
        return call()

    monkeypatch.setattr(Engine, "run_info", slow)
    with engine_of(kbs, seconds=0.9) as engine, listening(engine) as address, closing(reach(address)) as client:
        for pause in (0.5, 0):  # the second request comes 1.1 s after the first, .5 s after its answer
            client.sendall(WHOLE.replace(b"openapi.json", b"ready"))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(pause)


def test_idle_connections_outlast_the_longest_retry_after(kbs):
    with engine_of(kbs, seconds=30.0) as engine:
        kept = run.Server(engine, ready=lambda port: None).config.timeout_keep_alive
        assert engine.batcher._longest_wait < kept == 30.0


def test_too_many_connections_are_refused_until_some_end(kbs, monkeypatch):
    monkeypatch.setattr(run.LimitedHttpProtocol.__init__, "__kwdefaults__", {"longest": MAX_HEAD_BYTES, "most": 3})
    with engine_of(kbs) as engine, listening(engine) as address:
        clients = [reach(address) for _ in range(3)]
        for client in clients:
            client.sendall(WHOLE)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        with closing(reach(address)) as more:
            assert receive_all(more).startswith(b"HTTP/1.1 503")
        for client in clients:
            client.close()
        time.sleep(0.2)
        assert requests.get(f"{address}/health", timeout=20).status_code == 200


def test_head_requests_get_headers_alone(kbs):
    with engine_of(kbs) as engine, listening(engine) as address:
        for path in ("/", "/health", "/page/page.js", "/entities?search=par"):
            whole, alone = (getattr(requests, ask)(f"{address}{path}", timeout=20) for ask in ("get", "head"))
            assert (alone.status_code, alone.content) == (200, b"")
            assert alone.headers["content-length"] == whole.headers["content-length"]
        assert requests.head(f"{address}/link", timeout=20).status_code == 405
        output = requests.get(f"{address}/metrics", timeout=20).text
        assert 'wellread_requests_total{method="HEAD",route="/health",status="200"} 1.0' in output
