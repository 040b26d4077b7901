"""Relevance of a text for a query: pairs with graded labels, as in the Shopping Queries data (ESCI).

A line is an object with a query, the texts of a product and one of the labels E (exact), S (substitute), C (complement)
and I (irrelevant); missing or null if it is secret. Your own files may have other columns and labels: name them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wellread.data.splits import split_by
from wellread.data.tables import Form, Record, make_each, read_records, text_of
from wellread.errors import InputError
from wellread.evaluation.ranking import ESCI_GAINS


@dataclass(frozen=True, slots=True)
class RelevancePair:
    """A query, a text, and the relevance of the text; None if it is secret."""

    id: str
    query: str
    text: str
    label: str | None


@dataclass(frozen=True, slots=True)
class RelevanceColumns:
    """Names of the columns of a file; those of `text` are joined by newlines, without the empty ones."""

    query: str = "query"
    text: tuple[str, ...] = ("title", "brand", "bullet_points", "description")
    label: str | None = "esci"
    """None for pairs without labels; a null or empty label is also none."""
    id: str | None = "asin"


def read_relevance(
    path: str | Path,
    columns: RelevanceColumns | None = None,
    *,
    labels: Collection[str] = tuple(ESCI_GAINS),
    form: Form | None = None,
    skipped: list[str] | None = None,
) -> Iterator[RelevancePair]:
    """Yield the pairs of a JSONL, CSV or TSV file, plain or compressed."""
    make = partial(_pair, columns=columns or RelevanceColumns(), labels=labels)
    return make_each(path, read_records(path, form), make, skipped)


def split_queries(pairs: Sequence[RelevancePair], count: int) -> tuple[list[RelevancePair], list[RelevancePair]]:
    """Return (the rest, at least `count` pairs for validation); a query has all its pairs on one side."""
    return split_by(pairs, count, lambda pair: " ".join(pair.query.split()))


def _pair(record: Record, number: str, *, columns: RelevanceColumns, labels: Collection[str]) -> RelevancePair:
    query = text_of(record, columns.query).strip()
    absent = [name for name in columns.text if name not in record]
    if absent:
        raise InputError(f"no {absent[0]!r} (there are {', '.join(record)}); name the columns of the text")
    texts = [text_of(record, name).strip() for name in columns.text if record[name] is not None]
    text = "\n".join(each for each in texts if each)
    if not query or not text:
        raise InputError("the query or the text is empty")
    secret = columns.label is None or record.get(columns.label, 0) in (None, "")
    label = None if secret else text_of(record, str(columns.label))
    if label is not None and label not in labels:
        raise InputError(f"the label is {label!r}, expected one of {', '.join(labels)}")
    return RelevancePair(number if columns.id is None else text_of(record, columns.id), query, text, label)
