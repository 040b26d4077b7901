"""Train the packaged link scorer, and measure it on what it was not trained on: `python -m benchmarks.scorer MODEL`.

MODEL is the folder of a trained linker; with `--to FILE` the scorer that was trained on all sources is written there
(`scorer.safetensors` in the folder of the linker). Printed are F1 at the scorer's threshold and at the best one, each
for three ways of leaving out: a third of the documents in turn, the whole kind of text, the whole knowledge base.

F1 is over labelled spans (`training.link_scorer`): a right entity on a span that is not quite the gold one counts only
where no exact one is found. So it is lower than that of `benchmarks.accuracy`, which decides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import has_shared
from benchmarks.evidence_cache import EvidenceCache
from benchmarks.scorersources import Source, sources
from wellread.assets import home
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding, without_overlaps
from wellread.linking.features import FEATURES
from wellread.linking.link_scorer import LinkScorer
from wellread.models.elq.candidate_pool import Search
from wellread.models.elq.load import load_backend
from wellread.training.link_scorer import NAMED, OPEN, RIGHT, WRONG, Spans, collect, fit, fit_known_mentions

_FOLDS = 3
_MOST = 2000
"""Labelled spans of a source that count in full; a larger source counts as much as one of this size."""
_KINDS = {"dialogue": 1.5, "queries": 2.0}
"""Weights of kinds of text with few sources; others have 1."""
_NAMED, _INCOMPLETE = 2.0, 0.4
"""Weights of named-entity annotation, which shows what is not linked, and of incomplete links, which hardly do."""
_OWN = 2.0
"""Weight of KBs as users have them (ontologies, catalogues, lists of names): left-out ones gain by it."""
_WHOLE = ("shared", "ncbi", "ncbi-capitals", "crossner-names", "redocred-names")
"""KBs whose sources count in full; others are parts of the shared KB, with the same texts."""
_BY_CHANCE = np.isin(FEATURES, ["kb_lower", "kb_aliases", "kb_described", "kb_distinct", "kb_digits"])
"""Statistics that tell these few KBs apart, not kinds of KBs: hidden in training, so that no tree asks for them."""
_BY_ENCODER = FEATURES.index("by_encoder")
_SIZE, _SIZES = FEATURES.index("kb_log_entities"), (2.0, 5.5)
"""KBs that were made from texts are small by chance, so in training each document has one of another size (log10)."""
_DRAWN = [place for place, name in enumerate(FEATURES) if name.startswith("kb_") and not _BY_CHANCE[place]]
"""Statistics that are drawn anew for each document of a KB other than the two encyclopedias, from the range of all KBs.

