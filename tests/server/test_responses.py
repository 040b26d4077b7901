"""Error responses to wrong requests: where the error is, why, and what would be right."""

import pytest

from tests.servers import BEARER, asking, engine_of, write_kbs


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with engine_of(write_kbs(tmp_path_factory.mktemp("kbs"))) as engine, asking(engine) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/link", '{"text": "a", "kb": {}}',
         "kb: Input should be a valid string; kb: Input should be a valid array"),
        ("POST", "/link", "{}", "give either text or texts"),
        ("POST", "/link", '{"text": "a", "kinds": []}',
         "kinds: List should have at least 1 item after validation, not 0"),
        ("POST", "/embed", '{"text": "a"', "Invalid JSON: Expecting ',' delimiter at character 12"),
        ("PUT", "/entities/x", '{"title": "X", "aliases": {"Y": -1}}',
         "aliases.Y: Input should be greater than or equal to 0"),
        ("PUT", "/entities/x", '{"title": "X", "aliases": ["Y", 7]}', "aliases.1: Input should be a valid string"),
    ],
)  # fmt: skip
def test_errors_use_the_names_of_the_request(client, method, path, body, message):
    answer = client.request(method, path, content=body, headers={"content-type": "application/json", **BEARER})
    assert (answer.status_code, answer.json()["error"]) == (422, message)


def test_a_wrong_name_is_shortened_in_the_error(client):
    answer = client.post("/link", json={"text": "a", "x" * 100_000: 1})
    assert (answer.status_code, len(answer.text) < 200) == (422, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed", "message"),
    [
        ("GET", "/nowhere", 404, None, "unknown address"),
        ("PATCH", "/entities/Q90", 405, "DELETE, GET, HEAD, PUT", "use DELETE, GET, HEAD, PUT"),
        ("GET", "/link", 405, "POST", "method not allowed; use POST"),
        ("OPTIONS", "/health", 405, "GET, HEAD", "use GET, HEAD"),
    ],
)
def test_a_wrong_address_gets_the_right_ones(client, method, path, status, allowed, message):
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    assert message in answer.json()["error"]
