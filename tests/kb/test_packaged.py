"""The packaged knowledge bases: where they live by name, and which of them an older builder made."""

import json
from dataclasses import replace

import pytest

from wellread import assets
from wellread.errors import KnowledgeBaseError, UsageError
from wellread.kb import packaged
from wellread.kb.packaged import build_packaged, has_changes, is_outdated, kb_path, open_kb
from wellread.kb.records import Entity, Tally
from wellread.linking.linker import Linker


@pytest.fixture
def folder(tmp_path):
    """A folder with two of the vital articles, and nouns as WordNet has them."""
    lead = {"Earth": "Earth is the third planet.", "Moon": "The Moon is a satellite of Earth."}
    articles = {
        title: {"title": title, "extract": text, "description": "", "topic": ""} for title, text in lead.items()
    }
    (tmp_path / "vital").mkdir()
    (tmp_path / "vital" / "summaries_en-us.json").write_text(json.dumps(articles), encoding="utf-8")
    nouns = "  1 licence\n00000001 17 n 02 Moon 0 Luna 0 000 | the satellite of the Earth\n"
    (tmp_path / "vital" / "data.noun").write_text(nouns)
    return tmp_path / "vital"


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
        assert kb.metadata["licence"].startswith("CC BY-SA 4.0 (Wikipedia)")
        assert kb.candidates("luna") == [], "nothing is fetched"
        assert len(kb) == 2


def test_without_a_folder_the_asset_is_fetched(home, folder, monkeypatch):
    fetched = []
    monkeypatch.setattr(assets, "fetch", lambda name: fetched.append(name) or folder)
    build_packaged("vital", tally=Tally())
    assert fetched == ["vital", "wordnet"]
    with open_kb("vital") as kb:
        assert [candidate.title for candidate in kb.candidates("luna")] == ["Moon"]
        assert kb.metadata["licence"] == "CC BY-SA 4.0 (Wikipedia); synonyms: WordNet licence (Princeton University)"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "drugs/", "folder/.kb", "./"])
def test_what_cannot_be_the_name_of_a_kb_is_refused(home, name):
    with pytest.raises(UsageError, match="give a plain name"):
        kb_path(name)


# Versions of builders.


@pytest.fixture
def newer(home, folder, monkeypatch):
    """A `vital` KB in the home, and a wellread whose builder is newer."""
    monkeypatch.setattr(assets, "fetch", lambda name: folder)
    build_packaged("vital", tally=Tally())
    assert not is_outdated("vital")
    recipe = packaged.PACKAGED["vital"]
    monkeypatch.setitem(packaged.PACKAGED, "vital", replace(recipe, version=f"{recipe.version}+"))


def test_a_kb_of_an_older_builder_is_outdated(newer, home):
    assert is_outdated("vital")
    assert is_outdated("vital", home / "kb" / "vital.kb")
    build_packaged("vital", tally=Tally())
    assert not is_outdated("vital")


def test_a_kb_without_a_version_is_of_the_first_builder(home, folder):
    build_packaged("vital", folder=folder, tally=Tally())
    with open_kb("vital", writable=True) as kb:
        kb.connection.execute("DELETE FROM metadata WHERE key = 'builder'")
    assert is_outdated("vital")


def test_neither_a_missing_kb_nor_one_of_another_source_is_outdated(newer, home, tmp_path):
    assert not is_outdated("drugs")
    assert not is_outdated("wordnet")
    with open_kb("vital", writable=True) as kb:
        kb.connection.execute("UPDATE metadata SET value = 'merge of vital.kb' WHERE key = 'source'")
    assert not is_outdated("vital")


def test_if_missing_builds_an_outdated_kb_again(newer, wellread):
    done = wellread("kb", "build", "vital", "--if-missing")
    assert done.code == 0
    assert "was built by an older wellread; building it again" in done.err
    assert not is_outdated("vital")
    assert "is there already" in wellread("kb", "build", "vital", "--if-missing").err


def test_if_missing_keeps_an_outdated_kb_with_changes(newer, wellread):
    assert not has_changes("vital")
    with open_kb("vital", writable=True) as kb, kb.change() as change:
        change.add(Entity("mine", "My planet"))
    assert has_changes("vital")
    done = wellread("kb", "build", "vital", "--if-missing")
    assert done.code == 0
    assert "and changed since, so it is kept; rebuild it without the changes with --replace" in done.err
    with open_kb("vital") as kb:
        assert "mine" in kb


def test_the_linker_tells_of_an_outdated_kb(newer, capsys):
    with Linker.load("vital", "prior"):
        pass
    assert "bring it up to date with: wellread kb build vital --if-missing" in capsys.readouterr().err
    build_packaged("vital", tally=Tally())
    with Linker.load("vital", "prior"):
        pass
    assert capsys.readouterr().err == ""
