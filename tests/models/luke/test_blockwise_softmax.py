"""Cross-entropy over many rows in blocks: exact values and gradients."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from wellread.models.luke.pretraining_task import cross_entropy_over_rows, score_rows


def parts(masked=11, rows=37, dim=5):
    torch.manual_seed(0)
    states, table, bias = torch.randn(masked, dim), torch.randn(rows, dim), torch.randn(rows)
    return states, table, bias, torch.randint(rows, (masked,))


@pytest.mark.parametrize("block", [1, 37, 100, 10_000])
def test_block_loss_equals_cross_entropy_of_all_logits(block):
    states, table, bias, gold = parts()
    weights = [part.clone().requires_grad_() for part in (states, table, bias)]
    theirs = [part.clone().requires_grad_() for part in (states, table, bias)]
    loss = cross_entropy_over_rows(*weights, gold, block=block)
    known = cross_entropy(linear(theirs[0], theirs[1], theirs[2]), gold)
    assert torch.allclose(loss, known, atol=1e-6)
    (3 * loss).backward()
    (3 * known).backward()
    for mine, other in zip(weights, theirs, strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-6)


def test_a_table_used_twice_gets_both_gradients():
    states, table, bias, gold = parts()
    found = []
    for loss in (cross_entropy_over_rows, lambda s, t, b, g: cross_entropy(linear(s, t, b), g)):
        mine = table.clone().requires_grad_()
        (loss(states * mine[3], mine, bias, gold) + mine[gold].sum()).backward()
        found.append(mine.grad)
    assert torch.allclose(*found, atol=1e-6)


def test_a_retained_graph_gives_the_same_gradients_again():
    states, table, bias, gold = parts()
    weights = [part.clone().requires_grad_() for part in (states, table, bias)]
    loss = cross_entropy_over_rows(*weights, gold, block=100)
    once = torch.autograd.grad(loss, weights, retain_graph=True)
    twice = torch.autograd.grad(2 * loss, weights)
    for one, other in zip(once, twice, strict=True):
        assert torch.allclose(2 * one, other)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_frozen_inputs_get_no_gradient():
    states, table, bias, gold = parts()
    bias.requires_grad_()
    cross_entropy_over_rows(states, table, bias, gold).backward()
    assert bias.grad is not None
    assert states.grad is None
    assert table.grad is None
    with torch.no_grad():
        assert not cross_entropy_over_rows(states, table, bias, gold).requires_grad


def test_the_loss_without_masked_entities_is_zero():
    states, table, bias, _ = parts(masked=0)
    table.requires_grad_()
    loss = cross_entropy_over_rows(states, table, bias, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert not table.grad.any()


@pytest.mark.parametrize("block", [1, 10_000])
def test_log_probabilities_and_best_rows_equal_those_of_all_logits(block):
    states, table, bias, gold = parts()
    scores = linear(states, table, bias)
    gold[:4] = scores.argmax(1)[:4]
    chances, right = score_rows(states, table, bias, gold, block=block)
    assert torch.allclose(chances, -cross_entropy(scores, gold, reduction="none"), atol=1e-6)
    assert torch.equal(right, scores.argmax(1) == gold)
    assert right[:4].all()


def test_half_precision_states_are_scored_in_full_precision():
    states, table, bias, gold = parts()
    half = states.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy_over_rows(half, table, bias, gold)
    assert loss.dtype == torch.float32
    assert torch.allclose(loss, cross_entropy(linear(half.float(), table, bias), gold))
    loss.backward()
    assert half.grad.dtype == torch.bfloat16
