"""A small knowledge base that the tests of this room share, and what two of them must have in common to be equal."""

import pytest

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity, Form
from wellread.kb.store import KnowledgeBase

CITIES = (
    Entity("Q90", "Paris", "capital of France", "city", 412, {"Paris": 310, "City of Light": 4}, (("in", "Q142"),)),
    Entity("Q830149", "Paris, Texas", "city in Texas", "city", 9, {"Paris": 10, "Paris, Texas": 5}, (("in", "Q30"),)),
    Entity("Q142", "France", "country in Europe", "country", 900, {"France": 80}, (("capital", "Q90"),)),
    Entity("Q30", "United States", "country", "country", 999, {"US": 60, "U.S.": 3, "us": 0}),
    Entity("Q1490", "Tokyo", "capital of Japan", "city", 300, {"東京": 7, "Tōkyō": 2}),
    Entity("Q937", "Albert Einstein", "physicist", "person", 250, {"Albert Einstein": 9, "Einstein": 12}),
    Entity("Q468777", "existence", "the state of being", "idea", 260),
)
FORMS = (Form("geese", "goose", "n"), Form("axes", "axis", "n"))


def build_kb(path, records, **options):
    """A knowledge base of the given records at `path`; gives the tally."""
    return build(lambda tally: iter(records), path, origin=Origin("test", "CC0"), **options)


def content(kb):
    """All that a KB knows, without what belongs to its file: equal for equal KBs."""
    entities = {entity.id: (entity, frozenset(entity.facts)) for entity in kb.entities()}
    return (
        {
            id: (e.title, e.description, e.kind, e.popularity, dict(e.aliases), facts)
            for id, (e, facts) in entities.items()
        },
        set(kb.forms()),
    )


def text_index(kb):
    """Every word of the full-text index with the entities it leads to: (word, documents, times)."""
    return kb.connection.execute("SELECT term, doc, cnt FROM vocabulary ORDER BY term").fetchall()


@pytest.fixture
def path(tmp_path):
    """Where a built KB of cities is."""
    build_kb(tmp_path / "cities.kb", (*CITIES, *FORMS))
    return tmp_path / "cities.kb"


@pytest.fixture
def kb(path):
    """The KB of cities, writable."""
    with KnowledgeBase.open(path, writable=True) as opened:
        yield opened
