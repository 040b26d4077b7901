"""Linked text in the formats of others: what is read, what is refused, and what comes back after writing."""

import json
import lzma
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.data.formats import read_linked, to_brat, to_conll
from wellread.document import Candidate, Document, Link
from wellread.errors import InputError, UsageError

AIDA = (
    "-DOCSTART- (1 EU)\n"
    "EU\tB\tEU\t--NME--\n"
    "rejects\n"
    "German\tB\tGerman\tGermany\thttp://en.wikipedia.org/wiki/Germany\t11867\t/m/0345h\n"
    "call\n"
    "\n"
    "Peter\tB\tPeter Blackburn\t--NME--\n"
    "Blackburn\tI\tPeter Blackburn\t--NME--\n"
    "\n"
    "-DOCSTART- (2 Song)\n"
    "Beyonc\u00e9\tB\tBeyonc\u00e9\tBeyonc\\u00e9_Knowles\thttp://en.wikipedia.org/wiki/Beyonc%C3%A9_Knowles\t85\n"
    "Coldplay\tB\tColdplay\tColdplay\thttp://en.wikipedia.org/wiki/Coldplay\t80103\t/m/01wv9xn\n"
    ".\n"
)

NIF = """
@prefix nif: <http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#> .
@prefix itsrdf: <http://www.w3.org/2005/11/its/rdf#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
@prefix doc: <http://example.org/doc#> .

doc:a a nif:Context ; nif:isString "Tim met AC/DC in S\u00e3o Paulo with Joe." ; nif:referenceContext doc:a ;
    nif:beginIndex "0"^^xsd:int ; nif:endIndex "36"^^xsd:int .
doc:a3 a nif:Phrase ; nif:referenceContext doc:a ; nif:anchorOf "Joe" ;
    nif:beginIndex "32"^^xsd:nonNegativeInteger ; nif:endIndex "35"^^xsd:nonNegativeInteger .
doc:a1 a nif:Phrase ; nif:referenceContext doc:a ; nif:beginIndex "8"^^xsd:int ; nif:endIndex "13"^^xsd:int ;
    itsrdf:taIdentRef <http://dbpedia.org/resource/AC/DC> , <http://aksw.org/notInWiki/AC-DC> .
doc:a2 a nif:String ; nif:referenceContext doc:a ; nif:beginIndex "17"^^xsd:int ; nif:endIndex "26"^^xsd:int ;
    nif:anchorOf "S\u00e3o Paulo" ; itsrdf:taIdentRef <http://dbpedia.org/resource/S%C3%A3o_Paulo> .
doc:a0 a nif:Phrase ; nif:referenceContext doc:a ; nif:beginIndex "0"^^xsd:int ; nif:endIndex "3"^^xsd:int ;
    itsrdf:taIdentRef <http://aksw.org/notInWiki/Tim> .
doc:w1 a nif:Word ; nif:referenceContext doc:a ; nif:beginIndex "4"^^xsd:int ; nif:endIndex "7"^^xsd:int .
doc:b a nif:Context ; nif:isString "Nothing here." .
"""


