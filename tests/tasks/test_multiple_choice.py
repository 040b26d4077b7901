"""Multiple choice: one input for each answer, and a softmax over those of a question."""

import math

import pytest
import torch

from tests.task_models import CHOICES, SEGMENTER, learner, teach
from wellread.data.readers.multiple_choice import ChoiceQuestion
from wellread.errors import InputError
from wellread.tasks.multiple_choice import Choosing


def test_an_input_is_the_context_and_the_question_with_its_answer():
    tokenized = Choosing().tokenize(SEGMENTER, CHOICES, learning=True)
    assert [len(some) for some in tokenized] == [2, 3, 4]
    assert tokenized[1][2].texts == ("the old city is near cork .", "where is the city ? near cork")


def test_a_long_context_is_cut_and_the_answer_stays():
    question = ChoiceQuestion("0", "the river " * 100, "where ?", ("in avon", "in brno"), 0)
    (tokenized,) = Choosing().tokenize(SEGMENTER, [question], learning=True)
    assert [len(one) for one in tokenized] == [48, 48]
    assert [one.words[-1] for one in tokenized] == ["avon", "brno"]


def test_the_loss_is_that_of_loops():
    made = learner(Choosing(), CHOICES, batch=3)
    made.model.double()
    (batch,) = made.batches(0)
    scores = made.model.head(made.model.states(batch), batch.inputs, batch.packing)[:, 0].tolist()
    total = 0.0
    for place, question in enumerate(batch.examples):
        own = [score for score, of in zip(scores, batch.example_of.tolist(), strict=True) if of == place]
        assert len(own) == len(question.answers)
        total -= own[question.label] - math.log(sum(math.exp(score) for score in own))
    assert float(made.loss(batch)["choice"].detach()) == pytest.approx(total / 3, abs=1e-10)


def test_the_best_answer_is_chosen_the_first_of_equals():
    task = Choosing()
    answers = [[0.5, 0.5], [-3.0, -2.0, -1.0], [1.0, 2.0, 0.0, 2.0]]
    assert task.choose(answers) == [0, 2, 1]
    assert task.scores(CHOICES, answers) == {"accuracy": 1}
    assert task.scores(CHOICES, [[0.0, 1.0], *answers[1:]]) == {"accuracy": pytest.approx(2 / 3)}


def test_questions_without_label_are_answered_but_not_learned_from():
    secret = ChoiceQuestion("0", "the river", "where ?", ("in avon", "in brno"), None)
    made = learner(Choosing(), CHOICES)
    assert len(made.answer(SEGMENTER, [secret])[0]) == 2
    with pytest.raises(InputError, match="no label to train on"):
        learner(Choosing(), [secret], CHOICES).batches(0)[0]


@pytest.mark.parametrize("knowing", [False, True])
def test_a_few_questions_are_learned_by_heart(knowing):
    made = learner(Choosing(), CHOICES, knowing=knowing)
    teach(made, 25)
    assert made.evaluate() == {"accuracy": 1}
    assert float(made.loss(made.batches(0)[0])["choice"].detach()) < 0.3
    assert torch.isfinite(made.model.head.out.weight).all()
