"""Text whose links are known, for a knowledge layer that learns to link: the second task of KnowBERT's pretraining.

1. An example is a text with marks (`text.tokenization.Mark`), each with what it means: linked paragraphs (JSONL, AIDA,
   NIF; what the Wikipedia reader writes) or words with senses of WordNet. What does not fit is read in parts that leave
   every mark whole.
2. The lender offers each mark its candidates among the other mentions of the text; the layer scores them, and what is
   learned is its own loss. There is no head.
3. Where nothing is right a mention tells nothing, unless the text says more (`Judged`): then, in margin mode, all its
   candidates are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from wellread.data.readers.raganato import SenseText
from wellread.document import Document
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import UsageError
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.knowbert.inputs import Rows
from wellread.tasks.task import Batch
from wellread.tasks.word_spans import CANDIDATES, halve, mentions_of, tokens_of_words
from wellread.text.tokenization import Mark, TextTokenizer, Tokenization

Judged = Literal["right", "near", "all"]
"""Of which mentions it is known that a candidate is wrong. `right`: of those that a right one is offered too. `near`:
of those that share pieces with a mark, its own included. `all`: of all, where a text is linked completely."""


@dataclass(frozen=True, slots=True)
class GoldText:
    """A text and the mentions in it whose meaning is known."""

    text: str
    marks: tuple[Mark, ...]
    judged: Judged = "right"

    @classmethod
    def of_links(cls, document: Document, judged: Judged = "right") -> GoldText:
        """Linked text; a link to nothing (NIL) is a mark without gold."""
        links = ((link.start, link.end, link.entity) for link in document.links)
        marks = (Mark(0, start, end, gold=() if entity is None else (entity,)) for start, end, entity in links)
        return cls(document.text, tuple(marks), judged)

    @classmethod
    def of_senses(cls, text: SenseText, keys: SenseKeys) -> GoldText:
        """Words with senses, which are looked up by lemma and part of speech."""
        found = ((mark.start, mark.end, mark.instance) for mark in text.marks)
        marks = (
            Mark(0, start, end, one.lemma.replace("_", " "), one.kind, keys.synsets(one.gold))
            for start, end, one in found
        )
        return cls(text.text, tuple(marks))

    def part(self, start: int, end: int) -> GoldText:
        """What stands from one character to another, with the marks that are wholly there."""
        marks = (
            replace(mark, start=mark.start - start, end=mark.end - start)
            for mark in self.marks
            if start <= mark.start and mark.end <= end
        )
        return GoldText(self.text[start:end], tuple(marks), self.judged)


def parts_of(gold: GoldText, segmenter: TextTokenizer) -> Iterator[GoldText]:
    """A text in parts that fit the segmenter's `longest`, cut at blanks that are in no mark; what has none stays."""
    for start, end in halve(gold.text, [(mark.start, mark.end) for mark in gold.marks], segmenter):
        yield gold.part(start, end)


@dataclass(frozen=True, slots=True)
class Linked:
    """How the marks of an input were linked: counts that are added up over all of them."""

    asked: int = 0
    """Marks whose meaning the knowledge base has."""
    offered: int = 0
    """Of these, those that it is offered for."""
    right: int = 0
    """Of these, those where it scores best."""
    first: int = 0
    """And those where it has the best prior."""
    linked: int = 0
    """Mentions that are linked, of those that are judged: overlapping ones not twice."""
    hits: int = 0
    """Of these, those that are linked rightly."""


