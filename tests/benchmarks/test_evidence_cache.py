"""Evidence kept on disk: read once for a model, a KB's state and texts."""

from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.evidence_cache import EvidenceCache

from wellread.linking.evidence import Evidence


class CountingBackend:
    """A backend that counts how often it reads."""

    def __init__(self, revision=1):
        self.kb = SimpleNamespace(metadata={"uid": "u"}, revision=revision)
        self.pool = SimpleNamespace(index=SimpleNamespace(state="s"))
        self.calls = 0

    def evidence(self, texts):
        self.calls += 1
        return Evidence.joined([])


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "scorer.safetensors").write_text("1")
    return folder


def test_texts_are_read_once_whatever_the_scorer(tmp_path, model):
    backend = CountingBackend()
    found = EvidenceCache(tmp_path / "cache", model).evidence(backend, ["a", "b"])
    (model / "scorer.safetensors").write_text("2")
    again = EvidenceCache(tmp_path / "cache", model).evidence(backend, ["a", "b"])
    assert backend.calls == 1
    assert np.array_equal(found.rows, again.rows)


def test_other_texts_models_and_states_of_the_kb_are_read_anew(tmp_path, model):
    backend, changed = CountingBackend(), CountingBackend(revision=2)
    cache = EvidenceCache(tmp_path / "cache", model)
    for texts in (["a", "b"], ["ab"], ["b", "a"]):
        cache.evidence(backend, texts)
    cache.evidence(changed, ["ab"])
    (model / "config.json").write_text("[]")
    EvidenceCache(tmp_path / "cache", model).evidence(backend, ["ab"])
    assert (backend.calls, changed.calls) == (4, 1)


def test_a_damaged_file_is_read_anew(tmp_path, model):
    backend, cache = CountingBackend(), EvidenceCache(tmp_path / "cache", model)
    cache.evidence(backend, ["a"])
    next((tmp_path / "cache").glob("*.safetensors")).write_bytes(b"broken")
    cache.evidence(backend, ["a"])
    cache.evidence(backend, ["a"])
    assert backend.calls == 2
