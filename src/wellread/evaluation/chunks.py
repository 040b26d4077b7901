"""Scores of named entities, as the CoNLL script counts them: a chunk is right if its words and its label are.

Tags of words become chunks by the script's own rules (Tjong Kim Sang and Buchholz 2000), which read IOB1, IOB2, BIOES
and BILOU alike, and make the best of tags that break their scheme: a chunk begins at B, S and U, at any tag behind O,
E, S, L or U, and where the label changes; it goes on up to O or the next that begins.

    tags      B-per I-per O I-loc B-loc
    chunks    (0, 2, per)   (3, 4, loc) (4, 5, loc)

Precision, recall and F1 are over all chunks of all sentences (micro), and for each label; where nothing is found,
precision is 0, as in the script.
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
"""The label of tags that have none: "B", "I"."""


class Chunk(NamedTuple):
    """Words of a sentence, from `start` up to `end` (exclusive), that name something of a kind."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class ChunkScores:
    """All chunks together, and those of each label that is asked for or found."""

    all: F1Score
    labels: Mapping[str, F1Score]

    def to_dict(self) -> dict[str, float]:
        """By the names that a table has: f1, precision, recall, and the F1 of each label, as in f1_person."""
        told = {"f1": self.all.f1, "precision": self.all.precision, "recall": self.all.recall}
        return told | {f"f1_{label}": each.f1 for label, each in self.labels.items()}


def chunks_of(tags: Iterable[str]) -> tuple[Chunk, ...]:
    """The chunks of a sentence's tags, of whatever scheme; something else than a tag is an `InputError`."""
    found: list[Chunk] = []
    before, was = OUTSIDE, ""
    for place, told in enumerate(tags):
        tag, label = split_tag(told)
        if tag != OUTSIDE:
            if tag in _BEGINS or before == OUTSIDE or before in _LASTS or label != was:
                found.append(Chunk(place, place + 1, label))
            else:
                found[-1] = found[-1]._replace(end=place + 1)
        before, was = tag, label
    return tuple(found)


def split_tag(tag: str) -> tuple[str, str]:
    """("B", "creative-work") of "B-creative-work", ("O", "") of "O"."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    kind, _, label = tag.partition("-")
    if len(kind) != 1 or kind not in _INSIDE or (not label and tag != kind):
        raise InputError(f"{tag!r} is no tag; expected O, or one such as B-person, I-person")
    return kind, label or NAMELESS


def tags_of(chunks: Iterable[Chunk], words: int, *, scheme: Scheme = "IOB2") -> list[str]:
    """The tags of a sentence's words, by chunks that do not overlap."""
    tags = [OUTSIDE] * words
    last: Chunk | None = None
    for chunk in sorted(chunks):
        if not 0 <= chunk.start < chunk.end <= words or (last is not None and chunk.start < last.end):
            raise InputError(
                f"{chunk} is empty, beyond {words} words, or overlaps {last}; tags cannot tell such chunks"
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
    """Score the chunks of each sentence; `missed` are the labels of names that are no chunks, and so never found."""
    if len(gold) != len(predicted):
        raise InputError(f"{len(predicted)} predictions for {len(gold)} sentences; give one for each, empty or not")
    if not gold:
        raise InputError("there is nothing to score; is the file empty, or was every sentence skipped?")
    right, told, asked = Counter[str](), Counter[str](), Counter[str](missed)
    for theirs, ours in zip(gold, predicted, strict=True):
        asked.update(chunk.label for chunk in set(theirs))
        told.update(chunk.label for chunk in set(ours))
        right.update(chunk.label for chunk in set(theirs) & set(ours))
    labels = sorted(asked.keys() | told.keys())
    return ChunkScores(
        F1Score.of(right.total(), told.total(), asked.total()),
        {label: F1Score.of(right[label], told[label], asked[label]) for label in labels},
    )
