"""Scores of relations, by hand: what the official scorers of TACRED and SemEval-2010 task 8 would print."""

import pytest

from wellread.errors import InputError
from wellread.evaluation.relations import score_semeval2010, score_tacred, undirected

NONE = "no_relation"


def test_pairs_without_a_relation_have_no_part_in_tacreds_scores():
    gold = ["per:title", "per:title", "org:founded", NONE, NONE, "per:age"]
    predicted = ["per:title", "per:age", NONE, NONE, "org:founded", "per:age"]
    # Two of four predicted relations are right, of four gold ones.
    assert score_tacred(gold, predicted) == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    predicted[1] = NONE
    found = score_tacred(gold, predicted)
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["recall"] == 0.5
    assert found["f1"] == pytest.approx(4 / 7)


def test_predicting_no_relation_is_precise_and_finds_nothing():
    assert score_tacred(["per:age", NONE], [NONE, None]) == {"precision": 1.0, "recall": 0.0, "f1": 0.0}
    assert score_tacred([NONE], ["per:age"]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


GOLD = [
    *("Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Cause-Effect(e1,e2)"),
    *("Entity-Origin(e1,e2)", "Entity-Origin(e1,e2)", "Other", "Other"),
]
PREDICTED = [
    *("Cause-Effect(e1,e2)", "Cause-Effect(e1,e2)", "Other"),
    *("Entity-Origin(e1,e2)", "Cause-Effect(e2,e1)", "Other", "Entity-Origin(e2,e1)"),
]


def test_an_answer_of_the_wrong_direction_is_wrong_for_precision_and_recall():
    found = score_semeval2010(GOLD, PREDICTED)
    # Cause-Effect: 1 right of 3 predicted (one has the wrong direction, one is an Entity-Origin) and of 3 gold.
    cause = found.relations["Cause-Effect"]
    assert (cause.precision, cause.recall, cause.f1) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    # Entity-Origin: 1 right of 2 predicted (one is Other) and of 2 gold.
    assert found.relations["Entity-Origin"].f1 == 0.5
    assert found.macro.f1 == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert (found.micro.precision, found.micro.recall) == pytest.approx((2 / 5, 2 / 5))
    assert found.accuracy == pytest.approx(3 / 7)


def test_other_counts_neither_as_a_relation_nor_when_it_is_right():
    assert list(score_semeval2010(GOLD, PREDICTED).relations) == ["Cause-Effect", "Entity-Origin"]
    more = score_semeval2010([*GOLD, "Other"], [*PREDICTED, "Other"])
    assert more.macro == score_semeval2010(GOLD, PREDICTED).macro
    with pytest.raises(InputError, match="no relation to score"):
        score_semeval2010(["Other"], ["Other"])


def test_direction_may_be_ignored_or_make_relations_of_their_own():
    ignored = score_semeval2010(GOLD, PREDICTED, direction="ignored")
    assert ignored.relations["Cause-Effect"].f1 == pytest.approx(2 / 3)
    apart = score_semeval2010(GOLD, PREDICTED, direction="apart")
    assert list(apart.relations) == ["Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Entity-Origin(e1,e2)"]
    # Precision and recall: 1/2 and 1/2; 0 and 0; 1 and 1/2.
    assert [one.f1 for one in apart.relations.values()] == pytest.approx([1 / 2, 0, 2 / 3])


def test_the_mean_is_over_relations_that_gold_has_and_no_answer_is_other():
    found = score_semeval2010(["Cause-Effect(e1,e2)", "Other"], [None, "Message-Topic(e1,e2)"])
    assert list(found.relations) == ["Cause-Effect"]
    assert (found.macro.f1, found.accuracy) == (0, 0)
    assert undirected("Message-Topic(e2,e1)") == "Message-Topic"


def test_every_example_has_its_answer():
    for score in (score_tacred, score_semeval2010):
        with pytest.raises(InputError, match="1 predictions for 2 examples"):
            score(["a", "b"], ["a"])
        with pytest.raises(InputError, match="nothing to score"):
            score([], [])
