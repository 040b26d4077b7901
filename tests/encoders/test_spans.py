from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wellread.encoders.packing import Packing
from wellread.encoders.spans import span_mask, span_means, span_scores

LENGTHS = [[3, 7, 2, 5], [4, 4], [6], [2], [1, 1]]


def special_mask_of(packing: Packing) -> Tensor:
    """Return a mask of the first and last token of each text, and of one inside the longest."""
    mask = packing.places == 0
    mask |= packing.places == packing.lengths[packing.text_of] - 1
    mask |= (packing.places == 3) & (packing.lengths[packing.text_of] == 7)
    return mask


def real_spans(packing: Packing, special_mask: Tensor, longest: int) -> set[tuple[int, int]]:
    """(first, width - 1) of every span, found by looking at each."""
    found = set()
    for start, length in zip(packing.starts.tolist(), packing.lengths.tolist(), strict=True):
        for first in range(start, start + length):
            for last in range(first, min(start + length, first + longest)):
                if not special_mask[first : last + 1].any():
                    found.add((first, last - first))
    return found


@pytest.mark.parametrize("longest", [1, 3, 10])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_spans_are_within_one_text_without_special_tokens(lengths: list[int], longest: int) -> None:
    packing = Packing.of(lengths)
    special_mask = special_mask_of(packing)
    mask = span_mask(packing, special_mask, longest)
    assert mask.shape == (sum(lengths), longest)
    assert {tuple(span) for span in mask.nonzero().tolist()} == real_spans(packing, special_mask, longest)


def test_without_special_tokens_only_the_ends_of_texts_count() -> None:
    packing = Packing.of([2, 3])
    mask = span_mask(packing, torch.zeros(5, dtype=torch.bool), 4)
    assert mask.sum(1).tolist() == [2, 1, 3, 2, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("longest", [1, 3, 10])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_scores_are_start_and_end_and_all_inside(lengths: list[int], longest: int, dtype: torch.dtype) -> None:
    packing = Packing.of(lengths)
    start, end, inside = torch.randn(3, sum(lengths), dtype=dtype)
    scores = span_scores(start, end, inside, longest)
    assert scores.dtype == dtype
    for first, more in real_spans(packing, torch.zeros(sum(lengths), dtype=torch.bool), longest):
        within = inside[first : first + more + 1].double().sum()
        wanted = start[first].double() + end[first + more].double() + within
        torch.testing.assert_close(scores[first, more].double(), wanted, atol=1e-6, rtol=1e-6)


def test_a_score_does_not_depend_on_earlier_texts() -> None:
    start, end, inside = torch.randn(3, 6)
    alone = span_scores(start, end, inside, 3)
    before = torch.randn(3, 4000) * 100
    long = span_scores(*torch.cat([before, torch.stack([start, end, inside])], dim=1), 3)
    torch.testing.assert_close(long[4000:], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_means_are_those_of_the_tokens(lengths: list[int]) -> None:
    tokens = sum(lengths)
    states = torch.randn(tokens, 4)
    spans = [(first, last) for first in range(tokens) for last in range(first, tokens)]
    firsts, lasts = torch.tensor(spans).unbind(1)
    wanted = torch.stack([states[first : last + 1].double().mean(0) for first, last in spans])
    means = span_means(states, firsts, lasts)
    assert means.dtype == states.dtype
    torch.testing.assert_close(means.double(), wanted, atol=1e-6, rtol=1e-6)


def test_gradients_are_right() -> None:
    logits = [torch.randn(7, dtype=torch.double, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *parts: span_scores(*parts, 4), logits)
    states = torch.randn(7, 3, dtype=torch.double, requires_grad=True)
    firsts, lasts = torch.tensor([0, 2, 2, 6]), torch.tensor([6, 2, 4, 6])
    assert torch.autograd.gradcheck(lambda given: span_means(given, firsts, lasts), states)


def test_masked_spans_have_no_gradient() -> None:
    packing = Packing.of([4, 3])
    special_mask = special_mask_of(packing)
    mask = span_mask(packing, special_mask, 3)
    logits = torch.randn(3, 7, requires_grad=True)
    span_scores(*logits, 3)[mask].sum().backward()
    assert logits.grad is not None
    assert not logits.grad[:, special_mask].any()
    assert logits.grad[:, ~special_mask].all()


def test_no_text_has_no_spans() -> None:
    packing = Packing.of([])
    nothing = torch.zeros(0)
    assert span_mask(packing, torch.zeros(0, dtype=torch.bool), 3).shape == (0, 3)
    assert span_scores(nothing, nothing, nothing, 3).shape == (0, 3)
    none = torch.zeros(0, dtype=torch.long)
    assert span_means(torch.randn(4, 2), none, none).shape == (0, 2)
    assert span_means(torch.zeros(0, 2), none, none).shape == (0, 2)
