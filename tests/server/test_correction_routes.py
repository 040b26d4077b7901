"""The routes of corrections and of the sample text."""

import json

import pytest

from tests.servers import BEARER, CITIES, asking, engine_of, write_kbs
from wellread.kb.build import Origin, build
from wellread.kb.corrections import Corrections, corrections_path
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.server.sample_text import sample_text

BODY = {"text": "Paris was a prince.", "start": 0, "end": 5, "entity": "Q167646", "predicted": "Q90", "score": 0.8}


@pytest.fixture
def kbs(tmp_path):
    return write_kbs(tmp_path)


@pytest.fixture
def client(kbs):
    with engine_of(kbs) as engine, asking(engine) as client:
        yield client


def test_a_correction_is_kept_counted_exported_and_taken_back(client, kbs):
    done = client.post("/corrections", json=BODY, headers=BEARER)
    assert (done.status_code, done.json()) == (201, {"kb": "cities", "id": 1, "count": 1})
    client.post("/corrections", json={**BODY, "kb": "words", "entity": None}, headers=BEARER)
    assert [kb["corrections"] for kb in client.get("/health").json()["kbs"]] == [1, 1]
    exported = client.get("/corrections?kb=cities", headers=BEARER)
    assert exported.headers["content-type"] == "application/x-ndjson"
    gold = {"id": "c1", "text": BODY["text"], "mentions": [[0, 5, "Q167646", "Paris (mythology)"]]}
    assert json.loads(exported.content) == {**gold, "evaluate": [[0, 5]]}
    assert len(Corrections(corrections_path(kbs[0]))) == 1
    assert client.delete("/corrections/1?kb=cities", headers=BEARER).json()["count"] == 0
    assert client.delete("/corrections/1?kb=cities", headers=BEARER).status_code == 404
    assert client.get("/corrections", headers=BEARER).content == b""


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_corrections_need_the_token(client, kbs, method):
    path = "/corrections/1" if method == "DELETE" else "/corrections"
    body = {"json": BODY} if method == "POST" else {}
    assert client.request(method, path, **body).status_code == 401
    assert client.request(method, path, headers={"authorization": "Bearer no"}, **body).status_code == 401
    with engine_of(kbs, token=None) as engine, asking(engine) as reader:
        assert reader.request(method, path, headers=BEARER, **body).status_code == 403


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end": 50}, "the span 0:50 is not in its text of 19 characters"),
        ({"entity": "nobody"}, "unknown entity 'nobody'"),
        ({"kb": "other"}, "unknown knowledge base 'other'"),
        ({"text": "x" * 100_001}, "at most 100,000 are accepted"),
        ({"entyti": None}, "entyti is not a field of this request"),
    ],
)
def test_what_does_not_fit_is_refused(client, kbs, change, message):
    answer = client.post("/corrections", json={**BODY, **change}, headers=BEARER)
    assert (answer.status_code, message in answer.json()["error"]) == (422, True), answer.json()
    assert not corrections_path(kbs[0]).exists()


def test_a_file_that_is_not_ours_is_reported_without_its_folder(client, kbs):
    corrections_path(kbs[0].resolve()).write_text("a note of mine " * 100)
    answer = client.post("/corrections", json=BODY, headers=BEARER)
    assert answer.status_code == 409
    assert str(kbs[0].parent) not in answer.json()["error"]
    assert client.get("/health").json()["kbs"][0]["corrections"] == 0


def test_a_sample_text_has_names_of_the_knowledge_bases(client):
    text = client.get("/sample").json()["text"]
    links = client.post("/link", json={"text": text}).json()["documents"][0]["links"]
    assert {link["kb"] for link in links} == {"cities", "words"}
    assert client.get("/sample?kb=other").status_code == 422


def test_a_sample_text_is_prose_where_its_names_are_known(tmp_path):
    def sample(*entities):
        path = tmp_path / f"{len(entities)}.kb"
        build(lambda tally: iter(entities), path, origin=Origin("test"))
        with KnowledgeBase.open(path) as kb:
            return sample_text([kb])

    known = [Entity(name, name, "") for name in ("Marie Curie", "Warsaw", "Paris")]
    assert sample(*known).startswith("Marie Curie was born in Warsaw")
    assert sample() == ""
    assert sample(Entity("c", "C++ (language)")) == "This text is about C++ (language)."
    assert sample(*CITIES[:2]) == "What is Paris, and how does it differ from France?"
