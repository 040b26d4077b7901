"""KnowBERT's layer in an encoder: independence of texts, initial weights, saving and training."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, BertConfig

from tests.infused_models import batch, build, draw_maps, shake
from tests.knowbert_data import DIM, LENGTHS, RAW, candidate_inputs, config, make, table
from tests.pretraining_data import write_names
from tests.task_models import SEGMENTER, TOKENIZER, tiny_encoder
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import silence
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.kb.store import KnowledgeBase
from wellread.models.kam.model import KamConfig
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.model import KnowBert
from wellread.tasks.masked_lm import hide

EXACT = {"atol": 1e-10, "rtol": 1e-10}
BOTH = (config(kb="names", mode="margin", layer=0), config(kb="wordnet", layer=2, kinds=3))
LABELS = torch.tensor([0, 2, 1, 0, 1])


def arrays(**more: Any) -> dict[str, Any]:
    return {"offers": {"names": candidate_inputs(), "wordnet": {**candidate_inputs(), **more}}}


def read(model: Any, only: tuple[int, ...] = tuple(range(len(LENGTHS))), **offered: Any) -> Any:
    """Return the packed states, outputs and losses of some of the texts."""
    given = batch(LENGTHS)
    ids, types = (
        torch.cat([given[name][text, : LENGTHS[text]] for text in only]) for name in ("input_ids", "token_type_ids")
    )
    some = {kb: candidate_inputs(only) for kb in ("names", "wordnet")} if not offered else offered["offers"]
    return model.read(ids, Packing.of([LENGTHS[text] for text in only]), types, offers=some)


def test_a_text_does_not_depend_on_its_neighbours() -> None:
    model = make(*BOTH).double()
    with torch.no_grad():
        whole = read(model)
        states, row = whole.states.split(list(LENGTHS)), 0
        for text in range(len(LENGTHS)):
            alone = read(model, (text,))
            torch.testing.assert_close(alone.states, states[text], **EXACT)
            for kb, scores in alone.outputs["links"].items():
                torch.testing.assert_close(scores, whole.outputs["links"][kb][row : row + len(scores)], **EXACT)
            row += len(scores)
        some = read(model, (4, 1, 2))
        torch.testing.assert_close(some.states, torch.cat([states[text] for text in (4, 1, 2)]), **EXACT)
        padded = model(**batch(LENGTHS), **arrays()).last_hidden_state
        torch.testing.assert_close(padded[batch(LENGTHS)["attention_mask"].bool()], whole.states, **EXACT)


def test_padding_candidates_and_their_priors_have_no_say() -> None:
    model = make(*BOTH).double()
    wanted = read(model)
    wide = candidate_inputs(wide=9)
    wide["priors"][wide["entities"] == -1] = 0.7
    wide["gold"][wide["entities"] == -1] = 1
    got = read(model, offers={"names": wide, "wordnet": wide})
    torch.testing.assert_close(got.states, wanted.states, **EXACT)
    torch.testing.assert_close(got.losses, wanted.losses, **EXACT)
    for kb, scores in got.outputs["links"].items():
        torch.testing.assert_close(scores[:, :6], wanted.outputs["links"][kb], **EXACT)
        assert bool((scores[:, 6:] == float("-inf")).all())


def test_candidates_of_a_masked_word_do_not_reveal_it(tmp_path: Path) -> None:
    """Texts that differ only in a masked word are the same to the model; texts that differ in other words are not."""
    vectors = write_names(tmp_path)
    model = infuse(tiny_encoder(), [config(kb="names", raw=vectors.rows.shape[1], dropout=0.0)]).eval()
    shake(model.infusions[0], 0.4)
    with KnowledgeBase.open(tmp_path / "names.kb") as kb:
        model.infusions[0].take_of(kb, vectors)
        provider = KnowBertProvider([("names", kb, vectors)])
        states: dict[str, list[Tensor]] = {"hidden": [], "plain": []}
        for word in ("brno", "paris"):  # which has two meanings, the other has one
            tokenized = SEGMENTER.tokenize(f"the mayor of {word} was born in avon")
            place = np.flatnonzero(tokenized.word_of == tokenized.words.index(word))
            ids = tokenized.ids.copy()
            ids[place] = TOKENIZER.token_to_id("[MASK]")
            for name, one in (
                ("hidden", hide(tokenized, ids, place)),
                ("plain", dataclasses.replace(tokenized, ids=ids)),
            ):
                arrays = {
                    name: torch.from_numpy(part) for name, part in provider.collate([one])["offers"]["names"].items()
                }
                assert len(arrays["spans"]) == 2
                read = model.read(torch.from_numpy(one.ids), Packing.of([len(one)]), offers={"names": arrays})
                states[name].append(read.states)
    torch.testing.assert_close(*states["hidden"], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(*states["plain"], atol=1e-3)
    assert not torch.allclose(states["hidden"][0], states["plain"][0], atol=1e-3)


@pytest.mark.parametrize("mode", ["softmax", "margin"])
def test_training_without_dropout_is_evaluation(mode: Any) -> None:
    model = make(config(dropout=0.0, mode=mode, kinds=3)).double()
    with torch.no_grad():
        wanted, got = read(model.eval()), read(model.train())
    torch.testing.assert_close(got.states, wanted.states, **EXACT)
    torch.testing.assert_close(got.outputs, wanted.outputs, **EXACT)


def test_dropout_drops_only_in_training() -> None:
    model, without = make(config(dropout=0.5)), make(config(dropout=0.0))
    with torch.no_grad():
        wanted = read(without).states
        assert torch.equal(read(model).states, wanted)
        assert not torch.allclose(read(model.train()).states, wanted)


def test_a_text_without_mentions_looks_at_one_that_is_empty() -> None:
    model = make(config(dropout=0.0)).double()
    kar = model.infusions[0]
    with torch.no_grad():
        after = read(model, (1,)).states
        with model.without():
            assert not torch.allclose(read(model, (1,)).states, after)
        kar.null[0] += 3
        assert not torch.allclose(read(model, (1,)).states, after)
        bare = model(input_ids=batch(LENGTHS)["input_ids"][1:2, :3], token_type_ids=torch.tensor([[0, 0, 1]]))
        torch.testing.assert_close(bare.last_hidden_state[0], read(model, (1,)).states, **EXACT)


def test_without_gold_there_is_no_loss() -> None:
    model = make(*BOTH)
    nothing = torch.zeros_like(candidate_inputs()["gold"])
    without = {name: value for name, value in candidate_inputs().items() if name != "gold"}
    assert read(model, offers={"names": {**candidate_inputs(), "gold": nothing}, "wordnet": without}).losses == {}
    assert list(read(model, offers={"wordnet": candidate_inputs()}).losses) == ["links wordnet"]
    assert list(read(model).losses) == ["links names", "links wordnet"]


def test_a_mention_without_gold_has_no_share_in_the_loss() -> None:
    model = make(config(dropout=0.0))
    scores = read(model).outputs["links"]["wordnet"]
    model.zero_grad()
    read(model)
    kept = read(model)
    kept.outputs["links"]["wordnet"].retain_grad()
    kept.losses["links wordnet"].backward()
    learned = kept.outputs["links"]["wordnet"].grad.abs().sum(1) > 0
    assert torch.equal(
        learned, candidate_inputs()["gold"].bool().any(1) & ((candidate_inputs()["entities"] != -1).sum(1) > 1)
    )
    assert scores.shape == candidate_inputs()["entities"].shape


def test_judged_mentions_have_a_loss_without_gold() -> None:
    model = make(config(dropout=0.0, mode="margin"))
    nothing = torch.zeros_like(candidate_inputs()["gold"])
    judged = torch.ones(len(nothing), dtype=torch.long)
    got = read(model, offers={"wordnet": {**candidate_inputs(), "gold": nothing, "judged": judged}})
    there = candidate_inputs()["entities"] != -1
    wanted = (0.2 + got.outputs["links"]["wordnet"][there]).clamp(min=0).mean()
    torch.testing.assert_close(got.losses["links wordnet"], wanted)
    model = make(config(dropout=0.0))
    assert read(model, offers={"wordnet": {**candidate_inputs(), "gold": nothing, "judged": judged}}).losses == {}


def test_the_first_w2_is_the_pseudo_inverse_of_w1() -> None:
    kar = make(learned=0.0).infusions[0].double()
    first, back = kar.linker.narrow, kar.back
    torch.testing.assert_close(first.weight @ back.weight @ first.weight, first.weight, atol=1e-6, rtol=1e-6)
    with torch.no_grad():
        first.weight.normal_()
        first.bias.normal_()
    kar.invert()
    states = torch.randn(5, DIM, dtype=torch.float64)
    again = first(back(states))  # as wide as the encoder here, so nothing is lost
    torch.testing.assert_close(again, states)


@pytest.mark.parametrize("learned", [False, True], ids=["at the start", "after the first stage"])
def test_from_the_papers_fewer_numbers_w1_brings_back_what_w2_made_of_them(learned: bool) -> None:
    """200 of 768: W1 W2 = 1, and of all such W2 it is the one of least weights, a few times those of W1."""
    torch.manual_seed(0)
    kar = KnowBert(config(dim=200), BertConfig(hidden_size=768, num_hidden_layers=12))
    if learned:
        shake(kar.linker.narrow, 0.02)
        kar.invert()
    kar.double()
    first, back = kar.linker.narrow, kar.back
    narrow, wide = first.weight.detach(), back.weight.detach()
    assert (narrow.shape, wide.shape) == ((200, 768), (768, 200))
    torch.testing.assert_close(narrow @ wide, torch.eye(200, dtype=torch.float64), atol=1e-5, rtol=0)
    both = wide @ narrow
    torch.testing.assert_close(both, both.T, atol=1e-5, rtol=0)  # nothing of W2 is outside of what W1 reads
    assert 1 < float(wide.std() / narrow.std()) < 5
    states = torch.randn(5, 200, dtype=torch.float64)
    torch.testing.assert_close(first(back(states)), states, atol=1e-4, rtol=1e-4)


def test_a_start_at_zero_leaves_the_encoder_as_it_is() -> None:
    plain = infuse(build(), [])
    model = make(config(start="zero", norm=False), learned=0.0)
    given = batch(LENGTHS)
    wanted = plain(**given).last_hidden_state
    got = model(**given, offers={"wordnet": candidate_inputs()}).last_hidden_state
    assert torch.equal(got, wanted)
    assert torch.equal(model.train()(**given, offers={"wordnet": candidate_inputs()}).last_hidden_state, wanted)
    got.square().sum().backward()
    assert bool((model.infusions[0].back.weight.grad != 0).any())


def test_each_of_two_can_be_switched_off() -> None:
    model = make(*BOTH)
    with torch.no_grad():
        whole = read(model)
        with model.without("knowbert.names"):
            one = read(model)
            assert list(one.outputs["links"]) == ["wordnet"]
        with model.without("knowbert"):
            none = read(model)
            assert none.outputs == {}
        assert not torch.allclose(whole.states, one.states)
    said = r"the encoder has no infusion 'kam'; it has: knowbert\.names, knowbert\.wordnet"
    with pytest.raises(UsageError, match=said), model.without("kam"):
        pass


def test_it_works_beside_maps_in_attention() -> None:
    model = make(KamConfig(maps=("a", "b")), config(dropout=0.0)).double()
    given, maps = batch(LENGTHS), draw_maps(LENGTHS)
    both = model(**given, maps=maps, offers={"wordnet": candidate_inputs()}).last_hidden_state
    both.square().sum().backward()
    assert all(bool((weight.grad != 0).any()) for weight in model.infusions[0].parameters())
    for kind in ("kam", "knowbert"):
        with model.without(kind):
            assert not torch.allclose(
                model(**given, maps=maps, offers={"wordnet": candidate_inputs()}).last_hidden_state, both
            )


def test_it_is_saved_and_loaded_without_its_vectors(tmp_path: Path) -> None:
    model = make(*BOTH)
    with silence():
        model.save_pretrained(tmp_path)
        again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    names = load_file(tmp_path / "model.safetensors")
    assert set(names) - set(build().state_dict()) == {
        f"infusions.{place}.{name}" for place in range(2) for name, _ in model.infusions[place].named_parameters()
    }
    assert not any(weight.shape[:1] == (20,) for name, weight in names.items() if name.startswith("infusions"))
    entries = json.loads((tmp_path / "config.json").read_text())["infusions"]
    assert [(entry["kind"], entry["kb"], entry["layer"]) for entry in entries] == [
        ("knowbert", "names", 0),
        ("knowbert", "wordnet", 2),
    ]
    assert [part.config for part in again.infusions] == list(BOTH)
    with pytest.raises(UsageError, match=r"the layer of names has no entity vectors yet.*take\(EntityTable"):
        read(again)
    for seed, part in enumerate(again.infusions):
        part.take(table(RAW, seed))
    with torch.no_grad():
        got, wanted = read(again), read(model)
    torch.testing.assert_close(got.states, wanted.states)
    torch.testing.assert_close(got.outputs, wanted.outputs)


def test_a_plain_checkpoint_loads_with_the_layer_at_its_start(tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    fresh = make(config(), config(kb="zero", start="zero"), learned=0.0)
    with silence():
        model, report = AutoModel.from_pretrained(tmp_path, config=fresh.config, output_loading_info=True)
    assert all(name.startswith("infusions.") for name in report["missing_keys"])
    kar, zero = model.infusions
    narrow = kar.linker.narrow.weight.detach()
    assert 0.01 < float(narrow.std()) < 0.04
    torch.testing.assert_close(kar.back.weight, torch.linalg.pinv(narrow.double()).float())
    assert not bool(kar.back.bias.any())
    assert not bool(zero.back.weight.any())
    assert 0 < float(kar.null.detach().abs().max()) < 0.2
    assert float(kar.linker.block.norm.weight.detach().min()) == 1
    kar.take(table())
    zero.take(table())
    assert bool(read(model, offers={"wordnet": candidate_inputs(), "zero": candidate_inputs()}).states.isfinite().all())


def gradients(model: Any, given: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(9)
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return loss.detach(), found


def ask() -> dict[str, Any]:
    return {**batch(LENGTHS), "labels": LABELS, **arrays()}


@pytest.mark.parametrize("layers", [BOTH, (config(kb="names", layer=0), config(layer=2, reads=3))])
def test_gradient_checkpointing_changes_nothing(layers: Any) -> None:
    model = make(*layers, head="ForSequenceClassification", dropout=0.3).train()
    wanted = gradients(model, ask())
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradients(model, ask()), wanted, atol=1e-6, rtol=1e-5)
    assert sum("infusions.1" in name for name in wanted[1]) == len(list(model.bert.infusions[1].parameters()))


def test_bf16_is_nearly_the_same() -> None:
    quiet = {"dropout": 0.0, "start": "zero"}  # a pseudo-inverse of so few numbers may have large ones
    configs = config(kb="names", mode="margin", layer=0, **quiet), config(layer=2, kinds=3, **quiet)
    model = make(*configs, head="ForSequenceClassification", learned=0.2).train()
    model.bert.infusions[0].linker.threshold = -100.0  # a score near it may be on either side
    loss, wanted = gradients(model, ask())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, got = gradients(model, ask())
        losses = read(model.bert).losses
        with torch.no_grad():
            assert bool(read(model.bert.eval()).states.isfinite().all())
    torch.testing.assert_close(half.float(), loss, atol=0.05, rtol=0.05)
    assert list(got) == list(wanted)
    for name, gradient in got.items():
        assert gradient.dtype == torch.float32
        assert float((gradient - wanted[name]).norm()) <= 0.2 * float(wanted[name].norm()) + 2e-3, name
    assert all(bool(one.isfinite()) and one.dtype == torch.float32 for one in losses.values())
    whole = copy.deepcopy(model.bert).bfloat16()
    for seed, part in enumerate(whole.infusions):
        part.take(table(RAW, seed))
    got_whole = read(whole.train())
    assert got_whole.states.dtype == torch.bfloat16
    sum(got_whole.losses.values()).backward()
    with torch.no_grad():
        assert bool(read(whole.eval()).states.isfinite().all())


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_has_the_same_outputs_and_gradients(reads: int) -> None:
    layer = config(layer=reads - 1, reads=reads, dropout=0.0)
    model = make(layer, head="ForSequenceClassification", num_hidden_layers=reads).train()
    given = {**batch(LENGTHS), "labels": LABELS, "offers": {"wordnet": candidate_inputs()}}
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
    loss = compiled(**given).loss
    loss.backward()
    got = {name: weight.grad for name, weight in compiled._orig_mod.named_parameters() if weight.grad is not None}
    torch.testing.assert_close((loss.detach(), got), gradients(model, given), atol=1e-6, rtol=1e-5)


def test_adapters_of_the_encoder_are_trained_beside_it() -> None:
    model = make(config(dropout=0.0), head="ForSequenceClassification")
    given = {**batch(LENGTHS), "labels": LABELS, "offers": {"wordnet": candidate_inputs()}}
    before = model(**given).logits
    saved = ["infusions.0", "classifier"]
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["attention.self.query"], modules_to_save=saved))
    torch.testing.assert_close(adapted(**given).logits, before)
    learned = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert any("lora_A" in name for name in learned)
    steer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.02)
    losses = []
    for _ in range(8):
        loss = adapted.train()(**given).loss
        steer.zero_grad()
        loss.backward()
        steer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05
    with torch.no_grad():
        after = adapted.eval()(**given).logits
    torch.testing.assert_close(adapted(**given).logits, after, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["softmax", "margin"])
def test_the_linker_can_be_trained_alone(mode: Any) -> None:
    """The first stage trains only the linker, by its own loss."""
    model = make(config(dropout=0.0, mode=mode, dim=12, inner=16), learned=0.1)
    model.requires_grad_(False)
    model.infusions[0].linker.requires_grad_(True)
    steer = torch.optim.Adam(model.infusions[0].linker.parameters(), lr=0.03)
    for _ in range(40):
        steer.zero_grad()
        read(model.train()).losses["links wordnet"].backward()
        steer.step()
    with torch.no_grad():
        best = read(model.eval()).outputs["links"]["wordnet"].argmax(1)
    gold = candidate_inputs()["gold"].bool()
    known = gold.any(1)
    assert bool(gold[known].gather(1, best[known, None]).all())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a span beyond its text": (
        {"spans": candidate_inputs()["spans"] + 4},
        "in a text of 6 tokens; give its first and last",
    ),
    "texts out of order": ({"text_of": candidate_inputs()["text_of"].flip(0)}, "in the order of the batch's 5 texts"),
    "a text that is not there": ({"text_of": candidate_inputs()["text_of"] + 1}, "in the order of the batch's 5 texts"),
    "parts that do not fit": (
        {"priors": candidate_inputs()["priors"][:, 1:]},
        "the candidates of wordnet do not fit together",
    ),
    "gold of another shape": ({"gold": candidate_inputs()["gold"][:, 1:]}, "gold of wordnet is"),
    "an entity that is not there": ({"entities": candidate_inputs()["entities"] + 20}, "of the same revision"),
}


@pytest.mark.parametrize(("wrong", "said"), WRONG.values(), ids=WRONG)
def test_candidates_of_wrong_shapes_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(make(), offers={"wordnet": {**candidate_inputs(), **wrong}})


def test_incomplete_candidates_are_refused() -> None:
    lacking = {name: value for name, value in candidate_inputs().items() if name != "spans"}
    with pytest.raises(
        UsageError, match="the candidates of wordnet lack 'spans'; give text_of, spans, entities and priors"
    ):
        read(make(), offers={"wordnet": lacking})


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="3 heads cannot share dim = 8"):
        config(heads=3)
    for name in ("dim", "heads", "inner", "prior_width"):
        with pytest.raises(UsageError, match=f"{name} is 0; expected 1 or more"):
            config(**{name: 0})
    with pytest.raises(UsageError, match="set dim = 6"):
        config(project=False)
    with pytest.raises(UsageError, match="set project = true or kinds = 0"):
        config(project=False, raw=8, kinds=2)
    with pytest.raises(UsageError, match="layer 3 is not one of the encoder's 3"):
        make(config(layer=3))
    for reads in (0, 3):
        with pytest.raises(UsageError, match=f"reads is {reads}; up to layer 1 there are 2, from 1"):
            make(config(layer=1, reads=reads))
    with pytest.raises(UsageError, match="two layers link to wordnet"):
        read(make(config(), config(layer=2)))
