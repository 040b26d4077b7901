"""The page of linked text: what is drawn is the text, all of its links can be reached, and nothing in it is obeyed."""

import re
import time

import lxml.html
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.document import Candidate, Document, Link
from wellread.plots import linked_page

NASTY = "<script>alert(1)</script>\"'&amp;</style></mark></span>--><!--"


def link(text, start, end, entity="Q1", **more):
    return Link(start, end, text[start:end], entity, **more)


def draw(*documents, **more):
    return lxml.html.document_fromstring(linked_page(documents, **more))


def texts(page):
    """Return the visible texts, without the cards."""
    for card in page.xpath("//span[@class='card']"):
        card.drop_tree()
    return [block.text_content() for block in page.xpath("//div[@class='text']")]


def cards(page):
    return [" ".join(" ".join(card.itertext()).split()) for card in page.xpath("//mark[@tabindex]/span[@class='card']")]


def test_a_card_tells_entity_kb_score_and_candidates():
    candidates = (Candidate("Q220", "Rome", 0.8, 0.93), Candidate("Q18", "Rome, Georgia", 0.2, 0.07))
    document = Document(
        "In Rome.", (link("In Rome.", 3, 7, "Q220", title="Rome", score=0.93, candidates=candidates, kb="wiki"),)
    )
    page = draw(document, title="Rome today")
    assert cards(page) == ["Rome Q220 · wiki score 0.93 Rome Q220 0.93 Rome, Georgia Q18 0.07"]
    assert page.xpath("//mark/text()") == ["Rome"]
    assert [bar.get("style") for bar in page.xpath("//*[@class='bar']")] == ["--v:0.930", "--v:0.070"]
    assert len(page.xpath("//*[contains(@class, 'chosen')]")) == 1
    assert page.xpath("//title/text()") == page.xpath("//h1//text()") == ["Rome today"]


def test_a_card_says_how_the_span_was_found():
    (card,) = cards(draw(Document("Roma", (link("Roma", 0, 4, "Q220", title="Rome", kb="wiki", found_by="typo"),))))
    assert card == "Rome Q220 · wiki · found by: typo score 1.00"


def test_every_link_has_its_place_in_the_tab_order_and_a_description():
    text = "Rome, Oz and Bonn"
    document = Document(
        text, (link(text, 0, 4, title="Rome"), link(text, 6, 8, None), link(text, 13, 17, title="Bonn"))
    )
    page = draw(document)
    marks = page.xpath("//mark[@tabindex='0']")
    assert len(marks) == 3
    described = [page.get_element_by_id(mark.get("aria-describedby")).text_content() for mark in marks]
    assert [words.split()[0] for words in described] == ["Rome", "NIL", "Bonn"]


def test_only_the_first_candidates_are_shown():
    many = tuple(Candidate(f"Q{number}", f"T{number}", 0.1, 0.1) for number in range(12))
    (card,) = cards(draw(Document("Rome", (link("Rome", 0, 4, candidates=many),)), shown_candidates=3))
    assert "T2" in card
    assert "T3" not in card
    assert card.endswith("and 9 more")


@pytest.mark.parametrize(
    ("scores", "bars"),
    [
        ((0.6, 0.4), ["0.600", "0.400"]),
        ((-1.0, -3.0, -5.0), ["1.000", "0.500", "0.000"]),
        ((7.0, 7.0), ["1.000", "1.000"]),
        ((float("nan"), 0.5, float("inf")), ["0.000", "0.500", "0.000"]),
    ],
)
def test_bars_are_shares_whatever_the_scores_are(scores, bars):
    candidates = tuple(Candidate(f"Q{number}", "T", 0.1, score) for number, score in enumerate(scores))
    page = draw(Document("Rome", (link("Rome", 0, 4, score=scores[0], candidates=candidates),)))
    assert [bar.get("style") for bar in page.xpath("//*[@class='bar']")] == [f"--v:{bar}" for bar in bars]


def test_colours_follow_the_knowledge_base_and_the_legend_counts_them():
    text = "Rome Oz Bonn"
    links = (link(text, 0, 4, kb="a"), link(text, 5, 7, None), link(text, 8, 12, kb="b"), link(text, 8, 11, kb="a"))
    page = draw(Document(text, links))
    legend = [(item.get("class"), item.text_content()) for item in page.xpath("//ul[@class='legend']/li")]
    assert legend == [("k0", "a 2"), ("k1", "b 1"), ("nil", "NIL: named, but not in the knowledge base 1")]
    assert [mark.get("class") for mark in page.xpath("//mark")] == ["k0", "nil", "k1", "k0"]


def test_an_inner_link_is_drawn_above_the_outer_one_and_names_it():
    text = "the New York Times"
    outer = link(text, 0, 18, "Q9684", title="NYT")
    page = draw(Document(text, (outer, link(text, 4, 12, "Q60", title="NYC"))))
    first, second = page.xpath("//mark")
    assert second.getparent() is first
    assert [mark.get("style").split(";")[0] for mark in (first, second)] == ["--h:1", "--h:0"]
    assert "inside the New York Times → NYT" in cards(page)[0]
    assert "inside" not in cards(page)[1]