@pytest.fixture
def write(tmp_path):
    def write(content, name="file"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def spans(document):
    return [(link.start, link.end, link.entity) for link in document.links]


# JSONL


def test_mentions_become_links_and_null_is_nil(write):
    line = {"id": 7, "text": "Rome, Oz", "mentions": [[6, 8, None], [0, 4, "Q220"]], "titles": ["x"]}
    (document,) = read_linked(write(json.dumps(line) + "\n\n", "a.jsonl"))
    assert document.links == (Link(0, 4, "Rome", "Q220"), Link(6, 8, "Oz", None))
    assert (document.id, document.meta) == ("7", {"titles": ["x"]})


def test_our_own_documents_are_read_as_they_were_written(write):
    candidate = Candidate("Q220", "Rome", 0.9, 0.8)
    document = Document("Rome 𝒜", (Link(0, 4, "Rome", "Q220", "Rome", 0.8, (candidate,), "wiki"),), "d", {"a": 1})
    assert list(read_linked(write(document.to_json()))) == [document]


# Not ours: `files.open_bytes` leaves the file below the archive for the garbage collector to close.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_compressed_file_with_a_byte_order_mark_is_read(write):
    content = lzma.compress(b'\xef\xbb\xbf{"text": "Rome", "mentions": [[0, 4, "Q220"]]}\n')
    (document,) = read_linked(write(content, "a.jsonl.xz"))
    assert spans(document) == [(0, 4, "Q220")]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"text": 1, "mentions": []}',
        '{"mentions": []}',
        '{"text": "Rome"}',
        '{"text": "Rome", "mentions": [[0, 5, "Q220"]]}',
        '{"text": "Rome", "mentions": [[-1, 3, "Q220"]]}',
        '{"text": "Rome", "mentions": [[2, 2, "Q220"]]}',
        '{"text": "Rome", "mentions": [[0, true, "Q220"]]}',
        '{"text": "Rome", "mentions": [[0, 4, 220]]}',
        '{"text": "Rome", "mentions": [[0, 4]]}',
        '{"text": "Rome", "mentions": 3}',
        '{"text": "Rome", "links": [{"start": -4, "end": -1, "text": "Rom", "entity": null}]}',
        '{"text": "Rome", "links": [{"start": "0", "end": 4, "text": "Rome", "entity": null}]}',
        '{"text": "Rome", "links": [{"start": 0, "end": 3, "text": "Rome", "entity": null}]}',
        '{"text": "half \\ud83d", "mentions": []}',
        "[" * 100_000,
    ],
)
def test_a_broken_line_is_named_by_its_number(write, line):
    path = write('{"text": "fine", "mentions": []}\n' + line + "\n", "a.jsonl")
    with pytest.raises(InputError, match="line 2"):
        list(read_linked(path))


def test_broken_documents_can_be_left_out_and_are_reported(write):
    good = '{"text": "Rome", "mentions": [[0, 4, "Q220"]]}\n'
    bad = '{"text": "Rome", "mentions": [[-1, 4, "Q220"]]}\n'
    skipped: list[str] = []
    assert len(list(read_linked(write(good + bad + good, "a.jsonl"), skipped=skipped))) == 2
    assert len(skipped) == 1
    assert "line 2" in skipped[0]


def test_another_encoding_is_refused_with_its_line(write):
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        list(read_linked(write(b'{"text": "", "links": []}\n{"text": "\xe9"}\n')))


# AIDA


def test_aida_tokens_are_joined_into_sentences_and_documents(write):
    first, second = read_linked(write(AIDA))
    assert first.text == "EU rejects German call\nPeter Blackburn"
    assert second.text == "Beyoncé Coldplay ."
    assert (first.id, second.id) == ("1 EU", "2 Song")
    assert spans(first) == [(0, 2, None), (11, 17, "Germany"), (23, 38, None)]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ("title", ["Beyoncé Knowles", "Coldplay"]),
        ("url", ["http://en.wikipedia.org/wiki/Beyonc%C3%A9_Knowles", "http://en.wikipedia.org/wiki/Coldplay"]),
        ("number", ["85", "80103"]),
        ("mid", [None, "/m/01wv9xn"]),
    ],
)
def test_ids_choose_the_column_that_names_an_entity(write, ids, expected):
    second = list(read_linked(write(AIDA), ids=ids))[1]
    assert [link.entity for link in second.links] == expected
    assert [link.title for link in second.links] == ["Beyoncé Knowles", "Coldplay"]


def test_a_file_with_yago_names_only_still_has_titles_but_no_numbers(write):
    path = write("-DOCSTART- (1 CEL01)\nDavid\tB\tDavid\tD\\u0061vid_Beckham\n\U0001f600\tB\tx\t\\ud83d\\ude00\n")
    (document,) = read_linked(path)
    assert [link.entity for link in document.links] == ["David Beckham", "\U0001f600"]
    with pytest.raises(InputError, match="line 2: no number"):
        list(read_linked(path, ids="number"))


