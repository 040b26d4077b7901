"""Pseudo-labels: spans of unlabelled texts whose link is very likely right or wrong, judged without the scorer.

- `NAME`: an alias that only one entity has, as the KB writes it (or in another case), not part of another name, and
  rare in general English. Right about nine times in ten on the development sets (`TARGETS`).
- `IMPOSTOR`: the same mention as if the KB lacked its entity and its alias. The best of what is left is wrong.
- `NESTED`: a span inside a `NAME`. Links do not overlap, so it is wrong.
- `OPEN`: everything else. Its target is the score it has, with little weight: where nothing is known, nothing changes.

Other kinds were tried and did not help (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from wellread.linking.decoding import NONE, Floats, Ints
from wellread.linking.evidence import ENCODER, Evidence, decide
from wellread.linking.features import FEATURES, Matrix, features
from wellread.linking.link_scorer import LinkScorer
from wellread.mentions.variant_matcher import CASE, EXACT
from wellread.models.elq.linker import ElqBackend

OPEN, NAME, NESTED, IMPOSTOR = range(4)
"""Kinds of pseudo-labels."""
TARGETS = {NAME: 0.9, NESTED: 0.0, IMPOSTOR: 0.0}
"""Probability that a link of each kind is right."""
OPEN_WEIGHT = 0.05

_RARE, _RARE_IN_SEVERAL = 0.0, 1.0
"""log10 per million of the rarest word, below which a name is rare: of one word, of several words."""
_LEAST_CHARS = 4
_PROPOSED = -3.0
"""Mention logit above which the encoder proposes a span without its name."""
_FOLDS = 5
"""One in this many names is held out."""


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """Features and kinds of the spans of texts, and of their impostors, which follow the spans."""

    rows: Matrix
    kinds: NDArray[np.uint8]
    held_out_mask: NDArray[np.bool_]
    """True for names (by their text) that are not fitted on."""
    spans: Ints
    """(start, end) of the real spans, in characters of all texts end to end."""

    def __len__(self) -> int:
        return len(self.kinds)

    def count(self, kind: int) -> int:
        """Return the number of rows of a kind."""
        return int((self.kinds == kind).sum())

    def targets(self, scorer: LinkScorer) -> Floats:
        """Return the probability that each link is right; for open spans, the scorer's own."""
        found = scorer.probabilities(self.rows)
        for kind, target in TARGETS.items():
            found[self.kinds == kind] = target
        return found

    @classmethod
    def joined(cls, parts: Sequence[PseudoLabels]) -> PseudoLabels:
        """Join parts; the real spans of all come first, then the impostors of all."""
        rows = np.concatenate([part.rows for part in parts])
        kinds = np.concatenate([part.kinds for part in parts])
        held_out = np.concatenate([part.held_out_mask for part in parts])
        order = np.argsort(kinds == IMPOSTOR, kind="stable")
        return cls(rows[order], kinds[order], held_out[order], np.concatenate([part.spans for part in parts]))


def label(texts: Sequence[str], found: Evidence, backend: ElqBackend, *, base: int = 0) -> PseudoLabels:
    """Label the spans of texts, given their evidence; `base` is the offset of the first text."""
    rows = features(texts, found, backend.profile)
    name_mask = _names(found, rows)
    kinds = np.full(len(found), OPEN, np.uint8)
    kinds[name_mask] = NAME
    bases = base + np.append(0, np.cumsum([len(text) + 1 for text in texts]))[:-1]
    shift = bases[found.text_of] if len(found) else np.zeros(0, np.int64)
    spans = np.stack((found.starts + shift, found.ends + shift), 1)
    kinds[_inside(spans, name_mask)] = NESTED
    held_out = np.array(
        [
            crc32(texts[text][start:end].casefold().encode("utf-8", "surrogatepass")) % _FOLDS == 0
            for text, start, end in zip(found.text_of.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        ],
        np.bool_,
    )
    hidden = np.flatnonzero(name_mask & (found.mention_logits > _PROPOSED))
    changed = without_entity(found, hidden, backend)
    hidden = hidden[changed.candidate_mask[hidden]]
    real = np.flatnonzero(found.candidate_mask)  # a span without a candidate is never linked
    return PseudoLabels(
        np.concatenate((rows[real], features(texts, changed, backend.profile)[hidden])),
        np.append(kinds[real], np.full(len(hidden), IMPOSTOR, np.uint8)),
        np.append(held_out[real], held_out[hidden]),
        spans[real],
    )


def _names(found: Evidence, rows: Matrix) -> NDArray[np.bool_]:
    column = {name: rows[:, place] for place, name in enumerate(FEATURES)}
    rare = (column["rarest"] < _RARE) | ((column["words"] > 1) & (column["rarest"] < _RARE_IN_SEVERAL))
    alone = ((found.priors > 0).sum(1) == 1) & (column["own_name"] > 0)
    as_written = (found.ways == EXACT) | (found.ways == CASE)
    apart = (column["in_longer_name"] == 0) & (column["crosses_name"] == 0)
    return np.asarray(alone & as_written & rare & apart & (found.ends - found.starts >= _LEAST_CHARS))


def _inside(spans: Ints, name_mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the spans inside a name; names do not cross each other."""
    names = spans[name_mask]
    if not len(names):
        return np.zeros(len(spans), np.bool_)
    names = names[np.argsort(names[:, 0])]
    before = np.searchsorted(names[:, 0], spans[:, 0], "right") - 1
    return np.asarray((before >= 0) & (spans[:, 1] <= names[before, 1]) & ~name_mask)


def without_entity(found: Evidence, rows: Ints, backend: ElqBackend) -> Evidence:
    """Return the evidence as if the KB did not have the entities that the names of some spans mean.

    Everything that describes the best candidate must change with it, or the scorer learns to tell impostors by it.
    """
    if not len(rows):
        return found
    weights, scale = backend.weights, backend.model.scale
    some = found.take(rows)
    named = some.priors > 0
    bonus = weights.scores(np.zeros_like(some.priors), some.priors)
    best_score = some.similarity * scale + backend.config.context * some.context[:, 0] + bonus[:, 0]
    similarity = some.log_p - some.log_p[:, :1] + best_score[:, None] - bonus
    left = np.where(named, NONE, some.rows)
    entities, log_p, nil, best, priors = decide(similarity, np.zeros_like(some.priors), left, weights)
    there = np.arange(len(rows)), (some.rows == entities[:, :1]).argmax(1)
    context = np.zeros(entities.shape)
    context[:, 0] = np.where(entities[:, 0] >= 0, some.context[there], 0.0)
    own = np.where(entities[:, 0] >= 0, best, 0.0) - backend.config.context * context[:, 0]
    titles = backend.pool.titles(entities[:, 0])
    changes = {
        "rows": entities,
        "log_p": log_p,
        "nil_log_p": nil,
        "similarity": own / scale,
        "context": context,
        "priors": priors,
        "ways": np.full(len(rows), ENCODER, np.uint8),
        "edits": np.zeros(len(rows), np.uint8),
        "title_keys": titles.whole,
        "bare_keys": titles.bare,
        "title_words": titles.words,
        "popularity": titles.rank,
    }
    columns = {name: getattr(found, name).copy() for name in changes}
    for name, values in changes.items():
        columns[name][rows] = values
    return replace(found, **columns)
