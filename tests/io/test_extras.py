"""The table of extras is that of pyproject.toml, and errors name the extra."""

import tomllib
from pathlib import Path

import pytest

from wellread.errors import MissingExtraError
from wellread.io.extras import EXTRAS, extra, missing_extras, require

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
IMPORTED = {"scikit-learn": "sklearn", "prometheus-client": "prometheus_client", "fastapi-offline": "fastapi_offline"}


def names_of(requirements):
    """The names that packages are imported by."""
    plain = [next(part for part in requirement.replace(";", ">").split(">")) for requirement in requirements]
    return {IMPORTED.get(name, name) for name in plain}


@pytest.mark.skipif(not PROJECT.exists(), reason="needs the repository")
def test_extras_are_those_of_the_project():
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    assert {name: set(packages) for name, packages in EXTRAS.items()} == {
        name: names_of(optional[name]) for name in EXTRAS
    }
    assert optional["all"] == [f"wellread[{','.join(sorted(EXTRAS))}]"]
    base = names_of(project["dependencies"])
    assert not base & {package for packages in EXTRAS.values() for package in packages}


def missing(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("name", "extra"), [("torch.nn", "train"), ("scipy", "counting"), ("pyarrow", "counting"), ("uvicorn", "serve")]
)
def test_a_missing_package_names_its_extra(name, extra):
    with (
        pytest.raises(MissingExtraError, match=rf"it needs the extra {extra}: .* pip install .* '\.\[{extra}\]'"),
        missing_extras("it"),
    ):
        missing(name)


def test_other_packages_and_other_errors_pass():
    with pytest.raises(ModuleNotFoundError, match=r"wellread\.nothing"), missing_extras("it"):
        missing("wellread.nothing")
    with pytest.raises(ModuleNotFoundError, match="duckdb"), extra("train", "it"):
        missing("duckdb")
    with pytest.raises(MissingExtraError, match="the extra train: scipy"), extra("train", "it"):
        missing("scipy")


def test_a_package_is_required_without_importing_it(monkeypatch):
    require("train", "it")
    monkeypatch.setitem(EXTRAS, "train", ("a_package_that_is_not_there",))
    with pytest.raises(MissingExtraError, match="it needs the extra train: a_package_that_is_not_there"):
        require("train", "it")