def test_links_of_one_span_share_a_card_but_have_a_line_each():
    layers = [Document("London", (link("London", 0, 6, kb, title=kb, kb=kb),), "d") for kb in ("wiki", "net")]
    page = draw(*layers)
    assert texts(draw(*layers)) == ["London"]
    assert len(page.xpath("//mark")) == 1
    assert [lane.get("class") for lane in page.xpath("//span[mark]")] == ["lane k1"]
    assert cards(page) == ["wiki wiki · wiki score 1.00 net net · net score 1.00"]


def test_documents_apart_are_not_layers():
    assert texts(draw(Document("a", id="1"), Document("a", id="2"), Document("a", id="1"))) == ["a", "a", "a"]


def test_a_link_across_the_end_of_another_is_drawn_in_two_pieces_but_reached_once():
    text = "University of Cambridge, England"
    page = draw(Document(text, (link(text, 0, 23, "Q1", title="Uni"), link(text, 14, 32, "Q2", title="City"))))
    pieces = [(mark.get("tabindex"), mark.xpath("text()")) for mark in page.xpath("//mark")]
    assert pieces == [("0", ["University of "]), ("0", ["Cambridge"]), (None, [", England"])]
    assert ["City" in card.text_content() for card in page.xpath("//span[@class='card']")] == [True, False, True]


def test_nothing_from_text_or_knowledge_base_is_obeyed():
    candidates = (Candidate(NASTY, NASTY, 0.5, 0.5),)
    nasty = Link(0, len(NASTY), NASTY, NASTY, NASTY, 0.5, candidates, NASTY)
    document = Document(NASTY, (nasty, Link(3, 9, NASTY[3:9], None)), NASTY)
    page = draw(document, title=NASTY, note=NASTY)
    assert not page.xpath("//script")
    assert not page.xpath("//comment()")
    assert len(page.xpath("//style")) == 1
    assert page.xpath("//title/text()") == [NASTY]
    assert {name for element in page.iter() for name in element.attrib if name.startswith("on")} == set()
    assert texts(page) == [NASTY]


def test_the_page_fetches_nothing():
    page = draw(Document("Rome", (link("Rome", 0, 4, "https://example.org/Q1"),)))
    assert not page.xpath("//@src | //@href | //link | //img")
    assert "default-src 'none'" in page.xpath("//meta/@content")[1]
    assert not re.search(r"url\(|@import", page.xpath("//style/text()")[0])


def test_control_characters_are_shown_not_sent():
    text = "a\x00b\x1bc\x7fd\x85e\ud800f\tg\r\nh\ri"
    html = linked_page([Document(text, (link(text, 0, 3),))])
    html.encode()
    assert texts(lxml.html.document_fromstring(html)) == ["a\u2400b\u241bc\u2421d\ufffde\ufffdf\tg\nh\ni"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", html)


def test_right_to_left_text_keeps_its_direction():
    text = "ולדה Rome"
    page = draw(Document(text, (link(text, 0, 4, title="\u202eevil"),)))
    assert page.xpath("//div[@class='text']/@dir") == ["auto"]
    assert page.xpath("//b/bdi/text()") == ["\u202eevil"]


def test_a_page_without_links_or_texts_is_still_a_page():
    assert texts(draw(Document("Nothing."))) == ["Nothing."]
    assert "0 texts · 0 links" in linked_page([])


SPANS = st.tuples(st.integers(0, 19), st.integers(1, 12), st.sampled_from(["a", "b", None]))


@given(text=st.text(min_size=20, max_size=20, alphabet="ab<&\n "), spans=st.lists(SPANS, max_size=8))
def test_however_links_lie_the_text_is_whole_and_each_span_is_reached_once(text, spans):
    links = tuple(link(text, start, min(start + length, 20), kb and "Q1", kb=kb) for start, length, kb in spans)
    page = draw(Document(text, links))
    ids = page.xpath("//@id")
    assert len(ids) == len(set(ids))
    assert set(" ".join(page.xpath("//@aria-describedby")).split()) <= set(ids)
    assert len(page.xpath("//mark[@tabindex]")) == len({(one.start, one.end) for one in links})
    drawn = {}
    for card in page.xpath("//span[@class='card']"):
        card.drop_tree()
    for mark in page.xpath("//mark"):
        key = mark.get("aria-describedby")
        if key:
            drawn[key] = mark.text_content()
    assert texts(page) == [text]
    assert all(words and any(one.text.startswith(words) for one in links) for words in drawn.values())


def test_a_long_text_takes_time_in_proportion():
    def seconds(many):
        text = "word " * many
        links = tuple(link(text, 5 * place, 5 * place + 4, kb="a") for place in range(many))
        start = time.perf_counter()
        linked_page([Document(text, links)])
        return time.perf_counter() - start

    seconds(100)
    assert seconds(40_000) < 40 * seconds(4_000)
