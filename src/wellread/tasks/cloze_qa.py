"""Cloze question answering by candidates: which entity of a passage does the placeholder of a query stand for (ReCoRD)?

1. The query, with a mask in the place of its placeholder, is read with each window of the passage that has a candidate.
2. Every mention of an entity that a window has whole is a candidate. It is judged by the placeholder and by itself: by
   the means of their pieces; or for an encoder that takes entities (LUKE) by two [MASK] entities' states, one at the
   placeholder, one at the mention.
3. Each candidate is a question of its own (binary cross-entropy, as LUKE's authors have it).
4. The best mention of all windows is the answer, as the passage writes it.

Unlike the authors' code: candidates of a plain encoder go through a dense layer first, since the placeholder has the
same say for all of them in a linear one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int64
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, gelu

from wellread.data.readers.record import PLACEHOLDER, ClozeQuestion, Span, score_record
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.spans import span_means
from wellread.errors import UsageError
from wellread.evaluation.answers import normalise
from wellread.models.luke.model import ENTITIES
from wellread.tasks.entity_inputs import masks_of, with_entities
from wellread.tasks.lm_head import mask_of
from wellread.tasks.task import Batch, check_positions
from wellread.text.tokenization import TextTokenizer, Tokenization, encode_many

_QUERY, _PASSAGE = 0, 1
"""The segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClozeInput(Tokenization):
    """A query with a window of its passage, and the candidates that are there."""

    placeholder: Span
    """Its first and last piece."""
    candidates: Int64[np.ndarray, "cand 3"]
    """The number of an entity of the passage, its first and its last piece."""


class Chosen(NamedTuple):
    """A candidate and how well it fits."""

    score: float
    text: str


