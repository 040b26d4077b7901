from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.conftest import cosines, draw_windows, torch_states
from wellread.encoders.load import load_encoder
from wellread.errors import UsageError
from wellread.runtime.folding import fold
from wellread.runtime.graph import write_graph, write_int8_graph
from wellread.runtime.ranges import measure_ranges
from wellread.runtime.session import EncoderSession
from wellread.runtime.weights import EncoderWeights, read_encoder

NEARLY = 0.99
"""Cosine of 8-bit states of small random encoders and those in floats."""


def session_of(encoder: EncoderWeights, *, layers: int = 1, int8: bool = False, threads: int = 1) -> EncoderSession:
    if not int8:
        return EncoderSession(write_graph(encoder, layers=layers), encoder.words, threads=threads)
    folded = fold(encoder, measure_ranges(encoder, draw_windows(len(encoder.words), seed=5), 1))
    return EncoderSession(write_int8_graph(folded, layers=layers), encoder.words, threads=threads)


def test_states_in_floats_are_those_of_torch(family: Path) -> None:
    encoder = read_encoder(family)
    windows = draw_windows(len(encoder.words))
    wanted = torch_states(load_encoder(str(family)).eval(), windows)
    np.testing.assert_allclose(session_of(encoder).states(windows), wanted, atol=1e-5)


def test_states_in_8_bits_are_nearly_those_in_floats(family: Path) -> None:
    encoder = read_encoder(family)
    windows = draw_windows(len(encoder.words))
    wanted = torch_states(load_encoder(str(family)).eval(), windows)
    states = session_of(encoder, int8=True).states(windows)
    assert cosines(states, wanted).min() > NEARLY
    assert np.abs(states - wanted).max() > 1e-5, "not in 8 bits"


@pytest.mark.parametrize("layers", [2, 3])
def test_states_may_be_the_mean_of_several_layers(family: Path, layers: int) -> None:
    encoder = read_encoder(family)
    windows = draw_windows(len(encoder.words))
    wanted = torch_states(load_encoder(str(family)).eval(), windows, layers)
    np.testing.assert_allclose(session_of(encoder, layers=layers).states(windows), wanted, atol=1e-5)
    assert cosines(session_of(encoder, layers=layers, int8=True).states(windows), wanted).min() > NEARLY


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "gelu_pytorch_tanh"])
def test_other_activations_work_too(encoder: str, tmp_path: Path, activation: str) -> None:
    model = load_encoder(encoder)
    model.config.hidden_act = activation
    model.save_pretrained(tmp_path)
    weights = read_encoder(tmp_path)
    windows = draw_windows(len(weights.words))
    wanted = torch_states(load_encoder(str(tmp_path)).eval(), windows)
    np.testing.assert_allclose(session_of(weights).states(windows), wanted, atol=1e-4)
    assert cosines(session_of(weights, int8=True).states(windows), wanted).min() > NEARLY


def test_what_a_graph_cannot_be_is_refused(encoder: str, tmp_path: Path) -> None:
    weights = read_encoder(Path(encoder))
    with pytest.raises(UsageError, match="the mean of 4"):
        write_graph(weights, layers=4)
    model = load_encoder(encoder)
    model.config.hidden_act = "silu"
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="not silu"):
        write_graph(read_encoder(tmp_path))


def test_a_channel_far_beyond_the_others_does_not_make_them_coarse(encoder: str, tmp_path: Path) -> None:
    model = load_encoder(encoder).eval()
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.bias[7] = 500.0
        model.encoder.layer[1].intermediate.dense.bias[3] = 500.0
    model.save_pretrained(tmp_path)
    weights = read_encoder(tmp_path)
    windows = draw_windows(len(weights.words))
    wanted = torch_states(model, windows)
    assert cosines(session_of(weights, int8=True).states(windows), wanted).min() > NEARLY


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("int8", [False, True], ids=["fp32", "int8"])
def test_neighbours_have_no_say_to_the_last_bit(minilm: Path, int8: bool, threads: int) -> None:
    encoder = read_encoder(minilm)
    draw = np.random.default_rng(1)
    windows = draw_windows(len(encoder.words), tuple(draw.integers(2, 50, 24).tolist()))
    one = session_of(encoder, int8=int8)
    alone = [one.states([window]) for window in windows]
    session = one if threads == 1 else session_of(encoder, int8=int8, threads=threads)
    for order in (range(24), sorted(range(24), key=lambda row: len(windows[row])), range(23, 8, -1)):
        states = session.states([windows[row] for row in order])
        assert np.array_equal(states, np.concatenate([alone[row] for row in order]))


def test_the_packaged_encoder_has_the_states_of_torch(minilm: Path, torch_minilm: torch.nn.Module) -> None:
    encoder = read_encoder(minilm)
    windows = draw_windows(len(encoder.words), (7, 40, 12, 12, 130))
    states = session_of(encoder).states(windows)
    np.testing.assert_allclose(states, torch_states(torch_minilm, windows), atol=1e-5)


def test_8_bits_are_near_to_floats(minilm: Path) -> None:
    encoder = read_encoder(minilm)
    windows = draw_windows(len(encoder.words), (7, 40, 12, 12, 100))
    likeness = cosines(session_of(encoder, int8=True).states(windows), session_of(encoder).states(windows))
    assert likeness.mean() > 0.99
    assert likeness.min() > 0.97


def test_two_products_fit_16_bits(encoder: str) -> None:
    weights = read_encoder(Path(encoder))
    folded = fold(weights, measure_ranges(weights, draw_windows(40), 1))
    for layer in folded.layers:
        for product in (layer.joined, layer.mixed, layer.intermediate, layer.output):
            assert 2 * 255 * np.abs(product.weight.astype(int)).max() < 1 << 15


def test_the_runtime_imports_neither_torch_nor_transformers() -> None:
    names = "cache folding graph int8 ranges session spans weights".split()
    code = f"""
import importlib, json, sys
for name in {names!r}:
    importlib.import_module("wellread.runtime." + name)
print(json.dumps([name for name in ("torch", "transformers", "peft") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
