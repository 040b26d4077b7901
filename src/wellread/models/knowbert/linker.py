"""Linker backend of KnowBERT: every alias of the KB in a text gets its best candidate.

1. Texts are tokenized into sentences (or windows), and all aliases of the KB are found with their candidates
   (`models.knowbert.inputs`).
2. One pass of the encoder, only up to the knowledge layer, on onnxruntime in 8-bit integers where that is possible.
3. The mention linker scores the candidates; the probabilities are the softmax of their scores. In `margin` mode NULL
   competes with them, with the threshold as its score.
4. Of overlapping mentions the longest is linked in `softmax` mode, where every mention has a meaning, else the most
   probable one.

With part-of-speech tags, candidates of words are restricted to their part of speech, and function words are not linked.
Tags are computed in a thread beside steps 1 and 2, which do not need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wellread.data.batches import gather
from wellread.document import Document
from wellread.errors import AssetError, MissingExtraError, UsageError
from wellread.io import console
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored, without_overlaps
from wellread.mentions.candidates import has_senses
from wellread.models.folder import find_folder
from wellread.models.knowbert.config import NO_ENTITY
from wellread.models.knowbert.inference import ScoreFunction, SingleLayer
from wellread.models.knowbert.inputs import CandidateArrays, KnowBertProvider
from wellread.models.knowbert.linker_entities import LinkerEntities
from wellread.models.knowbert.linker_vectors import Int8Entities
from wellread.models.knowbert.loading import LinkerParts, Precision, load_parts
from wellread.models.knowbert.mention_cache import MentionCache
from wellread.models.knowbert.pos_tags import KINDS, PosTagger, PosTags
from wellread.models.knowbert.sense_texts import SenseTextEncoder
from wellread.text.windows import TextWindow

Tags = Literal["auto", "spacy", "none"]

_TOKENS = 2048
"""Tokens of one pass: enough to keep the cores busy, few enough for the cache."""
_NO_TAGS: Future[PosTags | None] = Future()
_NO_TAGS.set_result(None)


@dataclass(frozen=True, slots=True)
class SenseScored(Scored):
    """Scores of mentions that are aliases of the KB."""

    longest: bool = True
    """Keep the longest of overlapping mentions, else the most probable."""

    def _select(self, decoding: Decoding) -> list[int]:
        if decoding.overlaps == "keep" or not self.longest or not self.rows.size:
            return super(SenseScored, self)._select(replace(decoding, kind="joint"))
        kept = super(SenseScored, self)._select(replace(decoding, kind="joint", overlaps="keep"))
        sizes = self.spans[:, 1] - self.spans[:, 0]
        order = sorted(kept, key=lambda row: (self.rows[row, 0] < 0, -sizes[row], self.spans[row, 0]))
        return without_overlaps(self.spans, order)


class KnowBertBackend:
    """Linker backend of one knowledge layer and one KB; uses the present state of the KB in every call."""

    kind: Literal["knowbert"] = "knowbert"
    """Type of model."""

    def __init__(
        self,
        parts: LinkerParts,
        kb: KnowledgeBase,
        *,
        decoding: Decoding | None = None,
        tags: PosTagger | None = None,
        among: Iterable[str] | None = None,
        name: str | None = None,
    ) -> None:
        self.kb, self.config, self.settings = kb, parts.config, parts.settings
        self.name = name or kb.path.stem
        self.decoding = decoding or Decoding(threshold=self.settings.threshold, nil=False)
        self.tagger = tags
        self.window_tokenizer = parts.window_tokenizer()
        self.layers = parts.layers
        """Encoder of the texts with the knowledge layer."""
        self.entities = LinkerEntities(kb, parts.settings, parts.entities, among=among)
        own = self.settings.offers
        self._most_candidates = own.candidates
        if tags is not None:  # enough for every part of speech: only those of one will be kept
            own = replace(own, candidates=len(KINDS) * own.candidates)
        self._below = parts.below
        self._candidate_configs = {self.config.kb: own} | {other.name: other.candidates for other in parts.below}
        if isinstance(parts.entities, Int8Entities) and isinstance(parts.layers, SingleLayer):
            self.entities.own = SenseTextEncoder(
                parts.layers.encoder, parts.tokenizer, parts.config.raw, parts.entities.table.fingerprint
            )
        self._revision: int | None = None

    def close(self) -> None:
        """Close the KBs of other layers."""
        for other in self._below:
            other.kb.close()

    def link_many(self, texts: Sequence[str]) -> Iterator[Document]:
        """Yield the links of each text."""
        return (scored.document() for scored in self.score_many(texts))

    def score_many(self, texts: Sequence[str]) -> list[SenseScored]:
        """Return the scores of each text."""
        # Not in a snapshot of the KB: within one the candidate finder keeps no candidates.
        with self._tagged(texts) as tags:
            self._follow()
            tokenized = self.window_tokenizer.tokenize(texts, words=False)
            windows = sorted((window for some in tokenized for window in some), key=len)
            notes = self._provider.prepare([window.input for window in windows])
            scored: list[list[_ScoredMentions]] = [[] for _ in texts]
            waiting: list[_EncodedBatch] = []
            for batch in gather(windows, largest=_TOKENS):
                waiting += self._encode(batch, notes)
                if tags.done():
                    self._score_all(waiting, tags.result(), scored)
            self._score_all(waiting, tags.result(), scored)
            self.entities.report_missing()
            return [self._scored(text, parts) for text, parts in zip(texts, scored, strict=True)]

    @contextmanager
    def _tagged(self, texts: Sequence[str]) -> Iterator[Future[PosTags | None]]:
        """Tag texts in a thread of its own, beside the encoder."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(self.tagger.tag, texts) if self.tagger is not None else _NO_TAGS

    def _follow(self) -> None:
        """Use the present state of the KB."""
        if self._revision == self.kb.revision:
            return
        self.entities.follow()
        parts: list[Any] = [(self.config.kb, self.kb, self.entities)]
        parts += [(other.name, other.kb, other.vectors) for other in self._below]
        self._provider = KnowBertProvider(parts, self._candidate_configs)
        self._revision = self.kb.revision

    def _encode(self, batch: Sequence[TextWindow], notes: MentionCache) -> Iterator[_EncodedBatch]:
        """Encode some windows; yield nothing if they have no mentions."""
        candidates = self._provider.find_candidates([window.input for window in batch], notes)
        own = candidates[self.config.kb]
        if len(own.text_of):
            text_of = np.array([window.text for window in batch])[own.text_of]
            yield _EncodedBatch(own, text_of, _owned_mask(batch, own), self.layers(batch, candidates))

    def _score_all(
        self, waiting: list[_EncodedBatch], tags: PosTags | None, scored: list[list[_ScoredMentions]]
    ) -> None:
        for batch in waiting:
            self._score_batch(batch, tags, scored)
        waiting.clear()

    def _score_batch(self, batch: _EncodedBatch, tags: PosTags | None, scored: list[list[_ScoredMentions]]) -> None:
        candidates, text_of, owned = batch.candidates, batch.text_of, batch.owned_mask
        if tags is not None:
            candidates, content_mask = self._restricted(candidates, tags, text_of)
            owned = owned & content_mask
        scores = batch.score(candidates).astype(np.float64)[owned]
        rows, priors = candidates.entities[owned], candidates.priors[owned].astype(np.float64)
        rows = np.where(rows >= 0, rows, NONE)
        if self.config.mode == "margin":
            rows, priors = _append(rows, NIL), _append(priors, 0)
            scores = _append(scores, self.config.threshold)
        log_p = scores - _log_sum(scores)
        order = np.argsort(-log_p, axis=1, kind="stable")
        columns = [np.take_along_axis(column, order, 1) for column in (rows, log_p, priors)]
        text_of, spans = text_of[owned], candidates.characters[owned]
        for text in np.unique(text_of).tolist():
            here = text_of == text
            scored[text].append(_ScoredMentions(spans[here], *(column[here] for column in columns)))

    def _restricted(
        self, candidates: CandidateArrays, tags: PosTags, text_of: Ints
    ) -> tuple[CandidateArrays, NDArray[np.bool_]]:
        """Keep the candidates with a word's part of speech, or all if none has it; also return which words to link."""
        kinds, content_mask = tags.of(text_of, candidates.characters)
        there = candidates.entities >= 0
        same = (self.entities.kinds_of(candidates.entities) == kinds[:, None]) & there
        left = np.where(same.any(1)[:, None], same, there)
        best = np.argsort(~left, axis=1, kind="stable")[:, : self._most_candidates]
        left, entities, priors, gold = (
            np.take_along_axis(part, best, 1)
            for part in (left, candidates.entities, candidates.priors, candidates.gold)
        )
        entities, priors = np.where(left, entities, NO_ENTITY), np.where(left, priors, 0)
        totals = priors.sum(1, keepdims=True)
        priors = (priors / np.where(totals > 0, totals, 1)).astype(np.float32)
        return replace(candidates, entities=entities, priors=priors, gold=gold), content_mask

    def _scored(self, text: str, parts: Sequence[_ScoredMentions]) -> SenseScored:
        width = max((part.rows.shape[1] for part in parts), default=0)
        count = sum(len(part.spans) for part in parts)
        spans = np.concatenate([part.spans for part in parts]) if parts else np.zeros((0, 2), np.int64)
        rows, log_p = np.full((count, width), NONE, np.int64), np.full((count, width), -np.inf)
        priors, begin = np.zeros((count, width)), 0
        for part in parts:
            end, wide = begin + len(part.spans), part.rows.shape[1]
            rows[begin:end, :wide], log_p[begin:end, :wide], priors[begin:end, :wide] = (
                part.rows,
                part.log_p,
                part.priors,
            )
            begin = end
        return SenseScored(
            text,
            spans,
            np.zeros(count),
            rows,
            log_p,
            priors,
            Calibration(),
            self.decoding,
            partial(self.entities.names_of, self.entities.state),
            self.name,
            (("kb", self.name), ("model", "knowbert")),
            longest=self.config.mode == "softmax",
        )