class ClozeHead(nn.Module):
    """A score of each candidate, by the placeholder's state and its own, side by side."""

    def __init__(self, width: int, *, entities: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = None if entities else nn.Linear(2 * width, width)
        self.out = nn.Linear(2 * width if entities else width, 1)
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(
        self, placeholders: Float[Tensor, "cand dim"], candidates: Float[Tensor, "cand dim"]
    ) -> Float[Tensor, " cand"]:
        """One score for each candidate."""
        seen = self.dropout(torch.cat((placeholders, candidates), 1))
        if self.dense is not None:
            seen = self.dropout(gelu(self.dense(seen)))
        return cast(Tensor, self.out(seen)).squeeze(1)


class Cloze:
    """The entity that a placeholder stands for; a window's answer is its best candidate (`Chosen`), if it has one."""

    score = "exact"

    def __init__(
        self, tokenizer: Tokenizer, *, longest: int = 384, stride: int = 128, longest_question: int = 96
    ) -> None:
        """All lengths are in pieces; `stride` is what neighbouring windows share."""
        self.longest, self.stride, self.longest_question = longest, stride, longest_question
        try:
            self._hole = mask_of(tokenizer)[0]
        except UsageError:
            self._hole = PLACEHOLDER
        self._masks: tuple[int, int] | None = None

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[ClozeQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
        """The windows of each question that have a candidate; none where no candidate of a question is right."""
        queries = [self._query(segmenter.tokenizer, one.query) for one in examples]
        pairs = [(query, one.passage) for (query, _), one in zip(queries, examples, strict=True)]
        tokenized = segmenter.tokenize_windows_many(pairs, longest=self.longest, stride=self.stride)
        found = []
        for one, (_, hole), windows in zip(examples, queries, tokenized, strict=True):
            made = [_input(window, one, hole) for window in windows]
            useful = not learning or any(self._right(one, window).any() for window in made)
            found.append([window for window in made if useful and len(window.candidates)])
        return cast(list[list[Tokenization]], found)

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """A score for each candidate."""
        check_positions(encoder, self.longest)
        self._masks = masks_of(encoder)
        return ClozeHead(int(encoder.config.hidden_size), entities=self._masks is not None)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With placeholders and candidates as pieces, and which candidates are right."""
        windows = [_cloze(one) for one in batch.inputs]
        counts = torch.tensor([len(one.candidates) for one in windows])
        input_of = torch.repeat_interleave(torch.arange(len(windows)), counts)
        holes = torch.tensor([one.placeholder for one in windows])
        spans = torch.from_numpy(np.concatenate([one.candidates[:, 1:] for one in windows]))
        target: dict[str, Any] = {"input_of": input_of, "holes": holes, "spans": spans}
        if learning:
            right = [
                self._right(batch.examples[example], one)
                for one, example in zip(windows, batch.example_of.tolist(), strict=True)
            ]
            target["right"] = torch.from_numpy(np.concatenate(right))
        target["holes"] = holes + batch.packing.starts[:, None]
        target["spans"] = spans + batch.packing.starts[input_of, None]
        if self._masks is not None:
            # Each window's placeholder comes before its candidates.
            firsts = counts.cumsum(0) - counts + torch.arange(len(holes))
            places = torch.arange(len(spans)) + input_of + 1
            both, text_of = spans.new_zeros(len(spans) + len(holes), 2), input_of.new_zeros(len(spans) + len(holes))
            both[firsts], both[places] = holes, spans
            text_of[firsts], text_of[places] = torch.arange(len(holes)), input_of
            batch = with_entities(batch, text_of, torch.full_like(text_of, self._masks[0]), both)
            target["among"] = firsts, places
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Binary cross-entropy, the mean over candidates."""
        found = self._scores(head, states, batch)
        return {"cloze": binary_cross_entropy_with_logits(found, batch.target["right"].to(found.dtype))}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """The best candidate of each window."""
        scores = self._scores(head, states, batch).tolist()
        found, begin = [], 0
        for one, example in zip(batch.inputs, batch.example_of.tolist(), strict=True):
            numbers = _cloze(one).candidates[:, 0].tolist()
            mine = scores[begin : begin + len(numbers)]
            begin += len(numbers)
            best = max(range(len(mine)), key=mine.__getitem__)
            asked = batch.examples[example]
            found.append(Chosen(mine[best], asked.passage[slice(*asked.entities[numbers[best]])]))
        return found

    def texts(self, examples: Sequence[ClozeQuestion], answers: Sequence[Sequence[Chosen]]) -> dict[str, str]:
        """The answers by question id, empty where a passage has no candidate: what `write_predictions` takes."""
        return {
            one.id: max(some, key=lambda chosen: chosen.score).text if some else ""
            for one, some in zip(examples, answers, strict=True)
        }

    def scores(self, examples: Sequence[ClozeQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Exact match and F1 by the official rules."""
        found = score_record(examples, self.texts(examples, answers)).all
        return {"exact": found.exact, "f1": found.f1}

    def _scores(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> Float[Tensor, " cand"]:
        target = batch.target
        if ENTITIES in batch.told:
            holes, candidates = (batch.told[ENTITIES][places] for places in target["among"])
        else:
            holes, candidates = (span_means(states, *target[name].unbind(1)) for name in ("holes", "spans"))
        found: Tensor = head(holes[target["input_of"]], candidates)
        return found

    def _right(self, question: ClozeQuestion, window: ClozeInput) -> np.ndarray[Any, np.dtype[np.bool_]]:
        golds = {normalise(answer) for answer in question.answers}
        texts = (question.passage[slice(*question.entities[number])] for number in window.candidates[:, 0].tolist())
        return np.array([normalise(text) in golds for text in texts], bool)

    def _query(self, tokenizer: Tokenizer, query: str) -> tuple[str, Span]:
        """The query with its hole, of so many pieces at most, and where the hole is in it."""
        start = query.index(PLACEHOLDER)
        query = f"{query[:start]}{self._hole}{query[start + len(PLACEHOLDER) :]}"
        span = start, start + len(self._hole)
        offsets = np.array(encode_many(tokenizer, [query], special=False)[0].offsets, np.int64).reshape(-1, 2)
        if len(offsets) <= self.longest_question:
            return query, span
        middle = int(np.searchsorted(offsets[:, 1], start, side="right"))
        first = int(np.clip(middle - self.longest_question // 2, 0, len(offsets) - self.longest_question))
        low, high = int(offsets[first, 0]), int(offsets[first + self.longest_question - 1, 1])
        low, high = min(low, span[0]), max(high, span[1])
        return query[low:high], (span[0] - low, span[1] - low)


def _cloze(one: Tokenization) -> ClozeInput:
    assert isinstance(one, ClozeInput)
    return one


def _input(window: Tokenization, question: ClozeQuestion, hole: Span) -> ClozeInput:
    query = np.flatnonzero(
        (window.segment_of == _QUERY) & (window.spans[:, 0] < hole[1]) & (window.spans[:, 1] > hole[0])
    )
    told = {part.name: getattr(window, part.name) for part in dataclasses.fields(Tokenization)}
    found = np.array(list(_candidates(window, question.entities)), np.int64).reshape(-1, 3)
    # A mask is a piece that stands for nothing in a text, but has its characters.
    placeholder = (int(query[0]), int(query[-1])) if len(query) else (0, 0)
    return ClozeInput(**told, placeholder=placeholder, candidates=found)


def _candidates(window: Tokenization, entities: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
    """Entities that a window has whole."""
    own = np.flatnonzero(window.segment_of == _PASSAGE)
    if not len(own):
        return
    starts, ends = window.spans[own].T
    for number, (start, end) in enumerate(entities):
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(starts, end) - 1
        inside = (first > 0 or starts[0] <= start) and (last < len(own) - 1 or ends[-1] >= end)
        if first <= last and inside:
            yield number, int(own[first]), int(own[last])
