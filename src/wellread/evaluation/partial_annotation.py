"""Partly annotated gold documents: the links that a scorer may judge.

Two keys of a gold document's `meta` limit what is judged; both are lists of `[start, end]`.

- `evaluate`: the annotated parts of the text. Gold and predicted links that overlap none of them are dropped.
- `optional`: spans that are neither wanted nor wrong. Predictions that overlap one and no gold link are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wellread.document import Document, Link
from wellread.errors import InputError

Span = tuple[int, int]


def keep_judged(gold: Document, predicted: Document) -> tuple[Document, Document]:
    """Return both documents without the links that the annotation does not cover.

    Predicted [0:5] with `optional` [[0, 5]] -> dropped; with a gold link at [3:8] as well -> kept, and judged.
    """
    if not {"evaluate", "optional"} & gold.meta.keys():
        return gold, predicted
    wanted, guesses = gold.links, predicted.links
    if "evaluate" in gold.meta:
        annotated = _spans(gold, "evaluate")
        wanted, guesses = (tuple(link for link in links if _overlaps(link, annotated)) for links in (wanted, guesses))
    if "optional" in gold.meta:
        optional, gold_spans = _spans(gold, "optional"), [(link.start, link.end) for link in wanted]
        guesses = tuple(link for link in guesses if not _overlaps(link, optional) or _overlaps(link, gold_spans))
    return replace(gold, links=wanted), replace(predicted, links=guesses)


def _overlaps(link: Link, spans: Iterable[Span]) -> bool:
    return any(start < link.end and link.start < end for start, end in spans)


def _spans(gold: Document, key: str) -> list[Span]:
    spans = gold.meta[key]
    try:
        checked = [(start, end) for start, end in spans or ()]
        inside = all(type(start) is type(end) is int and 0 <= start < end <= len(gold.text) for start, end in checked)
    except (TypeError, ValueError):
        inside = False
    if not inside:
        raise InputError(
            f"document {gold.id or 'without id'}: {key!r} is {str(spans)[:80]}; expected a list of [start, end], "
            f"character offsets into its text of {len(gold.text)} characters"
        )
    return checked
