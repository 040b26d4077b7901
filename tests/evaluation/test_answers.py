"""Exact match and F1 of answers by SQuAD's rules, against a loop that follows them to the letter."""

import math
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.errors import InputError
from wellread.evaluation.answers import (
    best_f1,
    exact_match,
    normalise,
    score_answers,
    score_open_answers,
    word_f1,
)

WORDS = st.lists(st.sampled_from(["the", "A", "Riga", "riga", "big", "U.S.", "!", "an", "sea"]), max_size=4).map(
    " ".join
)
QUESTIONS = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(WORDS, max_size=3), min_size=1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("an apple a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("“Riga”", "“riga”"),  # only ASCII punctuation goes
        ("the", ""),
        ("İstanbul\u00a0tea", "i̇stanbul tea"),
    ],
)
def test_answers_are_normalised_as_in_the_official_script(answer, expected):
    assert normalise(answer) == expected


def naive_words(text):
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def naive_f1(predicted, gold, version):
    ours, theirs = naive_words(predicted), naive_words(gold)
    if version == "2.0" and (not ours or not theirs):
        return float(ours == theirs)
    left, shared = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


@given(WORDS, WORDS, st.sampled_from(["1.1", "2.0"]))
def test_f1_is_that_of_a_loop_over_words(predicted, gold, version):
    assert word_f1(predicted, gold, version=version) == pytest.approx(naive_f1(predicted, gold, version))
    assert exact_match(predicted, gold) == (naive_words(predicted) == naive_words(gold))


def test_repeated_words_count_as_often_as_both_have_them():
    assert word_f1("new york new york", "new york") == pytest.approx(2 * 0.5 / 1.5)


def test_the_gold_answer_that_fits_best_counts():
    assert best_f1("Riga", ["Latvia", "Riga city", "the Riga"]) == 1
    assert best_f1("Riga", []) == 0


def test_a_question_without_prediction_is_wrong_and_reported():
    scores = score_answers({"a": ["Riga"], "b": ["Oslo"]}, {"a": "riga", "x": "ignored"})
    assert (scores.all.exact, scores.all.f1, scores.all.questions, scores.missing) == (0.5, 0.5, 2, 1)
    assert scores.with_answer is None


def test_no_answer_is_right_only_where_there_is_none():
    gold = {"a": ["Riga"], "b": [], "c": [], "d": ["the"]}
    scores = score_answers(gold, {"a": "Riga", "b": "", "c": "Oslo", "d": ""}, version="2.0")
    # d's only answer normalises to nothing: it has none.
    assert scores.all.exact == 0.75
    assert (scores.with_answer.exact, scores.with_answer.questions) == (1, 1)
    assert (scores.without_answer.exact, scores.without_answer.questions) == (pytest.approx(2 / 3), 3)
    assert scores.to_dict()["best"] is None


@given(QUESTIONS, st.data())
def test_no_answer_scores_work_as_thresholds(gold, data):
    predicted = {name: data.draw(WORDS) for name in gold}
    chances = {name: data.draw(st.integers(0, 4)) / 4 for name in gold}
    threshold = data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))

    def scored(at):
        silent = {name: "" if chances[name] > at else answer for name, answer in predicted.items()}
        return score_answers(gold, silent, version="2.0").all

    scores = score_answers(gold, predicted, version="2.0", no_answer=chances, threshold=threshold)
    assert (scores.all.exact, scores.all.f1) == pytest.approx((scored(threshold).exact, scored(threshold).f1))
    # The best threshold is the best of all that make a difference, and gives what it says.
    reachable = [scored(at) for at in (-1.0, 0.0, 0.25, 0.5, 0.75, 1.0)]
    assert scores.best.exact == pytest.approx(max(one.exact for one in reachable))
    assert scores.best.f1 == pytest.approx(max(one.f1 for one in reachable))
    if scores.best.exact_threshold > 0:
        assert scored(scores.best.exact_threshold).exact == pytest.approx(scores.best.exact)


def test_open_answers_are_reported_by_length_too():
    gold = {"a": ["Riga"], "b": ["the sea", "ocean"], "c": ["big red bus"]}
    scores = score_open_answers(gold, {"a": "riga!", "b": "ocean", "c": "red bus"})
    assert scores["exact"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx((1 + 1 + 0.8) / 3)
    assert scores["unigram_exact"] == 1
    assert scores["ngram_f1"] == pytest.approx(0.8)
    assert math.isnan(score_open_answers({"a": ["Riga"]}, {})["ngram_f1"])


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(InputError, match="no questions"):
        score_answers({}, {})
    with pytest.raises(InputError, match=r"score as 2\.0"):
        score_answers({"a": ["x"]}, {"a": "x"}, no_answer={"a": 0.5})
    with pytest.raises(InputError, match="such as b"):
        score_answers({"a": ["x"], "b": []}, {}, version="2.0", no_answer={"a": 0.5})
