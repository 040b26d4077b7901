"""Extractive question answering: spans in the characters of a context, however it is cut into windows."""

import math
import random

import numpy as np
import pytest
import torch

from tests.map_data import byte_level
from tests.task_models import CONTEXT, QUESTIONS, SEGMENTER, learner, span_question, teach, tiny_encoder, tiny_network
from wellread.data.readers.squad import Answer, SpanQuestion
from wellread.errors import UsageError
from wellread.tasks.extractive_qa import ExtractiveQa, Span, WindowAnswer, answerable, best_spans, gold_tokens, shorten
from wellread.tasks.learner import ask
from wellread.tasks.task import make_batch
from wellread.text.tokenization import TextTokenizer

TASK = ExtractiveQa("2.0", longest=18, stride=5, longest_answer=4)


def draw_scores(windows, seed=0):
    """Random scores of begins and ends, -inf where no answer can be."""
    torch.manual_seed(seed)
    width = max(map(len, windows))
    both = torch.full((2, len(windows), width), -math.inf, dtype=torch.float64)
    for row, one in enumerate(windows):
        there = answerable(one)
        there[0] = True
        both[:, row, : len(one)][:, there] = torch.randn(2, int(there.sum()), dtype=torch.float64)
    return both


def test_only_pieces_of_the_passage_can_be_answers():
    (one,) = SEGMENTER.tokenize_windows("who is Avon ?", "Avon is me", longest=30, stride=4)
    tokens = [SEGMENTER.tokenizer.id_to_token(id) for id, there in zip(one.ids, answerable(one), strict=True) if there]
    assert tokens == ["avon", "is", "me"]
    head = TASK.head(tiny_encoder()).eval()
    batch = make_batch(QUESTIONS, TASK.tokenize(SEGMENTER, QUESTIONS, learning=False), {})
    for scores in head(torch.randn(batch.tokens, 16), batch.inputs, batch.packing):
        for row, window in zip(scores, batch.inputs, strict=True):
            expected = [0, *np.flatnonzero(answerable(window)).tolist()]
            assert row.isfinite().nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize("tokenizer", [SEGMENTER.tokenizer, byte_level()], ids=["word pieces", "bytes"])
def test_gold_pieces_have_the_characters_of_the_answer_in_the_windows_that_have_all_of_it(tokenizer):
    segmenter, chance = TextTokenizer(tokenizer), random.Random(0)
    context = "The  mayor of Ävon, was\tborn in Brno — near the old river of 東京 !"
    question, found = "who", 0
    windows = segmenter.tokenize_windows(question, context, longest=15, stride=5)
    assert len(windows) > 1
    read = [set(_letters(one)) for one in windows]
    for _ in range(100):
        start = chance.randrange(len(context))
        end = chance.randint(start + 1, min(len(context), start + 12))
        # Naively: every letter of the answer that any window has a piece for must have one here.
        letters = set().union(*read) & set(range(start, end))
        for one, here, gold in zip(windows, read, gold_tokens(windows, start, end), strict=True):
            assert (gold is not None) == bool(letters and letters <= here)
            if gold is not None:
                found += 1
                low, high = one.spans[gold[0], 0], one.spans[gold[1], 1]
                assert low <= min(letters)
                assert max(letters) < high
                assert one.spans[gold[0], 1] > start
                assert one.spans[gold[1], 0] < end
    assert found > 20


def _letters(window):
    return [at for token in np.flatnonzero(answerable(window)) for at in range(*window.spans[token].tolist())]


def test_the_best_spans_are_those_of_loops():
    windows = SEGMENTER.tokenize_windows("who ?", CONTEXT, longest=16, stride=4)
    assert len(windows) > 1
    begins, ends = draw_scores(windows)
    found = best_spans(begins, ends, windows, longest=4, count=7)
    for row, one in enumerate(windows):
        expected = []
        for first in np.flatnonzero(answerable(one)).tolist():
            for last in np.flatnonzero(answerable(one)).tolist():
                if first <= last < first + 4:
                    score = float(begins[row, first] + ends[row, last])
                    expected.append(Span(score, int(one.spans[first, 0]), int(one.spans[last, 1])))
        expected.sort(key=lambda span: -span.score)
        assert list(found[row]) == expected[:7]


def test_the_loss_is_that_of_loops():
    made = learner(TASK, QUESTIONS, batch=len(QUESTIONS))
    made.model.double()
    (batch,) = made.batches(0)
    assert len(batch.inputs) > len(QUESTIONS)
    states = made.model.states(batch)
    logits = made.model.head.out(states)
    total, begin, golds = 0.0, 0, []
    for one, example in zip(batch.inputs, batch.example_of.tolist(), strict=True):
        question = batch.examples[example]
        there = [0, *np.flatnonzero(answerable(one)).tolist()]
        gold = (0, 0)
        for answer in question.answers:
            end = answer.start + len(answer.text)
            inside = [at for at in there[1:] if one.spans[at, 0] < end and one.spans[at, 1] > answer.start]
            if inside and one.spans[inside[0], 0] == answer.start and one.spans[inside[-1], 1] == end:
                gold = (inside[0], inside[-1])
        golds.append(gold)
        for side in (0, 1):
            own = logits[begin : begin + len(one), side]
            total += float((own[there].logsumexp(0) - own[gold[side]]).detach())
        begin += len(one)
    assert batch.target.tolist() == [list(gold) for gold in golds]
    assert {gold != (0, 0) for gold in golds} == {True, False}
    expected = total / 2 / len(batch.inputs)
    assert float(made.loss(batch)["span"].detach()) == pytest.approx(expected, abs=1e-10)


