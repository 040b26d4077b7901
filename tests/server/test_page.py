"""The page in a real browser: every action of a person, and that nothing from a text or a knowledge base is run."""

import json
import re

import pytest
import requests

from tests.browser import EVIL, TEXT, link, served, shown, visit
from tests.servers import BEARER
from wellread import Document

pytestmark = pytest.mark.slow


def test_a_text_is_linked_and_a_mark_opens_its_card(page, address):
    link(page)
    assert shown(page) == served(address)
    page.click("mark:has-text('river')")
    page.wait_for_selector("#card h2:has-text('river')")
    card = page.inner_text("#card")
    assert "a stream of water" in card
    assert page.locator("#card .candidates .bar").count() >= 1
    page.click("#card .facts button:has-text('city')")
    page.wait_for_selector("#card h2:has-text('city')")
    assert "← near" in page.inner_text("#card")
    page.click("#card .back")
    page.wait_for_selector("#card h2:has-text('river')")


def test_candidates_of_one_name_are_distinguished(page, address):
    senses = {"s1": "a low voice", "s2": "a fish of rivers", "s3": ""}
    for id, gist in senses.items():
        body = {"title": "bass", "description": gist}
        requests.put(f"{address}/entities/{id}?kb=words", json=body, headers=BEARER, timeout=60).raise_for_status()
    link(page, "a bass in the river")
    page.click("mark:has-text('bass')")
    page.wait_for_selector("#card .candidates small:has-text('fish')")
    page.wait_for_selector("#card .candidates small:has-text('voice')")
    assert sorted(page.locator("#card .candidates small").all_inner_texts()) == [
        "a fish of rivers",
        "a low voice",
        "s3",
    ]
    page.click("mark:has-text('river')")
    page.wait_for_selector("#card h2:has-text('river')")
    assert page.locator("#card .candidates small").count() == 0
    for id in senses:
        requests.delete(f"{address}/entities/{id}?kb=words", headers=BEARER, timeout=60).raise_for_status()


def test_nothing_jumps_when_a_text_is_linked_and_the_open_mark_stays_so(page):
    top = lambda: page.evaluate("document.getElementById('result').getBoundingClientRect().top")  # noqa: E731
    before = top()
    link(page)
    assert top() == before
    page.click("mark:has-text('river')")
    page.wait_for_selector("#card h2:has-text('river')")
    page.locator("#threshold").fill("0.01")
    assert page.locator("mark.chosen").all_inner_texts() == ["river"]
    page.click("#card .close")
    assert (page.locator("mark.chosen").count(), top()) == (0, before)


def test_half_a_letter_is_read_as_none_and_a_text_that_is_refused_is_not_in_the_address(page):
    page.evaluate("document.getElementById('text').value = 'cut \\ud83d near cork'")
    page.click("#go")
    page.wait_for_selector("#result mark:has-text('cork')")
    assert page.inner_text(".text") == "cut \ufffd near cork"
    said = page.url
    page.fill("#text", "x" * 100_001)
    page.click("#go")
    page.wait_for_selector("#status:has-text('at most 100,000 are accepted')")
    assert page.url == said
    page.complaints.clear()


def test_another_threshold_needs_no_other_run(page, address):
    link(page)
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    counts = set()
    for threshold in (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0):
        page.locator("#threshold").fill(str(threshold))
        assert shown(page) == served(address, threshold=threshold), threshold
        counts.add(len(shown(page)))
    assert requested == []
    assert len(counts) > 2
    page.click("#usual")
    assert shown(page) == served(address)


def test_of_names_that_overlap_the_first_is_shown_though_all_are_listed(page, address):
    text, words = "the old river city planet", lambda links: [link for link in links if link[2] == "words"]
    link(page, text)
    assert len(words(served(address, text, overlaps="keep"))) == 4
    for threshold in (0.0, 0.04, 0.1):
        page.locator("#threshold").fill(str(threshold))
        assert words(shown(page)) == words(served(address, text, threshold=threshold)), threshold
    assert "w5" in [link[3] for link in words(served(address, text, overlaps="keep", threshold=0.1))]
    assert words(shown(page)) == []  # a weak link still takes the place of others


