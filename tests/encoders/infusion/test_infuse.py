"""An infused encoder without infusions is the encoder; wrong inputs raise clear errors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2Model,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

from tests.infused_models import FAMILIES, HEADS, LAYERS, LENGTHS, VOCABULARY, batch, build, draw_maps
from wellread import assets
from wellread.encoders.infusion.infuse import base_of, infuse
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing, encode
from wellread.errors import UsageError
from wellread.models.kam.model import KamConfig

EVEN = (6, 6, 6, 6)


def pair(family: str, head: str = "Model", **more: object) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model of transformers, and the same with nothing infused."""
    plain = build(family, head, **more)
    return plain, infuse(copy.deepcopy(plain), [])


def ask(head: str, lengths: tuple[int, ...], family: str) -> dict[str, Tensor]:
    """A batch as a head takes it, with labels."""
    given = batch(lengths, family=family)
    there = given["attention_mask"].bool()
    texts = len(lengths)
    match head:
        case "ForMaskedLM":
            given["labels"] = torch.where(there, torch.randint(0, VOCABULARY, there.shape), -100)
        case "ForTokenClassification":
            given["labels"] = torch.where(there, torch.randint(0, 3, there.shape), -100)
        case "ForSequenceClassification":
            given["labels"] = torch.randint(0, 3, (texts,))
        case "ForMultipleChoice":
            given = {name: part.view(texts // 2, 2, -1) for name, part in given.items()}
            given["labels"] = torch.randint(0, 2, (texts // 2,))
        case "ForQuestionAnswering":
            given["start_positions"] = torch.zeros(texts, dtype=torch.long)
            given["end_positions"] = torch.tensor(lengths) - 1
    return given


def at_pieces(output: Tensor, mask: Tensor) -> Tensor:
    """Return the output without padding."""
    return output[mask.bool()] if output.shape[:2] == mask.shape else output


@pytest.mark.parametrize("head", ["Model", *HEADS])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_nothing_infused_it_is_the_encoder_to_the_last_bit(family: str, head: str) -> None:
    plain, infused = pair(family, head)
    assert list(infused.state_dict()) == list(plain.state_dict())
    given = ask(head, EVEN, family)
    wanted, got = plain(**given), infused(**given)
    assert [name for name in got if got[name] is not None] == list(wanted)
    for name in wanted:
        assert torch.equal(got[name], wanted[name]), name
    goal = "last_hidden_state" if head == "Model" else "loss"
    wanted[goal].square().sum().backward()
    got[goal].square().sum().backward()
    assert_gradients_are_close(infused, plain, 1e-6)


@pytest.mark.parametrize("head", ["Model", *HEADS])
@pytest.mark.parametrize("family", FAMILIES)
def test_padded_batches_agree_at_their_tokens(family: str, head: str) -> None:
    plain, infused = pair(family, head)
    given = ask(head, (5, 2, 7, 1), family)
    mask = given["attention_mask"]
    if head == "ForQuestionAnswering":  # transformers' loss is taken over padding too
        given = {name: part for name, part in given.items() if "positions" not in name}
    wanted, got = plain(**given), infused(**given)
    for name in wanted:
        torch.testing.assert_close(at_pieces(got[name], mask), at_pieces(wanted[name], mask), atol=1e-6, rtol=1e-5)
    if "loss" in wanted:
        wanted.loss.backward()
        got.loss.backward()
        assert_gradients_are_close(infused, plain, 1e-6)
    if head == "Model":
        assert not got.last_hidden_state[~mask.bool()].any()


def assert_gradients_are_close(one: PreTrainedModel, other: PreTrainedModel, tolerance: float) -> None:
    wanted = dict(other.named_parameters())
    for name, weight in one.named_parameters():
        if wanted[name].grad is None:
            assert weight.grad is None, name
        else:
            torch.testing.assert_close(
                weight.grad, wanted[name].grad, atol=tolerance, rtol=100 * tolerance, msg=lambda said, n=name: n + said
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_attentions_are_those_of_transformers(family: str) -> None:
    plain, infused = pair(family)
    plain.set_attn_implementation("eager")
    given = batch(family=family)
    mask = given["attention_mask"].bool()
    wanted = plain(**given, output_hidden_states=True, output_attentions=True)
    got = infused(**given, output_hidden_states=True, output_attentions=True)
    assert len(got.hidden_states) == len(wanted.hidden_states) == LAYERS + 1
    for mine, theirs in zip(got.hidden_states, wanted.hidden_states, strict=True):
        torch.testing.assert_close(mine[mask], theirs[mask], atol=1e-6, rtol=1e-5)
    assert len(got.attentions) == len(wanted.attentions) == LAYERS
    for mine, theirs in zip(got.attentions, wanted.attentions, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.transpose(1, 2)[mask], theirs.transpose(1, 2)[mask], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_heads_hand_on_hidden_states_and_attentions(head: str) -> None:
    plain, infused = pair("Roberta", head, output_hidden_states=True, output_attentions=True)
    plain.set_attn_implementation("eager")
    given = batch(EVEN, family="Roberta")
    wanted, got = plain(**given), infused(**given)
    for mine, theirs in zip(
        (*got.hidden_states, *got.attentions), (*wanted.hidden_states, *wanted.attentions), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_tuples_are_returned_on_request(head: str) -> None:
    plain, infused = pair("Bert", head)
    given = batch(EVEN)
    for options in ({"return_dict": False}, {"return_dict": False, "output_hidden_states": True}):
        wanted, got = plain(**given, **options), infused(**given, **options)
        assert isinstance(got, tuple)
        assert len(got) == len(wanted)
        assert torch.equal(got[0], wanted[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_may_be_given_instead_of_token_ids(family: str) -> None:
    plain, infused = pair(family)
    given = batch(family=family)
    mask = given["attention_mask"].bool()
    embeds = plain.get_input_embeddings()(given.pop("input_ids"))
    positions = torch.arange(max(LENGTHS))[None] + (2 if "Roberta" in family else 0)
    wanted = plain(inputs_embeds=embeds, **given).last_hidden_state
    for more in ({}, {"position_ids": positions}):
        got = infused(inputs_embeds=embeds, **given, **more).last_hidden_state
        torch.testing.assert_close(got[mask], wanted[mask], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_longer_than_the_encoder_reads_is_refused(family: str) -> None:
    _, infused = pair(family)
    room = infused.config.max_position_embeddings - (2 if "Roberta" in family else 0)
    ids = torch.full((2, room + 1), 5)
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    assert infused(ids, attention_mask=mask).last_hidden_state.shape[1] == room + 1
    with pytest.raises(
        UsageError, match=f"{room + 1} tokens, and the encoder has {room} positions; split it into windo"
    ):
        infused(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_may_be_given(family: str) -> None:
    plain, infused = pair(family)
    given = batch(EVEN, family=family)
    positions = torch.arange(20, 20 - 6, -1)[None]
    wanted = plain(**given, position_ids=positions).last_hidden_state
    assert torch.equal(infused(**given, position_ids=positions).last_hidden_state, wanted)
    assert not torch.allclose(wanted, plain(**given).last_hidden_state)


@pytest.mark.parametrize("head", ["Model", *HEADS])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_side_of_padding_has_no_say(family: str, head: str) -> None:
    infused = infuse(build(family, head).double(), [])
    lengths = (5, 2, 7, 1)
    got = {}
    for side in ("left", "right"):
        given = batch(lengths, side=side, family=family)
        mask = given["attention_mask"]
        if head == "ForMultipleChoice":
            given = {name: part.view(2, 2, -1) for name, part in given.items()}
        got[side] = [at_pieces(output, mask) for output in infused(**given).values()]
    assert got["left"]
    for left, right in zip(got["left"], got["right"], strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_texts_come_back_packed(family: str) -> None:
    infused = infuse(build(family), [])
    given = batch(family=family)
    mask = given["attention_mask"].bool()
    wanted = infused(**given).last_hidden_state[mask]
    packing = Packing.of(LENGTHS)
    ids = given["input_ids"][mask]
    types = given["token_type_ids"][mask] if "token_type_ids" in given else None
    options = {} if types is None else {"token_type_ids": types[None]}
    packed = infused(ids[None], packing=packing, **options)
    assert torch.equal(packed.last_hidden_state[0], wanted)
    assert torch.equal(infused.states(ids, packing, types), wanted)
    if packed.pooler_output is not None:
        torch.testing.assert_close(packed.pooler_output, infused(**given).pooler_output)
    if types is None:
        assert torch.equal(encode(infused, ids, packing), wanted)


def test_the_configuration_keeps_what_it_had() -> None:
    plain, infused = pair("Bert", "ForSequenceClassification", problem_type="multi_label_classification")
    before, after = plain.config.to_dict(), infused.config.to_dict()
    assert after.pop("infusions") == []
    assert after.pop("pooler") is True
    assert after.pop("model_type") == "infused-bert"
    before.pop("model_type")
    assert after == before
    assert infused.config.problem_type == "multi_label_classification"


def test_infusing_again_replaces_what_was_there() -> None:
    plain = build()
    names = list(plain.state_dict())
    infused = infuse(infuse(plain, [KamConfig(maps=("entity",))]), [KamConfig(maps=("phrase", "graph"))])
    assert infused.config.infusions[0]["maps"] == ("phrase", "graph")
    assert infused.infusions[0].kernels["0"].shape[1] == 2 + 2
    infuse(infused, [])
    assert list(infused.state_dict()) == names
    assert torch.equal(infused(**batch()).last_hidden_state, infuse(build(), [])(**batch()).last_hidden_state)


def test_an_infusion_can_be_switched_off() -> None:
    infused = infuse(build().double(), [KamConfig(maps=("a", "b"), map_init=3.0)])
    given, maps = batch(), draw_maps()
    with_maps = infused(**given, maps=maps).last_hidden_state
    plain = infuse(build().double(), [])(**given).last_hidden_state
    assert not torch.allclose(with_maps, plain)
    for kinds in ((), ("kam",)):
        with infused.without(*kinds):
            assert torch.equal(infused(**given, maps=maps).last_hidden_state, plain)
        assert torch.equal(infused(**given, maps=maps).last_hidden_state, with_maps)
    infused.infusions[0].on = False
    with infused.without():
        pass
    assert torch.equal(infused(**given, maps=maps).last_hidden_state, plain)


def test_it_is_on_again_after_an_error() -> None:
    infused = infuse(build(), [KamConfig()])
    with pytest.raises(KeyError), infused.without():
        raise KeyError
    assert infused.infusions[0].on


def test_a_missing_infusion_cannot_be_switched_off() -> None:
    kam, nothing = infuse(build(), [KamConfig()]), infuse(build(), [])
    with pytest.raises(UsageError, match="the encoder has no infusion 'luke'; it has: kam"), kam.without("luke"):
        pass
    with pytest.raises(UsageError, match="it has: none"), nothing.without("kam"):
        pass


def test_an_unknown_keyword_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="no infusion takes map; expected: maps, term_ids, term_mask"):
        infuse(build(), [KamConfig()])(**batch(), map=draw_maps())
    with pytest.raises(UsageError, match="no infusion takes maps; expected: no knowledge"):
        infuse(build(head="ForSequenceClassification"), [])(**batch(), maps=draw_maps())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: GPT2Model(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1)), "GPT2Model"),
        (lambda: T5EncoderModel(T5Config(vocab_size=9, d_model=4, d_kv=4, d_ff=4, num_layers=1)), "T5EncoderModel"),
        (lambda: BertForPreTraining(BertConfig(**build().config.to_diff_dict())), "BertForPreTraining"),
        (lambda: torch.nn.Linear(1, 1), "Linear"),
    ],
    ids=["gpt2", "t5", "another head", "no model"],
)
def test_other_models_are_refused_with_a_list_of_families(model: object, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be infused; give an encoder of one of the families bert, "):
        infuse(model(), [])


@pytest.mark.parametrize("settings", [{"is_decoder": True}, {"is_decoder": True, "add_cross_attention": True}])
def test_a_decoder_is_not_made_to_look_both_ways(settings: dict[str, bool]) -> None:
    model = build("Bert", **settings)
    kind = type(model)
    with pytest.raises(
        UsageError, match="is_decoder = True, and only encoders can be infused; load it with is_decoder=F"
    ):
        infuse(model, [])
    assert type(model) is kind
    config = infuse(build("Bert"), []).config
    config.is_decoder = True
    with pytest.raises(UsageError, match="is_decoder = True, and only encoders can be infused"):
        AutoModel.from_config(config)


def test_other_objects_than_infusions_are_refused() -> None:
    with pytest.raises(UsageError, match="dict is not a configuration of an infusion; expected one of: kam"):
        infuse(build(), [{"kind": "kam"}])


def test_a_refused_infusion_leaves_the_model_as_it_was() -> None:
    model = build()
    with pytest.raises(UsageError, match="layer 7"):
        infuse(model, [KamConfig(layers=(7,))])
    assert type(model).__name__ == "BertModel"
    assert torch.equal(model(**batch()).last_hidden_state, build()(**batch()).last_hidden_state)


def test_token_ids_or_embeddings_but_not_both() -> None:
    infused = infuse(build(), [])
    for given in ({}, {"input_ids": torch.ones(1, 2).long(), "inputs_embeds": torch.ones(1, 2, 8)}):
        with pytest.raises(UsageError, match="either input_ids or inputs_embeds"):
            infused(**given)


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="a text of the batch has no tokens; leave it out"):
        infuse(build(), [])(torch.ones(2, 3).long(), attention_mask=torch.tensor([[1, 1, 0], [0, 0, 0]]))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
def test_a_batch_without_tokens_is_refused(shape: tuple[int, int]) -> None:
    model = infuse(build(), [])
    with pytest.raises(UsageError, match="the batch has no tokens; leave it out"):
        model(input_ids=torch.zeros(shape, dtype=torch.long))
    with pytest.raises(UsageError, match="the batch has no tokens; leave it out"):
        model.states(torch.zeros(0, dtype=torch.long), Packing.of([0] * shape[0]))


def test_a_mask_with_gaps_is_refused() -> None:
    infused = infuse(build(), [])
    with pytest.raises(UsageError, match="hides tokens within a text"):
        infused(torch.ones(2, 4).long(), attention_mask=torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0]]))
    infused(torch.ones(3, 4).long(), attention_mask=torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]))


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
@pytest.mark.parametrize("infusions", [[], [KamConfig()]], ids=["nothing", "kam"])
def test_its_attention_cannot_be_taken_away(head: str, infusions: list[KamConfig]) -> None:
    infused = infuse(build(head=head), infusions)
    for attention in ("sdpa", "eager", {"": "eager"}):
        with pytest.raises(UsageError, match="an infused model has its own attention"):
            infused.set_attn_implementation(attention)
    infused.set_attn_implementation("wellread_packed")
    assert infused(**batch(), output_attentions=True).attentions


def test_a_head_switches_the_infusions_of_its_encoder_off() -> None:
    model = infuse(build(head="ForSequenceClassification"), [KamConfig(maps=("a", "b"), map_init=3.0)])
    with_maps, plain = model(**batch(), maps=draw_maps()).logits, infuse(build(head="ForSequenceClassification"), [])
    with model.without("kam"):
        got = model(**batch(), maps=draw_maps()).logits
    torch.testing.assert_close(got, plain(**batch()).logits)
    assert not torch.allclose(with_maps, got)


def test_a_mask_of_pairs_is_refused() -> None:
    with pytest.raises(UsageError, match="attention_mask has 3 dimensions"):
        infuse(build(), [])(torch.ones(1, 3).long(), attention_mask=torch.tril(torch.ones(1, 3, 3)))


@pytest.mark.skipif(not assets.is_cached("minilm"), reason="the encoder is not there; run: wellread fetch minilm")
@torch.no_grad()
def test_minilm_infused_is_minilm() -> None:
    encoder = load_encoder("minilm")
    packing = Packing.of((9, 14, 3))
    ids = torch.randint(1000, 20000, (26,))
    wanted = encode(encoder, ids, packing)
    fresh = infuse(encoder, [])
    assert torch.equal(encode(fresh, ids, packing), wanted)
    kam = infuse(fresh, [KamConfig(maps=("a", "b"))])
    states = kam.states(ids, packing, maps=draw_maps((9, 14, 3)))
    torch.testing.assert_close(states, wanted, atol=1e-5, rtol=1e-5)
    assert base_of(kam) is kam
