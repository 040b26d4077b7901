"""ELQ's linker backend: encodes windows of texts, searches candidates of their spans, and scores both.

For speed, windows are batched by length, spans below the floor are not searched in the index, and titles of
entities are read only for links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from wellread.data.batches import gather
from wellread.document import Document
from wellread.encoders.files import load_tokenizer, positions_of
from wellread.index.entity_index import EntityIndex
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored
from wellread.linking.evidence import ENCODER, Evidence, NameWeights, decide
from wellread.linking.features import features
from wellread.linking.kb_profile import KbProfile
from wellread.linking.link_scorer import LinkScorer
from wellread.mentions.proposals import ProposalFinder
from wellread.models.elq.candidate_pool import NO_CANDIDATES, Named, Pool, Search
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower
from wellread.models.elq.inference import ElqInference
from wellread.models.elq.span_alignment import NamedSpans, tokens_of
from wellread.runtime.spans import PackedWindows, best_spans, scores_of, span_mask, span_scores
from wellread.text.windows import Window, WindowTokenizer

if TYPE_CHECKING:
    from wellread.mapping.mapper import Meaning

Floats32 = NDArray[np.float32]

_TOKENS = 2048
"""Maximum number of tokens of a batch: enough to use all cores, few enough for the cache."""
_NEAR_LOGIT = -3.0
"""With a link scorer, spans proposed by name need a higher mention logit to be searched for nearest entities."""
_TOKEN_STRIDE = 1 << 32


def window_tokenizer_of(config: ElqConfig) -> WindowTokenizer:
    """Return the window tokenizer of a linker; windows overlap so that mentions of `longest` tokens fit into one."""
    shared, behind = max(24, 2 * config.longest), None
    width = min(config.window or 192, positions_of(config.encoder))
    if width < 2 * shared + 2:  # e.g. 20 tokens, as ELQ's authors fine-tuned on questions
        behind = min(config.longest, 3 * (width - 2) // 4)
        shared = behind + (width - 2 - behind) // 2
    tokenizer = load_tokenizer(config.encoder)
    return WindowTokenizer(tokenizer, width=width, shared=shared, behind=behind, whole_words=config.whole_words)


class ElqBackend:
    """Links texts to one knowledge base with an ELQ model; uses changes of the KB at the next call.

    With a link scorer, spans are proposed by the encoder and by names of the KB, and a link's score is the scorer's
    probability (`linking.features`, `linking.link_scorer`). Without one (converted models, training), spans are
    proposed by the encoder and scored as in the paper.
    """

    kind: Literal["elq"] = "elq"
    """Type of model."""

    def __init__(
        self,
        model: ElqInference,
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
        return self._tower or EntityTower.load(self.config, precision="auto")

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

    def meaning(self) -> Meaning:
        """Return the entity vectors of the KB's current revision with their encoder, to map strings to entities."""
        from wellread.mapping.mapper import Meaning

        return Meaning(self._follow().index, self.tower)

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
        with self.kb.snapshot():
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
        with self.kb.snapshot():
            for batch in gather(sorted(asked, key=len), largest=_TOKENS):
                packed = PackedWindows.of([len(window) for window in batch])
                states = self.model.states([window.ids for window in batch])
                places = [(number, span) for number, window in enumerate(batch) for span in spans_of[id(window)]]
                covered = np.array([batch[number].covering(*span) for number, span in places], np.int64)
                window_of = np.array([number for number, _ in places])
                tokens = covered + packed.starts[window_of][:, None]
                vectors = self.model.mention_vectors(states, tokens[:, 0], tokens[:, 1], packed)
                contexts = self._contexts(states, packed, tokens[:, 0])
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
        packed = PackedWindows.of([len(window) for window in batch])
        states = self.model.states([window.ids for window in batch])
        token_logits = self.model.mention_logits(states)
        first, last, logits = self._best_spans(batch, packed, token_logits, floor)
        window_text = np.array([window.text for window in batch], np.int64)
        text_of = window_text[packed.window_of[first]]
        borders = np.concatenate([window.spans for window in batch])
        offsets = np.stack((borders[first, 0], borders[last, 1]), 1)
        ways, edits = np.full(len(first), ENCODER, np.uint8), np.zeros(len(first), np.uint8)
        lists: list[Named] = []
        if named is not None:
            at, until = tokens_of(batch, named.window_of, named.starts, named.ends)
            new = ~np.isin(first * _TOKEN_STRIDE + last, at * _TOKEN_STRIDE + until)
            keep = np.flatnonzero(new & _has_word(texts, text_of, offsets))
            first, last = np.append(at, first[keep]), np.append(until, last[keep])
            logits = np.append(scores_of(*token_logits, at, until), logits[keep])
            offsets = np.concatenate((np.stack((named.starts, named.ends), 1), offsets[keep]))
            ways, edits = np.append(named.ways, ways[keep]), np.append(named.edits, edits[keep])
            text_of = np.append(window_text[named.window_of], text_of[keep])
            lists = [*named.candidates, *[NO_CANDIDATES] * len(keep)]
        elif self.search.sources != "dense":
            spans = zip(text_of.tolist(), offsets.tolist(), strict=True)
            lists = [pool.named(texts[text][start:end]) for text, (start, end) in spans]
        if not len(first):
            return Evidence.joined([])
        vectors = self.model.mention_vectors(states, first, last, packed)
        contexts = self._contexts(states, packed, first)
        return self._build_evidence(pool, text_of, offsets, logits, ways, edits, lists, vectors, contexts)

    def _contexts(self, states: Floats32, packed: PackedWindows, firsts: Ints) -> Floats32 | None:
        """Return the context vector of each mention; None for a model that does not use the context."""
        if not self.config.context:
            return None
        return self.model.context_vectors(states, packed)[packed.window_of[firsts]]

    def _best_spans(
        self,
        batch: Sequence[Window],
        packed: PackedWindows,
        token_logits: tuple[Floats32, Floats32, Floats32],
        floor: float,
    ) -> tuple[Ints, Ints, Floats]:
        """Return first token, last token and mention logit of each window's spans with the highest mention scores."""
        special, begins, ends = (
            np.concatenate(masks)
            for masks in zip(*((w.special_mask, w.begins_mask, w.ends_mask) for w in batch), strict=True)
        )
        allowed = span_mask(packed, special, self.config.longest, begins_mask=begins, ends_mask=ends)
        table = span_scores(*token_logits, self.config.longest)
        first, width = best_spans(table, allowed, packed.window_of, floor=floor, most=self.search.mentions)
        return first, first + width, scores_of(*token_logits, first, first + width)

    def _build_evidence(
        self,
        pool: Pool,
        text_of: Ints,
        offsets: Ints,
        logits: Floats,
        ways: NDArray[np.uint8],
        edits: NDArray[np.uint8],
        named: Sequence[Named],
        vectors: Floats32,
        contexts: Floats32 | None,
    ) -> Evidence:
        """Find the candidates of spans, and return the evidence with their probabilities."""
        near_mask = (ways == ENCODER) | (logits > _NEAR_LOGIT) if self.scorer is not None else None
        rows, priors = pool.find(named, vectors, near_mask)
        similarity = pool.similarity(vectors, rows)
        names_first_mask = ways != ENCODER if self.scorer is not None else None
        rows, log_p, nil, best, priors = decide(
            similarity, priors, rows, self.weights, names_first_mask=names_first_mask
        )
        scale = self.model.scale
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
        named, prior = self.model.heads.names if self.config.names else (0.0, 0.0)
        nil = self.model.heads.nil if self.config.nil else -np.inf
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


def _has_word(texts: Sequence[str], text_of: Ints, offsets: Ints) -> NDArray[np.bool_]:
    """Return which spans have a letter or digit; signs and emoji are entities only if they are names of the KB."""
    spans = zip(text_of.tolist(), offsets.tolist(), strict=True)
    return np.array([any(map(str.isalnum, texts[text][start:end])) for text, (start, end) in spans], np.bool_)


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


def _names_of(index: EntityIndex, rows: Sequence[int]) -> list[tuple[str, str]]:
    """Return (id, title) of index rows."""
    return list(zip(index.entities(rows), index.titles(rows), strict=True))
