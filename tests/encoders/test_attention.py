"""Attention convolved with maps: values, gradients and dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from wellread.encoders.attention import attend_with_scores, convolved_attention, packed_attention

TEXTS, HEADS, ROWS, COLUMNS, DIM, MAPS = 2, 2, 3, 4, 2, 1
MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])


def draw(**without: None) -> dict[str, Any]:
    """All that goes into it, zero where `MASK` has nothing."""
    torch.manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    rows = MASK[:, :ROWS]
    pairs = (rows[:, :, None] & MASK[:, None, :])[:, None]
    given = {
        "query": random(TEXTS, HEADS, ROWS, DIM) * rows[:, None, :, None],
        "key": random(TEXTS, HEADS, COLUMNS, DIM) * MASK[:, None, :, None],
        "value": random(TEXTS, HEADS, COLUMNS, DIM) * MASK[:, None, :, None],
        "maps": random(TEXTS, MAPS, ROWS, COLUMNS) * pairs,
        "kernel": random(HEADS, HEADS + MAPS, 3, 3),
        "below": random(TEXTS, HEADS, ROWS, COLUMNS) * pairs,
        "own": torch.tensor(0.7, dtype=torch.float64),
        "carry": torch.tensor(0.4, dtype=torch.float64),
        "column_mask": MASK,
    } | without
    if given["maps"] is None:
        given["kernel"] = given["kernel"][:, :HEADS].contiguous()
    return given


WITHOUT = {
    "everything": {},
    "no maps": {"maps": None},
    "added to what is below": {"own": None},
    "nothing below": {"below": None, "own": None, "carry": None},
    "bare": {"maps": None, "below": None, "own": None, "carry": None, "column_mask": None},
}


@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_it_follows_its_formula(without: dict[str, None]) -> None:
    given = draw(**without)
    mixed, scores = convolved_attention(**given, scaling=0.3)
    wanted = 0.3 * given["query"] @ given["key"].transpose(2, 3)
    if given["below"] is not None:
        wanted = wanted * (1 if given["own"] is None else given["own"]) + given["carry"] * given["below"]
    channels = wanted if given["maps"] is None else torch.cat((wanted, given["maps"]), 1)
    wanted = conv2d(channels, given["kernel"], padding=1)
    torch.testing.assert_close(scores, wanted, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(
        mixed, attend_with_scores(wanted, given["value"], given["column_mask"])[0], atol=1e-12, rtol=1e-12
    )


@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_gradients_are_those_of_small_steps(without: dict[str, None]) -> None:
    given = draw(**without)
    names = [name for name, part in given.items() if part is not None and part.is_floating_point()]
    parts = [given[name].clone().requires_grad_() for name in names]

    def attend(*parts: Tensor) -> tuple[Tensor, Tensor]:
        return convolved_attention(**given | dict(zip(names, parts, strict=True)), scaling=0.3)

    assert torch.autograd.gradcheck(attend, parts)


@pytest.mark.parametrize("frozen", ["query", "key", "value", "maps", "kernel", "below", "own", "carry"])
def test_frozen_inputs_get_no_gradient_and_others_do(frozen: str) -> None:
    given = draw()
    for name, part in given.items():
        part.requires_grad_(name not in (frozen, "column_mask"))
    mixed, scores = convolved_attention(**given, scaling=0.3)
    (mixed.square().sum() + scores.square().sum()).backward()
    missing = [name for name, part in given.items() if part.grad is None]
    assert missing == [name for name in given if name in (frozen, "column_mask")]


def test_columns_that_are_not_there_have_no_say() -> None:
    given = draw()
    before = convolved_attention(**given, scaling=0.3)[0]
    given["value"] = given["value"].masked_fill(~MASK[:, None, :, None], 1e6)
    assert torch.equal(convolved_attention(**given, scaling=0.3)[0], before)
    weights = attend_with_scores(
        torch.randn(TEXTS, HEADS, ROWS, COLUMNS), torch.randn(TEXTS, HEADS, COLUMNS, DIM), MASK
    )[1]
    assert not weights[1, :, :, 2:].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(TEXTS, HEADS, ROWS))


def test_a_share_of_the_weights_is_dropped_and_the_rest_stands_in_for_it() -> None:
    torch.manual_seed(0)
    size, share = 60, 0.3
    query, key = torch.zeros(2, 1, size, 4, dtype=torch.float64), torch.zeros(2, 1, size, 4, dtype=torch.float64)
    value = torch.eye(size, dtype=torch.float64).expand(2, 1, size, size).clone().requires_grad_()
    kernel = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    mixed, scores = convolved_attention(query, key, value, None, kernel, scaling=1.0, drop=share)
    assert not scores.any()
    dropped = mixed == 0
    assert float(dropped.double().mean()) == pytest.approx(share, abs=0.02)
    torch.testing.assert_close(mixed[~dropped], torch.full_like(mixed[~dropped], 1 / size / (1 - share)))
    assert not torch.equal(dropped[0], dropped[1])
    # what was dropped on the way there is dropped on the way back
    mixed.sum().backward()
    torch.testing.assert_close(value.grad.sum(-1), size * mixed.detach().sum(2))


def test_gradients_with_a_given_chance_are_those_of_small_steps() -> None:
    given = draw()
    names = [name for name, part in given.items() if part.is_floating_point()]
    parts = [given[name].clone().requires_grad_() for name in names]

    def attend(*parts: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        return convolved_attention(**given | dict(zip(names, parts, strict=True)), scaling=0.3, drop=0.4)

    assert torch.autograd.gradcheck(attend, parts)
    assert bool((attend(*parts)[0] != convolved_attention(**given, scaling=0.3)[0]).any())


def test_texts_that_lie_end_to_end_attend_within_themselves() -> None:
    torch.manual_seed(0)
    lengths = [3, 1, 4]
    lines = [torch.randn(sum(lengths), 2, 5, dtype=torch.float64) for _ in range(3)]
    made = packed_attention(*lines, lengths, scaling=0.3).split(lengths)
    for text, parts in zip(made, zip(*(line.split(lengths) for line in lines), strict=True), strict=True):
        query, key, value = (part.transpose(0, 1)[None] for part in parts)
        wanted = attend_with_scores(0.3 * query @ key.transpose(2, 3), value, None)[0]
        torch.testing.assert_close(text.transpose(0, 1)[None], wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_gradients_of_packed_texts_are_those_of_small_steps(share: float) -> None:
    torch.manual_seed(0)
    lines = [torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(*lines: Tensor) -> Tensor:
        torch.manual_seed(5)
        return packed_attention(*lines, [2, 4], scaling=0.3, drop=share)

    assert torch.autograd.gradcheck(attend, lines)
    assert torch.equal(attend(*lines), packed_attention(*lines, [2, 4], scaling=0.3)) == (not share)


def test_a_share_of_packed_weights_is_dropped() -> None:
    torch.manual_seed(0)
    size, share = 60, 0.3
    zeros, value = torch.zeros(2 * size, 1, size), torch.eye(size).repeat(2, 1)[:, None]
    mixed = packed_attention(zeros, zeros, value, [size, size], scaling=1.0, drop=share)
    dropped = mixed == 0
    assert float(dropped.float().mean()) == pytest.approx(share, abs=0.02)
    torch.testing.assert_close(mixed[~dropped], torch.full_like(mixed[~dropped], 1 / size / (1 - share)))
    assert not packed_attention(zeros, zeros, value, [size, size], scaling=1.0, drop=1.0).any()
