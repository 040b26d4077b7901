"""`wellread compare`, from the command line to the table."""

import json

import pytest

from tests.task_data import rte_recipe
from tests.toy_models import toy_documents
from wellread import config
from wellread.plots import curves as plots
from wellread.training.compare import linkers as compare_linkers
from wellread.training.schedule import Schedule


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch, encoder):
    monkeypatch.chdir(tmp_path)
    for name in ("draw_curves", "draw_comparison", "draw_linkers", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)
    monkeypatch.setattr(plots, "to_svg", lambda figure: b"<svg/>")
    recipe = rte_recipe(tmp_path, encoder, schedule=Schedule(steps=1, learning_rate=1e-2))
    (tmp_path / "rte.toml").write_text(config.to_toml(recipe))


def test_two_arms_are_trained_and_held_against_each_other(wellread):
    done = wellread("compare", "rte.toml", "--vary", "infusion=none,kam", "--seeds", 2, "--format", "json", "--to", "c")
    assert done.code == 0, done.err
    table = json.loads(done.out)
    assert (table["against"], table["seeds"], list(table["arms"])) == ("none", [0, 1], ["none", "kam"])
    assert table["arms"]["kam"]["RTE"]["cost"]["added"] == 108
    assert "run 4 of 4" in done.err
    assert "the table is also in c as table.md, table.json and table.png" in done.err
    again = wellread("compare", "rte.toml", "--vary", "infusion=none,kam", "--seeds", 2, "--no-costs", "--to", "c")
    assert "4 of 4 runs are finished already" in again.err
    assert "│ kam" in again.out
    assert 'Δ: against "none", paired by seed' in again.out
    written = ["compare", "rte.toml", "--vary", "infusion=none,kam", "--seeds", 2, "--no-costs", "--to", "c"]
    assert wellread(*written, "--format", "markdown").out.startswith("| arm | RTE | Δ RTE |\n| --- |")


def test_a_run_that_fails_makes_the_exit_code_that_of_a_training(wellread, tmp_path):
    (tmp_path / "arms.toml").write_text("[arms]\nplain = {}\nwild = { schedule.learning_rate = 1e30 }\n")
    requested = ["compare", "rte.toml", "--arms", "arms.toml", "--seeds", 1, "--no-costs", "--to", "c"]
    done = wellread(*requested, "--set", "schedule.steps=2")
    assert done.code == 8
    assert "│ wild  │ –" in done.out
    assert "–: no score, because 1 run failed:\n- RTE, wild, seed 0: the " in done.out
    last = done.err.splitlines()[-1]
    assert last.startswith("error: 1 of 2 runs failed, the first: RTE, wild, seed 0: the ")
    assert last.endswith("fix the cause and run the same command again, which repeats them")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rte.toml"], 2, "no arms to compare; give --vary infusion=none,kam"),
        (["nowhere.toml", "--vary", "infusion=none,kam"], 3, "cannot read nowhere.toml"),
        (["rte.toml", "--vary", "infusion=none,kam", "--arm", "x"], 2, "there is no arm 'x'"),
        (["rte.toml", "--vary", "infusion=none,kam", "--set", "bach=1"], 2, "did you mean 'batch'"),
        (["--vary", "infusion=none,kam"], 2, "Missing argument 'RECIPE...'"),
    ],
)
def test_what_goes_wrong_is_one_line_with_the_fix(wellread, arguments, code, message):
    done = wellread("compare", *arguments)
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert message in done.err


def test_the_help_has_examples(wellread):
    assert "wellread compare recipes/kam-rte.toml" in wellread("compare", "--help").out
    for verb in ("tasks", "linkers", "report"):
        assert "Examples:\n    wellread compare" in wellread("compare", verb, "--help").out


# Linkers, and the report of all.


@pytest.fixture
def questions(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_linkers, "_START", None)
    for name, seed in (("a", 1), ("b", 2)):
        content = "".join(one.to_json() + "\n" for one in toy_documents(20, seed))
        (tmp_path / f"{name}.jsonl").write_text(content)


def test_linkers_are_compared_and_reported_with_arms(wellread, toy, questions, tmp_path):
    requested = ["compare", "linkers", "--kb", toy / "toy.kb", "--model", "prior", "--model", f"elq={toy / 'model'}"]
    done = wellread(*requested, "a.jsonl", "second=b.jsonl", "--develop", "second=10", "--to", "l", "--format", "json")
    assert done.code == 0, done.err
    table = json.loads(done.out)
    assert (table["against"], list(table["data"])) == ("prior", ["a", "second"])
    assert 10 <= table["linkers"]["elq"]["second"]["documents"] < 20
    assert table["command"].startswith("wellread compare linkers --kb ")
    assert "│ elq" in wellread(*requested, "a.jsonl", "second=b.jsonl", "--develop", "second=10", "--to", "l").out
    arms = wellread("compare", "rte.toml", "--vary", "infusion=none,kam", "--seeds", 1, "--no-costs", "--to", "c")
    assert arms.code == 0
    page = wellread("compare", "report", "c", "l", "--to", "all.html", "--title", "All")
    assert (page.code, "the report is in all.html" in page.err) == (0, True)
    written = (tmp_path / "all.html").read_text()
    assert "wellread compare rte.toml --vary infusion=none,kam --seeds 1" in written
    rows = wellread("compare", "report", "c", "l", "--format", "markdown").out
    assert rows.startswith("| arm | RTE |\n")
    assert "| linker | a | second | mean | CPU ms/text | memory MB |" in rows


def test_a_linker_that_fails_makes_the_exit_code_that_of_a_training(wellread, toy, questions):
    done = wellread("compare", "linkers", "--kb", toy / "toy.kb", "--model", "prior", "--model", "none", "a.jsonl")
    assert done.code == 8
    assert "│ none   │ –" in done.out
    last = done.err.splitlines()[-1]
    assert last.startswith("error: 1 of 2 cells failed, the first: a, none: there is no model 'none'")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["linkers", "a.jsonl"], 2, "Missing option '--kb'"),
        (
            ["linkers", "--kb", "x", "a.jsonl", "c/a.jsonl"],
            2,
            "two have the name 'a', a.jsonl and c/a.jsonl; rename one",
        ),
        (["linkers", "--kb", "x", "=a.jsonl"], 2, "'=a.jsonl' has no data set"),
        (["linkers", "--kb", "x", "a.jsonl", "--develop", "b=3"], 2, "expected NAME=N, with NAME one of a and N 1"),
        (["linkers", "--kb", "nowhere.kb", "a.jsonl"], 5, "nowhere.kb"),
        (["report", "nowhere"], 3, "nowhere has no table.json"),
        (["report", "x", "--format", "markdown", "--title", "y"], 2, "--format markdown has no title"),
    ],
)
def test_what_goes_wrong_with_linkers_and_reports_is_one_line_too(wellread, questions, arguments, code, message):
    done = wellread("compare", *arguments)
    assert (done.code, done.err.count("\n")) == (code, 1), done.err
    assert message in done.err
