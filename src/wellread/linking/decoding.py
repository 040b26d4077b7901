"""Decoding of scores into links (ELQ, "Decoding"): choice of the spans to keep, and of the entity of each.

A span has log p(mention), and for each candidate log p(entity | mention); NIL is a candidate too. `Scored` keeps them
all, so that another threshold needs no second run of the model:

>>> scored = linker.score("who wrote the hobbit?")
>>> scored.document(threshold=0.9).links, scored.document(threshold=0.1).links

Differences from the authors' code: for `top_entity_by_mention` and `thresholded_entity_by_mention` thresholds are
compared with probabilities (theirs: with raw logits). Of overlapping links the one with the best joint score is kept
(theirs: the one with the best entity logit).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wellread.document import Candidate, Document, Link
from wellread.errors import UsageError
from wellread.mentions.proposals import WAYS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NIL, NONE = -1, -2
"""Values in place of an index row: NIL (the entity is not in the KB), and NONE (padding, not a candidate)."""

FOUND_BY = (*WAYS, "encoder")
"""Ways in which a span is found: by a name of the KB, or by the encoder's mention head alone."""

ThresholdKind = Literal["joint", "top_entity_by_mention", "thresholded_entity_by_mention"]
KINDS: tuple[ThresholdKind, ...] = ("joint", "top_entity_by_mention", "thresholded_entity_by_mention")


