"""Linking with ELQ: windows of texts through one encoder, spans through the index, scores out.

No step is wasted: texts are batched by length and packed, spans below the floor never reach the index, entities are
named only once they are linked.
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
"""The linker that comes with wellread."""

Precision = Literal["auto", "fp32", "int8"]

_TOKENS = 2048
"""Pieces of one pass: enough to keep the cores busy, little enough for the cache."""
_NEAR_LOGIT = -3.0
"""Mention logit from which on a span with a name is compared with the nearest entities too, not only with its own."""
_WIDE = 1 << 32


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


def window_tokenizer_of(config: ElqConfig) -> WindowTokenizer:
    """Windows of a linker's texts: behind the last token that a window owns there is room for the longest mention."""
    shared, behind = max(24, 2 * config.longest), None
    width = min(config.window or 192, positions_of(config.encoder))
    if width < 2 * shared + 2:  # e.g. 20 tokens, which ELQ's authors fine-tuned with on questions
        behind = min(config.longest, 3 * (width - 2) // 4)
        shared = behind + (width - 2 - behind) // 2
    tokenizer = load_tokenizer(config.encoder)
    return WindowTokenizer(tokenizer, width=width, shared=shared, behind=behind, whole_words=config.whole_words)


def candidates_of(pool: Pool, rows: Ints, priors: Floats) -> Candidates:
    """What a pool found, as the model scores it."""
    features = torch.from_numpy(features_of(priors)).float()
    return Candidates(torch.from_numpy(pool.vectors_of(rows)), features, torch.from_numpy(rows >= 0))


class ElqBackend:
    """Scores texts with one model against one knowledge base; follows the KB when that changes.

    With a link scorer, names of the KB propose spans beside the encoder and a link's score is the scorer's probability
    (`features`, `scoring`). Without one (converted models, a model in training) it decides as the paper does.
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
        """The entity side; loaded when an entity has changed."""
        return self._tower or EntityTower.load(self.config)

    @property
    def profile(self) -> KbProfile:
        """Statistics of the KB's aliases, as the scorer takes them."""
        return self.pool.profile

    def _follow(self) -> Pool:
        """Return the pool of the KB's revision; one call uses one pool, whatever other threads change meanwhile."""
        pool = self.pool
        if pool.index.revision == self.kb.revision:
            return pool
        with self._following:
            self.pool = self.pool.follow(lambda: self.tower)
            return self.pool

    def part(self, among: Iterable[str] | None) -> ElqBackend:
        """The same to some entities only; it shares the model, and the index as it is now."""
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
        """The links of each text."""
        least = self.search.floor
        if self.scorer is None:
            least = max(least, self.decoding.log_threshold(self.calibration))
        return (scored.document() for scored in self.score_many(texts, floor=least))

    def score_many(self, texts: Sequence[str], *, floor: float | None = None) -> list[Scored]:
        """The scores of each text; spans that only the encoder proposes need a log p(mention) above the floor."""
        pool = self._follow()
        return self._score(pool, texts, self._evidence(pool, texts, floor))

    def score_evidence(self, texts: Sequence[str], found: Evidence) -> list[Scored]:
        """Return the scores of texts whose evidence was collected before, at the same revision of the KB."""
        return self._score(self._follow(), texts, found)

    def _score(self, pool: Pool, texts: Sequence[str], found: Evidence) -> list[Scored]:
        scores = None
        if self.scorer is not None:
            scores = self.scorer.probabilities(features(texts, found, pool.profile))
            scores[~found.candidate_mask] = 0.0  # no threshold links a span to nothing
        return self._scored(pool, texts, found, scores)

    def evidence(self, texts: Sequence[str], *, floor: float | None = None) -> Evidence:
        """Collect the evidence for all spans of texts that may be links."""
        return self._evidence(self._follow(), texts, floor)

    def _evidence(self, pool: Pool, texts: Sequence[str], floor: float | None) -> Evidence:
        windows = [
            window for text in self.window_tokenizer.tokenize(texts) for window in text if not window.special_mask.all()
        ]
        least = self.search.floor if floor is None else floor
        named = None
        if self.proposals is not None:  # not in the snapshot: inside a transaction the finder remembers nothing
            named = NamedSpans.of_proposals(self.proposals.find(texts), windows, pool)
        with torch.inference_mode(), self.kb.snapshot():
            parts = [
                self._batch(
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
        """The scores of given spans, which are taken for mentions; those that touch no piece are left out."""
        pool = self._follow()
        asked, spans_of = list[Window](), dict[int, list[tuple[int, int]]]()
        for windows, some in zip(self.window_tokenizer.tokenize(texts), spans, strict=True):
            for number, mine in _windows_of(windows, some).items():
                asked.append(windows[number])
                spans_of[id(windows[number])] = mine
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
                parts.append(self._decided(pool, text_of, offsets, logits, ways, edits, named, vectors, contexts))
        return self._scored(pool, texts, Evidence.joined(parts), None)

    def _proposed(self, pool: Pool, texts: Sequence[str]) -> dict[tuple[int, int, int], tuple[Named, int]]:
        """Return the candidates of every span that the KB's names propose, and its way, by (text, start, end)."""
        if self.proposals is None:
            return {}
        found = self.proposals.find(texts)
        text_of = np.repeat(np.arange(len(texts)), np.diff(found.offsets))
        spans = zip(text_of.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        return {
            span: (pool.listed(found.lists, number), way)
            for span, number, way in zip(spans, found.numbers.tolist(), found.ways.tolist(), strict=True)
        }

    def _batch(
        self, pool: Pool, texts: Sequence[str], batch: Sequence[Window], named: NamedSpans | None, floor: float
    ) -> Evidence:
        """Read windows in one pass of the encoder, and score the spans of the mention head and of the names."""
        ids, packing, asked = pack_windows(batch, self.config.longest)
        states = self.model.states(ids, packing)
        table = self.model.mention_scores(states)
        first, width = self._best_of_head(table, asked, packing, floor)
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
            keep = np.flatnonzero(~np.isin(first * _WIDE + last, at * _WIDE + until))
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
        return self._decided(pool, text_of, offsets, logits, ways, edits, lists, vectors, contexts)

    def _contexts(self, states: Tensor, packing: Packing, firsts: Tensor) -> NDArray[np.float32] | None:
        """Return the direction of the text around each mention; None for a model that does not compare it."""
        if not self.config.context:
            return None
        return np.asarray(self.model.context_vectors(states, packing)[packing.text_of[firsts]].float().numpy())

    def _best_of_head(self, table: Tensor, asked: Tensor, packing: Packing, floor: float) -> tuple[Ints, Ints]:
        """Return (first token, width - 1) of the best spans of each window by the mention head alone."""
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

    def _decided(
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
        """Find the candidates of spans and their probabilities."""
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
        """The model's weights of names, and its logit of NIL."""
        named, prior = self.model.names_head.weight[0].tolist() if self.config.names else (0.0, 0.0)
        nil = float(self.model.nil_head) if self.config.nil else -np.inf
        return NameWeights(named + (self.trust if self.config.names else 0.0), prior, nil)

    def _scored(self, pool: Pool, texts: Sequence[str], found: Evidence, scores: Floats | None) -> list[Scored]:
        """Return the evidence of each text as scores to decode."""
        nil = np.full((len(found), 1), NIL if self.config.nil else NONE)
        rows = np.concatenate((found.rows, nil), 1)
        log_p = np.concatenate((found.log_p, found.nil_log_p[:, None]), 1)
        priors = np.concatenate((found.priors, np.zeros(nil.shape)), 1)
        if scores is None:  # NIL takes its place among the candidates
            order = np.argsort(-log_p, axis=1, kind="stable")
            rows, log_p, priors = (np.take_along_axis(array, order, 1) for array in (rows, log_p, priors))
        spans = np.stack((found.starts, found.ends), 1)
        mention_log_p = -np.logaddexp(0.0, -found.mention_logits)
        borders = np.searchsorted(found.text_of, np.arange(len(texts) + 1))
        name_rows = partial(_names_of, pool.index)  # of now: rows mean something else once the KB has changed
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
    """Open a linker for inference: adapters merged, in the asked or the model's precision; builds a missing index.

    `scorer` takes the place of the one in the model's folder.
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
        elq.encoder = reduce(elq.encoder, _sample(kb, elq.config))  # type: ignore[assignment]
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


def _sample(kb: KnowledgeBase, config: ElqConfig) -> tuple[Tensor, Packing] | None:
    """Some texts like those to come, to measure the ranges of 8 bits by: what the KB says of its first entities."""
    with sqlite_errors(kb.path):
        rows = kb.connection.execute("SELECT title, description FROM entities LIMIT 64").fetchall()
    texts = [f"{title}: {description}" for title, description in rows] + [f"what is {row[0]}?".lower() for row in rows]
    windows = [windows[0] for windows in window_tokenizer_of(config).tokenize(texts) if windows]
    return pack_windows(windows, config.longest)[:2] if windows else None


def _names_of(index: EntityIndex, rows: Sequence[int]) -> list[tuple[str, str]]:
    """(id, title) of rows."""
    return list(zip(index.entities(rows), index.titles(rows), strict=True))


def _best_of_each(group: Ints, score: Floats, most: int) -> Ints:
    """The rows of the `most` best of each group, in their order; `group` is sorted."""
    order = np.lexsort((-score, group))
    first = np.searchsorted(group, group[order])
    return np.sort(order[np.arange(len(order)) - first < most])
