"""Open-domain question answering: passages are ranked, and read; which hold the answer is found by looking."""

import math

import pytest
import torch

from tests.task_models import OPEN, SEGMENTER, learner, teach, tiny_network
from wellread.data.readers.open_qa import OpenQuestion
from wellread.errors import UsageError
from wellread.tasks.extractive_qa import Span, answerable
from wellread.tasks.learner import ask
from wellread.tasks.open_qa import OpenQa, PassageAnswer

TASK = OpenQa(longest=20, stride=4)


def test_every_place_where_an_answer_stands_is_gold():
    (windows, _, _) = TASK.tokenize(SEGMENTER, OPEN, learning=True)
    assert [one.passage for one in windows] == [0, 1, 2]
    assert [
        [one.texts[1][one.spans[first, 0] : one.spans[last, 1]] for first, last in one.golds] for one in windows
    ] == [[], ["Avon", "avon"], []]
    assert not any(one.golds for some in TASK.tokenize(SEGMENTER, OPEN, learning=False) for one in some)


def test_a_long_passage_is_read_in_windows_and_ranked_by_the_best():
    long = OpenQuestion("0", "who ?", ("avon",), ("me", "the river of " * 10 + "avon"))
    (windows,) = TASK.tokenize(SEGMENTER, [long], learning=True)
    assert [one.passage for one in windows] == [0, 1, 1, 1]
    assert [len(one.golds) for one in windows] == [0, 0, 0, 1]
    some = [PassageAnswer(0, 1.0, ()), PassageAnswer(1, 0.0, ()), PassageAnswer(1, 2.0, ()), PassageAnswer(2, 1.0, ())]
    assert TASK.rank(some) == [1, 0, 2]


def test_questions_whose_passages_hold_no_answer_are_not_learned_from_but_answered():
    lost = OpenQuestion("0", "who ?", ("avon",), ("me", "a river"))
    assert TASK.tokenize(SEGMENTER, [lost], learning=True) == [[]]
    ((first, second),) = ask(TASK, tiny_network(TASK), SEGMENTER, [lost])
    assert (first.passage, second.passage) == (0, 1)


def test_some_passages_are_drawn_up_to_half_of_which_hold_the_answer():
    many = OpenQuestion("0", "who ?", ("avon",), (*("the avon",) * 6, *("a river",) * 9))
    (windows,) = TASK.tokenize(SEGMENTER, [many], learning=True)
    task, drawn = OpenQa(sampled=5), set()
    torch.manual_seed(0)
    for _ in range(40):
        some = task.draw(many, windows, learning=True)
        assert [bool(one.golds) for one in some] == [True, True, False, False, False]
        drawn.update(one.passage for one in some)
    assert drawn == set(range(15))
    torch.manual_seed(0)
    first = [one.passage for one in task.draw(many, windows, learning=True)]
    torch.manual_seed(0)
    assert [one.passage for one in task.draw(many, windows, learning=True)] == first
    assert task.draw(many, windows, learning=False) is windows


@pytest.mark.parametrize(("holding", "others", "expected"), [(6, 1, (4, 1)), (1, 9, (1, 4)), (2, 0, (2, 0))])
def test_where_one_kind_is_rare_there_is_more_of_the_other(holding, others, expected):
    question = OpenQuestion("0", "who ?", ("avon",), (*("the avon",) * holding, *("a river",) * others))
    (windows,) = TASK.tokenize(SEGMENTER, [question], learning=True)
    some = OpenQa(sampled=5).draw(question, windows, learning=True)
    assert (sum(bool(one.golds) for one in some), sum(not one.golds for one in some)) == expected


def test_the_loss_is_that_of_loops():
    made = learner(TASK, OPEN, batch=3)
    made.model.double()
    (batch,) = made.batches(0)
    states = made.model.states(batch)
    scores = made.model.head.passage(states, batch.inputs, batch.packing)[:, 0].tolist()
    logits = made.model.head.span.out(states)
    passage, spans, begin = 0.0, [], 0
    for place in range(3):
        own = [number for number, of in enumerate(batch.example_of.tolist()) if of == place]
        holding = [number for number in own if batch.inputs[number].golds]
        assert holding
        passage -= math.log(sum(math.exp(scores[n]) for n in holding) / sum(math.exp(scores[n]) for n in own))
    for one in batch.inputs:
        there = answerable(one)
        there[0] = True
        rows = [logits[begin : begin + len(one), side].tolist() for side in (0, 1)]
        total = [sum(math.exp(value) for value, use in zip(row, there, strict=True) if use) for row in rows]
        if one.golds:
            chances = (
                math.exp(rows[0][first]) / total[0] * math.exp(rows[1][last]) / total[1] for first, last in one.golds
            )
            spans.append(-math.log(sum(chances)))
        begin += len(one)
    assert max(len(one.golds) for one in batch.inputs) > 1
    found = {name: float(part.detach()) for name, part in made.loss(batch).items()}
    assert found == pytest.approx({"passage": passage / 3, "span": sum(spans) / len(spans)}, abs=1e-10)


def test_the_answer_has_the_highest_score_of_passage_and_span_together():
    answers = [
        PassageAnswer(0, 2.0, (Span(-5.0, 0, 3),)),
        PassageAnswer(1, 1.0, (Span(-1.0, 13, 17),)),
        PassageAnswer(2, 0.0, (Span(-0.5, 0, 1),)),
    ]
    assert TASK.texts(OPEN[:1], [answers]) == {"0": "Avon"}
    found = TASK.scores(OPEN[:1], [answers])
    assert found == {"exact": 1, "f1": 1, "unigram_exact": 1, "recall@1": 0, "recall@5": 1, "recall@20": 1}


def test_a_question_without_passages_has_an_empty_answer():
    bare = OpenQuestion("0", "who ?", ("avon",), ())
    answers = ask(TASK, tiny_network(TASK), SEGMENTER, [bare, OPEN[0]])
    assert answers[0] == []
    assert TASK.texts([bare], answers[:1]) == {"0": ""}
    assert TASK.scores([bare], answers[:1])["recall@5"] == 0


def test_only_the_first_passages_are_read_if_so_asked():
    (windows, *_) = OpenQa(longest=20, stride=4, most_passages=2).tokenize(SEGMENTER, OPEN, learning=False)
    assert [one.passage for one in windows] == [0, 1]


def test_one_passage_alone_has_nothing_to_be_distinguished_from():
    with pytest.raises(UsageError, match="2 or more"):
        OpenQa(sampled=1)


@pytest.mark.parametrize("knowing", [False, True])
def test_a_few_questions_are_learned_by_heart(knowing):
    made = learner(TASK, OPEN, knowing=knowing)
    teach(made, 30, rate=1e-2)
    scores = made.evaluate()
    assert scores["exact"] == scores["recall@1"] == 1
