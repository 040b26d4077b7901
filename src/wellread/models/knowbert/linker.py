"""Linking with a knowledge layer (Peters et al. 2019): every name that the KB knows in a text gets its best candidate.

1. Texts are cut into sentences (or windows), and all names of the KB are found with their candidates
   (`models.knowbert.inputs`).
2. One pass of the encoder, only up to the knowledge layer, in 8 bits where that is faster.
3. The layer's linker scores the candidates; their softmax are the probabilities. A layer with a threshold (`margin`)
   also weighs that nothing is meant, NULL, whose score is the threshold.
4. Of names that overlap the longest is linked, where every name means something (`softmax`), else the likeliest.

Where parts of speech are told, words are restricted to senses of theirs, and function words are not linked. Tags are
found beside steps 1 and 2, which do not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wellread.data.batches import gather
from wellread.document import Document
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.int8 import quantise, quantise_where_able
from wellread.encoders.packing import Packing, encode
from wellread.errors import AssetError, MissingExtraError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.io import console
from wellread.kb.packaged import open_kb
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored, without_overlaps
from wellread.mentions.candidates import has_senses
from wellread.models.folder import find_folder
from wellread.models.knowbert.folder import Parts, load_parts
from wellread.models.knowbert.inputs import NO_ENTITY, CandidateArrays, KnowBertProvider
from wellread.models.knowbert.kar import Mentions
from wellread.models.knowbert.linker_entities import Entities
from wellread.models.knowbert.model import CandidateTensors, KnowBert, MentionLinker
from wellread.models.knowbert.pos_tags import KINDS, Tagger, Tagging
from wellread.text.windows import TextWindow, TextWindowTokenizer

Precision = Literal["auto", "fp32", "int8"]
Tags = Literal["auto", "spacy", "none"]

_TOKENS = 2048
"""Pieces of one pass: enough to keep the cores busy, little enough for the cache."""
_SHARED = 24
_PARTS_OF_SPEECH = len(KINDS)
_NOBODY: Future[Tagging | None] = Future()
_NOBODY.set_result(None)


@dataclass(frozen=True, slots=True)
class SenseScored(Scored):
    """Scores of mentions that are names of the KB; of those that overlap the longest may be taken."""

    longest: bool = True

    def _kept(self, decoding: Decoding) -> list[int]:
        if decoding.overlaps == "keep" or not self.longest or not self.rows.size:
            return super(SenseScored, self)._kept(replace(decoding, kind="joint"))
        kept = super(SenseScored, self)._kept(replace(decoding, kind="joint", overlaps="keep"))
        sizes = self.spans[:, 1] - self.spans[:, 0]
        order = sorted(kept, key=lambda row: (self.rows[row, 0] < 0, -sizes[row], self.spans[row, 0]))
        return without_overlaps(self.spans, order)


class KnowBertBackend:
    """Scores texts with one knowledge layer against one knowledge base; follows the KB when that changes."""

    def __init__(
        self,
        parts: Parts,
        kb: KnowledgeBase,
        *,
        decoding: Decoding | None = None,
        tags: Tagger | None = None,
        among: Iterable[str] | None = None,
        precision: Precision = "auto",
        name: str | None = None,
    ) -> None:
        self.kb, self.config, self.settings = kb, parts.config, parts.settings
        self.name = name or kb.path.stem
        self.decoding = decoding or Decoding(threshold=self.settings.threshold, nil=False)
        self.tagger = tags
        self.window_tokenizer = TextWindowTokenizer(
            parts.tokenizer,
            width=self.settings.width,
            shared=min(_SHARED, max(2, self.settings.width // 4)),
            sentences=self.settings.sentences,
        )
        self.entities = Entities(kb, parts, among=among)
        self._others: list[tuple[str, KnowledgeBase, EntityVectors]] = []
        mine = self.settings.offers
        self._most = mine.candidates
        if tags is not None:  # of these, those of one part of speech will be left
            mine = replace(mine, candidates=_PARTS_OF_SPEECH * mine.candidates)
        self._offers = {self.config.kb: mine} | {config.kb: needs.reading for config, needs in parts.below}
        self._score = self._build(parts, precision)
        self._revision: int | None = None

    def _build(self, parts: Parts, precision: Precision) -> _Alone | _Among:
        if precision == "auto":
            precision = getattr(parts.encoder.config, "precision", "auto")
        if not parts.below:
            encoder: nn.Module = parts.encoder
            if precision != "fp32":
                reduce = quantise if precision == "int8" else quantise_where_able
                encoder = reduce(encoder, self._sample())
            return _Alone(encoder, parts.linker, self.config.kb, self.config.reads)
        if precision == "int8":
            raise UsageError("8 bits know no knowledge layers below the one that links; leave precision out")
        infused = cast(InfusedEncoder, parts.encoder)
        for config, needs in parts.below:
            layer = next(part for part in infused.infusions if cast(KnowBert, part).config is config)
            other = open_kb(needs.kb)
            vectors = needs.open_vectors(other)
            cast(KnowBert, layer).take_of(other, vectors)
            self._others.append((config.kb, other, vectors))
        return _Among(infused, self.config.kb)

    def _sample(self) -> tuple[Tensor, Packing] | None:
        """Some texts like those to come, to measure the ranges of 8 bits by: what the KB says of its first entities."""
        with sqlite_errors(self.kb.path):
            rows = self.kb.connection.execute("SELECT title, description FROM entities LIMIT 128").fetchall()
        windows = [
            one for some in self.window_tokenizer.tokenize([f"{t}: {d}" for t, d in rows], words=False) for one in some
        ]
        return _pack(windows) if windows else None

    @property
    def encoder(self) -> nn.Module:
        """What reads the texts, as `encoders.packing.encode` takes it."""
        return cast(nn.Module, self._score.encoder)

    def close(self) -> None:
        """Let go of the knowledge bases of other layers."""
        for _, kb, _ in self._others:
            kb.close()

    def link_many(self, texts: Sequence[str]) -> Iterator[Document]:
        """The links of each text."""
        return (scored.document() for scored in self.score_many(texts))

    def score_many(self, texts: Sequence[str]) -> list[SenseScored]:
        """The scores of each text."""
        # in no snapshot of the KB: within one the finder would remember no candidates
        with torch.inference_mode(), self._tagged(texts) as tagging:
            self._follow()
            tokenized = self.window_tokenizer.tokenize(texts, words=False)
            notes = self._provider.prepare([one.input for some in tokenized for one in some])
            found: list[list[_Found]] = [[] for _ in texts]
            waiting: list[_Asked] = []
            for batch in gather(sorted((one for some in tokenized for one in some), key=len), largest=_TOKENS):
                waiting += self._read(batch, self._provider.offers([one.input for one in batch], notes))
                if tagging.done():
                    self._answer(waiting, tagging.result(), found)
            self._answer(waiting, tagging.result(), found)
            self.entities.tell_of_missing()
            return [self._scored(text, parts) for text, parts in zip(texts, found, strict=True)]

    @contextmanager
    def _tagged(self, texts: Sequence[str]) -> Iterator[Future[Tagging | None]]:
        """The tags of texts, in a thread of their own: the encoder need not wait for them, only its answers do."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(self.tagger.tag, texts) if self.tagger is not None else _NOBODY

    def _follow(self) -> None:
        """Look at the KB as it is now."""
        if self._revision == self.kb.revision:
            return
        self.entities.follow()
        parts = [(self.config.kb, self.kb, self.entities), *self._others]
        self._provider = KnowBertProvider(cast(Any, parts), self._offers)
        self._revision = self.kb.revision

    def _read(self, batch: Sequence[TextWindow], offered: dict[str, CandidateArrays]) -> Iterator[_Asked]:
        """What is to be answered of some stretches, when it is known which candidates are left; nothing if it is."""
        mine = offered[self.config.kb]
        if len(mine.text_of):
            told = {name: _tensors(some) for name, some in offered.items()}
            text_of = np.array([one.text for one in batch])[mine.text_of]
            yield _Asked(mine, text_of, _owned(batch, mine), self._score(*_pack(batch), told))

    def _answer(self, waiting: list[_Asked], tagging: Tagging | None, found: list[list[_Found]]) -> None:
        for asked in waiting:
            self._find(asked, tagging, found)
        waiting.clear()

    def _find(self, asked: _Asked, tagging: Tagging | None, found: list[list[_Found]]) -> None:
        mine, text_of, owned = asked.offers, asked.text_of, asked.owned
        if tagging is not None:
            mine, spoken = self._restricted(mine, tagging, text_of)
            owned = owned & spoken
        scores = asked.score(_tensors(mine)).double().numpy()[owned]
        rows, priors = mine.entities[owned], mine.priors[owned].astype(np.float64)
        rows = np.where(rows >= 0, rows, NONE)
        if self.config.mode == "margin":
            rows, priors = _behind(rows, NIL), _behind(priors, 0)
            scores = _behind(scores, self.config.threshold)
        log_p = scores - _log_sum(scores)
        order = np.argsort(-log_p, axis=1, kind="stable")
        columns = [np.take_along_axis(part, order, 1) for part in (rows, log_p, priors)]
        text_of, spans = text_of[owned], mine.characters[owned]
        for text in np.unique(text_of).tolist():
            here = text_of == text
            found[text].append(_Found(spans[here], *(part[here] for part in columns)))

    def _restricted(
        self, mine: CandidateArrays, tagging: Tagging, text_of: Ints
    ) -> tuple[CandidateArrays, NDArray[np.bool_]]:
        """Candidates of words that are tagged, of that part of speech if there are any; and what may be linked."""
        kinds, spoken = tagging.of(text_of, mine.characters)
        there = mine.entities >= 0
        same = (self.entities.kinds_of(mine.entities) == kinds[:, None]) & there
        left = np.where(same.any(1)[:, None], same, there)  # of another kind, or not tagged: all of them
        best = np.argsort(~left, axis=1, kind="stable")[:, : self._most]
        left, entities, priors = (np.take_along_axis(part, best, 1) for part in (left, mine.entities, mine.priors))
        entities, priors = np.where(left, entities, NO_ENTITY), np.where(left, priors, 0)
        totals = priors.sum(1, keepdims=True)
        priors = (priors / np.where(totals > 0, totals, 1)).astype(np.float32)
        gold = np.take_along_axis(mine.gold, best, 1)
        return replace(mine, entities=entities, priors=priors, gold=gold), spoken

    def _scored(self, text: str, parts: Sequence[_Found]) -> SenseScored:
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


