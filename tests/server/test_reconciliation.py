"""The reconciliation service answers as the specification, version 0.2, says (examples of our own)."""

import json
import re
import threading
import time
from dataclasses import replace

import pytest

from tests.servers import BEARER, asking, engine_of, write_kbs
from wellread.errors import UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.server import reconciliation
from wellread.server.app import create_app
from wellread.server.cross_origin import check_origins

OPENREFINE = "http://127.0.0.1:3333"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kbs")
    entities = [Entity(f"Q{at}", f"Town <{at}>", "a <b>town</b>", "town") for at in range(1, 31)]
    build(lambda tally: iter(entities), folder / "odd name.kb", origin=Origin("test"))
    with engine_of([*write_kbs(folder), folder / "odd name.kb"]) as engine:
        engine.settings = replace(engine.settings, origins=(OPENREFINE,))
        with asking(engine) as client:
            yield client


def ask(client, queries, path="/reconcile"):
    answer = client.post(path, data={"queries": json.dumps(queries)})
    assert answer.status_code == 200, answer.text
    return {key: found["result"] for key, found in answer.json().items()}


def names(found):
    return [one["name"] for one in found]


def test_the_endpoint_without_parameters_is_the_manifest(client):
    found = client.get("/reconcile").json()
    assert found["versions"] == ["0.2"]
    assert found["name"] == "cities (wellread)"
    assert re.fullmatch(r"urn:wellread:kb:\w+:", found["identifierSpace"])
    assert found["schemaSpace"].startswith("urn:")
    assert {"id": "country", "name": "country"} in found["defaultTypes"]
    assert "{{id}}" in found["view"]["url"]
    assert set(found["preview"]) == {"url", "width", "height"}
    assert set(found["suggest"]) == {"entity", "type", "property"}
    assert found == client.get("/reconcile/cities").json()
    assert client.get("/reconcile/odd%20name").json()["identifierSpace"] == "http://www.wikidata.org/entity/"
    assert (
        client.get("/reconcile/words", headers={"x-forwarded-proto": "https"})
        .json()["view"]["url"]
        .startswith("https://testserver/reconcile/words/")
    )


def test_all_addresses_in_the_manifest_answer(client):
    found = client.get("/reconcile/odd%20name").json()
    for suggest in found["suggest"].values():
        answer = client.get(suggest["service_url"] + suggest["service_path"], params={"prefix": "t"})
        assert answer.status_code == 200
        assert answer.json()["result"]
    proposed = found["extend"]["propose_properties"]
    assert client.get(proposed["service_url"] + proposed["service_path"]).json()["properties"]
    assert client.get(found["preview"]["url"].replace("{{id}}", "Q3")).status_code == 200


def test_a_batch_is_answered_by_the_keys_of_its_queries(client):
    queries = {"q0": {"query": "Paris"}, "q1": {"query": "FRANCE"}, "other": {"query": "xyzzy"}}
    found = ask(client, queries)
    assert set(found) == set(queries)
    assert names(found["q0"]) == ["Paris", "Paris (mythology)"]
    (france, *_) = found["q1"]
    assert set(france) == {"id", "name", "description", "type", "score", "match", "features"}
    assert (france["id"], france["type"]) == ("Q142", [{"id": "country", "name": "country"}])
    assert 0 < france["score"] <= 100
    scores = [one["score"] for one in found["q0"]]
    assert scores == sorted(scores, reverse=True)
    assert all(isinstance(one["value"], bool | int | float) for one in france["features"])


def test_get_answers_like_post(client):
    queries = {"q0": {"query": "Pariss", "limit": 1}}
    by_get = client.get("/reconcile/cities", params={"queries": json.dumps(queries)})
    assert by_get.json() == client.post("/reconcile", data={"queries": json.dumps(queries)}).json()
    assert len(by_get.json()["q0"]["result"]) == 1


@pytest.mark.parametrize("type", ["person", ["person"], [{"id": "person", "name": "Person"}], ["person", "band"]])
def test_types_restrict_the_candidates(client, type):
    (found,) = ask(client, {"q0": {"query": "Paris", "type": type, "type_strict": "any"}})["q0"]
    assert found["id"] == "Q167646"


def test_types_that_only_should_fit_keep_the_others(client):
    found = ask(client, {"q": {"query": "Paris", "type": "person", "type_strict": "should"}})["q"]
    assert len(found) == 2
    assert ask(client, {"q": {"query": "Paris", "type": ["person", "city"], "type_strict": "all"}})["q"] == []
    assert len(ask(client, {"q": {"query": "Paris", "type": "entity"}})["q"]) == 2


