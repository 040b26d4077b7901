"""`wellread pretrain knowbert RECIPE`: pretraining from the command line."""

from dataclasses import replace

import pytest

from tests.pretraining import write_recipe
from wellread import config
from wellread.pictures import plots
from wellread.training.schedule import Schedule


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)
    once = Schedule(steps=1, learning_rate=1e-3)
    (tmp_path / "names.toml").write_text(config.to_toml(replace(write_recipe(tmp_path), linker=once, schedule=once)))


def test_an_encoder_is_pretrained_and_goes_on_with_its_folder(wellread, tmp_path):
    done = wellread("pretrain", "knowbert", "names.toml", "--set", "schedule.seed=2")
    assert done.code == 0, done.err
    assert "words.perplexity" in done.out
    assert "names.f1" in done.out
    assert (
        "the encoder is in runs/names/model; a task's recipe takes it with: --set encoder.name=runs/names/mo"
        in done.err
    )
    assert "seed = 2" in (tmp_path / "runs/names/recipe.toml").read_text()
    assert (tmp_path / "runs/names/model/knowledge.json").exists()
    again = wellread("pretrain", "knowbert", "names.toml", "--set", "schedule.seed=2")
    assert (again.code, again.out) == (0, done.out)
    assert "is finished" in again.err
    other = wellread("pretrain", "knowbert", "names.toml")
    assert (other.code, other.err.splitlines()[-1].count("seed is 2 there and 0 now")) == (2, 1)


def test_a_slip_in_a_recipe_is_one_line(wellread):
    told = wellread("pretrain", "knowbert", "names.toml", "--set", "masking.shre=1")
    assert (told.code, told.err.count("\n")) == (2, 1)
    assert "did you mean 'masking.share'" in told.err
    assert "cannot read nowhere.toml" in wellread("pretrain", "knowbert", "nowhere.toml").err


def test_the_help_pages_have_examples(wellread):
    assert "wellread pretrain knowbert recipes/knowbert-wiki.toml" in wellread("pretrain", "--help").out
    assert "wellread pretrain knowbert recipes/knowbert-wordnet.toml" in wellread("pretrain", "knowbert", "--help").out
    assert "pretrain" in wellread("--help").out
