"""Open-domain question answering: rank retrieved passages and extract the answer (Quasar-T, SearchQA).

1. A question is read with each of its passages (a long passage in windows).
2. One head scores the passage, another the start and end of the answer; both use the same states.
3. Passages are labelled by distant supervision: a passage is positive if it contains the answer. The passage loss is
   -log of the total softmax probability of the positive passages; the span loss, in each of these, is -log of the total
   probability of all occurrences of an answer.
4. The answer is the span with the highest passage score + log-probability of the span in its passage.

A training batch has a new sample of passages of each question; up to half of them are positive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.readers.open_qa import (
    OpenQuestion,
    answer_finder,
    ranked_hits,
    read_openqa,
    read_quasar,
    read_searchqa,
)
from wellread.data.splits import split_by
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.packing import Packing
from wellread.errors import InputError, UsageError
from wellread.evaluation.answers import score_open_answers
from wellread.evaluation.ranking import recall_at
from wellread.tasks.data_options import Pooling
from wellread.tasks.extractive_qa import (
    QuestionOptions,
    Span,
    SpanHead,
    best_spans,
    gold_tokens,
    shorten,
    write_answer_texts,
)
from wellread.tasks.task import Batch, TextHead, check_positions, in_full
from wellread.tasks.task_type import TaskMetadata, TaskSettings, TaskType, find_file, strip_ending
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageWindow(Tokenization):
    """Window of one of a question's passages."""

    passage: int
    golds: tuple[tuple[int, int], ...]
    """First and last token of each occurrence of an answer; only set in training."""


@dataclass(frozen=True, slots=True)
class PassageAnswer:
    """Output for one window: the score of its passage, and its best spans with their log-probabilities."""

    passage: int
    score: float
    spans: tuple[Span, ...]


class PassageHead(nn.Module):
    """Score of a window's passage, and scores of the starts and ends of answers in it."""

    def __init__(self, width: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.passage = TextHead(width, 1, pooling=pooling)
        self.span = SpanHead(width)

    def forward(
        self, states: Float[Tensor, "token dim"], inputs: Sequence[Tokenization], packing: Packing
    ) -> tuple[Float[Tensor, " input"], Float[Tensor, "input width"], Float[Tensor, "input width"]]:
        """Return passage scores, and the log-probabilities of starts and ends in each window."""
        begins, ends = self.span(states, inputs, packing)
        return in_full(self.passage(states, inputs, packing)[:, 0]), begins.log_softmax(1), ends.log_softmax(1)


class OpenQa:
    """Answer to a question, extracted from retrieved passages."""

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
        """Read `sampled` windows of a question per training step, and at most its first `most_passages` passages."""
        if sampled < 2:
            raise UsageError(f"sampled is {sampled}; expected 2 or more: a positive and a negative window")
        self.longest, self.stride, self.longest_question = longest, stride, longest_question
        self.longest_answer, self.sampled, self.most_passages = longest_answer, sampled, most_passages
        self.at, self.pooling = tuple(at), pooling

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[OpenQuestion], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return the windows of each question's passages, as `PassageWindow`."""
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
        """Build the passage head and the span head."""
        check_positions(encoder, self.longest)
        return PassageHead(int(encoder.config.hidden_size), pooling=self.pooling)

    def draw(self, example: OpenQuestion, inputs: Sequence[Tokenization], *, learning: bool) -> Sequence[Tokenization]:
        """Return all windows; in training, a sample of positive and negative ones."""
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
        """Add (window, first, last) of every occurrence of an answer as the target."""
        if not learning:
            return batch
        golds = [(number, *gold) for number, one in enumerate(batch.inputs) for gold in _golds(one)]
        return replace(batch, target=torch.tensor(golds))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the mean passage loss over questions, and the mean span loss over positive windows."""
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
        """Return the passage score and best spans of each window (`PassageAnswer`)."""
        passages, begins, ends = head(states, batch.inputs, batch.packing)
        spans = best_spans(begins, ends, batch.inputs, longest=self.longest_answer, count=1)
        numbers = [one.passage for one in batch.inputs if isinstance(one, PassageWindow)]
        return [PassageAnswer(*all) for all in zip(numbers, passages.tolist(), spans, strict=True)]

    def rank(self, answers: Sequence[PassageAnswer]) -> list[int]:
        """Return the numbers of a question's passages, best first, by their best windows."""
        best: dict[int, float] = {}
        for one in answers:
            best[one.passage] = max(one.score, best.get(one.passage, -math.inf))
        return sorted(best, key=lambda passage: (-best[passage], passage))

    def texts(self, examples: Sequence[OpenQuestion], answers: Sequence[Sequence[PassageAnswer]]) -> dict[str, str]:
        """Return the best answer by question id; "" if the question has no passages."""
        found = {}
        for one, some in zip(examples, answers, strict=True):
            spans = [(window.score + span.score, window.passage, span) for window in some for span in window.spans]
            _, passage, span = max(spans, key=lambda each: each[0], default=(0.0, 0, None))
            found[one.id] = "" if span is None else one.passages[passage][span.start : span.end]
        return found

    def scores(self, examples: Sequence[OpenQuestion], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return exact match, F1, SearchQA's own metrics where they apply, and recall@k of the passages."""
        found = score_open_answers({one.id: one.answers for one in examples}, self.texts(examples, answers))
        hits = ranked_hits(examples, [self.rank(some) for some in answers])
        scores = {name: value for name, value in found.items() if not math.isnan(value)}
        return scores | {f"recall@{k}": recall_at(hits, k) for k in self.at}


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


# registry


def _read(settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]) -> Iterator[OpenQuestion]:
    options: QuestionOptions = settings.options
    if options.layout == "searchqa":
        return read_searchqa(path, skipped=broken)
    read = read_quasar if options.layout == "quasar" else read_openqa
    return read(path, _passages_of(settings, Path(path)), skipped=broken)


def _passages_of(settings: TaskSettings, file: Path) -> str:
    """Return the file of passages: `train.json` for `train.txt`, `train_contexts` for Quasar-T's `train_questions`."""
    options: QuestionOptions = settings.options
    plain = Path(strip_ending(file.name))
    place = None if options.contexts is None else Path(find_file(settings.data.root, options.contexts))
    if place is not None and not place.is_dir():
        return str(place)
    name = plain.name.replace("questions", "contexts")
    name = name if options.layout == "quasar" else str(plain.with_suffix(".json"))
    found = find_file(str(place or file.parent), name)
    if not Path(found).exists() or Path(found) == file:
        raise InputError(
            f"the passages of {file} are not in {found}; set their place: --set questions.contexts=FOLDER, or a file"
        )
    return found


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> OpenQa:
    options: QuestionOptions = settings.options
    longest = settings.encoder.longest
    return OpenQa(
        longest=longest,
        stride=options.stride_of(longest),
        longest_answer=options.longest_answer,
        longest_question=options.question_of(longest),
        sampled=options.sampled,
        most_passages=options.most_passages,
        pooling=settings.encoder.pooling,
    )


TASKS = {
    "openqa": TaskType(
        options="questions",
        read=_read,
        split=lambda questions, count: split_by(questions, count, lambda one: one.question),
        build=_build,
        write=write_answer_texts,
        has_gold=lambda question: bool(question.answers),
    )
}
