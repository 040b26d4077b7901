"""Linking with ELQ: windows of texts through one encoder, spans through the index, scores out.

No step is wasted: texts are batched by length and packed, spans below the floor never reach the index, entities are
named only once they are linked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import logsigmoid

from wellread.errors import UsageError
from wellread.kb.store import KnowledgeBase
from wellread.knowledge.index import EntityIndex, Subset
from wellread.linker.decoding import Calibration, Decoding, Floats, Ints, Scored
from wellread.mentions.windows import Window, WindowCutter
from wellread.models.elq import Elq, ElqConfig
from wellread.models.entities import EntityTower, fingerprint_of
from wellread.nn.encoders import load_tokenizer, merge_adapters
from wellread.nn.packing import Packing
from wellread.nn.spans import span_mask

PACKAGED = Path(__file__).parent.parent / "weights" / "elq-minilm"
"""The linker that comes with wellread."""

Sources = Literal["union", "dense", "names"]
Precision = Literal["auto", "fp32", "int8"]

NIL, NONE = -1, -2
"""Rows that are no entity: none of the KB's, and no candidate at all."""

_PIECES = 2048
"""Pieces of one pass: enough to keep the cores busy, little enough for the cache."""


def find_model(model: str | Path) -> Path:
    """The folder of a linker: "elq" is the packaged one, anything else a folder that was trained or converted."""
    return PACKAGED if str(model) == "elq" else Path(model)


def load_tower(model: str | Path | None = None) -> EntityTower:
    """The entity side of a linker."""
    return EntityTower.load(ElqConfig.read(find_model(model or "elq")))


@dataclass(frozen=True, slots=True)
class Search:
    """What a mention is compared with."""

    sources: Sources = "union"
    """union: the nearest entities and those that the KB knows by the mention's name; dense, names: one of the two."""
    nearest: int = 10
    named: int = 10
    floor: float = -4.5
    """log p(mention) below which a span is not looked at."""
    mentions: int = 50
    """Spans of a window that are looked at, best first."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of one batch of windows that may be mentions."""

    window: Ints
    first: Ints
    last: Ints
    log_p: Floats
    vectors: NDArray[np.float32]


