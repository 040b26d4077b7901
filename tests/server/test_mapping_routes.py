"""POST /map: strings are mapped to a served KB."""

import time

import pytest

from tests.servers import BEARER, asking, engine_of, write_kbs
from wellread.linking.linker import Linker
from wellread.server import engine as engine_module


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with engine_of(write_kbs(tmp_path_factory.mktemp("kbs"))) as engine, asking(engine) as client:
        yield client


def test_strings_are_mapped_in_order(client):
    answer = client.post("/map", json={"strings": ["FRANCE", "Pariss", "", "xyz"], "best": 2})
    assert answer.status_code == 200
    found = answer.json()
    assert found["kb"] == "cities"
    assert [(one["text"], one["entity"], one["found_by"]) for one in found["strings"]] == [
        ("FRANCE", "Q142", "case"),
        ("Pariss", "Q90", "typo"),
        ("", None, None),
        ("xyz", None, None),
    ]
    assert [one["entity"] for one in found["strings"][1]["candidates"]] == ["Q90", "Q167646"]


def test_another_kb_can_be_chosen(client):
    found = client.post("/map", json={"strings": ["capitl"], "kb": "words"}).json()
    assert found["strings"][0]["entity"] == "w1"


def test_a_changed_kb_is_used_at_once(client):
    assert client.put("/entities/Q9", json={"title": "Zorblax"}, headers=BEARER).status_code == 201
    assert client.post("/map", json={"strings": ["zorblax"]}).json()["strings"][0]["entity"] == "Q9"
    assert client.delete("/entities/Q9", headers=BEARER).status_code == 200
    assert client.post("/map", json={"strings": ["zorblax"]}).json()["strings"][0]["entity"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "strings"),
        ({"strings": []}, "strings"),
        ({"strings": ["a"] * 1001}, "strings"),
        ({"strings": ["a" * 501]}, "strings"),
        ({"strings": ["a"], "best": 0}, "best"),
        ({"strings": ["a"], "threshold": 1.5}, "threshold"),
        ({"strings": ["a"], "context": ["b", "c"]}, "context has 2 texts for 1 strings"),
        ({"strings": ["a"], "context": ["b"]}, "needs an entity encoder"),
        ({"strings": ["a"], "kb": "other"}, "unknown knowledge base 'other'"),
        ({"strings": ["a"], "texts": ["b"]}, "texts is not a field"),
    ],
)
def test_wrong_requests_are_refused(client, body, message):
    answer = client.post("/map", json=body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_mapping_that_nobody_waits_for_ends(tmp_path, monkeypatch):
    asked = []

    def slow(self, strings, *_, **__):
        asked.extend(strings)
        time.sleep(0.1)
        return iter(())

    monkeypatch.setattr(Linker, "map", slow)
    monkeypatch.setattr(engine_module, "_MAPPED_AT_ONCE", 1)
    with engine_of(write_kbs(tmp_path), seconds=0.3) as engine, asking(engine) as client:
        assert client.post("/map", json={"strings": ["Paris"] * 50}).status_code == 503
    assert 1 <= len(asked) < 25  # closing the engine waited for the call
