"""ELQ's entity side: one vector for each entity, whatever it is encoded with."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from tests.toy_models import ENTITIES, tokenizer, write_encoder
from wellread.encoders.pooling import TorchPooler
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower, fingerprint_of

TEXTS = [(entity.title, entity.description) for entity in ENTITIES]


@pytest.fixture(scope="module")
def config(encoder):
    return ElqConfig(encoder=encoder, entity_pieces=12)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_vector_is_what_transformers_gives_for_the_entity_alone(config, encoder, pooling, normalised):
    tower = EntityTower.load(replace(config, pooling=pooling, normalised=normalised))
    theirs = BertModel.from_pretrained(encoder, add_pooling_layer=False).double().eval()
    tokens = tokenizer()
    tokens.enable_truncation(12)
    vectors = tower.encode(TEXTS)
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(TEXTS), tower.dim))
    for (title, description), vector in zip(TEXTS[::5], vectors[::5], strict=True):
        with torch.no_grad():
            states = theirs(torch.tensor([tokens.encode(f"{title}: {description}").ids])).last_hidden_state[0].numpy()
        want = states.mean(0) if pooling == "mean" else states[0]
        want = want / np.linalg.norm(want) if normalised else want
        assert np.allclose(vector, want, atol=1e-5)


def test_order_and_number_of_entities_change_nothing(config):
    tower = EntityTower.load(config)
    vectors = tower.encode(TEXTS)
    assert np.allclose(tower.encode(TEXTS[::-1])[::-1], vectors, atol=1e-6)
    assert np.allclose(np.concatenate([tower.encode([text]) for text in TEXTS]), vectors, atol=1e-6)


def test_without_a_description_the_title_stands_alone(config):
    tower = EntityTower.load(config)
    vectors = tower.encode([("cork", ""), ("cork:", ""), ("cork", "city"), ("cork: city", "")])
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)
    assert np.allclose(vectors[2], vectors[3], atol=1e-6)


def test_the_separator_stands_between(config):
    tower = EntityTower.load(replace(config, separator=" the "))
    vectors = tower.encode([("cork", "city"), ("cork the city", "")])
    assert np.allclose(*vectors, atol=1e-6)


def test_what_is_longer_than_its_pieces_is_cut(config):
    tower = EntityTower.load(config)
    long = tower.encode([("cork", "city " * 50), ("cork", "city " * 8), ("cork", "city " * 7)])
    assert np.allclose(long[0], long[1], atol=1e-6)
    assert not np.allclose(long[1], long[2], atol=1e-4)


def test_no_entity_has_no_vector_and_an_empty_one_has_one(config):
    tower = EntityTower.load(config)
    assert tower.encode([]).shape == (0, 16)
    assert np.isfinite(tower.encode([("", "")])).all()


def test_an_encoder_of_its_own_gives_the_vectors(config, tmp_path):
    other = write_encoder(tmp_path / "other", width=24, seed=5)
    tower = EntityTower.load(replace(config, entity_encoder=other))
    assert tower.encode(TEXTS[:2]).shape == (2, 24)
    alone = EntityTower.load(replace(config, encoder=other))
    assert np.array_equal(tower.encode(TEXTS[:2]), alone.encode(TEXTS[:2]))


def test_the_fingerprint_changes_with_what_changes_vectors_and_with_nothing_else(config, tmp_path):
    own = fingerprint_of(config)
    other = write_encoder(tmp_path / "other", seed=5)
    changes = (
        {"pooling": "cls"},
        {"normalised": False},
        {"separator": " "},
        {"entity_pieces": 13},
        {"encoder": other},
        {"entity_encoder": other},
    )
    found = [fingerprint_of(replace(config, **change)) for change in changes]
    assert own not in found
    assert len(set(found)) == len(changes) - 1  # the entities' encoder is `other` in the last two
    same = ({"rank": 0}, {"nil": False}, {"names": False}, {"threshold": 0.9}, {"longest": 3})
    assert {fingerprint_of(replace(config, **change)) for change in same} == {own}
    assert fingerprint_of(replace(config, entity_encoder=config.encoder)) == own
    assert EntityTower.load(config).fingerprint == own


def test_vectors_in_8_bits_are_near_those_in_floats_and_independent_of_the_batch(config, monkeypatch, tmp_path):
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path))
    tower = EntityTower.load(config, precision="auto")
    vectors, exact = tower.encode(TEXTS), EntityTower.load(config).encode(TEXTS)
    assert not np.array_equal(vectors, exact)
    assert ((vectors * exact).sum(1) > 0.99).all()
    assert np.array_equal(np.concatenate([tower.encode([text]) for text in TEXTS]), vectors)
    assert tower.fingerprint == fingerprint_of(config)
    monkeypatch.setattr("wellread.runtime.graph.write_int8_graph", None)  # the graph is cached
    assert np.array_equal(EntityTower.load(config, precision="int8").encode(TEXTS), vectors)


def test_a_model_in_fp32_encodes_entities_in_fp32(config):
    asked = EntityTower.load(replace(config, precision="fp32"), precision="auto")
    assert np.array_equal(asked.encode(TEXTS), EntityTower.load(config).encode(TEXTS))


def test_torch_encodes_where_the_runtime_does_not_know_the_encoder(config, encoder, tmp_path):
    vectors = EntityTower.load(config).encode(TEXTS)
    sharded = shutil.copytree(encoder, tmp_path / "sharded")
    weights = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    save_file(weights, sharded / "model-00001-of-00001.safetensors", {"format": "pt"})
    names = dict.fromkeys(weights, "model-00001-of-00001.safetensors")
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    tower = EntityTower.load(replace(config, encoder=str(sharded)))
    assert isinstance(tower.encoder, TorchPooler)
    assert np.allclose(tower.encode(TEXTS), vectors, atol=1e-5)
