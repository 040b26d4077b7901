from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.conftest import draw_windows, torch_states
from wellread.encoders.load import load_encoder
from wellread.errors import InputError
from wellread.runtime.folding import MEASURED
from wellread.runtime.ranges import has_ranges, load_ranges, measure_ranges, random_windows, save_ranges
from wellread.runtime.weights import read_encoder

NAMES = ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense")


def test_ranges_are_those_that_torch_measures(encoder: str) -> None:
    windows = draw_windows(40)
    model = load_encoder(encoder).eval()
    given: dict[torch.nn.Module, torch.Tensor] = {}
    projections = [layer.get_submodule(name) for layer in model.encoder.layer for name in NAMES]
    for projection in projections:
        projection.register_forward_pre_hook(lambda module, inputs: given.update({module: inputs[0].flatten(0, -2)}))
    torch_states(model, windows)
    ranges = measure_ranges(read_encoder(Path(encoder)), windows, 1)
    found = [layer[part] for layer in ranges for part in MEASURED]
    for own, projection in zip(found, projections, strict=True):
        np.testing.assert_allclose(own.low, given[projection].amin(0).numpy(), atol=1e-5)
        np.testing.assert_allclose(own.high, given[projection].amax(0).numpy(), atol=1e-5)


def test_ranges_are_of_the_weights_that_they_name(encoder: str, tmp_path: Path) -> None:
    weights, file = read_encoder(Path(encoder)), tmp_path / "ranges.safetensors"
    assert not has_ranges(file, "one")
    ranges = measure_ranges(weights, draw_windows(40), 1)
    save_ranges(ranges, file, weights="one")
    assert (has_ranges(file, "one"), has_ranges(file, "another")) == (True, False)
    save_ranges(ranges, file)
    assert has_ranges(file, "another")


def test_ranges_are_saved_and_loaded(encoder: str, tmp_path: Path) -> None:
    weights, file = read_encoder(Path(encoder)), tmp_path / "ranges.safetensors"
    ranges = measure_ranges(weights, draw_windows(40), 1)
    save_ranges(ranges, file)
    for own, wanted in zip(load_ranges(file, weights), ranges, strict=True):
        for part in MEASURED:
            assert np.array_equal(own[part].low, wanted[part].low)
            assert np.array_equal(own[part].high, wanted[part].high)


def test_ranges_of_another_encoder_and_damaged_ones_are_refused(
    encoder: str, plain_encoder: str, tmp_path: Path
) -> None:
    weights, file = read_encoder(Path(encoder)), tmp_path / "ranges.safetensors"
    other = read_encoder(Path(plain_encoder))
    save_ranges(measure_ranges(other, (), 1), file)
    with pytest.raises(InputError, match="delete it"):
        load_ranges(file, weights)
    save_ranges(measure_ranges(weights, (), 1), file)
    content = bytearray(file.read_bytes())
    content[-300] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match="delete it"):
        load_ranges(file, weights)
    file.unlink()
    with pytest.raises(InputError, match="delete it"):
        load_ranges(file, weights)


def test_random_windows_are_always_the_same_and_fit_the_encoder(encoder: str) -> None:
    weights = read_encoder(Path(encoder))
    first, second = random_windows(weights), random_windows(weights)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert max(window.max() for window in first) < len(weights.words)
