"""Several knowledge bases over one text: links side by side, each with its KB; on the command line and as a page."""

import itertools

import pytest
from lxml import html

from tests.models.knowbert.test_linker import SENSES, layer, write_model
from tests.sense_data import Hashing
from tests.toy_models import write_kb
from wellread import Document, Link, Linker
from wellread.errors import KnowledgeBaseError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.multi import Linkers, join

PLACES = [Entity("danube", "Danube", "a river", "river", 1, {"Danube": 2, "river": 1})]
TEXT = "the old bank of the Danube, a river"


@pytest.fixture(scope="module")
def home(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("several")
    with write_kb(folder / "senses.kb", SENSES) as kb:
        EntityVectors.build(kb, Hashing())
    write_kb(folder / "places.kb", PLACES).close()
    write_model(folder / "model", encoder, layer())
    return folder


def load(home, **options):
    models = {"places": "prior", "senses": str(home / "model")}
    return Linkers.load([home / "places.kb", home / "senses.kb"], models=models, precision="fp32", **options)


def test_links_of_all_stand_side_by_side(home):
    with load(home) as linkers:
        document = linkers.link(TEXT)
        alone = [linker.link(TEXT).links for linker in linkers.linkers]
        assert linkers.names == ["places", "senses"]
        assert linkers.describe("places", "danube") == "a river"
        assert linkers.describe("senses", "danube") == ""
    assert [(link.text, link.kb) for link in document.links] == [
        ("old", "senses"),
        ("bank", "senses"),
        ("Danube", "places"),
        ("river", "places"),
        ("river", "senses"),
    ]
    assert set(document.links) == {link for some in alone for link in some}
    assert document.meta == {"kb": ["places", "senses"], "model": ["prior", "knowbert"]}


def test_texts_may_be_endless(home):
    with load(home) as linkers:
        found = linkers.link_many(f"the bank {number}" for number in itertools.count())
        assert [one.text for one in itertools.islice(found, 3)] == ["the bank 0", "the bank 1", "the bank 2"]


def test_one_linker_alone_says_what_it_says(home):
    with Linkers.load([home / "places.kb"], "prior") as linkers, Linker.load(home / "places.kb", "prior") as alone:
        assert linkers.link(TEXT) == alone.link(TEXT)


def layer_of(*links, kb):
    text = "Ada met Bob in Zzyzx"
    made = tuple(Link(start, end, text[start:end], entity, score=score, kb=kb) for start, end, entity, score in links)
    return Document(text, made, meta={"kb": kb, "model": "prior"})


def test_a_nil_is_kept_once_and_only_where_no_kb_has_an_overlapping_link():
    first = layer_of((0, 3, None, 0.9), (8, 20, None, 0.6), kb="a")
    second = layer_of((0, 3, "ada", 0.4), (8, 11, None, 0.7), (15, 20, None, 0.8), kb="b")
    document = join([first, second])
    shown = [(link.text, link.entity, link.kb) for link in document.links]
    assert shown == [("Ada", "ada", "b"), ("Bob", None, None), ("Zzyzx", None, None)]
    assert join([second, first]).links == document.links
    overlapped = layer_of((2, 5, "x", 0.1), (0, 14, "y", 0.1), kb="b")
    assert [link.entity for link in join([first, overlapped]).links] == ["y", "x"]
    assert [link.entity for link in join([first, first]).links] == [None, None]


def test_given_spans_are_linked_to_every_kb_or_are_one_nil(tmp_path):
    write_kb(tmp_path / "a.kb", [Entity("bank1", "Bank"), Entity("ada", "Ada Bank")]).close()
    write_kb(tmp_path / "b.kb", [Entity("bank2", "Bank")]).close()
    text, spans = "Ada Bank, Zzyzx", [(0, 8), (4, 8), (10, 15)]
    with Linkers.load([tmp_path / "a.kb", tmp_path / "b.kb"], "prior") as linkers:
        (document,) = linkers.link_given([text], [spans])
        assert list(linkers.link_given(iter([text] * 3), iter([spans] * 3))) == [document] * 3
        with pytest.raises(UsageError, match="several texts"):
            next(linkers.link_given(text, [spans]))
    assert [(link.text, link.entity, link.kb) for link in document.links] == [
        ("Ada Bank", "ada", "a"),
        ("Bank", "bank1", "a"),
        ("Bank", "bank2", "b"),
        ("Zzyzx", None, None),
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda home: Linkers.load([home / "places.kb"], models={"nobody": "prior"}), "a model for nobody"),
        (lambda home: Linkers.load([home / "places.kb"] * 2, "prior"), "given twice"),
        (lambda home: Linkers([]), "one linker or more"),
        (lambda home: next(Linkers.load([home / "places.kb"], "prior").link_many("text")), "use link for one"),
    ],
)
def test_what_cannot_be_linked_says_why(home, call, message):
    with pytest.raises(UsageError, match=message):
        call(home)


