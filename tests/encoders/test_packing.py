from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    FNetConfig,
    FNetModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from wellread.encoders.packing import Packing, encode, pack
from wellread.errors import UsageError

VOCABULARY = 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
MARKS = {f"{mark}_token_id": 0 for mark in ("pad", "bos", "eos", "cls", "sep")}
FAMILIES = {
    "bert": lambda **drop: BertModel(BertConfig(**SIZES, **_both(drop))),
    "albert": lambda **drop: AlbertModel(AlbertConfig(**SIZES, embedding_size=8, **_both(drop))),
    "roberta": lambda **drop: RobertaModel(RobertaConfig(**SIZES, pad_token_id=1, **_both(drop))),
    "xlm-r": lambda **drop: XLMRobertaModel(XLMRobertaConfig(**SIZES, pad_token_id=1, **_both(drop))),
    "electra": lambda **drop: ElectraModel(ElectraConfig(**SIZES, embedding_size=8, **_both(drop))),
    "distilbert": lambda **drop: DistilBertModel(
        DistilBertConfig(
            vocab_size=VOCABULARY,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=24,
            max_position_embeddings=40,
            dropout=drop.get("dropout", 0.0),
            attention_dropout=drop.get("dropout", 0.0),
        )
    ),
}
UNFIT = {
    "t5": lambda: T5EncoderModel(T5Config(**{**SIZES, "d_model": 16, "d_kv": 8, "num_layers": 2, "num_heads": 2})),
    "mpnet": lambda: MPNetModel(MPNetConfig(**SIZES)),
    "fnet": lambda: FNetModel(FNetConfig(**SIZES)),
    "modernbert": lambda: ModernBertModel(ModernBertConfig(**SIZES, **MARKS, local_attention=8)),
}
LENGTHS = [[3, 9, 1, 5], [4, 4, 4], [7], [1], [1, 1], [2, 31]]


def _both(drop: dict[str, float]) -> dict[str, float]:
    share = drop.get("dropout", 0.0)
    return {"hidden_dropout_prob": share, "attention_probs_dropout_prob": share}


def build(family: str, **drop: float) -> PreTrainedModel:
    """A tiny random encoder; every weight is drawn, so that no bias or norm is left at its neutral start."""
    torch.manual_seed(0)
    encoder = FAMILIES[family](**drop)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return encoder.eval()


def draw_ids(packing: Packing) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(3, VOCABULARY, (len(packing.text_of),))