@dataclass(frozen=True, slots=True)
class _EncodedBatch:
    """Mentions of some encoded windows, before their candidates are restricted and scored."""

    candidates: CandidateArrays
    text_of: Ints
    owned_mask: NDArray[np.bool_]
    """True for mentions that begin in the part of the text that their window answers for."""
    score: ScoreFunction


@dataclass(frozen=True, slots=True)
class _ScoredMentions:
    """Mentions of one text with their candidates, best first."""

    spans: Ints
    rows: Ints
    log_p: Floats
    priors: Floats


def load_backend(
    kb: KnowledgeBase,
    model: str | Path,
    *,
    threshold: float | None,
    overlaps: Literal["auto", "drop", "keep"],
    nil: bool,
    tags: Tags,
    among: Iterable[str] | None,
    precision: Precision,
    name: str,
) -> KnowBertBackend:
    """Load the backend of a model, given by its name or folder."""
    if precision not in ("auto", "fp32", "int8"):
        raise UsageError(f"precision={precision!r} is not known; choose auto, fp32 or int8")
    if tags not in ("auto", "spacy", "none"):
        raise UsageError(f"tags={tags!r} is not known; choose auto, spacy or none")
    folder = find_folder(model)
    if folder is None:
        raise UsageError(f"{model} has no knowledge layer; give the folder of an encoder that has")
    parts = load_parts(folder, kb, precision)
    if str(model) == "knowbert" and not has_senses(kb):
        console.note(
            f"knowbert is trained on the senses of WordNet, and links every name in {kb.path.name}, right or wrong; "
            "elq is the model for names"
        )
    wanted = parts.settings.tags if tags == "auto" else tags
    if tags == "spacy" and not has_senses(kb):
        raise UsageError(f"{kb.path.name} has no parts of speech; leave tags out")
    return KnowBertBackend(
        parts,
        kb,
        decoding=Decoding(
            threshold=parts.settings.threshold if threshold is None else threshold, overlaps=overlaps, nil=nil
        ),
        tags=_load_tagger(required=tags == "spacy") if wanted == "spacy" else None,
        among=among,
        name=name,
    )


