"""Linking given spans: those that a tagger, a person or another tool has found.

Each span gets exactly one link, to the best entity, or to None (NIL) where the model finds that no entity fits. The
span is taken for a mention, so that the model's default threshold, which is about mentions too, does not count; a
threshold that the caller chooses does. With `nil="never"` the best candidate is always taken.
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
"""model: NIL where the model finds that no entity fits. never: the best candidate wherever there is one."""

GIVEN = "given"
"""`found_by` of a span that no name of the KB proposes."""


def link_given(
    backend: PriorBackend | ElqBackend | KnowBertBackend | LukeBackend,
    texts: Sequence[str],
    spans: Sequence[Spans],
    *,
    nil: GivenNil = "model",
    threshold: float | None = None,
    candidates: int | None = None,
) -> Iterator[Document]:
    """Return one link for each span, in the order of the spans; a span outside its text is an `InputError`.

    Entities whose score does not reach `threshold` become NIL, unless `nil` is "never". `candidates` is the number
    kept with each link, the model's unless given.
    """
    if nil not in get_args(GivenNil):
        raise UsageError(f"nil={nil!r} is not known for given spans; choose {' or '.join(get_args(GivenNil))}")
    asked = [_checked(text, some) for text, some in zip(texts, spans, strict=True)]
    if nil == "never":
        threshold = None
    if isinstance(backend, PriorBackend):
        documents = backend.link_given(texts, asked)
        passes: Callable[[float, float], bool] = operator.ge
    else:
        # A knowledge layer finds all names of its KB anyway, and knows nothing of others.
        scored = backend.score_given(texts, asked) if hasattr(backend, "score_given") else backend.score_many(texts)
        documents = (_document(one, some, nil) for one, some in zip(scored, asked, strict=True))
        candidates = backend.decoding.candidates if candidates is None else candidates
        passes = operator.gt  # as when these models find their mentions themselves
    for document in documents:
        links = (
            link if threshold is None or passes(link.score, threshold) else replace(link, entity=None, title=None)
            for link in document.links
        )
        yield replace(document, links=tuple(_finished(link, candidates) for link in links))


def _checked(text: str, spans: Spans) -> list[tuple[int, int]]:
    """Return the spans in their order, each once."""
    pairs = {(start, end) for start, end in spans}
    return [(mention.start, mention.end) for mention in given(text, [(start, end, None) for start, end in pairs])]


def _document(scored: Scored, spans: Sequence[tuple[int, int]], nil: GivenNil) -> Document:
    decoding = replace(scored.decoding, candidates=max(1, scored.decoding.candidates))
    everything = replace(scored, decoding=decoding).document(threshold=0.0, overlaps="keep", nil=True)
    found = {(link.start, link.end): link for link in everything.links}
    links = [found.get(span) or Link(*span, scored.text[slice(*span)], None, kb=scored.kb) for span in spans]
    if nil == "never":
        links = [_with_best(link, scored) for link in links]
    return replace(everything, links=tuple(links))


def _with_best(link: Link, scored: Scored) -> Link:
    """Link a NIL to its best candidate, if it has one, with the score of that candidate."""
    if link.entity is not None or not link.candidates:
        return link
    best = link.candidates[0]
    score = scored.calibration.scores(np.log(np.array([max(best.score, 1e-300)])))
    return replace(link, entity=best.entity, title=best.title, score=float(score[0]))


def _finished(link: Link, candidates: int | None) -> Link:
    """Limit the candidates, and say that the span was given where no name proposes it."""
    found_by = GIVEN if link.found_by in (None, FOUND_BY[-1]) else link.found_by
    return replace(link, candidates=link.candidates[:candidates], found_by=found_by)