def test_a_title_may_have_a_slash(write):
    path = write("-DOCSTART- (1)\nAC/DC\tB\tAC/DC\tAC/DC\thttp://en.wikipedia.org/wiki/AC/DC\n")
    assert next(read_linked(path)).links[0].entity == "AC/DC"


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("Rome\tI\tRome\tRome\n", 2),
        ("Rome\tB\n", 2),
        ("a\nRome\tX\tRome\tRome\n", 3),
        ("a\tB\ta\tA\nb\nc\tI\ta\tA\n", 4),
    ],
)
def test_broken_aida_rows_are_named_by_their_line(write, body, number):
    with pytest.raises(InputError, match=f"line {number}"):
        list(read_linked(write("-DOCSTART- (1)\n" + body)))


def test_tokens_before_the_first_document_are_refused(write):
    with pytest.raises(InputError, match="line 1: expected -DOCSTART-"):
        list(read_linked(write("EU\nrejects\n", "a.tsv")))


# NIF


def test_nif_phrases_become_links_by_iri(write):
    a, b = read_linked(write(NIF, "a.ttl"))
    assert (a.id, b.id, b.links) == ("http://example.org/doc#a", "http://example.org/doc#b", ())
    assert spans(a) == [
        (0, 3, None),
        (8, 13, "http://dbpedia.org/resource/AC/DC"),
        (17, 26, "http://dbpedia.org/resource/S%C3%A3o_Paulo"),
        (32, 35, None),
    ]


def test_nif_entities_can_go_by_title(write):
    assert [link.entity for link in next(read_linked(write(NIF), ids="title")).links] == [
        None,
        "AC/DC",
        "São Paulo",
        None,
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"17"^^xsd:int', '"18"^^xsd:int', "says 'São Paulo' but the text at 18:26"),
        ('"26"^^xsd:int', '"99"^^xsd:int', "doc#a2: the span 17:99 is not inside"),
        ('nif:beginIndex "8"^^xsd:int ;', "", "doc#a1"),
        (
            "nif:referenceContext doc:a ; nif:beginIndex",
            "nif:referenceContext doc:none ; nif:beginIndex",
            "no nif:isString",
        ),
        ("doc:b a nif:Context", "doc:b a nif:Context 'unfinished", "is not Turtle"),
    ],
)
def test_broken_nif_is_an_input_error(write, old, new, message):
    assert old in NIF
    with pytest.raises(InputError, match=re.escape(message)):
        list(read_linked(write(NIF.replace(old, new))))


def test_relative_iris_do_not_depend_on_the_folder(write, tmp_path):
    line = '<#a> <http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#isString> "Rome" .'
    assert next(read_linked(write(line, "a.ttl"))).id == "file:///a.ttl#a"


# which format


@pytest.mark.parametrize(
    ("content", "name"), [("", "a.jsonl"), ("\n\n", "a.tsv.gz"), ("", "a.ttl"), ("# a comment\n", "b.nif")]
)
def test_an_empty_file_holds_no_documents(write, content, name):
    assert list(read_linked(write(content, name))) == []


def test_an_unknown_file_asks_for_its_format(write):
    with pytest.raises(InputError, match="say if it is jsonl, aida or nif"):
        read_linked(write("hello", "a.txt"))


def test_the_given_format_wins(write):
    with pytest.raises(InputError, match="not JSON"):
        list(read_linked(write(AIDA), "jsonl"))


@pytest.mark.parametrize(("content", "ids"), [('{"text": ""}', "title"), (NIF, "mid"), (AIDA, "qid")])
def test_ids_that_do_not_fit_the_format_are_a_usage_error(write, content, ids):
    with pytest.raises(UsageError, match="does not fit"):
        read_linked(write(content), ids=ids)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_linked(tmp_path / "none.jsonl")


