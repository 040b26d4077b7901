"""Recipes with knowledge bases, entity vectors and knowledge layers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.sense_data import ENTITIES, TEXTS, write_vectors, write_wordnet
from tests.task_data import SCHEDULE, rte_recipe
from wellread import Linker, config
from wellread.data.readers.raganato import write_lines_of_senses
from wellread.encoders.load import load_encoder
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.packaged import open_kb
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.quantization import Int8EntityTable
from wellread.models.knowbert.saving import shrink
from wellread.models.knowbert.sense_texts import PREFIX
from wellread.plots import curves as plots
from wellread.tasks.recipe import CandidateOptions, Data, EncoderOptions, TaskRecipe
from wellread.tasks.senses import SenseOptions
from wellread.training.task import build_learner, load_task, train_task


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


LAYER = KnowBertConfig(layer=0, dim=8, heads=2, inner=12, prior_width=4)


@pytest.fixture
def recipe(tmp_path, encoder):
    write_vectors(tmp_path)
    write_lines_of_senses(tmp_path / "senses.jsonl", TEXTS)
    return TaskRecipe(
        "senses",
        data=Data(str(tmp_path / "senses.jsonl"), dev=str(tmp_path / "senses.jsonl")),
        encoder=EncoderOptions(str(encoder), longest=32),
        offers={"wordnet": CandidateOptions(kb=str(tmp_path / "senses.kb"))},
        knowbert={"wordnet": LAYER},
        senses=SenseOptions(wordnet=str(write_wordnet(tmp_path / "wndb")), dim=8, heads=2, inner=12, prior_width=4),
        schedule=SCHEDULE,
    )


@pytest.mark.parametrize("infusion", ["none", "knowbert", "kam+knowbert"])
def test_senses_are_trained_with_and_without_a_layer(recipe, tmp_path, infusion):
    recipe = replace(recipe, infusion=infusion, maps=replace(recipe.maps, maps=()))
    scores = train_task(recipe, tmp_path / "run")
    model = load_task(tmp_path / "run")
    examples = model.read(recipe.data.train)
    answers = model.answers(examples)
    assert model.score(examples, answers) == scores
    assert [infusion.config.raw for infusion in model.network.encoder.infusions if hasattr(infusion.config, "raw")] == (
        [6] if "knowbert" in infusion else []
    )
    model.write(tmp_path / "answers.txt", examples, answers)
    assert len((tmp_path / "answers.txt").read_text().splitlines()) == sum(len(text.marks) for text in examples)


def test_vectors_trained_by_definitions_are_saved_with_the_model(recipe, tmp_path, encoder):
    recipe = replace(recipe, infusion="knowbert", senses=replace(recipe.senses, definitions=200))
    with open_kb(recipe.offers["wordnet"].kb) as kb:  # definitions are as wide as the encoder's states
        EntityVectors.build(kb, EntityTower.load(ElqConfig(encoder=str(encoder))))
    recipe = replace(recipe, schedule=replace(recipe.schedule, rates={"encoder.embeddings": 0.0}))
    scores = train_task(recipe, tmp_path / "run")
    vectors = EntityVectors.open(tmp_path / "run" / "model" / "vectors" / "wordnet")
    assert (len(vectors), vectors.fingerprint.startswith(PREFIX)) == (len(ENTITIES), True)
    model = load_task(tmp_path / "run")
    examples = model.read(recipe.data.train)
    assert model.score(examples, model.answers(examples)) == scores
    [layer] = model.network.encoder.infusions
    np.testing.assert_allclose(layer.linker.entities.table.vectors, vectors.rows, atol=2e-3)
    before, after = (
        load_encoder(str(name)).embeddings.word_embeddings.weight for name in (encoder, tmp_path / "run/model")
    )
    assert torch.equal(before, after)  # frozen
    with open_kb(recipe.offers["wordnet"].kb) as kb:
        shrink(tmp_path / "run", kb, tmp_path / "small", base=str(encoder))
        table = Int8EntityTable.load(tmp_path / "small" / "entities.safetensors")
        assert table.fingerprint == vectors.fingerprint
    with (
        KnowledgeBase.open(recipe.offers["wordnet"].kb, writable=True) as kb,
        Linker.load(kb, tmp_path / "small", precision="fp32") as linker,
    ):
        kb.add(Entity("00000009-n", "paris", "a city", "n", 1, {"paris": 1}))
        kb.add(Entity("00000008-n", "mayor", "gloss of 00000001-n", "n", 1, {"mayor": 1}))
        assert [link.entity for link in linker.link("the mayor of paris").links] == ["00000008-n", "00000009-n"]


def test_the_layer_of_another_task_gets_the_candidates_of_its_texts(recipe, tmp_path, encoder):
    rte = rte_recipe(tmp_path, encoder)
    rte = replace(rte, infusion="knowbert", offers=recipe.offers, knowbert=recipe.knowbert)
    learner, _ = build_learner(rte, None)
    batch = learner.batches(0)[0]
    assert set(batch.knowledge["offers"]) == {"wordnet"}
    losses = learner.loss(batch)
    assert set(losses) == {"label"}  # nothing is known of what its words mean
    sum(losses.values()).backward()
    assert learner.model.encoder.infusions[0].linker.narrow.weight.grad.any()


def test_a_recipe_with_layers_is_written_and_read_as_it_was(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(config.to_toml(recipe))
    assert config.read(TaskRecipe, tmp_path / "recipe.toml") == recipe


def test_a_layer_without_its_place_or_a_recipe_without_layers_names_the_fix(tmp_path):
    (tmp_path / "recipe.toml").write_text('task = "senses"\ninfusion = "knowbert"\n')
    with pytest.raises(InputError, match=r"name one, with its layer: \[knowbert.wordnet\]"):
        config.read(TaskRecipe, tmp_path / "recipe.toml")
    (tmp_path / "recipe.toml").write_text('task = "senses"\ninfusion = "knowbert"\n[knowbert.wordnet]\n')
    with pytest.raises(InputError, match=r"'knowbert.wordnet.layer' is missing"):
        config.read(TaskRecipe, tmp_path / "recipe.toml")


def test_vectors_that_are_not_there_or_of_another_kb_name_the_fix(recipe, tmp_path):
    other = replace(recipe, offers={"wordnet": replace(recipe.offers["wordnet"], vectors=str(tmp_path / "none"))})
    with pytest.raises(KnowledgeBaseError, match=r"no vectors in .*; make them with: wellread index build"):
        build_learner(other, None)
    (tmp_path / "more").mkdir()
    write_vectors(tmp_path / "more")
    folder = str(tmp_path / "more" / "senses.kb.vectors")
    with pytest.raises(KnowledgeBaseError, match=r"vectors of another knowledge base .*; make them with: wellread"):
        build_learner(replace(recipe, offers={"wordnet": replace(recipe.offers["wordnet"], vectors=folder)}), None)


def test_kinds_of_entities_are_numbered_by_name_and_limited(recipe):
    with_kinds = replace(recipe, infusion="knowbert", knowbert={"wordnet": replace(LAYER, kinds=3, kind_width=2)})
    learner, _ = build_learner(with_kinds, None)
    entities = learner.model.encoder.infusions[0].linker.entities
    assert torch.bincount(torch.from_numpy(entities.table.kinds)).tolist() == [2, 2, 2]
    with pytest.raises((KnowledgeBaseError, UsageError), match=r"3 kinds of entities.* supports 2; set kinds = 0"):
        build_learner(replace(with_kinds, knowbert={"wordnet": replace(LAYER, kinds=2)}), None)
