"""Whatever arrives, a server answers with an error of the client's, and serves the others."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving import BEARER, asking, engine_of, listening, write_kbs


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


@pytest.fixture(scope="module")
def client(kbs):
    with engine_of(kbs, body=50_000) as engine, asking(engine) as client:
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


@pytest.mark.slow
def test_the_schema_holds_for_generated_requests(client):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 9
    for operation in operations:
        if operation.path in ("/explain", "/embed", "/link/stream"):
            continue  # the encoder of two would be fetched; lines are nothing that schemathesis can write

        @settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def ask(case):
            given = case.as_transport_kwargs()
            headers = {**dict(given.get("headers") or {}), **BEARER}
            asked = {key: given[key] for key in ("params", "json") if given.get(key) is not None}
            if "data" in given and given["data"] is not None:
                data = given["data"]
                asked["content"] = data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")
            answer = client.request(case.method, case.formatted_path, headers=headers, **asked)
            assert answer.status_code < 500, (case.method, case.formatted_path, answer.text)

        ask()


# connections


def test_a_wrong_host_is_refused(kbs):
    from dataclasses import replace

    with engine_of(kbs) as engine:
        engine.settings = replace(engine.settings, hosts=("127.0.0.1", "localhost", "[::1]"))
        with asking(engine) as client:
            told = {
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
    assert list(told.values()) == [200, 200, 200, 200, 400, 400]


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


def test_clients_that_leave_are_forgotten(kbs):
    body = json.dumps({"text": "Paris"}).encode()
    with engine_of(kbs) as engine, listening(engine) as address:
        for _ in range(20):
            send(address, head(len(body)) + body).close()
            send(address, head(len(body)) + body[:5]).close()
            send(address, b"POST /link HT").close()
            send(address, b"\x16\x03\x01 nonsense\r\n\r\n").close()
        assert requests.post(f"{address}/link", json={"text": "Paris"}, timeout=30).status_code == 200
        assert engine.worker.waiting == 0


def test_a_full_queue_answers_429_and_all_that_is_taken_is_right(kbs):
    with engine_of(kbs, queue=4, together=2) as engine, listening(engine) as address:
        do, held = engine.shelf.link, threading.Event()
        engine.shelf.link = lambda source, asked: (held.wait(20), do(source, asked))[1]
        ask = lambda n: requests.post(f"{address}/link", json={"text": f"Paris {n}", "kb": "cities"}, timeout=60)  # noqa: E731
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(ask, number) for number in range(12)]
            while sum(future.done() for future in asked) < 6:  # at most two taken and four waiting have no answer yet
                time.sleep(0.01)
            held.set()
            answers = [future.result() for future in asked]
        refused = [answer for answer in answers if answer.status_code == 429]
        right = [answer.json()["documents"][0] for answer in answers if answer.status_code == 200]
        assert len(refused) + len(right) == 12
        assert len(right) >= 5
        assert {link["entity"] for document in right for link in document["links"]} == {"Q90"}
        assert {answer.headers["retry-after"].isdigit() for answer in refused} == {True}


def test_who_takes_too_long_is_told_so(kbs):
    with engine_of(kbs, seconds=0.2) as engine, asking(engine) as client:
        do, held = engine.shelf.link, threading.Event()
        engine.shelf.link = lambda source, asked: (held.wait(20), do(source, asked))[1]
        answer = client.post("/link", json={"text": "Paris", "kb": "cities"})
        held.set()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_bug_of_ours_is_told_without_its_text(kbs, caplog):
    with engine_of(kbs) as engine, asking(engine) as client:
        engine.shelf.link = lambda source, asked: [][1]
        answer = client.post("/link", json={"text": "secret Paris"})
        assert answer.status_code == 500
        assert answer.headers["x-request-id"] in answer.json()["error"]
        assert "secret" not in caplog.text.replace("test_a_bug", "")
        assert client.get("/health").json()["status"] == "ok"


@pytest.mark.slow
def test_told_to_stop_a_server_finishes_what_it_took(kbs, tmp_path):
    """SIGTERM under load: whoever got a connection gets a right answer, and the process ends well."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "wellread.cli", "serve", "--kb", kbs[0], "--model", "prior", "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log"
    with log.open("w") as said:
        serving = subprocess.Popen(command, stderr=said, env=environment)
    address, answers, lost, stop = f"http://127.0.0.1:{port}", [], [], threading.Event()

    def ask():
        body = json.dumps({"texts": ["Paris in France"] * 20}).encode()
        while not stop.is_set():
            try:
                connection = send(address, head(len(body)) + body)
            except OSError:
                return  # it has stopped listening
            with closing(connection):
                told = b""
                try:
                    while part := connection.recv(1 << 16):
                        told += part
                        if told.endswith(b"}}"):
                            break
                except OSError:
                    pass
                (answers if told.startswith(b"HTTP/1.1 200") and told.endswith(b"}}") else lost).append(told)

    try:
        for _ in range(6000):
            try:
                requests.get(f"{address}/health", timeout=60)
                break
            except requests.ConnectionError:
                assert serving.poll() is None
                time.sleep(0.05)
        with ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                pool.submit(ask)
            while len(answers) < 20:
                assert not lost
                time.sleep(0.01)
            serving.send_signal(signal.SIGTERM)
            serving.wait(120)
            stop.set()
    finally:
        stop.set()
        serving.kill()
    assert serving.returncode == 0
    # A connection that the kernel held and nobody had taken when the door was shut is no loss: it has no answer at all.
    assert [told for told in lost if told] == []
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert lines[-1]["message"] == "stopped"
    assert {line["status"] for line in lines if line["message"] == "request"} == {200}
