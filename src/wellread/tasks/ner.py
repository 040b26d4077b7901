"""Named entity recognition by spans: every run of words, up to a length, is asked what it names (LUKE, section 4.3).

1. A sentence is read with as much of its document around it as an input holds. One that is too long itself is read in
   windows that share words, so that every span is whole in one of them, and asked in the first that has it.
2. A span is judged by its first piece, its last piece, and itself: the mean of its pieces, or for an encoder that takes
   entities (LUKE) a [MASK] entity at its place. Then the spans of an input come in groups of at most `together`, each
   a pass of its own.
3. One class is "names nothing"; the loss is the cross-entropy over all spans.
4. Spans whose best class is a label are taken best first, unless they overlap one that is taken.

Scored as the CoNLL script counts (`evaluation.chunks`); files are CoNLL columns (`data.readers.conll`), or JSONL in
characters (`data.readers.ner_jsonl`). A name that no run of words is counts as missed.

Unlike the authors' code: a span of a plain encoder goes through a layer more before it is classified, since no
self-attention has seen it; words that a tokenizer makes nothing of belong to the span around them; spans are taken by
their chances, not by the scores before the softmax.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear

from wellread.data.readers.conll import Columns, NamedText, Span
from wellread.data.readers.ner_jsonl import Borders
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.spans import span_means
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk, score_chunks
from wellread.io import console
from wellread.models.luke.model import ENTITIES
from wellread.tasks.entity_inputs import masks_of, with_entities
from wellread.tasks.task import Batch, in_full
from wellread.text.tokenization import TextTokenizer, Tokenization
from wellread.text.windows import keep_tokens, window_around

LONGEST = 16
"""Words of a span at most, as LUKE's authors have it."""
_AT_ONCE = 1 << 14
"""Spans that are judged together where nothing is learned."""
_LOST = -2
"""The last piece of a word that has more of them than an input holds: no span ends there."""
_LETTERS = 6
"""More letters than a piece has in the mean, to tell how much of a document may be read."""


