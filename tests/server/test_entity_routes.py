"""The routes of knowledge bases: search, look, change, and who may."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.servers import BEARER, asking, engine_of, write_kbs
from wellread.errors import StorageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase


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


def entities(answer):
    return [[link["entity"] for link in document["links"]] for document in answer.json()["documents"]]


def test_an_entity_is_returned_with_its_neighbours(client):
    info = client.get("/entities/Q142").json()
    assert (info["title"], info["kb"], info["revision"]) == ("France", "cities", 1)
    assert info["neighbours"] == [{"relation": "country", "entity": "Q90", "title": "Paris", "outgoing": False}]
    assert client.get("/entities/Q90").json()["facts"] == [["country", "Q142"]]


@pytest.mark.parametrize("path", ["a/b%20c%3F", "a%2Fb%20c%3F"])
def test_ids_may_have_any_letters(client, path):
    assert client.get(f"/entities/{path}").json()["title"] == "AC/DC"


@pytest.mark.parametrize("id", ["Q90%0A", "%0AQ90", "Q9%0A0", "Q90%0D", "Q90%E2%80%A8"])
def test_a_line_break_in_an_id_makes_it_another(changing, id):
    assert changing.delete(f"/entities/{id}", headers=BEARER).status_code == 404
    assert changing.put(f"/entities/{id}", json={"title": "Lutetia"}, headers=BEARER).json()["what"] == "added"
    assert changing.get(f"/entities/{id}").json()["title"] == "Lutetia"
    assert changing.get("/entities/Q90").json()["title"] == "Paris"
    assert changing.delete(f"/entities/{id}", headers=BEARER).json()["what"] == "removed"


@pytest.mark.parametrize(
    "path",
    ["/entities/../../etc/passwd", "/entities/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/page/..%2fapp.py", "/page/app.py"],
)
def test_a_path_leads_to_no_file(client, path):
    assert client.get(path).status_code == 404


def test_entities_are_searched_for(client):
    found = lambda **requested: [one["id"] for one in client.get("/entities", params=requested).json()["entities"]]  # noqa: E731
    assert found(search="par") == ["Q90", "Q167646"]
    assert found(search="par", limit=1) == ["Q90"]
    assert found(search="prince", how="text") == ["Q167646"]
    assert found(search="frnace", how="fuzzy") == ["Q142"]
    assert found(search="city", kb="words") == ["w2"]


def test_a_new_entity_is_linked_at_once(changing):
    body = {
        "title": "Springfield",
        "description": "a town",
        "aliases": ["Springfield Town"],
        "facts": [["near", "Q90"]],
    }
    put = changing.put("/entities/new one", json=body, headers=BEARER)
    assert (put.status_code, put.json()) == (
        201,
        {"kb": "cities", "id": "new one", "what": "added", "revision": 2},
    )
    answer = changing.post("/link", json={"text": "In Springfield Town", "kb": "cities"})
    assert (entities(answer), answer.json()["revisions"]) == ([["new one"]], {"cities": 2})
    again = changing.put("/entities/new one", json=body | {"title": "Shelbyville", "aliases": {}}, headers=BEARER)
    assert (again.status_code, again.json()["what"]) == (200, "updated")
    assert entities(changing.post("/link", json={"text": "Springfield, Shelbyville", "kb": "cities"})) == [["new one"]]
    gone = changing.delete("/entities/new one", headers=BEARER)
    assert (gone.status_code, gone.json()["revision"]) == (200, 4)
    assert changing.get("/entities/new one").status_code == 404
    assert changing.delete("/entities/new one", headers=BEARER).status_code == 404


@pytest.mark.parametrize("id", ["%ff%fe", "a%80", "%ed%a0%80", "%c3"])
def test_an_id_that_is_not_utf8_is_refused(changing, id):
    body = {"title": "x"}
    for answer in (
        changing.put(f"/entities/{id}", json=body, headers=BEARER),
        changing.get(f"/entities/{id}"),
        changing.delete(f"/entities/{id}", headers=BEARER),
        changing.get(f"/entities?search={id}"),
    ):
        assert (answer.status_code, "UTF-8" in answer.json()["error"]) == (422, True)
    assert changing.put("/entities/%EF%BF%BD", json=body, headers=BEARER).status_code == 201  # that letter itself
    assert changing.get("/entities/%EF%BF%BD").json()["id"] == "\ufffd"


def test_who_adds_a_new_entity_writes_over_none(changing):
    new = BEARER | {"if-none-match": "*"}
    answer = changing.put("/entities/Q90", json={"title": "Lutetia"}, headers=new)
    assert (answer.status_code, "the entity 'Q90' exists already" in answer.json()["error"]) == (412, True)
    assert (info := changing.get("/entities/Q90").json())["title"] == "Paris"
    assert info["revision"] == 1
    assert changing.put("/entities/Q91", json={"title": "Lutetia"}, headers=new).json()["what"] == "added"
    other = changing.put("/entities/Q92", json={"title": "Lutetia"}, headers=BEARER | {"if-none-match": '"1"'})
    assert (other.status_code, "if-none-match" in other.json()["error"]) == (422, True)


def test_a_change_that_breaks_the_knowledge_base_is_refused(changing, tmp_path):
    answer = changing.put("/entities/x", json={"title": "X", "facts": [["near", "nobody"]]}, headers=BEARER)
    assert (answer.status_code, "nobody" in answer.json()["error"]) == (409, True)
    assert str(tmp_path) not in answer.text
    assert changing.get("/health").json()["kbs"][0]["revision"] == 1


@pytest.mark.parametrize(
    ("id", "body", "reason"),
    [
        ("", {"title": "X"}, "the entity '' has no id"),
        ("x", {"title": " "}, "has no name with a letter or sign in it"),
        ("x%00", {"title": "X"}, r"the entity 'x\x00' has a NUL character"),
        ("x", {"title": "X\0"}, "has a NUL character"),
        ("x", {"title": "X", "description": "\0"}, "has a NUL character"),
        ("x", {"title": "X", "kind": "\0"}, "has a NUL character"),
        ("x", {"title": "X", "aliases": ["Y\0Z"]}, "has a NUL character"),
        ("x", {"title": "X", "facts": [["ne\0ar", "Q90"]]}, "has a NUL character"),
    ],
)
def test_an_entity_that_no_knowledge_base_can_hold_is_a_wrong_request(changing, id, body, reason):
    answer = changing.put(f"/entities/{id}", json=body, headers=BEARER)
    assert (answer.status_code, "\n" in answer.json()["error"]) == (422, False)
    assert reason in answer.json()["error"]
    assert changing.get("/health").json()["kbs"][0]["revision"] == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {BEARER['authorization'][7:]}"},
        {"authorization": BEARER["authorization"] + "x"},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
def test_without_the_token_nothing_changes(client, headers):
    for answer in (
        client.put("/entities/Q90", json={"title": "Lutetia"}, headers=headers),
        client.delete("/entities/Q90", headers=headers),
    ):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get("/entities/Q90").json()["title"] == "Paris"


def test_a_server_without_a_token_changes_nothing(kbs):
    with engine_of(kbs, token=None) as engine, asking(engine) as client:
        answer = client.delete("/entities/Q90", headers=BEARER)
        assert (answer.status_code, client.get("/health").json()["editable"]) == (403, False)


def test_a_full_disk_is_reported_without_the_folder(changing, monkeypatch):
    def fail(kb, *given, **more):
        raise StorageError(f"the disk is full (or fails): {kb.path} keeps its last state; free some space")

    for name in ("change", "search", "snapshot"):
        monkeypatch.setattr(KnowledgeBase, name, fail)
    for answer in (
        changing.put("/entities/Q1", json={"title": "Universe"}, headers=BEARER),
        changing.delete("/entities/Q90", headers=BEARER),
        changing.get("/entities", params={"search": "Par"}),
        changing.get("/entities/Q90"),
        changing.post("/link", json={"text": "Paris", "kb": "cities"}),
    ):
        assert answer.status_code == 507
        assert "fails): cities.kb keeps" in answer.json()["error"]


def test_what_cannot_be_written_is_not_said_to_be_editable(tmp_path):
    with engine_of(write_kbs(tmp_path)) as engine, asking(engine) as client:
        cities, words = (served_kb.kb for served_kb in engine.registry.served_kbs.values())
        cities.writable = False
        assert client.get("/health").json()["editable"] is True  # the other is
        words.writable = False
        assert client.get("/health").json()["editable"] is False
        answer = client.delete("/entities/Q90", headers=BEARER)
        assert (answer.status_code, "cities is read-only" in answer.json()["error"]) == (409, True)


def test_a_replaced_knowledge_base_is_found_by_who_reads_it(tmp_path):
    kbs = write_kbs(tmp_path)
    with engine_of(kbs) as engine, asking(engine) as client:
        for route in ("/health", "/entities?search=Berlin"):
            build(lambda tally: iter([Entity("Q64", "Berlin")]), tmp_path / "new.kb", origin=Origin("test"))
            (tmp_path / "new.kb").replace(kbs[0])
            before = engine.registry.served_kbs["cities"].kb
            for _ in range(1000):
                client.get(route)
                if engine.registry.served_kbs["cities"].kb is not before:
                    break
                time.sleep(0.01)
            assert "Q64" in engine.registry.served_kbs["cities"].kb


def test_health_is_served_while_a_replaced_knowledge_base_cannot_be_opened(tmp_path):
    """Threads that never used the old file answer too: a health monitor must not stop the server for it."""
    kbs = write_kbs(tmp_path)
    with engine_of(kbs) as engine, asking(engine) as client:
        client.put("/entities/Q1", json={"title": "Universe"}, headers=BEARER)
        before = client.get("/health").json()["kbs"]
        build(lambda tally: iter([Entity("Q64", "Berlin")]), tmp_path / "new.kb", origin=Origin("test"))
        (tmp_path / "new.kb").replace(kbs[0])
        for aside in (engine._about, engine._looking):
            aside._pool.shutdown()
            aside._pool = ThreadPoolExecutor(1)
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["kbs"]) == (200, before)
        assert 'wellread_kb_revision{kb="cities"} 2.0' in client.get("/metrics").text
        answer = client.get("/entities/Q90")
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert str(tmp_path) not in answer.text
