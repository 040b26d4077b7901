"""Corrections and the first steps on the page in a real browser."""

import json

import pytest
import requests

from tests.browser import link, served, shown, visit
from tests.servers import BEARER, TOKEN

pytestmark = pytest.mark.slow


@pytest.fixture
def trusted(page):
    page.evaluate("(token) => { document.getElementById('token').value = token; }", TOKEN)
    return page


def kept(address, kb):
    lines = requests.get(f"{address}/corrections?kb={kb}", headers=BEARER, timeout=60).text.splitlines()
    return {one["text"]: one["mentions"] for one in map(json.loads, lines)}


def open_card(page, name):
    page.click(f"#result mark:has-text('{name}')")
    page.wait_for_selector("#card .judge")


def test_a_link_is_marked_as_right_wrong_and_back(page, address):
    text = "a river in a city of old"
    link(page, text)
    open_card(page, "river")
    page.click("#card .judge button:has-text('Right')")
    page.fill("#card input.token", "wrong")
    page.press("#card input.token", "Enter")
    page.wait_for_selector('#card :text("This is not the server\'s token")')
    page.complaints.clear()
    page.fill("#card input.token", TOKEN)
    page.press("#card input.token", "Enter")
    page.wait_for_selector("#result mark.right.chosen:has-text('river')")
    assert kept(address, "words")[text] == [[2, 7, "w1", "river"]]
    page.click("#card .judge button:has-text('Wrong')")
    page.wait_for_selector("#result mark.wrong:has-text('river')")
    assert kept(address, "words")[text] == [[2, 7, None, None]]
    with page.expect_download() as waiting:
        page.click("#download")
    with open(waiting.value.path()) as file:
        assert "w1" not in [one["entity"] for one in json.load(file)["links"]]
    page.wait_for_selector("#kept-says:has-text('1 correction')")
    page.click("#card .judge button:has-text('Undo')")
    page.wait_for_selector("#result mark:not(.wrong):has-text('river')")
    assert text not in kept(address, "words")
    assert page.is_hidden("#kept")


def test_another_candidate_or_entity_is_chosen_and_gets_the_name(trusted, address):
    page, text = trusted, "the old river of old"
    link(page, text)
    open_card(page, "old river")
    (chosen,) = [one[3] for one in shown(page) if one[:3] == (4, 13, "words")]
    other = {"w4": "w6", "w6": "w4"}[chosen]
    title = {"w4": "old river", "w6": "old river, the band"}[other]
    page.click(f"#card .candidates button[aria-label='{title} is right']")
    page.wait_for_selector("#result mark.changed:has-text('old river')")
    page.wait_for_selector(f"#card h2 bdi:text-is('{title}')")
    assert kept(address, "words")[text] == [[4, 13, other, title]]
    assert (4, 13, "words", other) in shown(page)
    page.click("#card .judge button:has-text('Another entity')")
    page.fill("#card .finder input[type=search]", "city")
    page.click("#card .choices button:has-text('w2')")
    page.wait_for_selector("#card h2 bdi:text-is('city')")
    assert kept(address, "words")[text] == [[4, 13, "w2", "city"]]
    page.click("#card button:has-text('to its names')")
    page.wait_for_selector("#card .names li:has-text('old river')")
    assert requests.get(f"{address}/entities/w2?kb=words", timeout=60).json()["aliases"]["old river"] == 1.0


def select(page, name):
    """Select a name in the linked text, as with the mouse."""
    page.evaluate(
        """(name) => { const box = document.querySelector(".text"), from = box.textContent.indexOf(name);
        const walk = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), range = document.createRange();
        for (let node = walk.nextNode(), at = 0; node; at += node.data.length, node = walk.nextNode()) {
          for (const [place, set] of [[from, "setStart"], [from + name.length, "setEnd"]]) {
            if (at <= place && place <= at + node.data.length) range[set](node, place - at);
          }
        }
        getSelection().removeAllRanges(); getSelection().addRange(range); }""",
        name,
    )
    page.dispatch_event("#result .text", "mouseup")


def test_a_selected_name_becomes_a_link_and_a_name_of_its_entity(trusted, address):
    page, text = trusted, "😀 a zorkish word near cork"
    link(page, text)
    select(page, " zorkish ")
    page.wait_for_selector("#card:has-text('Add a link')")
    page.select_option("#card .finder select", "words")
    page.fill("#card .finder input[type=search]", "old riv")
    page.click("#card .choices button:has-text('w4')")
    page.wait_for_selector("#result mark.added:has-text('zorkish')")
    assert kept(address, "words")[text] == [[4, 11, "w4", "old river"]]
    assert requests.get(f"{address}/entities/w4?kb=words", timeout=60).json()["aliases"]["zorkish"] == 1.0
    assert (4, 11, "words", "w4") in served(address, text)  # from now on by its name


def test_a_name_is_selected_without_a_mouse(trusted):
    page = trusted
    page.click("#add-link")
    page.wait_for_selector("#status:has-text('Link the text first')")
    link(page, "a river near cork")
    page.click("#add-link")
    page.wait_for_selector("#status:has-text('Select the name first')")
    page.evaluate("document.getElementById('text').setSelectionRange(8, 12)")
    page.click("#add-link")
    page.wait_for_selector("#card .finder input:focus")
    assert page.input_value("#card .finder input[type=search]") == "near"
    page.keyboard.press("Escape")
    assert page.locator("#card .finder").count() == 0