def test_an_id_is_its_entity(client):
    (first, *_) = ask(client, {"q0": {"query": "Q142"}})["q0"]
    assert (first["id"], first["match"], first["score"]) == ("Q142", True, 100)


def test_properties_are_accepted(client):
    properties = [{"pid": "country", "v": ["France", {"id": "Q142", "name": "France"}]}, {"pid": "n", "v": 3}]
    assert names(ask(client, {"q0": {"query": "Paris", "properties": properties}})["q0"])[0] == "Paris"
    assert names(ask(client, {"q0": {"properties": properties[:1]}})["q0"])


def test_only_nearly_certain_candidates_are_matches(client):
    found = ask(client, {"q0": {"query": "Paris"}, "q1": {"query": "AC/DC"}})
    assert all(one["match"] == (one["score"] >= 90) for row in found.values() for one in row)


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ("nonsense", "queries"),
        ("[]", "queries"),
        ('{"q0": {}}', "give query, or properties"),
        ('{"q0": {"query": ""}}', "q0.query"),
        ('{"q0": {"properties": []}}', "give query, or properties"),
        ('{"q0": {"query": "a", "limit": 0}}', "q0.limit"),
        ('{"q0": {"query": "a", "type_strict": "none"}}', "q0.type_strict"),
        ('{"q0": {"query": "a", "props": []}}', "q0.props"),
        ('{"q0": "Paris"}', "q0"),
        (json.dumps({f"q{at}": {"query": "a"} for at in range(501)}), "send at most 500"),
    ],
)
def test_wrong_batches_are_refused(client, queries, message):
    answer = client.post("/reconcile", data={"queries": queries})
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_wrong_requests_say_what_to_send(client):
    assert "unknown knowledge base 'no'" in client.get("/reconcile/no").json()["error"]
    assert "JSONP is not offered" in client.get("/reconcile?callback=f").json()["error"]
    assert "unknown parameter 'query'" in client.get("/reconcile?query=Paris").json()["error"]
    assert "as a form" in client.post("/reconcile", json={"queries": {}}).json()["error"]
    assert "neither queries" in client.post("/reconcile", content="a=b", headers=FORM).json()["error"]
    assert client.post("/reconcile", content=b"queries=\xff", headers=FORM).status_code == 422
    escaped = b"queries=%7B%22a%22%3A%7B%22query%22%3A%22Par%FFis%22%7D%7D"
    assert client.post("/reconcile", content=escaped, headers=FORM).status_code == 422
    assert ask(client, {}) == {}


def test_entities_are_suggested_by_prefix_id_and_typo(client):
    def found(prefix, **more):
        answer = client.get("/reconcile/cities/suggest/entity", params={"prefix": prefix, **more})
        return answer.json()["result"]

    (first, second) = found("par")
    assert (first["id"], first["name"], first["notable"]) == ("Q90", "Paris", [{"id": "city", "name": "city"}])
    assert found("par", cursor=1) == [second]
    assert found("Q142")[0]["name"] == "France"
    assert names(found("frnace")) == ["France"]
    assert found("") == []
    assert client.get("/reconcile/cities/suggest/entity", params={"cursor": -1}).status_code == 422


def test_types_and_properties_are_suggested(client):
    types = client.get("/reconcile/cities/suggest/type", params={"prefix": "Co"}).json()["result"]
    assert types == [{"id": "country", "name": "country"}]
    properties = client.get("/reconcile/cities/suggest/property", params={"prefix": "coun"}).json()["result"]
    assert properties == [{"id": "country", "name": "country"}]


def test_values_of_properties_are_fetched(client):
    query = {"ids": ["Q90", "none"], "properties": [{"id": "country"}, {"id": "description"}, {"id": "other"}]}
    found = client.post("/reconcile/cities", data={"extend": json.dumps(query)}).json()
    assert [one["id"] for one in found["meta"]] == ["country", "description", "other"]
    assert found["rows"] == {
        "Q90": {
            "country": [{"id": "Q142", "name": "France"}],
            "description": [{"str": "capital of France"}],
            "other": [],
        },
        "none": {"country": [], "description": [], "other": []},
    }
    assert client.post("/reconcile", data={"extend": "{}"}).status_code == 422
    proposed = client.get("/reconcile/cities/properties", params={"type": "city", "limit": 2}).json()
    assert (proposed["type"], proposed["limit"], len(proposed["properties"])) == ("city", 2, 2)