Told = dict[str, Tensor]
"""What an encoder is told of one knowledge base (`models.knowbert.inputs`)."""
Score = Callable[[Told], Tensor]
"""The scores of a batch's candidates, which may be fewer than were offered when it was read."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The mentions of some stretches that were read, before it is known which of their candidates are left."""

    offers: CandidateArrays
    text_of: Ints
    owned: NDArray[np.bool_]
    """Whether a mention is told by its stretch."""
    score: Score


@dataclass(frozen=True, slots=True)
class _Found:
    """Mentions of one text with what they may mean, best first."""

    spans: Ints
    rows: Ints
    log_p: Floats
    priors: Floats


@dataclass(frozen=True, slots=True)
class _Alone:
    """An encoder of which nothing but the layer's linker is asked."""

    encoder: nn.Module
    linker: MentionLinker
    kb: str
    reads: int

    def __call__(self, ids: Tensor, packing: Packing, told: dict[str, Told]) -> Score:
        """Mentions are read at once: what they are like does not depend on their candidates."""
        offers = CandidateTensors.of(told[self.kb], packing, self.kb)
        mentions = Mentions.of(offers.text_of, len(packing.lengths))
        narrow = self.linker.narrow(encode(self.encoder, ids, packing, self.reads))
        return partial(self._choose, mentions.pick(self.linker.contextualize(narrow, offers, mentions)), offers)

    def _choose(self, mentions: Tensor, offers: CandidateTensors, left: Told) -> Tensor:
        return self.linker.choose(mentions, replace(offers, entities=left["entities"], priors=left["priors"])).scores


