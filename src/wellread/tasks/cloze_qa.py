"""Cloze question answering over entities: the entity of a passage that replaces a query's placeholder (ReCoRD).

1. The query, with a mask in place of its placeholder, is read with each window of the passage that has a candidate.
2. Every mention of an entity that is whole in a window is a candidate. It is represented by the means of the
   placeholder's and its own tokens; with LUKE, by the states of two [MASK] entities, one at the placeholder and one at
   the mention.
3. Each candidate is classified by itself (binary cross-entropy, as in LUKE).
4. The best mention of all windows is the answer, as the passage writes it.

Unlike the authors' code: candidates of a plain encoder pass through a dense layer first, since in a linear layer the
placeholder would add the same to all of them.
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

from wellread.data.readers.record import (
    PLACEHOLDER,
    ClozeQuestion,
    Span,
    read_record,
    score_record,
    split_record,
)
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.spans import span_means
from wellread.errors import UsageError
from wellread.evaluation.answers import normalise
from wellread.models.luke.model import ENTITIES
from wellread.tasks.extractive_qa import QuestionOptions, write_answer_texts
from wellread.tasks.lm_head import mask_of
from wellread.tasks.mention_markers import masks_of, with_entities
from wellread.tasks.task import Batch, check_positions
from wellread.tasks.task_type import TaskMetadata, TaskSettings, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization, encode_many

_QUERY, _PASSAGE = 0, 1
"""Segment numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClozeInput(Tokenization):
    """Query with a window of its passage, and the candidates in the window."""

    placeholder: Span
    """First and last token of the placeholder."""
    candidates: Int64[np.ndarray, "cand 3"]
    """Number of an entity of the passage, its first and its last token."""


class Chosen(NamedTuple):
    """Candidate and its score."""

    score: float
    text: str


class ClozeHead(nn.Module):
    """Score of each candidate from the concatenated states of placeholder and candidate."""

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
        """Return one score per candidate."""
        seen = self.dropout(torch.cat((placeholders, candidates), 1))
        if self.dense is not None:
            seen = self.dropout(gelu(self.dense(seen)))
        return cast(Tensor, self.out(seen)).squeeze(1)


class Cloze:
    """Entity that replaces a placeholder; a window's answer is its best candidate (`Chosen`)."""

    score = "exact"

    def __init__(
        self, tokenizer: Tokenizer, *, longest: int = 384, stride: int = 128, longest_question: int = 96
    ) -> None:
        """Set lengths in tokens; `stride` is the overlap of neighbouring windows."""
        self.longest, self.stride, self.longest_question = longest, stride, longest_question
        try:
            self._hole = mask_of(tokenizer)[0]
        except UsageError:
            self._hole = PLACEHOLDER
        self._masks: tuple[int, int] | None = None

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[ClozeQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return the windows with a candidate; in training, none for questions without a right candidate."""
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
        """Build a head with a score per candidate."""
        check_positions(encoder, self.longest)
        self._masks = masks_of(encoder)
        return ClozeHead(int(encoder.config.hidden_size), entities=self._masks is not None)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the token spans of placeholders and candidates and, for training, the right candidates."""
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
        """Return the mean binary cross-entropy over candidates."""
        found = self._scores(head, states, batch)
        return {"cloze": binary_cross_entropy_with_logits(found, batch.target["right"].to(found.dtype))}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the best candidate of each window."""
        scores = self._scores(head, states, batch).tolist()
        found, begin = [], 0
        for one, example in zip(batch.inputs, batch.example_of.tolist(), strict=True):
            numbers = _cloze(one).candidates[:, 0].tolist()
            own = scores[begin : begin + len(numbers)]
            begin += len(numbers)
            best = max(range(len(own)), key=own.__getitem__)
            question = batch.examples[example]
            found.append(Chosen(own[best], question.passage[slice(*question.entities[numbers[best]])]))
        return found

    def texts(self, examples: Sequence[ClozeQuestion], answers: Sequence[Sequence[Chosen]]) -> dict[str, str]:
        """Return the answers by question id for `write_predictions`; "" if a passage has no candidate."""
        return {
            one.id: max(some, key=lambda chosen: chosen.score).text if some else ""
            for one, some in zip(examples, answers, strict=True)
        }

    def scores(self, examples: Sequence[ClozeQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return exact match and F1 by the official rules."""
        found = score_record(examples, self.texts(examples, answers)).all
        return {"exact": found.exact, "f1": found.f1}

    def _scores(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> Float[Tensor, " cand"]:
        target = batch.target
        if ENTITIES in batch.outputs:
            holes, candidates = (batch.outputs[ENTITIES][places] for places in target["among"])
        else:
            holes, candidates = (span_means(states, *target[name].unbind(1)) for name in ("holes", "spans"))
        found: Tensor = head(holes[target["input_of"]], candidates)
        return found

    def _right(self, question: ClozeQuestion, window: ClozeInput) -> np.ndarray[Any, np.dtype[np.bool_]]:
        golds = {normalise(answer) for answer in question.answers}
        texts = (question.passage[slice(*question.entities[number])] for number in window.candidates[:, 0].tolist())
        return np.array([normalise(text) in golds for text in texts], bool)

    def _query(self, tokenizer: Tokenizer, query: str) -> tuple[str, Span]:
        """Return the query with its mask, cropped to `longest_question` tokens, and the span of the mask."""
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
    values = {part.name: getattr(window, part.name) for part in dataclasses.fields(Tokenization)}
    found = np.array(list(_candidates(window, question.entities)), np.int64).reshape(-1, 3)
    # A mask belongs to no word of the text, but it has characters.
    placeholder = (int(query[0]), int(query[-1])) if len(query) else (0, 0)
    return ClozeInput(**values, placeholder=placeholder, candidates=found)


def _candidates(window: Tokenization, entities: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
    """Yield (number, first token, last token) of the entities that are whole in a window."""
    own = np.flatnonzero(window.segment_of == _PASSAGE)
    if not len(own):
        return
    starts, ends = window.spans[own].T
    for number, (start, end) in enumerate(entities):
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(starts, end) - 1
        inside = (first > 0 or starts[0] <= start) and (last < len(own) - 1 or ends[-1] >= end)
        if first <= last and inside:
            yield number, int(own[first]), int(own[last])


# registry


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Cloze:
    options: QuestionOptions = settings.options
    longest = settings.encoder.longest
    return Cloze(
        tokenizer, longest=longest, stride=options.stride_of(longest), longest_question=options.question_of(longest)
    )


TASKS = {
    "record": TaskType(
        options="questions",
        read=lambda settings, metadata, path, broken: read_record(path, skipped=broken),
        split=split_record,
        build=_build,
        write=write_answer_texts,
        has_gold=lambda question: bool(question.answers),
        own_entities=lambda options: True,
    )
}
