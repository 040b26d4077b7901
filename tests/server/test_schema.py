"""The OpenAPI schema holds: generated requests, right and wrong, get the documented answers, and never a 500."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings

from tests.servers import BEARER, engine_of, listening

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from schemathesis.generation import GenerationMode  # noqa: E402

pytestmark = pytest.mark.slow
ROUTES = {  # and how many requests are made up for each
    "DELETE /entities/{id}": 15,
    "DELETE /corrections/{id}": 8,
    "GET /corrections": 5,
    "GET /entities": 20,
    "GET /entities/{id}": 20,
    "GET /health": 2,
    "GET /metrics": 2,
    "GET /ready": 2,
    "GET /sample": 5,
    "POST /corrections": 15,
    "POST /embed": 15,
    "POST /explain": 4,
    "POST /link": 30,
    "POST /link/stream": 20,
    "POST /map": 15,
    "POST /nif": 15,
    "PUT /entities/{id}": 20,
}


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """A text is sent as it is; anything else as the text of it."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def served(encoder, toy, tmp_path_factory):
    """A model that reads, and names alone."""
    folder = shutil.copytree(toy, tmp_path_factory.mktemp("kbs") / "toy")  # it will be changed
    models = [f"model={folder / 'model'}", "prior"]
    with engine_of([folder / "toy.kb"], models, encoder=encoder, body=50_000) as engine, listening(engine) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json"), address


def operations(schema):
    return {result.ok().label: result.ok() for result in schema.get_all_operations()}


def test_every_route_is_tried(served):
    assert sorted(operations(served[0])) == sorted(ROUTES)


def try_out(served, route, mode):
    """Ask for a route with generated requests; the statuses of the answers, which are as the schema says."""
    schema, address = served
    available = schemathesis.checks
    checks = [
        available.not_a_server_error,
        available.status_code_conformance,
        available.content_type_conformance,
        available.response_headers_conformance,
        available.response_schema_conformance,
    ]
    operation, answered = operations(schema)[route], []

    @settings(max_examples=ROUTES[route], suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        response = case.call(base_url=address, headers=BEARER, timeout=60)
        case.validate_response(response, checks=checks)
        answered.append(response.status_code)

    ask()
    return answered


@pytest.mark.parametrize("route", ROUTES)
def test_right_requests_get_what_the_schema_promises(served, route):
    assert try_out(served, route, GenerationMode.POSITIVE)


@pytest.mark.parametrize(
    "route", sorted(set(ROUTES) - {"GET /health", "GET /metrics", "GET /ready"})
)  # these ask for nothing
def test_wrong_requests_are_refused_as_the_schema_promises(served, route):
    answered = try_out(served, route, GenerationMode.NEGATIVE)
    assert max(answered) < 500
    assert {400, 404, 422} & set(answered)