def encode_padded(encoder: PreTrainedModel, ids: Tensor, packing: Packing) -> Tensor:
    """Run the plain model on a padded batch and its mask."""
    there_mask = packing.there_mask()
    padded = torch.full(there_mask.shape, encoder.config.pad_token_id)
    padded[there_mask] = ids
    return encoder(input_ids=padded, attention_mask=there_mask.long()).last_hidden_state[there_mask]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_packed_texts_are_encoded_as_if_alone(family: str, lengths: list[int]) -> None:
    packing = Packing.of(lengths)
    ids = draw_ids(packing)
    alone = torch.cat([build(family)(input_ids=text[None]).last_hidden_state[0] for text in ids.split(lengths)])
    torch.testing.assert_close(encode(pack(build(family)), ids, packing), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS[:2], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_and_padded_gradients_agree(family: str, lengths: list[int]) -> None:
    packing = Packing.of(lengths)
    ids = draw_ids(packing)
    padded, packed = build(family).train(), pack(build(family)).train()
    wanted = torch.randn(len(ids), 16)
    losses = [(encode_padded(padded, ids, packing) - wanted).pow(2).sum()]
    losses.append((encode(packed, ids, packing) - wanted).pow(2).sum())
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0])
    gradients = {name: weight.grad for name, weight in packed.named_parameters() if weight.grad is not None}
    assert len(gradients) >= 20
    for name, weight in padded.named_parameters():
        if name in gradients:
            torch.testing.assert_close(gradients[name], weight.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_runs_in_train_mode_only(family: str) -> None:
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = pack(build(family, dropout=0.4))
    assert torch.equal(encode(encoder, ids, packing), encode(encoder, ids, packing))
    encoder.train()
    first, second = encode(encoder, ids, packing), encode(encoder, ids, packing)
    assert first.isfinite().all()
    assert not torch.allclose(first, second)
    first.sum().backward()


@pytest.mark.parametrize("lengths", [[3, 9, 1, 5], [4, 4]], ids=str)
@pytest.mark.parametrize("share", [0.0, 1e-9], ids=["plain", "dropping"])
def test_text_by_text_is_all_at_once(share: float, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing.of(lengths)
    ids = draw_ids(packing)
    states, gradients = [], []
    for few in (1 << 30, 0):
        monkeypatch.setattr("wellread.encoders.packing._FEW", few)
        encoder = pack(build("bert")).train()
        for layer in encoder.encoder.layer:
            layer.attention.self.dropout.p = share  # so small that nothing is dropped, but the way is that of dropping
        states.append(encode(encoder, ids, packing))
        states[-1].pow(3).sum().backward()
        gradients.append({name: part.grad for name, part in encoder.named_parameters() if part.grad is not None})
    torch.testing.assert_close(states[1], states[0], atol=1e-5, rtol=1e-5)
    assert len(gradients[0]) >= 20
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)


def test_text_by_text_weights_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellread.encoders.packing._FEW", 0)
    packing = Packing.of([3, 9, 1, 5])
    ids = draw_ids(packing)
    encoder = pack(build("bert")).train()
    before = encode(encoder, ids, packing)
    for layer in encoder.encoder.layer:
        layer.attention.self.dropout.p = 0.4
    assert not torch.allclose(encode(encoder, ids, packing), before)
    assert torch.equal(encode(encoder.eval(), ids, packing), before)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_neighbours_have_no_say(family: str) -> None:
    lengths = [3, 9, 1, 5]
    packing = Packing.of(lengths)
    ids = draw_ids(packing)
    encoder = pack(build(family))
    states = encode(encoder, ids, packing).split(lengths)
    order = [2, 0, 3, 1]
    texts = ids.split(lengths)
    turned = encode(encoder, torch.cat([texts[i] for i in order]), Packing.of([lengths[i] for i in order]))
    torch.testing.assert_close(turned, torch.cat([states[i] for i in order]), atol=1e-5, rtol=1e-5)
    pairs = [encode(encoder, torch.cat(texts[i : i + 2]), Packing.of(lengths[i : i + 2])) for i in (0, 2)]
    torch.testing.assert_close(torch.cat(pairs), torch.cat(states), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [*LENGTHS, []], ids=str)
def test_spread_and_gather_undo_each_other(lengths: list[int]) -> None:
    packing = Packing.of(lengths)
    packed = torch.randn(sum(lengths), 2, 3)
    padded = packing.spread(packed)
    assert padded.shape == (len(lengths), max(lengths, default=0), 2, 3)
    assert torch.equal(packing.gather(padded), packed)
    assert torch.equal(padded[packing.there_mask()], packed)
    assert not padded[~packing.there_mask()].any()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_mean_is_that_of_each_text(lengths: list[int]) -> None:
    packed = torch.randn(sum(lengths), 5)
    wanted = torch.stack([text.mean(0) for text in packed.split(lengths)])
    torch.testing.assert_close(Packing.of(lengths).mean(packed), wanted)


def test_a_packing_has_the_position_of_each_token() -> None:
    packing = Packing.of(torch.tensor([2, 1, 3]))
    assert packing.starts.tolist() == [0, 2, 3]
    assert packing.text_of.tolist() == [0, 0, 1, 2, 2, 2]
    assert packing.places.tolist() == [0, 1, 0, 0, 1, 2]
    assert packing.width == 3
    assert not packing.is_even
    assert Packing.of([4, 4]).is_even


@pytest.mark.parametrize("family", UNFIT)
def test_an_encoder_that_cannot_be_packed_is_refused(family: str) -> None:
    encoder = UNFIT[family]()
    with pytest.raises(UsageError, match=rf"{type(encoder).__name__} .*use an encoder such as BERT"):
        pack(encoder)


def test_packing_twice_is_packing_once() -> None:
    encoder = pack(build("bert"))
    assert pack(encoder) is encoder


def test_packing_leaves_the_mode_as_it_was() -> None:
    assert pack(build("bert").train()).training
    assert not pack(build("bert")).training
