"""Names of other languages: with diacritics or without, in any case, composed or not, beside words of that language."""

import unicodedata

import pytest

from tests.toy_models import write_kb
from wellread import Linker
from wellread.kb.records import Entity
from wellread.mentions.proposals import WAYS, ProposalFinder

NAMES = [
    Entity("q1", "Köln", "a city"),
    Entity("q2", "Munich", "a city", "", 1, {"Muenchen": 1}),
    Entity("q3", "François Mitterrand", "a president"),
    Entity("q4", "Lodz", "a city"),
    Entity("q5", "Søren Kierkegaard", "a philosopher"),
]
TEXTS = {
    "Köln liegt am Rhein.": [("Köln", "q1")],
    "KÖLN UND koln": [("KÖLN", "q1"), ("koln", "q1")],
    "Von München nach Köln": [("München", "q2"), ("Köln", "q1")],
    "MÜNCHEN": [("MÜNCHEN", "q2")],
    "François Mitterrand traf ihn.": [("François Mitterrand", "q3")],
    "FRANÇOIS MITTERRAND traf, francois mitterrand rencontra": [
        ("FRANÇOIS MITTERRAND", "q3"),
        ("francois mitterrand", "q3"),
    ],
    "Łódź und Soren Kierkegaard": [("Łódź", "q4")],
    "Søren Kierkegaard aus Kopenhagen": [("Søren Kierkegaard", "q5")],
}


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    with write_kb(tmp_path_factory.mktemp("names") / "names.kb", NAMES) as kb:
        yield kb


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("text", TEXTS)
def test_names_are_found_and_end_where_they_end(kb, text, form):
    written = unicodedata.normalize(form, text)
    expected = [(unicodedata.normalize(form, name), entity) for name, entity in TEXTS[text]]
    found = Linker.load(kb, "prior").link(written).links
    assert [(link.text, link.entity) for link in found] == expected
    assert {link.found_by for link in found} <= {"exact", "case"}
    proposals = ProposalFinder(kb).find([written])
    spans = zip(proposals.starts.tolist(), proposals.ends.tolist(), proposals.ways.tolist(), strict=True)
    by_name = [(written[start:end], WAYS[way]) for start, end, way in spans]
    assert {(name, way) for name, way in by_name if way in ("exact", "case")} >= {
        (name, link.found_by) for (name, _), link in zip(expected, found, strict=True)
    }


def test_a_given_span_is_looked_up_in_its_other_spelling(kb):
    (document,) = Linker.load(kb, "prior").link_given(["in München"], [[(3, 10)]])
    assert [link.entity for link in document.links] == ["q2"]
