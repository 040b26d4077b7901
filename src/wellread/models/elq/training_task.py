"""ELQ's training task: examples from documents with links, the two losses, and validation by F1 of links.

Gold links to an entity that the KB does not have are NIL. A document's `meta["unsure"]` lists spans that may or may not
be mentions; the mention loss ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from wellread.data.batches import Lazy, by_length
from wellread.data.splits import split_by
from wellread.document import Document
from wellread.encoders.packing import Packing
from wellread.evaluation.calibration import Predictions, fit_temperature, pr_curve
from wellread.evaluation.linking import right_links
from wellread.index.entity_index import EntityIndex
from wellread.io import console
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints
from wellread.mentions.candidates import CandidateFinder
from wellread.models.elq.candidate_pool import Pool, Search, features_of
from wellread.models.elq.linker import ElqBackend, window_tokenizer_of
from wellread.models.elq.model import Candidates, Elq, entity_loss, mention_loss, pack_windows
from wellread.models.elq.recipe import EntityLoss, Negatives
from wellread.text.windows import Window


@dataclass(frozen=True, slots=True)
class Example:
    """Window of a text with its gold mentions as tokens (first, last)."""

    window: Window
    spans: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    """Entity of each mention: row of the index, NIL, or NONE if the annotation has no entity ids."""
    names: tuple[str, ...]
    unsure: tuple[tuple[int, int], ...] = ()
    teaches_spans: bool = True
    """False: the window trains the entity scores only, not the mention head."""


@dataclass(frozen=True, slots=True)
class LinkingBatch:
    """Packed windows; a mention is (first token, width - 1) in the packed sequence."""

    packing: Packing
    ids: Int[Tensor, " token"]
    asked_mask: Bool[Tensor, "token width"]
    gold_mask: Bool[Tensor, "token width"]
    firsts: Int[Tensor, " mention"]
    widths: Int[Tensor, " mention"]
    rows: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens of the batch."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class KbBatch:
    """Batch with the index of its learner."""

    learner: int
    batch: LinkingBatch

    @property
    def tokens(self) -> int:
        """Number of tokens of the batch."""
        return self.batch.tokens


def candidates_of(pool: Pool, rows: Ints, priors: Floats) -> Candidates:
    """Return the candidates that a pool found as tensors for the model."""
    features = torch.from_numpy(features_of(priors)).float()
    return Candidates(torch.from_numpy(pool.vectors_of(rows)), features, torch.from_numpy(rows >= 0))


class LinkingLearner:
    """Trains an ELQ model on links to one knowledge base, whose entity vectors are frozen."""

    score = "f1"

    def __init__(
        self,
        model: Elq,
        kb: KnowledgeBase,
        index: EntityIndex,
        examples: Sequence[Example] | Callable[[int], Sequence[Example]],
        dev: Mapping[str, Sequence[Document]],
        *,
        seed: int = 0,
        batch_pieces: int = 1024,
        negatives: Negatives = "hard",
        loss: EntityLoss = "softmax",
        nearest: int = 10,
        leave_out: float = 0.0,
        drop_names: float = 0.0,
        incomplete: Collection[str] = (),
    ) -> None:
        """Set up training.

        - `examples`: those of every epoch, or a function from an epoch to its examples.
        - `leave_out`: share of gold entities that are removed from the candidates, so that NIL is right.
        - `drop_names`: share of mentions whose candidates are scored without their names.
        - `incomplete`: names in `dev` whose documents lack some links; scores are calibrated on the others.
        """
        self.incomplete = frozenset(incomplete)
        self.model, self.kb, self.index = model, kb, index
        self.examples, self.dev = examples, dev
        self.seed, self.batch_pieces, self.negatives, self.kind = seed, batch_pieces, negatives, loss
        self.leave_out = leave_out if model.config.nil else 0.0
        self.drop_names = drop_names
        sources: Literal["union", "dense"] = "union" if model.config.names else "dense"
        self.pool = Pool(kb, index, Search(sources, nearest=nearest))

    def batches(self, epoch: int) -> Sequence[LinkingBatch]:
        """Return the batches of an epoch: windows of similar length, shuffled by seed and epoch."""
        draw = np.random.default_rng((self.seed, epoch))
        examples = self.examples(epoch) if callable(self.examples) else self.examples
        groups = by_length([len(example.window) for example in examples], draw, tokens=self.batch_pieces)
        longest = self.model.config.longest
        return Lazy(groups, lambda group: collate([examples[place] for place in group], longest))

    def loss(self, batch: LinkingBatch) -> dict[str, Tensor]:
        """Return the mention loss over all spans and the entity loss over the gold mentions."""
        states = self.model.states(batch.ids, batch.packing)
        with torch.autocast(states.device.type, enabled=False):  # sums over spans need full precision
            return self._losses(batch, states.float())

    def _losses(self, batch: LinkingBatch, states: Tensor) -> dict[str, Tensor]:
        scores = self.model.mention_scores(states)
        found = mention_loss(scores, batch.gold_mask, batch.asked_mask)
        there = np.flatnonzero(batch.rows >= (NIL if self.model.config.nil else 0))
        if not len(there):
            return {"mention": found, "entity": found.new_zeros(())}
        firsts, widths = batch.firsts[there], batch.widths[there]
        vectors = self.model.mention_vectors(states, firsts, firsts + widths, batch.packing)
        candidates, gold = self._candidates([batch.names[place] for place in there], batch.rows[there], vectors)
        scores = self.model.nil_scores(self.model.entity_scores(vectors, candidates))
        return {"mention": found, "entity": entity_loss(scores, gold, self.kind)}

    def _candidates(
        self, names: Sequence[str], rows: NDArray[np.int64], vectors: Tensor
    ) -> tuple[Candidates, Int[Tensor, " mention"]]:
        """Return the candidates of each gold mention, and the column of its gold entity (NIL is the last)."""
        if self.negatives == "batch":
            others = np.unique(rows[rows >= 0])
            found = np.broadcast_to(others, (len(rows), len(others))).copy()
            priors = np.zeros(found.shape)
        else:
            named = [] if self.pool.search.sources == "dense" else [self.pool.named(name) for name in names]
            found, priors = self.pool.find(named, vectors.detach().numpy())
        is_gold = (found == rows[:, None]) & (rows >= 0)[:, None]
        if self.leave_out:
            left_out = torch.rand(len(rows)).numpy() < self.leave_out
            found[is_gold & left_out[:, None]] = NONE
            is_gold &= ~left_out[:, None]
            rows = np.where(left_out, NIL, rows)
        missing = (rows >= 0) & ~is_gold.any(1)
        found = np.concatenate((found, np.where(missing, rows, NONE)[:, None]), 1)
        priors = np.concatenate((priors, np.zeros((len(rows), 1))), 1)
        gold = np.where(missing, found.shape[1] - 1, is_gold.argmax(1) if is_gold.size else 0)
        gold = np.where(rows == NIL, found.shape[1], gold)
        if self.drop_names:
            priors[torch.rand(len(rows)).numpy() < self.drop_names] = 0.0
        candidates = candidates_of(self.pool, found, priors)
        return candidates, torch.from_numpy(gold)

    def evaluate(self) -> dict[str, float]:
        """Return F1 of links at the best threshold, over all validation documents and for each of their files.

        Incomplete files are reported, but do not count for the total: missing gold links make their precision too low.
        """
        scores: dict[str, float] = {}
        parts = {name: self._predict(documents) for name, documents in self.dev.items()}
        complete = [part for name, part in parts.items() if name not in self.incomplete]
        for name, part in {"": _concatenate(complete or parts.values()), **(parts if len(parts) > 1 else {})}.items():
            best = pr_curve(part).best
            metrics = {"f1": best.f1, "precision": best.precision, "recall": best.recall}
            scores |= {f"{name}/{key}" if name else key: value for key, value in metrics.items()}
        return scores

    def predictions(self) -> Predictions:
        """Calibrate the model and set its threshold on validation data; return the calibrated scores of the links."""
        complete = {name: documents for name, documents in self.dev.items() if name not in self.incomplete}
        raw = _concatenate(self._predict(documents) for documents in (complete or self.dev).values())
        scale, shift = fit_temperature(_logits(np.asarray(raw.scores)), raw.right)
        scores = Calibration(scale, shift).scores(np.log(np.maximum(raw.scores, 1e-300)))
        calibrated = Predictions(scores, raw.right, raw.gold)
        best = pr_curve(calibrated).best.threshold
        # A link must exceed the threshold: halfway to the next lower score, rounding cannot lose the link.
        below = max((score for score in scores if score < best), default=0.0)
        self.model.calibrate(scale, shift, (best + below) / 2 if np.isfinite(best) else 1.0)
        return calibrated

    def _predict(self, documents: Sequence[Document]) -> Predictions:
        """Return the links at threshold 0, scored by p(mention) · p(entity | mention)."""
        backend = ElqBackend(
            self.model.inference(), self.kb, self.index, search=self.pool.search, decoding=Decoding(threshold=0.0)
        )
        backend.calibration = Calibration()
        scores: list[float] = []
        right: list[bool] = []
        for scored, document in zip(backend.score_many([one.text for one in documents]), documents, strict=True):
            found = scored.document()
            scores += [link.score for link in found.links if link.entity is not None]
            right += right_links(document, found, self._is_known)
        gold = sum(link.entity is not None and self._is_known(link.entity) for d in documents for link in d.links)
        return Predictions(np.array(scores), np.array(right, bool), gold)

    @cached_property
    def _known(self) -> dict[str, bool]:
        return {}

    def _is_known(self, entity: str) -> bool:
        if entity not in self._known:
            self._known[entity] = entity in self.kb
        return self._known[entity]


class SeveralKbs:
    """Trains one model on several knowledge bases, with a learner for each; the first one validates.

    A batch belongs to one KB. The batches of all KBs are shuffled together in every epoch.
    """

    score = "f1"

    def __init__(self, learners: Sequence[LinkingLearner], *, seed: int = 0) -> None:
        self.learners, self.seed = list(learners), seed

    @property
    def model(self) -> Elq:
        """Model that all learners share."""
        return self.learners[0].model

    def batches(self, epoch: int) -> Sequence[KbBatch]:
        """Return the batches of all learners, shuffled."""
        parts = [learner.batches(epoch) for learner in self.learners]
        pairs = [(number, place) for number, part in enumerate(parts) for place in range(len(part))]
        order = np.random.default_rng((self.seed, epoch, 1)).permutation(len(pairs)).tolist()
        return Lazy([pairs[place] for place in order], lambda pair: KbBatch(pair[0], parts[pair[0]][pair[1]]))

    def loss(self, batch: KbBatch) -> dict[str, Tensor]:
        """Return the losses of the batch's own learner."""
        return self.learners[batch.learner].loss(batch.batch)

    def evaluate(self) -> dict[str, float]:
        """Return the scores of the first learner."""
        return self.learners[0].evaluate()

    def predictions(self) -> Predictions:
        """Calibrate the model on the validation data of the first learner."""
        return self.learners[0].predictions()


