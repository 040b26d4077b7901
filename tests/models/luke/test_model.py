"""LUKE infusion: equal to transformers' LUKE, alone and with other infusions."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from tests import infused_models as infused
from tests import luke_models as lukes
from tests.infused_models import VOCABULARY, draw_maps, draw_terms, shake
from wellread.encoders.infusion import hooks as flow
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.models.kam.model import KamConfig
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.conversion import from_hf
from wellread.models.luke.model import Luke, luke_of

CONFIG = LukeConfig(entities=20, dim=6, predicts=True)
LENGTHS = infused.LENGTHS
ENTITIES = {
    "text_of": torch.tensor([0, 0, 2, 3, 3]),
    "ids": torch.tensor([4, 2, 7, 4, 19]),
    "spans": torch.tensor([[1, 2], [-1, -1], [0, 6], [3, 3], [2, 4]]),
}


@pytest.fixture(params=[True, False], ids=["aware", "not aware"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    theirs = lukes.build(aware=request.param)
    return theirs, from_hf(lukes.save(theirs, tmp_path)).eval()


@pytest.fixture(params=[False, True], ids=["text by text", "in chunks"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test with both implementations of attention in training."""
    monkeypatch.setattr(flow, "_is_short", lambda positions, texts: request.param)
    return bool(request.param)


def build(family: str = "Bert", *others: Any, config: LukeConfig = CONFIG, **more: Any) -> PreTrainedModel:
    """Return an infused encoder with random new weights."""
    model = infuse(infused.build(family, **more), [config, *others])
    shake(model.infusions)
    return model


