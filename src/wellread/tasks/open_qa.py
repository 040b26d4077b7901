"""Open-domain question answering: rank the passages that a search found, and read them (Quasar-T, SearchQA).

1. A question is read with each of its passages (a long one in windows).
2. One head scores a passage, another the begins and ends of answers in it; both read the same states.
3. It is not told which passages hold the answer: those are taken to in which it stands. The loss of the passages is
   -log of the chance that a softmax over a question's passages gives to these together; the loss of the spans, in each
   of these, -log of the chance of all places where an answer stands.
4. The answer is the span with the highest passage score + log-chance of the span in its passage.

A batch has some passages of each question, drawn anew every time: up to half of them hold the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from wellread.data.readers.open_qa import OpenQuestion, answer_finder, ranked_hits
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.evaluation.answers import score_open_answers
from wellread.evaluation.ranking import recall_at
from wellread.tasks.answer_spans import Span, SpanHead, best_spans, gold_tokens, shorten
from wellread.tasks.task import Batch, Pooling, TextHead, check_positions, in_full
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageWindow(Tokenization):
    """A window of one of a question's passages."""

    passage: int
    golds: tuple[tuple[int, int], ...]
    """The first and last piece of each place where an answer stands; told only where one learns."""


@dataclass(frozen=True, slots=True)
class PassageAnswer:
    """What one window says: how good its passage is, and its best spans with their log-chances."""

    passage: int
    score: float
    spans: tuple[Span, ...]


