"""Pooled vectors of tokenized texts from a torch encoder."""

import numpy as np
import pytest
import torch

from wellread.encoders import pooling as module
from wellread.encoders.load import load_encoder
from wellread.encoders.pooling import TorchPooler


@pytest.fixture
def windows():
    draw = np.random.default_rng(0)
    return [draw.integers(5, 40, length) for length in (3, 12, 7, 7, 1, 12, 5)]


def test_batch_size_changes_nothing(encoder, windows, monkeypatch):
    pooler = TorchPooler(load_encoder(encoder))
    vectors = pooler.pooled(windows)
    monkeypatch.setattr(module, "_TOKENS", 13)
    assert np.allclose(pooler.pooled(windows), vectors, atol=1e-6)
    assert pooler.pooled([]).shape == (0, pooler.dim)


def test_batches_hold_every_text_once_and_not_too_many_tokens(encoder, windows, monkeypatch):
    passes = []

    def encode(encoder, ids, packing):
        passes.append(packing.lengths.tolist())
        return torch.zeros(len(ids), pooler.dim)

    pooler = TorchPooler(load_encoder(encoder))
    monkeypatch.setattr(module, "encode", encode)
    monkeypatch.setattr(module, "_TOKENS", 13)
    pooler.pooled(windows)
    assert [length for some in passes for length in some] == sorted(map(len, windows), reverse=True)
    assert len(passes) > 1
    assert all(len(some) == 1 or sum(some) <= 13 for some in passes)
