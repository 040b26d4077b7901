"""The vital articles in their true format: entities, names, counts from uses, facts."""

import json

import pytest

from wellread.errors import InputError
from wellread.kb.build import Origin, build
from wellread.kb.check import check
from wellread.kb.readers.vital import read_vital
from wellread.kb.records import Entity, Tally
from wellread.kb.store import KnowledgeBase

ARTICLES = [
    ("Albert Einstein", "German-born physicist (1879–1955)", "People", "Albert Einstein was a physicist of the Earth."),
    ("Max Born", "German physicist (1882–1970)", "People", "Max Born was born in Breslau and born again. Einstein."),
    ("Earth", "Third planet", "Science", "Earth is the third planet. Well, the United Nations (UN) is on it."),
    ("United Nations", None, "Society", "The United Nations (UN), also known as the Blue Helmets, is an organization."),
    ("Mercury (planet)", "First planet.", "Science", "Mercury is smaller than Earth and older than Albert Einstein."),
    ("Paris, Texas", "City", None, "Paris is a city. It has a well."),
    ("Well", "Hole", "Technology", "A well is a hole in the Earth."),
]


@pytest.fixture
def folder(tmp_path):
    articles = {
        title: {"title": title, "extract": lead, "description": short, "topic": topic}
        for title, short, topic, lead in ARTICLES
    }
    (tmp_path / "vital").mkdir()
    (tmp_path / "vital" / "summaries_en-us.json").write_text(json.dumps(articles), encoding="utf-8")
    return tmp_path / "vital"


@pytest.fixture
def vital(folder, tmp_path):
    build(lambda tally: read_vital(folder, tally), tmp_path / "vital.kb", origin=Origin("vital"))
    with KnowledgeBase.open(tmp_path / "vital.kb") as kb:
        yield kb


def test_an_article_is_an_entity_with_its_lead(vital):
    assert len(vital) == len(ARTICLES)
    earth = vital.get("wp:Earth")
    assert (earth.title, earth.kind) == ("Earth", "Science")
    assert earth.description.startswith("Third planet. Earth is the third planet.")
    assert vital.get("wp:United Nations").description.startswith("The United Nations")
    assert vital.get("wp:Mercury (planet)").description.startswith("First planet. Mercury is")
    assert vital.get("wp:Paris, Texas").kind == ""
    assert check(vital) == []


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Albert Einstein", "Albert Einstein"),
        ("Einstein", "Albert Einstein"),
        ("Mercury", "Mercury (planet)"),
        ("Paris", "Paris, Texas"),
        ("UN", "United Nations"),
        ("Blue Helmets", "United Nations"),
    ],
)
def test_names_are_read_off_titles_and_leads(vital, name, title):
    assert [c.title for c in vital.candidates(name)] == [title]


def test_a_surname_that_is_an_everyday_word_is_not_an_alias(vital):
    assert vital.candidates("born") == []
    assert [c.title for c in vital.candidates("Max Born")] == ["Max Born"]


def test_leads_speak_of_other_articles_and_that_is_their_popularity(vital):
    mentions = {(entity.title, object) for entity in vital.entities() for relation, object in entity.facts}
    assert mentions == {
        ("Albert Einstein", "wp:Earth"),
        ("Earth", "wp:United Nations"),
        ("Earth", "wp:Well"),
        ("Mercury (planet)", "wp:Earth"),
        ("Mercury (planet)", "wp:Albert Einstein"),
        ("Well", "wp:Earth"),
    }
    assert vital.get("wp:Earth").popularity == 3
    assert vital.get("wp:Max Born").popularity == 0


def test_progress_is_counted_in_articles(folder):
    tally = Tally()
    assert len(list(read_vital(folder, tally))) == tally.read == tally.done_bytes == tally.total_bytes == len(ARTICLES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not the vital articles' file"),
        ("[]", "is not the vital articles' file"),
        ('{"A": {"extract": "a"}}', "is not the vital articles' file"),
        ('{"A": null}', "is not the vital articles' file"),
        ("{}", "has no articles"),
    ],
)
def test_a_file_that_is_not_the_articles_is_refused(folder, text, message):
    (folder / "summaries_en-us.json").write_text(text)
    with pytest.raises(InputError, match=f"{message}.*fetch it again: wellread fetch vital"):
        list(read_vital(folder, Tally()))


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"summaries_en-us\.json: No such file"):
        list(read_vital(tmp_path, Tally()))