def close(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> None:
    if mask is not None:
        ours, theirs = ours[mask > 0], theirs[mask > 0]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("threads", "positions", "learning", "short"),
    [(2, 127, True, True), (2, 128, True, False), (1, 127, True, False), (2, 127, False, False)],
)
def test_short_texts_are_trained_in_chunks_by_several_threads(
    threads: int, positions: int, learning: bool, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with torch.set_grad_enabled(learning):
        assert flow._is_short(positions, 2) is short


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("learning", [False, True], ids=["eval", "train"])
def test_states_are_those_of_transformers(both: tuple[PreTrainedModel, PreTrainedModel], learning: bool) -> None:
    theirs, ours = (model.train(learning) for model in both)
    given = lukes.batch()
    wanted, found = theirs(**given, output_hidden_states=True), ours(**given, output_hidden_states=True)
    mask, there = given["attention_mask"], given["entity_attention_mask"]
    close(found.last_hidden_state, wanted.last_hidden_state, mask)
    close(found.entity_last_hidden_state, wanted.entity_last_hidden_state, there)
    close(found.pooler_output, wanted.pooler_output)
    for one, other in zip(found.hidden_states, wanted.hidden_states, strict=True):
        close(one, other, mask)
    for one, other in zip(found.entity_hidden_states, wanted.entity_hidden_states, strict=True):
        close(one, other, there)


def test_without_entities_states_are_those_of_transformers(both: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    theirs, ours = both
    given = {name: part for name, part in lukes.batch().items() if not name.startswith("entity")}
    found = ours(**given)
    close(found.last_hidden_state, theirs(**given).last_hidden_state, given["attention_mask"])
    assert found.entity_last_hidden_state is None


@pytest.mark.usefixtures("route")
def test_gradients_are_those_of_transformers(both: tuple[PreTrainedModel, PreTrainedModel], tmp_path: Path) -> None:
    theirs, ours = both
    given = lukes.batch()
    weigh = torch.randn(2, lukes.WIDTH)
    for model in both:
        found = model(**given)
        words = (found.last_hidden_state * given["attention_mask"][..., None] * weigh[0]).sum()
        (
            (found.entity_last_hidden_state * given["entity_attention_mask"][..., None] * weigh[1]).sum() + words
        ).backward()
    luke, table = luke_of(ours), theirs.entity_embeddings
    close(ours.embeddings.word_embeddings.weight.grad, theirs.embeddings.word_embeddings.weight.grad)
    close(luke.table.weight.grad, table.entity_embeddings.weight.grad)
    close(luke.positions.weight.grad, table.position_embeddings.weight.grad)
    close(luke.types.weight.grad, table.token_type_embeddings.weight.grad)
    for number, (one, other) in enumerate(zip(ours.encoder.layer, theirs.encoder.layer, strict=True)):
        for name in ("query", "key", "value"):
            mine, wanted = (layer.attention.self.get_submodule(name).weight.grad for layer in (one, other))
            close(mine, wanted)
        if luke.config.aware:
            wanted = [getattr(other.attention.self, f"{name}_query") for name in ("w2e", "e2w", "e2e")]
            for mine, query in zip(luke.queries[number].children(), wanted, strict=True):
                close(mine.weight.grad, query.weight.grad)
                close(mine.bias.grad, query.bias.grad)


def test_attentions_are_those_of_transformers(both: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    theirs, ours = both
    theirs.set_attn_implementation("eager")
    given = {name: part[:1] for name, part in lukes.batch().items()}
    wanted, found = theirs(**given, output_attentions=True), ours(**given, output_attentions=True)
    close(found.last_hidden_state, wanted.last_hidden_state)
    for one, other in zip(found.attentions, wanted.attentions, strict=True):
        close(one, other)


def test_attentions_of_texts_of_all_lengths_are_kept() -> None:
    model, given = build(), infused.batch()
    found = model(**given, entities=ENTITIES, output_attentions=True)
    close(found.last_hidden_state, model(**given, entities=ENTITIES).last_hidden_state)
    totals = torch.tensor(LENGTHS) + torch.bincount(ENTITIES["text_of"], minlength=len(LENGTHS))
    for weights in found.attentions:
        rows = (torch.arange(weights.shape[2]) < totals[:, None]).float()
        close(weights.sum(-1), rows[:, None].expand(-1, weights.shape[1], -1))


@pytest.mark.parametrize("family", infused.FAMILIES)
def test_a_fresh_model_without_entities_is_its_encoder(family: str) -> None:
    plain, given = infused.build(family), infused.batch(family=family)
    wanted = infuse(copy.deepcopy(plain), [])(**given).last_hidden_state
    fresh = infuse(plain, [CONFIG])
    assert torch.equal(fresh(**given).last_hidden_state, wanted)
    none = {name: part[:0] for name, part in ENTITIES.items()}
    assert torch.equal(fresh(**given, entities=none).last_hidden_state, wanted)


@pytest.mark.parametrize("family", infused.FAMILIES)
def test_an_untrained_model_attends_to_entities_as_to_words(family: str) -> None:
    given = infused.batch(family=family)
    aware, plain = (
        infuse(infused.build(family), [LukeConfig(entities=20, dim=6, aware=aware)]) for aware in (True, False)
    )
    plain.infusions.load_state_dict(aware.infusions.state_dict(), strict=False)
    found, wanted = (model(**given, entities=ENTITIES) for model in (aware, plain))
    close(found.last_hidden_state, wanted.last_hidden_state)
    close(found.entity_last_hidden_state, wanted.entity_last_hidden_state)
    assert not torch.equal(found.last_hidden_state, aware(**given).last_hidden_state)


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("aware", [True, False], ids=["aware", "not aware"])
@pytest.mark.parametrize("learning", [False, True], ids=["eval", "train"])
def test_words_that_do_not_attend_to_entities_have_the_states_without_them(aware: bool, learning: bool) -> None:
    config = LukeConfig(entities=20, dim=6, aware=aware, seen=False)
    model, given = build(config=config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), infused.batch()
    model.train(learning)
    mask = given["attention_mask"]
    wanted, found = model(**given), model(**given, entities=ENTITIES)
    close(found.last_hidden_state, wanted.last_hidden_state, mask)
    seeing = build(config=LukeConfig(entities=20, dim=6, aware=aware), hidden_dropout_prob=0.0).eval()
    seeing.load_state_dict(model.state_dict())
    assert not torch.allclose(seeing(**given, entities=ENTITIES).last_hidden_state[0], found.last_hidden_state[0])
    # entities look at words, whether attention is kept or not
    kept = model(**given, entities=ENTITIES, output_attentions=True)
    close(kept.last_hidden_state, found.last_hidden_state, mask)
    close(kept.entity_last_hidden_state, found.entity_last_hidden_state)
    words = given["input_ids"].clone()
    words[3] = (words[3] + 1) % 20
    assert not torch.allclose(
        model(**given | {"input_ids": words}, entities=ENTITIES).entity_last_hidden_state[3],
        found.entity_last_hidden_state[3],
    )


def test_maps_cannot_be_combined_with_unseen_entities() -> None:
    model = build("Bert", KamConfig(maps=("a", "b")), config=LukeConfig(entities=20, dim=6, seen=False))
    with pytest.raises(UsageError, match=r"luke.seen = true"):
        model(**infused.batch(), entities=ENTITIES, maps=draw_maps())


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("family", infused.FAMILIES)
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["", "dropout"])
def test_every_weight_gets_a_gradient(family: str, dropout: float) -> None:
    model = build(family, dropout=dropout).train()
    found = model(**infused.batch(family=family), entities=ENTITIES)
    (found.last_hidden_state.square().sum() + found.entity_last_hidden_state.square().sum()).backward()
    for name, weight in model.named_parameters():
        unused = ("prediction", "pooler", "key.bias", "k_lin.bias")
        if not any(part in name for part in unused):
            assert weight.grad is not None, name
            assert torch.isfinite(weight.grad).all(), name
            assert weight.grad.abs().sum() > 0, name


def test_positions_start_as_those_of_words() -> None:
    for family, first in (("Bert", 0), ("Roberta", 2)):
        model = infuse(infused.build(family), [CONFIG])
        words = model.embeddings.position_embeddings.weight
        assert torch.equal(luke_of(model).positions.weight[: len(words) - first], words[first:])


def test_packed_and_padded_inputs_give_the_same_states() -> None:
    model, given = build(), infused.batch()
    wanted = model(**given, entities=ENTITIES)
    packing = Packing.of(LENGTHS)
    there = given["attention_mask"] > 0
    read = model.read(given["input_ids"][there], packing, given["token_type_ids"][there], entities=ENTITIES)
    close(read.states, wanted.last_hidden_state[there])
    counts = Packing.of(torch.bincount(ENTITIES["text_of"], minlength=len(LENGTHS)))
    close(counts.spread(read.outputs["entities"]), wanted.entity_last_hidden_state)


def test_without_entities_the_output_is_empty() -> None:
    packing = Packing.of([3, 2])
    read = build().read(torch.randint(3, VOCABULARY, (5,)), packing)
    assert read.outputs["entities"].shape == (0, 8)


def test_outputs_of_transformers_tokenizer_are_valid_inputs(both: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    _, ours = both
    given = lukes.batch()
    wanted = ours(**given)
    words = {name: part for name, part in given.items() if not name.startswith("entity")}
    found = ours(**words, entities=lukes.packed(given))
    assert torch.equal(found.last_hidden_state, wanted.last_hidden_state)
    assert torch.equal(found.entity_last_hidden_state, wanted.entity_last_hidden_state)


def test_a_span_is_the_range_of_its_positions_up_to_the_longest_mention() -> None:
    model, given = build(config=LukeConfig(entities=20, dim=6, longest=4)), infused.batch()
    places = torch.tensor([[1, 2, -1, -1], [-1, -1, -1, -1], [0, 1, 2, 3], [3, -1, -1, -1], [4, 2, -1, 3]])
    wanted = model(**given, entities=ENTITIES)
    found = model(**given, entities={**ENTITIES, "places": places})
    close(found.entity_last_hidden_state, wanted.entity_last_hidden_state)


def test_entity_types_change_the_states() -> None:
    model, given = build(), infused.batch()
    one, other = (
        model(**given, entities={**ENTITIES, "types": torch.full((5,), kind)}).entity_last_hidden_state
        for kind in (0, 1)
    )
    close(one, model(**given, entities=ENTITIES).entity_last_hidden_state)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("learning", [False, True], ids=["eval", "train"])
def test_texts_of_a_batch_are_independent(learning: bool) -> None:
    model, given = build().train(learning), infused.batch()
    together = model(**given, entities=ENTITIES)
    for text, length in enumerate(LENGTHS):
        here = ENTITIES["text_of"] == text
        entities = {name: part[here] for name, part in ENTITIES.items()} | {"text_of": ENTITIES["text_of"][here] * 0}
        alone = model(**{name: part[text : text + 1, :length] for name, part in given.items()}, entities=entities)
        close(together.last_hidden_state[text, :length], alone.last_hidden_state[0])
        if here.any():
            close(together.entity_last_hidden_state[text, : here.sum()], alone.entity_last_hidden_state[0])


def test_padding_on_the_left_changes_nothing() -> None:
    model = build()
    right, left = (model(**infused.batch(side=side), entities=ENTITIES) for side in ("right", "left"))
    close(left.entity_last_hidden_state, right.entity_last_hidden_state)


def test_unmasked_padding_is_treated_as_in_transformers(
    both: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    given = {name: part for name, part in lukes.batch().items() if name != "attention_mask"}
    given["input_ids"][0, 3] = 1  # a text that says <pad>
    with torch.no_grad():
        wanted, found = (model(**given).last_hidden_state for model in both)
    close(found, wanted)


def test_dropout_changes_the_states() -> None:
    model, given = build(dropout=0.0, attention=0.5), infused.batch()
    calm = model(**given, entities=ENTITIES).last_hidden_state
    one, other = (model.train()(**given, entities=ENTITIES).last_hidden_state for _ in range(2))
    assert not torch.allclose(one, calm)
    assert not torch.allclose(one, other)


def test_gradient_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = build("Roberta").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**infused.batch(family="Roberta"), entities=ENTITIES).entity_last_hidden_state.square().sum().backward()
        gradients.append({name: part.grad for name, part in model.named_parameters() if part.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        close(gradients[1][name], gradient)


def test_prediction_is_the_tied_table_and_a_bias() -> None:
    luke = luke_of(build())
    states = torch.randn(3, 8)
    narrow = luke.prediction(states)
    assert narrow.shape == (3, 6)
    close(luke.predict(states), narrow @ luke.table.weight.T + luke.prediction.bias)
    with pytest.raises(UsageError, match="no head for entities"):
        luke_of(build(config=LukeConfig(entities=20, dim=6))).predict(states)


def test_a_saved_model_is_loaded_with_the_same_outputs(tmp_path: Path) -> None:
    model, given = build(), infused.batch()
    loaded = AutoModel.from_pretrained(lukes.save(model, tmp_path)).eval()
    found, wanted = (one(**given, entities=ENTITIES).entity_last_hidden_state for one in (loaded, model))
    assert torch.equal(found, wanted)
    assert luke_of(loaded).config == CONFIG


def test_luke_can_be_switched_off() -> None:
    model, given = build(), infused.batch()
    with model.without("luke"):
        found = model(**given, entities=ENTITIES)
    assert torch.equal(found.last_hidden_state, model(**given).last_hidden_state)
    assert found.entity_last_hidden_state is None


def test_untrained_kam_does_not_change_luke_and_trained_maps_do() -> None:
    given, maps = infused.batch(), draw_maps()
    alone, together = build(), build("Bert", KamConfig(maps=("a", "b")))
    together.infusions[0].load_state_dict(alone.infusions[0].state_dict())
    together.infusions[1].init_weights()
    wanted, found = alone(**given, entities=ENTITIES), together(**given, entities=ENTITIES, maps=maps)
    close(found.last_hidden_state, wanted.last_hidden_state)
    close(found.entity_last_hidden_state, wanted.entity_last_hidden_state)
    shake(together.infusions[1])
    mapped, unmapped = (together(**given, entities=ENTITIES, maps=some).last_hidden_state for some in (maps, maps * 0))
    assert not torch.allclose(mapped, unmapped)


@pytest.mark.parametrize("aware", [True, False], ids=["aware", "not aware"])
def test_with_kam_texts_of_a_batch_are_independent(aware: bool) -> None:
    given, maps = infused.batch(), draw_maps()
    model = build("Bert", KamConfig(maps=("a", "b"), skip="mix"), config=LukeConfig(entities=20, dim=6, aware=aware))
    together = model(**given, entities=ENTITIES, maps=maps)
    entities = {name: part[3:] for name, part in ENTITIES.items()} | {"text_of": torch.tensor([0, 0])}
    one = {name: part[3:4] for name, part in given.items()}
    alone = model(**one, entities=entities, maps=maps[3:4])
    close(together.last_hidden_state[3], alone.last_hidden_state[0])
    close(together.entity_last_hidden_state[3], alone.entity_last_hidden_state[0])


def test_entities_and_auxiliary_terms_cannot_both_be_added() -> None:
    model = build("Bert", KamConfig())
    with pytest.raises(UsageError, match="two infusions add extra tokens to the texts; switch one of them off"):
        model(**infused.batch(), entities=ENTITIES, **draw_terms((1, 2, 0, 1, 1)))


def test_with_knowbert_its_changes_of_words_reach_entities() -> None:
    layer = KnowBertConfig(layer=1, dim=8, raw=4, heads=2, inner=8, prior_width=5, dropout=0.0)
    model, given = build("Bert", layer), infused.batch()
    found = model(**given, entities=ENTITIES)
    with model.without("knowbert"):
        wanted = model(**given, entities=ENTITIES)
    assert not torch.allclose(found.last_hidden_state, wanted.last_hidden_state)
    assert not torch.allclose(found.entity_last_hidden_state, wanted.entity_last_hidden_state)


def spans(number: int, span: list[int]) -> dict[str, Tensor]:
    changed = ENTITIES["spans"].clone()
    changed[number] = torch.tensor(span)
    return {"spans": changed}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_of": torch.tensor([0, 2, 0, 3, 3])}, "sort them by text_of"),
        ({"text_of": torch.tensor([0, 0, 2, 3, 5])}, "an entity is in text 5, but the batch has 5 texts"),
        ({"text_of": torch.tensor([-1, 0, 2, 3, 3])}, "an entity is in text -1, but the batch has 5 texts"),
        ({"ids": torch.tensor([0, 0, 2, 3, 20])}, "entity 20 is not one of the 20 rows"),
        ({"ids": torch.tensor([0, 0, -1, 3, 19])}, "entity -1 is not one of the 20 rows"),
        ({"ids": torch.tensor([0, 0, 2])}, "give each an id"),
        ({"spans": torch.tensor([[0, 1]])}, r"mentions of 5 entities have the shape \(1, 2\)"),
        ({"spans": torch.zeros(5, 3).long()}, r"mentions of 5 entities have the shape \(5, 3\)"),
        (spans(3, [40, 40]), r"entity 3 of the batch is at \[40, 40\] in a text of 7 tokens"),
        (spans(1, [4, 5]), r"entity 1 of the batch is at \[4, 5\] in a text of 5 tokens"),  # others have a token 5
        (spans(2, [5, 3]), r"entity 2 of the batch is at \[5, 3\] in a text of 7 tokens"),
        (spans(2, [2, -1]), r"entity 2 of the batch is at \[2, -1\]"),
        (spans(2, [-1, 2]), r"entity 2 of the batch is at \[-1, 2\]"),
        (
            {"places": torch.tensor([[1, -1], [5, -1], [1, -1], [1, 2], [6, -1]])},
            r"entity 1 of the batch is at \[5, ",
        ),
        ({"types": torch.tensor([0, 1, 9, 0, 0])}, "has type 9, but the encoder has 2 types"),
        ({"types": torch.tensor([0, -1, 1, 0, 0])}, "has type -1, but the encoder has 2 types"),
        ({"types": torch.tensor([0])}, "1 types were given for 5 entities"),
    ],
)
def test_invalid_entity_inputs_raise_errors(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build()(**infused.batch(), entities=ENTITIES | change)


def test_invalid_configurations_raise_errors() -> None:
    with pytest.raises(UsageError, match="entities is 0; expected at least 1"):
        LukeConfig(entities=0)
    with pytest.raises(UsageError, match=r"masks are the rows \(-1, 3\); expected those of \[MASK\] and \[MASK2\]"):
        LukeConfig(entities=4, masks=(-1, 3))
    with pytest.raises(UsageError, match="has no entities"):
        luke_of(infuse(infused.build(), []))
    assert issubclass(Luke.config_class, LukeConfig)
