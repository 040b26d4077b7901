"""Linking given spans, e.g. from a tagger or from manual annotation.

Each span gets exactly one link: to the best entity, or to None (NIL) if the model prefers NIL. As the span is known to
be a mention, the model's default threshold, which includes p(mention), is not applied; a threshold given by the caller
is. With `nil="never"` the best candidate is always linked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from wellread.document import Document, Link
from wellread.errors import UsageError
from wellread.linking.decoding import FOUND_BY
from wellread.linking.prior import PriorBackend
from wellread.mentions.annotators import given

if TYPE_CHECKING:
    from wellread.linking.decoding import Scored
    from wellread.models.elq.linker import ElqBackend
    from wellread.models.knowbert.linker import KnowBertBackend
    from wellread.models.luke.linker import LukeBackend

Spans = Sequence[Sequence[int]]
"""(start, end) pairs in characters, end exclusive."""

GivenNil = Literal["model", "never"]
"""model: NIL if the model prefers it. never: the best candidate, if there is one."""

GIVEN = "given"
"""`found_by` of a given span that is not a name of the KB."""


def link_given(
    backend: PriorBackend | ElqBackend | KnowBertBackend | LukeBackend,
    texts: Sequence[str],
    spans: Sequence[Spans],
    *,
    nil: GivenNil = "model",
    threshold: float | None = None,
    candidates: int | None = None,
) -> Iterator[Document]:
    """Yield documents with one link for each span, sorted; a span outside its text raises an `InputError`.

    Links that score below `threshold` become NIL, unless `nil` is "never". `candidates` is the number of candidates
    listed with each link; by default that of the model's decoding options.
    """
    if nil not in get_args(GivenNil):
        raise UsageError(f"nil={nil!r} is not known for given spans; choose {' or '.join(get_args(GivenNil))}")
    checked = [_check_spans(text, some) for text, some in zip(texts, spans, strict=True)]
    if nil == "never":
        threshold = None
    if isinstance(backend, PriorBackend):
        documents = backend.link_given(texts, checked)
        passes: Callable[[float, float], bool] = operator.ge
    else:
        # A backend without `score_given` scores all names of its KB, and can link no other spans.
        scored = backend.score_given(texts, checked) if hasattr(backend, "score_given") else backend.score_many(texts)
        documents = (_decode_given(one, some, nil) for one, some in zip(scored, checked, strict=True))
        candidates = backend.decoding.candidates if candidates is None else candidates
        passes = operator.gt  # as when these models find their mentions
    for document in documents:
        links = (
            link if threshold is None or passes(link.score, threshold) else replace(link, entity=None, title=None)
            for link in document.links
        )
        yield replace(document, links=tuple(_finish(link, candidates) for link in links))


def _check_spans(text: str, spans: Spans) -> list[tuple[int, int]]:
    """Return the distinct spans, sorted; raise an InputError for one outside the text."""
    pairs = {(start, end) for start, end in spans}
    return [(mention.start, mention.end) for mention in given(text, [(start, end, None) for start, end in pairs])]


def _decode_given(scored: Scored, spans: Sequence[tuple[int, int]], nil: GivenNil) -> Document:
    decoding = replace(scored.decoding, candidates=max(1, scored.decoding.candidates))
    all_links = replace(scored, decoding=decoding).document(threshold=0.0, overlaps="keep", nil=True)
    found = {(link.start, link.end): link for link in all_links.links}
    links = [found.get(span) or Link(*span, scored.text[slice(*span)], None, kb=scored.kb) for span in spans]
    if nil == "never":
        links = [_link_to_best(link, scored) for link in links]
    return replace(all_links, links=tuple(links))


def _link_to_best(link: Link, scored: Scored) -> Link:
    """Link a NIL to its best candidate, if it has one, with that candidate's calibrated score."""
    if link.entity is not None or not link.candidates:
        return link
    best = link.candidates[0]
    score = scored.calibration.scores(np.log(np.array([max(best.score, 1e-300)])))
    return replace(link, entity=best.entity, title=best.title, score=float(score[0]))


def _finish(link: Link, candidates: int | None) -> Link:
    """Limit the number of candidates, and set `found_by` to "given" if no name of the KB proposes the span."""
    found_by = GIVEN if link.found_by in (None, FOUND_BY[-1]) else link.found_by
    return replace(link, candidates=link.candidates[:candidates], found_by=found_by)
