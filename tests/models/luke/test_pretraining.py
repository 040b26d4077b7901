"""Pretraining of LUKE: stages, outputs and resuming."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForMaskedLM

from tests.pretraining_data import CITIES, LINES, NAMED, write_encoder, write_names
from tests.toy_models import write_kb
from tests.weights import moved, weights
from wellread import config
from wellread.encoders.load import silence
from wellread.errors import InputError, UsageError
from wellread.kb.packaged import open_kb
from wellread.models.luke import pretraining as pretraining_luke
from wellread.models.luke.pretraining import (
    EntityMaskingOptions,
    EntityOptions,
    LinkedText,
    LukePretraining,
    LukePretrainingRecipe,
    pretrain_luke,
)
from wellread.models.luke.vocabulary import SPECIAL, EntityVocabulary, NameCandidates
from wellread.plots import curves as plots
from wellread.tasks.recipe import EncoderOptions
from wellread.text import words as names
from wellread.training.loop import train
from wellread.training.schedule import Schedule


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


def write_linked(path, lines=LINES):
    with open(path, "w") as file:
        for number, text in enumerate(lines):
            spans = sorted(
                (text.index(city), text.index(city) + len(city), f"c-{city}") for city in CITIES if city in text
            )
            file.write(json.dumps({"doc": f"page {number // 2}", "text": text, "mentions": spans}) + "\n")


def write_recipe(folder, **changes):
    write_linked(folder / "linked.jsonl")
    values = {
        "text": LinkedText(("linked.jsonl",), root=str(folder), develop=6),
        "encoder": EncoderOptions(write_encoder(folder / "encoder"), longest=24),
        "dim": 8,
        "batch": 4,
        "first": Schedule(steps=2, learning_rate=1e-3),
        "schedule": Schedule(steps=4, learning_rate=1e-3, evaluate_every=2, seed=3),
    }
    return LukePretrainingRecipe("luke", **values | changes)


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Recipe and folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_curves", "save"):
            patch.setattr(plots, name, lambda *args, **options: None)
        recipe = write_recipe(folder)
        scores = pretrain_luke(recipe, folder / "run")
    return recipe, folder / "run", scores


def test_the_first_stage_trains_only_new_weights(recipe, tmp_path):
    work = LukePretraining(recipe, tmp_path / "windows")
    before = weights(work.network)
    work.freeze()
    train(work.learner, recipe.first, tmp_path / "run")
    found = moved(work.network, before)
    assert found
    assert all(name.startswith(("encoder.infusions.0.", "head.")) for name in found)
    assert {"encoder.infusions.0.table.weight", "encoder.infusions.0.prediction.dense.weight", "head.bias"} <= found


def test_a_pretrained_head_is_frozen_in_the_first_stage(whole, tmp_path):
    recipe, run, _ = whole
    recipe = replace(recipe, encoder=replace(recipe.encoder, name=str(run / "model")))
    work = LukePretraining(recipe, tmp_path / "windows")
    work.freeze()
    assert not any(weight.requires_grad for weight in work.network.head.parameters())
    work.unfreeze()
    assert all(weight.requires_grad for weight in work.network.parameters())


def test_biases_of_new_heads_start_from_frequencies(recipe, tmp_path):
    work = LukePretraining(recipe, tmp_path / "windows")
    work.save_initial_scores(tmp_path / "before.json")
    scores = json.loads((tmp_path / "before.json").read_bytes())
    tokens, rows = work.learner.frequencies
    assert torch.allclose(work.network.head.bias, torch.from_numpy(tokens).float())
    assert torch.allclose(work.learner.luke.prediction.bias, torch.from_numpy(rows).float())
    assert scores["entities.perplexity"] == pytest.approx(scores["entities.frequent_perplexity"], rel=0.2)


def test_a_run_writes_scores_before_and_after_and_a_model(whole):
    _, run, scores = whole
    before = json.loads((run / "before.json").read_bytes())
    assert before.keys() == scores.keys() >= {"words.perplexity", "entities.accuracy", "entities.by_name", "log_chance"}
    assert scores["log_chance"] != before["log_chance"]
    assert scores["entities.by_name"] == before["entities.by_name"]
    assert (run / "first/scores.json").exists()
    assert EntityVocabulary.load(run / "model").names == (*SPECIAL, *sorted(f"c-{city}" for city in CITIES))
    with silence():
        model, report = AutoModelForMaskedLM.from_pretrained(run / "model", output_loading_info=True)
    assert not report["missing_keys"]
    (luke,) = model.base_model.infusions
    assert torch.equal(luke.table.weight[3], luke.table.weight[2])
    values = json.loads((run / "model/knowledge.json").read_bytes())
    assert values["recipe"]["pretrain"] == "luke"


def test_an_interrupted_run_resumes_with_the_same_bits(whole, tmp_path, monkeypatch):
    recipe, run, scores = whole
    steps = []

    def stop(line):
        steps.append(line["step"])
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain_luke(recipe, tmp_path / "run", on_report=stop, save_seconds=0.0)
    assert pretrain_luke(recipe, tmp_path / "run") == scores
    ours, theirs = (AutoModelForMaskedLM.from_pretrained(folder / "model") for folder in (tmp_path / "run", run))
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_an_encoder_with_entities_keeps_their_rows_and_gets_new_ones(whole, tmp_path, capsys):
    recipe, run, _ = whole
    write_linked(tmp_path / "more.jsonl")
    line = {"text": "rome is a new city", "mentions": [[0, 4, "c-rome"]]}
    with open(tmp_path / "more.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    more = replace(
        recipe,
        text=replace(recipe.text, train=("more.jsonl",), root=str(tmp_path)),
        encoder=replace(recipe.encoder, name=str(run / "model")),
        aware=True,
    )
    work = LukePretraining(more, tmp_path / "windows")
    old = EntityVocabulary.load(run / "model")
    assert work.vocabulary.names == (*old.names, "c-rome")
    count = len(old) - len(SPECIAL)
    assert f"{count} of {count + 1} entities have rows in {run / 'model'}, by id" in capsys.readouterr().err
    model = AutoModelForMaskedLM.from_pretrained(run / "model")
    (luke,) = model.base_model.infusions
    assert torch.equal(work.learner.luke.table.weight[: len(old)], luke.table.weight)
    assert torch.equal(work.learner.luke.prediction.bias[: len(old)], luke.prediction.bias)
    assert work.has_head
    (run / "model/entity_vocab.json").rename(tmp_path / "aside")
    with pytest.raises(InputError, match=r"has no entity_vocab\.json"):
        LukePretraining(more, tmp_path / "windows")
    (tmp_path / "aside").rename(run / "model/entity_vocab.json")


def test_entities_come_from_a_kb_and_start_from_its_vectors(recipe, tmp_path, capsys):
    vectors = write_names(tmp_path)
    kb = str(tmp_path / "names.kb")
    recipe = replace(recipe, entities=EntityOptions(kb=kb, most=9, start=kb))
    work = LukePretraining(recipe, tmp_path / "windows")
    assert len(work.vocabulary) == 13
    assert set(work.vocabulary.names[4:]) < {entity.id for entity in NAMED}
    rows, at = work.vocabulary.start_rows(vectors, 8)
    assert torch.allclose(work.learner.luke.table.weight[torch.from_numpy(at)], torch.from_numpy(rows))
    assert "9 of 13 rows are initialised with vectors" in capsys.readouterr().err
    assert work.windows.counts.unknown == 0 or "outside the vocabulary" in work.windows.counts.report()


def test_entities_are_predicted_among_the_candidates_of_their_names(recipe, tmp_path, capsys):
    write_names(tmp_path)
    options = EntityOptions(kb=str(tmp_path / "names.kb"), loss="candidates")
    recipe = replace(recipe, entities=options, masking=EntityMaskingOptions(entities=0.9))
    work = LukePretraining(recipe, tmp_path / "windows")
    assert "8 of 8 names in the text have candidates" in capsys.readouterr().err
    found = work.learner.masking.candidates
    row = work.vocabulary.row_of
    assert found.take(names.keys(["cork", "nowhere", "Cork"])).tolist() == [[row["c-cork"]], [-1], [row["c-cork"]]]
    with open_kb(tmp_path / "names.kb") as kb:
        both = NameCandidates.of_kb(kb, work.vocabulary, names.keys(["paris", "rome"]))
        assert both.take(names.keys(["paris"])).tolist() == [[row["c-paris"], row["h-paris"]]]  # the likelier first
        assert NameCandidates.of_kb(kb, work.vocabulary, names.keys(["paris"]), most=1).rows.tolist() == [
            row["c-paris"]
        ]
        none = NameCandidates.of_kb(kb, work.vocabulary, names.keys(["nowhere"]))
        assert none.take(names.keys(["paris"])).tolist() == [[-1]]
    scores = pretrain_luke(recipe, tmp_path / "run")
    assert scores["entities.perplexity"] == 1  # one candidate each: nothing to tell apart
    with pytest.raises(UsageError, match=r"set entities\.names"):
        EntityOptions(loss="candidates")


def test_names_without_any_candidate_raise_an_error(recipe, tmp_path):
    with write_kb(tmp_path / "other.kb", [NAMED[-1]]):
        pass
    recipe = replace(recipe, entities=EntityOptions(names=str(tmp_path / "other.kb"), loss="candidates"))
    with pytest.raises(InputError, match=r"none of the 8 names in the text has a candidate in .*set entities\.names"):
        LukePretraining(recipe, tmp_path / "windows")


def test_invalid_lines_are_skipped_and_logged(recipe, tmp_path, capsys):
    with open(tmp_path / "linked.jsonl", "a") as file:
        file.write('{"text": "rome", "mentions": [[0, 99, "c-rome"]]}\n')
    LukePretraining(recipe, tmp_path / "windows")
    assert "skipped 1 invalid texts" in capsys.readouterr().err


def test_a_recipe_is_written_and_read_as_it_was(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(config.to_toml(recipe))
    assert config.read(LukePretrainingRecipe, tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": LinkedText(())}, r"no text to train on; set \[text\]"),
        ({"batch": 0}, "batch is 0"),
        ({"dim": 0}, "dim is 0"),
        ({"encoder": EncoderOptions(rank=4)}, "trains all weights"),
    ],
)
def test_invalid_recipes_raise_errors(recipe, changes, message):
    with pytest.raises(UsageError, match=message):
        replace(recipe, **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: LinkedText(("x",), develop=0), "develop is 0; expected 1 or more"),
        (lambda: LinkedText(("x",), most=-5), "most is -5"),
        (lambda: LinkedText(("x",), most_entities=0), "most_entities is 0"),
        (lambda: EntityOptions(most=-1), "most is -1"),
        (lambda: EntityOptions(least=0), "least is 0"),
        (lambda: EntityMaskingOptions(entities=0), r"masking\.entities is 0; expected a share"),
        (lambda: EntityMaskingOptions(words=15), r"masking\.words is 15"),
    ],
)
def test_invalid_counts_and_shares_raise_errors_before_any_text_is_read(options, message):
    with pytest.raises(UsageError, match=message):
        options()


def test_too_many_processes_raise_an_error_before_any_text_is_read(recipe, tmp_path, monkeypatch):
    distributed = SimpleNamespace(num_processes=2, is_main_process=True)
    monkeypatch.setattr(pretraining_luke, "distributed_state", lambda: distributed)
    absent = replace(recipe, text=replace(recipe.text, root=str(tmp_path / "nowhere")))
    for some in (absent, replace(absent, first=replace(recipe.first, accumulate=2))):
        with pytest.raises(UsageError, match="2 processes cannot share the 1 batches of a step; set accumulate"):
            pretrain_luke(some, tmp_path / "run")


def test_missing_files_raise_an_error(recipe, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nowhere\.jsonl"):
        LukePretraining(replace(recipe, text=replace(recipe.text, train=("nowhere.jsonl",))), tmp_path / "w")
    with pytest.raises(InputError, match="no file matches"):
        LukePretraining(replace(recipe, text=replace(recipe.text, train=("no*.jsonl",))), tmp_path / "w")
