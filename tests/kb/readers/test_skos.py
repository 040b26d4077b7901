"""Concepts of SKOS and classes of RDF, in three syntaxes; no entity of XML is expanded, and nothing is fetched."""

import lzma
import socket

import pytest

from wellread import KnowledgeBase
from wellread.errors import InputError
from wellread.kb.readers.skos import read_skos
from wellread.kb.records import XREF, Entity, OtherId, Tally

EX = "http://example.org/"
TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix xl: <http://www.w3.org/2008/05/skos-xl#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix ex: <http://example.org/> .

ex:scheme a skos:ConceptScheme ; skos:prefLabel "Drinks"@en .
ex:drink a skos:Concept ; skos:prefLabel "drink"@en ; skos:narrower ex:tea .
ex:tea a skos:Concept ; skos:inScheme ex:scheme ;
  skos:prefLabel "tea"@en, "Tee"@de, "thé"@fr ;
  skos:altLabel "brew"@en-GB, "chai", "Aufguss"@de ;
  skos:hiddenLabel "teh"@en ;
  skos:definition "a drink from\\n leaves"@en, "Getränk"@de ;
  skos:notation "T1" ; skos:exactMatch <http://other.org/tea> .
ex:green a skos:Concept ; skos:prefLabel "green tea"@en ; skos:broader ex:tea ; skos:related ex:water ;
  skos:scopeNote "unfermented"@en .
ex:water a skos:Concept ; xl:prefLabel [ xl:literalForm "water"@en ] ; xl:altLabel [ xl:literalForm "H2O"@en ] .
ex:kola a skos:Concept ; skos:prefLabel "Cola"@de .
ex:old a skos:Concept ; skos:prefLabel "swill"@en ; owl:deprecated true .
ex:Cup a owl:Class ; rdfs:label "cup"@en ; rdfs:comment "a vessel" ; rdfs:subClassOf ex:drink, [ a owl:Restriction ] .
"""


def entities_of(path, **how):
    tally = Tally()
    records = list(read_skos(path, tally, **how))
    return {record.id.removeprefix(EX): record for record in records if isinstance(record, Entity)}, records, tally


@pytest.fixture
def path(tmp_path):
    (tmp_path / "drinks.ttl").write_text(TURTLE, "utf-8")
    return tmp_path / "drinks.ttl"


def test_a_concept_is_an_entity(path):
    found, records, tally = entities_of(path)
    assert set(found) == {"drink", "tea", "green", "water", "Cup"}
    assert found["tea"] == Entity(
        f"{EX}tea",
        "tea",
        "a drink from leaves",
        "Drinks",
        aliases={"tea": 2, "brew": 1, "chai": 1, "teh": 0.5},
        facts=(),
    )
    assert found["green"].description == "unfermented"
    assert found["green"].facts == (("broader", f"{EX}tea"), ("related", f"{EX}water"))
    assert found["drink"].facts == (("narrower", f"{EX}tea"),)
    assert found["water"].aliases == {"water": 2, "H2O": 1}
    assert (found["Cup"].title, found["Cup"].description) == ("cup", "a vessel")
    assert found["Cup"].facts == (("subClassOf", f"{EX}drink"),)
    assert [record for record in records if isinstance(record, OtherId)] == [
        OtherId("T1", f"{EX}tea", "notation"),
        OtherId("http://other.org/tea", f"{EX}tea", XREF),
    ]
    assert tally.skipped == {"no label in en": 1, "deprecated concept": 1}


def test_a_language_chooses_the_labels(path):
    found, _, tally = entities_of(path, language="de")
    assert set(found) == {"tea", "kola"}
    assert (found["tea"].title, found["tea"].description) == ("Tee", "Getränk")
    assert found["tea"].aliases == {"Tee": 2, "Aufguss": 1, "chai": 1}
    assert tally.skipped["no label in de"] == 4
    every = entities_of(path, language="all")[0]["tea"]
    assert {"tea", "Tee", "thé", "brew", "Aufguss"} <= set(every.aliases)


def test_below_keeps_what_is_narrower_or_a_subclass(path):
    assert set(entities_of(path, below=[f"{EX}drink"])[0]) == {"tea", "green", "Cup"}
    with pytest.raises(InputError, match="to be below of"):
        entities_of(path, below=[f"{EX}nothing"])


@pytest.mark.parametrize(("format", "suffix"), [("xml", ".rdf"), ("nt", ".nt"), ("turtle", ".xyz")])
def test_all_syntaxes_are_the_same(tmp_path, path, format, suffix):
    from rdflib import Graph

    other = tmp_path / f"other{suffix}.xz"
    other.write_bytes(lzma.compress(Graph().parse(path).serialize(format=format, encoding="utf-8")))
    assert entities_of(other)[0] == entities_of(path)[0]


RDF = """<!DOCTYPE rdf:RDF [ {} ]>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="http://www.w3.org/2004/02/skos/core#">
<skos:Concept rdf:about="http://example.org/a"><skos:prefLabel xml:lang="en">{}</skos:prefLabel></skos:Concept>
</rdf:RDF>"""


@pytest.mark.parametrize(
    "declared",
    [
        '<!ENTITY a "aaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;">',
        '<!ENTITY b SYSTEM "file:///etc/passwd">',
        '<!ENTITY b SYSTEM "http://example.org/b">',
        '<!ENTITY % b SYSTEM "http://example.org/b"> %b;',
        f'<!ENTITY b "{"x" * 1000}">',
    ],
)
def test_entities_of_xml_are_not_expanded(tmp_path, declared, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)  # nothing may be fetched
    (tmp_path / "x.rdf").write_text(RDF.format(declared, "&b;" if "%" not in declared else "a"))
    with pytest.raises(InputError, match="declares the XML entity"):
        entities_of(tmp_path / "x.rdf")


def test_entities_for_namespaces_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    (tmp_path / "x.owl").write_text(RDF.format('<!ENTITY ex "http://example.org/">', "a &amp; &ex;b"))
    assert entities_of(tmp_path / "x.owl")[0]["a"].title == "a & http://example.org/b"


def test_an_external_document_type_is_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    text = RDF.format("", "tea").replace(
        "<!DOCTYPE rdf:RDF [  ]>", '<!DOCTYPE rdf:RDF SYSTEM "http://example.org/x.dtd">'
    )
    (tmp_path / "x.rdf").write_text(text)
    assert entities_of(tmp_path / "x.rdf")[0]["a"].title == "tea"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no skos:Concept"),
        ('@prefix ex: <http://example.org/> . ex:a ex:b "c" .', "has no skos:Concept, no class"),
        ("ex:a ex:b .", "cannot be read as Turtle or N-Triples"),
        ("<?xml version='1.0'?><a><b></a>", "cannot be read as RDF/XML"),
        ('{"@context": "http://example.org/"}', "is JSON-LD, which is not read; convert it"),
    ],
)
def test_what_is_not_skos_is_refused(tmp_path, content, message):
    (tmp_path / "x.ttl").write_text(content)
    with pytest.raises(InputError, match=message):
        entities_of(tmp_path / "x.ttl")


def test_a_kb_from_skos(path):
    with KnowledgeBase.from_skos(path) as kb:
        assert [candidate.title for candidate in kb.candidates("Brew")] == ["tea"]
        assert [(near.relation, near.title) for near in kb.neighbours(f"{EX}tea")] == [
            ("broader", "green tea"),
            ("narrower", "drink"),
        ]
        assert kb.resolve("T1") == f"{EX}tea"