def collate(examples: Sequence[Example], longest: int) -> LinkingBatch:
    """Pack examples into one batch."""
    ids, packing, asked = pack_windows([example.window for example in examples], longest)
    starts = packing.starts.tolist()
    firsts, widths = _packed_spans(starts, [example.spans for example in examples])
    gold = torch.zeros_like(asked)
    gold[firsts, widths] = True
    taught = torch.tensor([example.teaches_spans for example in examples])[packing.text_of]
    asked &= taught[:, None]
    gold &= taught[:, None]
    unsure_firsts, unsure_widths = _packed_spans(starts, [example.unsure for example in examples])
    short = unsure_widths < longest
    asked[unsure_firsts[short], unsure_widths[short]] = False
    return LinkingBatch(
        packing,
        ids,
        asked | gold,
        gold,
        firsts,
        widths,
        np.array([row for example in examples for row in example.rows], np.int64),
        tuple(name for example in examples for name in example.names),
    )


def _packed_spans(starts: Sequence[int], spans: Sequence[Sequence[tuple[int, int]]]) -> tuple[Tensor, Tensor]:
    found = [(start + first, last - first) for start, some in zip(starts, spans, strict=True) for first, last in some]
    firsts, widths = torch.tensor(found, dtype=torch.long).reshape(-1, 2).unbind(1)
    return firsts, widths