@dataclass(frozen=True, slots=True)
class NerOptions:
    """How names are looked for, for task = "ner"."""

    longest: int | None = None
    """Words of a span at most; without it as many as the longest name to learn from has, 16 at most."""
    together: int = 128
    """Spans of a text in one pass at most, for an encoder that takes entities."""
    context: bool = True
    """Whether the document around a sentence is read with it, where files tell documents apart."""
    columns: Columns = field(default_factory=Columns)
    """Which columns of a file are word and tag."""
    borders: Borders = "miss"
    """JSONL: names that begin or end within a word count as missed, or are widened to whole words (`widen`)."""

    def __post_init__(self) -> None:
        for name in ("longest", "together"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInput(Tokenization):
    """Some words of a sentence with what is around them, and the spans that are asked about."""

    first: int
    """The number of its first word in the sentence."""
    edges: Int64[np.ndarray, "own 2"]
    """First and last piece of each of the sentence's words; for one without pieces, of those behind and before it."""
    seen: int = 0
    """Words at its beginning that the window before has too."""
    part: Span | None = None
    """From which to which of the spans; None: all."""

    def chunks(self, longest: int) -> Int64[np.ndarray, "span 2"]:
        """The words (start, end) of each span, counted from its first word."""
        count = len(self.edges)
        many = np.minimum(longest, count - np.arange(count))
        starts = np.repeat(np.arange(count), many)
        ends = np.arange(len(starts)) - np.repeat(np.cumsum(many) - many, many) + starts + 1
        there = (ends > self.seen) & (self.edges[starts, 0] <= self.edges[ends - 1, 1])
        found: Int64[np.ndarray, "span 2"] = np.stack((starts, ends), axis=1)[there]
        return found if self.part is None else found[slice(*self.part)]


class Found(NamedTuple):
    """A span that names something: the logarithm of its chance, its words, and its characters."""

    score: float
    chunk: Chunk
    start: int
    end: int


class ChunkHead(nn.Module):
    """A score of each class for spans, by first piece, last piece and the span itself, side by side.

    Given states of the spans (entities): one linear layer, as LUKE has it. Else the mean of the span's pieces, and a
    dense layer first; what it makes of pieces is made once for each, and not for each span that they are part of.
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
        """One row of scores for each span of pieces first … last."""
        if self.dense is None:
            spans = span_means(states, firsts, lasts) if entities is None else entities  # LUKE may be switched off
            seen = torch.cat((states[firsts], states[lasts], spans), 1)
            return cast(Tensor, self.out(self.dropout(seen)))
        parts = linear(self.dropout(states), torch.cat(self.dense.weight.chunk(3, 1))).chunk(3, 1)
        made = parts[0][firsts] + parts[1][lasts] + span_means(parts[2], firsts, lasts) + self.dense.bias
        return cast(Tensor, self.out(self.dropout(gelu(made))))


class NamedEntities:
    """What the spans of a sentence name; an input's answer are those that name something (`Found`)."""

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
        """The inputs of each sentence (`NamedInput`): its windows, and of each its groups of spans.

        A note tells how many words, and how many known names, are too long for a window.
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
                f"inputs of {segmenter.longest} pieces have no room for {words:,} of "
                f"{sum(len(one.words) for one in examples):,} words, nor for {names:,} of "
                f"{sum(len(one.chunks or ()) for one in examples):,} known names: these are not found; "
                "let encoder.longest be more"
            )
        return cast(list[list[Tokenization]], found)

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """A score for each label, and for none."""
        self._masks = masks_of(encoder)
        width = int(encoder.config.hidden_size)
        return ChunkHead(width, 1 + len(self.labels), entities=self._masks is not None)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With the spans, their pieces, and where one learns the class of each."""
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
        """Cross-entropy, the mean over all spans."""
        firsts, lasts = batch.target["spans"].unbind(1)
        return {"names": cross_entropy(head(states, firsts, lasts, batch.told.get(ENTITIES)), batch.target["classes"])}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """The spans of each input that name something."""
        firsts, lasts = batch.target["spans"].unbind(1)
        entities = batch.told.get(ENTITIES)
        found: list[tuple[Found, ...]] = []
        best: list[Tensor] = []
        for begin in range(0, len(firsts), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            scores = head(states, firsts[some], lasts[some], None if entities is None else entities[some])
            best.append(torch.stack(in_full(scores).log_softmax(1).max(1), 1))
        told = torch.cat(best).cpu().numpy() if best else np.zeros((0, 2))
        begin = 0
        for one, example, chunks in zip(batch.inputs, batch.example_of.tolist(), batch.target["chunks"], strict=True):
            mine = told[begin : begin + len(chunks)]
            begin += len(chunks)
            asked = batch.examples[example]
            found.append(tuple(self._found(asked, _named(one), chunks, mine)))
        return found

    def choose(self, answers: Sequence[Sequence[Found]]) -> list[Found]:
        """Of what was found in all inputs of a sentence the best, without overlap, in their order."""
        taken: list[Found] = []
        for one in sorted((one for some in answers for one in some), key=lambda one: (-one.score, one.chunk)):
            if all(one.chunk.end <= other.chunk.start or other.chunk.end <= one.chunk.start for other in taken):
                taken.append(one)
        return sorted(taken, key=lambda one: one.chunk)

    def chosen(self, answers: Sequence[Sequence[Sequence[Found]]]) -> list[list[Chunk]]:
        """The chunks of each sentence, given the answers to its inputs."""
        return [[one.chunk for one in self.choose(some)] for some in answers]

    def scores(self, examples: Sequence[NamedText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """`f1`, `precision` and `recall` of all chunks, and the F1 of each label."""
        gold = [one.chunks for one in examples if one.chunks is not None]
        if len(gold) < len(examples):
            raise InputError("some sentences have no tags to score against; is this a test file?")
        missed = (name.label for one in examples for name in one.missed)
        return score_chunks(gold, self.chosen(answers), missed=missed).to_dict()

    def tell(self, answers: Sequence[Sequence[Found]]) -> list[dict[str, Any]]:
        """The names in a text as a person reads them: {"start", "end", "label", "score"}, in characters."""
        return [
            {"start": one.start, "end": one.end, "label": one.chunk.label, "score": round(math.exp(one.score), 4)}
            for one in self.choose(answers)
        ]

    def _with_context(self, example: NamedText, longest: int | None) -> tuple[str, int]:
        """What is read, and where the sentence begins in it."""
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
        """The window once for all spans, or once for each group of them."""
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
            raise InputError("a sentence has no tags to learn from; is this a test file?")
        classes = np.zeros(len(chunks), np.int64)
        for chunk in example.chunks:
            if chunk.label not in self.labels:
                raise InputError(f"the label {chunk.label!r} is none of {', '.join(self.labels)}; mend one of the two")
            same = (chunks == np.array((chunk.start, chunk.end)) - one.first).all(1)
            classes[same] = 1 + self.labels.index(chunk.label)
        return classes

    def _found(
        self, example: NamedText, one: NamedInput, chunks: Int64[np.ndarray, "span 2"], told: NDArray[Any]
    ) -> Iterator[Found]:
        for row in np.flatnonzero(told[:, 1]).tolist():
            start, end = (chunks[row] + one.first).tolist()
            label = self.labels[int(told[row, 1]) - 1]
            yield Found(
                float(told[row, 0]), Chunk(start, end, label), example.words[start][0], example.words[end - 1][1]
            )


def _named(one: Tokenization) -> NamedInput:
    assert isinstance(one, NamedInput)
    return one


def _is_whole(chunk: Chunk, windows: Sequence[NamedInput]) -> bool:
    """Whether a window has all words of a name, none of which is too long for it."""
    for window in windows:
        start, end = chunk.start - window.first, chunk.end - window.first
        if start >= 0 and end <= len(window.edges) and (window.edges[start:end, 1] != _LOST).all():
            return True
    return False


def _edges(one: Tokenization, words: Int64[np.ndarray, "own 2"]) -> Int64[np.ndarray, "own 2"]:
    """First and last piece of each word; of one without pieces the first behind it, and the last before it."""
    own = np.flatnonzero(one.segment_of == 0)
    spans = one.spans[own]
    first = np.searchsorted(spans[:, 1], words[:, 0], side="right")
    last = np.searchsorted(spans[:, 0], words[:, 1], side="left") - 1
    before = own[0] if len(own) else 0
    return np.stack((first, last), axis=1) + before


def _windows(
    one: Tokenization, edges: Int64[np.ndarray, "own 2"], longest: int | None, words: int
) -> Iterator[NamedInput]:
    """The sentence with what is around it; where it is too long, windows that share all words of a span but one."""
    if longest is None or len(one) <= longest:
        yield _input(one, None, edges, 0, 0)
        return
    room = longest - int((one.segment_of != 0).sum())
    low, high = int(edges[:, 0].min()), int(edges[:, 1].max()) + 1
    if high - low <= room:
        yield _input(one, window_around(one, low, high, longest), edges, 0, 0)
        return
    first = seen = 0
    while first < len(edges):
        last = first + 1
        while last < len(edges) and edges[last, 1] - edges[first, 0] < room:
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
    told = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
    return NamedInput(**told, first=first, edges=edges, seen=seen)
