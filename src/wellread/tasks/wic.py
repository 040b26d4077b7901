"""Word in context: same meaning in two texts (WiC), or the meaning of a definition (WiC-TSV).

- WiC (Pilehvar and Camacho-Collados 2019): `train.data.txt` has "word, part of speech, 2-4, text, text" in columns,
  with the index of the word in each text; `train.gold.txt` has T or F in the same lines. SuperGLUE has the same as
  JSONL, with character offsets.
- WiC-TSV (Breit et al. 2021): `x_examples.txt` has "word, index, text", `x_definitions.txt` a definition and
  `x_hypernyms.txt` hypernyms in the same lines, `x_labels.txt` T or F. All its words are nouns.

1. Both texts are one input, with the word marked in each (so a knowledge layer gets its senses as candidates).
2. The head compares the states of the word in both texts, or the word's with the mean of the definition's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, gelu, layer_norm

from wellread.data.splits import split_by
from wellread.data.tables import Record, make_each, read_records, text_of
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.spans import span_means
from wellread.errors import InputError
from wellread.evaluation.classification import accuracy, f1
from wellread.io.files import decode, make_or_skip, open_bytes, path_name, read_lines, write_atomically
from wellread.tasks.task import Batch, in_full
from wellread.tasks.task_type import Answers, TaskType
from wellread.tasks.word_spans import takes_candidates, tokens_of_words, withhold_candidates
from wellread.text.tokenization import Mark, TextTokenizer, Tokenization

Given = Literal["definition", "hypernyms", "both"]
Span = tuple[int, int]

_KINDS = {"N": "n", "V": "v"}
_LABELS = {"T": True, "F": False}


@dataclass(frozen=True, slots=True)
class WicOptions:
    """Options of task = "wic" and "wic-tsv"."""

    given: Given = "both"
    """WiC-TSV: description of the meaning; its three tasks are definition, hypernyms, both."""


@dataclass(frozen=True, slots=True)
class WordPair:
    """Word in a text, and in a second text or explained by it."""

    id: str
    word: str
    kind: str | None
    """Part of speech, if the data has it."""
    texts: tuple[str, str]
    spans: tuple[Span, Span | None]
    """Character span in each text; None if the second text is a definition."""
    label: bool | None = None
    """True if the meaning is the same; None in test files."""


def read_wic(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[WordPair]:
    """Read WiC's own files (`x.data.txt`, with labels in `x.gold.txt` if it exists) or SuperGLUE's JSONL."""
    with open_bytes(path) as file:
        is_jsonl = file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    if is_jsonl:
        return make_each(path, read_records(path, "jsonl"), _of_superglue, skipped)
    return _read_aligned(path, {"gold": _beside(path, ".data.txt", ".gold.txt")}, _of_wic, skipped)


def read_wic_tsv(path: str | Path, *, given: Given = "both", skipped: list[str] | None = None) -> Iterator[WordPair]:
    """Read WiC-TSV: a folder, or its `x_examples.txt` with the other files beside it."""
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*_examples.txt"))
        if len(found) != 1:
            raise InputError(f"{path} has {len(found)} files *_examples.txt; name one of WiC-TSV's")
        path = found[0]
    beside = {name: _beside(path, "_examples.txt", f"_{name}.txt") for name in ("definitions", "hypernyms", "labels")}
    wanted = {"definition": ("definitions",), "hypernyms": ("hypernyms",), "both": ("definitions", "hypernyms")}[given]
    for name in wanted:
        if beside[name] is None:
            raise InputError(f"{path} has no {name} beside it; put {path.name.replace('examples', name)} there")
    taken = {name: file for name, file in beside.items() if name in (*wanted, "labels")}
    return _read_aligned(path, taken, _of_wic_tsv, skipped)


def split_wic(pairs: Sequence[WordPair], count: int) -> tuple[list[WordPair], list[WordPair]]:
    """Return (training pairs, at least `count` validation pairs); all pairs of a word are in one part."""
    return split_by(pairs, count, lambda pair: pair.word)


def write_labels(path: str | Path, labels: Sequence[bool]) -> None:
    """Write answers in the official format: T or F, one per line."""
    with write_atomically(path) as file:
        file.writelines(b"T\n" if label else b"F\n" for label in labels)


class ComparingHead(nn.Module):
    """Comparison of two layer-normalized states: both, their difference and product, and a dense layer."""

    def __init__(self, width: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.dense = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, 1)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, first: Float[Tensor, "input dim"], second: Float[Tensor, "input dim"]) -> Float[Tensor, " input"]:
        """Return a logit per input; above 0 means the same."""
        first, second = (layer_norm(states, states.shape[-1:]) for states in (first, second))
        joined = torch.cat((first, second, (first - second).abs(), first * second), 1)
        scores: Tensor = self.out(self.dropout(gelu(self.dense(self.dropout(joined)))))[:, 0]
        return scores


class WordInContext:
    """Binary classification: the word means the same in both texts, or what the second text says."""

    score = "accuracy"

    def __init__(self) -> None:
        self._encoder_takes = True

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[WordPair], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return both texts with the word marked; no input for training if the word was truncated."""
        inputs = [
            replace(one, marks=_marks(pair))
            for pair, one in zip(examples, segmenter.tokenize_many([pair.texts for pair in examples]), strict=True)
        ]
        return [
            [] if learning and any(tokens_of_words(one, mark) is None for mark in one.marks) else [one]
            for one in inputs
        ]

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a `ComparingHead`."""
        self._encoder_takes = takes_candidates(encoder)
        return ComparingHead(int(encoder.config.hidden_size))

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the token spans to compare, and the labels as numbers."""
        labels = [pair.label for pair in batch.examples]
        if learning and None in labels:
            raise InputError("a word has no label to train on; is this a test file?")
        target = {
            "spans": torch.tensor([_compared(one) for one in batch.inputs]),
            "labels": torch.tensor([float(bool(label)) for label in labels]),
        }
        return replace(batch if self._encoder_takes else withhold_candidates(batch), target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the binary cross-entropy."""
        found = self._compare(head, states, batch)
        return {"label": binary_cross_entropy_with_logits(found, batch.target["labels"].to(found))}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the probability that the word means the same."""
        chances: list[Any] = self._compare(head, states, batch).sigmoid().tolist()
        return chances

    def _compare(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> Float[Tensor, " input"]:
        places = batch.packing.starts[:, None, None] + batch.target["spans"]
        first, second = (span_means(states, places[:, side, 0], places[:, side, 1]) for side in (0, 1))
        return in_full(head(first, second))

    def labels(self, answers: Sequence[Sequence[float]]) -> list[bool]:
        """Return True for each pair with probability over one half."""
        return [some[0] > 0.5 for some in answers]

    def scores(self, examples: Sequence[WordPair], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return accuracy, and precision, recall and F1 of the positive class, as WiC-TSV's scorer does."""
        if any(pair.label is None for pair in examples):
            raise InputError("some pairs have no label to score against; is this a test file?")
        gold, found = [bool(pair.label) for pair in examples], self.labels(answers)
        right = sum(one and other for one, other in zip(gold, found, strict=True))
        return {
            "accuracy": accuracy(gold, found),
            "precision": right / sum(found) if any(found) else 0.0,
            "recall": right / sum(gold) if any(gold) else 0.0,
            "f1": f1(gold, found),
        }


def _marks(pair: WordPair) -> tuple[Mark, ...]:
    spans = [(segment, *span) for segment, span in enumerate(pair.spans) if span is not None]
    return tuple(Mark(segment, start, end, pair.word, pair.kind) for segment, start, end in spans)


def _compared(one: Tokenization) -> tuple[Span, Span]:
    """Return the tokens of the word in both texts, or of the whole second text; (0, 0) if truncated."""
    marked = {mark.segment: tokens_of_words(one, mark) for mark in one.marks}
    whole = Mark(1, 0, len(one.texts[1]))
    second = marked[1] if 1 in marked else tokens_of_words(one, whole)
    return marked[0] or (0, 0), second or (0, 0)


# the files


def _beside(path: str | Path, end: str, other: str) -> Path | None:
    """Return the file with another ending of its name, if it exists."""
    path = Path(path)
    if end not in path.name:
        return None
    other_path = path.with_name(path.name.replace(end, other))
    return other_path if other_path.exists() else None


def _read_aligned(path: str | Path, beside: Any, make: Any, skipped: list[str] | None) -> Iterator[WordPair]:
    """Yield `make` of each line of a file and the same lines of the files beside it."""
    files = {name: [_text(file, *line) for line in read_lines(file)] for name, file in beside.items() if file}
    lines = [_text(path, *line) for line in read_lines(path)]
    for name, some in files.items():
        if len(some) != len(lines):
            raise InputError(
                f"{path_name(path)} has {len(lines)} lines, but {beside[name]} has {len(some)}; "
                "expected the same number"
            )
    for number, line in enumerate(lines):
        pair = partial(make, line.split("\t"), {name: some[number] for name, some in files.items()}, str(number))
        yield from make_or_skip(pair, skipped, f"{path_name(path)}, line {number + 1}")


def _text(path: str | Path, number: int, line: bytes) -> str:
    return decode(line, f"{path_name(path)}, line {number}")


def _of_wic(cells: Sequence[str], beside: dict[str, str], id: str) -> WordPair:
    if len(cells) != 5:
        raise InputError(f"{len(cells)} cells, expected 5: word, part of speech, places such as 2-4, and two texts")
    word, kind, places, *texts = cells
    first, sign, second = places.partition("-")
    if kind not in _KINDS or not sign:
        raise InputError(f"{kind!r} and {places!r}; expected N or V, and the places of the word in both texts (2-4)")
    spans = _word_span(texts[0], first), _word_span(texts[1], second)
    return WordPair(id, word, _KINDS[kind], (texts[0], texts[1]), spans, _label(beside.get("gold")))


def _of_wic_tsv(cells: Sequence[str], beside: dict[str, str], id: str) -> WordPair:
    if len(cells) != 3:
        raise InputError(f"{len(cells)} cells, expected 3: word, its place, and a text")
    word, place, text = cells
    hypernyms = ", ".join(name.strip().replace("_", " ") for name in beside.get("hypernyms", "").split("\t"))
    meaning = "; ".join(part for part in (beside.get("definitions", "").strip(), hypernyms) if part)
    return WordPair(
        id, word, "n", (text, f"{word}: {meaning}"), (_word_span(text, place), None), _label(beside.get("labels"))
    )


def _of_superglue(record: Record, number: str) -> WordPair:
    texts = text_of(record, "sentence1"), text_of(record, "sentence2")
    spans = []
    for side, text in enumerate(texts, 1):
        start, end = record.get(f"start{side}"), record.get(f"end{side}")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text)):
            raise InputError(f"the word is from {start!r} to {end!r} in a text of {len(text)} characters")
        spans.append((start, end))
    label = record.get("label")
    if not (label is None or isinstance(label, bool)):
        raise InputError(f"the label is {label!r}, expected true or false")
    id = str(record.get("idx", number))
    return WordPair(id, text_of(record, "word"), None, texts, (spans[0], spans[1]), label)


def _word_span(text: str, place: str) -> Span:
    """Return the character span of a word by its index among the blank-separated words, from 0."""
    words = text.split(" ")
    if not place.isdigit() or int(place) >= len(words) or not words[int(place)]:
        raise InputError(f"expected a word index below {len(words)}, got {place!r} for {text[:60]!r}")
    start = sum(len(word) + 1 for word in words[: int(place)])
    return start, start + len(words[int(place)])


def _label(written: str | None) -> bool | None:
    if written is None:
        return None
    if written.strip() not in _LABELS:
        raise InputError(f"the label is {written!r}, expected T or F")
    return _LABELS[written.strip()]


# registry


def _write(path: str | Path, task: WordInContext, examples: Sequence[WordPair], answers: Answers) -> None:
    write_labels(path, task.labels(answers))


TASKS = {
    "wic": TaskType(
        read=lambda settings, metadata, path, broken: read_wic(path, skipped=broken),
        split=split_wic,
        build=lambda settings, metadata, tokenizer: WordInContext(),
        write=_write,
    ),
    "wic-tsv": TaskType(
        options="wic",
        read=lambda settings, metadata, path, broken: read_wic_tsv(path, given=settings.options.given, skipped=broken),
        split=split_wic,
        build=lambda settings, metadata, tokenizer: WordInContext(),
        write=_write,
    ),
}
