"""Extractive question answering: the span of a context that answers a question (SQuAD 1.1 and 2.0).

1. A question is read with each window of its context; neighbouring windows overlap.
2. Every token has a start score and an end score, each with a softmax over the window's passage tokens and its first
   token, which is gold if the window does not contain the whole answer.
3. The score of a span is start + end; the best span of all windows is the answer, in characters of the context.
4. The score of "no answer" is the minimum over windows of their first tokens' scores. In SQuAD 2.0 the answer is empty
   if this exceeds the best span's score by more than `threshold`.
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
from wellread.text.segments import Segmented, Segmenter


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """Output for one window: its best spans, and the score of "no answer here"."""

    spans: tuple[Span, ...]
    none: float


class ExtractiveQa:
    """Span that answers a question."""

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
        """Set lengths in tokens; `stride` is the overlap of windows, `best` the number of spans kept."""
        self.version: Version = version
        self.longest, self.stride, self.longest_question = longest, stride, longest_question
        self.longest_answer, self.best, self.threshold = longest_answer, best, threshold

    def tokenize(
        self, segmenter: Segmenter, examples: Sequence[SpanQuestion], *, learning: bool
    ) -> list[list[Segmented]]:
        """Return the windows of each question's context; in training, none if no window contains the answer."""
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
        """Build a head of start and end scores."""
        check_positions(encoder, self.longest)
        return SpanHead(int(encoder.config.hidden_size))

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the gold first and last token of each window."""
        if not learning:
            return batch
        windows: list[list[Segmented]] = [[] for _ in batch.examples]
        for one, example in zip(batch.inputs, batch.example_of.tolist(), strict=True):
            windows[example].append(one)
        gold = [
            (0, 0) if found is None else found
            for question, some in zip(batch.examples, windows, strict=True)
            for found in _gold(question, some)
        ]
        return replace(batch, target=torch.tensor(gold))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy of starts and ends."""
        begins, ends = head(states, batch.inputs, batch.packing)
        first, last = batch.target.unbind(1)
        return {"span": (cross_entropy(begins, first) + cross_entropy(ends, last)) / 2}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the best spans and the no-answer score of each window (`WindowAnswer`)."""
        begins, ends = head(states, batch.inputs, batch.packing)
        spans = best_spans(begins, ends, batch.inputs, longest=self.longest_answer, count=self.best)
        none = (begins[:, 0] + ends[:, 0]).tolist()
        return [WindowAnswer(*both) for both in zip(spans, none, strict=True)]

    def ranked(self, answers: Sequence[WindowAnswer]) -> list[Span]:
        """Return the best distinct spans of all windows of a question, best first."""
        found: dict[tuple[int, int], Span] = {}
        for span in (span for window in answers for span in window.spans):
            known = found.get((span.start, span.end))
            if known is None or span.score > known.score:
                found[span.start, span.end] = span
        return sorted(found.values(), key=lambda span: (-span.score, span.start, span.end))[: self.best]

    def doubt(self, answers: Sequence[WindowAnswer]) -> float:
        """Return the no-answer score minus the score of the question's best span."""
        best = self.ranked(answers)[:1]
        return min((window.none for window in answers), default=0.0) - best[0].score if best else math.inf

    def texts(self, examples: Sequence[SpanQuestion], answers: Sequence[Sequence[WindowAnswer]]) -> dict[str, str]:
        """Return the answers by question id for `write_predictions`; in 2.0 "" where "no answer" is better."""
        found = {}
        for one, some in zip(examples, answers, strict=True):
            empty = self.version == "2.0" and self.doubt(some) > self.threshold
            found[one.id] = "" if empty else self._text(one, some)
        return found

    def scores(self, examples: Sequence[SpanQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return official exact match and F1; in 2.0 also by kind of question, and with the best threshold."""
        pairs = list(zip(examples, answers, strict=True))
        texts = {one.id: self._text(one, some) for one, some in pairs}
        if self.version == "1.1":
            found = score_squad(examples, texts, version=self.version)
            return {"exact": found.all.exact, "f1": found.all.f1}
        doubts = {one.id: self.doubt(some) for one, some in pairs}
        found = score_squad(examples, texts, version=self.version, no_answer=doubts, threshold=self.threshold)
        scores = {"exact": found.all.exact, "f1": found.all.f1}
        if found.with_answer is not None and found.without_answer is not None:
            scores |= {"f1_with_answer": found.with_answer.f1, "f1_without_answer": found.without_answer.f1}
        if found.best is not None:
            scores |= {"best_exact": found.best.exact, "best_f1": found.best.f1}
        return scores

    def _text(self, example: SpanQuestion, answers: Sequence[WindowAnswer]) -> str:
        best = self.ranked(answers)[:1]
        return example.context[best[0].start : best[0].end] if best else ""


def _gold(question: SpanQuestion, windows: Sequence[Segmented]) -> list[tuple[int, int] | None]:
    """Return the tokens of the first answer with an offset, in each window."""
    if question.impossible:
        return [None] * len(windows)
    for answer in question.answers:
        if answer.start is not None and answer.text:
            return gold_tokens(windows, answer.start, answer.start + len(answer.text))
    return [None] * len(windows)
