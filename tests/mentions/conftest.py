"""Small knowledge bases that the tests of this room share."""

import pytest

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity, Form
from wellread.kb.store import KnowledgeBase

NAMES = {
    "Q60": ("New York City", "city", ["New York City", "New York", "NYC", "Big Apple"]),
    "Q1384": ("New York", "state", ["New York", "State of New York"]),
    "Q312": ("Apple Inc.", "company", ["Apple", "Apple Inc."]),
    "Q89": ("apple", "fruit", ["apple"]),
    "Q30": ("United States", "country", ["US", "U.S.", "United States"]),
    "Q1490": ("Tokyo", "city", ["東京", "Tokyo"]),
    "Q2407": ("C++", "language", ["C++"]),
    "Q36153": ("Beyoncé", "person", ["Beyoncé", "Beyoncé Knowles-Carter"]),
}

SENSES = [
    Entity("axis-n", "axis", "a line", "n", aliases={"axis": 3}),
    Entity("ax-n", "ax", "a tool", "n", aliases={"ax": 2, "axe": 1}),
    Entity("axe-v", "axe", "to cut", "v", aliases={"axe": 1}),
    Entity("run-n", "run", "a score", "n", aliases={"run": 5}),
    Entity("run-v", "run", "to move", "v", aliases={"run": 9}),
    Entity("run_out-v", "run out", "to be used up", "v", aliases={"run out": 1}),
    Entity("lawyer-n", "attorney general", "a lawyer", "n", aliases={"attorney general": 1}),
    Entity("goose-n", "goose", "a bird", "n", aliases={"goose": 1}),
    Entity("happy-a", "happy", "glad", "a", aliases={"happy": 1}),
    Entity("wa-n", "Washington", "a state", "n", aliases={"WA": 1, "Washington": 1}),
    Entity("be-v", "be", "to exist", "v", aliases={"be": 10}),
    Entity("glass-n", "glass", "a material", "n", aliases={"glass": 1}),
    Form("axes", "axis", "n"),
    Form("ran", "run", "v"),
    Form("geese", "goose", "n"),
    Form("was", "be", "v"),
    Form("happiest", "happy", "a"),
]


def entity(id, popularity=0.0):
    title, kind, aliases = NAMES[id]
    return Entity(id, title, kind=kind, popularity=popularity, aliases=dict.fromkeys(aliases, 1.0))


@pytest.fixture
def names_kb(tmp_path):
    build(lambda tally: (entity(id) for id in NAMES), tmp_path / "names.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "names.kb", writable=True) as kb:
        yield kb


@pytest.fixture
def senses_kb(tmp_path):
    origin = Origin("test", extra={"inflection": "wordnet"})
    build(lambda tally: iter(SENSES), tmp_path / "senses.kb", origin=origin)
    with KnowledgeBase.open(tmp_path / "senses.kb", writable=True) as kb:
        yield kb
