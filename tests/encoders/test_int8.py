from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedModel

from tests.encoders.test_packing import LENGTHS, SIZES, build, draw_ids
from wellread.encoders import int8
from wellread.encoders.int8 import int8_available, quantise, quantise_where_able
from wellread.encoders.packing import Packing, encode, pack
from wellread.errors import UsageError

FAMILIES = ("bert", "roberta", "xlm-r", "electra", "distilbert")
NEARLY = 0.995

pytestmark = pytest.mark.skipif(not int8_available(), reason="no 8-bit products here")


def likeness(states: Tensor, wanted: Tensor) -> float:
    """The least cosine of two rows."""
    return float(torch.cosine_similarity(states, wanted).min())


def build_bert(**options: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return pack(BertModel(BertConfig(**{**SIZES, **options})).eval())


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_are_nearly_those_in_floats(family: str, lengths: list[int]) -> None:
    packing = Packing.of(lengths)
    ids = draw_ids(packing)
    encoder = pack(build(family))
    assert likeness(encode(quantise(encoder), ids, packing), encode(encoder, ids, packing)) > NEARLY


@torch.no_grad()
def test_several_layers_may_be_read() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = build_bert()
    reduced = quantise(encoder)
    for reads in (2, 3):
        assert likeness(encode(reduced, ids, packing, reads), encode(encoder, ids, packing, reads)) > NEARLY
    every = encoder(ids[None], packing=packing, position_ids=packing.places[None], output_hidden_states=True)
    wanted = torch.stack(every.hidden_states[-2:]).mean(0)[0]
    torch.testing.assert_close(encode(encoder, ids, packing, 2), wanted)


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "gelu_pytorch_tanh"])
@torch.no_grad()
def test_other_activations_work_too(activation: str) -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = build_bert(hidden_act=activation)
    assert likeness(encode(quantise(encoder), ids, packing), encode(encoder, ids, packing)) > NEARLY


@torch.no_grad()
def test_a_channel_far_beyond_the_others_does_not_make_them_coarse() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = pack(build("bert"))
    encoder.encoder.layer[0].intermediate.dense.bias[7] = 500.0
    encoder.encoder.layer[1].intermediate.dense.bias[3] = 500.0
    assert likeness(encode(quantise(encoder), ids, packing), encode(encoder, ids, packing)) > NEARLY


@torch.no_grad()
def test_a_sample_of_the_texts_to_come_can_be_given() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = pack(build("bert"))
    assert likeness(encode(quantise(encoder, (ids, packing)), ids, packing), encode(encoder, ids, packing)) > NEARLY


def test_products_are_exact_where_16_bits_would_overflow() -> None:
    weights = torch.full((24, 384), 64.0)
    weights[::2] = -64.0
    product = int8._Int8Linear.of(weights, torch.zeros(24), torch.zeros(384))
    given = torch.full((40, 384), 255, dtype=torch.uint8)
    assert torch.equal(product(given), given.float() @ weights.t())


@pytest.mark.parametrize("threads", [1, 2])
def test_neighbours_have_no_say_to_the_last_bit_with_any_number_of_threads(threads: int) -> None:
    lengths = torch.randint(2, 33, (40,), generator=torch.Generator().manual_seed(1)).tolist()  # of one piece: not so
    encoder = quantise(build_bert(hidden_size=96, num_attention_heads=4, intermediate_size=384, num_hidden_layers=4))
    ids = draw_ids(Packing.of(lengths))
    alone = [encode(encoder, text, Packing.of([len(text)])) for text in ids.split(lengths)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for order in (range(40), sorted(range(40), key=lengths.__getitem__), range(39, 20, -1)):
            texts = [ids.split(lengths)[number] for number in order]
            states = encode(encoder, torch.cat(texts), Packing.of([len(text) for text in texts]))
            assert torch.equal(states, torch.cat([alone[number] for number in order]))
    finally:
        torch.set_num_threads(before)


def test_products_meet_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN compiles code for each number of rows: 40 numbers of tokens need 3."""
    encoder, met = quantise(build_bert()), set[int]()
    multiply = int8._Int8Linear.__call__
    monkeypatch.setattr(
        int8._Int8Linear, "__call__", lambda product, given: met.add(len(given)) or multiply(product, given)
    )
    for count in range(1, 41):
        packing = Packing.of([count])
        assert encode(encoder, draw_ids(packing), packing).shape[0] == count
    assert met == {16, 32, 48}


def test_the_original_encoder_is_not_changed() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = pack(build("bert"))
    before = encode(encoder, ids, packing)
    quantise(encoder.train())
    assert encoder.training
    assert not any(module._forward_pre_hooks for module in encoder.modules())
    assert torch.equal(encode(encoder.eval(), ids, packing), before)


def test_quantising_twice_gives_the_same() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    first, second = (encode(quantise(pack(build("bert"))), ids, packing) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad


def test_threads_may_share_it() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = quantise(pack(build("bert")))
    wanted = encode(encoder, ids, packing)
    with ThreadPoolExecutor(4) as pool:
        for states in pool.map(lambda _: encode(encoder, ids, packing), range(20)):
            torch.testing.assert_close(states, wanted)


def test_no_text_has_no_states() -> None:
    encoder = quantise(pack(build("bert")))
    assert encode(encoder, torch.zeros(0, dtype=torch.long), Packing.of([])).shape == (0, 16)


def test_merged_adapters_count_and_open_ones_are_refused() -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = pack(build("bert"))
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["query", "dense"], init_lora_weights=False), encoder)
    with pytest.raises(UsageError, match="merge adapters first"):
        quantise(encoder)
    assert quantise_where_able(encoder) is encoder
    for name, module in list(encoder.named_modules()):
        if hasattr(module, "base_layer"):
            module.merge()
            parent, _, last = name.rpartition(".")
            setattr(encoder.get_submodule(parent), last, module.base_layer)
    with torch.no_grad():
        assert likeness(encode(quantise(encoder), ids, packing), encode(encoder, ids, packing)) > NEARLY


def test_an_encoder_of_another_build_is_refused() -> None:
    for encoder, said in ((build("albert"), "not AlbertModel"), (build_bert(hidden_act="silu"), "not silu")):
        with pytest.raises(UsageError, match=said):
            quantise(encoder)
        assert quantise_where_able(encoder) is encoder


def test_without_8_bit_products_the_encoder_stays_in_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder: nn.Module = pack(build("bert"))
    monkeypatch.setattr(int8, "int8_available", lambda: False)
    with pytest.raises(UsageError, match="use the encoder without quantise"):
        quantise(encoder)
    assert quantise_where_able(encoder) is encoder