def test_if_one_cannot_be_loaded_the_others_are_closed(home, monkeypatch):
    closed = []
    monkeypatch.setattr(KnowledgeBase, "close", lambda self: closed.append(self.path.stem))
    with pytest.raises(KnowledgeBaseError):
        Linkers.load([home / "places.kb", home / "none.kb"], "prior")
    assert closed == ["places"]
    with pytest.raises(UsageError, match="there is no model 'nowhere'"):
        Linkers.load([home / "places.kb", home / "senses.kb"], "prior", models={"senses": "nowhere"})
    assert set(closed[1:]) == {"places", "senses"}


def test_a_list_of_kbs_loads_several_linkers(home):
    with Linker.load([home / "places.kb", home / "senses.kb"], models={"places": "prior"}, model="prior") as linkers:
        assert isinstance(linkers, Linkers)
        assert linkers.names == ["places", "senses"]
        assert {link.kb for link in linkers.link(TEXT).links} == {"places", "senses"}
    with pytest.raises(UsageError, match="named after their files"):
        Linker.load([home / "places.kb"], "prior", name="x")
    with pytest.raises(UsageError, match="models is for a list"):
        Linker.load(home / "places.kb", "prior", models={"places": "prior"})
    with KnowledgeBase.open(home / "places.kb") as kb, pytest.raises(UsageError, match="by name or path; got Knowl"):
        Linker.load([kb], "prior")
    with pytest.raises(UsageError, match="expected a list of knowledge bases"):
        Linkers.load(str(home / "places.kb"))


def test_an_option_is_for_the_models_that_use_it(home):
    models = {"places": "prior", "senses": str(home / "model")}
    with Linkers.load([home / "places.kb", home / "senses.kb"], models=models, precision="fp32", tags="none") as found:
        assert [linker.backend.kind for linker in found.linkers] == ["prior", "knowbert"]
    with pytest.raises(UsageError, match=r"trust has no effect on model prior or knowbert; .* uses it: elq, luke"):
        Linkers.load([home / "places.kb", home / "senses.kb"], models=models, trust=6)


def run(wellread, home, *arguments):
    kbs = ("--kb", home / "places.kb", "--kb", home / "senses.kb", "--precision", "fp32")
    return wellread("link", *kbs, "--model", "prior", "--model", f"senses={home / 'model'}", *arguments, TEXT)


def test_each_kb_has_its_model_on_the_command_line(wellread, home):
    result = run(wellread, home, "--format", "json")
    assert (result.code, result.err) == (0, "")
    document = Document.from_json(result.out)
    assert document.meta["model"] == ["prior", "knowbert"]
    assert [link.text for link in document.links if link.kb == "senses"] == ["old", "bank", "river"]


def test_a_table_says_which_kb_a_link_is_of(wellread, home):
    result = run(wellread, home)
    assert "senses" in result.out
    assert "places" in result.out
    assert "danube" in result.out


def test_a_page_has_two_layers_that_can_be_hidden(wellread, home, tmp_path):
    result = run(wellread, home, "--format", "html", "--to", tmp_path / "page.html")
    assert result.code == 0
    page = html.fromstring((tmp_path / "page.html").read_text("utf-8"))
    legend = [
        (item.get("class"), item.text_content(), item.xpath(".//input/@id"))
        for item in page.xpath("//ul[@class='legend']/li")
    ]
    assert legend == [("k0", "senses 3", ["show0"]), ("k1", "places 2", ["show1"])]
    shared = page.xpath("//span[contains(@class, 'lane')]//mark")
    assert [mark.text for mark in shared] == ["river"]
    assert "#show1:not(:checked)" in page.xpath("string(//style)")


def test_two_models_for_all_are_refused(wellread, home):
    result = wellread("link", "--kb", home / "places.kb", "--model", "prior", "--model", "elq", "x")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "several models without a KB: prior, elq; give one for all, or name the KB: --model places=" in result.err
