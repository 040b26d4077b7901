"""The nine tasks of GLUE (Wang et al. 2018) in their official files, described by one table.

`train.tsv`, `dev.tsv` and `test.tsv` need not be distinguished: the first line shows which columns there are, and
examples of test files have no label. MNLI has two validation files, `dev_matched.tsv` and `dev_mismatched.tsv`; score
them separately, as MNLI-m and MNLI-mm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from wellread.data.readers.labelled import LabelledTask, LabelledText
from wellread.data.tables import Record, make_each, name_cells, read_tsv, text_of
from wellread.errors import InputError, UsageError
from wellread.io.files import path_name, write_atomically


@dataclass(frozen=True, slots=True)
class GlueColumns:
    """Names of the columns of a task's files, in the header or (`bare`) in files without one."""

    text: str
    text_b: str | None
    label: str
    id: str = "index"
    bare: tuple[str, ...] = ()


_TWO = ("0", "1")
_NLI = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = GlueColumns("sentence1", "sentence2", "label")

GLUE: dict[str, tuple[LabelledTask, GlueColumns]] = {
    task.name: (task, columns)
    for task, columns in (
        (
            LabelledTask("CoLA", _TWO, ("matthews",)),
            GlueColumns("sentence", None, "label", bare=("source", "label", "star", "sentence")),
        ),
        (LabelledTask("SST-2", _TWO, ("accuracy",)), GlueColumns("sentence", None, "label")),
        (LabelledTask("MRPC", _TWO, ("accuracy", "f1"), True), GlueColumns("#1 String", "#2 String", "Quality")),
        (
            LabelledTask("STS-B", (), ("pearson", "spearman"), True, (0.0, 5.0)),
            GlueColumns("sentence1", "sentence2", "score"),
        ),
        (
            LabelledTask("QQP", _TWO, ("accuracy", "f1"), True),
            GlueColumns("question1", "question2", "is_duplicate", "id"),
        ),
        (LabelledTask("MNLI", _NLI, ("accuracy",), True), GlueColumns("sentence1", "sentence2", "gold_label")),
        (LabelledTask("QNLI", _ENTAILMENT, ("accuracy",), True), GlueColumns("question", "sentence", "label")),
        (LabelledTask("RTE", _ENTAILMENT, ("accuracy",), True), _SENTENCES),
        (LabelledTask("WNLI", _TWO, ("accuracy",), True), _SENTENCES),
    )
}
"""Each task with its labels, official metrics and columns; F1 is that of the label "1"."""


def glue_task(name: str) -> LabelledTask:
    """Return a task by its name in any spelling: "sst2", "SST-2"."""
    return _find(name)[0]


def read_glue(path: str | Path, task: str, *, skipped: list[str] | None = None) -> Iterator[LabelledText]:
    """Yield the examples of a task's file, plain or compressed.

    The official QQP files have some lines with too few cells, which its users skip: give a list as `skipped`.
    """
    facts, columns = _find(task)
    rows = read_tsv(path)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path_name(path)} is empty; expected the {facts.name} file of GLUE")
    header = [name.strip() for name in first[1]]
    wanted = [name for name in (columns.text, columns.text_b) if name is not None]
    if not set(wanted) <= set(header):
        if len(header) != len(columns.bare):
            expected = f"{len(columns.bare)} cells without a header, or " if columns.bare else ""
            raise InputError(
                f"{path_name(path)}, line {first[0]}: expected {expected}a header with {', '.join(wanted)}, "
                f"got {' | '.join(header)[:100]!r}; is this the {facts.name} file of GLUE?"
            )
        header, rows = list(columns.bare), chain([first], rows)
    named = ((number, partial(name_cells, header, row)) for number, row in rows)
    return make_each(path, named, partial(_example, task=facts, columns=columns), skipped)


def write_glue(path: str | Path, task: str, examples: Sequence[LabelledText], predicted: Sequence[int | float]) -> None:
    """Write predictions for the leaderboard (`CoLA.tsv`, `MNLI-m.tsv`, …): index and label, with a header."""
    facts = glue_task(task)
    if len(examples) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(examples)} examples; give one for each")
    lines = (f"{example.id}\t{facts.name_of(label)}\n" for example, label in zip(examples, predicted, strict=True))
    with write_atomically(path) as file:
        file.write(f"index\tprediction\n{''.join(lines)}".encode())


def glue_average(scores: Mapping[str, float]) -> float:
    """Return GLUE's score: the mean over tasks, with MNLI-m and MNLI-mm as one task."""
    unknown = [name for name in scores if name not in (*GLUE, "MNLI-m", "MNLI-mm")]
    if unknown or not scores or ("MNLI" in scores and scores.keys() & {"MNLI-m", "MNLI-mm"}):
        raise InputError(f"cannot average {', '.join(scores) or 'nothing'}; give {', '.join(GLUE)}, or MNLI-m, MNLI-mm")
    by_task: dict[str, list[float]] = {}
    for name, score in scores.items():
        by_task.setdefault("MNLI" if name.startswith("MNLI") else name, []).append(score)
    return math.fsum(math.fsum(some) / len(some) for some in by_task.values()) / len(by_task)


def _find(name: str) -> tuple[LabelledTask, GlueColumns]:
    plain = {key.replace("-", "").lower(): key for key in GLUE}
    key = plain.get(name.replace("-", "").replace("_", "").lower())
    if key is None:
        raise UsageError(f"unknown GLUE task {name!r}; choose one of {', '.join(GLUE)}")
    return GLUE[key]


def _example(record: Record, number: str, *, task: LabelledTask, columns: GlueColumns) -> LabelledText:
    return LabelledText(
        record.get(columns.id, number),
        text_of(record, columns.text),
        None if columns.text_b is None else text_of(record, columns.text_b),
        task.label_of(record[columns.label].strip()) if columns.label in record else None,
    )
