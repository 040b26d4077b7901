"""`wellread pretrain luke RECIPE`: pretraining from the command line."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.luke.test_pretraining import write_recipe
from tests.pretraining_data import CITIES, LINES, write_encoder, write_names
from wellread import config
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.plots import curves as plots
from wellread.training.schedule import Schedule


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


def test_an_encoder_is_pretrained_and_its_folder_pretrained_further(wellread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    once = Schedule(steps=1, learning_rate=1e-3)
    (tmp_path / "cities.toml").write_text(config.to_toml(replace(write_recipe(tmp_path), first=once, schedule=once)))
    done = wellread("pretrain", "luke", "cities.toml", "--set", "schedule.seed=2")
    assert done.code == 0, done.err
    assert "entities.by_name" in done.out
    assert "before training: log_chance" in done.err
    assert "the encoder is in runs/cities/model; a task's recipe takes it with: --set encoder.name=runs/ci" in done.err
    assert (tmp_path / "runs/cities/model/entity_vocab.json").exists()
    again = wellread("pretrain", "luke", "cities.toml", "--set", "schedule.seed=2")
    assert (again.code, again.out) == (0, done.out)
    result = wellread("pretrain", "luke", "cities.toml", "--set", "text.develp=1")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "did you mean 'text.develop'" in result.err
    assert "wellread pretrain luke recipes/luke-schools.toml" in wellread("pretrain", "luke", "--help").out


def test_the_example_of_the_help_trains_on_own_text(wellread, tmp_path, monkeypatch):
    shown = wellread("pretrain", "luke", "--help").out.replace("\\\n", " ")
    link, learn = (shlex.split(line)[1:] for line in re.findall(r"^ *(wellread .*)$", shown, re.M)[-2:])
    assert (link[0], learn[:2]) == ("link", ["pretrain", "luke"])
    learn[2] = str(Path(__file__).parents[2] / learn[2])
    monkeypatch.chdir(tmp_path)
    write_names(tmp_path)
    Path("names.kb").rename("my.kb")
    Path("notes.txt").write_text("\n".join(LINES))
    done = wellread(*link, "--model", "prior")
    assert done.code == 0, done.err
    small = {"encoder.name": write_encoder(tmp_path / "encoder"), "encoder.longest": 24, "text.develop": 6, "dim": 8}
    small |= {"first.steps": 1, "schedule.epochs": 0.1, "batch": 4}
    done = wellread(*learn, "--to", "run", *(part for name in small for part in ("--set", f"{name}={small[name]}")))
    assert done.code == 0, done.err
    assert {f"c-{city}" for city in CITIES} <= set(EntityVocabulary.load("run/model").row_of)