class PassageHead(nn.Module):
    """A score of each window's passage, and the begins and ends of answers in it."""

    def __init__(self, width: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.passage = TextHead(width, 1, pooling=pooling)
        self.span = SpanHead(width)

    def forward(
        self, states: Float[Tensor, "token dim"], inputs: Sequence[Tokenization], packing: Packing
    ) -> tuple[Float[Tensor, " input"], Float[Tensor, "input width"], Float[Tensor, "input width"]]:
        """Passage scores, and the log-chances of begins and ends in each window."""
        begins, ends = self.span(states, inputs, packing)
        return in_full(self.passage(states, inputs, packing)[:, 0]), begins.log_softmax(1), ends.log_softmax(1)


class OpenQa:
    """The answer to a question, and the passages it may be found in."""

    score = "f1"

    def __init__(
        self,
        *,
        longest: int = 192,
        stride: int = 64,
        longest_answer: int = 12,
        longest_question: int = 64,
        sampled: int = 8,
        most_passages: int | None = None,
        at: Sequence[int] = (1, 5, 20),
        pooling: Pooling = "mean",
    ) -> None:
        """`sampled` windows of a question are read at a step; of its passages, the first `most_passages` ever."""
        if sampled < 2:
            raise UsageError(f"sampled is {sampled}; expected 2 or more: one with an answer, and one to tell it from")
        self.longest, self.stride, self.longest_question = longest, stride, longest_question
        self.longest_answer, self.sampled, self.most_passages = longest_answer, sampled, most_passages
        self.at, self.pooling = tuple(at), pooling

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[OpenQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
        """The windows of each question's passages, as `PassageWindow`."""
        questions = shorten(segmenter.tokenizer, [one.question for one in examples], self.longest_question)
        passages = [one.passages[: self.most_passages] for one in examples]
        pairs = [(question, text) for question, some in zip(questions, passages, strict=True) for text in some]
        windows = iter(segmenter.tokenize_windows_many(pairs, longest=self.longest, stride=self.stride))
        tokenized: list[list[Tokenization]] = []
        for one, some in zip(examples, passages, strict=True):
            find = answer_finder(one.answers if learning else ())
            found = [
                window
                for passage, text in enumerate(some)
                for window in _windows(next(windows), passage, find(text) if learning else ())
            ]
            tokenized.append([*found] if not learning or any(window.golds for window in found) else [])
        return tokenized

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Both heads."""
        check_positions(encoder, self.longest)
        return PassageHead(int(encoder.config.hidden_size), pooling=self.pooling)

    def draw(self, example: OpenQuestion, inputs: Sequence[Tokenization], *, learning: bool) -> Sequence[Tokenization]:
        """All windows; to learn from, some that hold an answer and some that do not."""
        if not learning:
            return inputs
        order = torch.randperm(len(inputs)).tolist()
        holding = [place for place in order if _golds(inputs[place])]
        others = [place for place in order if not _golds(inputs[place])]
        held = max(1, self.sampled // 2, self.sampled - len(others))
        chosen = holding[:held]
        chosen += others[: self.sampled - len(chosen)]
        return [inputs[place] for place in sorted(chosen)]

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With (window, first, last) of every place where an answer stands."""
        if not learning:
            return batch
        golds = [(number, *gold) for number, one in enumerate(batch.inputs) for gold in _golds(one)]
        return replace(batch, target=torch.tensor(golds))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """The mean over questions for passages, and over the windows that hold an answer for spans."""
        passages, begins, ends = head(states, batch.inputs, batch.packing)
        window, first, last = batch.target.unbind(1)
        holding, counts = torch.unique_consecutive(window, return_counts=True)
        held = torch.full_like(passages, -math.inf)
        held[holding] = passages[holding]
        ranking = batch.in_rows(passages).logsumexp(1) - batch.in_rows(held).logsumexp(1)
        places = begins[window, first] + ends[window, last]
        spans = torch.stack([some.logsumexp(0) for some in places.split(counts.tolist())])
        return {"passage": ranking.mean(), "span": -spans.mean()}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """What each window says (`PassageAnswer`)."""
        passages, begins, ends = head(states, batch.inputs, batch.packing)
        spans = best_spans(begins, ends, batch.inputs, longest=self.longest_answer, count=1)
        numbers = [one.passage for one in batch.inputs if isinstance(one, PassageWindow)]
        return [PassageAnswer(*all) for all in zip(numbers, passages.tolist(), spans, strict=True)]

    def rank(self, answers: Sequence[PassageAnswer]) -> list[int]:
        """The numbers of a question's passages, the best first, by their best windows."""
        best: dict[int, float] = {}
        for one in answers:
            best[one.passage] = max(one.score, best.get(one.passage, -math.inf))
        return sorted(best, key=lambda passage: (-best[passage], passage))

    def texts(self, examples: Sequence[OpenQuestion], answers: Sequence[Sequence[PassageAnswer]]) -> dict[str, str]:
        """The best answer by question id; empty where there is nothing to read."""
        found = {}
        for one, some in zip(examples, answers, strict=True):
            spans = [(window.score + span.score, window.passage, span) for window in some for span in window.spans]
            _, passage, span = max(spans, key=lambda each: each[0], default=(0.0, 0, None))
            found[one.id] = "" if span is None else one.passages[passage][span.start : span.end]
        return found

    def scores(self, examples: Sequence[OpenQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Exact match and F1, SearchQA's own figures where they are, and how often a first passage holds an answer."""
        found = score_open_answers({one.id: one.answers for one in examples}, self.texts(examples, answers))
        hits = ranked_hits(examples, [self.rank(some) for some in answers])
        told = {name: value for name, value in found.items() if not math.isnan(value)}
        return told | {f"recall@{k}": recall_at(hits, k) for k in self.at}


def _windows(windows: Sequence[Tokenization], passage: int, spans: Sequence[tuple[int, int]]) -> list[PassageWindow]:
    found = [gold_tokens(windows, start, end) for start, end in spans]
    golds = [
        tuple(dict.fromkeys(gold for some in found if (gold := some[place]) is not None))
        for place in range(len(windows))
    ]
    return [
        PassageWindow(**{part.name: getattr(one, part.name) for part in fields(one)}, passage=passage, golds=some)
        for one, some in zip(windows, golds, strict=True)
    ]


def _golds(window: Tokenization) -> tuple[tuple[int, int], ...]:
    assert isinstance(window, PassageWindow)
    return window.golds
