from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from wellread.encoders import spans as torch_spans
from wellread.encoders.packing import Packing
from wellread.runtime.spans import PackedWindows, best_spans, scores_of, span_mask, span_means, span_scores

LENGTHS = [[3, 7, 2, 5], [4, 4], [6], [2], [1, 1], []]


@pytest.mark.parametrize("longest", [1, 3, 10])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_masks_and_scores_of_spans_are_those_of_torch(lengths: list[int], longest: int) -> None:
    draw, tokens = np.random.default_rng(0), sum(lengths)
    special, begins, ends = draw.random((3, tokens)) < np.array([0.2, 0.7, 0.7])[:, None]
    packed, packing = PackedWindows.of(lengths), Packing.of(lengths)
    given = [torch.from_numpy(mask) for mask in (special, begins, ends)]
    wanted = torch_spans.span_mask(packing, given[0], longest, begins_mask=given[1], ends_mask=given[2])
    mask = span_mask(packed, special, longest, begins_mask=begins, ends_mask=ends)
    assert np.array_equal(mask, wanted.numpy())
    assert np.array_equal(
        span_mask(packed, special, longest), torch_spans.span_mask(packing, given[0], longest).numpy()
    )
    logits = draw.normal(size=(3, tokens)).astype(np.float32)
    scores = torch_spans.span_scores(*(torch.from_numpy(part) for part in logits), longest)
    np.testing.assert_allclose(span_scores(*logits, longest), scores.numpy(), atol=1e-6)
    firsts, widths = np.nonzero(mask)
    np.testing.assert_allclose(scores_of(*logits, firsts, firsts + widths), scores.numpy()[mask], atol=1e-6)


@pytest.mark.parametrize("floor", [-np.inf, -5.0, -0.7, -1e-9, 0.0])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_the_best_spans_of_each_window_are_those_of_torch(floor: float, most: int) -> None:
    draw = np.random.default_rng(1)
    packed = PackedWindows.of([5, 9, 1, 20])
    scores = draw.normal(scale=4, size=(35, 4)).astype(np.float32)
    mask = draw.random(scores.shape) < 0.8
    log_p = logsigmoid(torch.from_numpy(scores))
    firsts, widths = (torch.from_numpy(mask) & (log_p > floor)).nonzero(as_tuple=True)
    kept = best_of_each(packed.window_of[firsts.numpy()], log_p[firsts, widths].double().numpy(), most)
    found = best_spans(scores, mask, packed.window_of, floor=floor, most=most)
    assert np.array_equal(found[0], firsts.numpy()[kept])
    assert np.array_equal(found[1], widths.numpy()[kept])


def test_means_of_spans_are_those_of_torch_whatever_is_beside_them() -> None:
    draw = np.random.default_rng(2)
    states = draw.normal(size=(40, 8)).astype(np.float32)
    firsts = draw.integers(0, 30, 25)
    lasts = firsts + draw.integers(0, 10, 25)
    wanted = torch_spans.span_means(*(torch.from_numpy(part) for part in (states, firsts, lasts)))
    found = span_means(states, firsts, lasts)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)
    for row in range(25):
        assert np.array_equal(
            span_means(states[firsts[row] : lasts[row] + 1], *_whole(firsts, lasts, row))[0], found[row]
        )
    assert span_means(states, firsts[:0], lasts[:0]).shape == (0, 8)


def _whole(firsts: np.ndarray, lasts: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([0]), np.array([lasts[row] - firsts[row]])


def best_of_each(groups: np.ndarray, scores: np.ndarray, most: int) -> list[int]:
    """Rows of the `most` highest scores of each group, by plain loops."""
    best = []
    for group in sorted(set(groups.tolist())):
        rows = [row for row in range(len(groups)) if groups[row] == group]
        best += sorted(rows, key=lambda row: (-scores[row], row))[:most]
    return sorted(best)
