"""ELQ's text side: scores and losses against plain loops in double precision, what learns, what is saved."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from tests.toy_models import make_elq, shake, tokenizer, write_encoder
from wellread.encoders.load import merge_adapters
from wellread.encoders.packing import Packing
from wellread.encoders.spans import span_mask
from wellread.errors import InputError, WellreadError
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.model import Candidates, Elq, entity_loss, mention_loss

TEXTS = ["who is the mayor of cork", "ada", "was zurich born near the old river , or in lagos ?"]


@pytest.fixture(params=[0, 4], ids=["all weights", "adapters"])
def model(request, encoder):
    return shake(make_elq(encoder, rank=request.param))


def packed(texts=TEXTS):
    """(ids, packing) of texts, and where their special pieces are."""
    codes = tokenizer().encode_batch(list(texts))
    ids = torch.tensor([id for code in codes for id in code.ids])
    special_mask = torch.tensor([mask for code in codes for mask in code.special_tokens_mask]).bool()
    return ids, Packing.of([len(code.ids) for code in codes]), special_mask


def some_candidates(mentions=3, count=5, dim=16, seed=0):
    chance = torch.Generator().manual_seed(seed)
    there_mask = torch.rand(mentions, count, generator=chance) < 0.7
    there_mask[:, 0] = True
    features = torch.rand(mentions, count, 2, generator=chance) * torch.tensor([1.0, -4.0])
    return Candidates(torch.randn(mentions, count, dim, generator=chance), features, there_mask)


def losses(model, seed=0):
    """Both losses of a made-up batch, as the task adds them up."""
    ids, packing, special_mask = packed()
    states = model.states(ids, packing)
    scores = model.mention_scores(states)
    asked_mask = span_mask(packing, special_mask, model.config.longest)
    gold_mask = torch.zeros_like(asked_mask)
    firsts, widths = torch.tensor([1, 6, 9]), torch.tensor([1, 0, 0])
    gold_mask[firsts, widths] = True
    vectors = model.mention_vectors(states, firsts, firsts + widths, packing)
    candidates = some_candidates(dim=vectors.shape[1], seed=seed)
    entities = model.nil_scores(model.entity_scores(vectors, candidates))
    gold = torch.tensor([0, 0, 5 if model.config.nil else 0])
    return mention_loss(scores, gold_mask, asked_mask), entity_loss(entities, gold)


# against plain loops


def naive_bce(logit, target):
    p = 1 / (1 + math.exp(-logit))
    return -math.log(p if target else 1 - p)


@pytest.mark.parametrize("golds", [0, 1, 7])
def test_mention_loss_is_what_a_loop_adds_up(golds):
    chance = torch.Generator().manual_seed(golds)
    scores = torch.randn(9, 4, generator=chance, dtype=torch.float64) * 3
    asked_mask = torch.rand(9, 4, generator=chance) < 0.6
    gold_mask = torch.zeros(9, 4, dtype=torch.bool)
    for place in asked_mask.nonzero()[:golds].tolist():
        gold_mask[tuple(place)] = True
    total = sum(
        naive_bce(float(scores[i, w]), bool(gold_mask[i, w])) for i in range(9) for w in range(4) if asked_mask[i, w]
    )
    assert float(mention_loss(scores, gold_mask, asked_mask)) == pytest.approx(total / max(1, golds), rel=1e-12)
    single = mention_loss(scores.float(), gold_mask, asked_mask)
    assert float(single) == pytest.approx(total / max(1, golds), rel=1e-5)


def test_spans_that_are_not_asked_for_have_no_say():
    scores = torch.randn(6, 3, requires_grad=True)
    asked_mask = torch.zeros(6, 3, dtype=torch.bool)
    asked_mask[2, 1] = True
    mention_loss(scores, asked_mask, asked_mask).backward()
    assert scores.grad.nonzero().tolist() == [[2, 1]]


def naive_entity_loss(scores, gold, kind):
    total = 0.0
    for row, right in zip(scores.tolist(), gold.tolist(), strict=True):
        there = [(column, score) for column, score in enumerate(row) if score != -math.inf]
        if kind == "softmax":
            total -= row[right] - math.log(sum(math.exp(score) for _, score in there))
        else:
            total += sum(naive_bce(score, column == right) for column, score in there)
    pairs = sum(score != -math.inf for row in scores.tolist() for score in row)
    return total / (len(scores) if kind == "softmax" else pairs)


@pytest.mark.parametrize("kind", ["softmax", "bce"])
def test_entity_loss_is_what_a_loop_adds_up(kind):
    chance = torch.Generator().manual_seed(3)
    scores = torch.randn(5, 6, generator=chance, dtype=torch.float64) * 4
    scores[torch.rand(5, 6, generator=chance) < 0.4] = -torch.inf
    gold = torch.tensor([0, 3, 5, 2, 2])
    scores[torch.arange(5), gold] = torch.randn(5, generator=chance, dtype=torch.float64)
    want = naive_entity_loss(scores, gold, kind)
    assert float(entity_loss(scores, gold, kind)) == pytest.approx(want, rel=1e-12)
    assert float(entity_loss(scores.float(), gold, kind)) == pytest.approx(want, rel=1e-5)
    if kind == "softmax":
        assert float(entity_loss(scores, gold)) == float(cross_entropy(scores, gold))


@pytest.mark.parametrize("kind", ["softmax", "bce"])
def test_candidates_that_are_not_there_have_no_say_in_the_loss(kind):
    scores = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    hidden = scores.masked_fill(torch.tensor([[False, True, False]]), -torch.inf)
    loss = entity_loss(hidden, torch.tensor([0]), kind)
    loss.backward()
    assert scores.grad[0, 1] == 0
    assert float(loss.detach()) == pytest.approx(naive_entity_loss(torch.tensor([[1.0, 0.5]]), torch.tensor([0]), kind))


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("nil", [True, False])
@pytest.mark.parametrize("normalised", [True, False])
def test_entity_scores_are_dot_products_and_what_names_say(encoder, names, nil, normalised):
    model = shake(make_elq(encoder, names=names, nil=nil, normalised=normalised)).double().requires_grad_(False)
    ids, packing, _ = packed()
    states = model.states(ids, packing).detach()
    firsts, lasts = torch.tensor([1, 6, 9]), torch.tensor([3, 6, 13])
    made = some_candidates()
    candidates = Candidates(made.vectors.double(), made.features.double(), made.there_mask)
    vectors = model.mention_vectors(states, firsts, lasts, packing)
    scores = model.nil_scores(model.entity_scores(vectors, candidates))
    assert scores.shape == (3, 6)
    head, weights = model.entity_head.weight.tolist(), model.names_head.weight[0].tolist()
    for m in range(3):
        tokens = states[firsts[m] : lasts[m] + 1].tolist()
        mean = [sum(token[d] for token in tokens) / len(tokens) for d in range(16)]
        vector = [sum(a * b for a, b in zip(row, mean, strict=True)) for row in head]
        if normalised:
            length = math.sqrt(sum(number**2 for number in vector))
            vector = [number / length * math.exp(float(model.log_scale)) for number in vector]
        assert vectors[m].tolist() == pytest.approx(vector, rel=1e-9)
        for c in range(5):
            want = sum(a * b for a, b in zip(vector, candidates.vectors[m, c].tolist(), strict=True))
            if names:
                want += sum(a * b for a, b in zip(weights, candidates.features[m, c].tolist(), strict=True))
            want = want if candidates.there_mask[m, c] else -math.inf
            assert float(scores[m, c]) == pytest.approx(want, rel=1e-9)
        assert float(scores[m, 5]) == (float(model.nil_head) if nil else -math.inf)


def test_mention_scores_are_start_end_and_all_inside(encoder):
    model = shake(make_elq(encoder, longest=4)).double().requires_grad_(False)
    ids, packing, special_mask = packed()
    states = model.states(ids, packing)
    scores = model.mention_scores(states)
    parts = (states @ model.mention_head.weight.T + model.mention_head.bias).tolist()
    checked = 0
    for first, width in span_mask(packing, special_mask, 4).nonzero().tolist():
        last = first + width
        want = parts[first][0] + parts[last][1] + sum(parts[at][2] for at in range(first, last + 1))
        assert float(scores[first, width]) == pytest.approx(want, rel=1e-9)
        checked += 1
    assert checked > 40


def test_the_batch_a_text_is_in_changes_nothing(model):
    def of(texts):
        ids, packing, special_mask = packed(texts)
        states = model.states(ids, packing)
        mask = span_mask(packing, special_mask, model.config.longest)
        tokenized = packing.lengths.tolist()
        return [
            (state, scores[there])
            for state, scores, there in zip(
                *(torch.split(part, tokenized) for part in (states, model.mention_scores(states), mask)), strict=True
            )
        ]

    together = of(TEXTS)
    for other in (of(TEXTS[::-1])[::-1], [of([text])[0] for text in TEXTS]):
        for (state, scores), (same, too) in zip(together, other, strict=True):
            assert torch.allclose(state, same, atol=1e-5)
            assert torch.allclose(scores, too, atol=1e-5)


# learning


def trainable(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_reach_all_that_learns_and_nothing_that_is_frozen(model, mode):
    model.train(mode == "train")
    torch.stack(losses(model)).sum().backward()
    touched = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    heads = {"mention_head.weight", "mention_head.bias", "entity_head.weight", "log_scale", "names_head.weight"}
    assert heads | {"nil_head"} <= touched
    inside = {name for name in trainable(model) if name.startswith("encoder.")}
    if model.config.rank:
        assert {name for name in inside if ".lora_" not in name} == set()
        # Keys have no bias that a softmax sees, but their adapters have a say.
        assert inside <= touched
        assert len(inside) == 2 * 2 * 6
    else:
        assert inside == {name for name, _ in model.named_parameters() if name.startswith("encoder.")}
        assert {"encoder.embeddings.word_embeddings.weight", "encoder.encoder.layer.1.output.dense.weight"} <= touched
    assert touched <= trainable(model)


def test_each_loss_reaches_its_own_head_alone(encoder):
    model = shake(make_elq(encoder))
    for part, own, other in ((0, "mention_head", "entity_head"), (1, "entity_head", "mention_head")):
        model.zero_grad()
        losses(model)[part].backward()
        assert getattr(model, own).weight.grad.any()
        grad = getattr(model, other).weight.grad
        assert grad is None or not grad.any()


@pytest.mark.parametrize(("option", "weight"), [("names", "names_head.weight"), ("nil", "nil_head")])
def test_what_is_switched_off_does_not_learn(encoder, option, weight):
    model = shake(make_elq(encoder, **{option: False}))
    torch.stack(losses(model)).sum().backward()
    assert dict(model.named_parameters())[weight].grad is None


def test_vectors_of_full_length_have_no_scale_to_learn(encoder):
    model = shake(make_elq(encoder, normalised=False))
    torch.stack(losses(model)).sum().backward()
    assert model.log_scale.grad is None


def test_a_small_step_lowers_the_loss(model):
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=1e-5)
    before = losses(model)
    torch.stack(before).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert sum(losses(model)) < sum(before)


def test_fresh_adapters_change_nothing(encoder):
    ids, packing, _ = packed()
    with_adapters, without = make_elq(encoder, rank=4), make_elq(encoder, rank=0)
    assert torch.equal(with_adapters.states(ids, packing), without.states(ids, packing))


def test_merged_adapters_give_the_same_states_and_leave_plain_layers(encoder):
    model = shake(make_elq(encoder, rank=4))
    ids, packing, _ = packed()
    before = model.states(ids, packing)
    assert not torch.allclose(before, make_elq(encoder, rank=0).states(ids, packing), atol=1e-2)
    merge_adapters(model.encoder)
    assert torch.allclose(model.states(ids, packing), before, atol=1e-5)
    assert not any("lora" in name for name, _ in model.named_modules())


def test_the_text_around_a_mention_is_added_to_its_vector(encoder):
    plain, model = (shake(make_elq(encoder, context=weight)).requires_grad_(False) for weight in (0.0, 3.0))
    model.load_state_dict(plain.state_dict())
    ids, packing, special_mask = packed()
    states = model.states(ids, packing)
    firsts, lasts = torch.tensor([1, 6, 9]), torch.tensor([3, 6, 13])
    added = model.mention_vectors(states, firsts, lasts, packing) - plain.mention_vectors(
        states, firsts, lasts, packing
    )
    for vector, first in zip(added, firsts.tolist(), strict=True):
        own = (packing.text_of == packing.text_of[first]) & ~special_mask
        mean = states[own].mean(0)
        assert torch.allclose(vector, 3.0 * mean / mean.norm(), atol=1e-5)


def test_the_entity_side_may_have_another_width(encoder, tmp_path):
    other = write_encoder(tmp_path / "other", width=24, seed=5)
    model = shake(make_elq(encoder, entity_encoder=other))
    ids, packing, _ = packed()
    firsts = torch.tensor([1, 2])
    assert model.mention_vectors(model.states(ids, packing), firsts, firsts, packing).shape == (2, 24)
    torch.stack(losses(model)).sum().backward()
    assert model.entity_head.weight.grad.shape == (24, 16)


# folders


def all_scores(model):
    ids, packing, _ = packed()
    with torch.no_grad():
        states = model.states(ids, packing)
        vectors = model.mention_vectors(states, torch.tensor([1, 6, 9]), torch.tensor([3, 6, 13]), packing)
        entities = model.nil_scores(model.entity_scores(vectors, some_candidates(dim=vectors.shape[1])))
        return states, model.mention_scores(states), entities


@pytest.mark.parametrize("nil", [True, False])
def test_probabilities_are_by_mention_and_nothing_to_choose_from_is_no_number(encoder, nil):
    model = shake(make_elq(encoder, nil=nil)).eval()
    made = some_candidates(dim=16)
    there = made.there_mask.clone()
    there[1] = False
    made = replace(made, there_mask=there)
    vectors = torch.randn(len(there), 16)
    plain = model.entity_scores(vectors, made).double()
    trusted = plain + 2.5 * made.features[..., 0]
    logits = torch.cat([trusted, torch.full((len(there), 1), model.nil_head.item() if nil else -math.inf)], 1)
    found = model.entity_log_p(vectors, made, trust=2.5).exp()
    for row, expected in zip(found, logits, strict=True):
        weights = [math.exp(logit) for logit in expected.tolist()]
        total = sum(weights)
        assert row.tolist() == pytest.approx([weight / total if total else 0.0 for weight in weights], abs=1e-6)
    assert found[1, -1] == (1.0 if nil else 0.0)


def own_encoder(config, folder):
    """Return the config that a linker with a fully trained encoder has in its folder; entities keep the old encoder."""
    return replace(config, encoder=str(folder / "encoder"), entity_encoder=config.entity_encoder or config.encoder)


def test_a_saved_linker_scores_as_it_did(model, tmp_path):
    model.calibrate(2.0, -0.5, 0.4)
    model.save_pretrained(tmp_path / "saved")
    again = Elq.from_pretrained(tmp_path / "saved").eval()
    assert again.config == (model.config if model.config.rank else own_encoder(model.config, tmp_path / "saved"))
    assert (again.config.calibration, again.config.threshold) == ((2.0, -0.5), 0.4)
    for one, other in zip(all_scores(model), all_scores(again), strict=True):
        assert torch.equal(one, other)
    again.save_pretrained(tmp_path / "twice")
    files = {path.relative_to(tmp_path / "saved") for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert all((tmp_path / "twice" / file).read_bytes() == (tmp_path / "saved" / file).read_bytes() for file in files)
    assert len(files) == (2 if model.config.rank else 6)


def test_only_what_learned_is_saved(encoder, tmp_path):
    shake(make_elq(encoder, rank=4)).save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert all(".lora_" in name for name in names if name.startswith("encoder."))
    assert len(names) == 6 + 2 * 2 * 6


def test_a_linker_of_another_width_is_saved_and_found(encoder, tmp_path):
    other = write_encoder(tmp_path / "other", width=24, seed=5)
    model = shake(make_elq(encoder, entity_encoder=other))
    model.save_pretrained(tmp_path / "saved")
    for one, same in zip(all_scores(model), all_scores(Elq.from_pretrained(tmp_path / "saved").eval()), strict=True):
        assert torch.equal(one, same)


def spoil(what, folder):
    weights, config = folder / "model.safetensors", folder / "config.json"
    data = json.loads(config.read_text())
    match what:
        case "no folder":
            shutil.rmtree(folder)
        case "no weights":
            weights.unlink()
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:100])
        case "a weight too few" | "a weight too many" | "another shape":
            parts = load_file(weights)
            if what == "a weight too few":
                del parts["nil_head"]
            elif what == "a weight too many":
                parts["more"] = torch.zeros(1)
            else:
                parts["mention_head.weight"] = torch.zeros(3, 99)
            save_file(parts, weights)
        case "no json":
            config.write_text("{")
        case "a list":
            config.write_text("[]")
        case "a typo":
            config.write_text(json.dumps({**data, "pooing": "cls"}))
        case "another rank":
            config.write_text(json.dumps({**data, "rank": 8}))
        case "no encoder":
            config.write_text(json.dumps({**data, "encoder": str(folder / "nowhere")}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no folder", "give a folder written by wellread train linker"),
        ("no weights", "copy or train the model again"),
        ("cut weights", "copy or train the model again"),
        (
            "a weight too few",
            "1 weights are missing or unexpected, e.g. nil_head; use weights and config.json of the same run",
        ),
        ("a weight too many", "e.g. more; use weights and config.json of the same run"),
        ("another shape", "does not fit its encoder: .*mention_head.weight"),
        ("no json", "give a folder written by wellread train linker"),
        ("a list", "expected a table of settings"),
        ("a typo", "did you mean 'pooling'"),
        ("another rank", "does not fit its encoder"),
        ("no encoder", "give one with config.json and model.safetensors"),
    ],
)
def test_a_broken_folder_names_the_fix(encoder, tmp_path, what, message):
    make_elq(encoder).save_pretrained(tmp_path / "saved")
    spoil(what, tmp_path / "saved")
    with pytest.raises(InputError, match=message):
        Elq.from_pretrained(tmp_path / "saved")


def test_a_folder_that_cannot_be_written_is_reported(encoder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WellreadError, match="file"):
        make_elq(encoder).save_pretrained(tmp_path / "file")


def test_a_config_survives_its_folder(encoder, tmp_path):
    config = ElqConfig(encoder=encoder, pooling="cls", rank=0, longest=5, calibration=(1.5, 2.0), nil=False)
    Elq.create(config).save_pretrained(tmp_path / "here")
    assert ElqConfig.read(tmp_path / "here") == own_encoder(config, tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert ElqConfig.read(tmp_path / "there") == own_encoder(config, tmp_path / "there")
    assert Elq.from_pretrained(tmp_path / "there").config.rank == 0