def test_answers_are_characters_of_the_context_as_it_is_written():
    context = "Her  Náme —\tÄvon 東京, “Brno”!"
    question = SpanQuestion("0", "", context, "who ?", (Answer("Ävon", context.index("Ävon")),))
    task = ExtractiveQa(longest=14, stride=3, longest_answer=3)
    answers = ask(task, tiny_network(task), SEGMENTER, [question])
    assert len(answers[0]) > 1
    for span in task.ranked(answers[0]):
        text = context[span.start : span.end]
        assert text
        assert text == text.strip()
    assert task.texts([question], answers)["0"] in context


def test_the_best_of_all_windows_answers_and_each_span_counts_once():
    context = "avon brno cork"
    question = span_question(0, context, "who ?", "brno")
    some = [
        WindowAnswer((Span(1.0, 0, 4), Span(0.5, 5, 9)), none=0.0),
        WindowAnswer((Span(2.0, 5, 9), Span(-1.0, 10, 14)), none=3.0),
    ]
    task = ExtractiveQa()
    assert task.ranked(some) == [Span(2.0, 5, 9), Span(1.0, 0, 4), Span(-1.0, 10, 14)]
    assert task.texts([question], [some]) == {"0": "brno"}
    assert task.scores([question], [some]) == {"exact": 1, "f1": 1}
    assert ExtractiveQa(best=1).ranked(some) == [Span(2.0, 5, 9)]


def test_no_answer_is_what_every_window_is_sure_of():
    some = [WindowAnswer((Span(1.0, 0, 4),), none=1.5), WindowAnswer((Span(2.0, 0, 4),), none=9.0)]
    task = ExtractiveQa("2.0")
    assert task.doubt(some) == -0.5
    question = span_question(0, "avon brno", "who ?", "avon")
    assert task.texts([question], [some]) == {"0": "avon"}
    assert ExtractiveQa("2.0", threshold=-1.0).texts([question], [some]) == {"0": ""}
    assert ExtractiveQa("1.1", threshold=-1.0).texts([question], [some]) == {"0": "avon"}
    assert task.doubt([]) == math.inf


def test_scores_of_two_point_zero_tell_questions_with_and_without_answer():
    yes = span_question("yes", "avon brno", "who ?", "avon")
    no = SpanQuestion("no", "", "avon brno", "where ?", (), impossible=True)
    sure = [WindowAnswer((Span(2.0, 0, 4),), none=0.0)]
    unsure = [WindowAnswer((Span(2.0, 0, 4),), none=1.0)]
    found = ExtractiveQa("2.0").scores([yes, no], [sure, unsure])
    assert found == {
        "exact": 0.5,
        "f1": 0.5,
        "f1_with_answer": 1,
        "f1_without_answer": 0,
        "best_exact": 1,
        "best_f1": 1,
    }
    assert ExtractiveQa("2.0", threshold=-1.5).scores([yes, no], [sure, unsure])["f1"] == 1


def test_what_has_no_answer_with_a_place_is_answered_but_not_learned_from():
    misplaced = SpanQuestion("0", "", "the river", "who ?", (Answer("avon", None),))
    too_long = span_question(1, CONTEXT, "who ?", CONTEXT)
    learned = ExtractiveQa(longest=18, stride=5).tokenize(SEGMENTER, [misplaced, too_long, QUESTIONS[3]], learning=True)
    assert [len(some) for some in learned] == [0, 0, 1]
    read = ExtractiveQa(longest=18, stride=5).tokenize(SEGMENTER, [misplaced, too_long], learning=False)
    assert all(read)


def test_an_empty_context_has_no_answer():
    question = SpanQuestion("0", "", "", "who ?", (), impossible=True)
    model = tiny_network(TASK)
    (answers,) = ask(TASK, model, SEGMENTER, [question])
    assert [one.spans for one in answers] == [()]
    assert TASK.texts([question], [answers]) == {"0": ""}


def test_an_overlong_question_is_shortened():
    tokenizer = SEGMENTER.tokenizer
    assert shorten(tokenizer, ["who is the mayor ?", "who"], 3) == ["who is the", "who"]
    long = span_question(0, "avon is me", "who is " * 40, "avon")
    task = ExtractiveQa(longest=30, stride=4, longest_question=8)
    ((window,),) = task.tokenize(SEGMENTER, [long], learning=True)
    assert window.texts[0] == "who is who is who is who is"
    with pytest.raises(UsageError, match="a shorter question"):
        ExtractiveQa(longest=30, stride=4).tokenize(SEGMENTER, [long], learning=True)


def test_windows_that_the_encoder_has_no_room_for_are_refused():
    with pytest.raises(UsageError, match=r"384 tokens.* 64 positions"):
        ExtractiveQa().head(tiny_encoder())


@pytest.mark.parametrize("knowing", [False, True])
def test_a_few_questions_are_learned_by_heart(knowing):
    made = learner(TASK, QUESTIONS, knowing=knowing)
    teach(made, 30, rate=1e-2)
    assert made.evaluate()["exact"] == 1
    assert made.task.texts(made.dev, made.answer(SEGMENTER, made.dev))["0"] == "mayor of Avon"
