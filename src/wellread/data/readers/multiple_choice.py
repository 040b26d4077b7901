"""Multiple choice: a context, a question and several answers, one of them right, as in CosmosQA (Huang et al. 2019).

Its files, CSV or JSONL, have `id`, `context`, `question`, `answer0` … `answer3` and `label`; those of the test part
have no label. There may be any number of answers from two on. Scored by accuracy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wellread.data.splits import split_by
from wellread.data.tables import Form, Record, make_each, read_records, text_of
from wellread.errors import InputError
from wellread.evaluation.classification import accuracy
from wellread.io.files import write_atomically

_ANSWER = re.compile(r"answer\d+")


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with its answers; `label` is the index of the right one, None if it is secret."""

    id: str
    context: str
    question: str
    answers: tuple[str, ...]
    label: int | None


def read_choices(
    path: str | Path, *, form: Form | None = None, skipped: list[str] | None = None
) -> Iterator[ChoiceQuestion]:
    """Yield the questions of a CosmosQA file, plain or compressed."""
    return make_each(path, read_records(path, form), _question, skipped)


def write_choices(path: str | Path, predicted: Sequence[int]) -> None:
    """Write predictions for the leaderboard: the index of the answer, one per line."""
    with write_atomically(path) as file:
        file.write("".join(f"{place}\n" for place in predicted).encode())


def score_choices(questions: Sequence[ChoiceQuestion], predicted: Sequence[int]) -> dict[str, float]:
    """Return the accuracy."""
    gold = [question.label for question in questions if question.label is not None]
    if len(gold) < len(questions):
        raise InputError("some questions have no label to score against; is this a test file?")
    return {"accuracy": accuracy(gold, list(predicted))}


def split_choices(questions: Sequence[ChoiceQuestion], count: int) -> tuple[list[ChoiceQuestion], list[ChoiceQuestion]]:
    """Return (the rest, at least `count` for validation); a context has all its questions on one side."""
    return split_by(questions, count, lambda question: question.context)


def _question(record: Record, number: str) -> ChoiceQuestion:
    names = sorted(filter(_ANSWER.fullmatch, record), key=lambda name: int(name.removeprefix("answer")))
    if len(names) < 2 or names != [f"answer{place}" for place in range(len(names))]:
        raise InputError(f"the answers are {', '.join(names) or 'not there'}, expected answer0, answer1, …")
    label = record.get("label")
    if label is not None:
        places = [str(place) for place in range(len(names))]
        if str(label).strip() not in places:
            raise InputError(f"the label is {label!r}, expected one of {', '.join(places)}")
        label = int(label)
    return ChoiceQuestion(
        str(record.get("id") or number),
        text_of(record, "context"),
        text_of(record, "question"),
        tuple(text_of(record, name) for name in names),
        label,
    )
