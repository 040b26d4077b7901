"""The SVG picture of a linked text: well-formed, with the whole text, and labels that do not overlap."""

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from wellread.document import Document, Link
from wellread.plots.text_svg import _wrap, linked_svg

SVG = "{http://www.w3.org/2000/svg}"


def link(text, start, end, title):
    return Link(start, end, text[start:end], "Q1", title=title, kb="wiki")


def texts(svg, kind):
    return [
        element.text for element in etree.fromstring(svg.encode()).iter(f"{SVG}text") if element.get("class") == kind
    ]


def test_text_and_titles_are_drawn():
    text = "Ann & Bo <met> in Rome."
    svg = linked_svg(Document(text, (link(text, 18, 22, "Rome & Vatican"), Link(0, 3, "Ann", None))))
    assert texts(svg, "t") == [text]
    assert texts(svg, "l") == ["Rome & Vatican", "NIL"]


def test_a_label_that_would_touch_another_is_one_lane_lower():
    text = "Rome, Bonn, Oslo"
    links = (link(text, 0, 4, "Rome, the Eternal City"), link(text, 6, 10, "Bonn"), link(text, 12, 16, "Oslo"))
    root = etree.fromstring(linked_svg(Document(text, links)).encode())
    rome, bonn, oslo = [float(one.get("y")) for one in root.iter(f"{SVG}text") if one.get("class") == "l"]
    assert rome < bonn == oslo


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])), st.integers(1, 20))
def test_lines_are_within_the_columns_and_lose_only_spaces(text, columns):
    lines = [text[start:end] for start, end in _wrap(text, columns)]
    assert all(len(line) <= columns for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    etree.fromstring(linked_svg(Document(text), columns=columns).encode())
