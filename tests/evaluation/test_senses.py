"""Word senses are scored as the official scorer does it."""

import pytest

from wellread.errors import InputError
from wellread.evaluation.senses import SenseInstance, answer_first, back_off, score_by_part, score_senses

ASKED = [
    SenseInstance("a", "bank", "n", ("b1", "b2"), "one"),
    SenseInstance("b", "run", "v", ("r1",), "one"),
    SenseInstance("c", "old", "a", ("o1",), "two"),
    SenseInstance("d", "bank", "n", ("b3",), "two"),
]


def first(lemma, kind):
    return {("bank", "n"): "b3", ("run", "v"): "r1"}.get((lemma, kind))


def test_any_of_several_gold_keys_is_right():
    for key, right in (("b1", 1.0), ("b2", 1.0), ("b3", 0.0)):
        assert score_senses(ASKED[:1], {"a": [key]}).f1 == right


def test_precision_is_over_answers_and_recall_over_instances():
    scores = score_senses(ASKED, {"a": ["b1"], "b": ["r2"]})
    assert (scores.count, scores.answered, scores.right) == (4, 2, 1)
    assert (scores.precision, scores.recall) == (0.5, 0.25)
    assert scores.f1 == pytest.approx(1 / 3)


def test_each_of_several_answers_counts_its_share():
    assert score_senses(ASKED, {"a": ["b1", "b2", "b3", "b4"]}).right == 0.5
    assert score_senses(ASKED, {"a": ["b1", "b1"]}).right == 1  # said twice is said once


def test_answers_to_what_nobody_asked_do_not_count():
    assert score_senses(ASKED, {"a": ["b1"], "z": ["b1"]}).answered == 1
    secret = SenseInstance("s", "bank", "n")
    assert score_senses([*ASKED, secret], {"s": ["b1"]}).count == 4
    with pytest.raises(InputError, match="no instance has a gold key"):
        score_senses([secret], {"s": ["b1"]})


def test_no_answer_at_all_scores_nothing():
    assert score_senses(ASKED, {}).f1 == 0


def test_parts_of_speech_and_data_sets_are_scored_apart():
    scores = score_by_part(ASKED, {"a": ["b1"], "b": ["r1"], "c": ["x"]})
    counts = {name: (part.count, part.right) for name, part in scores.items()}
    assert counts == {
        "all": (4, 2),
        "noun": (2, 1),
        "verb": (1, 1),
        "adjective": (1, 0),
        "one": (2, 2),
        "two": (2, 0),
    }
    assert "one" not in score_by_part(ASKED[:2], {})  # one data set is all of it


def test_the_baseline_answers_first_senses_and_the_back_off_only_what_is_left():
    assert answer_first(ASKED, first) == {"a": ("b3",), "b": ("r1",), "d": ("b3",)}
    given = {"a": ["b1"], "b": []}
    assert back_off(ASKED, given, first) == {"a": ("b1",), "b": ("r1",), "d": ("b3",)}
