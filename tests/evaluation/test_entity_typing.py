"""Scores of entity types, by hand: macro, micro and strict."""

import pytest

from wellread.errors import InputError
from wellread.evaluation.entity_typing import GENERAL, score_types

GOLD = [("person", "artist"), ("place",), ("time",), ()]
PREDICTED = [("person",), ("place", "city", "location"), (), ("event",)]


def test_macro_is_over_mentions_that_have_something_to_count():
    found = score_types(GOLD, PREDICTED).macro
    # Precision over three mentions that have a prediction, recall over three that have a type.
    assert found.precision == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert found.recall == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found.f1 == pytest.approx(2 * (4 / 9) * (1 / 2) / (4 / 9 + 1 / 2))


def test_micro_is_over_all_types_together():
    found = score_types(GOLD, PREDICTED).micro
    assert (found.precision, found.recall) == pytest.approx((2 / 5, 2 / 4))
    assert found.f1 == pytest.approx(2 * 2 / (5 + 4))


def test_strict_asks_for_all_types_and_no_other():
    assert score_types(GOLD, PREDICTED).strict == 0
    assert score_types(GOLD, [("artist", "person"), ("place",), (), ()]).strict == 0.75


def test_some_types_alone_can_be_scored():
    found = score_types(GOLD, PREDICTED, only=GENERAL).to_dict()
    # artist and city are gone: gold person, place, time; predicted person, place, location, event.
    assert (found["micro_precision"], found["micro_recall"]) == pytest.approx((2 / 4, 2 / 3))
    assert list(found) == [
        *("micro_f1", "micro_precision", "micro_recall", "macro_f1", "macro_precision", "macro_recall", "strict")
    ]


def test_no_predictions_score_zero():
    found = score_types([("time",)], [()])
    assert (found.macro.f1, found.micro.precision, found.strict) == (0, 0, 0)
    with pytest.raises(InputError, match="1 predictions for 2 mentions"):
        score_types([(), ()], [()])
    with pytest.raises(InputError, match="nothing to score"):
        score_types([], [])
