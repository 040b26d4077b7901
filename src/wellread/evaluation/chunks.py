"""Scores of named entities, as the CoNLL script counts them: a chunk is right if its words and its label are.

Tags become chunks by the script's own rules (Tjong Kim Sang and Buchholz 2000), which accept IOB1, IOB2, BIOES and
BILOU, also with inconsistent tags: a chunk begins at B, S and U, at any tag after O, E, S, L or U, and where the label
changes; it continues up to O or the next beginning.

    tags      B-per I-per O I-loc B-loc
    chunks    (0, 2, per)   (3, 4, loc) (4, 5, loc)

Precision, recall and F1 are over all chunks of all sentences (micro), and per label; precision is 0 without
predictions, as in the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wellread.errors import InputError
from wellread.evaluation.relations import F1Score

Scheme = Literal["IOB1", "IOB2", "BIOES"]

OUTSIDE = "O"
_BEGINS = "BSU"
_LASTS = "ESLU"
_INSIDE = "BIESLUM"
NAMELESS = "_"
"""Label of tags without one: "B", "I"."""


class Chunk(NamedTuple):
    """Words of a sentence, from `start` up to `end` (exclusive), with a label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class ChunkScores:
    """Scores of all chunks, and per gold or predicted label."""

    all: F1Score
    labels: Mapping[str, F1Score]

    def to_dict(self) -> dict[str, float]:
        """Return the scores by name: f1, precision, recall, and the F1 of each label, as in f1_person."""
        scores = {"f1": self.all.f1, "precision": self.all.precision, "recall": self.all.recall}
        return scores | {f"f1_{label}": each.f1 for label, each in self.labels.items()}


def chunks_of(tags: Iterable[str]) -> tuple[Chunk, ...]:
    """Return the chunks of a sentence's tags, in any scheme; raise `InputError` for an invalid tag."""
    found: list[Chunk] = []
    before, was = OUTSIDE, ""
    for place, text in enumerate(tags):
        tag, label = split_tag(text)
        if tag != OUTSIDE:
            if tag in _BEGINS or before == OUTSIDE or before in _LASTS or label != was:
                found.append(Chunk(place, place + 1, label))
            else:
                found[-1] = found[-1]._replace(end=place + 1)
        before, was = tag, label
    return tuple(found)


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag: "B-creative-work" -> ("B", "creative-work"), "O" -> ("O", "")."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    kind, _, label = tag.partition("-")
    if len(kind) != 1 or kind not in _INSIDE or (not label and tag != kind):
        raise InputError(f"{tag!r} is not a tag; expected O, or one such as B-person, I-person")
    return kind, label or NAMELESS


def tags_of(chunks: Iterable[Chunk], words: int, *, scheme: Scheme = "IOB2") -> list[str]:
    """Return the tags of a sentence's words, given non-overlapping chunks."""
    tags = [OUTSIDE] * words
    last: Chunk | None = None
    for chunk in sorted(chunks):
        if not 0 <= chunk.start < chunk.end <= words or (last is not None and chunk.start < last.end):
            raise InputError(
                f"{chunk} is empty, beyond {words} words, or overlaps {last}; tags cannot express such chunks"
            )
        touches = last is not None and (last.end, last.label) == (chunk.start, chunk.label)
        kinds = ["I"] * (chunk.end - chunk.start)
        if scheme != "IOB1" or touches:
            kinds[0] = "B"
        if scheme == "BIOES":
            kinds[-1] = "E" if len(kinds) > 1 else "S"
        end = "" if chunk.label == NAMELESS else f"-{chunk.label}"
        tags[chunk.start : chunk.end] = [f"{kind}{end}" for kind in kinds]
        last = chunk
    return tags


def score_chunks(
    gold: Sequence[Collection[Chunk]], predicted: Sequence[Collection[Chunk]], *, missed: Iterable[str] = ()
) -> ChunkScores:
    """Score the chunks of each sentence; `missed` are labels of gold names that are not chunks, and so never found."""
    if len(gold) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(gold)} sentences; give one for each, empty or not")
    if not gold:
        raise InputError("there is nothing to score; is the file empty, or was every sentence skipped?")
    right, found, wanted = Counter[str](), Counter[str](), Counter[str](missed)
    for gold_chunks, predicted_chunks in zip(gold, predicted, strict=True):
        wanted.update(chunk.label for chunk in set(gold_chunks))
        found.update(chunk.label for chunk in set(predicted_chunks))
        right.update(chunk.label for chunk in set(gold_chunks) & set(predicted_chunks))
    labels = sorted(wanted.keys() | found.keys())
    return ChunkScores(
        F1Score.of(right.total(), found.total(), wanted.total()),
        {label: F1Score.of(right[label], found[label], wanted[label]) for label in labels},
    )
