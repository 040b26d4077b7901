"""Linking with ELQ: windows of texts through one encoder, spans through the index, scores out.

No step is wasted: texts are batched by length and packed, spans below the floor never reach the index, entities are
named only once they are linked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from wellread import console
from wellread.errors import UsageError
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.knowledge.build import build_index
from wellread.knowledge.folder import vectors_folder
from wellread.knowledge.index import EntityIndex
from wellread.knowledge.vectors import Encoding
from wellread.linker.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored
from wellread.linker.pool import Pool, Search, features_of
from wellread.mentions.groups import gather
from wellread.mentions.windows import Window, WindowCutter
from wellread.models.elq import Candidates, Elq, ElqConfig, pack_windows
from wellread.models.entities import EntityTower, fingerprint_of
from wellread.nn.encoders import load_tokenizer, merge_adapters, positions_of
from wellread.nn.int8 import quantise, quantise_where_able
from wellread.nn.packing import Packing
from wellread.text import Document

PACKAGED = Path(__file__).parent.parent / "weights" / "elq-minilm"
"""The linker that comes with wellread."""

Precision = Literal["auto", "fp32", "int8"]

_PIECES = 2048
"""Pieces of one pass: enough to keep the cores busy, little enough for the cache."""


def find_model(model: str | Path) -> Path:
    """The folder of a linker: "elq" is the packaged one, anything else a folder that was trained or converted."""
    if str(model) == "elq":
        return PACKAGED
    if not Path(model).is_dir():
        raise UsageError(
            f"there is no model {str(model)!r}; choose elq, knowbert or prior, or give the folder of a trained one"
        )
    return Path(model)


def load_tower(model: str | Path | None = None) -> EntityTower:
    """The entity side of a linker."""
    return EntityTower.load(ElqConfig.read(find_model(model or "elq")))


def open_index(kb: KnowledgeBase, config: ElqConfig, tower: EntityTower | None = None) -> EntityIndex:
    """The index of a KB for a linker, built where there is none; one of another encoder is refused."""
    if not (vectors_folder(kb) / "index.json").exists():
        progress = Encoding()
        console.note(f"encoding the {len(kb):,} entities of {kb.path.name}; this is done once and can be interrupted")
        with console.progress_bar("encoding", progress):
            build_index(kb, tower or EntityTower.load(config), progress=progress)
    return EntityIndex.open(kb, fingerprint=fingerprint_of(config), stale="allow")


def cutter_of(config: ElqConfig) -> WindowCutter:
    """Windows of a linker's texts: behind the last token that a window owns there is room for the longest mention."""
    shared, behind = max(24, 2 * config.longest), None
    width = min(config.window or 192, positions_of(config.encoder))
    if width < 2 * shared + 2:  # e.g. 20 tokens, which ELQ's authors fine-tuned with on questions
        behind = min(config.longest, 3 * (width - 2) // 4)
        shared = behind + (width - 2 - behind) // 2
    tokenizer = load_tokenizer(config.encoder)
    return WindowCutter(tokenizer, width=width, shared=shared, behind=behind, whole_words=config.whole_words)


def candidates_of(pool: Pool, rows: Ints, priors: Floats) -> Candidates:
    """What a pool found, as the model scores it."""
    features = torch.from_numpy(features_of(priors)).float()
    return Candidates(torch.from_numpy(pool.vectors_of(rows)), features, torch.from_numpy(rows >= 0))


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
        among: Iterable[str] | None = None,
        decoding: Decoding | None = None,
        trust: float | None = None,
        name: str | None = None,
    ) -> None:
        self.model, self.kb = model, kb
        self.config = model.config
        self.search = search or Search()
        self.decoding = decoding or Decoding(threshold=model.config.threshold)
        self.calibration = Calibration(*model.config.calibration)
        self.name = name or kb.path.stem
        self.cutter = cutter_of(model.config)
        self.pool = Pool(kb, index, self.search, among=among)
        self._tower = tower
        self.trust = model.config.trust if trust is None else trust

    @cached_property
    def tower(self) -> EntityTower:
        """The entity side; loaded when an entity has changed."""
        return self._tower or EntityTower.load(self.config)

    def part(self, among: Iterable[str] | None) -> ElqReader:
        """The same to some entities only; it shares the model, and the index as it is now."""
        self.pool.follow(lambda: self.tower)
        return ElqReader(
            self.model,
            self.kb,
            self.pool.index,
            search=self.search,
            among=among,
            decoding=self.decoding,
            trust=self.trust,
            name=self.name,
        )

    def link_many(self, texts: Sequence[str]) -> Iterator[Document]:
        """The links of each text."""
        least = self.decoding.log_threshold(self.calibration)
        return (scored.document() for scored in self.score_many(texts, floor=max(self.search.floor, least)))

    def score_many(self, texts: Sequence[str], *, floor: float | None = None) -> list[Scored]:
        """The scores of each text; spans with a log p(mention) below the floor are not looked at."""
        self.pool.follow(lambda: self.tower)
        windows = [window for text in self.cutter.cut(texts) for window in text]
        found: list[list[tuple[Ints, Floats, Ints, Floats, Floats]]] = [[] for _ in texts]
        with torch.inference_mode(), self.kb.snapshot():
            for batch in gather(sorted(windows, key=len), largest=_PIECES):
                spans = self._spans(batch, self.search.floor if floor is None else floor)
                if not len(spans.first):
                    continue
                self._score(texts, batch, spans, found)
        return [self._joined(text, parts) for text, parts in zip(texts, found, strict=True)]

    def score_given(self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> list[Scored]:
        """The scores of given spans, which are taken for mentions; those that touch no piece are left out."""
        self.pool.follow(lambda: self.tower)
        asked, spans_of = list[Window](), dict[int, list[tuple[int, int]]]()
        for windows, some in zip(self.cutter.cut(texts), spans, strict=True):
            for number, mine in _windows_of(windows, some).items():
                asked.append(windows[number])
                spans_of[id(windows[number])] = mine
        found: list[list[tuple[Ints, Floats, Ints, Floats, Floats]]] = [[] for _ in texts]
        with torch.inference_mode(), self.kb.snapshot():
            for batch in gather(sorted(asked, key=len), largest=_PIECES):
                ids, packing, _ = pack_windows(batch, self.config.longest)
                states = self.model.states(ids, packing)
                places = [(number, span) for number, window in enumerate(batch) for span in spans_of[id(window)]]
                covered = np.array([batch[number].covering(*span) for number, span in places], np.int64)
                window_of = np.array([number for number, _ in places])
                pieces = torch.from_numpy(covered) + packing.starts[torch.from_numpy(window_of)][:, None]
                vectors = self.model.mention_vectors(states, pieces[:, 0], pieces[:, 1]).float().numpy()
                text_of = np.array([window.text for window in batch])[window_of]
                self._put(texts, text_of, np.array([span for _, span in places]), np.zeros(len(places)), vectors, found)
        return [self._joined(text, parts) for text, parts in zip(texts, found, strict=True)]

    def _spans(self, batch: Sequence[Window], floor: float) -> _Spans:
        """One pass of the encoder, and the spans above the floor."""
        ids, packing, asked = pack_windows(batch, self.config.longest)
        states = self.model.states(ids, packing)
        log_p = logsigmoid(self.model.mention_scores(states))
        asked &= log_p > floor
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
        self._put(texts, text_of, offsets, spans.log_p, spans.vectors, found)

    def _put(
        self,
        texts: Sequence[str],
        text_of: Ints,
        offsets: Ints,
        mention_log_p: Floats,
        vectors: NDArray[np.float32],
        found: list[list[tuple[Ints, Floats, Ints, Floats, Floats]]],
    ) -> None:
        names = [texts[text][start:end] for text, (start, end) in zip(text_of, offsets.tolist(), strict=True)]
        rows, log_p, priors = self._candidates(names, vectors)
        order = np.argsort(-log_p, axis=1, kind="stable")
        rows, log_p = np.take_along_axis(rows, order, 1), np.take_along_axis(log_p, order, 1)
        priors = np.take_along_axis(priors, order, 1)
        for text in dict.fromkeys(text_of.tolist()):
            mine = text_of == text
            found[text].append((offsets[mine], mention_log_p[mine], rows[mine], log_p[mine], priors[mine]))

    def _candidates(self, names: Sequence[str], vectors: NDArray[np.float32]) -> tuple[Ints, Floats, Floats]:
        """(rows, log probabilities, priors) of what each mention may mean, NIL last."""
        rows, priors = self.pool.find(names, vectors)
        candidates = candidates_of(self.pool, rows, priors)
        log_p = self.model.entity_log_p(torch.from_numpy(vectors), candidates, self.trust).numpy()
        nil = np.full((len(names), 1), NIL if self.config.nil else NONE)
        return np.concatenate((rows, nil), 1), log_p, np.concatenate((priors, np.zeros(nil.shape)), 1)

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
            partial(_names_of, self.pool.index),  # of now: rows mean something else once the KB has changed
            self.name,
            (("kb", self.name), ("model", "elq")),
        )