def test_one_article_alone_speaks_of_nothing(tmp_path):
    article = {"title": "A", "extract": "", "description": "", "topic": ""}
    (tmp_path / "summaries_en-us.json").write_text(json.dumps({"A": article}))
    assert list(read_vital(tmp_path, Tally())) == [Entity("wp:A", "A", aliases={"A": 10})]


# Counts.

BODIES = [
    ("Mercury (planet)", "First planet from the Sun", "Mercury is the smallest planet. Its orbit is fast."),
    ("Mercury (element)", "Chemical element", "Mercury is a metal. A metal that is liquid is mercury, a poison."),
    ("Orbit", "Path in space", "An orbit is the path of a planet. The orbit of Mercury is small, as Mercury is."),
    ("Poison", "Harmful chemical", "A poison is a harmful chemical. The liquid metal mercury is a poison."),
    ("Amazon River", "River", "The Amazon River is a river with fish."),
    ("Amazon (company)", "Shop", "Amazon is a company that trades on the internet."),
    ("Peru", "Country", "Peru is a country where the Amazon rises. The river Amazon has fish."),
    ("The Scream", "Painting", "The Scream is a painting. A scream is loud, and to scream is human."),
    ("Mao Zedong", "Chinese leader (1893–1976)", "Mao Zedong was a leader. Mao wrote poems, and Mao swam."),
    ("Lu Xun", "Chinese writer (1881–1936)", "Lu Xun was a writer of stories."),
    ("Elizabeth Cady Stanton", "American writer (1815–1902)", "Elizabeth Stanton was a writer."),
    ("World Health Organization", "Agency", "The World Health Organization (WHO) is an agency."),
]


@pytest.fixture(scope="module")
def bodies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    articles = {
        title: {"extract": lead, "description": short, "topic": "People" if "writer" in lead or "Mao" in lead else ""}
        for title, short, lead in BODIES
    }
    (folder / "summaries_en-us.json").write_text(json.dumps(articles), encoding="utf-8")
    return {entity.title: entity for entity in read_vital(folder, Tally())}


def test_a_use_of_an_ambiguous_name_counts_for_the_entity_of_the_context(bodies):
    planet, element = bodies["Mercury (planet)"].aliases, bodies["Mercury (element)"].aliases
    assert planet["Mercury"] > element["Mercury"]
    assert "mercury" not in planet
    assert element["mercury"] > 5, "a common noun in lower case, with a use in another lead"
    assert ("mentions", "wp:Mercury (planet)") in bodies["Orbit"].facts
    assert ("mentions", "wp:Mercury (element)") not in bodies["Orbit"].facts


def test_names_with_an_article_are_counted_for_the_name_without(bodies):
    river = bodies["Amazon River"].aliases
    assert set(river) == {"Amazon River", "Amazon", "River Amazon"}
    assert river["Amazon"] >= 1.5
    assert bodies["Amazon (company)"].aliases["Amazon"] >= 5


def test_short_forms_need_a_use_and_are_not_everyday_words(bodies):
    assert set(bodies["The Scream"].aliases) == {"The Scream"}
    assert "Mao" in bodies["Mao Zedong"].aliases
    assert "Zedong" not in bodies["Mao Zedong"].aliases
    assert set(bodies["Lu Xun"].aliases) == {"Lu Xun"}
    assert {"Stanton", "Elizabeth Stanton", "E. C. Stanton"} <= set(bodies["Elizabeth Cady Stanton"].aliases)
    assert "Elizabeth" not in bodies["Elizabeth Cady Stanton"].aliases


def test_a_stop_word_is_not_an_alias(bodies):
    assert "WHO" not in bodies["World Health Organization"].aliases


def test_common_nouns_have_their_lower_case_forms(bodies):
    assert bodies["Poison"].aliases["poison"] > bodies["Poison"].aliases["Poison"]


def test_the_same_articles_give_the_same_records(folder):
    assert list(read_vital(folder, Tally())) == list(read_vital(folder, Tally()))
