"""Calibration against what a loop over the predictions says, one by one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.errors import InputError
from wellread.evaluation.calibration import Predictions, calibrate, fit_temperature, pr_curve, reliability

# Few distinct scores, so that there are ties.
PAIRS = st.lists(st.tuples(st.integers(0, 20).map(lambda n: n / 20), st.booleans()), max_size=40)


def split(pairs):
    return [score for score, _ in pairs], [right for _, right in pairs]


@given(PAIRS, st.integers(1, 12), st.sampled_from(["width", "mass"]))
def test_bins_are_those_of_a_loop(pairs, bins, by):
    held = {}
    for score, right in pairs:
        if by == "width":
            place = min(int(score * bins), bins - 1)
        else:
            place = sum(other < score for other, _ in pairs) * bins // len(pairs)
        held.setdefault(place, []).append((score, right))
    ours = reliability(*split(pairs), bins=bins, by=by)
    expected = [held[place] for place in sorted(held)]
    assert ours.count.tolist() == [len(each) for each in expected]
    assert ours.confidence.tolist() == pytest.approx([sum(s for s, _ in each) / len(each) for each in expected])
    assert ours.accuracy.tolist() == pytest.approx([sum(r for _, r in each) / len(each) for each in expected])
    error = sum(abs(sum(s for s, _ in each) - sum(r for _, r in each)) for each in expected) / max(1, len(pairs))
    assert ours.error == pytest.approx(error)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_predictions_does_not_matter(pairs, random):
    mixed = random.sample(pairs, len(pairs))
    for by in ("width", "mass"):
        assert reliability(*split(pairs), by=by).error == pytest.approx(reliability(*split(mixed), by=by).error)
    curves = [pr_curve(Predictions(*split(each), gold=50)) for each in (pairs, mixed)]
    assert curves[0].best == curves[1].best


def test_bins_of_equal_mass_hold_equally_many():
    scores = np.random.default_rng(0).random(1000) ** 8
    assert reliability(scores, scores > 0.5, by="mass").count.tolist() == [100] * 10


def test_scores_that_are_right_as_often_as_they_say_have_no_error():
    scores = np.repeat([0.1, 0.5, 0.9], 10)
    right = np.concatenate([np.arange(10) < share for share in (1, 5, 9)])
    assert reliability(scores, right).error == pytest.approx(0)
    assert reliability(scores, ~right).error == pytest.approx((0.8 + 0 + 0.8) / 3)


@given(PAIRS, st.integers(0, 10))
def test_the_curve_is_that_of_a_loop_over_thresholds(pairs, missed):
    gold = sum(right for _, right in pairs) + missed
    curve = pr_curve(Predictions(*split(pairs), gold=gold))
    thresholds = sorted({score for score, _ in pairs}, reverse=True)
    assert curve.threshold.tolist() == thresholds
    area, before = 0.0, 0.0
    for place, threshold in enumerate(thresholds):
        kept = [right for score, right in pairs if score >= threshold]
        precision, recall = sum(kept) / len(kept), sum(kept) / gold if gold else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        row = (curve.precision[place], curve.recall[place], curve.f1[place])
        assert row == pytest.approx((precision, recall, f1))
        area, before = area + (recall - before) * precision, recall
    assert curve.average_precision == pytest.approx(area)
    if gold and pairs:
        assert curve.best.f1 == max(curve.f1)
        assert curve.best.threshold == max(curve.threshold[curve.f1 == max(curve.f1)])
        kept = [right for score, right in pairs if score >= curve.best.threshold]
        assert curve.best.precision == pytest.approx(sum(kept) / len(kept))


def test_a_link_that_was_never_predicted_lowers_recall():
    curve = pr_curve(Predictions([0.9, 0.8], [True, True], gold=4))
    assert curve.recall.tolist() == [0.25, 0.5]
    assert curve.average_precision == 0.5


def log_loss(logits, right, scale, bias):
    chance = 1 / (1 + np.exp(-(scale * logits + bias)))
    return -np.where(right, np.log(chance), np.log1p(-chance)).mean()


@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (0.3, 0.5), (2.5, -1.0)])
def test_no_scale_and_bias_of_a_grid_are_better_than_those_fitted(scale, bias):
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 2, 4000)
    right = draw.random(4000) < 1 / (1 + np.exp(-(scale * logits + bias)))
    fitted = fit_temperature(logits, right)
    assert fitted == pytest.approx((scale, bias), abs=0.25)
    ours = log_loss(logits, right, *fitted)
    grid = [log_loss(logits, right, a, b) for a in np.linspace(0.1, 4, 40) for b in np.linspace(-2, 2, 41)]
    near = [log_loss(logits, right, fitted[0] + a, fitted[1] + b) for a in (-1e-3, 0, 1e-3) for b in (-1e-3, 0, 1e-3)]
    assert ours <= min(grid)
    assert ours <= min(near) + 1e-12


def test_fitting_calibrates():
    draw = np.random.default_rng(2)
    logits = draw.normal(1, 3, 5000)
    right = draw.random(5000) < 1 / (1 + np.exp(-(0.4 * logits - 0.7)))
    scale, bias = fit_temperature(logits, right)
    before = reliability(1 / (1 + np.exp(-logits)), right).error
    after = reliability(1 / (1 + np.exp(-(scale * logits + bias))), right).error
    assert after < 0.03 < 0.1 < before


@pytest.mark.parametrize(
    ("logits", "right"),
    [
        ([-1.0, 1.0], [False, True]),
        ([-1.0, 1.0], [True, False]),
        ([1.0, 2.0, 3.0], [True] * 3),
        ([5.0] * 4, [False] * 4),
        ([1e6, -1e6], [False, True]),
        ([0.0], [True]),
    ],
)
def test_what_has_no_best_scale_gets_a_finite_one(logits, right):
    scale, bias = fit_temperature(logits, right)
    assert math.isfinite(scale)
    assert math.isfinite(bias)
    signs = [scale * logit + bias > 0 for logit in logits]
    assert signs == right


def test_without_predictions_there_is_still_an_answer():
    assert reliability([], []).error == 0
    assert reliability([], [], by="mass").count.tolist() == []
    assert fit_temperature([], []) == (1.0, 0.0)
    nothing, missed = pr_curve(Predictions([], [], 0)), pr_curve(Predictions([], [], 3))
    assert (nothing.best.f1, missed.best.f1) == (1.0, 0.0)
    assert nothing.average_precision == missed.average_precision == 0.0
    assert calibrate(Predictions([], [], 3))["best_threshold"] is None
    assert pr_curve(Predictions([0.5], [False], 0)).best.threshold == math.inf


@pytest.mark.parametrize(
    ("scores", "right", "message"),
    [
        ([0.5, 0.6], [True], "one answer, right or not, for each score"),
        ([1.5], [True], "a score is 1.5; expected from 0 to 1; apply a sigmoid to logits"),
        ([math.nan], [True], "a score is nan"),
    ],
)
def test_scores_that_make_no_sense_are_refused(scores, right, message):
    with pytest.raises(InputError, match=message):
        reliability(scores, right)
    with pytest.raises(InputError, match=message):
        Predictions(scores, right, 5)


def test_more_right_predictions_than_gold_links_are_refused():
    with pytest.raises(InputError, match="2 predictions are right of 1 gold links; count each gold link once"):
        Predictions([0.5, 0.6], [True, True], 1)
