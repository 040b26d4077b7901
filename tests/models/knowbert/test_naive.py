"""KnowBERT's layer against loops over texts, mentions, tokens and candidates, written from the paper."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.infused_models import batch, build
from tests.knowbert_data import LENGTHS, MENTIONS, candidate_inputs, config, make
from wellread.encoders.infusion.hooks import Flow
from wellread.encoders.packing import Packing
from wellread.models.knowbert.mention_linker import CandidateTensors, MentionPacking, TransformerBlock
from wellread.models.knowbert.model import KnowBert

EXACT = {"atol": 1e-10, "rtol": 1e-10}
EMPTY_TEXTS = [text for text in range(len(LENGTHS)) if text not in MENTIONS]


def linear(part: nn.Linear, state: Tensor) -> Tensor:
    return part.weight @ state + part.bias


def norm(part: nn.LayerNorm, state: Tensor, eps: float) -> Tensor:
    apart = state - state.mean()
    return apart / (apart.square().mean() + eps).sqrt() * part.weight + part.bias


def softmax(scores: list[Tensor]) -> list[Tensor]:
    powers = [score.exp() for score in scores]
    return [power / sum(powers) for power in powers]


def attend(block: TransformerBlock, heads: int, queries: list[Tensor], context: list[Tensor]) -> list[Tensor]:
    """A post-norm block, one head and one row at a time."""
    width = len(queries[0]) // heads
    keys, values = ([linear(part, state) for state in context] for part in (block.key, block.value))
    after = []
    for state in queries:
        query, mixed = linear(block.query, state), []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            weights = softmax([query[own] @ key[own] / width**0.5 for key in keys])
            mixed.append(sum(weight * value[own] for weight, value in zip(weights, values, strict=True)))
        middle = norm(block.mixed_norm, linear(block.mixed, torch.cat(mixed)) + state, 1e-12)
        wide = linear(block.wide, middle)
        wide = wide * 0.5 * (1 + torch.erf(wide / 2**0.5))
        after.append(norm(block.norm, linear(block.narrow, wide) + middle, 1e-12))
    return after


def entity(kar: KnowBert, row: int) -> Tensor:
    """A candidate's vector, projected with its kind and normed."""
    projection = kar.linker.entities
    if row == -2:
        return norm(projection.norm, projection.mask, 1e-5)
    vector = torch.tensor(projection.table.vectors[row], dtype=torch.float64)
    if projection.kinds is not None:
        vector = torch.cat((vector, projection.kinds.weight[int(projection.table.kinds[row])]))
    return norm(projection.norm, vector if projection.linear is None else linear(projection.linear, vector), 1e-5)


@dataclass
class Steps:
    """Results of each step of the layer, for all texts."""

    narrow: list[Tensor] = field(default_factory=list)
    contextual: list[Tensor] = field(default_factory=list)
    scores: list[list[Tensor]] = field(default_factory=list)
    mixed: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)


def read_text(
    kar: KnowBert, states: Tensor, mentions: list[dict[str, Any]], steps: Steps, read: Tensor | None = None
) -> None:
    """Run the eight steps for one text, linked by its states or by `read`."""
    linker, options = kar.linker, kar.config
    narrow = [linear(linker.narrow, state) for state in (states if read is None else read)]
    pooled = []
    for mention in mentions:
        tokens = narrow[mention["first"] : mention["last"] + 1]
        weights = softmax([linear(linker.pooling.score, token)[0] for token in tokens])
        pooled.append(sum(weight * token for weight, token in zip(weights, tokens, strict=True)))
    if not mentions:
        pooled = [torch.zeros(options.dim, dtype=torch.float64)]
    normed = [norm(linker.mention_norm, state, 1e-5) for state in pooled]
    contextual = attend(linker.block, options.heads, normed, normed)
    mixed = []
    for mention, state in zip(mentions or [None], contextual, strict=True):
        found, scores = [], []
        for row, prior in mention["candidates"] if mention else ():
            vector = entity(kar, row)
            both = torch.stack((state @ vector / options.dim**0.5, prior))
            scores.append(linear(linker.scorer.narrow, linear(linker.scorer.wide, both).clamp(min=0))[0])
            if options.mode == "softmax" or scores[-1] >= options.threshold:
                found.append((scores[-1], vector))
        weights = softmax([score for score, _ in found])
        shares = [weight * vector for weight, (_, vector) in zip(weights, found, strict=True)]
        mixed.append(sum(shares) if found else kar.null)
        if mention:
            steps.scores.append(scores)
            learn(kar, scores, mention["right"], steps)
    known = [norm(kar.mixed_norm, state + more, 1e-5) for state, more in zip(contextual, mixed, strict=True)]
    update = attend(kar.block, options.heads, narrow, known)
    after = [state + linear(kar.back, more) for state, more in zip(states, update, strict=True)]
    steps.states += after if kar.norm is None else [norm(kar.norm, state, 1e-5) for state in after]
    steps.narrow += narrow
    steps.contextual += contextual
    steps.mixed += mixed


