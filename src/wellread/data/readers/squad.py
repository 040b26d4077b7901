"""Questions answered by a span of a text, in the files of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018).

Every answer must be in its context at the given offset, in code points. Scored by `evaluation.answers`; a file of
predictions is an object {question id: answer}, with "" for "no answer".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellread.data.splits import split_by
from wellread.data.tables import read_json
from wellread.errors import InputError
from wellread.evaluation.answers import AnswerScores, Version, score_answers
from wellread.io.files import path_name, write_atomically


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and its start in the context; None if it is not found there."""

    text: str
    start: int | None


@dataclass(frozen=True, slots=True)
class SpanQuestion:
    """A question about a context, with the answers of several annotators."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    impossible: bool = False
    """SQuAD 2.0: the context has no answer."""


def read_squad(path: str | Path, *, misplaced: list[str] | None = None) -> Iterator[SpanQuestion]:
    """Yield the questions of a SQuAD file, plain or compressed.

    An answer that is not in the context at its offset is an error. With a list as `misplaced`, it is kept without its
    start instead (for scoring, but not for training), and the list gets the messages.
    """
    data = read_json(path)
    articles = _part(data, "data", list, path_name(path))
    for i, article in enumerate(articles):
        where = f"{path_name(path)}, data[{i}]"
        for j, paragraph in enumerate(_part(article, "paragraphs", list, where)):
            place = f"{where}.paragraphs[{j}]"
            context = _part(paragraph, "context", str, place)
            for k, asked in enumerate(_part(paragraph, "qas", list, place)):
                yield _question(asked, str(article.get("title", "")), context, f"{place}.qas[{k}]", misplaced)


def squad_version(path: str | Path) -> Version:
    """Return the version whose rules apply: 2.0 if a question is marked as possible or impossible, or by the header."""
    data = read_json(path)
    if str(data.get("version", "") if isinstance(data, dict) else "").removeprefix("v").startswith("2"):
        return "2.0"
    asked = (
        one
        for article in _part(data, "data", list, path_name(path))
        for paragraph in article.get("paragraphs", ())
        for one in paragraph.get("qas", ())
    )
    return "2.0" if any("is_impossible" in one for one in asked) else "1.1"


def read_predictions(path: str | Path) -> dict[str, str]:
    """Read the answers of a file {question id: answer}."""
    data = read_json(path)
    if not isinstance(data, dict) or not all(isinstance(answer, str) for answer in data.values()):
        raise InputError(f"{path_name(path)}: expected an object with the answer for each question id")
    return data


def read_no_answers(path: str | Path) -> dict[str, float]:
    """Read the probability of no answer for each question: a file {question id: number}."""
    data = read_json(path)
    if not isinstance(data, dict) or not all(type(number) in (int, float) for number in data.values()):
        raise InputError(f"{path_name(path)}: expected an object with a number for each question id")
    return {name: float(number) for name, number in data.items()}


def write_predictions(path: str | Path, predicted: Mapping[str, str]) -> None:
    """Write answers as the official scripts and `read_predictions` take them."""
    with write_atomically(path) as file:
        file.write(json.dumps(dict(predicted), ensure_ascii=False, indent=1).encode())


def score_squad(
    questions: Sequence[SpanQuestion],
    predicted: Mapping[str, str],
    *,
    version: Version,
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> AnswerScores:
    """Score predictions by question id, by the rules of a version of SQuAD."""
    gold = {question.id: [answer.text for answer in question.answers] for question in questions}
    return score_answers(gold, predicted, version=version, no_answer=no_answer, threshold=threshold)


def evaluate_squad(
    data: str | Path, predictions: str | Path, no_answers: str | Path | None = None, *, threshold: float = 1.0
) -> AnswerScores:
    """Score a file of predictions against a SQuAD file, as the official script of its version does."""
    return score_squad(
        list(read_squad(data, misplaced=[])),
        read_predictions(predictions),
        version=squad_version(data),
        no_answer=None if no_answers is None else read_no_answers(no_answers),
        threshold=threshold,
    )


def split_squad(questions: Sequence[SpanQuestion], count: int) -> tuple[list[SpanQuestion], list[SpanQuestion]]:
    """Return (the rest, at least `count` for validation); an article (a context, if untitled) is on one side."""
    return split_by(questions, count, lambda question: question.title or question.context)


def _question(data: Any, title: str, context: str, where: str, misplaced: list[str] | None) -> SpanQuestion:
    name = str(_part(data, "id", (str, int), where))
    where = f"{where} ({name})"
    answers = []
    for given in data.get("answers") or ():
        text, start = _part(given, "text", str, where), _part(given, "answer_start", int, where)
        if start < 0 or not context.startswith(text, start):
            message = (
                f"{where}: the answer {text!r} is said to start at {start}, "
                f"but there is {context[max(start, 0) : max(start, 0) + len(text)]!r}"
            )
            if misplaced is None:
                raise InputError(f"{message}; mend its start, counted in characters")
            misplaced.append(message)
            start = None
        answers.append(Answer(text, start))
    impossible = bool(data.get("is_impossible", False))
    if impossible and answers:
        raise InputError(f"{where} is marked as impossible, but has an answer; mend one of the two")
    return SpanQuestion(name, title, context, _part(data, "question", str, where), tuple(answers), impossible)


def _part(data: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise InputError(f'{where}: expected an object with "{key}"; is this a SQuAD file?')
    return value
