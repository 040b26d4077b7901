"""The routes of the server: requests, results, and errors."""

import json
import logging

import pytest

from tests.servers import BEARER, CITIES, asking, engine_of, write_kbs
from wellread import Document
from wellread.linking.multi import Linkers
from wellread.server.registry import LinkerRegistry


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


@pytest.fixture(scope="module")
def client(kbs):
    with engine_of(kbs) as engine, asking(engine) as client:
        yield client


@pytest.fixture
def changing(tmp_path):
    """A client of knowledge bases that a test may change."""
    with engine_of(write_kbs(tmp_path)) as engine, asking(engine) as client:
        yield client


TEXT = "Paris is the capital of France, a city."


def entities(answer):
    return [[link["entity"] for link in document["links"]] for document in answer.json()["documents"]]


# linking


def test_an_answer_is_the_same_as_offline(client, kbs):
    with Linkers.load(kbs, "prior") as linkers:
        offline = [linkers.link(text) for text in (TEXT, "nothing")]
    answer = client.post("/link", json={"texts": [TEXT, "nothing"]})
    assert answer.status_code == 200
    assert [Document.from_dict(one) for one in answer.json()["documents"]] == offline
    assert answer.json()["revisions"] == {"cities": 1, "words": 1}


def test_layers_threshold_and_candidates_are_chosen(client):
    requested = lambda **more: entities(client.post("/link", json={"text": TEXT, **more}))  # noqa: E731
    assert requested(kb="words") == [["w1", "w2"]]
    assert requested(kb=["cities"]) == [["Q90", "Q142"]]
    assert requested(kb="cities", threshold=0.5) == [["Q142"]]
    links = client.post("/link", json={"text": TEXT, "kb": "cities", "top_k": 1}).json()["documents"][0]["links"]
    assert [len(link["candidates"]) for link in links] == [1, 1]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({}, "give either text or texts"),
        ({"text": "a", "texts": ["b"]}, "give either text or texts"),
        ({"texts": []}, "texts"),
        ({"text": "a", "treshold": 1}, "treshold is not a field of this request; see /openapi.json"),
        ({"text": "a", "threshold": 2}, "threshold"),
        ({"text": "a", "kb": "moon"}, "unknown knowledge base 'moon'; choose cities, words"),
        ({"text": "a", "kb": []}, "kb is an empty list"),
        ({"text": "a", "model": "elq"}, "choose prior"),
        ({"text": "a", "kinds": ["city"]}, "prior cannot be restricted to a subset"),
        ({"texts": ["a"] * 65}, "send at most 64 at once, or use /link/stream"),
        ({"text": "a" * 100_001}, "at most 100,000 are accepted"),
    ],
)
def test_wrong_requests_are_refused_with_the_fix(client, requested, message):
    answer = client.post("/link", json=requested)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_who_asks_for_vectors_is_not_sent_to_a_stream_of_links(client):
    answer = client.post("/embed", json={"texts": ["a"] * 65})
    assert (answer.status_code, answer.json()["error"]) == (422, "the request has 65 texts; send at most 64 at once")


def test_lines_are_answered_as_they_come(client):
    lines = [json.dumps(TEXT), json.dumps({"text": "AC/DC", "id": "x"}), "", "{", '{"text": 1}', '"\\ud800"']
    answer = client.post("/link/stream?kb=cities&top_k=0", content="\n".join(lines))
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert [(one.get("id"), [link["entity"] for link in one.get("links", [])]) for one in results[:2]] == (
        [(None, ["Q90", "Q142"]), ("x", ["a/b c?"])]
    )
    assert [(one["line"], "error" in one) for one in results[2:]] == [(3, True), (4, True), (5, True)]
    assert answer.headers["content-type"] == "application/x-ndjson"


def test_a_stream_longer_than_the_queue_loses_nothing(kbs):
    with engine_of(kbs, queue=4, together=2) as engine, asking(engine) as client:
        lines = "".join(json.dumps({"text": f"Paris {n}", "id": str(n)}) + "\n" for n in range(40))
        results = [json.loads(line) for line in client.post("/link/stream", content=lines).text.splitlines()]
    assert [one["id"] for one in results] == [str(n) for n in range(40)]