def _windows_of(windows: Sequence[Window], spans: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """The window that each span is best read in: that which sees most of it, and most around it."""
    begins = np.array([window.spans[~window.special_mask, 0].min(initial=1 << 62) for window in windows])
    ends = np.array([window.spans[:, 1].max() for window in windows])
    chosen: dict[int, list[tuple[int, int]]] = {}
    for start, end in spans:
        best = (-1, -1, 1)
        for number in np.flatnonzero((begins < end) & (ends > start)).tolist():
            if (seen := windows[number].covering(start, end)) is not None:
                around = min(seen[0], len(windows[number]) - 1 - seen[1])
                best = max(best, (seen[1] - seen[0], around, -number))
        if best[2] <= 0:
            chosen.setdefault(-best[2], []).append((start, end))
    return chosen


def load_reader(
    kb: KnowledgeBase,
    model: str | Path,
    *,
    search: Search,
    among: Iterable[str] | None,
    threshold: float | None,
    decoding: Decoding,
    trust: float | None,
    precision: Precision,
    name: str,
) -> ElqReader:
    """A reader for inference: adapters merged, in the asked or the model's precision; builds a missing index."""
    if precision not in ("auto", "fp32", "int8"):
        raise UsageError(f"precision={precision!r} is not known; choose auto, fp32 or int8")
    folder = find_model(model)
    index = open_index(kb, ElqConfig.read(folder))
    elq = Elq.from_pretrained(folder).eval().requires_grad_(False)
    merge_adapters(elq.encoder)
    precision = elq.config.precision if precision == "auto" else precision
    if precision != "fp32":
        reduce = quantise if precision == "int8" else quantise_where_able
        elq.encoder = reduce(elq.encoder, _sample(kb, elq.config))  # type: ignore[assignment]
    if threshold is None:
        threshold = elq.config.threshold
    return ElqReader(
        elq,
        kb,
        index,
        search=search,
        among=among,
        decoding=replace(decoding, threshold=threshold),
        trust=trust,
        name=name,
    )


def _sample(kb: KnowledgeBase, config: ElqConfig) -> tuple[Tensor, Packing] | None:
    """Some texts like those to come, to measure the ranges of 8 bits by: what the KB says of its first entities."""
    with sqlite_errors(kb.path):
        rows = kb.connection.execute("SELECT title, description FROM entities LIMIT 64").fetchall()
    texts = [f"{title}: {description}" for title, description in rows] + [f"what is {row[0]}?".lower() for row in rows]
    windows = [windows[0] for windows in cutter_of(config).cut(texts) if windows]
    return pack_windows(windows, config.longest)[:2] if windows else None


def of_kinds(kb: KnowledgeBase, kinds: Iterable[str], among: Iterable[str] | None = None) -> list[str]:
    """The ids of the entities of some kinds (and among those given)."""
    wanted = sorted(set(kinds))
    with sqlite_errors(kb.path):
        rows = kb.connection.execute(
            "SELECT id FROM entities WHERE kind IN (SELECT value FROM json_each(?))", (json.dumps(wanted),)
        ).fetchall()
    if not rows:
        raise UsageError(f"{kb.path.name} has no entity of the kinds {', '.join(wanted)}; see: wellread kb stats")
    allowed = None if among is None else set(among)
    return [id for (id,) in rows if allowed is None or id in allowed]


def _names_of(index: EntityIndex, rows: Sequence[int]) -> list[tuple[str, str]]:
    """(id, title) of rows."""
    return list(zip(index.entities(rows), index.titles(rows), strict=True))


def _best_of_each(group: Ints, score: Floats, most: int) -> Ints:
    """The rows of the `most` best of each group, in their order; `group` is sorted."""
    order = np.lexsort((-score, group))
    first = np.searchsorted(group, group[order])
    return np.sort(order[np.arange(len(order)) - first < most])


def _stacked(parts: Sequence[NDArray[Any]], width: int, fill: float, kind: type) -> NDArray[Any]:
    whole: NDArray[Any] = np.full((sum(map(len, parts)), width), fill, kind)
    row = 0
    for part in parts:
        whole[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return whole
