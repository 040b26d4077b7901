"""NIF in Turtle, the format of GERBIL: gold links are read, links are written.

A text is a `nif:Context` with its `nif:isString`; a link is a phrase with `nif:beginIndex`, `nif:endIndex` and
`itsrdf:taIdentRef`. Indices are characters (code points). NIF 2.0 and 2.1 are read, 2.1 is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from wellread.data.spans import by_place, checked_span, title_in
from wellread.document import Document, Link
from wellread.errors import InputError
from wellread.io.rdf import parse_turtle

NIF = "http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#"
ITSRDF = "http://www.w3.org/2005/11/its/rdf#"
NIF_2_1 = "http://persistence.uni-leipzig.org/nlp2rdf/specification/core/2.1"
NOT_IN_WIKI = "http://aksw.org/notInWiki/"
"""Prefix of the IRIs that GERBIL takes as NIL."""
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"wp:(?=.)"), "http://en.wikipedia.org/wiki/"),
    (re.compile(r"(?=[QPL][0-9]+$)"), "http://www.wikidata.org/entity/"),
)
"""Beginnings of ids that stand for an IRI: those of the vital articles, and of Wikidata."""
_IRI = re.compile(r"(https?|urn):[^\s<>\"{}|\\^`]+")


def nif_drafts(
    turtle: str,
    base: str,
    where: str,
    ids: Literal["title", "url"] | str = "url",
    *,
    most: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Callable[[], Document]]:
    """Yield a function for each `nif:isString` that builds its document, or raises for this document only.

    Links are each `nif:Phrase`, and each node with a `taIdentRef`. `base` is the name that relative IRIs belong to;
    `where` is named in errors. `most` is the maximum of triples; reading ends with an error once `stop` returns True.
    """
    from rdflib import RDF, URIRef

    try:
        # An explicit base, so that relative IRIs do not depend on the working directory.
        graph = parse_turtle(turtle, f"file:///{base}", most=most, stop=stop)
    except InputError as error:
        raise InputError(f"{where} {error}") from error
    except Exception as error:  # rdflib raises SyntaxError, AssertionError, ValueError or RecursionError
        raise InputError(f"{where} is not Turtle: {' '.join(str(error).split())[:200]}") from error
    texts = {context: str(text) for context, text in graph.subject_objects(URIRef(NIF + "isString"))}
    phrases: dict[Any, list[Any]] = {context: [] for context in texts}
    for phrase, context in graph.subject_objects(URIRef(NIF + "referenceContext")):
        named = (phrase, URIRef(ITSRDF + "taIdentRef"), None) in graph
        if phrase in texts or not (named or (phrase, RDF.type, URIRef(NIF + "Phrase")) in graph):
            continue
        if context not in texts:
            raise InputError(f"{where}: {phrase} refers to {context}, which has no nif:isString; add the text")
        phrases[context].append(phrase)
    for context, text in texts.items():
        yield partial(_document, where, graph, str(context), text, phrases[context], ids)


def _document(where: str, graph: Any, name: str, text: str, phrases: list[Any], ids: str) -> Document:
    try:
        return Document(text, by_place(_link(graph, phrase, text, ids) for phrase in phrases), name)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _link(graph: Any, phrase: Any, text: str, ids: str) -> Link:
    """Return the link of a phrase; of several references the first by name in a wiki counts."""
    from rdflib import BNode, URIRef

    begin, finish, anchor = (graph.value(phrase, URIRef(NIF + name)) for name in ("beginIndex", "endIndex", "anchorOf"))
    try:
        start, end = checked_span(int(str(begin)), int(str(finish)), text)
    except (InputError, ValueError) as error:
        raise InputError(f"{phrase}: {error}") from error
    mention = text[start:end]
    if anchor is not None and str(anchor) != mention:
        raise InputError(
            f"{phrase} says {str(anchor)!r} but the text at {start}:{end} is {mention!r}; correct the indices"
        )
    references = graph.objects(phrase, URIRef(ITSRDF + "taIdentRef"))
    known = sorted(str(one) for one in references if not isinstance(one, BNode) and "notInWiki" not in one)
    if not known:
        return Link(start, end, mention, None)
    title = title_in(known[0])
    return Link(start, end, mention, title if ids == "title" else known[0], title)


def to_nif(documents: Iterable[Document], *, prefix: str | None = None) -> str:
    """Return documents as NIF 2.1 in Turtle; the id of a document is the IRI of its context.

    The IRI of an entity is its id if that is one already; else `prefix` and the id; without `prefix` that of Wikipedia
    or Wikidata for their ids ("wp:Paris", "Q90"), and urn:wellread:KB:ID for others.
    """
    from rdflib import DCTERMS, RDF, XSD, Graph, Literal, URIRef

    graph = Graph()
    for name, iri in (("nif", NIF), ("itsrdf", ITSRDF), ("dcterms", str(DCTERMS)), ("xsd", str(XSD))):
        graph.bind(name, iri)

    def describe(node: Any, types: Iterable[str], start: int, end: int) -> None:
        for type_ in types:
            graph.add((node, RDF.type, URIRef(NIF + type_)))
        graph.add((node, URIRef(NIF + "beginIndex"), Literal(str(start), datatype=XSD.nonNegativeInteger)))
        graph.add((node, URIRef(NIF + "endIndex"), Literal(str(end), datatype=XSD.nonNegativeInteger)))

    for number, document in enumerate(documents):
        name = document.id if document.id and _IRI.fullmatch(document.id) else f"urn:wellread:text:{number}"
        context = URIRef(name)
        describe(context, ("Context", "OffsetBasedString"), 0, len(document.text))
        graph.add((context, URIRef(NIF + "isString"), Literal(document.text)))
        graph.add((context, DCTERMS.conformsTo, URIRef(NIF_2_1)))
        for link in document.links:
            phrase = URIRef(f"{name}{'&' if '#' in name else '#'}offset_{link.start}_{link.end}")
            describe(phrase, ("Phrase", "OffsetBasedString"), link.start, link.end)
            graph.add((phrase, URIRef(NIF + "referenceContext"), context))
            graph.add((phrase, URIRef(NIF + "anchorOf"), Literal(link.text)))
            graph.add((phrase, URIRef(ITSRDF + "taIdentRef"), URIRef(_entity_iri(link, prefix))))
            score = Literal(f"{link.score:.6g}", datatype=XSD.double)
            graph.add((phrase, URIRef(ITSRDF + "taConfidence"), score))
    return str(graph.serialize(format="turtle"))


def _entity_iri(link: Link, prefix: str | None) -> str:
    if link.entity is None:
        return NOT_IN_WIKI + quote(link.text.replace(" ", "_"), safe="")
    if prefix is not None:
        return prefix + _quoted(link.entity)
    if _IRI.fullmatch(link.entity):
        return link.entity
    for pattern, known in _KNOWN:
        if match := pattern.match(link.entity):
            return known + _quoted(link.entity[match.end() :])
    return f"urn:wellread:{quote(link.kb or 'kb', safe='')}:{quote(link.entity, safe='')}"


def _quoted(name: str) -> str:
    """Return a name as in the IRIs of Wikipedia and DBpedia: "AC/DC (band)" -> "AC/DC_(band)"."""
    return quote(name.replace(" ", "_"), safe="/:,()'!*;@&=+$~-._")
