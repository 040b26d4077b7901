"""Finding entities by what a person types."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wellread.errors import UsageError
from wellread.kb import search
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase


def found(kb, query, how, **options):
    return [entity.id for entity in kb.search(query, how=how, **options)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("par", ["Q90", "Q830149"]),
        ("PARIS", ["Q90", "Q830149"]),
        ("paris te", ["Q830149"]),
        ("light", ["Q90"]),
        ("einst", ["Q937"]),
        ("tokyo", ["Q1490"]),
        ("東", ["Q1490"]),
        ("東京", ["Q1490"]),
        ("to\u0304k", ["Q1490"]),
        ("u.s", ["Q30"]),
        ("capital", []),
        ("light par", []),
        ("paris france", []),
        ("", []),
        ("_ -", []),
    ],
)
def test_a_beginning_finds_the_names_that_go_on_so_the_best_known_first(kb, query, expected):
    assert found(kb, query, "prefix") == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("capital of", ["Q90", "Q1490"]),
        ("paris capital", ["Q90"]),
        ("texas city", ["Q830149"]),
        ("physicist", ["Q937"]),
        ("physici", []),
        ("", []),
    ],
)
def test_words_are_found_in_names_and_descriptions(kb, query, expected):
    assert sorted(found(kb, query, "text")) == sorted(expected)


def test_a_word_in_a_name_weighs_more_than_one_in_a_description(kb):
    kb.add([Entity("Q1", "Europe", "a continent"), Entity("Q2", "Asia", "a continent beside Europe and not Europe")])
    assert found(kb, "europe", "text")[0] == "Q1"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("einstien", "Q937"),
        ("albrt einstien", "Q937"),
        ("pariss", "Q90"),
        ("paris texsa", "Q830149"),
        ("untied states", "Q30"),
        ("Toukyo", "Q1490"),
        ("existance", "Q468777"),
    ],
)
def test_a_name_with_typing_errors_finds_what_was_meant_first(kb, query, expected):
    assert found(kb, query, "fuzzy")[0] == expected


def test_a_near_word_goes_before_a_better_known_entity_and_fame_decides_between_equals(kb):
    assert found(kb, "einstien", "fuzzy")[:2] == ["Q937", "Q468777"]
    kb.add([Entity("Q38193", "Alfred Einstein", popularity=999)])
    assert found(kb, "einstien", "fuzzy")[:2] == ["Q38193", "Q937"]


def test_a_wrong_first_letter_is_forgiven_where_nothing_else_is_near(kb):
    assert found(kb, "xinstein", "fuzzy")[0] == "Q937"


def test_gibberish_finds_nothing(kb):
    assert found(kb, "qqqqqqq", "fuzzy") == []
    assert found(kb, "paris qqqqqqq", "fuzzy") == []


def test_a_limit_is_kept(kb):
    assert len(found(kb, "paris", "prefix", limit=1)) == 1
    assert len(found(kb, "capital", "text", limit=1)) == 1
    assert len(found(kb, "pariss", "fuzzy", limit=1)) == 1


def test_an_unknown_way_to_search_is_a_usage_error(kb):
    with pytest.raises(UsageError, match="how='exact' is not a way to search; choose prefix, text or fuzzy"):
        kb.search("paris", how="exact")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=12), st.text('"*()^:{}-+ANDORNOTNEAR aé\0\u0301東\u0e01𐌰', max_size=12)))
def test_whatever_is_typed_is_never_an_error(kb, query):
    for how in ("prefix", "text", "fuzzy"):
        kb.search(query, how=how)


@pytest.mark.parametrize("how", ["text", "fuzzy"])
def test_a_repeated_word_is_looked_for_once(kb, monkeypatch, how):
    requested = []
    matching = search._matching
    monkeypatch.setattr(
        search, "_matching", lambda *given, **more: requested.append(given[1]) or matching(*given, **more)
    )
    assert found(kb, "Paris paris " * 40, how) == found(kb, "paris", how)
    assert requested[0] == requested[1]


@pytest.mark.parametrize(("how", "most"), [("text", 16), ("fuzzy", 8)])
def test_the_number_of_words_looked_for_is_bounded(kb, monkeypatch, how, most):
    requested = []
    monkeypatch.setattr(search, "_matching", lambda connection, match, *_, **__: requested.append(match) or [])
    monkeypatch.setattr(search, "_alike", lambda connection, term: [term])
    kb.search(" ".join(f"word{number}" for number in range(80)), how=how)
    assert requested[-1].count(" AND ") == most - 1


def test_a_word_that_is_like_none_ends_a_fuzzy_search(kb, monkeypatch):
    requested = []
    monkeypatch.setattr(search, "_alike", lambda connection, term: requested.append(term))
    assert found(kb, "qqqqq paris tokyo", "fuzzy") == []
    assert requested == ["qqqqq"]


@pytest.mark.parametrize("how", ["prefix", "text", "fuzzy"])
def test_a_search_that_nobody_waits_for_ends(tmp_path, how):
    entities = [Entity(f"e{number}", f"walled town {number}", "a town", "town") for number in range(3_000)]
    build(lambda tally: iter(entities), tmp_path / "towns.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "towns.kb") as kb:
        with pytest.raises(search.SearchStoppedError):
            kb.search("walled twon" if how == "fuzzy" else "walled", how=how, stop=lambda: True)
        assert kb.search("walled", how=how, limit=3, stop=lambda: False)
        assert len(kb.search("walled", how=how, limit=3)) == 3
