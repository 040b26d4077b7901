"""Training of the link scorer: spans of linked texts with their features and labels.

Sources differ in knowledge base and kind of text, so that the scorer generalises. Whole knowledge bases and kinds of
text are held out in turn to measure this (`benchmarks.scorer`).

A span is right if its best candidate is the gold entity of that span; wrong if the gold link differs, or if there is
none and the annotation is complete. Spans that the annotation leaves open (`unsure`, `optional`, incomplete text) have
no label. Named-entity annotation marks a span as a mention without its entity: such spans are NAMED, and count as right
with the probability that a scorer of known mentions gives them (`fit_known_mentions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.document import Document, Link
from wellread.linking.decoding import Floats
from wellread.linking.evidence import Evidence
from wellread.linking.features import FEATURES, Matrix, features
from wellread.linking.link_scorer import LinkScorer
from wellread.models.elq.linker import ElqBackend

RIGHT, WRONG, OPEN, NAMED = 1, 0, -1, 2
"""Labels of spans. OPEN: the annotation does not say; NAMED: a mention whose entity the annotation does not name."""

_TOGETHER = 256
"""Documents that are read together."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Features and labels of the spans of one source."""

    rows: Matrix
    labels: NDArray[np.int8]
    document_of: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    mention_mask: NDArray[np.bool_]
    """True for spans that are exactly a gold mention."""
    gold: int
    """Gold links whose entity is in the KB."""

    def __len__(self) -> int:
        return len(self.labels)