@pytest.mark.parametrize(
    ("shared", "limits", "expected"),
    [(False, {}, (1, 16)), (True, {}, (3, 48)), (True, {"readers": 2}, (2, 32)), (False, {"queue": 5}, (1, 5))],
)
def test_readers_and_queue_suit_the_machine_and_the_linkers(kbs, monkeypatch, shared, limits, expected):
    monkeypatch.setattr("wellread.server.engine.cores", lambda: 3)
    monkeypatch.setattr(LinkerRegistry, "shared", shared)
    with engine_of(kbs, **limits) as engine:
        assert (engine.workers, engine.queue) == expected


def test_linkers_by_name_are_read_with_by_one_thread(kbs):
    with engine_of(kbs) as engine:
        assert not engine.registry.shared


# what comes with every answer


def test_health_tells_what_there_is(client):
    info = client.get("/health").json()
    assert (info["status"], info["waiting"], info["editable"]) == ("ok", 0, True)
    assert info["kbs"][0] == {
        "name": "cities",
        "entities": len(CITIES),
        "revision": 1,
        "models": ["prior"],
        "thresholds": {"prior": 0.0},
        "overlaps": {"prior": "first"},
        "corrections": 0,
    }


def test_metrics_count_requests_texts_and_batches(kbs):
    with engine_of(kbs) as engine, asking(engine) as client:
        client.post("/link", json={"texts": ["Paris", "France"], "kb": "cities"})
        client.get("/entities/none")
        output = client.get("/metrics").text
    for line in (
        'wellread_requests_total{method="POST",route="/link",status="200"} 1.0',
        'wellread_requests_total{method="GET",route="/entities/{id}",status="404"} 1.0',
        "wellread_texts_total 2.0",
        "wellread_batch_texts_sum 2.0",
        "wellread_waiting_texts 0.0",
        'wellread_kb_revision{kb="cities"} 1.0',
    ):
        assert line in output


def test_the_log_has_no_word_of_what_was_said(client, caplog):
    with caplog.at_level(logging.INFO, "wellread.server"):
        client.post("/link", json={"text": "Paris is secret"})
        client.get("/entities?search=secret")
        client.get("/secret/secret?secret=secret")
        client.put("/entities/secret", json={"title": "secret"}, headers={"authorization": "Bearer secret"})
        client.post("/link", content=b'{"text": "secret')
    from wellread.server.middleware import JsonLines

    lines = [json.loads(JsonLines().format(record)) for record in caplog.records if record.name == "wellread.server"]
    assert [line["route"] for line in lines] == ["/link", "/entities", "other", "/entities/{id}", "/link"]
    assert (lines[0]["texts"], lines[0]["characters"], lines[0]["status"]) == (1, 15, 200)
    assert "secret" not in json.dumps(lines)


def test_every_answer_forbids_what_a_page_does_not_need(client):
    for path in ("/", "/health", "/page/page.js", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert len(headers["x-request-id"]) == 12


def test_openapi_has_an_example_for_every_body_that_works(changing):
    schema = changing.get("/openapi.json").json()
    bodies = {
        path: schema["components"]["schemas"][about["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
        for path, methods in schema["paths"].items()
        for method in methods.values()
        if "application/json" in (about := method.get("requestBody", {"content": {}}))["content"]
    }
    assert set(bodies) == {"/link", "/map", "/embed", "/explain", "/entities/{id}", "/corrections"}
    assert all(body["examples"] for body in bodies.values())
    for path in ("/link", "/map"):
        for example in bodies[path]["examples"]:
            assert changing.post(path, json=example).status_code == 200
    for example in bodies["/corrections"]["examples"]:
        assert changing.post("/corrections", json=example, headers=BEARER).status_code == 201
    for example in bodies["/entities/{id}"]["examples"]:
        assert changing.put("/entities/new", json=example, headers=BEARER).status_code == 201


def test_the_page_is_whole_and_from_here(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "http" not in page.text.replace("https://wellread", "")
    import re

    parts = re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text)
    assert parts == ["/page/page.css", "/page/page.js"]
    script = client.get("/page/page.js")
    imported = re.findall(r'from "\./([^"]+)"', script.text)
    assert len(imported) == 6
    for name in [*(part.removeprefix("/page/") for part in parts), *imported]:
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200
        assert "innerHTML" not in answer.text
        assert "://" not in answer.text
