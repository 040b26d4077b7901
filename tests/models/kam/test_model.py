"""KAM starts as its checkpoint; padding and masks have no influence; wrong maps are refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.infused_models import FAMILIES, LAYERS, LENGTHS, POSITIONS, batch, build, draw_maps, draw_terms, shake
from wellread.encoders.infusion import hooks as flow
from wellread.encoders.infusion.infuse import build_infusion, infuse
from wellread.encoders.packing import Packing
from wellread.errors import InputError, UsageError
from wellread.models.kam.model import KamConfig

TERMS = (2, 1, 0, 3, 2)
TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}


def learned(config: KamConfig | None = None, family: str = "Bert", head: str = "Model") -> PreTrainedModel:
    """One that has moved away from its start."""
    model = infuse(build(family, head), [config or KamConfig(maps=("a", "b"), skip="mix")]).double()
    torch.manual_seed(7)
    shake(getattr(model, model.base_model_prefix, model).infusions, 0.3)
    return model


def tell(lengths: tuple[int, ...] = LENGTHS, terms: tuple[int, ...] = TERMS) -> dict[str, Tensor]:
    return {"maps": draw_maps(lengths, 2, terms), **draw_terms(terms)}


def choose(knowledge: dict[str, Tensor], texts: list[int]) -> dict[str, Tensor]:
    return {name: part[texts] for name, part in knowledge.items()}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("maps", [(), ("a",), ("a", "b", "c")], ids=len)
@pytest.mark.parametrize("skip", ["none", "add", "mix"])
def test_at_its_start_it_is_the_checkpoint(skip: Any, maps: tuple[str, ...], alpha: float) -> None:
    plain = build().double()
    kam = infuse(copy.deepcopy(plain), [KamConfig(maps=maps, skip=skip, alpha=alpha)]).double()
    given = batch()
    mask = given["attention_mask"].bool()
    knowledge = {"maps": draw_maps(LENGTHS, len(maps))} if maps else {}
    wanted = plain(**given).last_hidden_state[mask]
    torch.testing.assert_close(kam(**given, **knowledge).last_hidden_state[mask], wanted, **TOLERANCE)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_takes_it(family: str, head: str) -> None:
    plain = build(family, head).double()
    kam = infuse(copy.deepcopy(plain), [KamConfig(maps=("a", "b"))]).double()
    given = batch((6, 6), family=family)
    maps = draw_maps((6, 6))
    torch.testing.assert_close(kam(**given, maps=maps)[0], plain(**given)[0], **TOLERANCE)
    shake(getattr(kam, kam.base_model_prefix).infusions, 0.3)
    assert not torch.allclose(kam(**given, maps=maps)[0], kam(**given, maps=maps.flip(2))[0])


def test_choices_bring_their_maps_choice_by_choice() -> None:
    kam = learned(head="ForMultipleChoice")
    lengths, terms = (4, 6, 3, 5), (1, 0, 2, 1)
    given, knowledge = batch(lengths), tell(lengths, terms)
    flat = kam.bert(**given, **knowledge).pooler_output
    grouped = {name: part.unflatten(0, (2, 2)) for name, part in {**given, **knowledge}.items()}
    logits = kam(**grouped).logits
    torch.testing.assert_close(logits, kam.classifier(flat).view(2, 2), **TOLERANCE)


def test_map_init_is_a_start_weight_on_the_maps() -> None:
    kam = infuse(build(), [KamConfig(maps=("a", "b"), map_init=0.5, alpha=1.0)]).double()
    first = kam.infusions[0].kernels["0"]
    assert first[:, 2:, 1, 1].unique().tolist() == [0.5]
    assert int((first != 0).sum()) == 2 + 2 * 2
    knowledge = tell()
    assert not torch.allclose(
        kam(**batch(), **knowledge).last_hidden_state, kam(**batch(), **knowledge | {"maps": None}).last_hidden_state
    )


def test_a_random_start_is_random() -> None:
    kam = infuse(build(), [KamConfig(maps=("a",), start="random")]).infusions[0]
    assert all(bool((kernel != 0).all()) for kernel in kam.kernels.values())
    assert not torch.equal(kam.kernels["0"], kam.kernels["1"])


def test_it_adds_few_weights() -> None:
    kam = infuse(build(), [KamConfig(maps=("a", "b"), skip="add")]).infusions[0]
    assert sum(weight.numel() for weight in kam.parameters()) == LAYERS * 9 * (2 + 2) * 2 + (LAYERS - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_side_of_padding_has_no_say(family: str) -> None:
    kam, knowledge = learned(family=family), tell()
    got = []
    for side in ("left", "right"):
        given = batch(side=side, family=family)
        got.append(kam(**given, **knowledge).last_hidden_state[given["attention_mask"].bool()])
    torch.testing.assert_close(*got, **TOLERANCE)


@pytest.mark.parametrize("fusion", ["convolution", "mean", "none"])
def test_neighbours_and_their_order_have_no_say(fusion: Any) -> None:
    kam = learned(KamConfig(maps=("a", "b"), skip="add", fusion=fusion))
    given, knowledge = batch(), tell()
    together = kam(**given, **knowledge).last_hidden_state
    for texts in ([3, 0, 4, 2, 1], [0, 1], [4], [1, 2], [2, 2, 2]):
        other = kam(**choose(given, texts), **choose(knowledge, texts)).last_hidden_state
        for row, text in enumerate(texts):
            length = LENGTHS[text]
            torch.testing.assert_close(other[row, :length], together[text, :length], **TOLERANCE)


def test_padding_added_to_a_batch_has_no_say() -> None:
    kam, given, knowledge = learned(), batch(), tell()
    before = kam(**given, **knowledge).last_hidden_state
    wider = {name: torch.nn.functional.pad(part, (0, 4)) for name, part in given.items()}
    knowledge["maps"] = torch.nn.functional.pad(knowledge["maps"], (0, 9, 0, 3))
    knowledge |= {name: torch.nn.functional.pad(knowledge[name], (0, 2)) for name in ("term_ids", "term_mask")}
    after = kam(**wider, **knowledge).last_hidden_state
    torch.testing.assert_close(after[:, : before.shape[1]], before, **TOLERANCE)
    assert not after[:, before.shape[1] :].any()


def test_masked_positions_have_no_influence() -> None:
    kam, given, knowledge = learned(), batch(), tell()
    before = kam(**given, **knowledge).last_hidden_state
    for name in ("input_ids", "token_type_ids"):
        given[name] = torch.where(given["attention_mask"].bool(), given[name], 1)
    knowledge["term_ids"] = torch.where(knowledge["term_mask"], knowledge["term_ids"], 9)
    assert torch.equal(kam(**given, **knowledge).last_hidden_state, before)


@pytest.mark.parametrize("fusion", ["convolution", "mean"])
def test_maps_beyond_the_end_of_a_text_have_no_say(fusion: Any) -> None:
    kam = learned(KamConfig(maps=("a", "b"), fusion=fusion))
    given, knowledge = batch(), tell()
    before = kam(**given, **knowledge).last_hidden_state
    spoilt = torch.full_like(knowledge["maps"], 7.0)
    for text, total in enumerate(map(sum, zip(LENGTHS, TERMS, strict=True))):
        spoilt[text, :, :total, :total] = knowledge["maps"][text, :, :total, :total]
    torch.testing.assert_close(kam(**given, **knowledge | {"maps": spoilt}).last_hidden_state, before, **TOLERANCE)


def test_maps_of_tokens_alone_are_zero_for_terms() -> None:
    kam, given = learned(), batch()
    knowledge = tell() | {"maps": draw_maps(LENGTHS, 2)}
    short = kam(**given, **knowledge).last_hidden_state
    knowledge["maps"] = torch.nn.functional.pad(knowledge["maps"], (0, 3, 0, 3))
    assert torch.equal(kam(**given, **knowledge).last_hidden_state, short)


def test_without_maps_they_are_zeros() -> None:
    kam, given = learned(), batch()
    bare = kam(**given).last_hidden_state
    assert torch.equal(kam(**given, maps=torch.zeros(5, 2, 7, 7)).last_hidden_state, bare)


def test_maps_may_be_of_any_type() -> None:
    kam, given = learned(), batch()
    ones = draw_maps() > 0.5
    wanted = kam(**given, maps=ones.double()).last_hidden_state
    for type in (torch.bool, torch.uint8, torch.float16):
        assert torch.equal(kam(**given, maps=ones.to(type)).last_hidden_state, wanted)


def test_without_a_mask_all_terms_count() -> None:
    kam, given = learned(), batch((3, 4))
    terms = draw_terms((2, 2))
    wanted = kam(**given, **terms).last_hidden_state
    assert torch.equal(kam(**given, term_ids=terms["term_ids"]).last_hidden_state, wanted)


def test_batches_where_no_text_has_terms_are_those_without() -> None:
    kam, given = learned(), batch()
    wanted = kam(**given).last_hidden_state
    none = {"term_ids": torch.zeros(5, 2).long(), "term_mask": torch.zeros(5, 2).bool()}
    assert torch.equal(kam(**given, **none).last_hidden_state, wanted)
    empty = {"term_ids": torch.zeros(5, 0).long()}
    assert torch.equal(kam(**given, **empty).last_hidden_state, wanted)


def test_terms_change_the_output() -> None:
    kam, given, knowledge = learned(), batch(), tell()
    before = kam(**given, **knowledge).last_hidden_state
    knowledge["term_ids"][0, 0] += 1
    after = kam(**given, **knowledge).last_hidden_state
    assert not torch.allclose(after[0], before[0])
    assert torch.equal(after[1:], before[1:])


def test_how_texts_share_the_cache_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    kam, given, knowledge = learned(), batch(), tell()
    wanted = kam(**given, **knowledge).last_hidden_state
    for size in (1, 48 * 150, 1 << 30):
        monkeypatch.setattr(flow, "_CACHE_BYTES", size)
        torch.testing.assert_close(kam(**given, **knowledge).last_hidden_state, wanted, **TOLERANCE)


@pytest.mark.parametrize("skip", ["none", "mix"])
def test_attentions_include_those_of_terms(skip: Any) -> None:
    kam = learned(KamConfig(maps=("a", "b"), skip=skip))
    given, knowledge = batch(), tell()
    got = kam(**given, **knowledge, output_attentions=True)
    torch.testing.assert_close(got.last_hidden_state, kam(**given, **knowledge).last_hidden_state, **TOLERANCE)
    totals = torch.tensor(LENGTHS) + torch.tensor(TERMS)
    assert len(got.attentions) == LAYERS
    for kept in got.attentions:
        assert kept.shape == (5, 2, max(LENGTHS), int(totals.max()))
        for text, (length, total) in enumerate(zip(LENGTHS, totals, strict=True)):
            torch.testing.assert_close(kept[text, :, :length].sum(-1), torch.ones(2, length).double())
            assert bool((kept[text, :, :length, :total] > 0).all())
            assert not kept[text, :, length:].any()
            assert not kept[text, :, :, total:].any()


def test_packed_texts_bring_maps_too() -> None:
    kam, given, knowledge = learned(), batch(), tell()
    mask = given["attention_mask"].bool()
    states = kam.states(given["input_ids"][mask], Packing.of(LENGTHS), given["token_type_ids"][mask], **knowledge)
    torch.testing.assert_close(states, kam(**given, **knowledge).last_hidden_state[mask], **TOLERANCE)


@pytest.mark.parametrize("fusion", ["convolution", "mean"])
def test_weights_are_dropped_in_training_and_only_there(fusion: Any) -> None:
    config = KamConfig(maps=("a", "b"), fusion=fusion)
    kam = infuse(build(attention=0.5), [config])
    given, maps = batch(), draw_maps()
    kam.train()
    torch.manual_seed(0)
    first, second = kam(**given, maps=maps)[0], kam(**given, maps=maps)[0]
    assert not torch.allclose(first, second)
    torch.manual_seed(0)
    assert torch.equal(kam(**given, maps=maps)[0], first)
    assert torch.equal(kam.eval()(**given, maps=maps)[0], kam(**given, maps=maps)[0])


def test_layers_may_be_named_in_any_order() -> None:
    kam, other = (learned(KamConfig(layers=layers, skip="add")) for layers in ((2, 0), (0, 2)))
    other.load_state_dict(kam.state_dict())
    assert torch.equal(kam(**batch()).last_hidden_state, other(**batch()).last_hidden_state)


@pytest.mark.parametrize(
    ("knowledge", "said"),
    [
        ({"maps": torch.zeros(5, 3, 7, 7)}, "the batch has 3 maps; the model expects 2: a, b"),
        ({"maps": torch.zeros(4, 2, 7, 7)}, "maps has 4 texts; the batch has 5"),
        ({"maps": torch.zeros(5, 7, 7)}, "maps .*texts, maps, rows, columns"),
        ({"term_ids": torch.zeros(4, 1).long()}, "term_ids has 4 texts; the batch has 5"),
        (
            {"term_ids": torch.zeros(5, 2).long(), "term_mask": torch.ones(5, 3).bool()},
            r"term_mask is \(5, 3\) and term_ids is \(5, 2\); shapes differ",
        ),
        (
            {"term_ids": torch.zeros(5, POSITIONS).long()},
            "a text with its auxiliary tokens needs 47 positions, more than the encoder has; split texts",
        ),
    ],
    ids=["count", "texts", "dimensions", "terms of texts", "mask of terms", "positions"],
)
def test_inputs_of_the_wrong_shape_are_refused(knowledge: dict[str, Tensor], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        learned()(**batch(), **knowledge)


def test_roberta_has_fewer_positions_than_it_counts() -> None:
    kam = learned(family="Roberta")
    given = batch((POSITIONS - 2 - 1,), family="Roberta")
    kam(**given, term_ids=torch.full((1, 1), 5))
    with pytest.raises(UsageError, match="needs 39 positions"):
        kam(**given, term_ids=torch.full((1, 2), 5))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="alpha is 2; expected a share between 0 and 1"):
        KamConfig(alpha=2)
    for value in (math.inf, math.nan):
        with pytest.raises(UsageError, match=f"map_init is {value}; expected a number to start from"):
            KamConfig(map_init=value)
    with pytest.raises(UsageError, match="layer 3 is not one of the encoder's 3"):
        infuse(build(), [KamConfig(layers=(0, 3))])
    for change in ({"start": "random"}, {"fusion": "mean"}, {"fusion": "none"}):
        with pytest.raises(UsageError, match="set map_init = 0"):
            KamConfig(map_init=1.0, **change)
    with pytest.raises(UsageError, match="names a map twice"):
        KamConfig(maps=("entity", "entity"))
    with pytest.raises(InputError, match="'skp' is not a setting of KamConfig"):
        build_infusion({"kind": "kam", "skp": "mix"}, build().config)
    with pytest.raises(UsageError, match="'cam' is not an infusion; expected one of: kam"):
        build_infusion({"kind": "cam"}, build().config)
