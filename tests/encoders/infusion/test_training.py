"""Training of infused models: checkpointing, bf16, compilation, adapters, Trainer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

from tests.infused_models import FAMILIES, batch, build, draw_maps, draw_terms, shake
from wellread.encoders.infusion.infuse import base_of, infuse
from wellread.encoders.load import silence
from wellread.errors import UsageError
from wellread.models.kam.model import KamConfig

LABELS = torch.tensor([0, 2, 1, 0, 1])


def make(family: str = "Bert", dropout: float = 0.0, **options: Any) -> PreTrainedModel:
    model = infuse(build(family, "ForSequenceClassification", dropout=dropout), [KamConfig(maps=("a", "b"), **options)])
    torch.manual_seed(4)
    shake(base_of(model).infusions, 0.2)
    return model


def ask(family: str = "Bert", terms: bool = True) -> dict[str, Tensor]:
    inputs = {"maps": draw_maps(count=2).float(), "labels": LABELS}
    return {**batch(family=family), **inputs, **(draw_terms((1, 0, 2, 1, 3)) if terms else {})}


def gradients(model: PreTrainedModel, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the gradient of each weight."""
    torch.manual_seed(9)
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    return loss.detach(), {
        name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
    }


def assert_alike(
    one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]], **tolerance: float
) -> None:
    assert list(one[1]) == list(other[1])
    torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("skip", ["none", "mix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family: str, skip: Any) -> None:
    model = make(family, dropout=0.3, skip=skip).train()
    given = ask(family)
    wanted = gradients(model, given)
    model.gradient_checkpointing_enable()
    assert_alike(gradients(model, given), wanted, atol=1e-6, rtol=1e-5)
    model.gradient_checkpointing_disable()
    assert_alike(gradients(model, given), wanted, atol=1e-6, rtol=1e-5)


def test_checkpointing_that_would_lose_gradients_is_refused() -> None:
    with pytest.raises(UsageError, match="give use_reentrant=False"):
        make().gradient_checkpointing_enable({"use_reentrant": True})
    infuse(make(), []).gradient_checkpointing_enable({"use_reentrant": True})
    make().gradient_checkpointing_enable({"use_reentrant": False})


def test_layers_are_computed_again_only_with_checkpointing() -> None:
    model = make(skip="add").train()
    seen = []
    model.bert.encoder.layer[1].attention.register_forward_pre_hook(lambda *_: seen.append(1))
    gradients(model, ask())
    assert len(seen) == 1
    model.gradient_checkpointing_enable()
    gradients(model, ask())
    assert len(seen) == 3


@pytest.mark.parametrize("skip", ["none", "add"])
@pytest.mark.parametrize("fusion", ["convolution", "mean"])
def test_bf16_is_nearly_the_same(fusion: Any, skip: Any) -> None:
    model, given = make(fusion=fusion, skip=skip).train(), ask()
    loss, wanted = gradients(model, given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, got = gradients(model, given)
    torch.testing.assert_close(half.float(), loss, atol=0.02, rtol=0.02)
    assert list(got) == list(wanted)
    for name, gradient in got.items():
        assert gradient.dtype == torch.float32
        assert bool(gradient.isfinite().all())
        assert float((gradient - wanted[name]).norm()) <= 0.1 * float(wanted[name].norm()) + 1e-3, name


def test_weights_in_bf16_work_too() -> None:
    model, given = make(skip="mix"), ask()
    wanted = model(**given)
    half = copy.deepcopy(model).bfloat16().train()
    got = half(**given)
    torch.testing.assert_close(got.logits.float(), wanted.logits, atol=0.05, rtol=0.05)
    got.loss.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in half.parameters() if weight.grad is not None)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_outputs_and_gradients_agree() -> None:
    plain, given = build(head="ForSequenceClassification", num_hidden_layers=2), ask()
    model = infuse(plain, [KamConfig(maps=("a", "b"), skip="mix", map_init=1.0)]).train()
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
    loss = compiled(**given).loss
    loss.backward()
    got = {name: weight.grad for name, weight in compiled._orig_mod.named_parameters() if weight.grad is not None}
    assert_alike((loss.detach(), got), gradients(model, given), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("family", "target"), [("Bert", "query"), ("DistilBert", "q_lin")])
def test_adapters_are_trained_saved_and_merged(family: str, target: str, tmp_path: Path) -> None:
    model, given = make(family, skip="mix"), ask(family)
    bare = copy.deepcopy(model)
    before = model(**given).logits
    saved = ["infusions.0", "classifier", *(["pre_classifier"] if family == "DistilBert" else [])]
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=[target, "value"], modules_to_save=saved))
    torch.testing.assert_close(adapted(**given).logits, before)
    steer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.05)
    losses = [step(adapted, given, steer) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.1
    learned = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert any("lora_A" in name for name in learned)
    assert any("infusions.0" in name and "kernels" in name for name in learned)
    after = adapted.eval()(**given).logits
    with adapted.disable_adapter():
        torch.testing.assert_close(adapted(**given).logits, before)
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(copy.deepcopy(bare), tmp_path)
    torch.testing.assert_close(again(**given).logits, after)
    merged = again.merge_and_unload()
    assert list(merged.state_dict()) == list(bare.state_dict())
    torch.testing.assert_close(merged(**given).logits, after, atol=1e-5, rtol=1e-5)


def step(model: Any, given: dict[str, Tensor], steer: torch.optim.Optimizer) -> float:
    loss = model.train()(**given).loss
    steer.zero_grad()
    loss.backward()
    steer.step()
    return float(loss.detach())


class Texts(torch.utils.data.Dataset):
    """Texts whose label is the presence of a mark in a map, and depends on nothing else."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> dict[str, Any]:
        length, label = 3 + place % 4, place // 4 % 2
        maps = torch.zeros(1, length, length)
        maps[:, :, 1] = 9.0 * label
        return {"input_ids": list(range(5, 5 + length)), "maps": maps, "labels": label}


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    most = max(len(row["input_ids"]) for row in rows)
    ids, mask = (torch.zeros(len(rows), most, dtype=torch.long) for _ in range(2))
    maps = torch.zeros(len(rows), 1, most, most)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[place, :length], mask[place, :length] = torch.tensor(row["input_ids"]), 1
        maps[place, :, :length, :length] = row["maps"]
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "maps": maps, "labels": labels}


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        remove_unused_columns=False,
        logging_steps=6,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )


@pytest.mark.parametrize("options", [None, {"preserve_rng_state": True}], ids=["usual", "own"])
def test_trainer_gives_the_same_with_checkpointing(options: dict[str, Any] | None, tmp_path: Path) -> None:
    plain = make(skip="add", dropout=0.3)
    checkpointed = copy.deepcopy(plain)
    seen: list[int] = []
    checkpointed.bert.encoder.layer[1].attention.register_forward_pre_hook(lambda *_: seen.append(1))
    given = {"max_steps": 2, "save_strategy": "no"}
    again = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": options}
    with silence():
        for model, more in ((plain, {}), (checkpointed, again)):
            Trainer(model, arguments(tmp_path, **given, **more), collate_twice, train_dataset=Texts(64)).train()
    assert len(seen) == 2 * 2
    torch.testing.assert_close(checkpointed.state_dict(), plain.state_dict(), atol=1e-5, rtol=1e-4)


def collate_twice(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    made = collate(rows)
    return made | {"maps": made["maps"].repeat(1, 2, 1, 1)}


def test_trainer_hands_maps_to_the_model_and_the_loss_falls(tmp_path: Path) -> None:
    model = infuse(build(head="ForSequenceClassification"), [KamConfig(maps=("mark",), map_init=1.0)])
    options = arguments(tmp_path, max_steps=60, save_steps=60)
    with silence():
        trainer = Trainer(model, options, collate, train_dataset=Texts(64), eval_dataset=Texts(32))
        trainer.train()
        scores = trainer.evaluate()
        again = type(model).from_pretrained(tmp_path / "checkpoint-60")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.4 < 0.6 < losses[0]
    assert scores["eval_loss"] < 0.4
    given = collate([Texts(8)[place] for place in range(8)])
    torch.testing.assert_close(again(**given).logits, model.eval()(**given).logits)
    with model.bert.without():
        assert float(model(**given).loss.detach()) > 0.6
