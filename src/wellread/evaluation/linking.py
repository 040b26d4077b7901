"""Scores of entity linking: precision, recall and F1 of spans, and of spans with their entities.

Every score is computed for two kinds of match, two scopes and two averages.

Match. `exact`: the spans are equal. `overlap`: they share a character (ELQ's weak match). A gold link matches at most
one prediction, and a prediction at most one gold link. Pairs are taken greedily by overlap (characters shared /
characters covered), so an exact pair comes before a looser one. Among several links on one span, one with the same
entity is preferred; otherwise they are taken in the order of their entities, NIL last.

Scope. `in_kb`: NIL is not an answer. Gold links that are NIL, or whose entity is not in the knowledge base, are
ignored, and so is a predicted NIL. Any other prediction counts, so one on a span whose gold entity is outside the
knowledge base is a false positive. This is the strict rule: other scorers ignore such predictions. `with_nil`: NIL is
an answer. A gold entity outside the knowledge base becomes NIL, and a NIL predicted at its span is right. Predictions
are never changed.

Average. `micro`: over all links. `macro`: the mean over documents; macro F1 is the mean of the documents' F1, not the
F1 of mean precision and recall.

A document without gold links and without predictions scores 1 in precision, recall and F1 (as in GERBIL). If only one
side is empty, all three are 0. Accuracy is the share of found spans with the right entity: documents without found
spans are left out of its macro average, and it is 0 if no span was found at all.

Gold documents may be partly annotated (`evaluation.partial_annotation`); predictions outside the annotation are
ignored.

Intervals are the 2.5th and 97.5th percentile of a bootstrap over documents.

Unlike the authors' code (ELQ): entity ids are case-sensitive, since ids of a KB may differ by case alone; `fold_ids`
compares them without case, as ELQ does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wellread.document import Document
from wellread.errors import InputError
from wellread.evaluation.partial_annotation import keep_judged

Match = Literal["exact", "overlap"]
Scope = Literal["in_kb", "with_nil"]
Average = Literal["micro", "macro"]
Floats = NDArray[np.float64]

_LINKED, _FOUND, _RIGHT, _PREDICTED, _GOLD = range(5)
"""Columns of the counts: links right, spans found, of these with the right entity, predicted links, gold links."""
_CHUNK = 1 << 22
"""Bootstrap weights in memory at a time."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Score and its 95 % interval (None without a bootstrap)."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" ({self.low:.3f}–{self.high:.3f})".replace("0.", ".")
        return f"{self.value:.3f}{interval}"


@dataclass(frozen=True, slots=True)
class Measures:
    """Precision, recall and their harmonic mean."""

    precision: Estimate
    recall: Estimate
    f1: Estimate


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one match, scope and average; the counts are over all documents."""

    match: Match
    scope: Scope
    average: Average
    linking: Measures
    """Scores of spans with their entities."""
    detection: Measures
    """Scores of spans alone."""
    accuracy: Estimate
    """Share of the found spans with the right entity."""
    linked: int
    """Number of predictions with the right span and entity."""
    found: int
    """Number of predictions with the right span."""
    predicted: int
    gold: int


@dataclass(frozen=True, slots=True)
class LinkingScores:
    """Scores of one dataset: one `Score` per match, scope and average."""

    documents: int
    scores: tuple[Score, ...]

    columns = ("scope", "match", "gold", "precision", "recall", "F1", "macro F1", "span F1", "accuracy")

    def get(self, *, match: Match = "overlap", scope: Scope = "in_kb", average: Average = "micro") -> Score:
        """Return one score; the defaults are what ELQ reports."""
        return next(one for one in self.scores if (one.match, one.scope, one.average) == (match, scope, average))

    def rows(self) -> list[tuple[object, ...]]:
        """Return rows under `columns`, for a table: micro averages, and the macro F1 beside them."""
        return [
            (
                {"in_kb": "in KB", "with_nil": "with NIL"}[one.scope],
                *(one.match, one.gold),
                *(str(one.linking.precision), str(one.linking.recall), str(one.linking.f1)),
                self.get(match=one.match, scope=one.scope, average="macro").linking.f1.value,
                *(one.detection.f1.value, one.accuracy.value),
            )
            for one in self.scores
            if one.average == "micro"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts, for JSON."""
        return {"documents": self.documents, "scores": [asdict(one) for one in self.scores]}


