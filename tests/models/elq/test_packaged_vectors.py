"""Vectors shipped with the packaged linker: of the texts of the packaged articles, and of no others."""

from dataclasses import replace

import numpy as np
import pytest

from tests.toy_models import ENTITIES, write_kb
from wellread.assets import fetch
from wellread.errors import AssetError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.packaged import kb_path, open_kb
from wellread.models.elq import packaged_vectors
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower, fingerprint_of
from wellread.models.elq.load import PACKAGED
from wellread.models.elq.packaged_vectors import PATH, PackagedVectors, package

TEXTS = [(entity.title, entity.description) for entity in ENTITIES]


@pytest.fixture
def packaged(encoder, tmp_path, monkeypatch):
    """Return a tower, with vectors of the toy KB packaged for it."""
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path))
    tower = EntityTower.load(ElqConfig(encoder=encoder, entity_pieces=12))
    with write_kb(tmp_path / "toy.kb") as kb:
        package(EntityVectors.build(kb, tower), tmp_path / "packaged.safetensors")
    monkeypatch.setattr(packaged_vectors, "PATH", tmp_path / "packaged.safetensors")
    return tower


def test_known_texts_have_their_packaged_vector_and_others_are_encoded(packaged, monkeypatch):
    tower = EntityTower.load(packaged.config, precision="auto")
    unknown = [("cork", "another city"), ("", "")]
    encoded = []
    monkeypatch.setattr(tower, "_encode", lambda some: encoded.extend(some) or packaged.encode(some))
    vectors = tower.encode([unknown[0], *TEXTS, unknown[1]])
    assert encoded == unknown
    exact = packaged.encode([unknown[0], *TEXTS, unknown[1]])
    assert ((vectors * exact).sum(1) > 0.999).all()
    assert np.array_equal(vectors[[0, -1]], exact[[0, -1]])


def test_vectors_of_another_encoder_and_damaged_files_are_not_used(packaged):
    config = packaged.config
    assert EntityTower.load(config, precision="auto").packaged is not None
    assert EntityTower.load(config).packaged is None  # fp32 was asked for
    assert EntityTower.load(replace(config, separator=" "), precision="auto").packaged is None
    packaged_vectors.PATH.write_bytes(packaged_vectors.PATH.read_bytes()[:100])
    assert PackagedVectors.load(fingerprint_of(config)) is None
    packaged_vectors.PATH.unlink()
    assert EntityTower.load(config, precision="auto").packaged is None


def test_the_packaged_articles_have_vectors_of_the_packaged_linker():
    assert PATH.stat().st_size < 5_000_000
    try:
        fetch("minilm")
    except AssetError:
        pytest.skip("the asset minilm is not here; see: wellread fetch minilm")
    vectors = PackagedVectors.load(fingerprint_of(ElqConfig.read(PACKAGED)))
    assert vectors is not None
    if not kb_path("vital").exists():
        pytest.skip("the vital knowledge base is not built")
    with open_kb("vital") as kb:
        texts = kb.connection.execute("SELECT title, description FROM entities").fetchall()
    known, rows = vectors.find(texts)
    assert len(known) > 0.99 * len(texts)  # the KB may have been changed since
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
