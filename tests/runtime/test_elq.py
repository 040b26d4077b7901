from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.conftest import cosines, draw_windows, torch_states
from wellread.encoders.packing import Packing
from wellread.models.elq.model import Elq
from wellread.runtime import elq
from wellread.runtime.elq import ElqRuntime
from wellread.runtime.ranges import FILE, measure_ranges, save_ranges
from wellread.runtime.weights import read_encoder


def load(folder: Path, encoder: str, **options: object) -> ElqRuntime:
    given = {"digest": "d", "longest": 10, "normalise": True, "threads": 1, "precision": "fp32", **options}
    return ElqRuntime.load(folder, Path(encoder), **given)


@pytest.mark.parametrize("normalise", [True, False])
@torch.no_grad()
def test_scores_and_vectors_are_those_of_torch(trained: tuple[Path, Elq], encoder: str, normalise: bool) -> None:
    folder, model = trained
    runtime = load(folder, encoder, normalise=normalise)
    windows = draw_windows(40)
    ids, packing = torch.from_numpy(np.concatenate(windows)), Packing.of([len(window) for window in windows])
    wanted, states = model.states(ids, packing), runtime.states(windows)
    np.testing.assert_allclose(states, wanted.numpy(), atol=1e-5)
    scores = model.mention_scores(wanted).numpy()
    np.testing.assert_allclose(runtime.mention_scores(states), scores, atol=1e-4)
    firsts, widths = np.array([0, 3, 20, 2]), np.array([0, 4, 9, 1])
    lasts = firsts + widths
    np.testing.assert_allclose(runtime.mention_scores_of(states, firsts, lasts), scores[firsts, widths], atol=1e-4)
    before, model.config = model.config, elq_config(model, normalise)
    vectors = model.mention_vectors(wanted, torch.from_numpy(firsts), torch.from_numpy(lasts), packing).numpy()
    model.config = before
    np.testing.assert_allclose(runtime.mention_vectors(states, firsts, lasts), vectors, atol=1e-4)
    assert runtime.scale == pytest.approx(float(model.log_scale.exp()))
    assert runtime.heads.names == pytest.approx(model.names_head.weight[0].tolist())
    assert runtime.heads.nil == pytest.approx(float(model.nil_head))


def elq_config(model: Elq, normalise: bool) -> object:
    return replace(model.config, normalised=normalise)


def test_8_bits_come_from_the_cache_the_second_time(
    trained: tuple[Path, Elq], encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = trained
    windows, asked = draw_windows(40), []

    def sample() -> list[np.ndarray]:
        asked.append(1)
        return draw_windows(40, seed=5)

    first = load(folder, encoder, precision="int8", sample=sample, cache=tmp_path).states(windows)
    assert cosines(first, torch_states(model.encoder, windows)).min() > 0.99
    monkeypatch.setattr(elq, "read_encoder", None)  # a cached graph needs none of the encoder's layers
    assert np.array_equal(load(folder, encoder, precision="int8", sample=sample, cache=tmp_path).states(windows), first)
    assert asked == [1]
    with pytest.raises(TypeError):
        load(folder, encoder, precision="int8", digest="of another encoder", cache=tmp_path)


def test_ranges_in_the_folder_take_the_place_of_a_sample(
    trained: tuple[Path, Elq], encoder: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained[0], tmp_path / "model"))
    windows, cached = draw_windows(40), tmp_path / "cache"
    before = load(folder, encoder, precision="int8", cache=cached).states(windows)
    save_ranges(measure_ranges(read_encoder(Path(encoder)), windows, 1), folder / FILE)
    after = load(folder, encoder, precision="int8", cache=cached, sample=None).states(windows)
    assert not np.array_equal(before, after)
    assert len(list(cached.glob("*.safetensors"))) == 2


def test_a_damaged_cache_changes_nothing(trained: tuple[Path, Elq], encoder: str, tmp_path: Path) -> None:
    windows = draw_windows(40)
    before = load(trained[0], encoder, precision="int8", cache=tmp_path).states(windows)
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    assert np.array_equal(load(trained[0], encoder, precision="int8", cache=tmp_path).states(windows), before)
    assert file.read_bytes() != content
