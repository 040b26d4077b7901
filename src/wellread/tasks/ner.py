"""Named entity recognition by classifying spans: all word sequences up to a maximum length (LUKE, section 4.3).

1. A sentence is read with as much of its document as fits. A sentence that is too long is split into overlapping
   windows, so that every span is whole in one of them; it is classified in the first window that contains it.
2. A span is represented by its first token, its last token, and the mean of its tokens. With LUKE, a [MASK] entity at
   the span replaces the mean; the spans of an input are then read in groups of at most `together`, one pass each.
3. One class means "not an entity". The loss is the cross-entropy over all spans.
4. Spans whose best class is a label are taken greedily by probability, without overlaps.

Scored as the CoNLL script counts (`evaluation.chunks`). Files are CoNLL columns (`data.readers.conll`) or JSONL with
character offsets (`data.readers.ner_jsonl`). A name that is not a sequence of whole words counts as missed.

Unlike the authors' code: spans of a plain encoder pass through one more layer, since no self-attention has seen them;
words without tokens belong to the span around them; spans are taken by probability, not by logit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear

from wellread.data.readers.conll import (
    Columns,
    NamedText,
    Span,
    find_labels,
    longest_name,
    split_sentences,
    write_conll,
)
from wellread.data.readers.ner_jsonl import Borders, read_named, report_missed, write_names
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.spans import span_means
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk, score_chunks
from wellread.io import console
from wellread.models.luke.model import ENTITIES
from wellread.tasks.mention_markers import masks_of, with_entities
from wellread.tasks.task import Batch, in_full
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization
from wellread.text.windows import keep_tokens, window_around

LONGEST = 16
"""Default maximum number of words in a span, as in LUKE."""
_AT_ONCE = 1 << 14
"""Spans that are scored together in inference."""
_LOST = -2
"""Last token of a word that is longer than an input; no span ends there."""
_LETTERS = 6
"""Upper bound of the mean number of characters in a token, to estimate how much context fits."""


@dataclass(frozen=True, slots=True)
class NerOptions:
    """Options of task = "ner"."""

    longest: int | None = None
    """Maximum words in a span; by default the longest name in the training data, at most 16."""
    together: int = 128
    """Maximum spans of a text in one pass, for an encoder with entity tokens."""
    context: bool = True
    """Read the document around a sentence with it, if the file separates documents."""
    columns: Columns = field(default_factory=Columns)
    """Columns of word and tag in a file."""
    borders: Borders = "miss"
    """JSONL: names with a boundary inside a word count as missed (`miss`) or are widened to whole words (`widen`)."""

    def __post_init__(self) -> None:
        for name in ("longest", "together"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInput(Tokenization):
    """Words of a sentence with their context, and the spans to classify."""

    first: int
    """Index of its first word in the sentence."""
    edges: Int64[np.ndarray, "own 2"]
    """First and last token of each word; for a word without tokens, the token behind and the one before it."""
    seen: int = 0
    """Number of words at the start that the previous window contains too."""
    part: Span | None = None
    """Range of the spans to classify; None for all."""

    def chunks(self, longest: int) -> Int64[np.ndarray, "span 2"]:
        """Return the words (start, end) of each span, relative to its first word."""
        count = len(self.edges)
        many = np.minimum(longest, count - np.arange(count))
        starts = np.repeat(np.arange(count), many)
        ends = np.arange(len(starts)) - np.repeat(np.cumsum(many) - many, many) + starts + 1
        there = (ends > self.seen) & (self.edges[starts, 0] <= self.edges[ends - 1, 1])
        found: Int64[np.ndarray, "span 2"] = np.stack((starts, ends), axis=1)[there]
        return found if self.part is None else found[slice(*self.part)]


class Found(NamedTuple):
    """Span with a label: log-probability, words and characters."""

    score: float
    chunk: Chunk
    start: int
    end: int


class ChunkHead(nn.Module):
    """Class scores of spans from their first token, last token and span representation, concatenated.

    With entity states: one linear layer, as in LUKE. Without: the mean of the span's tokens and a dense layer first,
    which is applied once per token instead of once per span.
    """

    def __init__(self, width: int, count: int, *, entities: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = None if entities else nn.Linear(3 * width, width)
        self.out = nn.Linear(3 * width if entities else width, count)
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        states: Float[Tensor, "token dim"],
        firsts: Int[Tensor, " span"],
        lasts: Int[Tensor, " span"],
        entities: Float[Tensor, "span dim"] | None = None,
    ) -> Float[Tensor, "span count"]:
        """Return one row of scores per span of tokens first … last."""
        if self.dense is None:
            spans = span_means(states, firsts, lasts) if entities is None else entities  # LUKE may be switched off
            seen = torch.cat((states[firsts], states[lasts], spans), 1)
            return cast(Tensor, self.out(self.dropout(seen)))
        parts = linear(self.dropout(states), torch.cat(self.dense.weight.chunk(3, 1))).chunk(3, 1)
        made = parts[0][firsts] + parts[1][lasts] + span_means(parts[2], firsts, lasts) + self.dense.bias
        return cast(Tensor, self.out(self.dropout(gelu(made))))


class NamedEntities:
    """Labels of the spans of a sentence; the answer of an input is the list of its labelled spans (`Found`)."""

    score = "f1"

    def __init__(self, labels: Sequence[str], options: NerOptions | None = None) -> None:
        self.options = options or NerOptions()
        self.longest = self.options.longest or LONGEST
        if not labels or len(set(labels)) < len(labels):
            raise InputError(f"the labels are {', '.join(labels) or 'none'}; expected one or more, each once")
        self.labels = tuple(labels)
        self._masks: tuple[int, int] | None = None

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[NamedText], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return the inputs of each sentence (`NamedInput`): its windows, and for each the groups of spans.

        Prints a note with the number of words and gold names that are too long for a window.
        """
        read = [self._with_context(one, segmenter.longest) for one in examples]
        whole = TextTokenizer(segmenter.tokenizer).tokenize_many([(text,) for text, _ in read])
        found, words, names = [], 0, 0
        for example, one, (_, offset) in zip(examples, whole, read, strict=True):
            edges = _edges(one, np.array(example.words, np.int64).reshape(-1, 2) + offset)
            windows = list(_windows(one, edges, segmenter.longest, self.longest)) if len(edges) else []
            words += sum(int((window.edges[:, 1] == _LOST).sum()) for window in windows)
            names += sum(not _is_whole(chunk, windows) for chunk in example.chunks or ())
            found.append([part for window in windows for part in self._groups(window)])
        if words or names:
            console.note(
                f"inputs of {segmenter.longest} tokens are too short for {words:,} of "
                f"{sum(len(one.words) for one in examples):,} words and {names:,} of "
                f"{sum(len(one.chunks or ()) for one in examples):,} gold names, which cannot be found; "
                "raise encoder.longest"
            )
        return cast(list[list[Tokenization]], found)

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with a score per label, and one for "not an entity"."""
        self._masks = masks_of(encoder)
        width = int(encoder.config.hidden_size)
        return ChunkHead(width, 1 + len(self.labels), entities=self._masks is not None)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the spans, their tokens and, for training, their classes."""
        chunks = [_named(one).chunks(self.longest) for one in batch.inputs]
        tokens = [
            np.stack((_named(one).edges[some[:, 0], 0], _named(one).edges[some[:, 1] - 1, 1]), axis=1)
            for one, some in zip(batch.inputs, chunks, strict=True)
        ]
        input_of = torch.repeat_interleave(torch.arange(len(chunks)), torch.tensor([len(some) for some in chunks]))
        spans = torch.from_numpy(np.concatenate(tokens))
        target: dict[str, Any] = {"spans": spans + batch.packing.starts[input_of, None], "chunks": chunks}
        if learning:
            classes = [
                self._classes(batch.examples[example], _named(one), some)
                for one, example, some in zip(batch.inputs, batch.example_of.tolist(), chunks, strict=True)
            ]
            target["classes"] = torch.from_numpy(np.concatenate(classes))
        if self._masks is not None:
            batch = with_entities(batch, input_of, torch.full_like(input_of, self._masks[0]), spans)
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy over all spans."""
        firsts, lasts = batch.target["spans"].unbind(1)
        return {
            "names": cross_entropy(head(states, firsts, lasts, batch.outputs.get(ENTITIES)), batch.target["classes"])
        }

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the labelled spans of each input."""
        firsts, lasts = batch.target["spans"].unbind(1)
        entities = batch.outputs.get(ENTITIES)
        found: list[tuple[Found, ...]] = []
        best: list[Tensor] = []
        for begin in range(0, len(firsts), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            scores = head(states, firsts[some], lasts[some], None if entities is None else entities[some])
            best.append(torch.stack(in_full(scores).log_softmax(1).max(1), 1))
        results = torch.cat(best).cpu().numpy() if best else np.zeros((0, 2))
        begin = 0
        for one, example, chunks in zip(batch.inputs, batch.example_of.tolist(), batch.target["chunks"], strict=True):
            own = results[begin : begin + len(chunks)]
            begin += len(chunks)
            question = batch.examples[example]
            found.append(tuple(self._found(question, _named(one), chunks, own)))
        return found

    def choose(self, answers: Sequence[Sequence[Found]]) -> list[Found]:
        """Return the best non-overlapping spans of all inputs of a sentence, in text order."""
        taken: list[Found] = []
        for one in sorted((one for some in answers for one in some), key=lambda one: (-one.score, one.chunk)):
            if all(one.chunk.end <= other.chunk.start or other.chunk.end <= one.chunk.start for other in taken):
                taken.append(one)
        return sorted(taken, key=lambda one: one.chunk)

    def chosen(self, answers: Sequence[Sequence[Sequence[Found]]]) -> list[list[Chunk]]:
        """Return the chunks of each sentence, given the answers to its inputs."""
        return [[one.chunk for one in self.choose(some)] for some in answers]

    def scores(self, examples: Sequence[NamedText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return `f1`, `precision` and `recall` of all chunks, and the F1 of each label."""
        gold = [one.chunks for one in examples if one.chunks is not None]
        if len(gold) < len(examples):
            raise InputError("some sentences have no tags to score against; is this a test file?")
        missed = (name.label for one in examples for name in one.missed)
        return score_chunks(gold, self.chosen(answers), missed=missed).to_dict()

    def show(self, answers: Sequence[Sequence[Found]]) -> list[dict[str, Any]]:
        """Return the names in a text as {"start", "end", "label", "score"}, in characters."""
        return [
            {"start": one.start, "end": one.end, "label": one.chunk.label, "score": round(math.exp(one.score), 4)}
            for one in self.choose(answers)
        ]

    def _with_context(self, example: NamedText, longest: int | None) -> tuple[str, int]:
        """Return the text with its context, and the offset of the sentence in it."""
        if not self.options.context or len(example.document) < 2:
            return example.text, 0
        most = math.inf if longest is None else _LETTERS * longest
        before, after = example.document[: example.place][::-1], example.document[example.place + 1 :]
        sides = []
        for side in (before, after):
            taken, letters = [], 0
            for text in side:
                if letters >= most:
                    break
                taken.append(text)
                letters += len(text) + 1
            sides.append(taken)
        begin = " ".join(sides[0][::-1])
        return " ".join((*sides[0][::-1], example.text, *sides[1])), len(begin) + 1 if begin else 0

    def _groups(self, window: NamedInput) -> Iterator[NamedInput]:
        """Yield the window once for all spans, or once per group of spans."""
        if self._masks is None:
            yield window
            return
        count, most = len(window.chunks(self.longest)), self.options.together
        for begin in range(0, max(count, 1), most):
            yield replace(window, part=(begin, min(begin + most, count)))

    def _classes(
        self, example: NamedText, one: NamedInput, chunks: Int64[np.ndarray, "span 2"]
    ) -> Int64[np.ndarray, " span"]:
        if example.chunks is None:
            raise InputError("a sentence has no tags to train on; is this a test file?")
        classes = np.zeros(len(chunks), np.int64)
        for chunk in example.chunks:
            if chunk.label not in self.labels:
                raise InputError(
                    f"the label {chunk.label!r} is not one of {', '.join(self.labels)}; correct the data or the labels"
                )
            same = (chunks == np.array((chunk.start, chunk.end)) - one.first).all(1)
            classes[same] = 1 + self.labels.index(chunk.label)
        return classes

    def _found(
        self, example: NamedText, one: NamedInput, chunks: Int64[np.ndarray, "span 2"], best: NDArray[Any]
    ) -> Iterator[Found]:
        for row in np.flatnonzero(best[:, 1]).tolist():
            start, end = (chunks[row] + one.first).tolist()
            label = self.labels[int(best[row, 1]) - 1]
            yield Found(
                float(best[row, 0]), Chunk(start, end, label), example.words[start][0], example.words[end - 1][1]
            )


def _named(one: Tokenization) -> NamedInput:
    assert isinstance(one, NamedInput)
    return one


def _is_whole(chunk: Chunk, windows: Sequence[NamedInput]) -> bool:
    """Return True if one window contains all words of a name, none of them too long."""
    for window in windows:
        start, end = chunk.start - window.first, chunk.end - window.first
        if start >= 0 and end <= len(window.edges) and (window.edges[start:end, 1] != _LOST).all():
            return True
    return False


def _edges(one: Tokenization, words: Int64[np.ndarray, "own 2"]) -> Int64[np.ndarray, "own 2"]:
    """Return first and last token of each word; without tokens, the first behind and the last before it."""
    own = np.flatnonzero(one.segment_of == 0)
    spans = one.spans[own]
    first = np.searchsorted(spans[:, 1], words[:, 0], side="right")
    last = np.searchsorted(spans[:, 0], words[:, 1], side="left") - 1
    before = own[0] if len(own) else 0
    return np.stack((first, last), axis=1) + before


def _windows(
    one: Tokenization, edges: Int64[np.ndarray, "own 2"], longest: int | None, words: int
) -> Iterator[NamedInput]:
    """Yield the sentence with its context, or if too long, windows that overlap by the longest span minus one word."""
    if longest is None or len(one) <= longest:
        yield _input(one, None, edges, 0, 0)
        return
    size = longest - int((one.segment_of != 0).sum())
    low, high = int(edges[:, 0].min()), int(edges[:, 1].max()) + 1
    if high - low <= size:
        yield _input(one, window_around(one, low, high, longest), edges, 0, 0)
        return
    first = seen = 0
    while first < len(edges):
        last = first + 1
        while last < len(edges) and edges[last, 1] - edges[first, 0] < size:
            last += 1
        some = edges[first:last]
        kept = window_around(one, int(some[0, 0]), int(some[-1, 1]) + 1, longest)
        yield _input(one, kept, some, first, seen)
        if last == len(edges):
            return
        begin = max(first + 1, last - words + 1)
        seen, first = last - begin, begin


def _input(
    one: Tokenization, kept: NDArray[np.int64] | None, edges: Int64[np.ndarray, "own 2"], first: int, seen: int
) -> NamedInput:
    if kept is not None:
        one = keep_tokens(one, kept)
        lost = (edges[:, 0] <= edges[:, 1]) & ~np.isin(edges, kept).all(1)
        edges = np.stack(
            (np.searchsorted(kept, edges[:, 0]), np.searchsorted(kept, edges[:, 1], side="right") - 1), axis=1
        )
        edges[lost, 1] = _LOST
    values = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
    return NamedInput(**values, first=first, edges=edges, seen=seen)


# registry


def _read(options: NerOptions, path: str, broken: list[str]) -> Iterator[NamedText]:
    return read_named(path, options.columns, borders=options.borders, skipped=broken)


def _metadata(settings: TaskSettings) -> dict[str, Any]:
    sentences = list(_read(settings.options, settings.train_file, []))
    return {"labels": list(find_labels(sentences)), "longest": longest_name(sentences)}


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> NamedEntities:
    options: NerOptions = settings.options
    longest = options.longest or min(metadata.get("longest", LONGEST), LONGEST)
    return NamedEntities(metadata["labels"], replace(options, longest=longest))


def _write(path: str | Path, task: NamedEntities, examples: Sequence[NamedText], answers: Answers) -> None:
    if Path(path).suffix == ".jsonl":
        write_names(path, examples, [task.show(some) for some in answers])
    else:
        write_conll(path, examples, task.chosen(answers))


TASKS = {
    "ner": TaskType(
        options="ner",
        read=lambda settings, metadata, path, broken: report_missed(
            _read(settings.options, path, broken), console.note
        ),
        split=split_sentences,
        build=_build,
        write=_write,
        metadata=_metadata,
        has_gold=lambda sentence: sentence.chunks is not None,
        example=lambda number, texts: NamedText.of_text(number, texts[0]),
        join=lambda task, answers: answers,
        show=lambda task, answers: task.show(answers),
        own_entities=True,
    )
}