def learn(kar: KnowBert, scores: list[Tensor], right: list[int], steps: Steps) -> None:
    """Append the loss of a mention with a gold candidate: one number, or one per candidate."""
    if not right:
        return
    if kar.config.mode == "softmax":
        probabilities = softmax(scores)
        steps.losses.append(-sum(probabilities[place] for place in right).log())
    else:
        for place, score in enumerate(scores):
            steps.losses.append((kar.config.margin + (-score if place in right else score)).clamp(min=0))


def mentions_in(given: dict[str, Tensor], text: int) -> list[dict[str, Any]]:
    found = []
    for row in (given["text_of"] == text).nonzero()[:, 0].tolist():
        first, last = given["spans"][row].tolist()
        there = [place for place, entity in enumerate(given["entities"][row].tolist()) if entity != -1]
        candidates = [(int(given["entities"][row, place]), given["priors"][row, place].double()) for place in there]
        right = [place for place in there if given["gold"][row, place]]
        found.append({"first": first, "last": last, "candidates": candidates, "right": right})
    return found


def read_all(kar: KnowBert, states: Tensor, lengths: tuple[int, ...], given: dict[str, Tensor]) -> Steps:
    steps = Steps()
    for text, part in enumerate(states.split(list(lengths))):
        read_text(kar, part, mentions_in(given, text), steps)
    return steps


CASES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax with kinds": {"kinds": 3, "kind_width": 4},
    "softmax, vectors as they are": {"project": False, "raw": 8},
    "softmax without the norm": {"norm": False, "start": "zero"},
    "margin": {"mode": "margin"},
    "margin with kinds": {"mode": "margin", "kinds": 3, "kind_width": 2},
    "margin, vectors as they are": {"mode": "margin", "project": False, "raw": 8, "margin": 0.5},
    "margin, all below": {"mode": "margin", "threshold": 1e6},
    "margin, some below": {"mode": "margin", "threshold": 0.15},
    "margin, none below": {"mode": "margin", "threshold": -1e6},
}


def prepare(options: dict[str, Any]) -> tuple[KnowBert, Tensor]:
    kar = make(config(dropout=0.0, **options)).double().infusions[0]
    torch.manual_seed(11)
    return kar, torch.randn(sum(LENGTHS), 8, dtype=torch.float64)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_layer_is_what_loops_make_of_the_paper(options: dict[str, Any], training: bool) -> None:
    kar, states = prepare(options)
    given, aims = candidate_inputs(), torch.randn_like(states)
    loops, own = copy.deepcopy(kar), states.clone().requires_grad_()
    theirs = states.clone().requires_grad_()
    steps = read_all(loops, theirs, LENGTHS, given)
    wanted, loss = torch.stack(steps.states), torch.stack(steps.losses).mean()
    ((wanted * aims).sum() + loss).backward()
    flow = Flow(Packing.of(LENGTHS), [kar], {"offers": {"wordnet": given}})
    kar.train(training)
    got = kar.between(flow, 1, own)
    losses = kar.losses(flow)
    torch.testing.assert_close(got, wanted, **EXACT)
    torch.testing.assert_close(losses, {"links wordnet": loss}, **EXACT)
    ((got * aims).sum() + losses["links wordnet"]).backward()
    torch.testing.assert_close(own.grad, theirs.grad, **EXACT)
    for (name, weight), other in zip(kar.named_parameters(), loops.parameters(), strict=True):
        theirs_grad = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(weight.grad, theirs_grad, **EXACT, msg=lambda said, name=name: f"{name}: {said}")
    links = flow.outputs["links"]["wordnet"]
    for row, scores in zip(links, steps.scores, strict=True):
        torch.testing.assert_close(row[: len(scores)], torch.stack(scores) if scores else row[:0], **EXACT)
        assert bool((row[len(scores) :] == float("-inf")).all())
    left = sum(any(score >= kar.config.threshold for score in scores) for scores in steps.scores)
    if kar.config.mode == "margin":
        assert left == {1e6: 0, -1e6: 7}.get(kar.config.threshold, left)


@pytest.mark.parametrize("options", [{"kinds": 3}, {"mode": "margin", "threshold": 0.15}], ids=["softmax", "margin"])
def test_every_step_is_the_paper_s(options: dict[str, Any]) -> None:
    kar, states = prepare(options)
    given = candidate_inputs()
    steps = read_all(kar, states, LENGTHS, given)
    packing = Packing.of(LENGTHS)
    read, mentions = CandidateTensors.of(given, packing, "wordnet"), MentionPacking.of(given["text_of"], len(LENGTHS))
    narrow = kar.linker.narrow(states)
    torch.testing.assert_close(narrow, torch.stack(steps.narrow), **EXACT)
    contextual = kar.linker.contextualize(narrow, read, mentions)
    assert len(contextual) == len(given["text_of"]) + len(EMPTY_TEXTS)
    torch.testing.assert_close(contextual, torch.stack(steps.contextual), **EXACT)
    for grad in (True, False):  # by the batch's distinct entities, and by the table of all
        with torch.set_grad_enabled(grad):
            chosen = kar.linker.score(mentions.drop_empty(contextual), read)
        for row, scores in zip(chosen.scores, steps.scores, strict=True):
            wanted = torch.stack(scores) if scores else row[:0]
            torch.testing.assert_close(row[: len(scores)], wanted, **EXACT)
        mixed = mentions.add_empty(torch.where(chosen.kept_mask[:, None], chosen.mixed, kar.null), kar.null)
        torch.testing.assert_close(mixed, torch.stack(steps.mixed), **EXACT)


