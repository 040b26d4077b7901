"""`wellread train RECIPE` and `wellread evaluate RUN DATA`: a task from the command line."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.task_data import pairs, recipes, rte_recipe, write_rte
from wellread import config
from wellread.plots import curves as plots
from wellread.training.run import Run, read_log
from wellread.training.schedule import Schedule


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch, encoder):
    monkeypatch.chdir(tmp_path)
    for name in ("draw_curves", "draw_comparison", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)
    recipe = rte_recipe(tmp_path, encoder, infusion="none", schedule=Schedule(steps=1, learning_rate=1e-2))
    (tmp_path / "rte.toml").write_text(config.to_toml(recipe))
    write_rte(tmp_path / "dev.tsv", pairs(30, seed=1))
    write_rte(tmp_path / "test.tsv", pairs(30, seed=1), labels=False)


def test_a_task_is_trained_and_evaluated_and_writes_its_predictions(wellread, tmp_path):
    done = wellread("train", "rte.toml", "--set", "schedule.seed=2")
    assert done.code == 0, done.err
    assert "accuracy" in done.out
    assert "the model is in runs/rte; score it on other data with: wellread evaluate runs/rte DATA" in done.err
    assert "seed = 2" in (tmp_path / "runs/rte/recipe.toml").read_text()
    result = wellread("evaluate", "runs/rte", "dev.tsv", "--format", "json", "--predictions", "RTE.tsv")
    scores = json.loads(result.out)
    assert (scores["examples"], scores["scores"].keys()) == (30, {"accuracy", "score"})
    lines = (tmp_path / "RTE.tsv").read_text().splitlines()
    right = sum(line.split("\t")[1] == row[2] for line, row in zip(lines[1:], pairs(30, seed=1), strict=True))
    assert scores["scores"]["accuracy"] == pytest.approx(right / 30)
    assert "│ accuracy" in wellread("evaluate", "task", "runs/rte", "dev.tsv").out
    secret = wellread("evaluate", "runs/rte", "test.tsv", "--predictions", "secret.tsv")
    assert (secret.code, secret.out) == (0, "")
    assert "no labels to score against; the answers are in secret.tsv" in secret.err
    assert (tmp_path / "secret.tsv").read_text().splitlines() == lines
    unscored = wellread("evaluate", "runs/rte", "test.tsv")
    assert (unscored.code, unscored.err.count("\n")) == (3, 1)  # nothing was answered
    assert "test.tsv has no labels to score against; give --predictions FILE" in unscored.err


@pytest.mark.slow
def test_two_processes_end_as_one_does(wellread, tmp_path, encoder):
    recipe = rte_recipe(tmp_path, encoder)  # with maps, two batches a step
    (tmp_path / "kam.toml").write_text(config.to_toml(recipe))
    alone = wellread("train", "kam.toml", "--to", "one")
    assert alone.code == 0
    assert "processes" not in alone.err
    # `accelerate launch --cpu --num_processes 2` starts one process alone.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, "-m", "wellread", "train", "kam.toml", "--to", "two"],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training on") == 1
    assert done.stderr.count("2 processes share the 2 batches of each step") == 1
    one, two = (read_log(tmp_path / run) for run in ("one", "two"))
    assert [line["step"] for line in two] == [line["step"] for line in one]
    for ours, theirs in zip(two, one, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3)
    assert Run(tmp_path / "two").scores() == Run(tmp_path / "one").scores()
    ours, theirs = (load_file(tmp_path / run / "model/model.safetensors") for run in ("two", "one"))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", ["relevance", "squad"])
def test_what_cannot_be_scored_is_refused_before_it_is_answered(wellread, tmp_path, encoder, task):
    recipe = recipes(tmp_path, encoder)[task]
    (tmp_path / "task.toml").write_text(config.to_toml(replace(recipe, schedule=Schedule(1, learning_rate=1e-2))))
    assert wellread("train", "task.toml").code == 0
    text = Path(recipe.data.train).read_text()
    if task == "squad":
        info = json.loads(text)
        for article in info["data"][:3]:
            article["paragraphs"][0]["qas"][0]["answers"] = []
        (tmp_path / "secret").write_text(json.dumps(info))
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        for row in rows:
            del row["esci"]
        (tmp_path / "secret").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = wellread("evaluate", "runs/task", "secret")
    which = " for 3 of its 40 examples" * (task == "squad")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert f"secret has no labels to score against{which}; give --predictions FILE" in done.err


def test_a_run_begun_anew_has_nothing_of_the_old_one(wellread, tmp_path):
    assert wellread("train", "rte.toml").code == 0
    run = tmp_path / "runs/rte"
    old = ["curves.png", "calibration.svg", "model/old.txt", "best.safetensors"]
    for name in [*old, "mine.txt"]:
        (run / name).write_text("old")
    Run(run).open(Schedule(steps=2), resume=False)
    assert not any((run / name).exists() for name in [*old, "model", "scores.json", "log.jsonl"])
    assert (run / "mine.txt").exists()
    assert "has no trained task" in wellread("evaluate", "runs/rte", "dev.tsv").err


def test_a_recipe_is_known_by_what_it_names(wellread, tmp_path):
    (tmp_path / "linker.toml").write_text('kb = "nowhere.kb"\nmade = 10\nmade_develop = 2\n')
    assert "nowhere.kb" in wellread("train", "linker.toml").err
    (tmp_path / "neither.toml").write_text("batch = 3\n")
    result = wellread("train", "neither.toml")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert 'names neither a task nor a knowledge base; give task = "RTE" for a task' in result.err
    assert "'task' is missing" in wellread("train", "task", "neither.toml").err
    assert "'batch' is not a setting of LinkerRecipe" in wellread("train", "linker", "neither.toml").err
    assert "cannot read nowhere.toml" in wellread("train", "nowhere.toml").err
    changed = wellread("train", "--set", "tsk=1", "rte.toml")
    assert "did you mean 'task'" in changed.err


def test_a_folder_that_is_no_run_is_named(wellread):
    result = wellread("evaluate", "nowhere", "dev.tsv")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "has no trained task" in result.err


def test_the_help_pages_have_examples(wellread):
    assert "wellread train recipes/kam-rte.toml" in wellread("train", "--help").out
    assert "wellread train task my.toml" in wellread("train", "task", "--help").out
    assert "wellread evaluate runs/rte RTE/dev.tsv" in wellread("evaluate", "--help").out
    assert "RTE/test.tsv --predictions RTE.tsv" in wellread("evaluate", "task", "--help").out


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (
            'task = "RTE"\n[data]\ntrain = "a"\ndevelop = "dev.tsv"',
            (),
            "expected a whole number; did you mean 'data.dev'?",
        ),
        ('task = "RTE"\n[data]\ntrain = "a"\ndevelop = 5', ("data.develop=dev.tsv",), "did you mean 'data.dev'?"),
        ('task = "RTE"\n[schedule]\nepoch = 3', (), "did you mean 'schedule.epochs'?"),
        ('kb = "vital"\nmade = "all"', (), "'made' is \"all\"; expected a whole number"),
    ],
)
def test_a_wrong_setting_is_reported_before_torch_is_imported(tmp_path, recipe, changes, message):
    (tmp_path / "a.toml").write_text(recipe)
    options = [part for change in changes for part in ("--set", change)]
    arguments = ["wellread", "train", str(tmp_path / "a.toml"), *options]
    code = (
        f"import sys\nsys.argv = {arguments!r}\nfrom wellread.cli import main\ntry:\n    main()\n"
        "finally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode in (2, 3), done.stderr.count("\n")) == (True, 1), done.stderr
    assert message in done.stderr
