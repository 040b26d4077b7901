"""The page's knowledge in a real browser: search, add, change, remove."""

import pytest
import requests

from tests.browser import link, shown
from tests.servers import BEARER, TOKEN

pytestmark = pytest.mark.slow


def test_a_new_entity_is_added_and_linked_at_once(page, address):
    link(page, "we saw zanzibar from cork")
    assert all("zan" not in str(entity) for *_, entity in shown(page))
    page.click("#tab-knowledge")
    page.select_option("#where", "words")
    for name, value in (("id", "zan"), ("title", "zanzibar"), ("aliases", "the zan | 3\nzed"), ("facts", "near | w1")):
        page.fill(f"#e-{name}", value)
    page.click("#save")
    page.wait_for_selector("#edit-says:has-text('Give the token')")
    page.fill("#token", "wrong")
    page.click("#save")
    page.wait_for_selector('#edit-says:has-text("server\'s token")')
    page.complaints.clear()  # the browser's own note of the error_response
    page.fill("#token", TOKEN)
    page.click("#save")
    page.wait_for_selector("#edit-says:has-text('was added')")
    page.click("#tab-links")
    assert any(entity == "zan" for *_, entity in shown(page))
    known = requests.get(f"{address}/entities/zan?kb=words", timeout=60).json()
    assert known["aliases"] == {"the zan": 3.0, "zanzibar": 1.0, "zed": 1.0}
    assert known["facts"] == [["near", "w1"]]
    page.click("mark:has-text('zanzibar')")
    page.click("#card button:has-text('Edit')")
    page.fill("#e-description", "an island")
    page.click("#save")
    page.wait_for_selector("#edit-says:has-text('was updated')")
    assert requests.get(f"{address}/entities/zan?kb=words", timeout=60).json() == known | {
        "description": "an island",
        "revision": known["revision"] + 1,
    }
    page.click("#remove")
    page.wait_for_selector("#edit-says:has-text('Press again to remove')")
    page.fill("#e-kind", "island")  # something else: not so sure after all
    assert page.inner_text("#remove") == "Remove"
    page.click("#remove")
    assert requests.get(f"{address}/entities/zan?kb=words", timeout=60).status_code == 200
    page.click("#remove")
    page.wait_for_selector("#edit-says:has-text('was removed')")
    page.click("#tab-links")
    assert all(entity != "zan" for *_, entity in shown(page))


def test_a_new_entity_takes_the_place_of_no_other(page, address):
    page.click("#tab-knowledge")
    page.select_option("#where", "words")
    page.fill("#e-id", "w1")
    page.fill("#e-title", "brook")
    page.fill("#token", TOKEN)
    page.click("#save")
    page.wait_for_selector("#edit-says:has-text(\"There is an entity 'w1' already\")")
    page.complaints.clear()
    assert requests.get(f"{address}/entities/w1?kb=words", timeout=60).json()["title"] == "river"


def test_any_name_is_kept_and_an_id_has_no_blanks_around_it(page, address):
    page.click("#tab-knowledge")
    page.select_option("#where", "words")
    for name, value in (("id", " brook "), ("title", "brook"), ("aliases", "__proto__ | 3\nconstructor | 2\na | b")):
        page.fill(f"#e-{name}", value)
    page.fill("#token", TOKEN)
    page.click("#save")
    page.wait_for_selector("#edit-says:has-text('was added')")
    known = requests.get(f"{address}/entities/brook?kb=words", timeout=60).json()
    assert known["aliases"] == {"__proto__": 3.0, "a | b": 1.0, "brook": 1.0, "constructor": 2.0}
    requests.delete(f"{address}/entities/brook?kb=words", headers=BEARER, timeout=60).raise_for_status()


def test_who_picks_what_was_found_is_led_to_it_however_far_down_it_is(page, address):
    for number in range(25):
        body = {"title": f"brook {number}", "description": "runs and runs " * 20}
        requests.put(f"{address}/entities/b{number}", json=body, headers=BEARER, timeout=60).raise_for_status()
    page.set_viewport_size({"width": 380, "height": 700})
    page.click("#tab-knowledge")
    page.fill("#query", "broo")
    page.press("#query", "Enter")
    page.wait_for_selector("#found-says:has-text('The first 20 entities; say more')")
    page.click("#found li button >> nth=0")
    assert page.input_value("#e-title").startswith("brook")
    assert page.evaluate("document.activeElement.id") == "e-title"
    page.wait_for_function(
        """() => { const at = document.activeElement.getBoundingClientRect();
        return at.top >= 0 && at.bottom <= innerHeight; }"""
    )
    for number in range(25):
        requests.delete(f"{address}/entities/b{number}", headers=BEARER, timeout=60).raise_for_status()


def test_of_two_searches_the_last_one_is_shown(page):
    page.click("#tab-knowledge")
    held = []
    page.route("**/entities?search=merc*", lambda route: held.append(route))
    page.fill("#query", "merc")
    page.press("#query", "Enter")
    page.wait_for_selector("#found-says:has-text('Searching…')")
    page.fill("#query", "cork")
    page.press("#query", "Enter")
    page.wait_for_selector("#found li:has-text('cork')")
    with page.expect_response("**/entities?search=merc*"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert "mercury" not in page.inner_text("#found")


def test_entities_are_searched_for(page):
    page.click("#tab-knowledge")
    page.fill("#query", "merc")
    page.press("#query", "Enter")
    page.wait_for_selector("#found li")
    assert page.locator("#found li").count() == 2
    page.click("#found li button")
    assert page.input_value("#e-title").startswith("mercury")
    page.fill("#query", "meruryc")
    page.select_option("#how", "fuzzy")
    page.press("#query", "Enter")
    page.wait_for_selector("#found li")
    page.fill("#query", "nothing such")
    page.select_option("#how", "text")
    page.press("#query", "Enter")
    page.wait_for_selector("#found-says:has-text('Nothing found')")
