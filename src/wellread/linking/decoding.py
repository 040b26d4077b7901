"""From scores to links (ELQ: Decoding): which spans are kept, and what each is linked to.

A span has log p(mention), and for each candidate log p(entity | mention); NIL is a candidate too. `Scored` keeps them
all, so that another threshold needs no second run of the model:

>>> scored = linker.score("who wrote the hobbit?")
>>> scored.document(threshold=0.9).links, scored.document(threshold=0.1).links

Unlike the authors' code: with `top_entity_by_mention` and `thresholded_entity_by_mention` thresholds are compared with
probabilities (theirs: with raw logits), and of overlapping links the one with the best joint score is kept (theirs: the
one with the best entity logit).
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
"""Rows that are no entity: none of the KB's, and no candidate at all."""

FOUND_BY = (*WAYS, "encoder")
"""Ways in which a span is found: by a name of the KB, or by the encoder's mention head alone."""

ThresholdKind = Literal["joint", "top_entity_by_mention", "thresholded_entity_by_mention"]
KINDS: tuple[ThresholdKind, ...] = ("joint", "top_entity_by_mention", "thresholded_entity_by_mention")


def check_threshold(threshold: float | None) -> None:
    """Refuse what is no probability: the authors' thresholds are logarithms, which would let everything pass."""
    number = isinstance(threshold, Real)  # numpy's are, too
    if threshold is None or (number and 0 <= threshold <= 1):
        return
    hint = ""
    if number and threshold < 0:
        hint = f" (exp({threshold:g}) = {math.exp(threshold):.3g}, if it is the logarithm of one)"
    raise UsageError(f"threshold={threshold!r} is no probability; give one from 0 to 1{hint}")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A link's score as the share of such links that are right: sigmoid(scale · logit(p) + shift).

    With a scale of 1 and no shift it is p itself, the paper's p(mention) · p(entity | mention).
    """

    scale: float = 1.0
    shift: float = 0.0

    def scores(self, log_p: Floats) -> Floats:
        """Calibrated scores of log probabilities."""
        log_p = np.minimum(log_p, -1e-12)
        logits = log_p - np.log(-np.expm1(log_p))
        return np.asarray(1 / (1 + np.exp(-np.clip(self.scale * logits + self.shift, -700, 700))))

    def log_p(self, score: float) -> float:
        """The log probability that has this score: what a threshold on scores means for the model."""
        if score <= 0:
            return -np.inf
        if score >= 1:
            return 0.0
        logit = (np.log(score) - np.log1p(-score) - self.shift) / self.scale
        return float(-np.logaddexp(0, -logit))


@dataclass(frozen=True, slots=True)
class Decoding:
    """How scores become links."""

    kind: ThresholdKind = "joint"
    """joint: p(mention) · p(entity | mention) decides. top_entity_by_mention: p(mention) alone.
    thresholded_entity_by_mention: each of the two on its own."""
    threshold: float = 0.5
    """A calibrated score for `joint`, a probability for the other two."""
    overlaps: Literal["auto", "drop", "keep"] = "auto"
    """auto: overlapping links are kept for `top_entity_by_mention` and dropped otherwise, as in the authors' code."""
    nil: bool = True
    """Whether mentions of what the KB does not hold are told (as links to None)."""
    candidates: int = 10
    """Candidates told with each link."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is no kind of threshold; choose {', '.join(KINDS)}")
        if self.overlaps not in ("auto", "drop", "keep"):
            raise UsageError(f"overlaps={self.overlaps!r} is not known; choose auto, drop or keep")
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"the threshold is {self.threshold}; choose one from 0 (all) to 1 (only certain links)")

    def log_threshold(self, calibration: Calibration) -> float:
        """What log p must exceed; a span whose log p(mention) does not can never be linked."""
        if self.kind == "joint":
            return calibration.log_p(self.threshold)
        return float(np.log(self.threshold)) if self.threshold > 0 else -np.inf


@dataclass(frozen=True, slots=True)
class Scored:
    """A text with the scores of all spans that may be mentions; `document` makes links of them."""

    text: str
    spans: Ints
    """(start, end) in characters, a row for each span."""
    mention_log_p: Floats
    rows: Ints
    """The entities scored for each span, best first: rows of the index, NIL, or NONE where there is no more."""
    entity_log_p: Floats
    priors: Floats
    calibration: Calibration
    decoding: Decoding
    name_rows: Callable[[Sequence[int]], Sequence[tuple[str, str]]]
    """(id, title) of rows of the index."""
    kb: str | None = None
    meta: tuple[tuple[str, str], ...] = ()
    scores: Floats | None = None
    """Where a link scorer decides: the probability that the link to the best entity is right. NIL is then the last
    column of `rows`, not in the order of the others."""
    ways: NDArray[np.uint8] | None = None
    """Ways in which the spans were found: places in `FOUND_BY`."""

    def document(
        self,
        *,
        threshold: float | None = None,
        kind: ThresholdKind | None = None,
        overlaps: Literal["auto", "drop", "keep"] | None = None,
        nil: bool | None = None,
    ) -> Document:
        """The links at a threshold, without running the model again."""
        given = {"threshold": threshold, "kind": kind, "overlaps": overlaps, "nil": nil}
        decoding = replace(self.decoding, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        if self.scores is not None and decoding.kind != "joint":
            return self._as_in_the_paper().document(
                threshold=decoding.threshold, kind=decoding.kind, overlaps=decoding.overlaps, nil=decoding.nil
            )
        kept = self._kept(decoding)
        links = self._links(sorted(kept, key=lambda row: tuple(self.spans[row])), decoding)
        return Document(self.text, tuple(links), meta=dict(self.meta))

    def _as_in_the_paper(self) -> Scored:
        """Return the same without the scorer: NIL takes its place among the candidates."""
        order = np.argsort(-self.entity_log_p, axis=1, kind="stable")
        return replace(
            self,
            rows=np.take_along_axis(self.rows, order, 1),
            entity_log_p=np.take_along_axis(self.entity_log_p, order, 1),
            priors=np.take_along_axis(self.priors, order, 1),
            scores=None,
        )

    def _kept(self, decoding: Decoding) -> list[int]:
        if self.scores is not None:
            return self._kept_by_score(self.scores, decoding)
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

    def _kept_by_score(self, scores: Floats, decoding: Decoding) -> list[int]:
        """Return the links whose score passes, and with `nil` the sure mentions for which none does."""
        linked = scores > decoding.threshold
        rows = np.flatnonzero(linked)
        order = rows[np.lexsort((self.spans[rows, 1], self.spans[rows, 0], -scores[rows]))].tolist()
        if decoding.nil:
            nil = self.mention_log_p + self.entity_log_p[:, -1]
            rows = np.flatnonzero(~linked & (nil > _SURE))
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
        most = max(1, decoding.candidates)  # a link needs its entity's title, though no candidate is shown
        shown = [np.flatnonzero(self.rows[row] >= 0)[:most].tolist() for row in kept]
        asked = [int(self.rows[row, col]) for row, cols in zip(kept, shown, strict=True) for col in cols]
        names = iter(self.name_rows(asked) if asked else ())
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


_SURE = math.log(0.5)
"""Log probability of NIL from which on a mention without a link is shown as one."""


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
    """The rows of the spans that are kept, best first; of equals the one that begins first, then the shorter."""
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
    """The rows of spans that overlap none before them in the order."""
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