The trees can then tell an encyclopedia from other KBs, but not those from each other: there are too few to learn from,
and what held for one of them was wrong for the next.
"""
_TREES = {"trees": 200, "levels": 4, "rate": 0.08}
_CONCEPT_WEIGHT = 0.0
"""Weight of unlinked common words where only names are marked (`Source.names_only`): the same KB may want them."""
_CAPITAL, _LOWER_SHARE, _LOWER = FEATURES.index("capital"), FEATURES.index("lower_share"), 0.7
"""A common word begins with a small letter, in the text and mostly in general English."""
_THRESHOLD = 0.27
_GRID = np.arange(0.1, 0.85, 0.05)


@dataclass(frozen=True, slots=True)
class Collected:
    """A source with the features and labels of its spans."""

    source: Source
    spans: Spans
    fold: NDArray[np.int64]
    """Third of the documents that each span belongs to, by the text's digest."""
    targets: NDArray[np.float64] | None = None
    """Probability that each NAMED span is right, in their order."""

    @property
    def family(self) -> str:
        """Knowledge bases that are left out together: parts of the shared KB are one with it."""
        name = self.source.kb.stem
        if name.startswith("ncbi"):
            return "ncbi"
        apart = name == "vital" or name.endswith("-names") or name.startswith("wordnet-")
        return name if apart else "shared"

    @property
    def weight(self) -> float:
        """Weight of each of its spans."""
        labelled = int((self.spans.labels != OPEN).sum())
        own = 1.0 if self.source.kb.stem in _WHOLE else 0.5
        if self.family not in ("shared", "vital"):
            own *= _OWN
        if not self.source.entities:
            own *= _NAMED
        elif not self.source.complete:
            own *= _INCOMPLETE
        return min(1.0, _MOST / max(labelled, 1)) * _KINDS.get(self.source.kind, 1.0) * own


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--to", type=Path, help="write the scorer to this file")
    parser.add_argument("--folder", type=Path, default=home() / "bench", help="where knowledge bases are kept")
    parser.add_argument("--cache", type=Path, help="where evidence is kept; default: scorer-evidence in --folder")
    parser.add_argument("--quick", action="store_true", help="do not measure, only train")
    options = parser.parse_args(given)
    if not has_shared():
        print("scorer: there is no shared data at ../shared/data; nothing to train on")
        return 0
    cache = EvidenceCache(options.cache or options.folder / "scorer-evidence", options.model)
    parts = _with_targets([_collected(source, options.model, cache) for source in sources(options.folder)])
    if not options.quick:
        _report(parts)
    if options.to is not None:
        about = {one.source.name: int((one.spans.labels != OPEN).sum()) for one in parts}
        scorer = _fitted(parts, lambda one: np.ones(len(one.spans), np.bool_))
        replace(scorer, threshold=_THRESHOLD, about=json.dumps({"labelled spans": about})).save(options.to)
        print(f"{options.to}: trained on {sum(about.values()):,} labelled spans of {len(parts)} sources")
    return 0


def _collected(source: Source, model: Path, cache: EvidenceCache) -> Collected:
    """Read the texts of a source as the linker would, in its precision."""
    with KnowledgeBase.open(source.kb) as kb:
        backend = load_backend(
            kb,
            model,
            search=Search(),
            among=None,
            threshold=None,
            decoding=Decoding(),
            trust=None,
            precision="auto",
            name=source.kb.stem,
            scorer=_ANY,
        )
        spans = collect(
            backend,
            source.documents,
            complete=source.complete,
            entities=source.entities,
            evidence=partial(cache.evidence, backend),
        )
    digests = [hashlib.sha256(document.text.lower().encode()).digest()[1] for document in source.documents]
    fold = np.array(digests, np.int64)[spans.document_of] % _FOLDS
    print(f"{source.name}: {len(source.documents)} documents, {len(spans)} spans", flush=True)
    return Collected(source, spans, fold)


_ANY = LinkScorer(np.zeros((1, 1), np.int16), np.zeros((1, 1), np.float32), np.zeros((1, 2), np.float32))
"""A scorer that makes names propose spans; what it says does not count."""


def _with_targets(parts: Sequence[Collected]) -> list[Collected]:
    """Estimate how likely the NAMED spans of each source are right, where the source does not say it."""
    known = [one for one in parts if one.source.entities]
    scorer = fit_known_mentions([one.spans for one in known], [one.weight for one in known])
    found = []
    for one in parts:
        named = one.spans.labels == NAMED
        if not named.any():
            found.append(one)
        elif one.source.named is not None:
            by_name = one.spans.rows[named][:, _BY_ENCODER] == 0
            found.append(replace(one, targets=np.where(by_name, one.source.named, 0.0)))
        else:
            found.append(replace(one, targets=scorer.probabilities(one.spans.rows[named])))
    return found


def _fitted(parts: Sequence[Collected], chosen: Callable[[Collected], NDArray[np.bool_]]) -> LinkScorer:
    """Train on the labelled spans of each source that are chosen; NAMED ones are both right and wrong, by chance."""
    rows, labels, weights = [], [], []
    ranges, chance = _ranges(parts), np.random.default_rng(0)
    for one in parts:
        shown = np.where(_BY_CHANCE, np.float32(0), one.spans.rows)
        if one.family not in ("shared", "vital"):
            for place in _DRAWN:
                drawn = chance.uniform(*ranges[place], len(one.source.documents))
                shown[:, place] = drawn[one.spans.document_of]
        mask, named = chosen(one), one.spans.labels == NAMED
        counts = np.full(len(one.spans), one.weight)
        counts[_is_unmarked_concept(one)] *= _CONCEPT_WEIGHT
        known = mask & (one.spans.labels != OPEN) & ~named & (counts > 0)
        rows.append(shown[known])
        labels.append(one.spans.labels[known])
        weights.append(counts[known])
        if one.targets is not None:
            for label, targets in ((RIGHT, one.targets), (WRONG, 1 - one.targets)):
                rows.append(shown[mask & named])
                labels.append(np.full(int((mask & named).sum()), label, np.int8))
                weights.append(one.weight * targets[mask[named]])
    return fit(np.concatenate(rows), np.concatenate(labels), np.concatenate(weights), **_TREES)


