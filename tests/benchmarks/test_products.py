"""The catalogue of invented products and the tickets about them: are the files what they claim to be?"""

import csv
import json
import re
from collections import Counter
from difflib import SequenceMatcher

import pytest
from benchmarks.data import PRODUCTS, products_kb
from benchmarks.linkingsets import choose_sets

from wellread.kb.store import KnowledgeBase


@pytest.fixture(scope="module")
def products():
    with (PRODUCTS / "products.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def tickets():
    return [json.loads(line) for line in (PRODUCTS / "tickets.jsonl").read_text("utf-8").splitlines()]


def mentions(tickets):
    return [(ticket["text"][start:end], entity) for ticket in tickets for start, end, entity in ticket["mentions"]]


def test_there_are_300_products_and_100_tickets_with_ids_of_their_own(products, tickets):
    assert len(products) == 300
    assert len({row["name"] for row in products.values()}) == 300
    assert [ticket["id"] for ticket in tickets] == [f"T{number:03}" for number in range(1, 101)]
    assert all(row["description"] and row["category"] for row in products.values())


def test_every_mention_is_a_whole_phrase_that_resembles_its_product(products, tickets):
    for surface, entity in mentions(tickets):
        row = products[entity]
        names = {name.lower() for name in (row["name"], *row["aliases"].split("|")) if name}
        assert surface == surface.strip()
        likeness = max(SequenceMatcher(None, surface.lower(), name).ratio() for name in names)
        assert likeness > 0.6 or any(surface.lower() in name for name in names), (surface, row["name"])


def test_mentions_do_not_overlap_and_do_not_cut_words(tickets):
    for ticket in tickets:
        last = 0
        for start, end, _ in ticket["mentions"]:
            assert last <= start < end <= len(ticket["text"])
            assert not re.match(r"\w\w", ticket["text"][max(start - 1, 0) : start + 1]) or start == 0
            last = end


def test_every_full_name_of_two_words_in_a_ticket_is_linked(products, tickets):
    for ticket in tickets:
        covered = {place for start, end, _ in ticket["mentions"] for place in range(start, end)}
        for row in products.values():
            if " " in row["name"]:
                for found in re.finditer(rf"\b{re.escape(row['name'])}\b", ticket["text"]):
                    assert found.start() in covered, (ticket["id"], row["name"])


def test_the_tickets_have_what_makes_them_hard(products, tickets):
    surfaces = mentions(tickets)
    names = {entity: row["name"] for entity, row in products.items()}
    aliases = {name.lower() for row in products.values() for name in (row["name"], *row["aliases"].split("|"))}
    assert sum(not ticket["mentions"] for ticket in tickets) >= 10
    assert sum(len(ticket["mentions"]) > 1 for ticket in tickets) >= 25
    assert sum(surface.lower() not in aliases for surface, _ in surfaces) >= 20  # misspelt, shortened, inflected
    assert sum(surface != names[entity] for surface, entity in surfaces) >= 50
    assert sum(surface.islower() for surface, _ in surfaces) >= 10
    for word in ("always", "edge", "bolt", "pure", "tempo", "silence"):  # as plain words, without a link
        assert any(
            word in re.findall(r"\w+", ticket["text"]) and not re.search(rf"(?i)\b{word}", surface)
            for ticket in tickets
            for surface in [" ".join(surface for surface, _ in mentions([ticket]))]
        ), word


def test_names_contain_each_other_and_share_aliases(products):
    names = {row["name"] for row in products.values()}
    assert {"Aero", "Aero Pro", "Aero Pro Max"} <= names
    shared = Counter(alias for row in products.values() for alias in row["aliases"].split("|") if alias)
    assert sum(count > 1 for count in shared.values()) >= 5


def test_the_catalogue_becomes_a_kb_by_the_public_command_and_is_kept(tmp_path, products):
    path = products_kb(tmp_path)
    with KnowledgeBase.open(path) as kb:
        assert len(kb) == 300
        assert kb.get("P002").title == "Aero Pro"
        assert kb.get("P002").kind == "electronics"
    before = path.stat().st_mtime_ns
    assert products_kb(tmp_path).stat().st_mtime_ns == before
    (tmp_path / "products.kb.sources").write_text("made from other files")
    assert products_kb(tmp_path).stat().st_mtime_ns != before


def test_both_halves_together_are_all_tickets(tickets):
    dev, test = (one.documents() for one in choose_sets(["products_dev", "products_test"]))
    assert (len(dev), len(test)) == (50, 50)
    assert {document.id for document in (*dev, *test)} == {ticket["id"] for ticket in tickets}
    assert dev[0].id == "T001"
