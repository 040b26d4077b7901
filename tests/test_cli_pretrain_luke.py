"""`wellread pretrain luke RECIPE`: pretraining from the command line."""

from dataclasses import replace

from tests.test_pretraining_luke import write_recipe
from wellread import config
from wellread.pictures import plots
from wellread.training.schedule import Schedule


def test_an_encoder_is_pretrained_and_goes_on_with_its_folder(wellread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)
    once = Schedule(steps=1, learning_rate=1e-3)
    (tmp_path / "cities.toml").write_text(config.to_toml(replace(write_recipe(tmp_path), first=once, schedule=once)))
    done = wellread("pretrain", "luke", "cities.toml", "--set", "schedule.seed=2")
    assert done.code == 0, done.err
    assert "entities.by_name" in done.out
    assert "before: log_chance" in done.err
    assert "the encoder is in runs/cities/model; a task's recipe takes it with: --set encoder.name=runs/ci" in done.err
    assert (tmp_path / "runs/cities/model/entity_vocab.json").exists()
    again = wellread("pretrain", "luke", "cities.toml", "--set", "schedule.seed=2")
    assert (again.code, again.out) == (0, done.out)
    told = wellread("pretrain", "luke", "cities.toml", "--set", "text.develp=1")
    assert (told.code, told.err.count("\n")) == (2, 1)
    assert "did you mean 'text.develop'" in told.err
    assert "wellread pretrain luke recipes/luke-schools.toml" in wellread("pretrain", "luke", "--help").out
