"""Thesauri in SKOS, and classes with labels in RDF: Turtle, RDF/XML and N-Triples.

A concept (or a class of RDFS or OWL with a label) is an entity: its IRI is the id, the preferred label in the language
its title, `skos:definition` (else the scope note or the comment) its description, its concept scheme the kind. A
preferred label has the count 2, an alternative one 1, a hidden one ½; labels may be SKOS-XL. `broader`, `narrower`,
`related` and `subClassOf` become facts, under these names. Notations and mappings to other vocabularies
(`exactMatch`, `closeMatch`) are other ids. Deprecated concepts are skipped and counted.

The file is read into memory. Nothing is fetched, and XML with entities that refer to others or to files is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from wellread.errors import InputError
from wellread.io.files import BROKEN, open_bytes, path_name
from wellread.io.rdf import parse_turtle, parse_xml
from wellread.kb.readers.hierarchy import descendants
from wellread.kb.records import XREF, Entity, OtherId, Record, Tally

if TYPE_CHECKING:
    from rdflib import Graph

ALL_LANGUAGES = "all"
PREFERRED_COUNT, ALTERNATIVE_COUNT, HIDDEN_COUNT = 2.0, 1.0, 0.5

_SKOS = "http://www.w3.org/2004/02/skos/core#"
_XL = "http://www.w3.org/2008/05/skos-xl#"
_RDFS = "http://www.w3.org/2000/01/rdf-schema#"
_OWL = "http://www.w3.org/2002/07/owl#"
_RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
_TYPES = (f"{_SKOS}Concept", f"{_OWL}Class", f"{_RDFS}Class")
_GROUPS = (f"{_SKOS}ConceptScheme", f"{_SKOS}Collection", f"{_SKOS}OrderedCollection")
_PREFERRED, _ALTERNATIVE, _HIDDEN = "prefLabel", "altLabel", "hiddenLabel"
_TEXTS = (f"{_SKOS}definition", "http://purl.obolibrary.org/obo/IAO_0000115", f"{_SKOS}scopeNote", f"{_RDFS}comment")
"""Properties of a description, the best first."""
_RELATIONS = {
    **{f"{_SKOS}{name}": name for name in ("broader", "narrower", "related", "broaderTransitive")},
    f"{_RDFS}subClassOf": "subClassOf",
}
_UPWARDS = ("broader", "broaderTransitive", "subClassOf")
_MATCHES = (f"{_SKOS}exactMatch", f"{_SKOS}closeMatch")
_ENTITY_CHARS = 512
"""Characters of an XML entity: namespaces are shorter."""


def read_skos(path: str | Path, tally: Tally, *, language: str = "en", below: Collection[str] = ()) -> Iterator[Record]:
    """Yield the concepts of an RDF file, plain or compressed, with their names in a language ("all": in every one).

    "en" takes labels in English of any country (en-GB) and labels without a language. `below` keeps what is below some
    concepts, given by their IRIs, without these.
    """
    from rdflib import BNode, URIRef

    graph = _parse(path, tally)
    tally.step = "reading concepts"
    found = {subject for type in _TYPES for subject in graph.subjects(URIRef(_RDF_TYPE), URIRef(type))}
    found |= {subject for name in (_SKOS, _XL) for subject in graph.subjects(URIRef(f"{name}{_PREFERRED}"))}
    found -= {subject for type in _GROUPS for subject in graph.subjects(URIRef(_RDF_TYPE), URIRef(type))}
    concepts = sorted((concept for concept in found if not isinstance(concept, BNode)), key=str)
    if not concepts:
        raise InputError(
            f"{path_name(path)} has no skos:Concept, no class and no skos:prefLabel; is it another kind of RDF?"
        )
    kept = descendants(_parents(graph, concepts), below, path_name(path)) if below else None
    value = partial(_texts, graph, language)
    for concept in concepts:
        id = str(concept)
        if kept is not None and id not in kept:
            tally.skip(f"concept not below {', '.join(below)}")
            continue
        if any(str(one).lower() in ("true", "1") for one in graph.objects(concept, URIRef(f"{_OWL}deprecated"))):
            tally.skip("deprecated concept", id)
            continue
        names = _names(graph, concept, language)
        if not names:
            tally.skip(f"no label in {language}", id)
            continue
        tally.read += 1
        yield Entity(
            id=id,
            title=next(iter(names)),
            description=next((text for name in _TEXTS for text in value(concept, name)), ""),
            kind=_scheme(graph, concept, language),
            aliases=names,
            facts=tuple(
                (relation, str(other))
                for name, relation in _RELATIONS.items()
                for other in sorted(graph.objects(concept, URIRef(name)), key=str)
                if isinstance(other, URIRef)
            ),
        )
        for notation in sorted(map(str, graph.objects(concept, URIRef(f"{_SKOS}notation")))):
            yield OtherId(notation, id, "notation")
        for name in _MATCHES:
            for other in sorted(map(str, graph.objects(concept, URIRef(name)))):
                yield OtherId(other, id, XREF)


def _parents(graph: Graph, concepts: Collection[Any]) -> dict[str, list[str]]:
    """Return the parents of each concept; `narrower` counts in the other direction."""
    from rdflib import URIRef

    parents: dict[str, list[str]] = {str(concept): [] for concept in concepts}
    for name, relation in _RELATIONS.items():
        if relation in _UPWARDS:
            for child, parent in graph.subject_objects(URIRef(name)):
                parents.setdefault(str(child), []).append(str(parent))
        elif relation == "narrower":
            for parent, child in graph.subject_objects(URIRef(name)):
                parents.setdefault(str(child), []).append(str(parent))
    return parents


def _names(graph: Graph, concept: Any, language: str) -> dict[str, float]:
    """Return the names of a concept with their counts, the title first; none without a preferred label."""
    found: dict[str, float] = {}
    for kind, count in ((_PREFERRED, PREFERRED_COUNT), (_ALTERNATIVE, ALTERNATIVE_COUNT), (_HIDDEN, HIDDEN_COUNT)):
        labels = [*_texts(graph, language, concept, f"{_SKOS}{kind}"), *_xl_texts(graph, language, concept, kind)]
        if kind == _PREFERRED:
            labels = labels or _texts(graph, language, concept, f"{_RDFS}label")
            if not labels:
                return {}
        for label in labels:
            found.setdefault(label, count)
    return found


def _xl_texts(graph: Graph, language: str, concept: Any, kind: str) -> list[str]:
    from rdflib import URIRef

    nodes = sorted(graph.objects(concept, URIRef(f"{_XL}{kind}")), key=str)
    return [text for node in nodes for text in _texts(graph, language, node, f"{_XL}literalForm")]


def _texts(graph: Graph, language: str, subject: Any, name: str) -> list[str]:
    """Return the texts of a property in the language: exact first, then of its countries, then of no language."""
    from rdflib import Literal, URIRef

    found = []
    for value in graph.objects(subject, URIRef(name)):
        if isinstance(value, Literal) and (text := " ".join(str(value).split())):
            own = (value.language or "").lower()
            wanted = language.lower()
            exact, region = own == wanted, own.startswith(f"{wanted}-")
            if exact or region or not own or wanted == ALL_LANGUAGES:
                found.append((not exact, not region, own, text))
    return [text for *_, text in sorted(found)]


def _scheme(graph: Graph, concept: Any, language: str) -> str:
    """Return the title of the first concept scheme, or the last part of its IRI."""
    from rdflib import URIRef

    schemes = sorted(graph.objects(concept, URIRef(f"{_SKOS}inScheme")), key=str)
    if not schemes:
        return ""
    titles = (f"{_SKOS}prefLabel", "http://purl.org/dc/terms/title", "http://purl.org/dc/elements/1.1/title")
    named = (text for name in (*titles, f"{_RDFS}label") for text in _texts(graph, language, schemes[0], name))
    return next(named, str(schemes[0]).rstrip("/#").replace("#", "/").rpartition("/")[2])


def _parse(path: str | Path, tally: Tally) -> Graph:
    name = path_name(path)
    try:
        with open_bytes(path, tally) as file:
            data = file.read()
    except BROKEN as error:
        raise InputError(f"{name} is truncated or damaged: {error}; fetch or copy it again") from error
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:200]
    is_xml = start.startswith((b"<?xml", b"<!", b"<rdf:RDF"))
    if start.startswith((b"{", b"[{")):
        raise InputError(f"{name} is JSON-LD, which is not read; convert it to Turtle, RDF/XML or N-Triples")
    if is_xml:
        _refuse_entities(data, name)
    tally.step = "parsing"
    try:
        return parse_xml(data, "urn:local") if is_xml else parse_turtle(data.decode("utf-8-sig"), "urn:local")
    except Exception as error:  # rdflib raises SyntaxError, AssertionError, ValueError, SAX errors or RecursionError
        reason = " ".join(str(error).split())[:200]
        kind = "RDF/XML" if is_xml else "Turtle or N-Triples"
        raise InputError(f"{name} cannot be read as {kind} ({reason}); mend it, or convert it") from error


def _refuse_entities(data: bytes, name: str) -> None:
    """Refuse XML whose entities could grow or read files; entities for namespaces, which OWL tools write, may stay."""
    parser = expat.ParserCreate()

    def declare(entity: str, parameter: bool, value: str | None, *rest: object) -> None:
        if parameter or value is None or "&" in value or len(value) > _ENTITY_CHARS:
            raise InputError(f"{name} declares the XML entity {entity!r}, which is not expanded; write out its text")

    def end(*_: object) -> None:
        raise _HeadEndError

    parser.EntityDeclHandler = declare
    parser.StartElementHandler = end  # declarations come before the first element
    with suppress(_HeadEndError, expat.ExpatError):  # broken XML is reported by the parser that reads it
        parser.Parse(data, True)


class _HeadEndError(Exception):
    """The head of the document has been read."""
