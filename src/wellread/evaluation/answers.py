"""Scores of textual answers: exact match and F1, by the rules of SQuAD 1.1 and 2.0.

Both compare normalised answers: lower case, without punctuation and articles, single blanks. The best gold answer
counts. Scores are from 0 to 1; the official scripts print per cent.

1.1 (Rajpurkar et al. 2016): every question has an answer. Open-domain question answering (Quasar-T, SearchQA) is scored
in the same way. 2.0 (2018): a question without answer is right only if the prediction is empty; gold answers that are
empty after normalisation are ignored. With a no-answer score per question, an answer counts as empty if its score is
above a threshold.

Unlike the official script of 2.0: a question without prediction is wrong in 2.0 as in 1.1, not left out; and the best
threshold is attainable, also if no-answer scores are equal.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from wellread.errors import InputError

Version = Literal["1.1", "2.0"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """Exact match and F1 over some questions."""

    exact: float
    f1: float
    questions: int


@dataclass(frozen=True, slots=True)
class BestThreshold:
    """Best score over thresholds for no answer, and its threshold."""

    exact: float
    exact_threshold: float
    f1: float
    f1_threshold: float


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Scores of all questions, of those with and without answer if there are both, and the number of missing ones."""

    all: AnswerScore
    with_answer: AnswerScore | None
    without_answer: AnswerScore | None
    missing: int
    """Number of questions without a prediction; they count as wrong."""
    best: BestThreshold | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON."""
        return asdict(self)


def normalise(answer: str) -> str:
    """Return the answer in lower case without punctuation and articles: "The  Eiffel-Tower!" -> "eiffeltower"."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, gold: str) -> float:
    """Return 1 if both are equal after normalisation, else 0."""
    return float(normalise(predicted) == normalise(gold))


def word_f1(predicted: str, gold: str, *, version: Version = "1.1") -> float:
    """Return F1 of the shared words; 0 if one has no words, but in 2.0 two empty answers are equal."""
    first, second = normalise(predicted).split(), normalise(gold).split()
    if version == "2.0" and not (first and second):
        return float(first == second)
    shared = (Counter(first) & Counter(second)).total()
    return 2 * shared / (len(first) + len(second)) if shared else 0.0


def best_exact(predicted: str, golds: Collection[str]) -> float:
    """Return the exact match with the best gold answer."""
    return max((exact_match(predicted, gold) for gold in golds), default=0.0)


def best_f1(predicted: str, golds: Collection[str], *, version: Version = "1.1") -> float:
    """Return F1 with the best gold answer."""
    return max((word_f1(predicted, gold, version=version) for gold in golds), default=0.0)


def score_answers(
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    *,
    version: Version = "1.1",
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> AnswerScores:
    """Score predictions by question id; predictions for other questions are ignored.

    `no_answer` (2.0) is a score per question: above `threshold` the prediction counts as empty. The best thresholds are
    returned too.
    """
    if not gold:
        raise InputError("there are no questions to score; is the file empty?")
    if no_answer is not None and version == "1.1":
        raise InputError('scores of "no answer" are given, but in SQuAD 1.1 every question has one; score as 2.0')
    if no_answer is not None and (absent := gold.keys() - no_answer.keys()):
        raise InputError(f"{len(absent)} questions have no no-answer score, such as {min(absent)}; give one for each")
    golds = {name: _golds(answers, version) for name, answers in gold.items()}
    measures: tuple[Callable[[str, Collection[str]], float], ...] = (
        best_exact,
        lambda answer, golds: best_f1(answer, golds, version=version),
    )
    raw = [
        {name: measure(predicted[name], golds[name]) if name in predicted else 0.0 for name in gold}
        for measure in measures
    ]
    answerable = {name for name in gold if golds[name] != [""]}
    final, best = raw, None
    if no_answer is not None:
        final = [
            {name: float(name not in answerable) if no_answer[name] > threshold else each[name] for name in gold}
            for each in raw
        ]
        exact, f1 = (_best_threshold(each, no_answer, answerable) for each in raw)
        best = BestThreshold(*exact, *f1)
    both = version == "2.0" and 0 < len(answerable) < len(gold)
    return AnswerScores(
        _mean(final, gold),
        _mean(final, answerable) if both else None,
        _mean(final, gold.keys() - answerable) if both else None,
        sum(name not in predicted for name in gold),
        best,
    )


def score_open_answers(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> dict[str, float]:
    """Return exact match and F1 as in SQuAD 1.1, and SearchQA's own two metrics.

    These are the exact match of questions whose first answer is one word (`unigram_exact`) and the F1 of the others
    (`ngram_f1`); NaN if there are none.
    """
    scores = score_answers(gold, predicted)
    short = {name: answers for name, answers in gold.items() if len(normalise("".join(answers[:1])).split()) <= 1}
    long = {name: answers for name, answers in gold.items() if name not in short}
    return {
        "exact": scores.all.exact,
        "f1": scores.all.f1,
        "unigram_exact": score_answers(short, predicted).all.exact if short else math.nan,
        "ngram_f1": score_answers(long, predicted).all.f1 if long else math.nan,
    }


def _golds(answers: Sequence[str], version: Version) -> list[str]:
    if version == "1.1":
        return list(answers)
    return [answer for answer in answers if normalise(answer)] or [""]


def _best_threshold(
    scores: Mapping[str, float], no_answer: Mapping[str, float], answerable: Collection[str]
) -> tuple[float, float]:
    """Return the highest mean score and its threshold, adding answers in the order of increasing no-answer score.

    An answer to an unanswerable question loses the point for the empty answer.
    """
    total = float(sum(name not in answerable for name in scores))
    best, at = total, 0.0
    order = sorted(scores, key=lambda name: no_answer[name])
    for place, name in enumerate(order):
        total += scores[name] - (name not in answerable)
        is_last = place + 1 == len(order) or no_answer[order[place + 1]] != no_answer[name]
        if is_last and total > best:
            best, at = total, no_answer[name]
    return best / len(order), at


def _mean(scores: Sequence[Mapping[str, float]], names: Collection[str]) -> AnswerScore:
    exact, f1 = (math.fsum(each[name] for name in names) / len(names) for each in scores)
    return AnswerScore(exact, f1, len(names))
