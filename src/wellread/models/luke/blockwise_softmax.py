"""The cross-entropy of a softmax over very many rows, as of a table of entities, exactly and in bounded memory.

Scores of all states by all rows are never there at once: some states at a time are scored, and while their scores are
there, so are the gradients made of them (as Liger's kernels do). Beside the table's own gradient this takes as much
memory as one block, whatever the batch; and no score is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1 << 25
"""Scores that are there at once."""


def cross_entropy_over_rows(
    states: Float[Tensor, "masked dim"],
    table: Float[Tensor, "row dim"],
    bias: Float[Tensor, " row"],
    gold: Int[Tensor, " masked"],
    *,
    block: int = BLOCK,
) -> Float[Tensor, ""]:
    """The mean of -log softmax(states · table + bias) at the right rows; as `cross_entropy` of all scores."""
    found: Tensor = _CrossEntropy.apply(states, table, bias, gold, block)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def score_rows(
    states: Float[Tensor, "masked dim"],
    table: Float[Tensor, "row dim"],
    bias: Float[Tensor, " row"],
    gold: Int[Tensor, " masked"],
    *,
    block: int = BLOCK,
) -> tuple[Float[Tensor, " masked"], Bool[Tensor, " masked"]]:
    """The log-chance of each right row, and whether it has the best score of all."""
    chances, right = [states.new_zeros(0)], [gold.new_zeros(0, dtype=torch.bool)]
    for _, scores, rows in _blocks(states, table, bias, gold, block):
        of_gold = scores.gather(1, rows[:, None])[:, 0]
        chances.append(of_gold - scores.logsumexp(1))
        right.append(scores.argmax(1) == rows)
    return torch.cat(chances), torch.cat(right)


def _blocks(
    states: Tensor, table: Tensor, bias: Tensor, gold: Tensor, block: int
) -> Iterator[tuple[slice, Float[Tensor, "some row"], Int[Tensor, " some"]]]:
    size = max(1, block // max(1, len(table)))
    for begin in range(0, len(states), size):
        part = slice(begin, begin + size)
        with torch.autocast(states.device.type, enabled=False):
            scores = torch.addmm(bias, states[part].to(table.dtype), table.t())
        yield part, scores, gold[part]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, table: Tensor, bias: Tensor, gold: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(states, table, bias, gold)
        ctx.block = block
        mean, ctx.gradients = _learn(states, table, bias, gold, block, ctx.needs_input_grad[:3])
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        made, ctx.gradients = ctx.gradients, None  # in place: nobody else has them, and the table's is large
        if made is None:  # a second time, through a graph that was retained
            states, table, bias, gold = ctx.saved_tensors
            _, made = _learn(states, table, bias, gold, ctx.block, ctx.needs_input_grad[:3])
        return *(None if part is None else part.mul_(above.to(part.dtype)) for part in made), None, None


def _learn(
    states: Tensor, table: Tensor, bias: Tensor, gold: Tensor, block: int, needs: Sequence[bool]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The mean, and the gradients of what needs one."""
    total = table.new_zeros(())
    of_states, of_table, of_bias = made = tuple(
        torch.zeros_like(part) if needed else None for part, needed in zip((states, table, bias), needs, strict=True)
    )
    for part, scores, rows in _blocks(states, table, bias, gold, block):
        every = scores.logsumexp(1, keepdim=True)
        total += (every - scores.gather(1, rows[:, None])).sum()
        if not any(needs):
            continue
        change = scores.sub_(every).exp_()
        change.scatter_add_(1, rows[:, None], change.new_full((len(rows), 1), -1.0))
        change.div_(len(states))
        with torch.autocast(states.device.type, enabled=False):
            if of_states is not None:
                of_states[part] = change @ table
            if of_table is not None:
                of_table.addmm_(change.t(), states[part].to(table.dtype))
            if of_bias is not None:
                of_bias += change.sum(0)
    return total / max(1, len(states)), made
