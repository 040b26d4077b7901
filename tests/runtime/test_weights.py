from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from wellread.errors import InputError, UsageError
from wellread.models.elq.inference import HEADS
from wellread.models.elq.model import Elq
from wellread.runtime.weights import map_words, merge_adapters, read_encoder, read_trained

PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
}


def test_merged_adapters_are_those_of_peft(encoder: str, trained: tuple[Path, Elq]) -> None:
    folder, model = trained
    plain = read_encoder(Path(encoder))
    _, adapters = read_trained(folder / "model.safetensors", HEADS)
    merged = merge_adapters(plain, adapters)
    wanted = model.encoder.state_dict()
    for number, layer in enumerate(merged.layers):
        for part, name in PARTS.items():
            own = getattr(layer, part).weight
            np.testing.assert_allclose(own, wanted[f"encoder.layer.{number}.{name}.weight"].numpy(), atol=1e-6)
            assert not np.allclose(own, getattr(plain.layers[number], part).weight, atol=1e-3)


def test_word_embeddings_are_mapped_not_copied(encoder: str) -> None:
    words = map_words(Path(encoder))
    assert not words.flags.owndata
    assert not words.flags.writeable
    np.testing.assert_array_equal(words, read_encoder(Path(encoder)).words)


def test_names_of_a_model_with_a_head_have_a_prefix(encoder: str, tmp_path: Path) -> None:
    shutil.copy(Path(encoder) / "config.json", tmp_path)
    arrays = load_file(Path(encoder) / "model.safetensors")
    renamed = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in arrays.items()
    }
    save_file({**renamed, "classifier.weight": np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    found, wanted = read_encoder(tmp_path), read_encoder(Path(encoder))
    np.testing.assert_array_equal(found.layers[1].output_norm.weight, wanted.layers[1].output_norm.weight)
    np.testing.assert_array_equal(found.words, wanted.words)


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "t5"}, {"infusions": []}, {"is_decoder": True}, {"position_embedding_type": "relative_key"}],
    ids=str,
)
def test_an_encoder_that_the_runtime_cannot_run_is_refused(
    encoder: str, tmp_path: Path, changes: dict[str, object]
) -> None:
    shutil.copytree(encoder, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UsageError, match="use torch"):
        read_encoder(tmp_path / "other")


def test_missing_and_damaged_weights_are_named(encoder: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "other"))
    arrays = load_file(folder / "model.safetensors")
    del arrays["encoder.layer.1.output.dense.weight"]
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"layer\.1\.output\.dense\.weight"):
        read_encoder(folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-10])
    with pytest.raises(InputError, match="copy it again"):
        read_encoder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="use torch"):
        read_encoder(folder)


def test_heads_and_adapters_must_fit(encoder: str, trained: tuple[Path, Elq], tmp_path: Path) -> None:
    arrays = load_file(trained[0] / "model.safetensors")
    fewer = {name: array for name, array in arrays.items() if name != "nil_head"}
    more = {**arrays, "encoder.encoder.layer.0.odd": np.zeros(2, np.float32)}
    for changed, odd in ((fewer, r"e\.g\. nil_head"), (more, r"e\.g\. encoder\.layer\.0\.odd")):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match=odd):
            read_trained(tmp_path / "model.safetensors", HEADS)
    _, adapters = read_trained(trained[0] / "model.safetensors", HEADS)
    name = next(name for name in adapters if name.endswith("lora_A.default.weight"))
    for broken in ({name: adapters[name][:, 1:]}, {name.replace("layer.0", "layer.7"): adapters[name]}):
        with pytest.raises(InputError, match="adapter of encoder"):
            merge_adapters(read_encoder(Path(encoder)), {**adapters, **broken})
