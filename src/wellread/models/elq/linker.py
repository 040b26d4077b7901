"""ELQ's linker backend: encodes windows of texts, searches candidates of their spans, and scores both.

For speed, windows are batched by length and packed, spans below the floor are not searched in the index, and titles of
entities are read only for links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from wellread.data.batches import gather
from wellread.document import Document
from wellread.encoders.int8 import quantise, quantise_where_able
from wellread.encoders.load import load_tokenizer, merge_adapters, positions_of
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.index.entity_index import EntityIndex, build_index
from wellread.index.entity_vectors import Encoding
from wellread.index.folder import vectors_folder
from wellread.io import console
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored
from wellread.linking.evidence import ENCODER, Evidence, NameWeights, decide
from wellread.linking.features import features
from wellread.linking.kb_profile import KbProfile
from wellread.linking.link_scorer import LinkScorer, scorer_of
from wellread.mentions.proposals import ProposalFinder
from wellread.models.elq.candidate_pool import NO_CANDIDATES, Named, Pool, Search, features_of
from wellread.models.elq.entity_encoder import EntityTower, fingerprint_of
from wellread.models.elq.model import Candidates, Elq, ElqConfig, pack_windows
from wellread.models.elq.span_alignment import NamedSpans, tokens_of
from wellread.text.windows import Window, WindowTokenizer

PACKAGED = Path(__file__).parents[2] / "weights" / "elq-minilm"
"""Folder of the packaged linker."""

Precision = Literal["auto", "fp32", "int8"]

_TOKENS = 2048
"""Maximum number of tokens of a batch: enough to use all cores, few enough for the cache."""
_NEAR_LOGIT = -3.0
"""With a link scorer, spans proposed by name need a higher mention logit to be searched for nearest entities."""
_TOKEN_STRIDE = 1 << 32


def find_model(model: str | Path) -> Path:
    """Return the folder of a linker: the packaged one for "elq", else the folder given."""
    if str(model) == "elq":
        return PACKAGED
    if not Path(model).is_dir():
        raise UsageError(
            f"there is no model {str(model)!r}; choose elq, knowbert or prior, or give the folder of a trained model"
        )
    return Path(model)


def load_tower(model: str | Path | None = None) -> EntityTower:
    """Load the entity encoder of a linker, by default that of the packaged one."""
    return EntityTower.load(ElqConfig.read(find_model(model or "elq")))


def open_index(kb: KnowledgeBase, config: ElqConfig, tower: EntityTower | None = None) -> EntityIndex:
    """Open the index of a KB for a linker, and build it if missing; raise an error for one of another encoder."""
    if not (vectors_folder(kb) / "index.json").exists():
        progress = Encoding()
        console.note(f"encoding the {len(kb):,} entities of {kb.path.name}; this is done once and can be interrupted")
        with console.progress_bar("encoding", progress):
            build_index(kb, tower or EntityTower.load(config), progress=progress)
    return EntityIndex.open(kb, fingerprint=fingerprint_of(config), stale="allow")


def window_tokenizer_of(config: ElqConfig) -> WindowTokenizer:
    """Return the window tokenizer of a linker; windows overlap so that mentions of `longest` tokens fit into one."""
    shared, behind = max(24, 2 * config.longest), None
    width = min(config.window or 192, positions_of(config.encoder))
    if width < 2 * shared + 2:  # e.g. 20 tokens, as ELQ's authors fine-tuned on questions
        behind = min(config.longest, 3 * (width - 2) // 4)
        shared = behind + (width - 2 - behind) // 2
    tokenizer = load_tokenizer(config.encoder)
    return WindowTokenizer(tokenizer, width=width, shared=shared, behind=behind, whole_words=config.whole_words)


def candidates_of(pool: Pool, rows: Ints, priors: Floats) -> Candidates:
    """Return the candidates that a pool found as tensors for the model."""
    features = torch.from_numpy(features_of(priors)).float()
    return Candidates(torch.from_numpy(pool.vectors_of(rows)), features, torch.from_numpy(rows >= 0))


class ElqBackend:
    """Links texts to one knowledge base with an ELQ model; uses changes of the KB at the next call.

    With a link scorer, spans are proposed by the encoder and by names of the KB, and a link's score is the scorer's
    probability (`linking.features`, `linking.link_scorer`). Without one (converted models, training), spans are
    proposed by the encoder and scored as in the paper.
    """

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
        scorer: LinkScorer | None = None,
        proposals: ProposalFinder | None = None,
    ) -> None:
        self.model, self.kb = model, kb
        self.config = model.config
        self.search = search or Search()
        self.decoding = decoding or Decoding(threshold=model.config.threshold)
        self.calibration = Calibration(*model.config.calibration)
        self.name = name or kb.path.stem
        self.window_tokenizer = window_tokenizer_of(model.config)
        self.pool = Pool(kb, index, self.search, among=among)
        self._tower = tower
        self.trust = model.config.trust if trust is None else trust
        self.scorer = scorer
        self.proposals = proposals
        if proposals is None and scorer is not None and self.search.sources != "dense":
            self.proposals = ProposalFinder(kb)
        self._following = Lock()

    @cached_property
    def tower(self) -> EntityTower:
        """Entity encoder, loaded when first needed, i.e. after a change of the KB."""
        return self._tower or EntityTower.load(self.config)

    @property
    def profile(self) -> KbProfile:
        """Statistics of the KB's aliases, for the link scorer."""
        return self.pool.profile

    def _follow(self) -> Pool:
        """Return the pool of the KB's current revision; a call uses one pool, even if other threads change the KB."""
        pool = self.pool
        if pool.index.revision == self.kb.revision:
            return pool
        with self._following:
            self.pool = self.pool.follow(lambda: self.tower)
            return self.pool

    def part(self, among: Iterable[str] | None) -> ElqBackend:
        """Return a backend restricted to some entities, which shares the model and the current index."""
        return ElqBackend(
            self.model,
            self.kb,
            self._follow().index,
            search=self.search,
            among=among,
            decoding=self.decoding,
            trust=self.trust,
            name=self.name,
            scorer=self.scorer,
            proposals=self.proposals,
        )

    def link_many(self, texts: Sequence[str]) -> Iterator[Document]:
        """Return an iterator over the links of each text."""
        least = self.search.floor
        if self.scorer is None:
            least = max(least, self.decoding.log_threshold(self.calibration))
        return (scored.document() for scored in self.score_many(texts, floor=least))

    def score_many(self, texts: Sequence[str], *, floor: float | None = None) -> list[Scored]:
        """Return the scores of each text; spans proposed only by the encoder need a log p(mention) above `floor`."""
        pool = self._follow()
        return self._score(pool, texts, self._evidence(pool, texts, floor))

    def score_evidence(self, texts: Sequence[str], found: Evidence) -> list[Scored]:
        """Return the scores of texts from their evidence, which must be of the KB's current revision."""
        return self._score(self._follow(), texts, found)

    def _score(self, pool: Pool, texts: Sequence[str], found: Evidence) -> list[Scored]:
        scores = None
        if self.scorer is not None:
            scores = self.scorer.probabilities(features(texts, found, pool.profile))
            scores[~found.candidate_mask] = 0.0  # a span without candidates must not be linked at any threshold
        return self._split_by_text(pool, texts, found, scores)

    def evidence(self, texts: Sequence[str], *, floor: float | None = None) -> Evidence:
        """Return the evidence for all spans of texts that may be mentions."""
        return self._evidence(self._follow(), texts, floor)

    def _evidence(self, pool: Pool, texts: Sequence[str], floor: float | None) -> Evidence:
        windows = [
            window for text in self.window_tokenizer.tokenize(texts) for window in text if not window.special_mask.all()
        ]
        least = self.search.floor if floor is None else floor
        named = None
        if self.proposals is not None:  # outside the snapshot: in a transaction the finder does not cache
            named = NamedSpans.of_proposals(self.proposals.find(texts), windows, pool)
        with torch.inference_mode(), self.kb.snapshot():
            parts = [
                self._read_batch(
                    pool,
                    texts,
                    [windows[place] for place in batch],
                    None if named is None else named.inside(batch),
                    least,
                )
                for batch in gather(
                    sorted(range(len(windows)), key=lambda place: len(windows[place])),
                    largest=_TOKENS,
                    size=lambda place: len(windows[place]),
                )
            ]
        return Evidence.joined(parts)

    def score_given(self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> list[Scored]:
        """Return the scores of given spans, with p(mention) = 1; spans without tokens are left out."""
        pool = self._follow()
        asked, spans_of = list[Window](), dict[int, list[tuple[int, int]]]()
        for windows, some in zip(self.window_tokenizer.tokenize(texts), spans, strict=True):
            for number, window_spans in _windows_of(windows, some).items():
                asked.append(windows[number])
                spans_of[id(windows[number])] = window_spans
        parts = []
        proposed = self._proposed(pool, texts)
        with torch.inference_mode(), self.kb.snapshot():
            for batch in gather(sorted(asked, key=len), largest=_TOKENS):
                ids, packing, _ = pack_windows(batch, self.config.longest)
                states = self.model.states(ids, packing)
                places = [(number, span) for number, window in enumerate(batch) for span in spans_of[id(window)]]
                covered = np.array([batch[number].covering(*span) for number, span in places], np.int64)
                window_of = np.array([number for number, _ in places])
                tokens = torch.from_numpy(covered) + packing.starts[torch.from_numpy(window_of)][:, None]
                vectors = self.model.mention_vectors(states, tokens[:, 0], tokens[:, 1], packing).float().numpy()
                contexts = self._contexts(states, packing, tokens[:, 0])
                text_of = np.array([window.text for window in batch])[window_of]
                offsets = np.array([span for _, span in places])
                keys = [(text, *span) for text, (_, span) in zip(text_of.tolist(), places, strict=True)]
                named = []
                if self.search.sources != "dense":
                    named = [
                        proposed[key][0] if key in proposed else pool.named(texts[key[0]][key[1] : key[2]])
                        for key in keys
                    ]
                ways = np.array([proposed[key][1] if key in proposed else ENCODER for key in keys], np.uint8)
                logits = np.full(len(places), np.inf)
                edits = np.zeros_like(ways)
                parts.append(
                    self._build_evidence(pool, text_of, offsets, logits, ways, edits, named, vectors, contexts)
                )
        return self._split_by_text(pool, texts, Evidence.joined(parts), None)

    def _proposed(self, pool: Pool, texts: Sequence[str]) -> dict[tuple[int, int, int], tuple[Named, int]]:
        """Return candidates and index in `FOUND_BY` of spans proposed by names of the KB, by (text, start, end)."""
        if self.proposals is None:
            return {}
        found = self.proposals.find(texts)
        text_of = np.repeat(np.arange(len(texts)), np.diff(found.offsets))
        spans = zip(text_of.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        return {
            span: (pool.listed(found.lists, number), way)
            for span, number, way in zip(spans, found.numbers.tolist(), found.ways.tolist(), strict=True)
        }

    def _read_batch(
        self, pool: Pool, texts: Sequence[str], batch: Sequence[Window], named: NamedSpans | None, floor: float
    ) -> Evidence:
        """Encode windows in one pass, and return the evidence for spans of the mention head and of names."""
        ids, packing, asked = pack_windows(batch, self.config.longest)
        states = self.model.states(ids, packing)
        table = self.model.mention_scores(states)
        first, width = self._best_spans(table, asked, packing, floor)
        last = first + width
        logits = table[torch.from_numpy(first), torch.from_numpy(width)].double().numpy()
        window_text = np.array([window.text for window in batch], np.int64)
        text_of = window_text[packing.text_of.numpy()[first]]
        borders = np.concatenate([window.spans for window in batch])
        offsets = np.stack((borders[first, 0], borders[last, 1]), 1)
        ways, edits = np.full(len(first), ENCODER, np.uint8), np.zeros(len(first), np.uint8)
        lists: list[Named] = []
        if named is not None:
            at, until = tokens_of(batch, named.window_of, named.starts, named.ends)
            keep = np.flatnonzero(~np.isin(first * _TOKEN_STRIDE + last, at * _TOKEN_STRIDE + until))
            first, last = np.append(at, first[keep]), np.append(until, last[keep])
            logits = np.append(self._logits(states, at, until), logits[keep])
            offsets = np.concatenate((np.stack((named.starts, named.ends), 1), offsets[keep]))
            ways, edits = np.append(named.ways, ways[keep]), np.append(named.edits, edits[keep])
            text_of = np.append(window_text[named.window_of], text_of[keep])
            lists = [*named.candidates, *[NO_CANDIDATES] * len(keep)]
        elif self.search.sources != "dense":
            spans = zip(text_of.tolist(), offsets.tolist(), strict=True)
            lists = [pool.named(texts[text][start:end]) for text, (start, end) in spans]
        if not len(first):
            return Evidence.joined([])
        firsts = torch.from_numpy(first)
        vectors = self.model.mention_vectors(states, firsts, torch.from_numpy(last), packing).float().numpy()
        contexts = self._contexts(states, packing, firsts)
        return self._build_evidence(pool, text_of, offsets, logits, ways, edits, lists, vectors, contexts)

    def _contexts(self, states: Tensor, packing: Packing, firsts: Tensor) -> NDArray[np.float32] | None:
        """Return the context vector of each mention; None for a model that does not use the context."""
        if not self.config.context:
            return None
        return np.asarray(self.model.context_vectors(states, packing)[packing.text_of[firsts]].float().numpy())

    def _best_spans(self, table: Tensor, asked: Tensor, packing: Packing, floor: float) -> tuple[Ints, Ints]:
        """Return (first token, width - 1) of each window's spans with the highest mention scores."""
        log_p = logsigmoid(table)
        asked = asked & (log_p > floor)
        first, width = asked.nonzero(as_tuple=True)
        window = packing.text_of[first].numpy()
        keep = _best_of_each(window, log_p[first, width].double().numpy(), self.search.mentions)
        return first.numpy()[keep], width.numpy()[keep]

    def _logits(self, states: Tensor, first: Ints, last: Ints) -> Floats:
        """Return the mention logits of spans of any width."""
        start, end, inside = self.model.mention_head(states).double().numpy().T
        sums = np.append(0.0, np.cumsum(inside))
        return np.asarray(start[first] + end[last] + sums[last + 1] - sums[first])

    def _build_evidence(
        self,
        pool: Pool,
        text_of: Ints,
        offsets: Ints,
        logits: Floats,
        ways: NDArray[np.uint8],
        edits: NDArray[np.uint8],
        named: Sequence[Named],
        vectors: NDArray[np.float32],
        contexts: NDArray[np.float32] | None,
    ) -> Evidence:
        """Find the candidates of spans, and return the evidence with their probabilities."""
        near_mask = (ways == ENCODER) | (logits > _NEAR_LOGIT) if self.scorer is not None else None
        rows, priors = pool.find(named, vectors, near_mask)
        similarity = pool.similarity(vectors, rows)
        rows, log_p, nil, best, priors = decide(similarity, priors, rows, self.weights)
        scale = float(self.model.log_scale.exp())
        context = np.zeros(rows.shape) if contexts is None else pool.similarity(contexts, rows)
        own = best - self.config.context * context[:, 0] if rows.shape[1] else best
        titles = pool.titles(rows[:, 0] if rows.shape[1] else np.full(len(rows), NONE))
        return Evidence(
            text_of,
            offsets[:, 0],
            offsets[:, 1],
            logits,
            ways,
            edits,
            rows,
            log_p,
            nil,
            own / scale,
            context,
            priors,
            titles.whole,
            titles.bare,
            titles.words,
            titles.rank,
        )

    @cached_property
    def weights(self) -> NameWeights:
        """Weights of names, including `trust`, and the logit of NIL."""
        named, prior = self.model.names_head.weight[0].tolist() if self.config.names else (0.0, 0.0)
        nil = float(self.model.nil_head) if self.config.nil else -np.inf
        return NameWeights(named + (self.trust if self.config.names else 0.0), prior, nil)

    def _split_by_text(self, pool: Pool, texts: Sequence[str], found: Evidence, scores: Floats | None) -> list[Scored]:
        """Split the evidence by text, as scores to decode."""
        nil = np.full((len(found), 1), NIL if self.config.nil else NONE)
        rows = np.concatenate((found.rows, nil), 1)
        log_p = np.concatenate((found.log_p, found.nil_log_p[:, None]), 1)
        priors = np.concatenate((found.priors, np.zeros(nil.shape)), 1)
        if scores is None:  # sort NIL among the candidates
            order = np.argsort(-log_p, axis=1, kind="stable")
            rows, log_p, priors = (np.take_along_axis(array, order, 1) for array in (rows, log_p, priors))
        spans = np.stack((found.starts, found.ends), 1)
        mention_log_p = -np.logaddexp(0.0, -found.mention_logits)
        borders = np.searchsorted(found.text_of, np.arange(len(texts) + 1))
        name_rows = partial(_names_of, pool.index)  # bound to this index: rows change with the KB
        return [
            Scored(
                text,
                spans[own],
                mention_log_p[own],
                rows[own],
                log_p[own],
                priors[own],
                self.calibration,
                self.decoding,
                name_rows,
                self.name,
                (("kb", self.name), ("model", "elq")),
                None if scores is None else scores[own],
                found.ways[own],
            )
            for text, own in zip(texts, map(slice, borders[:-1], borders[1:]), strict=True)
        ]


def _windows_of(windows: Sequence[Window], spans: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return the spans by their best window: the one with most of the span's tokens, then most context."""
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


def load_backend(
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
    scorer: LinkScorer | None = None,
) -> ElqBackend:
    """Load a linker for inference, with merged adapters, and build the index of the KB if it is missing.

    `precision` "auto" is that of the model's config. `scorer` replaces the link scorer in the model's folder.
    """
    if precision not in ("auto", "fp32", "int8"):
        raise UsageError(f"precision={precision!r} is not known; choose auto, fp32 or int8")
    folder = find_model(model)
    index = open_index(kb, ElqConfig.read(folder))
    elq = Elq.from_pretrained(folder).eval().requires_grad_(False)
    merge_adapters(elq.encoder)
    precision = elq.config.precision if precision == "auto" else precision
    if precision != "fp32":
        reduce = quantise if precision == "int8" else quantise_where_able
        elq.encoder = reduce(elq.encoder, _calibration_sample(kb, elq.config))  # type: ignore[assignment]
    if decoding.kind != "joint":
        scorer = None
    elif scorer is None:
        scorer = scorer_of(folder)
    if threshold is None:
        threshold = elq.config.threshold if scorer is None else scorer.threshold
    return ElqBackend(
        elq,
        kb,
        index,
        search=search,
        among=among,
        decoding=replace(decoding, threshold=threshold),
        trust=trust,
        name=name,
        scorer=scorer,
    )


def _calibration_sample(kb: KnowledgeBase, config: ElqConfig) -> tuple[Tensor, Packing] | None:
    """Return packed sample texts for the int8 calibration: titles and descriptions of entities."""
    with sqlite_errors(kb.path):
        rows = kb.connection.execute("SELECT title, description FROM entities LIMIT 64").fetchall()
    texts = [f"{title}: {description}" for title, description in rows] + [f"what is {row[0]}?".lower() for row in rows]
    windows = [windows[0] for windows in window_tokenizer_of(config).tokenize(texts) if windows]
    return pack_windows(windows, config.longest)[:2] if windows else None


def _names_of(index: EntityIndex, rows: Sequence[int]) -> list[tuple[str, str]]:
    """Return (id, title) of index rows."""
    return list(zip(index.entities(rows), index.titles(rows), strict=True))


def _best_of_each(group: Ints, score: Floats, most: int) -> Ints:
    """Return the sorted rows of the `most` highest scores of each group; `group` must be sorted."""
    order = np.lexsort((-score, group))
    first = np.searchsorted(group, group[order])
    return np.sort(order[np.arange(len(order)) - first < most])