def _is_unmarked_concept(one: Collected) -> NDArray[np.bool_]:
    """Return which spans are common words with a name of the KB, in text where only names are marked."""
    if not one.source.names_only:
        return np.zeros(len(one.spans), np.bool_)
    rows = one.spans.rows
    lower = (rows[:, _CAPITAL] == 0) & (rows[:, _LOWER_SHARE] > _LOWER)
    return np.asarray(lower & (one.spans.labels == WRONG) & (rows[:, _BY_ENCODER] == 0))


def _ranges(parts: Sequence[Collected]) -> dict[int, tuple[float, float]]:
    """Return lowest and highest value of the statistics that are drawn; sizes have their own range."""
    profiles = np.array([one.spans.rows[0, _DRAWN] for one in parts if len(one.spans)])
    found = dict(zip(_DRAWN, zip(profiles.min(0).tolist(), profiles.max(0).tolist(), strict=True), strict=True))
    return found | {_SIZE: _SIZES}


def _report(parts: Sequence[Collected]) -> None:
    thirds = [_fitted(parts, lambda one, fold=fold: one.fold != fold) for fold in range(_FOLDS)]
    kinds = {kind: _fitted(parts, lambda one, kind=kind: _all(one, one.source.kind != kind)) for kind in _kinds(parts)}
    families = {
        name: _fitted(parts, lambda one, name=name: _all(one, one.family != name))
        for name in sorted({one.family for one in parts})
    }
    print("\n| source | kind | gold | a third left out | the kind left out | the KB left out |")
    print("|---|---|---|---|---|---|")
    for one in parts:
        if not one.source.entities:
            continue
        by_third = np.zeros(len(one.spans))
        for fold, scorer in enumerate(thirds):
            by_third[one.fold == fold] = scorer.probabilities(one.spans.rows[one.fold == fold])
        by_kind = kinds[one.source.kind].probabilities(one.spans.rows)
        by_kb = families[one.family].probabilities(one.spans.rows)
        figures = " | ".join(_figures(one, scores) for scores in (by_third, by_kind, by_kb))
        print(f"| {one.source.name} | {one.source.kind} | {one.spans.gold} | {figures} |", flush=True)


def _kinds(parts: Sequence[Collected]) -> list[str]:
    return sorted({one.source.kind for one in parts})


def _all(one: Collected, chosen: bool) -> NDArray[np.bool_]:
    return np.full(len(one.spans), chosen)


def _figures(one: Collected, scores: NDArray[np.float64]) -> str:
    """Return F1 at the default threshold and at the best one."""
    best = max(_f1(one, scores, threshold) for threshold in _GRID)
    return f"{_f1(one, scores, _THRESHOLD):.3f} (best {best:.3f})"


def _f1(one: Collected, scores: NDArray[np.float64], threshold: float) -> float:
    """Return F1 of the spans above a threshold without those that overlap a better one; open ones do not count."""
    far = 1 << 32
    base = one.spans.document_of * far
    places = np.stack((one.spans.starts + base, one.spans.ends + base), 1)
    rows = np.flatnonzero(scores > threshold)
    kept = without_overlaps(places, rows[np.argsort(-scores[rows], kind="stable")].tolist())
    labels = one.spans.labels[kept]
    right, given = int((labels == RIGHT).sum()), int((labels != OPEN).sum())
    return 2 * right / max(given + one.spans.gold, 1)


if __name__ == "__main__":
    sys.exit(main())