def test_without_gradients_the_table_of_all_entities_says_the_same() -> None:
    for name in ("softmax with kinds", "softmax, vectors as they are", "margin, some below"):
        kar, states = prepare(CASES[name])
        wanted = torch.stack(read_all(kar, states, LENGTHS, candidate_inputs()).states)
        with torch.no_grad():
            flow = Flow(Packing.of(LENGTHS), [kar], {"offers": {"wordnet": candidate_inputs()}})
            torch.testing.assert_close(kar.eval().between(flow, 1, states), wanted, **EXACT)


def test_several_layers_may_be_read() -> None:
    kar, states = prepare({"reads": 2})
    loops, before, aims = copy.deepcopy(kar), torch.randn_like(states), torch.randn_like(states)
    own, theirs = ([part.clone().requires_grad_() for part in (before, states)] for _ in range(2))
    given, steps = candidate_inputs(), Steps()
    for text, (early, late) in enumerate(zip(*(part.split(list(LENGTHS)) for part in theirs), strict=True)):
        read_text(loops, late, mentions_in(given, text), steps, read=(early + late) / 2)
    wanted, loss = torch.stack(steps.states), torch.stack(steps.losses).mean()
    ((wanted * aims).sum() + loss).backward()
    flow = Flow(Packing.of(LENGTHS), [kar], {"offers": {"wordnet": given}})
    assert kar.between(flow, 0, own[0]) is own[0]
    got = kar.between(flow, 1, own[1])
    losses = kar.losses(flow)
    torch.testing.assert_close(got, wanted, **EXACT)
    torch.testing.assert_close(losses, {"links wordnet": loss}, **EXACT)
    ((got * aims).sum() + losses["links wordnet"]).backward()
    for one, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, **EXACT)


def plain_states(model: PreTrainedModel, ids: Tensor, types: Tensor) -> Tensor:
    return model.embeddings(input_ids=ids[None], token_type_ids=types[None])


def test_two_knowledge_bases_in_one_encoder() -> None:
    configs = (
        config(kb="names", mode="margin", layer=0, dropout=0.0, project=False, raw=8),
        config(kb="wordnet", layer=2, dropout=0.0, kinds=3),
    )
    model = make(*configs).double()
    plain = build().double()
    plain.load_state_dict(model.state_dict(), strict=False)
    plain.set_attn_implementation("eager")
    loops = copy.deepcopy(model.infusions)
    given = batch(LENGTHS)
    arrays = {
        "names": candidate_inputs(),
        "wordnet": {**candidate_inputs(), "entities": candidate_inputs()["entities"].flip(0)},
    }
    arrays["wordnet"]["gold"] = arrays["wordnet"]["gold"].flip(0)
    arrays["wordnet"]["priors"] = arrays["wordnet"]["priors"].flip(0)
    wanted, steps = [], (Steps(), Steps())
    for text, length in enumerate(LENGTHS):
        states = plain_states(plain, given["input_ids"][text, :length], given["token_type_ids"][text, :length])
        for number, layer in enumerate(plain.encoder.layer):
            states = layer(states)
            states = states[0] if isinstance(states, tuple) else states
            for kar, taken in zip(loops, steps, strict=True):
                if number == kar.config.layer:
                    before = len(taken.states)
                    read_text(kar, states[0], mentions_in(arrays[kar.config.kb], text), taken)
                    states = torch.stack(taken.states[before:])[None]
        wanted.append(states[0])
    states = torch.cat(wanted)
    mask = given["attention_mask"].bool()
    packing = Packing.of(LENGTHS)
    got = model.read(given["input_ids"][mask], packing, given["token_type_ids"][mask], offers=arrays)
    torch.testing.assert_close(got.states, states, **EXACT)
    losses = {
        f"links {kar.config.kb}": torch.stack(taken.losses).mean() for kar, taken in zip(loops, steps, strict=True)
    }
    torch.testing.assert_close(got.losses, losses, **EXACT)
    assert list(got.outputs["links"]) == ["names", "wordnet"]
    aims = torch.randn_like(states)
    ((states * aims).sum() + sum(losses.values())).backward()
    ((got.states * aims).sum() + sum(got.losses.values())).backward()
    for (name, weight), other in zip(model.infusions.named_parameters(), loops.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, **EXACT, msg=lambda said, name=name: f"{name}: {said}")
    for name, weight in plain.named_parameters():
        if "pooler" not in name:
            torch.testing.assert_close(model.get_parameter(name).grad, weight.grad, **EXACT)
