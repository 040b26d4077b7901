"""Streams end: with their lines, with patience, with the server; and their cost is that of what they say."""

import asyncio
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import pytest
import requests

from tests.servers import asking, engine_of, listening, write_kbs
from wellread.server.stream import lines_of


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


def split(chunks, longest=1 << 20):
    async def given():
        for chunk in chunks:
            yield chunk

    async def taken():
        return [line async for line in lines_of(given(), longest)]

    return asyncio.run(taken())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_are_cut(size):
    whole = b'"a"\n\n  \n"Paris in France"\r\n{"text": "b"}\n"no end"'
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert split(chunks) == [b'"a"', b'"Paris in France"\r', b'{"text": "b"}', b'"no end"']


def test_a_long_line_in_small_parts_costs_what_it_is_long():
    begin = time.process_time()
    assert split([b"a"] * 500_000, 1 << 20) == [b"a" * 500_000]
    assert time.process_time() - begin < 3  # looked through anew for each part it is 125 gigabytes


OPTIONS = (
    {},
    {"threshold": 0.0, "overlaps": "keep", "top_k": 3},
    {"threshold": 0.0, "overlaps": "keep", "top_k": 0},
    {"threshold": 0.0, "overlaps": "drop", "nil": True},
    {"threshold": 0.0, "among": ["p1", "p2"]},
    {"threshold": 0.0, "kinds": ["city"]},
    {"model": "prior", "overlaps": "keep"},
)


def test_a_stream_takes_all_options_that_a_request_takes(toy):
    text, seen = "who is the mayor of brno dora mercury", []
    with engine_of([toy / "toy.kb"], [f"model={toy / 'model'}", "prior"]) as engine, asking(engine) as client:
        for options in OPTIONS:
            (document,) = client.post("/link", json={"text": text, **options}).json()["documents"]
            line = client.post("/link/stream", params=options, content=json.dumps(text)).json()
            assert line == {**document, "revisions": {"toy": 1}}, options
            keys = ("start", "end", "entity", "score")
            seen.append([(*(link[name] for name in keys), len(link["candidates"]) > 0) for link in line["links"]])
    assert len(set(map(str, seen))) == len(OPTIONS)  # each of them changes something


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("treshold=0.5", "treshold is not a field of this request"),
        ("overlaps=some", "overlaps: Input should be 'auto', 'drop' or 'keep'"),
        ("kinds=city", "prior cannot be restricted to a subset"),
        ("kb=moon", "unknown knowledge base 'moon'; choose cities, words"),
    ],
)
def test_wrong_stream_requests_are_refused_with_the_fix(kbs, query, message):
    with engine_of(kbs) as engine, asking(engine) as client:
        answer = client.post(f"/link/stream?{query}", content=b'"Paris"')
        assert answer.status_code == 422
        assert message in answer.json()["error"]


def test_a_line_that_causes_an_error_gets_it_and_others_go_on(kbs, monkeypatch):
    with engine_of(kbs) as engine, asking(engine) as client:
        link = engine.registry._link

        def breaks(source, requested):
            if any("poison" in text for one in requested for text in one.texts):
                raise IndexError("broken")
            return link(source, requested)

        monkeypatch.setattr(type(engine.registry), "_link", lambda registry, *given: breaks(*given))
        body = b'"Paris"\n"poison"\n"Paris in France"\n'
        results = [json.loads(line) for line in client.post("/link/stream", content=body).text.splitlines()]
    assert ["error" in one for one in results] == [False, True, False]
    assert (results[1]["line"], "internal error at this line" in results[1]["error"]) == (2, True)


class Stream:
    """One that a test writes to and reads from as it likes."""

    def __init__(self, connection):
        self.connection, self.answers = connection, connection.makefile("rb")

    def write(self, data):
        self.connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def read(self):
        """The next line of the answer."""
        while line := self.answers.readline():
            if line.startswith(b"{"):
                return json.loads(line)
        return None


