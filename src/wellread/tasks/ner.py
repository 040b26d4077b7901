"""Named entity recognition by classifying spans, or by tagging words.

Spans (`head = "span"`) are all word sequences up to a maximum length (LUKE, section 4.3):

1. A sentence is read with as much of its document as fits. A sentence that is too long is split into overlapping
   windows, so that every span is whole in one of them; it is classified in the first window that contains it.
2. A span is represented by its first token, its last token, and the mean of its tokens. With LUKE, a [MASK] entity at
   the span replaces the mean; the spans of an input are then read in groups of at most `together`, one pass each.
3. One class means "not an entity". The loss is the cross-entropy over all spans; for few names, `negatives`, `balance`
   and `prior` give them more weight.
4. Spans whose best class is a label are taken greedily by probability, without overlaps.

Tags (`head = "token"`) are begin and inside of each label, and outside, of the first token of each word; the best
valid sequence is decoded (`ner_tags`).

Scored as the CoNLL script counts (`evaluation.chunks`). Files are CoNLL columns (`data.readers.conll`) or JSONL with
character offsets (`data.readers.ner_jsonl`). A name that is not a sequence of whole words counts as missed.

Unlike the authors' code: spans of a plain encoder pass through one more layer, since no self-attention has seen them;
words without tokens belong to the span around them; spans are taken by probability, not by logit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.readers.conll import (
    Columns,
    NamedText,
    find_labels,
    longest_name,
    split_sentences,
    write_conll,
)
from wellread.data.readers.ner_jsonl import Borders, read_named, report_missed, write_names
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk, score_chunks
from wellread.io import console
from wellread.models.luke.model import ENTITIES
from wellread.tasks.mention_markers import masks_of, with_entities
from wellread.tasks.ner_heads import IGNORED, ChunkHead, TagHead, names_loss, sample_negatives, start_at
from wellread.tasks.ner_inputs import LOST, NamedInput, is_whole, named_input, sentence_windows, word_edges
from wellread.tasks.ner_tags import chunks_of_window, tagged_words, tags_of_words
from wellread.tasks.task import Batch, in_full
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization

LONGEST = 16
"""Default maximum number of words in a span, as in LUKE."""
_AT_ONCE = 1 << 14
"""Spans that are scored together in inference."""
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
    head: Literal["span", "token"] = "span"
    """Classify spans (`span`), or tag the first token of each word with begin, inside or outside (`token`)."""
    negatives: int | None = None
    """head = "span": random spans without a name per name that a training step uses; by default all."""
    balance: float | None = None
    """Share of names in the loss, from 0 to 1; by default each span or word has the same weight."""
    prior: float | None = None
    """Initial probability that a span or word is a name, set by a bias; by default no bias."""
    borders: Borders = "miss"
    """JSONL: names with a boundary inside a word count as missed (`miss`) or are widened to whole words (`widen`)."""

    def __post_init__(self) -> None:
        for name in ("longest", "together", "negatives"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        for name in ("balance", "prior"):
            if (share := getattr(self, name)) is not None and not 0 < share < 1:
                raise UsageError(f"{name} is {share}; expected a number between 0 and 1")
        if self.head == "token" and self.negatives is not None:
            raise UsageError('negatives is for spans; remove it, or set head = "span"')


class Found(NamedTuple):
    """Span with a label: log-probability, words and characters."""

    score: float
    chunk: Chunk
    start: int
    end: int


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
            edges = word_edges(one, np.array(example.words, np.int64).reshape(-1, 2) + offset)
            windows = list(sentence_windows(one, edges, segmenter.longest, self.longest)) if len(edges) else []
            words += sum(int((window.edges[:, 1] == LOST).sum()) for window in windows)
            names += sum(not is_whole(chunk, windows) for chunk in example.chunks or ())
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
        """Build a head with a score for "not an entity", and one per label of spans, or two per label of words."""
        self._masks = None if self._tagging else masks_of(encoder)
        width = int(encoder.config.hidden_size)
        head: ChunkHead | TagHead
        if self._tagging:
            head = TagHead(width, 1 + 2 * len(self.labels))
        else:
            head = ChunkHead(width, 1 + len(self.labels), entities=self._masks is not None)
        if self.options.prior is not None:
            start_at(head.out.bias, self.options.prior)
        return head

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the spans or words, their tokens and, for training, their classes."""
        chunks = [self._rows(named_input(one)) for one in batch.inputs]
        tokens = [
            np.stack((named_input(one).edges[some[:, 0], 0], named_input(one).edges[some[:, 1] - 1, 1]), axis=1)
            for one, some in zip(batch.inputs, chunks, strict=True)
        ]
        input_of = torch.repeat_interleave(torch.arange(len(chunks)), torch.tensor([len(some) for some in chunks]))
        spans = torch.from_numpy(np.concatenate(tokens))
        target: dict[str, Any] = {"spans": spans + batch.packing.starts[input_of, None], "chunks": chunks}
        if learning:
            classes = [
                self._classes(batch.examples[example], named_input(one), some)
                for one, example, some in zip(batch.inputs, batch.example_of.tolist(), chunks, strict=True)
            ]
            target["classes"] = torch.from_numpy(np.concatenate(classes))
            if self.options.negatives is not None:
                target["classes"] = sample_negatives(target["classes"], self.options.negatives)
        if self._masks is not None:
            batch = with_entities(batch, input_of, torch.full_like(input_of, self._masks[0]), spans)
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy over the spans or words, weighted by `balance`."""
        firsts, lasts = batch.target["spans"].unbind(1)
        scores = head(states, firsts, lasts, batch.outputs.get(ENTITIES))
        return {"names": names_loss(scores, batch.target["classes"], self.options.balance)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the labelled spans of each input."""
        if self._tagging:
            return self._tagged(head, states, batch)
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
            found.append(tuple(self._found(question, named_input(one), chunks, own)))
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

    @property
    def _tagging(self) -> bool:
        return self.options.head == "token"

    def _rows(self, one: NamedInput) -> Int64[np.ndarray, "row 2"]:
        """Return the words (start, end) of each span, or of each word, to classify."""
        if not self._tagging:
            return one.chunks(self.longest)
        words = tagged_words(one)
        return np.stack((words, words + 1), axis=1)

    def _tagged(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        scores = in_full(head(states, *batch.target["spans"].unbind(1))).log_softmax(1).cpu().numpy()
        counts = [len(some) for some in batch.target["chunks"]]
        parts = np.split(scores, np.cumsum(counts)[:-1])
        found: list[tuple[Found, ...]] = []
        for one, number, own in zip(batch.inputs, batch.example_of.tolist(), parts, strict=True):
            example = batch.examples[number]
            chunks = chunks_of_window(named_input(one), own, self.labels, len(example.words), self.longest)
            found.append(tuple(_found_in(example, score, chunk) for score, chunk in chunks))
        return found

    def _classes(
        self, example: NamedText, one: NamedInput, chunks: Int64[np.ndarray, "row 2"]
    ) -> Int64[np.ndarray, " row"]:
        if example.chunks is None:
            raise InputError("a sentence has no tags to train on; is this a test file?")
        for chunk in example.chunks:
            if chunk.label not in self.labels:
                raise InputError(
                    f"the label {chunk.label!r} is not one of {', '.join(self.labels)}; correct the data or the labels"
                )
        if self._tagging:
            gold = [(start, end, self.labels.index(label)) for start, end, label in example.chunks]
            words = chunks[:, 0]
            tags = tags_of_words(len(example.words), gold)[words + one.first]
            return np.where(words < one.seen, IGNORED, tags)
        classes = np.zeros(len(chunks), np.int64)
        for chunk in example.chunks:
            same = (chunks == np.array((chunk.start, chunk.end)) - one.first).all(1)
            classes[same] = 1 + self.labels.index(chunk.label)
        return classes

    def _found(
        self, example: NamedText, one: NamedInput, chunks: Int64[np.ndarray, "span 2"], best: NDArray[Any]
    ) -> Iterator[Found]:
        for row in np.flatnonzero(best[:, 1]).tolist():
            start, end = (chunks[row] + one.first).tolist()
            label = self.labels[int(best[row, 1]) - 1]
            yield _found_in(example, float(best[row, 0]), Chunk(start, end, label))


def _found_in(example: NamedText, score: float, chunk: Chunk) -> Found:
    return Found(score, chunk, example.words[chunk.start][0], example.words[chunk.end - 1][1])


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
        own_entities=lambda options: options.head == "span",
    )
}