def test_facts_of_an_entity_are_read_once_and_only_while_somebody_waits(tmp_path, monkeypatch):
    asked = []
    neighbours = KnowledgeBase.neighbours
    monkeypatch.setattr(KnowledgeBase, "neighbours", lambda kb, id: asked.append(id) or neighbours(kb, id))
    given = {"ids": ["Q90", "Q142"] * 3, "properties": [{"id": id} for id in ["country", "x", "y", "title"] * 2]}
    extension = reconciliation.Extension(**given)
    with KnowledgeBase.open(write_kbs(tmp_path)[0]) as kb:
        found = reconciliation.extend(kb, extension, lambda: False)
        assert found["rows"]["Q90"]["country"] == [{"id": "Q142", "name": "France"}]
        assert [one["id"] for one in found["meta"]] == ["country", "x", "y", "title"]
        assert asked == ["Q90", "Q142"]
        assert reconciliation.extend(kb, extension, lambda: True)["rows"] == {}


def test_a_suggestion_that_nobody_waits_for_ends(tmp_path, monkeypatch):
    stopped = threading.Event()

    def search(kb, *_, stop, **__):
        while not stop():
            time.sleep(0.01)
        stopped.set()
        return []

    monkeypatch.setattr(KnowledgeBase, "search", search)
    with engine_of(write_kbs(tmp_path), seconds=0.2) as engine, asking(engine) as client:
        assert client.get("/reconcile/cities/suggest/entity?prefix=x").status_code == 503
        assert stopped.wait(5)


def test_a_preview_is_escaped_and_may_be_framed_by_allowed_pages_only(client):
    answer = client.get("/reconcile/odd%20name/preview", params={"id": "Q3"})
    assert answer.headers["content-type"].startswith("text/html")
    assert "Town &lt;3&gt;" in answer.text
    assert "<b>" not in answer.text
    assert answer.headers["content-security-policy"].endswith(f"frame-ancestors 'self' {OPENREFINE}")
    assert client.get("/reconcile/cities/preview", params={"id": "Q7"}).status_code == 404


def test_pages_of_an_allowed_origin_may_ask(client):
    browser = {"origin": OPENREFINE, "sec-fetch-site": "same-site"}
    for answer in (
        client.get("/reconcile", headers=browser),
        client.post("/reconcile", data={"queries": '{"q0": {"query": "Paris"}}'}, headers=browser),
        client.get("/reconcile/no", headers=browser),
    ):
        assert answer.headers["access-control-allow-origin"] == OPENREFINE
        assert answer.headers["vary"] == "Origin"
    preflight = client.options("/reconcile", headers={**browser, "access-control-request-method": "POST"})
    assert preflight.status_code == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    frame = {"sec-fetch-site": "same-site", "sec-fetch-dest": "iframe"}
    assert client.get("/reconcile/cities/preview?id=Q90", headers=frame).status_code == 200


def test_other_pages_may_not_and_other_routes_stay_closed(client):
    evil = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    for answer in (
        client.get("/reconcile", headers=evil),
        client.post("/reconcile", data={"queries": "{}"}, headers=evil),
        client.get("/reconcile?callback=f", headers={"sec-fetch-site": "cross-site", "sec-fetch-dest": "script"}),
        client.get("/entities?search=paris", headers={"origin": OPENREFINE, "sec-fetch-site": "same-site"}),
        client.get("/reconciled", headers={"origin": OPENREFINE, "sec-fetch-site": "same-site"}),
        client.get("/reconcile/cities", headers={"sec-fetch-site": "same-site", "sec-fetch-dest": "iframe"}),
    ):
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    opaque = {"origin": "null", "sec-fetch-site": "cross-site"}
    assert client.get("/reconcile", headers=opaque).status_code == 403


def test_without_allowed_origins_no_page_may_ask(tmp_path):
    with engine_of(write_kbs(tmp_path)) as engine, asking(engine) as client:
        browser = {"origin": OPENREFINE, "sec-fetch-site": "same-site"}
        assert client.get("/reconcile", headers=browser).status_code == 403
        frame = {"sec-fetch-site": "same-site", "sec-fetch-dest": "iframe"}
        assert client.get("/reconcile/cities/preview?id=Q90", headers=frame).status_code == 403
        assert client.get("/reconcile").status_code == 200
        client.put("/entities/Q8", json={"title": "Lutetia", "kind": "ruin"}, headers=BEARER)
        assert ask(client, {"q": {"query": "Lutetia"}})["q"][0]["type"] == [{"id": "ruin", "name": "ruin"}]
        assert create_app(engine).openapi()["paths"].keys() >= {"/map"}


def test_origins_are_checked():
    assert check_origins(["HTTP://LocalHost:3333/"]) == ("http://localhost:3333",)
    for wrong in ("*", "localhost:3333", "http://a/b", "null", "http://a; frame-ancestors *"):
        with pytest.raises(UsageError, match="is not an origin"):
            check_origins([wrong])