def make_examples(
    documents: Sequence[Document],
    model: Elq,
    index: EntityIndex,
    *,
    unlinked: Literal["nil", "unknown"] = "nil",
    spans: bool = True,
    report: bool = True,
) -> list[Example]:
    """Build windows of documents with their gold mentions; with `report`, log the number of mentions left out.

    `unlinked` is the meaning of a link without an entity: "nil" (not in the KB), or "unknown" (annotation without
    entity ids, which trains the mention head only). With `spans=False` examples train the entity scores only.
    """
    unlinked_row = NIL if unlinked == "nil" else NONE
    config = model.config
    window_tokenizer = window_tokenizer_of(config)
    entities = list({link.entity for document in documents for link in document.links if link.entity is not None})
    row_of = dict(zip(entities, index.rows_of(entities).tolist(), strict=True))
    examples = []
    links = placed = too_long = 0
    for document, windows in zip(documents, window_tokenizer.tokenize([one.text for one in documents]), strict=True):
        for window in windows:
            gold = [
                (span, unlinked_row if link.entity is None else row_of.get(link.entity, NIL), link.text)
                for link in document.links
                if (span := _token_span(window, link.start, link.end, config.longest)) is not None
            ]
            unsure = (_token_span(window, start, end, config.longest) for start, end in document.meta.get("unsure", ()))
            links, placed = links + (window is windows[0]) * len(document.links), placed + len(gold)
            too_long += sum(_is_too_long(window, link.start, link.end, config.longest) for link in document.links)
            places, rows, names = zip(*gold, strict=True) if gold else ((), (), ())
            unsure_spans = tuple(span for span in unsure if span is not None)
            examples.append(Example(window, places, rows, names, unsure_spans, spans))
    if report and (lost := links - placed):
        console.note(
            f"left out {lost:,} of {links:,} gold mentions: {too_long:,} have more than {config.longest} tokens (raise "
            f"model.longest), {lost - too_long:,} begin inside a word or have no token"
        )
    return examples