def _load_tagger(*, required: bool) -> PosTagger | None:
    """Load the part-of-speech tagger; None if it is not installed and not required."""
    try:
        return PosTagger()
    except (MissingExtraError, AssetError) as error:
        if required:
            raise
        console.note(f"senses are less accurate without part-of-speech tags: {error}")
        return None


def _owned_mask(batch: Sequence[TextWindow], candidates: CandidateArrays) -> NDArray[np.bool_]:
    """Return True for mentions that begin in the tokens that their window answers for, not in the overlap."""
    firsts, lasts = (np.array([getattr(one, name) for one in batch])[candidates.text_of] for name in ("first", "last"))
    return np.asarray((firsts <= candidates.spans[:, 0]) & (candidates.spans[:, 0] < lasts))


def _append(array: NDArray[Any], value: float) -> NDArray[Any]:
    """Append a column with one value."""
    return np.concatenate((array, np.full((len(array), 1), value, array.dtype)), 1)


def _log_sum(scores: Floats) -> Floats:
    """Return log(sum(exp(row))) of every row; 0 for rows of minus infinity."""
    most = scores.max(1, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0.0)
    total = np.exp(scores - most).sum(1, keepdims=True)
    return np.asarray(most + np.log(np.where(total > 0, total, 1.0)))
