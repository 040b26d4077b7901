"""Cloze questions about the entities of a passage, in the files of ReCoRD (Zhang et al. 2018).

    {"version": …, "data": [{"id", "passage": {"text", "entities": [{"start", "end"}]}, "qas": [{"id", "query",
     "answers": [{"start", "end", "text"}]}]}]}

`end` is the last character, inclusive. The query has one "@placeholder", which stands for an entity of the passage.
SuperGLUE has the same with one passage per line, and numbers as `idx` instead of ids: one for the passage and one for
each question, which is its id; as {"passage": 3, "query": 7} they are the id "3-7". Test files have no answers.

A broken passage or question is an `InputError` that names its location; with a list as `skipped`, it gets the message
and the question is left out. Scored as by the official script, which is that of SQuAD 1.1: exact match and F1 with the
best answer (`evaluation.answers`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wellread.data.readers.squad import read_predictions
from wellread.data.splits import split_by
from wellread.data.tables import read_json, read_json_drafts
from wellread.document import short
from wellread.errors import InputError
from wellread.evaluation.answers import AnswerScores, score_answers
from wellread.io.files import make_or_skip, path_name, read_lines

Span = tuple[int, int]

PLACEHOLDER = "@placeholder"


@dataclass(frozen=True, slots=True)
class ClozeQuestion:
    """A query with a placeholder, and the entities of its passage as spans of characters (end exclusive)."""

    id: str
    passage: str
    entities: tuple[Span, ...]
    query: str
    answers: tuple[str, ...] = ()
    """None if they are secret."""


def read_record(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[ClozeQuestion]:
    """Yield the questions of a file in ReCoRD's or SuperGLUE's layout, plain or compressed."""
    for where, make in _passages(path):
        for asked in make_or_skip(make, skipped):
            for place, (passage, entities, data) in enumerate(asked):
                question = partial(_question, passage, entities, data, f"{where}.qas[{place}]")
                yield from make_or_skip(question, skipped)


def score_record(questions: Sequence[ClozeQuestion], predicted: Mapping[str, str]) -> AnswerScores:
    """Score predictions by question id."""
    if any(not question.answers for question in questions):
        raise InputError("some questions have no answers to score against; is this a test file?")
    return score_answers({question.id: question.answers for question in questions}, predicted)


def evaluate_record(data: str | Path, predictions: str | Path) -> AnswerScores:
    """Score a file of predictions, {question id: answer}, against a ReCoRD file."""
    return score_record(list(read_record(data)), read_predictions(predictions))


def split_record(questions: Sequence[ClozeQuestion], count: int) -> tuple[list[ClozeQuestion], list[ClozeQuestion]]:
    """Return (the rest, at least `count` for validation); a passage has all its questions on one side."""
    return split_by(questions, count, lambda question: question.passage)


_Asked = tuple[str, tuple[Span, ...], Any]


def _passages(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield the location of each passage, and its data, or a function that raises."""
    first = next((line for _, line in read_lines(path) if line.strip()), b"")
    try:
        is_lines = "passage" in json.loads(first)
    except (ValueError, TypeError, RecursionError):
        is_lines = False
    if is_lines:
        for number, draft in enumerate(read_json_drafts(path), 1):
            yield f"{path_name(path)}, passage {number}", lambda draft=draft: _of_line(*draft())
        return
    data = read_json(path)
    for number, passage in enumerate(_part(data, "data", list, path_name(path))):
        where = f"{path_name(path)}, data[{number}]"
        yield where, lambda passage=passage, where=where: _asked(passage, where)


def _of_line(where: str, passage: Any) -> list[_Asked]:
    return _asked(passage, where)


def _asked(data: Any, where: str) -> list[_Asked]:
    passage = _part(data, "passage", dict, where)
    text = _part(passage, "text", str, f"{where}.passage")
    entities = []
    for entry in _part(passage, "entities", list, f"{where}.passage"):
        start, end = (_part(entry, name, int, f"{where}.passage.entities") for name in ("start", "end"))
        if not 0 <= start <= end < len(text):
            raise InputError(
                f"{where}: an entity is from {start} to {end} in a passage of {len(text)} characters; mend it"
            )
        entities.append((start, end + 1))
    return [(text, tuple(dict.fromkeys(entities)), question) for question in _part(data, "qas", list, where)]


def _question(passage: str, entities: tuple[Span, ...], data: Any, where: str) -> ClozeQuestion:
    query = _part(data, "query", str, where)
    if query.count(PLACEHOLDER) != 1:
        raise InputError(f"{where}: expected one {PLACEHOLDER} in {short(query, 60)!r}; mend the query")
    name = data.get("id")
    if name is None:
        index = data.get("idx")
        parts = [index.get(part) for part in ("passage", "query")] if isinstance(index, dict) else [index]
        name = "-".join(str(part) for part in parts if isinstance(part, int | str)) or None
    answers = tuple(dict.fromkeys(_part(one, "text", str, where) for one in data.get("answers") or ()))
    return ClozeQuestion(str(where if name is None else name), passage, entities, query, answers)


def _part(data: Any, key: str, kind: type, where: str) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise InputError(f'{where}: expected an object with "{key}"; is this a ReCoRD file?')
    return value
