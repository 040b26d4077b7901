"""NIF in Turtle: what is written is read again, with the IRIs that GERBIL knows."""

import pytest

from wellread import Document, Link
from wellread.data.nif import nif_drafts, to_nif
from wellread.errors import InputError

NAMESPACE = "@prefix nif: <http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#> ."
TEXT = 'Zoë met "AC/DC" 🎸 in Köln.\nThen Joe left \\ him.'


def link(name, entity, kb="places"):
    start = TEXT.index(name)
    return Link(start, start + len(name), name, entity, score=0.25, kb=kb)


def read(turtle):
    return [draft() for draft in nif_drafts(turtle, "x", "x")]


def test_documents_survive_writing_and_reading():
    links = (link("AC/DC", "http://dbpedia.org/resource/AC%2FDC"), link("Köln", "Q365"), link("Joe", None))
    (document,) = read(to_nif([Document(TEXT, links, "http://example.org/a#char=0,48")]))
    assert (document.text, document.id) == (TEXT, "http://example.org/a#char=0,48")
    assert [(one.start, one.end, one.text, one.entity) for one in document.links] == [
        (9, 14, "AC/DC", "http://dbpedia.org/resource/AC%2FDC"),
        (21, 25, "Köln", "http://www.wikidata.org/entity/Q365"),
        (32, 35, "Joe", None),
    ]


@pytest.mark.parametrize(
    ("entity", "prefix", "iri"),
    [
        ("wp:AC/DC (band)", None, "http://en.wikipedia.org/wiki/AC/DC_(band)"),
        ("wp:Köln", None, "http://en.wikipedia.org/wiki/K%C3%B6ln"),
        ("Q7", None, "http://www.wikidata.org/entity/Q7"),
        ("P7 x>y", None, "urn:wellread:my%20places:P7%20x%3Ey"),
        ("P 7", "http://example.org/", "http://example.org/P_7"),
        ("https://example.org/a?b#c", None, "https://example.org/a?b#c"),
        ('http://a b/"', None, "urn:wellread:my%20places:http%3A%2F%2Fa%20b%2F%22"),
    ],
)
def test_ids_become_iris(entity, prefix, iri):
    turtle = to_nif([Document(TEXT, (link("Joe", entity, "my places"),))], prefix=prefix)
    (document,) = read(turtle)
    assert document.links[0].entity == iri


def test_nil_is_what_gerbil_takes_for_it():
    assert "<http://aksw.org/notInWiki/Joe>" in to_nif([Document(TEXT, (link("Joe", None),))])


def test_texts_without_an_iri_or_with_the_same_beginning_stay_apart():
    one, other = Document("Joe", (Link(0, 3, "Joe", "Q1"),)), Document("Joe.", (Link(0, 3, "Joe", "Q2"),), "not an IRI")
    found = read(to_nif([one, other]))
    assert {(document.text, document.links[0].entity) for document in found} == {
        ("Joe", "http://www.wikidata.org/entity/Q1"),
        ("Joe.", "http://www.wikidata.org/entity/Q2"),
    }
    parts = [Document("ab", (Link(0, 2, "ab", "Q1"),), f"http://example.org/a#char={n},2") for n in (0, 9)]
    assert [len(document.links) for document in read(to_nif(parts))] == [1, 1]


@pytest.mark.parametrize(
    ("turtle", "message"),
    [
        ("<a", "x is not Turtle"),
        (f"{NAMESPACE} <#a> a nif:Phrase ; nif:referenceContext <#b> .", "which has no nif:isString"),
        (
            f'{NAMESPACE} <#b> nif:isString "Joe" . <#a> a nif:Phrase ; nif:referenceContext <#b> ; '
            'nif:beginIndex "1" ; nif:endIndex "9" .',
            "the span 1:9 is not inside the text of 3 characters",
        ),
    ],
)
def test_broken_turtle_is_an_input_error(turtle, message):
    with pytest.raises(InputError, match=message):
        read(turtle)
