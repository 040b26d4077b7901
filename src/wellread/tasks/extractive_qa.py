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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from wellread.data.readers.squad import (
    SpanQuestion,
    read_squad,
    score_squad,
    split_squad,
    squad_version,
    write_predictions,
)
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.evaluation.answers import Version
from wellread.tasks.task import Batch, check_positions, in_full
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization, encode_many

_PASSAGE = 1
"""Segment number of the passage."""


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """Questions about passages, for task = "squad", "openqa" and "record"; windows have `encoder.longest` tokens."""

    stride: int | None = None
    """Overlap of neighbouring windows in tokens; a quarter of a window by default."""
    longest_answer: int = 30
    """Maximum tokens of an answer."""
    longest_question: int = 64
    """Maximum tokens of a question, longer ones are truncated; at most a third of a window."""
    threshold: float = 0.0
    """SQuAD 2.0: margin by which "no answer" must beat the best span."""
    layout: Literal["openqa", "quasar", "searchqa"] = "openqa"
    """File layout of open questions (`data.readers.open_qa`)."""
    contexts: str | None = None
    """Folder or file of the passages, relative to `data.root`, if they are not beside the questions."""
    sampled: int = 8
    """Open questions: windows of a question per training step."""
    most_passages: int | None = None
    """Open questions: maximum passages of a question."""

    def __post_init__(self) -> None:
        for name in ("longest_answer", "longest_question", "most_passages"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        if self.contexts is not None and self.layout == "searchqa":
            raise UsageError(f"contexts is {self.contexts!r}, and searchqa files contain the passages; remove contexts")
        if self.sampled < 2:
            raise UsageError(f"sampled is {self.sampled}; expected 2 or more: a positive and a negative window")

    def stride_of(self, longest: int) -> int:
        """Return the overlap of windows of `longest` tokens."""
        return longest // 4 if self.stride is None else self.stride

    def question_of(self, longest: int) -> int:
        """Return the maximum tokens of a question in windows of `longest` tokens."""
        return min(self.longest_question, longest // 3)


@dataclass(frozen=True, slots=True)
class Span:
    """Character span of a passage, with its score as an answer."""

    score: float
    start: int
    end: int


class SpanHead(nn.Module):
    """Two scores per token: start and end of an answer."""

    def __init__(self, width: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, 2)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, states: Float[Tensor, "token dim"], inputs: Sequence[Tokenization], packing: Packing
    ) -> tuple[Float[Tensor, "input width"], Float[Tensor, "input width"]]:
        """Return the scores of starts and ends, window by window; -inf where no answer can be."""
        there = np.concatenate([answerable(one) for one in inputs])
        there[packing.starts.cpu().numpy()] = True
        mask = packing.spread(torch.from_numpy(there).to(states.device))
        both = packing.spread(in_full(self.out(self.dropout(states)))).masked_fill(~mask[:, :, None], -math.inf)
        begins, ends = both.unbind(2)
        return begins, ends


def answerable(window: Tokenization) -> NDArray[np.bool_]:
    """Return True for the tokens that an answer may start or end with: those of the passage that are not blank."""
    return np.asarray((window.segment_of == _PASSAGE) & (window.spans[:, 0] < window.spans[:, 1]))


def gold_tokens(windows: Sequence[Tokenization], start: int, end: int) -> list[tuple[int, int] | None]:
    """Return first and last token of a character span in each window that contains the whole span, else None."""
    touched = [np.flatnonzero(answerable(one) & (one.spans[:, 0] < end) & (one.spans[:, 1] > start)) for one in windows]
    reach = [
        (int(one.spans[some[0], 0]), int(one.spans[some[-1], 1]))
        for one, some in zip(windows, touched, strict=True)
        if len(some)
    ]
    if not reach:
        return [None] * len(windows)
    # Compare with the union over all windows: a tokenizer may drop characters at the span's ends.
    first, last = min(low for low, _ in reach), max(high for _, high in reach)
    return [
        (int(some[0]), int(some[-1]))
        if len(some) and one.spans[some[0], 0] == first and one.spans[some[-1], 1] == last
        else None
        for one, some in zip(windows, touched, strict=True)
    ]


def best_spans(
    begins: Float[Tensor, "input width"],
    ends: Float[Tensor, "input width"],
    inputs: Sequence[Tokenization],
    *,
    longest: int,
    count: int,
) -> list[tuple[Span, ...]]:
    """Return the best spans of each window by start + end score, of at most `longest` tokens; never "no answer"."""
    begins = begins.clone()
    begins[:, 0] = -math.inf
    # pairs[w, i, d]: starts at token i, ends at token i + d
    pairs = begins[:, :, None] + pad(ends, (0, longest - 1), value=-math.inf).unfold(1, longest, 1)
    flat = pairs.flatten(1)
    scores, places = (part.tolist() for part in flat.topk(min(count, flat.shape[1]), dim=1))
    found = []
    for one, values, chosen in zip(inputs, scores, places, strict=True):
        tokens = [(value, *divmod(place, longest)) for value, place in zip(values, chosen, strict=True)]
        spans = [
            Span(value, int(one.spans[first, 0]), int(one.spans[first + more, 1]))
            for value, first, more in tokens
            if value > -math.inf
        ]
        found.append(tuple(spans))
    return found


def shorten(tokenizer: Tokenizer, questions: Sequence[str], most: int) -> list[str]:
    """Truncate questions to at most `most` tokens, so that there is space for the passage."""
    codes = encode_many(tokenizer, questions, special=False)
    return [
        question if len(code) <= most else question[: code.offsets[most - 1][1]]
        for question, code in zip(questions, codes, strict=True)
    ]


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
        self, segmenter: TextTokenizer, examples: Sequence[SpanQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
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


def _gold(question: SpanQuestion, windows: Sequence[Tokenization]) -> list[tuple[int, int] | None]:
    """Return the tokens of the first answer with an offset, in each window."""
    if question.impossible:
        return [None] * len(windows)
    for answer in question.answers:
        if answer.start is not None and answer.text:
            return gold_tokens(windows, answer.start, answer.start + len(answer.text))
    return [None] * len(windows)


# registry


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> ExtractiveQa:
    options: QuestionOptions = settings.options
    longest = settings.encoder.longest
    return ExtractiveQa(
        metadata["version"],
        longest=longest,
        stride=options.stride_of(longest),
        longest_answer=options.longest_answer,
        longest_question=options.question_of(longest),
        threshold=options.threshold,
    )


def write_answer_texts(path: str | Path, task: Any, examples: Sequence[Any], answers: Answers) -> None:
    """Write the answers by question id, as JSON."""
    write_predictions(path, task.texts(examples, answers))


TASKS = {
    "squad": TaskType(
        options="questions",
        read=lambda settings, metadata, path, broken: read_squad(path, misplaced=broken),
        split=split_squad,
        build=_build,
        write=write_answer_texts,
        metadata=lambda settings: {"version": squad_version(settings.train_file)},
        has_gold=lambda question: bool(question.answers) or question.impossible,
    )
}
