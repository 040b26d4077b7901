"""A document goes to JSON and comes back; what is not one is refused."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.document import Candidate, Document, Link, short
from wellread.errors import InputError

FLOATS = st.floats(0, 1)
CANDIDATES = st.lists(st.builds(Candidate, st.text(max_size=4), st.text(max_size=4), FLOATS, FLOATS), max_size=2)


@st.composite
def documents(draw):
    text = draw(st.text(max_size=30))
    spans = draw(st.lists(st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(sorted), max_size=4))
    links = tuple(
        Link(
            start,
            end,
            text[start:end],
            draw(st.none() | st.text(max_size=4)),
            draw(st.none() | st.text(max_size=4)),
            draw(FLOATS),
            tuple(draw(CANDIDATES)),
            draw(st.none() | st.just("kb")),
        )
        for start, end in sorted(spans)
    )
    return Document(text, links, draw(st.none() | st.text(max_size=4)), draw(st.dictionaries(st.text(), st.integers())))


@given(documents())
def test_a_document_comes_back_from_json_equal(document):
    assert Document.from_json(document.to_json()) == document
    assert Document.from_dict(document.to_dict()) == document
    assert "\n" not in document.to_json()


def link(start, end, text="Paris"):
    return {"text": "In Paris.", "links": [{"start": start, "end": end, "text": text, "entity": "Q90"}]}


def test_a_link_needs_no_more_than_span_text_and_entity():
    assert Document.from_dict(link(3, 8)).links == (Link(3, 8, "Paris", "Q90"),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (link(4, 9), r"the link at 4:9 says 'Paris' but the text of 9 characters there is 'aris\.'"),
        (link(-6, -1), "the link at -6:-1 says 'Paris' but the text of 9 characters there is ''"),
        (link(8, 3, ""), "the link at 8:3 says ''"),
        (link(99, 99, ""), "the link at 99:99 says ''"),
        (link(3.0, 8), r"has the offsets 3\.0:8; expected whole numbers"),
        (link("3", "8"), "has the offsets '3':'8'; expected whole numbers"),
        (link(None, 8), "expected whole numbers"),
        (link(False, True, "I"), "expected whole numbers"),
        ({"text": 5}, "the text of a document is 5; expected a string"),
        ({"links": []}, "not a document written by wellread: 'text'"),
        ({"text": "x", "links": 5}, "not a document written by wellread"),
        ({"text": "x", "links": [5]}, "not a document written by wellread"),
        ({"text": "x", "links": [{"start": 0}]}, "not a document written by wellread"),
        ({"text": "x", "links": [{"begin": 0}]}, "not a document written by wellread"),
        ({"text": "x", "meta": ["ab", "c"]}, "not a document written by wellread"),
        ([], "not a document written by wellread"),
    ],
)
def test_what_is_not_a_document_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        Document.from_dict(data)
    with pytest.raises(InputError, match=message):
        Document.from_json(json.dumps(data))


def test_what_is_not_json_is_refused():
    with pytest.raises(InputError, match="not JSON: "):
        Document.from_json("{")


def test_a_long_text_is_cut_and_shows_it():
    assert [short(text, 7) for text in ("", "seven 7", "a long text")] == ["", "seven 7", "a long…"]


def test_html_marks_links_with_their_titles():
    text = "Mozart lived in Vienna."
    html = Document(text, (Link(0, 6, "Mozart", "Q254", "Wolfgang Amadeus Mozart", 0.9), Link(16, 22, "Vienna", None)))
    shown = html._repr_html_()
    assert re.findall(r"<mark[^>]*>(\w+) <small[^>]*>([^<]+)</small></mark>", shown) == [
        ("Mozart", "Wolfgang Amadeus Mozart"),
        ("Vienna", "NIL"),
    ]
    assert 'title="Q254, score 0.90"' in shown
    assert re.sub(r" <small.*?</small>|<[^>]+>", "", shown) == text


def test_html_escapes_markup_in_text_entity_and_title():
    evil = '<script>alert("1 & 2")</script>'
    shown = Document(f"a {evil} b {evil}", (Link(2, 2 + len(evil), evil, f'"{evil}', evil),))._repr_html_()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;alert(&quot;1 &amp; 2&quot;)&lt;/script&gt;") == 4
    assert set(re.findall(r"<(\w+)", shown)) == {"div", "mark", "small"}
    assert 'title="&quot;&lt;script' in shown


def test_html_shows_overlapping_links_once():
    links = (Link(0, 8, "New York", "a"), Link(4, 8, "York", "b"), Link(9, 13, "City", "c"))
    shown = Document("New York City", links)._repr_html_()
    assert re.findall(r"<small[^>]*>(\w)</small>", shown) == ["a", "c"]
    assert re.sub(r" <small.*?</small>|<[^>]+>", "", shown) == "New York City"
