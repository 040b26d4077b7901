from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.conftest import cosines, draw_windows, torch_states
from wellread.encoders.packing import Packing
from wellread.models.elq import inference
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.inference import ElqInference, load_inference
from wellread.models.elq.model import Elq
from wellread.runtime.ranges import FILE, measure_ranges, save_ranges
from wellread.runtime.spans import PackedWindows, span_scores
from wellread.runtime.weights import read_encoder


def load(folder: Path, encoder: str, **options: object) -> ElqInference:
    config = replace(ElqConfig.read(folder), encoder=str(encoder))
    changes = {name: options.pop(name) for name in ("normalised", "context") if name in options}
    return load_inference(folder, replace(config, **changes), **{"threads": 1, "precision": "fp32", **options})


@pytest.mark.parametrize("context", [0.0, 3.0])
@pytest.mark.parametrize("normalised", [True, False])
@torch.no_grad()
def test_scores_and_vectors_are_those_of_torch(
    trained: tuple[Path, Elq], encoder: str, normalised: bool, context: float
) -> None:
    folder, model = trained
    loaded = load(folder, encoder, normalised=normalised, context=context)
    windows = draw_windows(40)
    ids, packing = torch.from_numpy(np.concatenate(windows)), Packing.of([len(window) for window in windows])
    packed = PackedWindows.of([len(window) for window in windows])
    wanted, states = model.states(ids, packing), loaded.states(windows)
    np.testing.assert_allclose(states, wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose(np.stack(loaded.mention_logits(states), 1), model.mention_head(wanted), atol=1e-4)
    scores = span_scores(*loaded.mention_logits(states), 10)
    np.testing.assert_allclose(scores, model.mention_scores(wanted).numpy(), atol=1e-4)
    firsts, widths = np.array([0, 3, 20, 2]), np.array([0, 4, 9, 1])
    lasts = firsts + widths
    before, model.config = model.config, replace(model.config, normalised=normalised, context=context)
    try:
        vectors = model.mention_vectors(wanted, torch.from_numpy(firsts), torch.from_numpy(lasts), packing).numpy()
        contexts = model.context_vectors(wanted, packing).numpy()
        own = model.inference()
    finally:
        model.config = before
    for one in (loaded, own):
        np.testing.assert_allclose(one.mention_vectors(states, firsts, lasts, packed), vectors, atol=1e-4)
        np.testing.assert_allclose(one.context_vectors(states, packed), contexts, atol=1e-5)
        np.testing.assert_allclose(one.states(windows), wanted.numpy(), atol=1e-5)
        assert one.scale == pytest.approx(float(model.log_scale.exp()))
        assert one.heads.names == pytest.approx(model.names_head.weight[0].tolist())
        assert one.heads.nil == pytest.approx(float(model.nil_head))


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
    monkeypatch.setattr(inference, "read_encoder", None)  # a cached graph needs none of the encoder's layers
    assert np.array_equal(load(folder, encoder, precision="int8", sample=sample, cache=tmp_path).states(windows), first)
    assert asked == [1, 1]
    monkeypatch.setattr(inference, "encoder_digest", lambda name: "of another encoder")
    with pytest.raises(TypeError):
        load(folder, encoder, precision="int8", sample=sample, cache=tmp_path)


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


def test_linking_imports_no_torch(toy: Path, tmp_path: Path) -> None:
    toy = Path(shutil.copytree(toy, tmp_path / "toy"))
    code = f"""
import sys
from wellread import Linker
linker = Linker.load({str(toy / "toy.kb")!r}, {str(toy / "model")!r})
links = linker.link("who is the mayor of cork").links
linker.kb.add({{"id": "new", "title": "Cobh", "description": "harbour town"}})
links += next(linker.link_given(["who is the mayor of Cobh"], [[(20, 24)]], nil="never")).links
print([link.entity for link in links], [name for name in ("torch", "transformers", "peft") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['p2', 'new'] []\n"