def test_importing_formats_is_light():
    code = "import wellread.data.formats, sys; print([m for m in ('rdflib', 'numpy', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# writing


def test_brat_has_a_line_for_each_mention_and_each_entity():
    text = "Rome and New\nYork\tCity, Oz"
    links = (
        Link(0, 4, "Rome", "Q220", "Rome", kb="my wiki"),
        Link(9, 22, "New\nYork\tCity", "New York", "New York\nCity"),
        Link(24, 26, "Oz", None),
        Link(12, 13, "\n", "Q1"),
        Link(24, 26, "Oz", "Q2"),
    )
    assert to_brat(Document(text, links)).splitlines() == [
        "T1\tEntity 0 4\tRome",
        "N1\tReference T1 my_wiki:Q220\tRome",
        "T2\tEntity 9 12;13 17;18 22\tNew York City",
        "N2\tReference T2 kb:New%20York\tNew York City",
        "T3\tEntity 24 26\tOz",
        "T4\tEntity 24 26\tOz",
        "N3\tReference T4 kb:Q2\tOz",
    ]
    assert to_brat(Document("no links")) == ""


def test_conll_writes_tokens_and_breaks_sentences_at_newlines():
    document = Document(
        "Hi, Rome!\n\nBye Oz", (Link(4, 8, "Rome", "Q220", "Rome (é)"), Link(15, 17, "Oz", None)), "a\tb"
    )
    assert to_conll(document) == (
        "-DOCSTART- (a b)\nHi\n,\nRome\tB\tRome\tRome_(\\u00e9)\tQ220\n!\n\nBye\nOz\tB\tOz\t--NME--\n\n"
    )


def test_of_links_that_share_a_token_the_longest_is_written(write):
    text = "New York City Hall"
    links = [(0, 8), (0, 13), (9, 18), (14, 18)]
    document = Document(text, tuple(Link(start, end, text[start:end], f"{start}-{end}") for start, end in links))
    (again,) = read_linked(write(to_conll(document)))
    assert spans(again) == [(0, 13, "0-13"), (14, 18, "14-18")]


def test_a_link_inside_a_token_is_widened_to_it_and_one_on_a_space_is_lost(write):
    document = Document("snowball fight", (Link(4, 8, "ball", "Q1"), Link(8, 9, " ", "Q2")))
    (again,) = read_linked(write(to_conll(document)))
    assert spans(again) == [(0, 8, "Q1")]


def test_iris_come_back_by_url(write):
    iri = "http://dbpedia.org/resource/S%C3%A3o_Paulo"
    (again,) = read_linked(write(to_conll(Document("SP", (Link(0, 2, "SP", iri),)))), ids="url")
    assert again.links[0].entity == iri


@st.composite
def tokenised(draw):
    """A text of tokens with single spaces and newlines, and links on runs of them."""
    words = draw(st.lists(st.from_regex(r"\A(\w{1,5}|[^\w\s])\Z"), min_size=1, max_size=12))
    gaps = draw(st.lists(st.sampled_from(" \n"), min_size=len(words), max_size=len(words)))
    text, borders = "", []
    for word, gap in zip(words, gaps, strict=True):
        borders.append((len(text), len(text) + len(word)))
        text += word + gap
    links, at = [], 0
    name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    while at < len(words):
        if (length := draw(st.integers(0, 3))) and at + length <= len(words):
            start, end = borders[at][0], borders[at + length - 1][1]
            entity = draw(st.none() | name.filter(lambda name: not re.match("https?://", name)))
            links.append(Link(start, end, text[start:end], entity))
        at += max(length, 1)
    return Document(text[:-1], tuple(links), "d")


@given(documents=st.lists(tokenised(), max_size=3))
def test_what_conll_writes_aida_reads_back(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("aida") / "a.tsv"
    path.write_text("".join(map(to_conll, documents)))
    again = list(read_linked(path))
    assert [document.text for document in again] == [document.text for document in documents]
    assert [spans(document) for document in again] == [spans(document) for document in documents]