@dataclass(frozen=True, slots=True)
class _Among:
    """An encoder with other knowledge layers below."""

    encoder: InfusedEncoder
    kb: str

    def __call__(self, ids: Tensor, packing: Packing, told: dict[str, Told]) -> Score:
        return partial(self._links, ids, packing, told)

    def _links(self, ids: Tensor, packing: Packing, told: dict[str, Told], left: Told) -> Tensor:
        links: Tensor = self.encoder.read(ids, packing, None, offers=told | {self.kb: left}).told["links"][self.kb]
        return links


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
    """A reader for inference, by the name or folder of its model."""
    if precision not in ("auto", "fp32", "int8"):
        raise UsageError(f"precision={precision!r} is not known; choose auto, fp32 or int8")
    if tags not in ("auto", "spacy", "none"):
        raise UsageError(f"tags={tags!r} is not known; choose auto, spacy or none")
    folder = find_folder(model)
    if folder is None:
        raise UsageError(f"{model} has no knowledge layer; give the folder of an encoder that has")
    parts = load_parts(folder, kb.path.stem)
    if str(model) == "knowbert" and not has_senses(kb):
        console.note(
            f"knowbert has learned the senses of WordNet, and gives every name of {kb.path.name} a meaning, right or "
            "not; elq is the model for names"
        )
    wanted = parts.settings.tags if tags == "auto" else tags
    if tags == "spacy" and not has_senses(kb):
        raise UsageError(f"{kb.path.name} does not know parts of speech; leave tags out")
    return KnowBertBackend(
        parts,
        kb,
        decoding=Decoding(
            threshold=parts.settings.threshold if threshold is None else threshold, overlaps=overlaps, nil=nil
        ),
        tags=_tagger(asked=tags == "spacy") if wanted == "spacy" else None,
        among=among,
        precision=precision,
        name=name,
    )


