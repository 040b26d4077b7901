"""KAM against loops over layers, heads, rows and columns, written from the paper and slow on purpose."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.infused_models import FAMILIES, batch, build, draw_maps, draw_terms, shake
from wellread.encoders.infusion.infuse import infuse
from wellread.models.kam.model import Kam, KamConfig

LENGTHS, TERMS = (3, 1, 4), (2, 1, 0)
BERT = {
    "layers": "encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mixed": "attention.output.dense",
    "mixed_norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "norm": "output.LayerNorm",
}
DISTILBERT = {
    "layers": "transformer.layer",
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "mixed": "attention.out_lin",
    "mixed_norm": "sa_layer_norm",
    "wide": "ffn.lin1",
    "narrow": "ffn.lin2",
    "norm": "output_layer_norm",
}


def embed(model: nn.Module, id: Tensor, place: int, type: Tensor | None) -> Tensor:
    """Return the embedding of one token: word + type + position, normed, and projected in some families."""
    tables = model.embeddings
    position = place + (2 if "Roberta" in type_name(model) else 0)
    state = tables.word_embeddings.weight[id] + tables.position_embeddings.weight[position]
    if hasattr(tables, "token_type_embeddings"):
        state = state + tables.token_type_embeddings.weight[0 if type is None else type]
    state = norm(tables.LayerNorm, state)
    return linear(model.embeddings_project, state) if hasattr(model, "embeddings_project") else state


def type_name(model: nn.Module) -> str:
    return type(model).__name__


def linear(part: nn.Linear, state: Tensor) -> Tensor:
    return part.weight @ state + part.bias


def norm(part: nn.LayerNorm, state: Tensor) -> Tensor:
    apart = state - state.mean()
    return apart / (apart.square().mean() + part.eps).sqrt() * part.weight + part.bias


def gelu(state: Tensor) -> Tensor:
    return state * 0.5 * (1 + torch.erf(state / 2**0.5))


def grid(heads: int, total: int) -> list[list[list[Any]]]:
    return [[[None] * total for _ in range(total)] for _ in range(heads)]


def fuse(kam: Kam, layer: int, own: list, below: list | None, maps: Tensor | None, total: int) -> list:
    """Skip, convolution or mean, and the share alpha of it, for one text: scores in, scores out."""
    config, heads = kam.config, len(own)
    count = 0 if maps is None else len(maps)
    if below is not None and config.skip != "none":
        beta = kam.betas[str(layer)]
        keep = 1 - beta if config.skip == "mix" else 1
        own = [
            [[keep * own[h][i][j] + beta * below[h][i][j] for j in range(total)] for i in range(total)]
            for h in range(heads)
        ]
    fused = grid(heads, total)
    for head in range(heads):
        for i in range(total):
            for j in range(total):
                meant = own[head][i][j]
                if config.fusion == "convolution":
                    kernel = kam.kernels[str(layer)][head]
                    meant = torch.zeros((), dtype=torch.float64)
                    for channel in range(heads + count):
                        for down in (-1, 0, 1):
                            for right in (-1, 0, 1):
                                row, column = i + down, j + right
                                if 0 <= row < total and 0 <= column < total:
                                    seen = (
                                        own[channel][row][column]
                                        if channel < heads
                                        else maps[channel - heads, row, column]
                                    )
                                    meant = meant + kernel[channel, 1 + down, 1 + right] * seen
                elif config.fusion == "mean" and maps is not None:
                    meant = (meant + sum(maps[m, i, j] for m in range(count))) / (1 + count)
                fused[head][i][j] = config.alpha * meant + (1 - config.alpha) * own[head][i][j]
    return fused


def read(model: PreTrainedModel, ids: Tensor, types: Tensor | None, terms: Tensor, maps: Tensor | None) -> Tensor:
    """The last states of one text, all by itself."""
    names = DISTILBERT if "DistilBert" in type_name(model) else BERT
    kam = model.infusions[0]
    heads = model.config.num_attention_heads
    length, total = len(ids), len(ids) + len(terms)
    states = [embed(model, ids[i], i, None if types is None else types[i]) for i in range(length)]
    last = None if types is None else types[-1]
    extra_tokens = [embed(model, terms[k], length + k, last) for k in range(len(terms))]
    width = len(states[0]) // heads
    below = None
    for number, layer in enumerate(model.get_submodule(names["layers"])):
        part = {name: layer.get_submodule(path) for name, path in names.items() if name != "layers"}
        sequence = [*states, *extra_tokens]
        query, key, value = (
            [linear(part[name], state).view(heads, width) for state in sequence] for name in ("query", "key", "value")
        )
        scores = grid(heads, total)
        for head in range(heads):
            for i in range(total):
                for j in range(total):
                    scores[head][i][j] = query[i][head] @ key[j][head] / width**0.5
        if number in kam.layers:
            scores = below = fuse(kam, number, scores, below, maps, total)
        after = []
        for i in range(length):  # what stands behind the text is cut off
            mixed = []
            for head in range(heads):
                weights = torch.stack(scores[head][i]).exp()
                weights = weights / weights.sum()
                mixed.append(sum(weights[j] * value[j][head] for j in range(total)))
            middle = norm(part["mixed_norm"], linear(part["mixed"], torch.cat(mixed)) + states[i])
            wide = gelu(linear(part["wide"], middle))
            after.append(norm(part["norm"], linear(part["narrow"], wide) + middle))
        states = after
    return torch.stack(states)


def make(config: KamConfig, family: str = "Bert") -> PreTrainedModel:
    """Return a model whose infusion has random weights."""
    model = infuse(build(family, num_hidden_layers=3 if config.layers else 2), [config]).double()
    torch.manual_seed(7)
    shake(model.infusions, 0.3)
    return model


def compare(model: PreTrainedModel, family: str, terms: tuple[int, ...] | None, count: int) -> None:
    """States and the gradients of every weight: of loops, of the model in one step and step by step."""
    given = batch(LENGTHS, family=family)
    mask = given["attention_mask"].bool()
    maps = draw_maps(LENGTHS, count, terms) if count else None
    knowledge = {} if maps is None else {"maps": maps}
    knowledge |= draw_terms(terms) if terms else {}
    aims = torch.randn(len(LENGTHS), max(LENGTHS), 8, dtype=torch.float64)
    loops, wanted = copy.deepcopy(model), []
    for text, length in enumerate(LENGTHS):
        ids = given["input_ids"][text, :length]
        types = given["token_type_ids"][text, :length] if "token_type_ids" in given else None
        extra = knowledge["term_ids"][text, : terms[text]] if terms else ids[:0]
        total = length + len(extra)
        wanted.append(read(loops, ids, types, extra, None if maps is None else maps[text, :, :total, :total]))
    states = torch.cat(wanted)
    (states * aims[mask]).sum().backward()
    for step_by_step in (False, True):
        copied = copy.deepcopy(model)
        if step_by_step:
            copied.infusions[0].attend = None
        got = copied(**given, **knowledge).last_hidden_state[mask]
        torch.testing.assert_close(got, states, atol=1e-10, rtol=1e-10)
        (got * aims[mask]).sum().backward()
        assert_learned_alike(copied, loops)


def assert_learned_alike(model: PreTrainedModel, loops: PreTrainedModel) -> None:
    wanted, counted = dict(loops.named_parameters()), 0
    for name, weight in model.named_parameters():
        if "pooler" in name:
            assert weight.grad is None
            continue
        counted += "infusions" in name
        torch.testing.assert_close(
            weight.grad, wanted[name].grad, atol=1e-10, rtol=1e-10, msg=lambda said, name=name: f"{name}: {said}"
        )
    assert counted == len(list(model.infusions.parameters()))


CASES: dict[str, tuple[dict[str, Any], int, tuple[int, ...] | None]] = {
    "convolution": ({}, 2, None),
    "convolution with terms": ({}, 2, TERMS),
    "convolution, no maps": ({}, 0, None),
    "convolution, no maps, terms": ({"start": "random"}, 0, TERMS),
    "convolution, alpha 1": ({"alpha": 1.0, "map_init": 2.0}, 1, None),
    "mean": ({"fusion": "mean", "alpha": 0.6}, 2, TERMS),
    "none": ({"fusion": "none"}, 2, TERMS),
    "add": ({"skip": "add"}, 1, None),
    "mix": ({"skip": "mix"}, 1, None),
    "add with terms": ({"skip": "add", "start": "random"}, 1, TERMS),
    "mix with terms": ({"skip": "mix", "alpha": 0.5}, 1, TERMS),
    "mean, add": ({"fusion": "mean", "skip": "add"}, 2, TERMS),
    "none, mix": ({"fusion": "none", "skip": "mix"}, 0, None),
    "some layers": ({"layers": (0, 2), "skip": "mix"}, 1, TERMS),
    "the last layer": ({"layers": (2,)}, 1, None),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("options", "count", "terms"), CASES.values(), ids=CASES)
def test_kam_agrees_with_loops_written_from_the_paper(
    options: dict[str, Any], count: int, terms: tuple[int, ...] | None, training: bool
) -> None:
    """Without dropout, so that training is the same."""
    compare(make(KamConfig(maps=tuple("abc"[:count]), **options)).train(training), "Bert", terms, count)


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_kam_is_the_same_in_every_family(family: str) -> None:
    compare(make(KamConfig(maps=("a",), skip="mix"), family), family, TERMS, 1)