def test_corrections_are_downloaded_as_gold_documents(trusted):
    page = trusted
    link(page, "cork by the river")
    open_card(page, "river")
    page.click("#card .judge button:has-text('Right')")
    page.wait_for_selector("#result mark.right")
    page.wait_for_selector("#kept-says:has-text('correction')")
    files = []
    page.on("download", lambda one: files.append(one))
    page.click("#kept-download")
    for _ in range(50):
        if any(one.suggested_filename == "words.corrections.jsonl" for one in files):
            break
        page.wait_for_timeout(50)
    file = next(one for one in files if one.suggested_filename == "words.corrections.jsonl")
    with open(file.path()) as lines:
        assert "cork by the river" in [json.loads(line)["text"] for line in lines]


def test_one_name_in_two_knowledge_bases_is_one_mark(page, address):
    body = {"title": "cork", "description": "bark of an oak"}
    requests.put(f"{address}/entities/bark?kb=words", json=body, headers=BEARER, timeout=60).raise_for_status()
    link(page, "the cork")
    assert page.locator("#result mark").count() == 1
    assert {kb for _, _, kb, _ in shown(page)} == {"toy", "words"}
    assert "1 name, 2 links" in page.inner_text(".pane h2")
    page.check("#layers label:has-text('not in any') input")
    page.wait_for_selector("#result:not([aria-busy])")  # linking again closes the card
    page.click("#result mark")
    page.wait_for_selector("#card :text('in toy')")
    page.wait_for_selector("#card :text('in words')")
    assert page.locator("#result mark.nil").count() == 0
    requests.delete(f"{address}/entities/bark?kb=words", headers=BEARER, timeout=60).raise_for_status()


def test_the_sample_text_fits_and_the_first_page_explains_itself(page, address):
    assert page.input_value("#text") == requests.get(f"{address}/sample", timeout=60).json()["text"]
    assert "Pick an underlined name" in page.inner_text("#result")
    page.click("#go")
    page.wait_for_selector("#result mark")
    assert page.inner_text("#threshold-says").endswith("(usual)")
    assert page.inner_text("#threshold-says")[0] in "01"


def test_a_server_that_maps_no_lists_has_no_tab_for_it(page, address):
    schema = requests.get(f"{address}/openapi.json", timeout=60).json()
    del schema["paths"]["/map"]
    page.route("**/openapi.json", lambda route: route.fulfill(json=schema))
    visit(page, f"{address}/#again")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.is_hidden("#tab-map")
    page.focus("#tab-attention")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-knowledge"


def test_a_text_without_links_says_what_to_do(page):
    page.fill("#text", "xqz")
    page.click("#go")
    page.wait_for_selector("#result :text('search for it under Knowledge')")
    page.click("#result button:has-text('search for it under Knowledge')")
    page.wait_for_selector("#found-says:has-text('add it as a new entity')")
    page.click("#tab-links")
    for box in page.locator("#layers input").all():
        box.uncheck()
    page.wait_for_selector("#result :text('All layers are off')")


def test_search_begins_while_typing_and_a_saved_entity_is_shown_in_the_text(trusted, address):
    page = trusted
    link(page, "we saw zanzibar from cork")
    page.click("#tab-knowledge")
    page.type("#query", "merc")
    page.wait_for_selector("#found li:has-text('mercury')")
    page.select_option("#where", "words")
    page.fill("#e-id", "zan")
    page.fill("#e-title", "zanzibar")
    page.click("#save")
    page.wait_for_selector("#edit-says:has-text('It is linked: zanzibar')")
    assert page.inner_text("#edit-title") == "zanzibar in words"
    page.click("#edit-says button:has-text('see it in the text')")
    page.wait_for_selector("#result mark.chosen:has-text('zanzibar')")
    page.wait_for_selector("#card h2:has-text('zanzibar')")
    requests.delete(f"{address}/entities/zan?kb=words", headers=BEARER, timeout=60).raise_for_status()


def test_a_list_is_mapped(page):
    page.click("#tab-map")
    page.fill("#names", "cork\nqqxxzz\n")
    page.click("#map-form button.main")
    page.wait_for_selector("#map-says:has-text('2 names, 1 of them matched')")
    assert "cork" in page.inner_text("#mapped")
    assert "no match" in page.inner_text("#mapped")


def test_mapped_names_are_safe_in_a_spreadsheet(page):
    row = {"text": "=cork, the city", "entity": "p2", "title": "cork", "score": 0.93, "found_by": "words"}
    other = {"entity": "p3", "title": "dover", "score": 0.01}
    rows = [{**row, "candidates": [row, other]}, {"text": "zz", "entity": None, "title": None, "score": None}]
    rows[1] |= {"found_by": None, "candidates": []}
    sent = []

    def answer(route):
        sent.append(route.request.post_data_json)
        route.fulfill(json={"kb": "toy", "strings": rows})

    page.route("**/map", answer)
    page.click("#tab-map")
    page.fill("#names", "=cork, the city\n\nzz\n")
    page.click("#map-form button.main")
    page.wait_for_selector("#map-says:has-text('2 names, 1 of them matched')")
    assert sent == [{"strings": ["=cork, the city", "zz"], "kb": "toy", "best": 3}]
    assert "no match" in page.inner_text("#mapped tr:nth-child(2)")
    with page.expect_download() as waiting:
        page.click("#map-download")
    with open(waiting.value.path(), newline="") as file:
        assert file.read().splitlines()[1] == '"\'=cork, the city",p2,cork,0.93,words'