@contextmanager
def streaming(address, query=""):
    where = urlsplit(address)
    with closing(socket.create_connection((where.hostname, where.port), timeout=20)) as connection:
        path = f"/link/stream?{query}".encode()
        connection.sendall(b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n" % path)
        yield Stream(connection)


def test_a_line_that_does_not_end_is_not_waited_for_however_often_a_byte_comes(kbs):
    with engine_of(kbs, seconds=0.5) as engine, listening(engine) as address, streaming(address) as stream:
        stop = threading.Event()

        def drip():
            stream.write(b'"Paris"\n"')
            while not stop.wait(0.1):
                stream.write(b"a")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert stream.read()["links"]
            begin = time.monotonic()
            assert stream.read() == {"line": 2, "error": "the next line did not arrive in time"}
            assert time.monotonic() - begin < 3
        finally:
            stop.set()
            dripping.join()


def test_lines_may_come_for_longer_than_one_may_take(kbs):
    with engine_of(kbs, seconds=0.5) as engine, listening(engine) as address, streaming(address) as stream:
        for _ in range(4):
            time.sleep(0.25)
            stream.write(b'"Paris"\n')
            assert stream.read()["links"]


def test_time_in_which_the_server_answers_is_not_the_clients(kbs):
    limits = {"seconds": 1.0, "ahead": 1, "together": 1}
    with (
        engine_of(kbs, **limits) as engine,
        listening(engine) as address,
        streaming(address, "kb=cities") as stream,
    ):
        do = engine.registry.link
        engine.registry.link = lambda source, requested: (time.sleep(0.3), do(source, requested))[1]
        for _ in range(6):
            stream.write(b'"Paris ')
            stream.write(b'in France"\n')
        stream.write(b"")
        assert [bool(stream.read()["links"]) for _ in range(6)] == [True] * 6


def test_a_line_that_is_not_answered_in_time_gets_an_error_and_others_go_on(kbs):
    with (
        engine_of(kbs, seconds=1.0, together=1) as engine,
        listening(engine) as address,
        streaming(address, "kb=cities") as stream,
    ):
        do, held, read = engine.registry.link, threading.Event(), []

        def link(source, requested):
            read.extend(text for one in requested for text in one.texts)
            held.wait(20)
            return do(source, requested)

        engine.registry.link = link
        stream.write(b'"Paris"\n"France"\n"AC/DC"\n')
        stream.write(b"")
        late = [stream.read(), stream.read()]  # the one that is read, and the one that waits for its turn
        assert [(one["line"], "timed out" in one["error"]) for one in late] == [(1, True), (2, True)]
        held.set()
        assert [link["entity"] for link in stream.read()["links"]] == ["a/b c?"]
        assert stream.read() is None
        assert read == ["Paris", "AC/DC"]  # nobody waits for the second any more


def test_a_line_that_finds_no_room_in_time_gets_an_error(kbs):
    with (
        engine_of(kbs, seconds=1.0, queue=1, together=1) as engine,
        listening(engine) as address,
        streaming(address, "kb=cities") as stream,
    ):
        do, held, begun = engine.registry.link, threading.Event(), threading.Event()
        engine.registry.link = lambda source, requested: (begun.set(), held.wait(20), do(source, requested))[2]
        ask = lambda: requests.post(f"{address}/link", json={"text": "Paris", "kb": "cities"}, timeout=20)  # noqa: E731
        with ThreadPoolExecutor(2) as pool:
            requested = [pool.submit(ask)]
            assert begun.wait(20)
            requested.append(pool.submit(ask))
            while engine.batcher.waiting == 0:
                time.sleep(0.01)
            stream.write(b'"Paris"\n"France"\n')
            stream.write(b"")
            assert "timed out" in stream.read()["error"]
            held.set()
            assert [one.result().status_code for one in requested] == [503, 503]  # they were there before
        assert [link["entity"] for link in stream.read()["links"]] == ["Q142"]


def test_a_stream_ends_with_the_server_and_says_so(kbs):
    with engine_of(kbs) as engine:
        with listening(engine) as address:
            stream = streaming(address)
            lines = stream.__enter__()
            lines.write(b'"Paris"\n"France"\n"half')
            assert lines.read()["links"]
            begin = time.monotonic()
        assert time.monotonic() - begin < 5
        assert lines.read()["links"]
        result = lines.read()
        assert (result["line"], "is stopping" in result["error"]) == (3, True)
        stream.__exit__(None, None, None)


def test_what_was_read_of_a_stream_is_answered_before_the_server_ends(kbs):
    with engine_of(kbs, ahead=2) as engine:
        do, held = engine.registry.link, threading.Event()
        engine.registry.link = lambda source, requested: (held.wait(20), do(source, requested))[1]
        with listening(engine) as address:
            stream = streaming(address)
            lines = stream.__enter__()
            lines.write(b'"Paris"\n' * 20)
            lines.write(b"")
            while engine.batcher.waiting == 0:
                time.sleep(0.01)
            threading.Timer(0.3, held.set).start()
        assert [bool(lines.read()["links"]) for _ in range(20)] == [True] * 20
        assert lines.read() is None  # it had ended by itself: there is nothing to send again
        stream.__exit__(None, None, None)


def test_a_stream_that_waits_is_not_counted_as_refused(kbs):
    with engine_of(kbs, queue=1, together=1, streams=1) as engine, listening(engine) as address:
        do, held = engine.registry.link, threading.Event()
        engine.registry.link = lambda source, requested: (held.wait(20), do(source, requested))[1]

        def refused():
            output = requests.get(f"{address}/metrics", timeout=20).text
            return float(re.search(r"^wellread_refused_total (\S+)", output, re.MULTILINE)[1])

        with streaming(address) as stream:
            stream.write(b'"Paris"\n' * 4)
            while engine.batcher.waiting == 0:
                time.sleep(0.01)
            time.sleep(0.5)
            assert refused() == 0
            second = requests.post(f"{address}/link/stream", data=b'"Paris"', timeout=20)
            ask = lambda: requests.post(f"{address}/link", json={"text": "Paris"}, timeout=20)  # noqa: E731
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(ask)  # finds room, whatever the stream has sent
                while engine.batcher.waiting < 3:
                    time.sleep(0.01)
                assert (second.status_code, ask().status_code) == (429, 429)
                assert refused() == 2
                held.set()
                assert other.result().status_code == 200
            stream.write(b"")
            assert [bool(stream.read()["links"]) for _ in range(4)] == [True] * 4


def test_streams_leave_room_for_others(kbs):
    with engine_of(kbs, queue=8, together=1) as engine, listening(engine) as address, ExitStack() as stack:
        do, held, begun = engine.registry.link, threading.Event(), threading.Event()
        engine.registry.link = lambda source, requested: (begun.set(), held.wait(20), do(source, requested))[2]
        streams = [stack.enter_context(streaming(address, "kb=cities")) for _ in range(4)]
        for stream in streams:
            stream.write(b'"Paris"\n' * 5)
        assert begun.wait(20)
        while engine.batcher.waiting < 4:
            time.sleep(0.01)
        time.sleep(0.3)  # all of them ask again and again
        assert engine.batcher.waiting == 4
        pool = stack.enter_context(ThreadPoolExecutor(4))
        ask = lambda: requests.post(f"{address}/link", json={"text": "Paris", "kb": "cities"}, timeout=20)  # noqa: E731
        requested = [pool.submit(ask) for _ in range(3)]
        while engine.batcher.waiting < 7:
            time.sleep(0.01)
        held.set()
        assert [one.result().status_code for one in requested] == [200] * 3
        for stream in streams:
            stream.write(b"")
            assert [bool(stream.read()["links"]) for _ in range(5)] == [True] * 5