def _tagger(*, asked: bool) -> Tagger | None:
    """Who tags parts of speech; nobody where that is not installed and was not asked for."""
    try:
        return Tagger()
    except (MissingExtraError, AssetError) as error:
        if asked:
            raise
        console.note(f"senses are told apart better where parts of speech are known: {error}")
        return None


def _pack(batch: Sequence[TextWindow]) -> tuple[Tensor, Packing]:
    ids = torch.from_numpy(np.concatenate([one.input.ids for one in batch]))
    return ids, Packing.of([len(one) for one in batch])


def _tensors(offers: CandidateArrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(part) for name, part in offers.as_arrays().items() if name != "gold"}


def _owned(batch: Sequence[TextWindow], offers: CandidateArrays) -> NDArray[np.bool_]:
    """Whether a mention begins where its stretch is the one that tells."""
    firsts, lasts = (np.array([getattr(one, name) for one in batch])[offers.text_of] for name in ("first", "last"))
    return np.asarray((firsts <= offers.spans[:, 0]) & (offers.spans[:, 0] < lasts))


def _behind(part: NDArray[Any], value: float) -> NDArray[Any]:
    return np.concatenate((part, np.full((len(part), 1), value, part.dtype)), 1)


def _log_sum(scores: Floats) -> Floats:
    """The logarithm of the sum of exponentials, row by row; 0 where all are minus infinity."""
    most = scores.max(1, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0.0)
    total = np.exp(scores - most).sum(1, keepdims=True)
    return np.asarray(most + np.log(np.where(total > 0, total, 1.0)))
