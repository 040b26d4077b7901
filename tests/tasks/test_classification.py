"""Labels, numbers and relevance: losses as loops say, answers in the terms of the task."""

import math

import pytest

from tests.task_models import LABELLED, NUMBERS, PAIRS, SEGMENTER, TASKS, learner, teach
from wellread.data.readers.labelled import LabelledTask, LabelledText
from wellread.data.readers.relevance import RelevancePair
from wellread.errors import InputError
from wellread.evaluation.ranking import ESCI_GAINS, mean_ndcg, roc_auc
from wellread.tasks.classification import Labelling, Relevance


def first_batch(name):
    made = learner(*TASKS[name], batch=8)
    made.model.double()
    (batch,) = made.batches(0)
    return made, batch, made.model.head(made.model.states(batch), batch.inputs, batch.packing).tolist()


def test_a_text_is_one_input_and_a_pair_is_one_too():
    tokenized = TASKS["labels"][0].tokenize(SEGMENTER, LABELLED, learning=True)
    assert [[one.texts for one in some] for some in tokenized] == [
        [("the old mayor", "a river")],
        [("who is me",)],
        [("near the planet of avon in dover", "buy")],
    ]


def test_the_loss_of_labels_is_that_of_loops():
    made, batch, scores = first_batch("labels")
    total = 0.0
    for row, example in zip(scores, batch.examples, strict=True):
        total += math.log(sum(map(math.exp, row))) - row[example.label]
    assert float(made.loss(batch)["label"].detach()) == pytest.approx(total / 3, abs=1e-10)
    assert made.task.answers(made.model.head, made.model.states(batch), batch) == [
        row.index(max(row)) for row in scores
    ]


def test_numbers_are_learned_as_shares_and_answered_as_numbers():
    made, batch, scores = first_batch("numbers")
    total = sum((row[0] - (one.label - 1) / 4) ** 2 for row, one in zip(scores, batch.examples, strict=True))
    assert float(made.loss(batch)["number"].detach()) == pytest.approx(total / 3, abs=1e-6)
    found = made.task.answers(made.model.head, made.model.states(batch), batch)
    assert found == pytest.approx([1 + 4 * row[0] for row in scores], abs=1e-6)
    assert made.task.scores(NUMBERS, [[1.0], [4.0], [2.0]]).keys() == {"pearson", "spearman", "score"}


def test_numbers_without_bounds_are_learned_as_they_are():
    made = learner(Labelling(LabelledTask("any")), NUMBERS, batch=8)
    (batch,) = made.batches(0)
    assert batch.target.tolist() == [one.label for one in batch.examples]


def test_the_loss_and_the_gain_of_relevance_are_those_of_loops():
    made, batch, scores = first_batch("relevance")
    labels, total, gains = list(ESCI_GAINS), 0.0, []
    for row, pair in zip(scores, batch.examples, strict=True):
        whole = sum(map(math.exp, row))
        total -= math.log(math.exp(row[labels.index(pair.label)]) / whole)
        gains.append(sum(math.exp(score) / whole * ESCI_GAINS[label] for score, label in zip(row, labels, strict=True)))
    assert float(made.loss(batch)["label"].detach()) == pytest.approx(total / 4, abs=1e-10)
    assert made.task.answers(made.model.head, made.model.states(batch), batch) == pytest.approx(gains, abs=1e-6)


def test_relevance_is_scored_over_all_pairs_and_by_query():
    found = Relevance().scores(PAIRS, [[0.9], [0.2], [0.8], [0.7]])
    gains = [ESCI_GAINS[pair.label] for pair in PAIRS]
    queries = [pair.query for pair in PAIRS]
    assert found == {
        "auc": roc_auc([True, False, False, True], [0.9, 0.2, 0.8, 0.7]),
        "ndcg": mean_ndcg(queries, gains, [0.9, 0.2, 0.8, 0.7]),
    }
    assert found["auc"] == 0.75
    assert Relevance({"no": 0.0, "yes": 1.0}).right == "yes"
    assert Relevance({"no": 0.0, "yes": 1.0}, right="no").right == "no"


@pytest.mark.parametrize(
    ("task", "example"),
    [
        (Labelling(LabelledTask("two", ("x", "y"))), LabelledText("0", "who")),
        (Labelling(LabelledTask("number")), LabelledText("0", "who")),
        (Relevance(), RelevancePair("0", "who", "me", None)),
    ],
)
def test_what_has_no_label_is_answered_but_not_learned_from(task, example):
    made = learner(task, [example])
    assert len(made.answer(SEGMENTER, [example])[0]) == 1
    with pytest.raises(InputError, match="no label to train on"):
        made.batches(0)[0]


@pytest.mark.parametrize("name", ["labels", "numbers"])
def test_a_few_texts_are_learned_by_heart(name):
    made = learner(*TASKS[name])
    teach(made, 40)
    assert made.evaluate()["score"] > 0.95


def test_pairs_without_labels_cannot_be_scored():
    with pytest.raises(InputError, match="1 of 2 pairs have no label to score against"):
        Relevance().scores([PAIRS[0], RelevancePair("0", "who", "me", None)], [[0.5], [0.1]])
