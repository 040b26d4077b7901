"""RDF that is not trusted: literals stay texts, and reading ends when it should."""

import logging

import pytest

from wellread.errors import InputError
from wellread.io.rdf import parse_turtle, parse_xml

XSD = "http://www.w3.org/2001/XMLSchema#"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"


def turtle(text, datatype):
    return parse_turtle(f'<urn:a> <urn:b> "{text}"^^<{datatype}> .', "urn:x")


def xml(text, datatype):
    description = f'<rdf:Description rdf:about="urn:a"><b rdf:datatype="{datatype}">{text}</b></rdf:Description>'
    return parse_xml(f'<rdf:RDF xmlns:rdf="{RDF}" xmlns="urn:">{description}</rdf:RDF>'.encode(), "urn:x")


@pytest.mark.parametrize("parse", [turtle, xml])
@pytest.mark.parametrize(
    ("text", "datatype"),
    [("1e100000", f"{XSD}decimal"), ("007", f"{XSD}integer"), ("not a number", f"{XSD}integer"), ("", f"{XSD}date")],
)
def test_literals_are_the_texts_as_written_and_are_not_logged(parse, text, datatype, caplog):
    with caplog.at_level(logging.DEBUG):
        (found,) = parse(text, datatype).objects()
    assert str(found) == text
    assert not caplog.records


def test_settings_of_rdflib_are_as_before():
    import rdflib

    xml("1", f"{XSD}integer")
    assert rdflib.NORMALIZE_LITERALS
    assert not logging.getLogger("rdflib.term").disabled


def test_languages_bare_values_and_relative_iris_are_read():
    graph = parse_turtle('<a> <b> "x"@en-GB, true, 12, 1.5 .', "urn:/x")
    assert {str(one) for one in graph.objects()} == {"x", "true", "12", "1.5"}
    assert {one.language for one in graph.objects()} == {None, "en-GB"}
    (subject,) = parse_turtle("<a> <b> <c> .", "file:///folder/x").subjects()
    assert str(subject) == "file:///folder/a"


def test_too_many_triples_and_a_stopped_reading_end_in_an_input_error():
    triples = "".join(f"<urn:a> <urn:b> <urn:{n}> .\n" for n in range(300))
    assert len(parse_turtle(triples, "urn:x", most=300, stop=lambda: False)) == 300
    with pytest.raises(InputError, match="more than 299 triples"):
        parse_turtle(triples, "urn:x", most=299)
    with pytest.raises(InputError, match="no longer needed"):
        parse_turtle(triples, "urn:x", stop=lambda: True)
