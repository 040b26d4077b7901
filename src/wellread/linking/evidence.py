"""Evidence for links: all that a linker computes about the spans of texts before decoding, one row per span.

A span is proposed by the encoder's mention head, by the names of the KB, or by both. It has the head's logit, the way
its name was found, and candidates with the encoder's scores and priors. `features` turns these rows into numbers for
the link scorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.linking.decoding import FOUND_BY, NONE, Floats, Ints
from wellread.text.words import Keys

ENCODER = len(FOUND_BY) - 1
"""Index in `FOUND_BY` of spans that only the encoder proposes."""


@dataclass(frozen=True, slots=True)
class NameWeights:
    """Weights of an ELQ model for the names of candidates, and its logit of NIL."""

    named: float
    """Added to the score of a candidate that the KB knows by the mention's name."""
    log_prior: float
    """Weight of the logarithm of the candidate's prior for that name."""
    nil: float
    """Logit of "none of the candidates"; -inf for a model without NIL."""

    def scores(self, similarity: Floats, priors: Floats) -> Floats:
        """Return the logits of candidates from their similarities and priors."""
        named = priors > 0
        return np.asarray(similarity + named * (self.named + self.log_prior * np.log(np.clip(priors, 1e-3, 1.0))))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Spans of texts, sorted by text, start and descending end."""

    text_of: Ints
    """Index of the text of each span."""
    starts: Ints
    ends: Ints
    """Offsets in that text, in characters; end exclusive."""
    mention_logits: Floats
    ways: NDArray[np.uint8]
    """Way in which each span was found: indices into `FOUND_BY`."""
    edits: NDArray[np.uint8]
    """Edit distance to the alias, for names with a typo; 0 for the others."""
    rows: Ints
    """[span, candidate] candidates, the chosen one first and the others by probability: rows of the index, or NONE as
    padding."""
    log_p: Floats
    """[span, candidate] log p(entity | mention), where NIL is one of the choices; -inf for padding."""
    nil_log_p: Floats
    similarity: Floats
    """Dot product of the mention's own direction with the best candidate's vector."""
    context: Floats
    """[span, candidate] dot product of the context's direction with the candidate's vector; 0 for padding, and for a
    model that does not use the context."""
    priors: Floats
    """[span, candidate] prior of the candidate for the name; 0 if the name is not an alias of it."""
    title_keys: Keys
    bare_keys: Keys
    """Keys of the best candidate's title, with and without its disambiguation (`candidate_pool.Titles`)."""
    title_words: Floats
    popularity: Floats
    """Share of the KB's entities that are less popular than the best candidate."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def candidate_mask(self) -> NDArray[np.bool_]:
        """True for spans with a candidate."""
        return np.asarray(self.rows[:, 0] >= 0) if self.rows.shape[1] else np.zeros(len(self), np.bool_)

    def take(self, rows: NDArray[np.bool_] | Ints) -> Evidence:
        """Return the evidence of the selected spans."""
        return Evidence(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """Concatenate the evidence of several batches and sort the spans."""
        width = max((part.rows.shape[1] for part in parts), default=0)
        fill = {"rows": NONE, "log_p": -np.inf, "context": 0.0, "priors": 0.0}
        columns: dict[str, Any] = {}
        for field in fields(cls):
            arrays = [getattr(part, field.name) for part in parts]
            if field.name in fill:
                arrays = [_pad(array, width, fill[field.name]) for array in arrays]
            columns[field.name] = np.concatenate(arrays) if arrays else _EMPTY[field.name]
        whole = cls(**columns)
        return whole.take(np.lexsort((-whole.ends, whole.starts, whole.text_of)))


def decide(
    similarity: Floats,
    priors: Floats,
    rows: Ints,
    weights: NameWeights,
    *,
    names_first_mask: NDArray[np.bool_] | None = None,
) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """Sort candidates by probability; return (rows, log p, log p of NIL, similarity of the best, priors).

    In the spans of `names_first_mask` the best candidate that has the name is first, even if others are more probable:
    a span that is a name of the KB means an entity with that name or none (docs/log.md).
    """
    scores = np.where(rows >= 0, weights.scores(similarity, priors), -np.inf)
    rank = scores.copy()
    if names_first_mask is not None and scores.shape[1]:
        by_name = np.where((priors > 0) & (rows >= 0), scores, -np.inf)
        best_named = by_name.argmax(1)
        spans = np.flatnonzero(names_first_mask & np.isfinite(by_name.max(1)))
        rank[spans, best_named[spans]] = np.inf
    order = np.argsort(-rank, axis=1, kind="stable")
    rows, scores, similarity, priors = (
        np.take_along_axis(array, order, 1) for array in (rows, scores, similarity, priors)
    )
    top = np.maximum(scores.max(1, initial=-np.inf), weights.nil)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = top + np.log(np.exp(scores - top[:, None]).sum(1) + np.exp(weights.nil - top))
    total = np.where(np.isfinite(total), total, 0.0)  # -inf where a span has neither candidates nor NIL
    best = similarity[:, 0] if similarity.shape[1] else np.zeros(len(rows))
    return rows, scores - total[:, None], weights.nil - total, best, priors


def _pad(array: NDArray[Any], width: int, value: float) -> NDArray[Any]:
    """Pad an array [span, candidate] with `value` to a number of candidates."""
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing)), constant_values=value) if missing else array


_EMPTY: dict[str, NDArray[Any]] = {
    **{name: np.zeros(0, np.int64) for name in ("text_of", "starts", "ends")},
    **{name: np.zeros(0, np.uint8) for name in ("ways", "edits")},
    **{name: np.zeros(0) for name in ("mention_logits", "nil_log_p", "similarity", "title_words", "popularity")},
    **{name: np.zeros(0, np.uint64) for name in ("title_keys", "bare_keys")},
    "rows": np.zeros((0, 0), np.int64),
    **{name: np.zeros((0, 0)) for name in ("log_p", "context", "priors")},
}