def score_linking(
    gold: Sequence[Document],
    predicted: Sequence[Document],
    *,
    known: Callable[[str], bool] | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    fold_ids: bool = False,
) -> LinkingScores:
    """Score predicted documents against the gold ones, pair by pair.

    `known` returns True for entities of the knowledge base; by default all are. `bootstrap = 0` computes no intervals.
    With `fold_ids`, ids are compared without case ("Q90", "q90").
    """
    if len(gold) != len(predicted):
        raise InputError(
            f"{len(predicted)} predicted documents for {len(gold)} gold ones; give one for each (see align)"
        )
    if not gold:
        raise InputError("there are no documents to score; is the file empty, or were all documents skipped?")
    pairs, known = zip(gold, predicted, strict=True), known or _everything
    counts = np.array([_count(*pair, number, known, fold_ids=fold_ids) for number, pair in enumerate(pairs, 1)])
    # Documents with the same counts are one row with a higher weight: the same bootstrap at the cost of the distinct
    # rows, and independent of the order of the documents.
    rows, times = np.unique(counts, axis=0, return_counts=True)
    values = _statistics(times[None].astype(np.float64), rows)[0]
    low = high = None
    if bootstrap:
        low, high = np.percentile(_resample(rows, times, bootstrap, seed), [2.5, 97.5], axis=0)
    scores = []
    names = product(enumerate(get_args(Scope)), enumerate(get_args(Match)), enumerate(get_args(Average)))
    for (i, scope), (j, match), (k, average) in names:
        p, r, f1, span_p, span_r, span_f1, accuracy = (
            _estimate(values, low, high, (i, j, k, place)) for place in range(7)
        )
        linked, found, _, guesses, wanted = counts[:, i, j].sum(axis=0).tolist()
        linking, detection = Measures(p, r, f1), Measures(span_p, span_r, span_f1)
        scores.append(Score(match, scope, average, linking, detection, accuracy, linked, found, guesses, wanted))
    return LinkingScores(len(gold), tuple(scores))


