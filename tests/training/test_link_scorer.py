"""The link scorer that training exports gives what scikit-learn's trees give."""

import numpy as np
import pytest

from wellread.linking.features import FEATURES
from wellread.training.link_scorer import _exported, _rounded_down

ensemble = pytest.importorskip("sklearn.ensemble")


def test_exported_trees_score_as_those_they_were_made_of():
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(4000, len(FEATURES))).astype(np.float32)
    neighbours = np.array([1 + 2**-23, 1 + 2**-22], np.float32)  # their middle has no float32, and rounds up
    rows[:, 0] = neighbours[chance.integers(0, 2, len(rows))]
    rows[:, 1] = chance.integers(0, 2, len(rows))
    right = rows[:, 0] > neighbours[0]
    labels = (chance.random(len(rows)) < np.where(right, 0.9, 0.1)) ^ (rows[:, 2] * rows[:, 1] > 1)
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=20, max_depth=3, max_leaf_nodes=None, min_samples_leaf=5, early_stopping=False
    ).fit(rows, labels)
    scorer = _exported(model, 3)
    assert scorer.logits(rows) == pytest.approx(model.decision_function(rows), abs=1e-5)


@pytest.mark.parametrize("border", [0.0, -0.0, 1.0, 0.1, -0.1, 1e-50, -1e-50, 3.3e38, 1 + 2**-24, 1 + 3 * 2**-24])
def test_a_border_parts_the_same_numbers_when_rounded(border):
    rounded = _rounded_down(border)
    with np.errstate(over="ignore"):
        near = [np.float32(border), *(np.nextafter(np.float32(border), np.float32(to)) for to in (-np.inf, np.inf))]
    assert [one > rounded for one in near] == [float(one) > border for one in near]