def test_layers_are_switched_off_and_on(page):
    link(page)
    kbs = lambda: {kb for _, _, kb, _ in shown(page)}  # noqa: E731
    assert kbs() == {"toy", "words"}
    page.uncheck("#layers label:has-text('words') input")
    assert kbs() == {"toy"}
    page.check("#layers label:has-text('words') input")
    page.uncheck("#layers label:has-text('toy') input")
    assert kbs() == {"words"}


def test_nil_is_a_layer_that_is_off_until_it_is_chosen(page, address):
    text = "mayor of cork , mayor of planet"
    link(page, text)
    nils = lambda: [one for one in shown(page) if one[3] is None]  # noqa: E731
    wanted = [one for one in served(address, text, nil=True) if one[3] is None]
    assert (nils(), len(wanted)) == ([], 1)
    linked = shown(page)
    page.check("#layers label:has-text('not in any') input")
    page.wait_for_selector("#result mark.nil")
    assert (nils(), [one for one in shown(page) if one[3] is not None]) == (wanted, linked)
    said = page.url
    page.uncheck("#layers label:has-text('not in any') input")
    assert shown(page) == linked
    visit(page, said)
    page.wait_for_selector("#result mark.nil")


def test_a_mark_says_how_its_span_was_found(page):
    link(page)
    assert "found by: exact" in page.get_attribute("mark:has-text('river')", "title")
    page.click("mark:has-text('river')")
    page.wait_for_selector("#card:has-text('found by: exact')")


def test_two_linkers_stand_side_by_side(page, address):
    link(page, "mercury was born in cork and dora wrote to mercury")
    page.select_option("#other", "prior")
    page.wait_for_selector("#result.two .pane:nth-child(2) mark")
    text = "mercury was born in cork and dora wrote to mercury"
    assert shown(page, 0) == served(address, text)
    assert shown(page, 1) == served(address, text, model="prior")
    only = len(set(shown(page, 1)) - set(shown(page, 0)))
    assert f"{only} only here" in page.inner_text(".pane:nth-child(2) h2")


def test_the_address_tells_it_all_to_somebody_else(page, address):
    link(page, "cork & dora #1 = 100 % of cork?")
    page.locator("#threshold").fill("0.11")
    page.uncheck("#layers label:has-text('words') input")
    page.click("#share")
    said, marks = page.url, shown(page)
    assert "#" in said
    page.goto("about:blank")
    visit(page, said)
    page.wait_for_selector("#result mark")
    assert page.input_value("#text") == "cork & dora #1 = 100 % of cork?"
    assert (page.inner_text("#threshold-says"), shown(page)) == ("0.11", marks)


def test_links_are_downloaded_as_documents(page):
    link(page)
    with page.expect_download() as waiting:
        page.click("#download")
    with open(waiting.value.path()) as file:
        info = json.load(file)
    document = Document.from_dict(info)
    assert waiting.value.suggested_filename == "links.json"
    assert sorted(((one.start, one.end, one.kb, one.entity) for one in document.links), key=str) == shown(page)


def test_what_texts_and_knowledge_say_is_never_run(page, address):
    """Markup in a text, in an entity and in an address is shown as it is written; the fixture sees that nothing ran."""
    link(page, f"evil {EVIL} and evil </textarea><script>window.hit=2</script>")
    page.click("mark:has-text('evil')")
    page.wait_for_selector("#card h2")
    assert page.inner_text("#card h2") == EVIL
    assert page.inner_text(".text").startswith(f"evil {EVIL}")
    page.click("#card button:has-text('Edit')")
    assert page.input_value("#e-title") == EVIL
    page.fill("#query", "evil")
    page.select_option("#where", "words")
    page.press("#query", "Enter")
    page.wait_for_selector("#found li")
    assert page.inner_text("#found li b") == EVIL
    visit(page, f"{address}/#text={EVIL}&model={EVIL}&off={EVIL}")
    page.click("#tab-attention")
    page.fill("#explained", EVIL)
    for box in page.locator("#explain input[type=checkbox]").all():
        box.uncheck()
    page.click("#explain button")
    page.frame_locator("#view").locator("h1").wait_for()
    assert page.frame(name="view").evaluate("window.hit") is None
    page.wait_for_timeout(200)