def check_threshold(threshold: float | None) -> None:
    """Raise a UsageError unless the threshold is None or a probability.

    The authors' thresholds are logarithms: a negative threshold would let every link pass.
    """
    number = isinstance(threshold, Real)  # includes numpy's scalars
    if threshold is None or (number and 0 <= threshold <= 1):
        return
    hint = ""
    if number and threshold < 0:
        hint = f" (exp({threshold:g}) = {math.exp(threshold):.3g}, if it is the logarithm of one)"
    raise UsageError(f"threshold={threshold!r} is not a probability; give one from 0 to 1{hint}")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Map from a link's probability to its calibrated score: sigmoid(scale · logit(p) + shift).

    Of links with a calibrated score of 0.8, 80 % are right. With scale 1 and shift 0 the score is p
    itself, the paper's p(mention) · p(entity | mention).
    """

    scale: float = 1.0
    shift: float = 0.0

    def scores(self, log_p: Floats) -> Floats:
        """Return the calibrated scores of log probabilities."""
        log_p = np.minimum(log_p, -1e-12)
        logits = log_p - np.log(-np.expm1(log_p))
        return np.asarray(1 / (1 + np.exp(-np.clip(self.scale * logits + self.shift, -700, 700))))

    def log_p(self, score: float) -> float:
        """Return the log probability that has this calibrated score; the inverse of `scores`."""
        if score <= 0:
            return -np.inf
        if score >= 1:
            return 0.0
        logit = (np.log(score) - np.log1p(-score) - self.shift) / self.scale
        return float(-np.logaddexp(0, -logit))


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options for turning scores into links."""

    kind: ThresholdKind = "joint"
    """Score that must exceed the threshold. joint: p(mention) · p(entity | mention); top_entity_by_mention: p(mention);
    thresholded_entity_by_mention: each of the two."""
    threshold: float = 0.5
    """Calibrated score for `joint`, probability for the other two kinds."""
    overlaps: Literal["auto", "drop", "keep"] = "auto"
    """auto: overlapping links are kept for `top_entity_by_mention` and dropped otherwise, as in the authors' code."""
    nil: bool = True
    """Include mentions of entities that the KB does not have, as links to None (NIL)."""
    candidates: int = 10
    """Maximum number of candidates listed with each link."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is not a kind of threshold; choose {', '.join(KINDS)}")
        if self.overlaps not in ("auto", "drop", "keep"):
            raise UsageError(f"overlaps={self.overlaps!r} is not known; choose auto, drop or keep")
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"the threshold is {self.threshold}; choose one from 0 (all) to 1 (only certain links)")

    def log_threshold(self, calibration: Calibration) -> float:
        """Return the log probability that a link must exceed; spans with a lower log p(mention) are never linked."""
        if self.kind == "joint":
            return calibration.log_p(self.threshold)
        return float(np.log(self.threshold)) if self.threshold > 0 else -np.inf


@dataclass(frozen=True, slots=True)
class Scored:
    """Text with the scores of all spans that may be mentions; `document` decodes them into links."""

    text: str
    spans: Ints
    """[span, 2] start and end in characters, end exclusive."""
    mention_log_p: Floats
    rows: Ints
    """[span, candidate] scored entities, best first: rows of the index, NIL, or NONE as padding."""
    entity_log_p: Floats
    priors: Floats
    calibration: Calibration
    decoding: Decoding
    name_rows: Callable[[Sequence[int]], Sequence[tuple[str, str]]]
    """Function from rows of the index to their (id, title)."""
    kb: str | None = None
    meta: tuple[tuple[str, str], ...] = ()
    scores: Floats | None = None
    """Link scorer's probability that the link to the best entity is right; None without a link scorer. With it, NIL is
    always the last column of `rows`, whatever its probability."""
    ways: NDArray[np.uint8] | None = None
    """Way in which each span was found: indices into `FOUND_BY`."""

    def document(
        self,
        *,
        threshold: float | None = None,
        kind: ThresholdKind | None = None,
        overlaps: Literal["auto", "drop", "keep"] | None = None,
        nil: bool | None = None,
    ) -> Document:
        """Return the links for these options, without running the model again; None keeps an option of `decoding`."""
        given = {"threshold": threshold, "kind": kind, "overlaps": overlaps, "nil": nil}
        decoding = replace(self.decoding, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        if self.scores is not None and decoding.kind != "joint":
            return self._without_scorer().document(
                threshold=decoding.threshold, kind=decoding.kind, overlaps=decoding.overlaps, nil=decoding.nil
            )
        kept = self._select(decoding)
        links = self._links(sorted(kept, key=lambda row: tuple(self.spans[row])), decoding)
        return Document(self.text, tuple(links), meta=dict(self.meta))

    def _without_scorer(self) -> Scored:
        """Return the scores without those of the link scorer, with NIL sorted among the candidates."""
        order = np.argsort(-self.entity_log_p, axis=1, kind="stable")
        return replace(
            self,
            rows=np.take_along_axis(self.rows, order, 1),
            entity_log_p=np.take_along_axis(self.entity_log_p, order, 1),
            priors=np.take_along_axis(self.priors, order, 1),
            scores=None,
        )

    def _select(self, decoding: Decoding) -> list[int]:
        if self.scores is not None:
            return self._select_by_score(self.scores, decoding)
        best = self.entity_log_p[:, 0] if self.entity_log_p.size else np.empty(0)
        drop = decoding.overlaps == "drop" or (decoding.overlaps == "auto" and decoding.kind != "top_entity_by_mention")
        return decode(
            self.spans,
            self.mention_log_p,
            best,
            kind=decoding.kind,
            threshold=decoding.log_threshold(self.calibration),
            drop_overlaps=drop,
            wanted_mask=None if decoding.nil or not self.rows.size else self.rows[:, 0] >= 0,
        )

    def _select_by_score(self, scores: Floats, decoding: Decoding) -> list[int]:
        """Return the spans whose link scores above the threshold and, with `nil`, the likely NIL mentions."""
        linked = scores > decoding.threshold
        rows = np.flatnonzero(linked)
        order = rows[np.lexsort((self.spans[rows, 1], self.spans[rows, 0], -scores[rows]))].tolist()
        if decoding.nil:
            nil = self.mention_log_p + self.entity_log_p[:, -1]
            rows = np.flatnonzero(~linked & (nil > _MIN_NIL_LOG_P))
            order += rows[np.lexsort((self.spans[rows, 1], self.spans[rows, 0], -nil[rows]))].tolist()
        return order if decoding.overlaps == "keep" else without_overlaps(self.spans, order)

    def _links(self, kept: Sequence[int], decoding: Decoding) -> list[Link]:
        if not kept:
            return []
        if self.scores is not None:
            nil_mask = self.scores[kept] <= decoding.threshold
            nil = np.exp(self.mention_log_p[kept] + self.entity_log_p[kept, -1])
            scores = np.where(nil_mask, nil, self.scores[kept])
        else:
            nil_mask = self.rows[kept, 0] < 0
            scores = self.calibration.scores(self.mention_log_p[kept] + self.entity_log_p[kept, 0])
        most = max(1, decoding.candidates)  # a link needs its entity's title even if no candidate is listed
        shown = [np.flatnonzero(self.rows[row] >= 0)[:most].tolist() for row in kept]
        listed_rows = [int(self.rows[row, col]) for row, cols in zip(kept, shown, strict=True) for col in cols]
        names = iter(self.name_rows(listed_rows) if listed_rows else ())
        links = []
        for row, cols, score, is_nil in zip(kept, shown, scores.tolist(), nil_mask.tolist(), strict=True):
            candidates = tuple(
                Candidate(id, title, float(self.priors[row, col]), float(np.exp(self.entity_log_p[row, col])))
                for col, (id, title) in zip(cols, names, strict=False)
            )
            start, end = self.spans[row].tolist()
            links.append(
                Link(
                    start,
                    end,
                    self.text[start:end],
                    None if is_nil else candidates[0].entity,
                    None if is_nil else candidates[0].title,
                    score,
                    candidates[: decoding.candidates],
                    self.kb,
                    float(np.exp(self.mention_log_p[row])),
                    None if self.ways is None else FOUND_BY[self.ways[row]],
                )
            )
        return links


_MIN_NIL_LOG_P = math.log(0.5)
"""Minimum log of p(mention) · p(NIL) for a mention without a link to be listed as NIL."""


def decode(
    spans: Ints,
    mention_log_p: Floats,
    best_log_p: Floats,
    *,
    kind: ThresholdKind = "joint",
    threshold: float = -4.5,
    drop_overlaps: bool = True,
    wanted_mask: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Return the rows of the spans to keep, best first; ties: the one that begins first, then the shorter.

    `threshold` is a log probability. Spans outside `wanted_mask` are dropped.
    """
    joint = mention_log_p + best_log_p
    if kind == "joint":
        passed = joint > threshold
    elif kind == "top_entity_by_mention":
        passed = mention_log_p > threshold
    else:
        passed = (mention_log_p > threshold) & (best_log_p > threshold)
    if wanted_mask is not None:
        passed &= wanted_mask
    rows = np.flatnonzero(passed)
    order = rows[np.lexsort((spans[rows, 1], spans[rows, 0], -joint[rows]))]
    return without_overlaps(spans, order.tolist()) if drop_overlaps else order.tolist()


def without_overlaps(spans: Ints, order: Sequence[int]) -> list[int]:
    """Return the rows in `order` whose spans do not overlap the span of an earlier row that was kept."""
    kept: list[int] = []
    taken: list[tuple[int, int]] = []
    for row in order:
        start, end = spans[row].tolist()
        place = bisect_left(taken, (start, end))
        before = place > 0 and taken[place - 1][1] > start
        behind = place < len(taken) and taken[place][0] < end
        if not before and not behind:
            insort(taken, (start, end))
            kept.append(row)
    return kept
