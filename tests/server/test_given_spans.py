"""Given spans and NIL over HTTP: the answers are those of `link_given` and `link_many` on the same linkers."""

from dataclasses import replace

import pytest

from tests.servers import asking, engine_of, write_kbs
from wellread import Document, Linker
from wellread.linking.multi import Linkers
from wellread.server import schemas
from wellread.server.registry import LinkerRegistry
from wellread.server.served_kb import LinkJob

TEXT = "Paris is the capital of Nowhere."
SPANS = [[0, 5], [13, 20], [24, 31]]
WHO = "who is the mayor of cork"


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


@pytest.fixture(scope="module")
def client(kbs):
    with engine_of(kbs) as engine, asking(engine) as client:
        yield client


@pytest.fixture(scope="module")
def reading(toy):
    """A client of a model that reads."""
    with engine_of([toy / "toy.kb"], [f"model={toy / 'model'}", "prior"]) as engine, asking(engine) as client:
        yield client


def documents(answer):
    assert answer.status_code == 200, answer.text
    return [Document.from_dict(one) for one in answer.json()["documents"]]


def test_given_spans_are_linked_as_offline_with_one_nil_for_all_kbs(client, kbs):
    with Linkers.load(kbs, "prior") as linkers:
        offline = list(linkers.link_given([TEXT, "France"], [SPANS, []]))
    assert documents(client.post("/link", json={"texts": [TEXT, "France"], "spans": [SPANS, []]})) == offline
    assert documents(client.post("/link", json={"text": TEXT, "spans": SPANS})) == offline[:1]
    shown = [(link.text, link.entity, link.kb, link.found_by) for link in offline[0].links]
    assert shown == [
        ("Paris", "Q90", "cities", "exact"),
        ("capital", "w1", "words", "exact"),
        ("Nowhere", None, None, "given"),
    ]


def test_nil_is_ruled_out_on_demand(reading, toy):
    spans = [[0, 3], [20, 24]]
    with Linker.load(toy / "toy.kb", toy / "model") as linker:
        (with_nil,), (never,) = (list(linker.link_given([WHO], [spans], nil=nil)) for nil in ("model", "never"))
    links_of = lambda document: [(link.entity, round(link.score, 4)) for link in document.links]  # noqa: E731
    assert links_of(documents(reading.post("/link", json={"text": WHO, "spans": spans}))[0]) == links_of(with_nil)
    requested = {"text": WHO, "spans": spans, "never_nil": True, "threshold": 1.0, "top_k": 0}
    (answer,) = documents(reading.post("/link", json=requested))
    assert links_of(answer) == links_of(never)
    assert None not in [link.entity for link in answer.links]
    assert [link.candidates for link in answer.links] == [(), ()]
    (strict,) = documents(reading.post("/link", json={"text": WHO, "spans": spans, "threshold": 1.0}))
    assert strict.links[0].entity is None


def test_clients_with_and_without_spans_are_read_together(toy):
    registry = LinkerRegistry.load([toy / "toy.kb"], {"toy": [f"model={toy / 'model'}"]})
    source = registry.key("toy")
    requested = [
        LinkJob((WHO,)),
        LinkJob((WHO, "cork"), spans=([[20, 24]], [])),
        LinkJob(("in cork",)),
        LinkJob((WHO,), spans=([],)),
    ]
    together = [list(answer.documents) for answer in registry.link(source, requested)]
    alone = [list(registry.link(source, [one])[0].documents) for one in requested]
    registry.close()
    shape = lambda made: [[(link.start, link.entity) for link in one.links] for one in made]  # noqa: E731
    assert list(map(shape, together)) == list(map(shape, alone))
    assert [link.start for link in together[1][0].links] == [20]
    assert [len(one) for one in together] == [1, 2, 1, 1]


def test_nil_links_are_given_only_where_asked_for(toy):
    registry = LinkerRegistry.load([toy / "toy.kb"], {"toy": [f"model={toy / 'model'}"]})
    model = registry.served_kbs["toy"].linkers["model"].backend.model
    model.heads = replace(model.heads, nil=50.0)
    answers = registry.link(registry.key("toy"), [LinkJob((WHO,)), LinkJob((WHO,), nil=True)])
    quiet, loud = (next(iter(answer.documents)).links for answer in answers)
    registry.close()
    assert quiet == ()
    assert {link.entity for link in loud} == {None}


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"text": "ab", "spans": [[0, 3]]}, "the span 0:3 is not in its text of 2 characters"),
        ({"text": "ab", "spans": [[1, 1]]}, "the span 1:1 is not in its text"),
        ({"text": "ab", "spans": [[[0, 1]]]}, "there is one text; give [[start, end], …]"),
        ({"texts": ["ab"], "spans": [[0, 1]]}, "there are several texts; give a list of pairs for each"),
        ({"texts": ["ab", "c"], "spans": [[]]}, "spans has 1 lists for 2 texts"),
        ({"text": "ab", "spans": [["a", 1]]}, "spans.0.0"),
        ({"text": "ab", "never_nil": True}, "never_nil needs spans"),
        ({"text": "ab", "spans": [[0, 1]] * (schemas.MOST_SPANS + 1)}, "send at most 5,000 at once"),
    ],
)
def test_spans_that_do_not_fit_are_refused_with_the_fix(client, requested, message):
    answer = client.post("/link", json=requested)
    assert answer.status_code == 422
    assert message in answer.json()["error"]
