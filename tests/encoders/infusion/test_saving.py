"""Saving and loading of infused models, and of plain checkpoints as infused ones."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from tests.infused_models import FAMILIES, HEADS, batch, build, draw_maps, draw_terms, shake
from wellread.encoders.infusion.infuse import base_of, infuse
from wellread.encoders.load import silence
from wellread.errors import InputError, UsageError
from wellread.models.kam.model import KamConfig
from wellread.models.luke.config import LukeConfig

KAM = KamConfig(maps=("a", "b"), layers=(0, 2), skip="mix", alpha=0.3)
KNOWLEDGE = {"maps": draw_maps(), **draw_terms((1, 0, 2, 1, 3))}


@pytest.fixture(autouse=True)
def _quiet():
    with silence():
        yield


def learned(family: str, head: str = "Model") -> PreTrainedModel:
    model = infuse(build(family, head), [KAM])
    shake(base_of(model).infusions, 0.3)
    return model


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_loaded_unchanged(family: str, head: str, tmp_path: Path) -> None:
    model = learned(family, head)
    model.save_pretrained(tmp_path)
    auto = AutoModel if head == "Model" else AutoModelForSequenceClassification
    again, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert type(again) is type(model)
    assert base_of(again).infusions[0].config == KAM
    given = batch(family=family)
    saved = model.state_dict()
    assert all(torch.equal(weight, saved[name]) for name, weight in again.state_dict().items())
    torch.testing.assert_close(again(**given, **KNOWLEDGE)[0], model(**given, **KNOWLEDGE)[0])
    assert not torch.allclose(model(**given, **KNOWLEDGE)[0], model(**given)[0])


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_model_is_the_same(family: str, head: str) -> None:
    model = learned(family, head)
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model)
    assert again.config.to_dict() == pickle.loads(pickle.dumps(model.config)).to_dict() == model.config.to_dict()
    assert [type(part) for part in again.modules()] == [type(part) for part in model.modules()]
    given = batch(family=family)
    assert torch.equal(again(**given, **KNOWLEDGE)[0], model(**given, **KNOWLEDGE)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_model_with_entities_is_the_same_and_trains(family: str) -> None:
    model = infuse(build(family), [LukeConfig(entities=20, dim=6)])
    shake(model.infusions)
    entities = {
        "text_of": torch.tensor([0, 0, 2]),
        "ids": torch.tensor([4, 2, 7]),
        "spans": torch.tensor([[1, 2], [0, 0], [0, 6]]),
    }
    found = []
    for one in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        states = one(**batch(family=family), entities=entities)
        states.entity_last_hidden_state.sum().backward()
        gradient = base_of(one).infusions[0].table.weight.grad
        found.append((states.last_hidden_state, states.entity_last_hidden_state, gradient))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_a_model_sent_to_another_process_is_the_same_there(tmp_path: Path) -> None:
    model = learned("Bert")
    part = model.encoder.layer[0].attention
    torch.save((part, model), tmp_path / "sent.pt")
    script = (
        "import sys, torch; part, model = torch.load(sys.argv[1], weights_only=False); print(type(model), type(part))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "sent.pt")], capture_output=True, text=True)
    assert done.stdout.strip() == f"{type(model)} {type(part)}", done.stderr


@pytest.mark.parametrize("head", HEADS)
def test_each_head_is_known_to_its_auto_class(head: str) -> None:
    config = infuse(build("Electra", head), [KAM]).config
    made = getattr(transformers, f"AutoModel{head}").from_config(config)
    assert type(made).__name__ == f"InfusedElectra{head}"
    kernel = base_of(made).infusions[0].kernels["0"]
    torch.testing.assert_close(kernel, base_of(infuse(build("Electra"), [KAM])).infusions[0].kernels["0"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_checkpoint_loads_with_infusions_at_their_start(family: str, tmp_path: Path) -> None:
    plain = build(family, "ForSequenceClassification")
    plain.save_pretrained(tmp_path)
    fresh = infuse(build(family, "ForSequenceClassification"), [KAM])
    for _ in range(2):  # memory that was used before holds garbage
        torch.full((1000,), float("nan"))
        model, report = AutoModelForSequenceClassification.from_pretrained(
            tmp_path, config=fresh.config, output_loading_info=True
        )
        assert all("infusions." in name for name in report["missing_keys"])
        assert not report["unexpected_keys"]
        mine, theirs = base_of(model).infusions.state_dict(), base_of(fresh).infusions.state_dict()
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert torch.equal(base_of(model).infusions[0]._identity, base_of(fresh).infusions[0]._identity)
        given = batch((6, 6), family=family)
        torch.testing.assert_close(
            model(**given, maps=draw_maps((6, 6))).logits, plain(**given).logits, atol=1e-6, rtol=1e-5
        )


def test_a_bare_encoder_s_checkpoint_loads_under_a_head(tmp_path: Path) -> None:
    build("Bert").save_pretrained(tmp_path)
    config = infuse(build("Bert"), [KAM]).config
    model, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert {name.split(".")[0] for name in report["missing_keys"] if "infusions" not in name} == {"classifier"}
    torch.testing.assert_close(model.bert(**batch())[0], infuse(build("Bert"), [])(**batch())[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_infused_checkpoint_loads_into_the_plain_class(family: str, tmp_path: Path) -> None:
    model = learned(family, "ForSequenceClassification")
    model.save_pretrained(tmp_path)
    plain, report = getattr(transformers, f"{family}ForSequenceClassification").from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert all("infusions." in name for name in report["unexpected_keys"])
    given = batch((6, 6), family=family)
    with base_of(model).without():
        torch.testing.assert_close(plain(**given).logits, model(**given).logits)


def test_names_on_disk_are_those_of_the_checkpoint_and_the_infusions(tmp_path: Path) -> None:
    model = learned("Bert")
    model.save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert names - set(build("Bert").state_dict()) == {
        "infusions.0.kernels.0",
        "infusions.0.kernels.2",
        "infusions.0.betas.2",
    }
    config_json = json.loads((tmp_path / "config.json").read_text())
    assert config_json["model_type"] == "infused-bert"
    assert config_json["infusions"] == [
        {
            "kind": "kam",
            "maps": ["a", "b"],
            "layers": [0, 2],
            "fusion": "convolution",
            "alpha": 0.3,
            "skip": "mix",
            "start": "identity",
            "map_init": 0.0,
        }
    ]


def test_an_encoder_without_a_pooler_stays_so(tmp_path: Path) -> None:
    model = build("Bert")
    model.pooler = None
    infuse(model, [KAM]).save_pretrained(tmp_path)
    again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert again.pooler is None
    assert not any(report.values())
    assert again(**batch()).pooler_output is None
    model, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert {name for name in report["missing_keys"] if "pooler" in name}


def test_a_typo_in_a_saved_configuration_names_the_fix(tmp_path: Path) -> None:
    infuse(build("Bert"), [KAM]).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = file.read_text()
    file.write_text(content.replace('"alpha"', '"alfa"'))
    with pytest.raises(InputError, match="'alfa' is not a setting of KamConfig; did you mean 'alpha'"):
        AutoModel.from_pretrained(tmp_path)
    file.write_text(content.replace('"kam"', '"cam"'))
    with pytest.raises(UsageError, match="'cam' is not an infusion; expected one of: kam"):
        AutoModel.from_pretrained(tmp_path)


def test_half_precision_is_kept(tmp_path: Path) -> None:
    model = learned("Bert").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert {weight.dtype for weight in again.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(again(**batch(), **KNOWLEDGE)[0], model(**batch(), **KNOWLEDGE)[0])
    assert AutoModel.from_pretrained(tmp_path, dtype=torch.float32).infusions[0].kernels["0"].dtype == torch.float32


def test_a_fresh_process_knows_the_classes_by_one_import(tmp_path: Path) -> None:
    for head in ("Model", "ForMaskedLM"):
        learned("Roberta", head).save_pretrained(tmp_path / head)
    script = f"""
import transformers, wellread.encoders.infusion.infuse
print(type(transformers.AutoConfig.from_pretrained({str(tmp_path / "Model")!r})).__name__)
print(type(transformers.AutoModel.from_pretrained({str(tmp_path / "Model")!r})).__name__)
print(type(transformers.AutoModelForMaskedLM.from_pretrained({str(tmp_path / "ForMaskedLM")!r})).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["InfusedRobertaConfig", "InfusedRobertaModel", "InfusedRobertaForMaskedLM"]
