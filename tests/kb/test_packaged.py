"""The packaged knowledge bases: the vital articles in their true format, and where knowledge bases live by name."""

import json

import pytest

from wellread import assets
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.check import check
from wellread.kb.packaged import build_packaged, kb_path, open_kb, read_vital
from wellread.kb.records import Entity, Tally
from wellread.kb.store import KnowledgeBase

ARTICLES = [
    ("Albert Einstein", "German-born physicist (1879–1955)", "People", "Albert Einstein was a physicist of the Earth."),
    ("Max Born", "German physicist (1882–1970)", "People", "Max Born was born in Breslau and born again. Einstein."),
    ("Earth", "Third planet", "Science", "Earth is the third planet. Well, the United Nations (UN) is on it."),
    ("United Nations", None, "Society", "The United Nations (UN) is an organization, also known as Blue Helmets."),
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


def test_a_last_name_that_is_an_everyday_word_is_no_name(vital):
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


# Where knowledge bases live.


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_a_plain_name_is_a_kb_in_our_home_and_a_path_is_a_path(home, tmp_path):
    assert kb_path("drugs") == home / "kb" / "drugs.kb"
    assert str(kb_path("drugs.kb")) == "drugs.kb"
    assert str(kb_path("data/drugs")) == "data/drugs"
    (tmp_path / "drugs").mkdir()
    assert kb_path("drugs") == home / "kb" / "drugs.kb", "a folder that happens to have the name is no KB"
    (tmp_path / "pills").touch()
    assert str(kb_path("pills")) == "pills"


def test_a_packaged_kb_is_built_by_name_and_opens_by_name(home, folder):
    with pytest.raises(
        KnowledgeBaseError, match="the vital knowledge base is not built yet; build it with: wellread kb"
    ):
        open_kb("vital")
    assert build_packaged("vital", folder=folder, tally=Tally()) == home / "kb" / "vital.kb"
    with open_kb("vital") as kb:
        assert kb.metadata["licence"] == "CC BY-SA 4.0 (Wikipedia)"
        assert len(kb) == len(ARTICLES)


def test_without_a_folder_the_asset_is_fetched(home, folder, monkeypatch):
    fetched = []
    monkeypatch.setattr(assets, "fetch", lambda name: fetched.append(name) or folder)
    build_packaged("vital", tally=Tally())
    assert fetched == ["vital"]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "drugs/", "folder/.kb", "./"])
def test_what_cannot_be_the_name_of_a_kb_is_refused(home, name):
    with pytest.raises(UsageError, match="give a plain name"):
        kb_path(name)