def compare_linking(
    gold: Sequence[Document],
    ours: Sequence[Document],
    theirs: Sequence[Document],
    *,
    known: Callable[[str], bool] | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Return the difference in micro F1 (overlap, in KB) between two systems, with a paired bootstrap interval.

    Each draw uses the same documents for both systems, so differences in difficulty cancel.
    """
    if not len(gold) == len(ours) == len(theirs) > 0:
        raise InputError(
            f"{len(gold)} gold documents, {len(ours)} and {len(theirs)} predicted ones; give the same number of each"
        )
    triples = zip(gold, ours, theirs, strict=True)
    counts = np.array(
        [
            [_count(document, guess, number, known or _everything) for guess in guesses]
            for number, (document, *guesses) in enumerate(triples, 1)
        ]
    )
    rows, times = np.unique(counts, axis=0, return_counts=True)
    place = get_args(Scope).index("in_kb"), get_args(Match).index("overlap"), get_args(Average).index("micro"), 2

    def difference(weights: Floats) -> Floats:
        one, other = (_statistics(weights, rows[:, side])[(slice(None), *place)] for side in (0, 1))
        return np.asarray(one - other)

    value = float(difference(times[None].astype(np.float64))[0])
    if not bootstrap:
        return Estimate(value)
    drawn = np.concatenate([difference(weights) for weights in _draws(times, bootstrap, seed)])
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def with_prefix(prefix: str, document: Document) -> Document:
    """Return the document with prefixed entity ids, as the KB has them: "Paris" -> "wp:Paris"."""
    links = (link if link.entity is None else replace(link, entity=prefix + link.entity) for link in document.links)
    return replace(document, links=tuple(links))


def strangers(gold: Iterable[Document], known: Callable[[str], bool], kb: str) -> str | None:
    """Return a warning if fewer than 5 % of the gold ids are in the KB, which means that the ids differ in form."""
    wanted = {link.entity for document in gold for link in document.links if link.entity is not None}
    held = sum(map(known, wanted))
    if held * 20 >= len(wanted):
        return None
    return (
        f"{held or 'none'} of the {len(wanted):,} gold entities {'is' if held < 2 else 'are'} in {kb}; "
        "do the ids need --prefix wp: or --ids?"
    )


def align(gold: Sequence[Document], predicted: Iterable[Document]) -> list[Document]:
    """Return the predictions in the order of the gold documents: by id if ids are unique, else by position.

    By id, extra predictions are allowed; by position, the numbers must be equal.
    """
    predicted = list(predicted)
    by_id = {document.id: document for document in predicted}
    ids = [document.id for document in gold]
    if None not in ids and len(set(ids)) == len(ids) and len(by_id) == len(predicted) and set(ids) <= by_id.keys():
        return [by_id[name] for name in ids]
    if len(gold) != len(predicted):
        missing = [name for name in ids if name is not None and name not in by_id]
        hint = f"no prediction for id {missing[0]!r}" if missing else "their ids are not unique"
        raise InputError(
            f"{len(predicted)} predicted documents for {len(gold)} gold ones, and {hint}; "
            "give a prediction for each gold document, in the same order or with the same ids"
        )
    return predicted


def right_links(gold: Document, predicted: Document, known: Callable[[str], bool]) -> list[bool]:
    """Return True for each predicted link to an entity that overlaps a gold link with the same entity.

    NIL links are ignored, and each gold link matches once, as in the scope `in_kb`. Drop links outside the annotation
    first, see `keep_judged`.
    """
    wanted: list[_Place] = [
        (link.start, link.end, link.entity) for link in gold.links if link.entity and known(link.entity)
    ]
    guesses: list[_Place] = [(link.start, link.end, link.entity) for link in predicted.links if link.entity is not None]
    pairs = [(g, p) for g, p in _candidates(wanted, guesses, "overlap") if wanted[g][2] == guesses[p][2]]
    found = {p for _, p in _take_greedily(pairs)}
    return [place in found for place in range(len(guesses))]


# counting


def _everything(entity: str) -> bool:
    return True


def _count(
    gold: Document, predicted: Document, number: int, known: Callable[[str], bool], *, fold_ids: bool = False
) -> list[list[list[int]]]:
    """Return the counts of one document, by scope and match."""
    if gold.text != predicted.text:
        raise InputError(
            f"document {number} ({gold.id or 'no id'}): the predicted text {predicted.text[:40]!r} is not the gold "
            f"text {gold.text[:40]!r}; predict on the same texts, in the same order"
        )
    gold, predicted = keep_judged(gold, predicted)
    wanted = [
        (link.start, link.end, link.entity if link.entity is not None and known(link.entity) else None)
        for link in gold.links
    ]
    guesses = [(link.start, link.end, link.entity) for link in predicted.links]
    if fold_ids:
        wanted, guesses = (
            [(start, end, None if entity is None else entity.lower()) for start, end, entity in places]
            for places in (wanted, guesses)
        )
    for places in (wanted, guesses):  # several links may have the same span: the order must be deterministic
        places.sort(key=lambda place: (place[0], place[1], place[2] is None, place[2] or ""))
    counts = []
    for scope in get_args(Scope):
        if scope == "in_kb":
            ours, theirs = [one for one in guesses if one[2] is not None], [one for one in wanted if one[2] is not None]
        else:
            ours, theirs = guesses, wanted
        counts.append([_count_pairs(theirs, ours, match) for match in get_args(Match)])
    return counts


_Place = tuple[int, int, str | None]


def _count_pairs(gold: list[_Place], predicted: list[_Place], match: Match) -> list[int]:
    candidates = _candidates(gold, predicted, match)
    linked = _take_greedily([pair for pair in candidates if gold[pair[0]][2] == predicted[pair[1]][2]])
    found = _take_greedily(candidates)
    right = sum(gold[g][2] == predicted[p][2] for g, p in found)
    return [len(linked), len(found), right, len(predicted), len(gold)]


def _candidates(gold: list[_Place], predicted: list[_Place], match: Match) -> list[tuple[int, int]]:
    """Return pairs of gold and predicted links that may match, best overlap first.

    Ties are broken by position; the entity only decides between pairs of the same spans, so that the number of found
    spans does not depend on entities.
    """
    order = sorted(range(len(predicted)), key=lambda place: predicted[place][0])
    starts = [predicted[place][0] for place in order]
    longest = max((end - start for start, end, _ in predicted), default=0)
    ranked = []
    for g, (start, end, entity) in enumerate(gold):
        for p in order[bisect_left(starts, start - longest) : bisect_left(starts, end)]:
            other_start, other_end, other = predicted[p]
            shared = min(end, other_end) - max(start, other_start)
            if shared <= 0 or (match == "exact" and (start, end) != (other_start, other_end)):
                continue
            covered = max(end, other_end) - min(start, other_start)
            ranked.append((-shared / covered, start, end, other_start, other_end, entity != other, g, p))
    return [pair[-2:] for pair in sorted(ranked)]


def _take_greedily(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Take pairs in order, each gold link and each prediction at most once."""
    matched: dict[int, int] = {}
    used: set[int] = set()
    for g, p in pairs:
        if g not in matched and p not in used:
            matched[g] = p
            used.add(p)
    return list(matched.items())


# averaging


def _estimate(values: Floats, low: Floats | None, high: Floats | None, place: tuple[int, ...]) -> Estimate:
    if low is None or high is None:
        return Estimate(float(values[place]))
    return Estimate(float(values[place]), float(low[place]), float(high[place]))


def _resample(rows: NDArray[np.int64], times: NDArray[np.int64], bootstrap: int, seed: int) -> Floats:
    """Return the statistics of `bootstrap` samples of the documents, with replacement."""
    return np.concatenate([_statistics(weights, rows) for weights in _draws(times, bootstrap, seed)])


def _draws(times: NDArray[np.int64], bootstrap: int, seed: int) -> Iterator[Floats]:
    """Yield the weight of each row in each bootstrap sample, in chunks."""
    draw, total = np.random.default_rng(seed), int(times.sum())
    size = max(1, _CHUNK // len(times))
    for done in range(0, bootstrap, size):
        yield draw.multinomial(total, times / total, min(size, bootstrap - done)).astype(float)


def _statistics(weights: Floats, rows: NDArray[np.int64]) -> Floats:
    """Return scores by draw, scope, match and average: linking P, R, F1, detection P, R, F1, accuracy.

    `weights` (draw, row) are the multiplicities of the rows of counts (row, scope, match, count).
    """
    total = np.tensordot(weights, rows.astype(np.float64), axes=1)
    micro = np.concatenate([_measures(total), _ratio(total[..., _RIGHT], total[..., _FOUND])[..., None]], axis=-1)
    documents = weights.sum(axis=1)[:, None, None, None]
    macro = np.tensordot(weights, _measures(rows), axes=1) / documents
    accuracy = np.tensordot(weights, _ratio(rows[..., _RIGHT], rows[..., _FOUND]), axes=1)
    answered = np.tensordot(weights, (rows[..., _FOUND] > 0).astype(np.float64), axes=1)
    macro = np.concatenate([macro, _ratio(accuracy, answered)[..., None]], axis=-1)
    return np.stack([micro, macro], axis=-2)


def _measures(counts: NDArray[Any]) -> Floats:
    """Return precision, recall and F1 of linking, then of detection."""
    predicted, gold = counts[..., _PREDICTED], counts[..., _GOLD]
    nothing = (predicted == 0) & (gold == 0)
    columns = []
    for correct in (counts[..., _LINKED], counts[..., _FOUND]):
        for possible, factor in ((predicted, 1), (gold, 1), (predicted + gold, 2)):
            columns.append(np.where(nothing, 1.0, _ratio(factor * correct, possible)))
    return np.stack(columns, axis=-1)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Divide; 0 where the denominator is 0."""
    quotient: Floats = np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole != 0)
    return quotient
