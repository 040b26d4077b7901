"""Whatever arrives, a server answers with an error of the client's, and serves the others."""

import gc
import json
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import BEARER, asking, engine_of, listening, serving, write_kbs
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


@pytest.fixture(scope="module", params=["names", "a model that reads"])
def client(request, kbs, toy, tmp_path_factory):
    if request.param != "names":
        folder = shutil.copytree(toy, tmp_path_factory.mktemp("toys") / "toy")  # it may be changed
        given, models = [folder / "toy.kb"], [f"model={folder / 'model'}", "prior"]
    else:
        given, models = kbs, ["prior"]
    with engine_of(given, models, body=50_000) as engine, asking(engine) as client:
        yield client


JSON = {"content-type": "application/json"}
BODIES = {
    "invalid UTF-8": b'{"text": "\xff\xfe"}',
    "half a surrogate pair": b'{"text": "\\ud800"}',
    "half a pair in a list": b'{"texts": ["a", "\\udfff b"]}',
    "half a pair as a key": b'{"\\ud800": 1}',
    "not a number": b'{"text": "a", "threshold": NaN}',
    "infinite": b'{"text": "a", "threshold": -Infinity}',
    "too deep": b'{"text":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "a huge number": b'{"text": "a", "top_k": ' + b"9" * 5_000 + b"}",
    "a list": b"[]",
    "a string": b'"text"',
    "null": b"null",
    "nothing": b"",
    "half": b'{"text": "a',
    "two": b'{"text": "a"}{"text": "b"}',
    "a control character": b'{"text": "a\x01"}',
    "zeros": b"\x00" * 100,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_makes_no_sense_is_the_clients_error(client, body):
    for method, path in (("POST", "/link"), ("POST", "/embed"), ("POST", "/explain"), ("PUT", "/entities/x")):
        answer = client.request(method, path, content=body, headers={**JSON, **BEARER})
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["error"]


def test_a_body_of_another_kind_is_refused(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/link", content=b'{"text": "Paris"}', headers={"content-type": kind})
        assert answer.status_code == 422


def test_too_much_is_refused_before_it_is_read(client):
    assert client.post("/link", json={"text": "a" * 60_000}).status_code == 413
    chunks = (b"x" * 1000 for _ in range(1000))
    assert client.post("/link", content=chunks, headers=JSON).status_code == 413
    assert client.post("/link", json={"text": "Paris"}).status_code == 200


TEXTS = {
    "right to left": "\u202eParis\u202c שלום Paris مرحبا",
    "zero width": "Pa\u200bris Paris\u200d\ufeff",
    "control characters": "Paris\x00\x01\x1b[31m\x7f\x85\u2028France",
    "beyond 16 bits": "😀𝔓 Paris 👩‍👩‍👧 France",
    "combining": "Pa\u0301ris " + "e" + "\u0301" * 500,
    "markup": "<script>alert(1)</script> Paris &amp;",
    "one letter": "a",
    "spaces": " \t\n",
    "empty": "",
    "one long word": "x" * 20_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_can_be_linked_and_offsets_hold(client, text):
    answer = client.post("/link", json={"text": text})
    assert answer.status_code == 200
    (document,) = answer.json()["documents"]
    assert document["text"] == text
    for link in document["links"]:
        assert text[link["start"] : link["end"]] == link["text"]


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = (
    "text",
    "texts",
    "kb",
    "model",
    "threshold",
    "top_k",
    "overlaps",
    "nil",
    "among",
    "kinds",
    "of",
    "maps",
    "title",
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(body=st.dictionaries(st.sampled_from(_FIELDS), _ANY, max_size=4) | _ANY)
def test_no_body_breaks_the_server(client, body):
    for path in ("/link", "/entities/x"):
        method = "PUT" if path == "/entities/x" else "POST"
        answer = client.request(method, path, json=body, headers=BEARER)
        assert answer.status_code < 500
    client.delete("/entities/x", headers=BEARER)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(path=st.text(max_size=20), query=st.text(max_size=20))
def test_no_address_breaks_the_server(client, path, query):
    from urllib.parse import quote

    for address in (f"/entities/{quote(path)}", f"/{quote(path)}"):
        assert client.get(address, params={"search": query, "kb": query}).status_code < 500
    assert client.get("/entities", params={"search": query, "how": "fuzzy"}).status_code == 200


LINES = (b"", b"\n\n", b"\xff\n", b'"\xed\xa0\x80"\n', b"[" * 5_000, b'{"text": "Paris", "id": "\\ud800"}\n"Paris"\n')


@pytest.mark.parametrize("body", LINES)
def test_no_line_breaks_a_stream(client, body):
    answer = client.post("/link/stream", content=body)
    assert answer.status_code == 200
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert len(results) == sum(bool(line.strip()) for line in body.split(b"\n"))
    assert all(("error" in one) != ("links" in one) for one in results)


# connections


def test_a_wrong_host_is_refused(kbs):
    from dataclasses import replace

    with engine_of(kbs) as engine:
        engine.settings = replace(engine.settings, hosts=("127.0.0.1", "localhost", "[::1]"))
        with asking(engine) as client:
            statuses = {
                host: client.get("/health", headers={"host": host}).status_code
                for host in (
                    "localhost",
                    "127.0.0.1:8000",
                    "[::1]:8000",
                    "LOCALHOST:1",
                    "evil.example",
                    "localhost.evil",
                )
            }
    assert list(statuses.values()) == [200, 200, 200, 200, 400, 400]


def test_a_page_of_another_site_can_post_nothing(client):
    """Forms and streams need no word of the server beforehand: a browser would send them from anywhere."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    for path, body, kind in (
        ("/link/stream", b'"Paris"', {"content-type": "text/plain"}),
        ("/explain/page", b"text=Paris&model=none", form),
        ("/link", b'{"text": "Paris"}', JSON),
    ):
        statuses = {
            site: client.post(path, content=body, headers={**kind, "sec-fetch-site": site}).status_code
            for site in ("cross-site", "same-site", "same-origin", "none")
        }
        assert statuses["cross-site"] == statuses["same-site"] == 403
        assert (
            statuses["same-origin"]
            == statuses["none"]
            == client.post(path, content=body, headers=kind).status_code
            != 403
        )
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to it


def test_a_page_of_another_site_can_get_no_data(client):
    """An <img> with a costly search as its address would need no word of the server."""
    for path in ("/entities?search=Paris", "/entities?search=a&how=fuzzy", "/health", "/metrics"):
        statuses = {
            site: client.get(path, headers={"sec-fetch-site": site}).status_code
            for site in ("cross-site", "same-site", "same-origin", "none")
        }
        assert (statuses["cross-site"], statuses["same-site"]) == (403, 403)
        assert statuses["same-origin"] == statuses["none"] == client.get(path).status_code == 200
    for path in ("/", "/page/page.css"):
        assert client.get(path, headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_a_foreign_origin_is_refused_where_the_browser_tells_no_site(client):
    for kind in ("text/plain", "text/plain; charset=utf-8", "application/x-www-form-urlencoded"):
        for origin, refused in (("https://elsewhere.example", True), ("null", True), ("http://testserver", False)):
            headers = {"content-type": kind, "origin": origin}
            answer = client.post("/link/stream", content=b'"Paris"', headers=headers)
            assert (answer.status_code == 403) == refused, (kind, origin)
    assert client.post("/link/stream", content=b'"Paris"', headers={"content-type": "text/plain"}).status_code == 200


def test_two_host_headers_are_refused(kbs):
    with engine_of(kbs) as engine, listening(engine) as address:
        host = address.removeprefix("http://")
        with send(address, f"GET /health HTTP/1.1\r\nHost: {host}\r\nHost: elsewhere\r\n\r\n".encode()) as client:
            received = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert b" 400 " in received.partition(b"\r\n")[0]
        assert b"more than one Host" in received


def test_ten_megabytes_are_refused_and_not_taken(kbs):
    size = 10_000_000
    body = json.dumps({"text": "a" * (size - 12)}).encode()
    chunked = b"POST /link HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with engine_of(kbs) as engine, listening(engine) as address:
        for start, end in ((head(len(body)), b""), (chunked + b"%x\r\n" % len(body), b"\r\n0\r\n\r\n")):
            with closing(send(address, start)) as connection:
                with suppress(ConnectionError):
                    connection.sendall(body + end)
                assert connection.recv(100).startswith(b"HTTP/1.1 413")
        assert requests.post(f"{address}/link", json={"text": "Paris"}, timeout=30).status_code == 200


def send(address, data):
    where = urlsplit(address)
    connection = socket.create_connection((where.hostname, where.port), timeout=30)
    connection.sendall(data)
    return connection


def head(length, path="/link"):
    lines = (
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        f"content-length: {length}",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def test_slow_clients_are_sent_away_and_nobody_waits_for_them(kbs):
    with engine_of(kbs, seconds=1.0) as engine, listening(engine) as address:
        slow = [send(address, head(1000) + b'{"te') for _ in range(20)]
        assert requests.post(f"{address}/link", json={"text": "Paris"}, timeout=30).status_code == 200
        for connection in slow:
            with closing(connection):
                assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_clients_that_leave_are_forgotten(kbs, caplog):
    body = json.dumps({"text": "Paris"}).encode()
    with engine_of(kbs, queue=100) as engine, listening(engine) as address:
        for _ in range(20):
            send(address, head(len(body)) + body).close()
            send(address, head(len(body)) + body[:5]).close()
            send(address, b"POST /link HT").close()
            send(address, b"\x16\x03\x01 nonsense\r\n\r\n").close()
        assert requests.post(f"{address}/link", json={"text": "Paris"}, timeout=30).status_code == 200
        assert engine.batcher.waiting == 0
    assert "a request failed" not in caplog.text


def test_a_full_queue_answers_429_and_all_that_is_taken_is_right(kbs):
    with engine_of(kbs, queue=4, together=2) as engine, listening(engine) as address:
        do, held = engine.registry.link, threading.Event()
        engine.registry.link = lambda source, requested: (held.wait(20), do(source, requested))[1]
        ask = lambda n: requests.post(f"{address}/link", json={"text": f"Paris {n}", "kb": "cities"}, timeout=60)  # noqa: E731
        with ThreadPoolExecutor(12) as pool:
            requested = [pool.submit(ask, number) for number in range(12)]
            while sum(future.done() for future in requested) < 8:  # at most four have no answer yet
                time.sleep(0.01)
            held.set()
            answers = [future.result() for future in requested]
        refused = [answer for answer in answers if answer.status_code == 429]
        right = [answer.json()["documents"][0] for answer in answers if answer.status_code == 200]
        assert len(refused) + len(right) == 12
        assert len(right) >= 4
        assert {link["entity"] for document in right for link in document["links"]} == {"Q90"}
        assert {answer.headers["retry-after"].isdigit() for answer in refused} == {True}


def test_a_request_that_is_given_up_leaves_no_complaint(kbs, caplog):
    """asyncio logs errors that nobody has asked for, and one that was cancelled is such where several are awaited."""
    with engine_of(kbs, seconds=0.3) as engine, asking(engine) as client:
        do, held = engine.registry.link, threading.Event()
        engine.registry.link = lambda source, requested: (held.wait(20), do(source, requested))[1]
        assert client.post("/link", json={"text": "Paris"}).status_code == 503
        held.set()
        assert client.post("/link", json={"text": "Paris"}).status_code == 200
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_request_that_takes_too_long_gets_an_error(kbs):
    with engine_of(kbs, seconds=0.2) as engine, asking(engine) as client:
        do, held = engine.registry.link, threading.Event()
        engine.registry.link = lambda source, requested: (held.wait(20), do(source, requested))[1]
        answer = client.post("/link", json={"text": "Paris", "kb": "cities"})
        held.set()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_an_internal_error_is_reported_without_its_text(kbs, caplog):
    with engine_of(kbs) as engine, asking(engine) as client:
        engine.registry.link = lambda source, requested: [][1]
        answer = client.post("/link", json={"text": "secret Paris"})
        assert answer.status_code == 500
        assert answer.headers["x-request-id"] in answer.json()["error"]
        assert "secret" not in caplog.text.replace("test_a_bug", "")
        assert client.get("/health").json()["status"] == "ok"


def wait_until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_leaves_while_waiting_is_not_read(kbs):
    body = json.dumps({"text": "Paris", "kb": "cities"}).encode()
    with engine_of(kbs) as engine, listening(engine) as address:
        do, held, read = engine.registry.link, threading.Event(), []
        engine.registry.link = lambda source, requested: (read.extend(requested), held.wait(20), do(source, requested))[
            2
        ]
        first = send(address, head(len(body)) + body)
        wait_until(lambda: read)
        send(address, head(len(body)) + body).close()
        wait_until(lambda: [job.future.cancelled() for job in engine.batcher._waiting] == [True])
        stays = send(address, head(len(body)) + body)
        wait_until(lambda: engine.batcher.waiting == 2)
        held.set()
        for connection in (first, stays):
            with closing(connection):
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert len(read) == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system waits for clients for ever")
def test_who_does_not_take_the_answer_is_let_go(kbs):
    """A stream that nobody reads from does not keep others from theirs."""
    with engine_of(kbs, seconds=1.0, streams=1) as engine, listening(engine) as address:
        lines, where = b'"Paris in France, Paris in France"\n' * 1_000_000, urlsplit(address)
        with closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(0.5)
            slow.connect((where.hostname, where.port))
            slow.sendall(head(len(lines), "/link/stream"))
            with pytest.raises(TimeoutError):
                slow.sendall(lines)  # the server takes no more, since its answers are not taken
            ask = lambda: requests.post(f"{address}/link/stream", data=b'"Paris"', timeout=60).status_code  # noqa: E731
            assert ask() == 429
            # It answers until what the system keeps for the client is full, which takes a while where cores are busy.
            wait_until(lambda: time.sleep(0.2) or ask() == 200, 60)


@pytest.mark.slow
def test_each_answer_is_of_one_revision_while_knowledge_changes_and_is_replaced(tmp_path):
    """Every change renames both entities, so that an answer of two revisions would have two generations of names."""
    path, stop, answers = tmp_path / "own.kb", threading.Event(), []

    def entities(generation):
        return [Entity(id, f"{id} {generation}", aliases={name: 1}) for id, name in (("0", "avon"), ("x", "brno"))]

    def write(generation):
        build(lambda tally: iter(entities(generation)), path, origin=Origin("test"))

    def ask(address):
        with requests.Session() as session:
            while not stop.is_set():
                body = {"texts": ["avon and brno", "brno, avon"]}
                answers.append(session.post(f"{address}/link", json=body, timeout=60))

    write(0)
    with engine_of([path]) as engine, listening(engine) as address, ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask, address)
        try:
            for generation in range(1, 40):
                if generation % 10:
                    with KnowledgeBase.open(path, writable=True) as kb:
                        kb.update(entities(generation))
                else:
                    write(generation)
                    wait_until(lambda wanted=generation: generations(answers[-1:]) == [{str(wanted)}])
        finally:
            stop.set()
    found = generations(answers)
    assert {len(one) for one in found} == {1}
    assert len(set.union(*found)) > 8
    assert {answer.status_code for answer in answers} == {200}


def generations(answers):
    """Return the generations of the names in each answer."""
    return [
        {link["title"].partition(" ")[2] for document in answer.json()["documents"] for link in document["links"]}
        for answer in answers
    ]


@pytest.mark.slow
def test_memory_is_flat_while_the_queue_is_full(kbs, tmp_path):
    body, statuses, stop = {"texts": ["nothing of it " * 300] * 20}, [], threading.Event()

    def ask(address):
        with requests.Session() as session:
            while not stop.is_set():
                statuses.append(session.post(f"{address}/link", json=body, timeout=60).status_code)

    with serving(kbs[0], tmp_path / "log", "--queue", "40") as server, ThreadPoolExecutor(12) as pool:
        for _ in range(12):
            pool.submit(ask, server.address)
        try:
            memory = []
            for _ in range(60):
                time.sleep(0.15)
                memory.append(server.memory())
        finally:
            stop.set()
    assert set(statuses) == {200, 429}
    assert max(memory[30:]) <= 1.05 * max(memory[20:30])


@pytest.mark.slow
def test_a_stopping_server_finishes_accepted_requests(kbs, tmp_path):
    """SIGTERM under load: every accepted request gets a right answer, and the process exits with 0."""
    answers, lost, stop = [], [], threading.Event()
    body = json.dumps({"texts": ["Paris in France"] * 20}).encode()

    def ask(address):
        while not stop.is_set():
            try:
                connection = send(address, head(len(body)) + body)
            except OSError:
                return  # it has stopped listening
            with closing(connection):
                received = b""
                try:
                    while part := connection.recv(1 << 16):
                        received += part
                        if received.endswith(b"}}"):
                            break
                except OSError:
                    pass
                (answers if received.startswith(b"HTTP/1.1 200") and received.endswith(b"}}") else lost).append(
                    received
                )

    with serving(kbs[0], tmp_path / "log", "--queue", "400") as server, ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(ask, server.address)
        try:
            wait_until(lambda: len(answers) >= 20, 60)
            assert not lost
            assert server.stop() == 0
        finally:
            stop.set()
    # A connection that the kernel held and nobody had taken when the door was shut is no loss: it has no answer at all.
    assert [received for received in lost if received] == []
    lines = server.lines()
    assert lines[-1]["message"] == "stopped"
    assert [line["status"] for line in lines if line["message"] == "request"] == [200] * len(answers)
