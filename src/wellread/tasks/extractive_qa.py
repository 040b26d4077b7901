"""Extractive question answering: the span of a context that answers a question (SQuAD 1.1 and 2.0).

1. A question is read with each window of its context; neighbouring windows share pieces.
2. Every piece has a score for beginning the answer and one for ending it: a softmax of each over a window's passage
   pieces and its first piece, which is gold where the window does not hold the whole answer.
3. A span scores the sum of its begin and end; the best over all windows is the answer, in the context's characters.
4. "No answer" scores the lowest that a window gives its first piece: every window must be sure. In SQuAD 2.0 the answer
   is empty where this is above the best span's score by more than `threshold`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wellread.data.readers.squad import SpanQuestion, score_squad
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.evaluation.answers import Version
from wellread.tasks.answer_spans import Span, SpanHead, best_spans, gold_tokens, shorten
from wellread.tasks.task import Batch, check_positions
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """What one window says: its best spans, and the score of "no answer here"."""

    spans: tuple[Span, ...]
    none: float


class ExtractiveQa:
    """The span that answers a question."""

    score = "f1"

    def __init__(
        self,
        version: Version = "1.1",
        *,
        longest: int = 384,
        stride: int = 128,
        longest_answer: int = 30,
        longest_question: int = 64,
        best: int = 20,
        threshold: float = 0.0,
    ) -> None:
        """All lengths are in pieces; `stride` is what neighbouring windows share, `best` how many spans are kept."""
        self.version: Version = version
        self.longest, self.stride, self.longest_question = longest, stride, longest_question
        self.longest_answer, self.best, self.threshold = longest_answer, best, threshold

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[SpanQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
        """The windows of each question's context."""
        questions = shorten(segmenter.tokenizer, [one.question for one in examples], self.longest_question)
        pairs = [(question, one.context) for question, one in zip(questions, examples, strict=True)]
        tokenized = segmenter.tokenize_windows_many(pairs, longest=self.longest, stride=self.stride)
        if not learning:
            return tokenized
        return [
            windows if one.impossible or any(_gold(one, windows)) else []
            for one, windows in zip(examples, tokenized, strict=True)
        ]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Begins and ends."""
        check_positions(encoder, self.longest)
        return SpanHead(int(encoder.config.hidden_size))

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With the gold first and last piece of each window."""
        if not learning:
            return batch
        windows: list[list[Tokenization]] = [[] for _ in batch.examples]
        for one, example in zip(batch.inputs, batch.example_of.tolist(), strict=True):
            windows[example].append(one)
        gold = [
            (0, 0) if found is None else found
            for question, some in zip(batch.examples, windows, strict=True)
            for found in _gold(question, some)
        ]
        return replace(batch, target=torch.tensor(gold))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """The mean cross-entropy of begins and ends."""
        begins, ends = head(states, batch.inputs, batch.packing)
        first, last = batch.target.unbind(1)
        return {"span": (cross_entropy(begins, first) + cross_entropy(ends, last)) / 2}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """What each window says (`WindowAnswer`)."""
        begins, ends = head(states, batch.inputs, batch.packing)
        spans = best_spans(begins, ends, batch.inputs, longest=self.longest_answer, count=self.best)
        none = (begins[:, 0] + ends[:, 0]).tolist()
        return [WindowAnswer(*both) for both in zip(spans, none, strict=True)]

    def ranked(self, answers: Sequence[WindowAnswer]) -> list[Span]:
        """The best spans of all windows of a question, each once, the best first."""
        found: dict[tuple[int, int], Span] = {}
        for span in (span for window in answers for span in window.spans):
            known = found.get((span.start, span.end))
            if known is None or span.score > known.score:
                found[span.start, span.end] = span
        return sorted(found.values(), key=lambda span: (-span.score, span.start, span.end))[: self.best]

    def doubt(self, answers: Sequence[WindowAnswer]) -> float:
        """By how much "no answer" is better than a question's best span."""
        best = self.ranked(answers)[:1]
        return min((window.none for window in answers), default=0.0) - best[0].score if best else math.inf

    def texts(self, examples: Sequence[SpanQuestion], answers: Sequence[Sequence[WindowAnswer]]) -> dict[str, str]:
        """The answers by question id, empty in 2.0 where "no answer" is better: what `write_predictions` takes."""
        found = {}
        for one, some in zip(examples, answers, strict=True):
            empty = self.version == "2.0" and self.doubt(some) > self.threshold
            found[one.id] = "" if empty else self._text(one, some)
        return found

    def scores(self, examples: Sequence[SpanQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Exact match and F1 by the official rules; in 2.0 also apart, and at the best threshold."""
        pairs = list(zip(examples, answers, strict=True))
        texts = {one.id: self._text(one, some) for one, some in pairs}
        if self.version == "1.1":
            found = score_squad(examples, texts, version=self.version)
            return {"exact": found.all.exact, "f1": found.all.f1}
        doubts = {one.id: self.doubt(some) for one, some in pairs}
        found = score_squad(examples, texts, version=self.version, no_answer=doubts, threshold=self.threshold)
        told = {"exact": found.all.exact, "f1": found.all.f1}
        if found.with_answer is not None and found.without_answer is not None:
            told |= {"f1_with_answer": found.with_answer.f1, "f1_without_answer": found.without_answer.f1}
        if found.best is not None:
            told |= {"best_exact": found.best.exact, "best_f1": found.best.f1}
        return told

    def _text(self, example: SpanQuestion, answers: Sequence[WindowAnswer]) -> str:
        best = self.ranked(answers)[:1]
        return example.context[best[0].start : best[0].end] if best else ""


def _gold(question: SpanQuestion, windows: Sequence[Tokenization]) -> list[tuple[int, int] | None]:
    """Where the first answer that has a place stands in each window."""
    if question.impossible:
        return [None] * len(windows)
    for answer in question.answers:
        if answer.start is not None and answer.text:
            return gold_tokens(windows, answer.start, answer.start + len(answer.text))
    return [None] * len(windows)