def _is_too_long(window: Window, start: int, end: int, longest: int) -> bool:
    span = window.covering(start, end)
    return span is not None and bool(window.begins_mask[span[0]]) and span[1] - span[0] >= longest


def _token_span(window: Window, start: int, end: int, longest: int) -> tuple[int, int] | None:
    """Return the tokens (first, last) of a span if it begins in this window and is not too long, else None."""
    span = window.covering(start, end)
    if span is None or span[1] - span[0] >= longest or not window.begins_mask[span[0]]:
        return None
    return span


def mark_unsure(documents: Sequence[Document], kb: KnowledgeBase) -> list[Document]:
    """List possible mentions without a link in `meta["unsure"]`, for documents with incomplete links.

    Unsure are the spans that the document already lists (by default: names of the KB with a capital letter), and all
    parts of runs of capitalised words that overlap no link: names, but perhaps not of an entity in the KB.
    """
    marked = []
    found_in = CandidateFinder(kb).mentions_of_many([document.text for document in documents])
    for document, found in zip(documents, found_in, strict=True):
        linked = {(link.start, link.end) for link in document.links}
        if "unsure" in document.meta:
            spans = [(start, end) for start, end in document.meta["unsure"]]
        else:
            spans = [(one.start, one.end) for one in found if any(letter.isupper() for letter in one.text)]
        unsure = sorted({*spans, *_capitalised(document)} - linked)
        marked.append(replace(document, meta={**document.meta, "unsure": [list(span) for span in unsure]}))
    return marked


def _capitalised(document: Document) -> Iterator[tuple[int, int]]:
    """Yield all parts of runs of capitalised words that overlap no link; a run can start at a sentence's begin."""
    taken = [(link.start, link.end) for link in document.links]
    run: list[tuple[int, int]] = []
    for word in _WORD.finditer(document.text):
        start, end = word.span()
        if not word[0][0].isupper() or any(start < stop and begin < end for begin, stop in taken):
            run = []
            continue
        if run and document.text[run[-1][1] : start] != " ":
            run = []
        run = [*run[1 - _RUN :], (start, end)]
        yield from ((first, end) for first, _ in run)


_WORD = re.compile(r"[^\W_][\w'’-]*")
_RUN = 5
"""Maximum number of words of a part of a run."""


def split_off(documents: Sequence[Document], count: int) -> tuple[list[Document], list[Document]]:
    """Return (training, at least `count` validation documents), split by a digest of the text (`split_by`)."""
    return split_by(documents, count, lambda document: document.text)


def _concatenate(predictions: Iterable[Predictions]) -> Predictions:
    parts = list(predictions)
    return Predictions(
        np.concatenate([part.scores for part in parts]) if parts else np.empty(0),
        np.concatenate([part.right for part in parts]) if parts else np.empty(0, bool),
        sum(part.gold for part in parts),
    )


def _logits(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    scores = np.clip(scores, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(scores) - np.log1p(-scores))
