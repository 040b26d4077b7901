"""Fitting of a link scorer to corrected links: calibration and threshold, and more trees with enough of them.

The corrections are gold documents of which only some spans are known (`kb.corrections`). What they say of the linker's
own links are marks, and are used as those of a marked sample (`judgements.calibrate`). With `ENOUGH` of them the scorer
gets more trees first (`boosting.boost`), as in the adaptation without labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from wellread.document import Document
from wellread.errors import InputError
from wellread.linking.decoding import Floats, Ints, without_overlaps
from wellread.linking.link_scorer import LinkScorer
from wellread.models.elq.linker import ElqBackend
from wellread.training.adaptation.boosting import boost
from wellread.training.adaptation.judgements import LOWEST, JudgedLinks, Marked, calibrate
from wellread.training.adaptation.pseudo_labels import OPEN_WEIGHT
from wellread.training.link_scorer import RIGHT, WRONG, Spans, collect

ENOUGH = 100
"""Corrections from which on the scorer gets more trees; with fewer, only calibration and threshold change."""
_RIGHT, _WRONG = 0.98, 0.02
"""Targets of corrected links: people err, too."""
_FOLDS = 5
"""One in this many texts is held out while the trees are fitted."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """The scorer that corrections give, and what they are about."""

    marked: Marked
    corrections: int
    texts: int
    right: int
    """Corrected spans with an entity of the KB."""
    found: int
    """Those that the linker proposes with the right entity first; the scorer can change nothing about the others."""
    trees: int
    """Trees that were added."""
    reason: str
    """Reason why none was added; empty otherwise."""
    loss: tuple[float, float] | None
    """Mean log loss on the held-out texts before and after the new trees; None if none were tried."""


def fit_corrections(backend: ElqBackend, documents: Sequence[Document]) -> Corrected:
    """Fit the scorer of a linker to gold documents of which only the linked spans are known."""
    scorer = backend.scorer
    assert scorer is not None
    links = [link for document in documents for link in document.links]
    if not links:
        raise InputError("the file has no corrections; make some on the page of wellread serve")
    spans = collect(backend, documents, complete=False, entities=True)
    known = (spans.labels == RIGHT) | (spans.labels == WRONG)
    fitted, reason, loss = _with_trees(scorer, spans, known, documents, len(links))
    scores = fitted.probabilities(spans.rows)
    kept = _without_overlaps(spans, scores)
    judged = kept[known[kept]]
    if not len(judged):
        raise InputError(
            f"none of the {len(links)} corrections is about a link with a score of {LOWEST:g} or more, so that nothing "
            "can be learned about scores; mark links as right or wrong, too, and make missing names aliases"
        )
    links_of = JudgedLinks.of(scores[judged], spans.labels[judged] == RIGHT, scores[kept], fitted.threshold)
    return Corrected(
        calibrate(fitted, links_of),
        corrections=len(links),
        texts=len(documents),
        right=spans.gold,
        found=_found(spans, documents),
        trees=len(fitted.feature) - len(scorer.feature),
        reason=reason,
        loss=loss,
    )


def _with_trees(
    scorer: LinkScorer, spans: Spans, known: NDArray[np.bool_], documents: Sequence[Document], corrections: int
) -> tuple[LinkScorer, str, tuple[float, float] | None]:
    """Return the scorer with more trees if they fit held-out texts better, the reason if not, and both losses."""
    if corrections < ENOUGH:
        return scorer, f"there are {corrections} corrections, {ENOUGH} are needed for new trees", None
    digests = np.array([crc32(one.text.encode("utf-8", "surrogatepass")) for one in documents])
    held_texts = np.zeros(len(documents), np.bool_)
    held_texts[np.argsort(digests, kind="stable")[::_FOLDS]] = True  # at least one, whatever the texts
    held = held_texts[spans.document_of]
    if len(set(spans.labels[known & ~held].tolist())) < 2 or not (known & held).any():
        return scorer, "the corrections are all right, all wrong, or of too few texts", None
    targets = scorer.probabilities(spans.rows)
    targets[spans.labels == RIGHT], targets[spans.labels == WRONG] = _RIGHT, _WRONG
    weights = np.where(known, 1.0, OPEN_WEIGHT)
    fitted = boost(scorer, spans.rows[~held], targets[~held], weights[~held])
    tested = known & held
    before, after = (_loss(one, spans, tested, targets) for one in (scorer, fitted))
    if not after < before:
        return scorer, "new trees fit held-out texts no better", (before, after)
    return fitted, "", (before, after)


def _loss(scorer: LinkScorer, spans: Spans, mask: NDArray[np.bool_], targets: Floats) -> float:
    logits = scorer.logits(spans.rows[mask])
    return float((np.logaddexp(0, logits) - targets[mask] * logits).mean())


def _without_overlaps(spans: Spans, scores: Floats) -> Ints:
    """Return the rows of the links from the lowest sampled score on, without overlaps in a text."""
    shift = spans.document_of * (int(spans.ends.max(initial=0)) + 1)
    placed = np.stack((spans.starts + shift, spans.ends + shift), 1)
    rows = np.flatnonzero(scores > LOWEST)
    return np.array(without_overlaps(placed, rows[np.argsort(-scores[rows], kind="stable")].tolist()), np.int64)


def _found(spans: Spans, documents: Sequence[Document]) -> int:
    """Return the number of right links that the linker proposes, with that entity first."""
    rows = np.flatnonzero(spans.labels == RIGHT)
    proposed = zip(
        spans.document_of[rows].tolist(), spans.starts[rows].tolist(), spans.ends[rows].tolist(), strict=True
    )
    found = set()
    for number, start, end in proposed:
        for place, link in enumerate(documents[number].links):
            if link.entity is not None and link.start < end and start < link.end:
                found.add((number, place))
    return len(found)