class ElqReader:
    """Scores texts with one model against one knowledge base; follows the KB when that changes."""

    def __init__(
        self,
        model: Elq,
        kb: KnowledgeBase,
        index: EntityIndex,
        *,
        tower: EntityTower | None = None,
        search: Search | None = None,
        among: Sequence[str] | None = None,
        decoding: Decoding | None = None,
        name: str | None = None,
        precision: Precision = "auto",
    ) -> None:
        self.model, self.kb, self.index = model, kb, index
        self.config = model.config
        self.search = search or Search()
        self.decoding = decoding or Decoding(threshold=model.config.threshold)
        self.calibration = Calibration(*model.config.calibration)
        self.name = name or kb.path.stem
        self.cutter = WindowCutter(load_tokenizer(model.config.encoder), whole_words=model.config.whole_words)
        self._among = among
        self._tower = tower
        self._subset: Subset | None = None
        self._subset_revision = -1
        self._named = lru_cache(1 << 16)(self._look_up)
        if self.search.sources not in ("union", "dense", "names"):
            raise UsageError(f"sources={self.search.sources!r} is not known; choose union, dense or names")
        if precision not in ("auto", "fp32", "int8"):
            raise UsageError(f"precision={precision!r} is not known; choose auto, fp32 or int8")

    @cached_property
    def tower(self) -> EntityTower:
        """The entity side; loaded when an entity has changed."""
        return self._tower or EntityTower.load(self.config)

    def score_many(self, texts: Sequence[str]) -> list[Scored]:
        """The scores of each text."""
        self._follow()
        windows = [window for text in self.cutter.cut(texts) for window in text]
        found: list[list[tuple[Ints, Floats, Ints, Floats, Floats]]] = [[] for _ in texts]
        with torch.inference_mode(), self.kb.snapshot():
            for batch in _batches(windows):
                spans = self._spans(batch)
                if not len(spans.first):
                    continue
                self._score(texts, batch, spans, found)
        return [self._joined(text, parts) for text, parts in zip(texts, found, strict=True)]

    def _follow(self) -> None:
        """Bring the index to the KB's revision, encoding only what changed."""
        if self.index.revision != self.kb.revision:
            self.index.refresh(self.kb, self.tower)
            self._named.cache_clear()
        if self._among is not None and self._subset_revision != self.index.revision:
            self._subset, self._subset_revision = self.index.subset(self._among), self.index.revision

    def _spans(self, batch: Sequence[Window]) -> _Spans:
        """One pass of the encoder, and the spans above the floor."""
        packing = Packing.of([len(window) for window in batch])
        ids = torch.from_numpy(np.concatenate([window.ids for window in batch]))
        special, begins, ends = (
            torch.from_numpy(np.concatenate(masks))
            for masks in zip(
                *((window.special_mask, window.begins_mask, window.ends_mask) for window in batch), strict=True
            )
        )
        states = self.model.states(ids, packing)
        log_p = logsigmoid(self.model.mention_scores(states))
        asked = span_mask(packing, special, self.config.longest, begins_mask=begins, ends_mask=ends)
        asked &= log_p > self.search.floor
        first, width = asked.nonzero(as_tuple=True)
        chosen = log_p[first, width].double().numpy()
        window = packing.text_of[first].numpy()
        keep = _best_of_each(window, chosen, self.search.mentions)
        first, last = first[keep], (first + width)[keep]
        vectors = self.model.mention_vectors(states, first, last)
        start = packing.starts[packing.text_of[first]]
        return _Spans(
            window[keep], (first - start).numpy(), (last - start).numpy(), chosen[keep], vectors.float().numpy()
        )

    def _score(
        self,
        texts: Sequence[str],
        batch: Sequence[Window],
        spans: _Spans,
        found: list[list[tuple[Ints, Floats, Ints, Floats, Floats]]],
    ) -> None:
        """Candidates of each span and their probabilities, put to the text they belong to."""
        offsets = np.array(
            [
                (batch[window].spans[first, 0], batch[window].spans[last, 1])
                for window, first, last in zip(spans.window, spans.first, spans.last, strict=True)
            ],
            np.int64,
        )
        text_of = np.array([batch[window].text for window in spans.window])
        names = [texts[text][start:end] for text, (start, end) in zip(text_of, offsets.tolist(), strict=True)]
        rows, scores, priors = self._candidates(names, spans.vectors)
        log_p = _log_softmax(scores)
        order = np.argsort(-log_p, axis=1, kind="stable")
        rows, log_p, priors = (np.take_along_axis(part, order, 1) for part in (rows, log_p, priors))
        for text in dict.fromkeys(text_of.tolist()):
            mine = text_of == text
            found[text].append((offsets[mine], spans.log_p[mine], rows[mine], log_p[mine], priors[mine]))

    def _candidates(self, names: Sequence[str], vectors: NDArray[np.float32]) -> tuple[Ints, Floats, Floats]:
        """(rows, scores, priors) of what each mention may mean: named ones first, then near ones, NIL last."""
        mentions = len(names)
        named = [self._named(name) for name in names] if self.search.sources != "dense" and self.config.names else []
        width = max((len(rows) for rows, _ in named), default=0)
        rows = np.full((mentions, width), NONE, np.int64)
        priors = np.zeros((mentions, width))
        for place, (some, shares) in enumerate(named):
            rows[place, : len(some)], priors[place, : len(some)] = some, shares
        scores = np.full((mentions, width), -np.inf)
        there = rows >= 0
        if there.any():
            place, col = np.nonzero(there)
            unique, back = np.unique(rows[there], return_inverse=True)
            dots = np.einsum("nd,nd->n", vectors[place], self.index.vectors_of(unique)[back])
            weights = self.model.names_head.weight[0].tolist()
            scores[place, col] = dots + weights[0] + weights[1] * np.log(np.maximum(priors[there], 1e-3))
        if self.search.sources != "names":
            near_scores, near = self.index.search(vectors, self.search.nearest, among=self._subset)
            again = (near[:, :, None] == rows[:, None, :]).any(2) if width else np.zeros(near.shape, bool)
            rows = np.concatenate((rows, np.where(again | (near < 0), NONE, near)), 1)
            scores = np.concatenate((scores, np.where(again | (near < 0), -np.inf, near_scores)), 1)
            priors = np.concatenate((priors, np.zeros(near.shape)), 1)
        nil = float(self.model.nil_head) if self.config.nil else -np.inf
        rows = np.concatenate((rows, np.full((mentions, 1), NIL if self.config.nil else NONE)), 1)
        scores = np.concatenate((scores, np.full((mentions, 1), nil)), 1)
        return rows, scores, np.concatenate((priors, np.zeros((mentions, 1))), 1)

    def _look_up(self, name: str) -> tuple[Ints, Floats]:
        """Rows and priors of the entities that the KB knows by a name."""
        candidates = self.kb.candidates(name, limit=self.search.named)
        rows = self.index.rows_of([candidate.entity for candidate in candidates])
        priors = np.array([candidate.prior for candidate in candidates])
        there = rows >= 0
        if self._subset is not None:
            there &= self._subset.holds(rows)
        return rows[there], priors[there]

    def _joined(self, text: str, parts: Sequence[tuple[Ints, Floats, Ints, Floats, Floats]]) -> Scored:
        width = max((part[2].shape[1] for part in parts), default=0)
        spans, mention, rows, entity, priors = (
            zip(*parts, strict=True) if parts else ((np.empty((0, 2), np.int64),), (np.empty(0),), (), (), ())
        )
        return Scored(
            text,
            np.concatenate(spans),
            np.concatenate(mention),
            _stacked(rows, width, NONE, np.int64),
            _stacked(entity, width, -np.inf, np.float64),
            _stacked(priors, width, 0.0, np.float64),
            self.calibration,
            self.decoding,
            self.index.names_of,
            self.name,
            (("kb", self.name), ("model", "elq")),
        )


def _batches(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Windows of like length, at most `_PIECES` pieces together."""
    batch: list[Window] = []
    size = 0
    for window in sorted(windows, key=len):
        if batch and size + len(window) > _PIECES:
            yield batch
            batch, size = [], 0
        batch.append(window)
        size += len(window)
    if batch:
        yield batch


def _best_of_each(group: Ints, score: Floats, most: int) -> Ints:
    """The rows of the `most` best of each group, in their order; `group` is sorted."""
    order = np.lexsort((-score, group))
    first = np.searchsorted(group, group[order])
    return np.sort(order[np.arange(len(order)) - first < most])


def _log_softmax(scores: Floats) -> Floats:
    """By row; a row without a finite score stays -inf."""
    top = scores.max(1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(scores - top).sum(1, keepdims=True))
    return np.asarray(np.where(np.isfinite(scores), scores - top - total, -np.inf))


def _stacked(parts: Sequence[NDArray[np.generic]], width: int, fill: float, kind: type) -> NDArray[np.generic]:
    whole = np.full((sum(map(len, parts)), width), fill, kind)
    row = 0
    for part in parts:
        whole[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return whole
