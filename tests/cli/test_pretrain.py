"""`wellread pretrain knowbert RECIPE`: pretraining from the command line."""

import json
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.pretraining_data import write_recipe
from wellread import config
from wellread.inference.probe import load_prober
from wellread.plots import curves as plots
from wellread.tasks.fact_probe import FactProbing, read_rendered
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
    result = wellread("pretrain", "knowbert", "names.toml", "--set", "masking.shre=1")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "did you mean 'masking.share'" in result.err
    assert "cannot read nowhere.toml" in wellread("pretrain", "knowbert", "nowhere.toml").err


def test_the_help_pages_have_examples(wellread):
    assert "wellread pretrain knowbert recipes/knowbert-wiki.toml" in wellread("pretrain", "--help").out
    assert "wellread pretrain knowbert recipes/knowbert-wordnet.toml" in wellread("pretrain", "knowbert", "--help").out
    assert "pretrain" in wellread("--help").out


def test_a_pretrained_model_is_asked_for_words_and_facts_with_its_knowledge(wellread, tmp_path):
    assert wellread("pretrain", "knowbert", "names.toml").code == 0
    (tmp_path / "texts.txt").write_text("Rome is a city near the river.\n\nThe river is near Rome.\n")
    (tmp_path / "facts.txt").write_text("0 0\tRome is a city near the river .\n4 5\tRome is a city near .\n")
    run, model = "runs/names", "runs/names/model"
    for data, verb, score in (("texts.txt", "words", "perplexity"), ("facts.txt", "facts", "mrr")):
        done = wellread("evaluate", verb, run, model, data, "--format", "json")
        assert done.code == 0, done.err
        first, second = json.loads(done.out)["models"]
        assert first[score] == second[score] > 0
        assert first["model"] == run
        assert score in wellread("evaluate", verb, run, data).out
    with ExitStack() as stack:
        prober = load_prober(run, stack)
        facts = list(read_rendered(tmp_path / "facts.txt"))
        provided = prober.ask(FactProbing(prober.tokenizer), facts)
        assert provided["mrr"] == pytest.approx(first["mrr"])
        assert prober.provider is not None
        alone = replace(prober, provider=None).ask(FactProbing(prober.tokenizer), facts)
    assert provided != alone  # the provided knowledge reaches the words


def test_what_cannot_be_asked_for_words_is_one_line(wellread, tmp_path):
    (tmp_path / "none.txt").write_text("\n")
    assert wellread("pretrain", "knowbert", "names.toml").code == 0
    for verb in ("words", "facts"):
        result = wellread("evaluate", verb, "runs/names", "none.txt")
        assert (result.code, result.err.splitlines()[-1].count("none.txt has no")) == (3, 1)
    result = wellread("evaluate", "words", "runs/names", "none.txt", "--set", "maps.kb=x")
    assert (result.code, result.err.splitlines()[-1].count("is for runs, but runs/names is not a run")) == (2, 1)
