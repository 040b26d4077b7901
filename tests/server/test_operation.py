"""Routes for those who run and evaluate a server: /ready, /docs and /nif."""

import re
import threading
import time

import pytest

from tests.browser import fresh_page
from tests.servers import asking, engine_of, listening, write_kbs
from wellread.data.nif import nif_drafts
from wellread.errors import InputError
from wellread.server import docs_routes, nif_route

NIF = "@prefix nif: <http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#> .\n"
DOCUMENT = '<http://ex.org/a#char=0,26> a nif:Context ; nif:isString "Paris, a city in France 🗼" .\n'
PHRASE = """
<http://ex.org/a#char={0},{1}> a nif:Phrase ; nif:referenceContext <http://ex.org/a#char=0,26> ;
    nif:beginIndex "{0}" ; nif:endIndex "{1}" .
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with engine_of(write_kbs(tmp_path_factory.mktemp("kbs")), readers=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine):
    with asking(engine) as client:
        yield client


def send(client, turtle, **options):
    return client.post("/nif", content=turtle, headers={"content-type": "application/x-turtle"}, params=options)


def links_of(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/turtle; charset=utf-8"
    documents = [draft() for draft in nif_drafts(answer.text, "x", "x")]
    return {document.id: [(link.start, link.end, link.entity) for link in document.links] for document in documents}


def test_a_nif_document_is_linked(client):
    wikidata = "http://www.wikidata.org/entity/"
    assert links_of(send(client, NIF + DOCUMENT)) == {
        "http://ex.org/a#char=0,26": [(0, 5, f"{wikidata}Q90"), (17, 23, f"{wikidata}Q142")]
    }
    (found,) = links_of(send(client, NIF + DOCUMENT, kb="words", prefix="http://ex.org/")).values()
    assert found == [(9, 13, "http://ex.org/w2")]


def test_given_phrases_alone_are_linked(client):
    given = NIF + DOCUMENT + PHRASE.format(17, 23) + PHRASE.format(9, 13)
    (found,) = links_of(send(client, given)).values()
    assert found == [(9, 13, None), (17, 23, "http://www.wikidata.org/entity/Q142")]


def test_many_documents_with_phrases_keep_their_own(client):
    texts = "".join(
        f'<http://ex.org/{n}> nif:isString "{n} in Paris" . <http://ex.org/{n}#p> a nif:Phrase ; '
        f'nif:referenceContext <http://ex.org/{n}> ; nif:beginIndex "{len(str(n)) + 4}" ; '
        f'nif:endIndex "{len(str(n)) + 9}" .\n'
        for n in range(40)
    )
    found = links_of(send(client, NIF + texts))
    assert len(found) == 40
    assert {entity for links in found.values() for *_, entity in links} == {"http://www.wikidata.org/entity/Q90"}


@pytest.mark.parametrize(
    ("turtle", "options", "message"),
    [
        ("<a", {}, "the request is not Turtle"),
        (NIF, {}, "the request has no text; send a nif:Context"),
        (b"\xff", {}, "not UTF-8"),
        (NIF + DOCUMENT, {"kb": "none"}, "unknown knowledge base 'none'"),
        (NIF + DOCUMENT, {"prefix": "javascript:1"}, "prefix"),
        (NIF + DOCUMENT + PHRASE.format(9, 99), {}, "the span 9:99 is not inside the text"),
    ],
)
def test_what_cannot_be_linked_is_refused(client, turtle, options, message):
    answer = send(client, turtle, **options)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_a_document_of_too_many_triples_is_refused(client, monkeypatch):
    monkeypatch.setattr(nif_route, "_TRIPLES", 2)
    assert send(client, NIF + DOCUMENT).status_code == 200
    refused = send(client, NIF + DOCUMENT + PHRASE.format(17, 23))
    assert (refused.status_code, refused.json()["error"]) == (
        422,
        "the request has more than 2 triples; send less at once",
    )


def test_a_document_that_nobody_waits_for_is_not_read_on(tmp_path, monkeypatch):
    stopped = threading.Event()

    def read(body, stop):
        while not stop():
            time.sleep(0.01)
        stopped.set()
        raise InputError("stopped")

    monkeypatch.setattr(nif_route, "_read", read)
    with engine_of(write_kbs(tmp_path), readers=1, seconds=0.2) as engine, asking(engine) as client:
        assert send(client, NIF + DOCUMENT).status_code == 503
        assert stopped.wait(5)


def test_ready_says_whether_to_send_requests(engine, client, monkeypatch):
    assert client.get("/ready").json() == {"ready": True, "problems": []}
    monkeypatch.setattr(engine, "queue", 0)
    full = client.get("/ready")
    assert (full.status_code, full.json()["problems"], full.headers["retry-after"]) == (503, ["the queue is full"], "5")
    assert client.get("/health").status_code == 200
    engine.stopping.set()
    assert client.get("/ready").json()["problems"] == ["the server is stopping"]
    assert client.get("/health").json()["ready"]
    engine.stopping.clear()


def test_the_api_documentation_is_served_from_here(client, monkeypatch):
    page = client.get("/docs", headers={"sec-fetch-site": "cross-site"})
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert {"docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/docs.js"} <= set(addresses)
    assert all(client.get(f"/{address}").status_code == 200 for address in addresses if not address.startswith("data:"))
    assert client.get("/docs/redoc.standalone.js").status_code == 404
    monkeypatch.setattr(docs_routes, "find_spec", lambda name: None)
    docs_routes._swagger_folder.cache_clear()
    missing = client.get("/docs")
    docs_routes._swagger_folder.cache_clear()
    assert (missing.status_code, "/openapi.json works without" in missing.json()["error"]) == (501, True)


@pytest.mark.slow
def test_a_request_is_tried_out_in_the_documentation(browser, tmp_path):
    with (
        engine_of(write_kbs(tmp_path), readers=1) as engine,
        listening(engine) as address,
        fresh_page(browser, address) as page,  # which fails on what the security policy blocks
    ):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address}/docs")
        page.wait_for_selector("html[data-ready]")
        page.click("#operations-reading-link_link_post")
        page.click("button.try-out__btn")
        page.fill("textarea.body-param__text", '{"text": "Paris in France"}')
        page.click("button.execute")
        page.wait_for_selector(".live-responses-table .response-col_status:has-text('200')")
        assert "Q90" in page.inner_text(".live-responses-table")
        assert all(url.startswith(address) for url in asked)