def test_attention_is_looked_at_by_layer_and_head(page):
    page.click("#tab-attention")
    page.fill("#explained", "who wrote to the mayor of cork")
    for box in page.locator("#explain input[type=checkbox]").all():
        box.uncheck()  # entities and phrases are spaCy's, which may not be here
    page.click("#explain button")
    frame = page.frame_locator("#view")
    frame.locator("#which").wait_for()
    frame.locator("button[data-layer='1'][data-head='0']").click()
    assert frame.locator("#which").inner_text() == "layer 1, head 0"
    assert frame.locator("#view1 button").count() >= 7


def test_an_error_is_shown_in_the_frame_and_on_the_page(page):
    page.click("#tab-attention")
    page.fill("#explained", "mayor " * 300)
    for box in page.locator("#explain input[type=checkbox]").all():
        box.uncheck()
    page.click("#explain button")
    page.frame_locator("#view").locator("p:has-text('give a shorter text')").wait_for()
    page.wait_for_selector("#looking:has-text('give a shorter text')")  # for those who do not see the frame
    page.click("#tab-links")
    page.fill("#text", "x" * 100_001)
    page.click("#go")
    page.wait_for_selector("#status:has-text('at most 100,000 are accepted')")
    page.complaints.clear()


def test_a_view_without_an_answer_is_reported(page):
    page.click("#tab-attention")
    page.fill("#explained", "cork")
    for path in ("/explain/page", "/health"):
        page.route(f"**{path}", lambda route: route.abort())
    page.click("#explain button")
    page.wait_for_selector("#looking.wrong:has-text('The server does not answer')")
    assert not page.is_visible("#view")
    page.complaints.clear()


def test_who_leaves_a_card_is_back_at_its_mark_though_marks_were_drawn_anew(page):
    link(page)
    page.focus("mark:has-text('river')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#card.open:focus")
    page.locator("#threshold").fill("0.01")
    page.focus("#card")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "river"


def test_a_person_without_a_mouse_reaches_all(page):
    page.focus("#text")
    page.fill("#text", TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#result mark")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "MARK":
            break
    first = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.tagName") == "MARK"
    assert page.evaluate("document.activeElement.textContent") != first
    page.keyboard.press("Enter")
    page.wait_for_selector("#card.open:focus")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#card') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.tagName") == "MARK"
    page.focus("#tab-links")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-attention"
    assert page.is_visible("#attention")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.id") == "tab-knowledge"
    page.keyboard.press("Home")
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "result"
    assert page.input_value("#text") == TEXT  # and not what the address says after #
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, textarea, button, iframe")].filter((one) => !(
        one.labels?.length || one.textContent.trim() || one.title || one.getAttribute("aria-label")
        )).map((one) => one.id)"""
    )
    assert unnamed == []


def test_letters_beyond_16_bits_do_not_shift_marks(page):
    link(page, "😀𝔓 cork 👩‍👩‍👧 dora")
    pairs = page.evaluate(
        "[...document.querySelectorAll('#result mark')].map((one) => [one.textContent, one.links[0].text])"
    )
    assert [shown for shown, _ in pairs] == [meant for _, meant in pairs]
    assert {"cork", "dora"} <= {shown for shown, _ in pairs}


@pytest.mark.parametrize("width", [320, 390, 768, 1600])
def test_no_window_is_too_narrow(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    link(page, TEXT + " " + "x" * 300)
    page.select_option("#other", "prior")
    page.wait_for_selector("#result.two")
    page.click("mark")
    for tab in ("links", "attention", "knowledge"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab


def test_dark_and_light_can_both_be_read(page):
    """The contrast of text on its ground is that of WCAG AA, in both."""

    def light(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for place in ("body", ".soft", "#go", "#share", "#text"):
            ink, ground = page.evaluate(
                """(place) => {
                const one = document.querySelector(place); let around = one;
                while (getComputedStyle(around).backgroundColor.endsWith(", 0)")) around = around.parentElement;
                return [getComputedStyle(one).color, getComputedStyle(around).backgroundColor]; }""",
                place,
            )
            low, high = sorted((light(ink), light(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, place, ink, ground)