def collect(
    backend: ElqBackend,
    documents: Sequence[Document],
    *,
    complete: bool,
    entities: bool,
    evidence: Callable[[Sequence[str]], Evidence] | None = None,
) -> Spans:
    """Read documents and label their spans.

    `complete`: what has no gold link is wrong. `entities=False`: gold links without an entity are named entities whose
    entity the annotation does not name, not NIL. `evidence` reads texts in place of the backend, e.g. from a cache.
    """
    rows, labels, numbers, starts, ends, mentions = [], [], [], [], [], []
    for begin in range(0, len(documents), _TOGETHER):
        batch = documents[begin : begin + _TOGETHER]
        texts = [document.text for document in batch]
        found = (evidence or backend.evidence)(texts)
        rows.append(features(texts, found, backend.profile))
        labels.append(_labels(backend, batch, found, complete, entities))
        numbers.append(found.text_of + begin)
        starts.append(found.starts)
        ends.append(found.ends)
        gold_spans = {(place, link.start, link.end) for place, one in enumerate(batch) for link in one.links}
        spans = zip(found.text_of.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        mentions.append(np.array([span in gold_spans for span in spans], np.bool_))
    known = backend.kb.__contains__
    gold = sum(link.entity is not None and known(link.entity) for document in documents for link in document.links)
    return Spans(
        np.concatenate(rows),
        np.concatenate(labels),
        np.concatenate(numbers),
        np.concatenate(starts),
        np.concatenate(ends),
        np.concatenate(mentions),
        gold,
    )


def _labels(
    backend: ElqBackend, documents: Sequence[Document], found: Evidence, complete: bool, entities: bool
) -> NDArray[np.int8]:
    best = found.rows[:, 0] if found.rows.shape[1] else np.full(len(found), -1)
    ids = np.full(len(found), None, object)
    there = np.flatnonzero(best >= 0)
    ids[there] = backend.pool.index.entities(best[there].tolist())
    labels = np.full(len(found), OPEN, np.int8)
    if not len(there):
        labels[:] = WRONG
        return labels
    borders = np.searchsorted(found.text_of, np.arange(len(documents) + 1))
    for document, begin, end in zip(documents, borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        own = slice(begin, end)
        spans = zip(found.starts[own].tolist(), found.ends[own].tolist(), ids[own].tolist(), strict=True)
        labels[own] = _document_labels(document, list(spans), complete, entities)
    return labels


def _document_labels(
    document: Document, spans: Sequence[tuple[int, int, str | None]], complete: bool, entities: bool
) -> list[int]:
    gold = {(link.start, link.end): link for link in document.links}
    exact = {
        (link.start, link.end)
        for start, end, id in spans
        if (link := gold.get((start, end))) is not None and link.entity is not None and link.entity == id
    }
    left_open = [*document.meta.get("unsure", ()), *document.meta.get("optional", ())]
    return [_label(span, document.links, gold, exact, left_open, complete, entities) for span in spans]


def _label(
    span: tuple[int, int, str | None],
    links: Sequence[Link],
    gold: dict[tuple[int, int], Link],
    exact: set[tuple[int, int]],
    left_open: Iterable[Sequence[int]],
    complete: bool,
    entities: bool,
) -> int:
    start, end, id = span
    if id is None:
        return WRONG
    own = gold.get((start, end))
    if own is not None and own.entity is None and not entities:
        return NAMED
    if own is not None:
        return RIGHT if own.entity == id else WRONG
    overlapping = [link for link in links if link.start < end and start < link.end]
    if any(link.entity == id for link in overlapping):
        # The right entity on a span that differs from the gold span: right only if no exact span has it.
        return WRONG if any((link.start, link.end) in exact for link in overlapping) else RIGHT
    if overlapping:
        return WRONG
    if not complete or any(begin < end and start < stop for begin, stop in left_open):
        return OPEN
    return WRONG


def fit_known_mentions(known: Sequence[Spans], weights: Sequence[float]) -> LinkScorer:
    """Fit a scorer of mentions: the probability that the best candidate of a gold mention is right.

    `known` are spans of sources whose gold names entities; only their exact mentions count. `weights` are theirs.
    """
    masks = [part.mention_mask & (part.labels != OPEN) & (part.labels != NAMED) for part in known]
    rows = np.concatenate([part.rows[mask] for part, mask in zip(known, masks, strict=True)])
    labels = np.concatenate([part.labels[mask] for part, mask in zip(known, masks, strict=True)])
    counts = [np.full(int(mask.sum()), weight) for mask, weight in zip(masks, weights, strict=True)]
    return fit(rows, labels, np.concatenate(counts), trees=100, levels=4)


def fit(
    rows: Matrix,
    labels: NDArray[np.integer],
    weights: Floats,
    *,
    trees: int = 150,
    levels: int = 4,
    rate: float = 0.08,
    leaf: int = 40,
    ridge: float = 5.0,
    seed: int = 0,
) -> LinkScorer:
    """Fit gradient-boosted trees to labelled spans."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=trees,
        max_depth=levels,
        max_leaf_nodes=None,
        learning_rate=rate,
        min_samples_leaf=leaf,
        l2_regularization=ridge,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(rows, labels, sample_weight=weights)
    return _exported(model, levels)


def _exported(model: object, levels: int) -> LinkScorer:
    """Return scikit-learn's trees as arrays of full trees; a leaf above the last level fills all leaves below it."""
    trees = [trees[0] for trees in model._predictors]  # type: ignore[attr-defined]
    inner, leaves = (1 << levels) - 1, 1 << levels
    feature = np.zeros((len(trees), inner), np.int16)
    border = np.full((len(trees), inner), np.inf, np.float32)
    leaf = np.zeros((len(trees), leaves), np.float32)
    for number, tree in enumerate(trees):
        nodes = tree.nodes
        todo = [(0, 0, 0)]
        while todo:
            node, place, level = todo.pop()
            if nodes[node]["is_leaf"]:
                width = 1 << (levels - level)
                first = (place - ((1 << level) - 1)) * width
                leaf[number, first : first + width] = nodes[node]["value"]
                continue
            feature[number, place] = nodes[node]["feature_idx"]
            border[number, place] = _rounded_down(float(nodes[node]["num_threshold"]))
            todo.append((int(nodes[node]["left"]), 2 * place + 1, level + 1))
            todo.append((int(nodes[node]["right"]), 2 * place + 2, level + 1))
    shift = float(np.ravel(model._baseline_prediction)[0])  # type: ignore[attr-defined]
    return LinkScorer(feature, border, leaf, 1.0, shift)


def _rounded_down(border: float) -> np.float32:
    """Return the largest float32 that is at most a border, so that float32 features compare as before.

    A border is often the middle of two neighbouring values; rounded up, the greater one would change sides.
    """
    rounded = np.float32(border)
    return np.nextafter(rounded, np.float32(-np.inf)) if float(rounded) > border else rounded


assert len(set(FEATURES)) == len(FEATURES)
