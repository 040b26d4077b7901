"""More trees for a link scorer: each a single decision, fitted to what the scorer gets wrong (Newton boosting).

With single decisions the correction of the logit is a sum of functions of one feature each. With few or light examples
it stays near zero, and the scorer as it was.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wellread.linking.decoding import Floats, Ints
from wellread.linking.features import FEATURES, Matrix
from wellread.linking.link_scorer import LinkScorer

_BORDERS = 32
"""Borders that are tried for a feature."""
_COLUMNS = [place for place, name in enumerate(FEATURES) if not name.startswith("kb_")]
"""Features that differ between the spans of one KB."""


def boost(
    scorer: LinkScorer,
    rows: Matrix,
    targets: Floats,
    weights: Floats,
    *,
    trees: int = 40,
    rate: float = 0.3,
    leaf: int = 20,
    ridge: float = 10.0,
) -> LinkScorer:
    """Return the scorer with more trees, fitted to targets (probabilities) of rows; `leaf` rows are a leaf's least."""
    borders = [_borders(rows[:, column]) for column in _COLUMNS]
    bins = [np.searchsorted(own, rows[:, column], "left") for own, column in zip(borders, _COLUMNS, strict=True)]
    logits = scorer.logits(rows)
    added = []
    for _ in range(trees):
        p = 1 / (1 + np.exp(-np.clip(logits, -30, 30)))
        slope, curve = weights * (targets - p), weights * p * (1 - p)
        found = [
            _best_border(own, len(edges), slope, curve, leaf, ridge) for own, edges in zip(bins, borders, strict=True)
        ]
        place = int(np.argmax([gain for gain, *_ in found]))
        gain, border, left, right = found[place]
        if gain <= 0:
            break
        logits += rate * np.where(bins[place] > border, right, left)
        added.append((_COLUMNS[place], borders[place][border], rate * left, rate * right))
    return _with_trees(scorer, added)


def _borders(values: Matrix) -> Matrix:
    """Return borders between the values of a feature: between all, or between groups of about equal size."""
    distinct = np.unique(values)
    if len(distinct) > _BORDERS:
        distinct = np.unique(np.quantile(values, np.linspace(0, 1, _BORDERS + 1)).astype(np.float32))
    return np.asarray((distinct[1:] + distinct[:-1]) / 2, np.float32)


def _best_border(
    bins: Ints, borders: int, slope: Floats, curve: Floats, leaf: int, ridge: float
) -> tuple[float, int, float, float]:
    """Return (gain, border, value of the left leaf, of the right leaf) of a feature's best decision."""
    if not borders:
        return 0.0, 0, 0.0, 0.0
    slopes, curves, counts = (
        np.cumsum(np.bincount(bins, column, borders + 1)) for column in (slope, curve, np.ones(len(bins)))
    )
    left_slope, left_curve, left_count = slopes[:-1], curves[:-1], counts[:-1]
    right_slope, right_curve = slopes[-1] - left_slope, curves[-1] - left_curve
    gain = left_slope**2 / (left_curve + ridge) + right_slope**2 / (right_curve + ridge)
    gain -= slopes[-1] ** 2 / (curves[-1] + ridge)
    gain[(left_count < leaf) | (counts[-1] - left_count < leaf)] = -np.inf
    best = int(np.argmax(gain))
    left, right = left_slope[best] / (left_curve[best] + ridge), right_slope[best] / (right_curve[best] + ridge)
    return float(gain[best]), best, float(left), float(right)


def _with_trees(scorer: LinkScorer, added: list[tuple[int, float, float, float]]) -> LinkScorer:
    """Append decisions as trees of the scorer's depth: below the root nothing is decided."""
    if not added:
        return scorer
    inner, leaves = scorer.feature.shape[1], scorer.leaf.shape[1]
    feature = np.zeros((len(added), inner), np.int16)
    border = np.full((len(added), inner), np.inf, np.float32)
    leaf = np.zeros((len(added), leaves), np.float32)
    for tree, (column, at, left, right) in enumerate(added):
        feature[tree, 0], border[tree, 0] = column, at
        leaf[tree, : leaves // 2], leaf[tree, leaves // 2 :] = left / scorer.scale, right / scorer.scale
    return replace(
        scorer,
        feature=np.concatenate((scorer.feature, feature)),
        border=np.concatenate((scorer.border, border)),
        leaf=np.concatenate((scorer.leaf, leaf)),
    )