class Linking:
    """What a layer links the mentions of a text to; examples are `GoldText`."""

    score = "f1"

    def __init__(self, kb: str, rows: Rows, *, threshold: float | None = None) -> None:
        """`kb` by its name among the offers; mentions whose best score is below the threshold are not linked."""
        self.kb, self.rows, self.threshold = kb, rows, threshold

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[GoldText], *, learning: bool
    ) -> list[list[Tokenization]]:
        """The text of each in parts that fit; where one learns, those without gold of this knowledge base are none."""
        parts = [[part for part in parts_of(one, segmenter) if self._tells(part, learning)] for one in examples]
        tokenized = iter(segmenter.tokenize_many([(part.text,) for some in parts for part in some]))
        return [[_marked(next(tokenized), part) for part in some] for some in parts]

    def _tells(self, part: GoldText, learning: bool) -> bool:
        gold = [id for mark in part.marks for id in mark.gold]
        return not learning or bool((self.rows.rows_of(gold) >= 0).any()) or (part.judged != "right" and bool(gold))

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """None: the encoder's layer links by itself."""
        if not any(getattr(getattr(part, "config", None), "kb", None) == self.kb for part in encoder.infusions):
            raise UsageError(
                f"the encoder has no knowledge layer of {self.kb} that could link; add [knowbert.{self.kb}]"
            )
        return nn.Module()

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With the mention that each mark is as its target, and, of every mention, whether it is judged."""
        offers: Any = batch.knowledge.get(CANDIDATES, {})
        if self.kb not in offers:
            raise UsageError(f"nobody offers candidates of {self.kb}; give a lender of its offers")
        mine = {**offers[self.kb], "judged": torch.from_numpy(_judged(batch, offers[self.kb]))}
        told: Any = {**batch.knowledge, CANDIDATES: {**offers, self.kb: mine}}
        return replace(batch, knowledge=told, target={"mentions": mentions_of(batch, mine)})

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Nothing of its own: the layer's takes its place by its name, where there is something to learn."""
        return {f"links {self.kb}": states.sum() * 0.0}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """How the marks of each input were linked (`Linked`)."""
        offers: Any = batch.knowledge[CANDIDATES]
        told = {name: value.cpu().numpy() for name, value in offers[self.kb].items()}
        scores = batch.told["links"][self.kb].float().cpu().numpy()
        mentions = batch.target["mentions"].tolist()
        answers, begin = [], 0
        for text, one in enumerate(batch.inputs):
            end = begin + len(one.marks)
            answers.append(
                self._linked(one, mentions[begin:end], np.flatnonzero(told["text_of"] == text), told, scores)
            )
            begin = end
        return answers

    def _linked(
        self, one: Tokenization, mentions: list[int], here: NDArray[Any], told: dict[str, Any], scores: NDArray[Any]
    ) -> Linked:
        golds = [set(self.rows.rows_of(mark.gold).tolist()) - {-1} if mark.gold else set() for mark in one.marks]
        asked = [(place, gold) for place, gold in zip(mentions, golds, strict=True) if gold]
        offered = [place for place, _ in asked if place >= 0 and told["gold"][place].any()]
        best = scores.argmax(1) if scores.shape[1] else np.zeros(len(scores), np.int64)
        right = [place for place in offered if told["gold"][place, best[place]]]
        judged = np.union1d(here[told["judged"][here]], [place for place in mentions if place >= 0]).astype(np.int64)
        taken = _apart(judged, best, told["spans"], scores, self.threshold)
        return Linked(
            asked=len(asked),
            offered=len(offered),
            right=len(right),
            first=sum(bool(told["gold"][place, 0]) for place in offered),  # the best prior comes first
            linked=len(taken),
            hits=sum(bool(told["gold"][place, best[place]]) for place in taken),
        )

    def scores(self, examples: Sequence[GoldText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """F1 of links; of marks whose meaning is known, the share of right ones, by the prior alone, and offered."""
        every = [one for some in answers for one in some]
        total = {name: sum(getattr(one, name) for one in every) for name in Linked.__slots__}

        def share(part: int, whole: int) -> float:
            return part / whole if whole else 0.0

        return {
            "f1": share(2 * total["hits"], total["linked"] + total["asked"]),
            "precision": share(total["hits"], total["linked"]),
            "recall": share(total["hits"], total["asked"]),
            "accuracy": share(total["right"], total["asked"]),
            "prior": share(total["first"], total["asked"]),
            "offered": share(total["offered"], total["asked"]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldInput(Tokenization):
    """A text, or part of one, with its marks."""

    judged: Judged


def _marked(tokenized: Tokenization, part: GoldText) -> GoldInput:
    told = {name: getattr(tokenized, name) for name in Tokenization.__slots__ if name != "marks"}
    return GoldInput(**told, marks=part.marks, judged=part.judged)


def _judged(batch: Batch, offers: dict[str, Tensor]) -> Bool[np.ndarray, " mention"]:
    """Of every mention, whether its candidates are known to be wrong but for what is right."""
    text_of, spans = offers["text_of"].numpy(), offers["spans"].numpy()
    judged = np.zeros(len(text_of), np.bool_)
    for text, one in enumerate(batch.inputs):
        assert isinstance(one, GoldInput)
        if one.judged == "right":
            continue
        here = np.flatnonzero(text_of == text)
        if one.judged == "all":
            judged[here] = True
            continue
        for mark in one.marks:
            tokens = tokens_of_words(one, mark)
            if tokens is not None:
                first, last = tokens
                judged[here[(spans[here, 0] <= last) & (spans[here, 1] >= first)]] = True
    return judged


def _apart(
    judged: NDArray[np.int64],
    best: NDArray[np.int64],
    spans: NDArray[np.int64],
    scores: NDArray[np.float32],
    threshold: float | None,
) -> list[int]:
    """Mentions that are linked, the best first where several share pieces; all of them are of one text."""
    found = [(float(scores[place, best[place]]), place) for place in judged.tolist() if scores.shape[1]]
    taken: list[int] = []
    for score, place in sorted(found, key=lambda pair: (-pair[0], pair[1])):
        if score == -np.inf or (threshold is not None and score < threshold):
            continue
        first, last = spans[place]
        if all(last < spans[other, 0] or first > spans[other, 1] for other in taken):
            taken.append(place)
    return taken
