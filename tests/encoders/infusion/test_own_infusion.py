"""Custom infusions at each of the three hooks, alone and with KAM."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init

from tests.infused_models import LAYERS, LENGTHS, batch, build, draw_maps, draw_terms, shake
from wellread.encoders.infusion.hooks import AttentionChunk, ExtraTokens, Flow, Infusion
from wellread.encoders.infusion.infuse import INFUSION_KINDS, infuse
from wellread.encoders.load import silence
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.models.kam.model import KamConfig

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}


@dataclass(frozen=True, slots=True)
class NearConfig:
    layers: tuple[int, ...] = (0, 1, 2)


class Near(Infusion):
    """Attention scores: each head has a trained weight for the distance of two tokens."""

    config_class = NearConfig

    def __init__(self, config: NearConfig, encoder: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.slopes = nn.Parameter(torch.empty(encoder.num_attention_heads))
        self.init_weights()

    def init_weights(self) -> None:
        init.zeros_(self.slopes)

    def attends(self, layer: int) -> bool:
        return layer in self.config.layers

    def scores(self, flow: Flow, layer: int, chunk: AttentionChunk, scores: Tensor) -> Tensor:
        rows, columns = torch.arange(scores.shape[2]), torch.arange(scores.shape[3])
        return scores - self.slopes[:, None, None] * (rows[:, None] - columns).abs()


@dataclass(frozen=True, slots=True)
class AddedConfig:
    layer: int = 1


class Added(Infusion):
    """Between layers: a vector given for each text is added to its tokens after one layer."""

    config_class = AddedConfig
    inputs = ("vectors",)

    def __init__(self, config: AddedConfig, encoder: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(()))
        self.init_weights()

    def init_weights(self) -> None:
        init.zeros_(self.weight)

    def between(self, flow: Flow, layer: int, states: Tensor) -> Tensor:
        if layer != self.config.layer or "vectors" not in flow.knowledge:
            return states
        return states + self.weight * flow.knowledge["vectors"].to(states.dtype)[flow.packing.text_of]


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    slots: int = 2


class Memory(Infusion):
    """Extra tokens: trained positions that every text attends to."""

    config_class = MemoryConfig

    def __init__(self, config: MemoryConfig, encoder: PreTrainedConfig) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(config.slots, encoder.hidden_size))

    def extra_tokens(self, flow: Flow) -> ExtraTokens:
        texts = len(flow.packing.lengths)
        return ExtraTokens(self.slots.repeat(texts, 1), Packing.of([len(self.slots)] * texts))


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Near, Added, Memory):
        monkeypatch.setitem(INFUSION_KINDS, kind.__name__.lower(), f"{__name__}:{kind.__name__}")


VECTORS = torch.randn(len(LENGTHS), 8, generator=torch.Generator().manual_seed(0))
KAM = KamConfig(maps=("a", "b"), skip="mix")


def make(*configs: Any, learned: bool = True) -> PreTrainedModel:
    model = infuse(build(), list(configs)).double()
    torch.manual_seed(5)
    if learned:
        shake(model.infusions, 0.3)
    return model


def ask(model: PreTrainedModel, **knowledge: Any) -> Tensor:
    return model(**batch(), **knowledge).last_hidden_state[batch()["attention_mask"].bool()]


def test_at_their_start_they_change_nothing() -> None:
    knowledge = {"vectors": VECTORS, "maps": draw_maps()}
    model = make(NearConfig(), KAM, AddedConfig(), learned=False)
    torch.testing.assert_close(ask(model, **knowledge), ask(make()), **TOLERANCE)


def test_an_infusion_changes_attention_scores() -> None:
    model = make(NearConfig(layers=(1,)))
    plain = build().double()
    plain.set_attn_implementation("eager")
    slopes = model.infusions[0].slopes
    width = max(LENGTHS)
    places = torch.arange(width)
    bias = -slopes[:, None, None] * (places[:, None] - places).abs()
    there = batch()["attention_mask"].bool()
    mask = torch.zeros(len(LENGTHS), 1, 1, width).masked_fill(~there[:, None, None], float("-inf")).double()

    def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return (given[0], mask + bias, *given[2:]), named

    plain.encoder.layer[1].attention.register_forward_pre_hook(hook, with_kwargs=True)
    torch.testing.assert_close(ask(model), ask(plain), **TOLERANCE)
    assert not torch.allclose(ask(model), ask(make()))


def test_an_infusion_changes_states_between_layers() -> None:
    model, plain = make(AddedConfig()), build().double()
    added = model.infusions[0].weight * VECTORS.double()

    def hook(module: nn.Module, given: Any, output: Any) -> Any:
        return output + added[:, None]

    plain.encoder.layer[1].register_forward_hook(hook)
    torch.testing.assert_close(ask(model, vectors=VECTORS), ask(plain), **TOLERANCE)
    steps = model(**batch(), vectors=VECTORS, output_hidden_states=True).hidden_states
    assert torch.equal(steps[-1], model(**batch(), vectors=VECTORS).last_hidden_state)
    assert len(steps) == LAYERS + 1


def test_all_tokens_attend_to_extra_tokens_in_every_layer() -> None:
    model = make(MemoryConfig())
    got = model(**batch(), output_attentions=True)
    torch.testing.assert_close(got.last_hidden_state, model(**batch()).last_hidden_state, **TOLERANCE)
    for kept in got.attentions:
        for text, length in enumerate(LENGTHS):
            assert bool((kept[text, :, :length, : length + 2] > 0).all())
    got.last_hidden_state.square().sum().backward()
    assert bool((model.infusions[0].slots.grad != 0).all())


def test_all_hooks_get_gradients_and_each_can_be_switched_off() -> None:
    knowledge = {"vectors": VECTORS, "maps": draw_maps(), **draw_terms((1, 0, 2, 1, 3))}
    model = make(NearConfig(), KAM, AddedConfig())
    whole = ask(model, **knowledge)
    whole.square().sum().backward()
    assert all(bool((weight.grad != 0).any()) for weight in model.infusions.parameters())
    parts = {
        "near": make(KAM, AddedConfig()),
        "kam": make(NearConfig(), AddedConfig()),
        "added": make(NearConfig(), KAM),
    }
    for kind, other in parts.items():
        kept = [
            part
            for part, knowledge in zip(model.infusions, model.config.infusions, strict=True)
            if knowledge["kind"] != kind
        ]
        for mine, part in zip(other.infusions, kept, strict=True):
            mine.load_state_dict(part.state_dict())
        taken = {name for part in kept for name in part.inputs}
        wanted = ask(other, **{name: value for name, value in knowledge.items() if name in taken})
        with model.without(kind):
            torch.testing.assert_close(ask(model, **knowledge), wanted, **TOLERANCE)
        assert not torch.allclose(whole, wanted)


def test_kam_beside_another_is_kam_step_by_step() -> None:
    alone, beside = make(KAM), make(KAM, NearConfig())
    beside.infusions[0].load_state_dict(alone.infusions[0].state_dict())
    nn.init.zeros_(beside.infusions[1].slopes)
    knowledge = {"maps": draw_maps(), **draw_terms((1, 0, 2, 1, 3))}
    torch.testing.assert_close(ask(beside, **knowledge), ask(alone, **knowledge), **TOLERANCE)


def test_two_of_a_kind_keep_separate_state() -> None:
    twice = make(KAM, KAM)
    order = copy.deepcopy(twice)
    twice.infusions[1].init_weights()
    with order.without():
        pass
    order.infusions[1].on = False
    torch.testing.assert_close(ask(twice, maps=draw_maps()), ask(order, maps=draw_maps()), **TOLERANCE)


def test_only_one_may_add_extra_tokens() -> None:
    model = make(MemoryConfig(), KAM)
    terms = draw_terms((1, 0, 2, 1, 3))
    with pytest.raises(UsageError, match="two infusions add extra tokens to the texts; switch one of them off"):
        ask(model, **terms)
    with model.without("memory"):
        ask(model, **terms)


def test_they_are_saved_and_loaded_by_their_kinds(tmp_path: Path) -> None:
    model = make(NearConfig(layers=(0, 2)), KAM, AddedConfig(layer=0), MemoryConfig(slots=3))
    with silence():
        model.save_pretrained(tmp_path)
        again = AutoModel.from_pretrained(tmp_path)
    assert [entry["kind"] for entry in again.config.infusions] == ["near", "kam", "added", "memory"]
    torch.testing.assert_close(ask(again, vectors=VECTORS), ask(model, vectors=VECTORS), **TOLERANCE)
