"""Data and linking task of KnowBERT's pretraining.

1. An example is a text with marks (`text.tokenization.Mark`) and their gold entities: linked paragraphs (JSONL, AIDA,
   NIF; output of the Wikipedia reader) or words with WordNet senses. A text that is too long is split so that every
   mark stays whole.
2. The knowledge provider gives each mark its candidates among the other mentions of the text; the layer scores them,
   and the loss is the layer's own. There is no head.
3. Mentions without a gold candidate are ignored in the loss, unless the text says more (`Judged`): then, in margin
   mode, all their candidates are wrong.
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

from wellread.data.corpus import Unit
from wellread.data.formats import read_linked
from wellread.data.readers.raganato import SenseText, join_sentences, read_senses
from wellread.data.splits import split_by
from wellread.document import Document
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.knowbert.mention_cache import EntityRows
from wellread.tasks.masked_lm import read_texts
from wellread.tasks.task import Batch
from wellread.tasks.task_type import find_file, find_files
from wellread.tasks.word_spans import CANDIDATES, halve, mentions_of, tokens_of_words
from wellread.text.tokenization import Mark, TextTokenizer, Tokenization

Judged = Literal["right", "near", "all"]
"""Mentions whose candidates are known to be wrong unless they are gold. `right`: those with a gold candidate. `near`:
those that share tokens with a mark, including its own. `all`: all mentions, for completely linked text."""


@dataclass(frozen=True, slots=True)
class WordsData:
    """Texts for masked words, in [words]: files, folders and JSONL, compressed or not."""

    train: tuple[str, ...] = ()
    root: str = ""
    """Folder that all of them are in; "" is the working directory."""
    dev: tuple[str, ...] = ()
    """Separate files of validation texts."""
    develop: int = 0
    """Number of training texts to hold out for validation instead, selected by a hash of their text."""
    most: int | None = None
    """Maximum number of training texts, selected by a hash of their text."""
    unit: Unit = "paragraph"
    fields: tuple[str, ...] = ("text",)
    """Fields of JSONL."""


@dataclass(frozen=True, slots=True)
class LinksData:
    """Text with gold links, in [[links]]."""

    kb: str
    """KB whose layer is trained on it, by its name in [knowbert]."""
    train: str
    """A file, or a pattern of names such as "semcor_*.jsonl.xz"."""
    form: Literal["links", "senses"] = "links"
    """`links`: output of `wellread kb build wikipedia --paragraphs`, JSONL, AIDA, NIF. `senses`: words with sense keys
    of WordNet (`data.readers.raganato`)."""
    root: str = ""
    dev: str | None = None
    develop: int = 0
    most: int | None = None
    judged: Judged = "right"
    """For links: the mentions whose other candidates are wrong; `all` for completely linked text. Only layers in margin
    mode use it."""
    together: int = 1
    """For senses: number of sentences joined to one text."""
    wordnet: str = ""
    """For senses: WNDB folder with index.sense; "" is the asset."""


@dataclass(frozen=True, slots=True)
class GoldText:
    """Text with annotated mentions."""

    text: str
    marks: tuple[Mark, ...]
    judged: Judged = "right"

    @classmethod
    def of_links(cls, document: Document, judged: Judged = "right") -> GoldText:
        """Build from linked text; a NIL link becomes a mark without gold."""
        links = ((link.start, link.end, link.entity) for link in document.links)
        marks = (Mark(0, start, end, gold=() if entity is None else (entity,)) for start, end, entity in links)
        return cls(document.text, tuple(marks), judged)

    @classmethod
    def of_senses(cls, text: SenseText, keys: SenseKeys) -> GoldText:
        """Build from words with senses; candidates are looked up by lemma and part of speech."""
        found = ((mark.start, mark.end, mark.instance) for mark in text.marks)
        marks = (
            Mark(0, start, end, one.lemma.replace("_", " "), one.kind, keys.synsets(one.gold))
            for start, end, one in found
        )
        return cls(text.text, tuple(marks))

    def part(self, start: int, end: int) -> GoldText:
        """Return the text between two characters, with the marks inside it."""
        marks = (
            replace(mark, start=mark.start - start, end=mark.end - start)
            for mark in self.marks
            if start <= mark.start and mark.end <= end
        )
        return GoldText(self.text[start:end], tuple(marks), self.judged)


def parts_of(gold: GoldText, segmenter: TextTokenizer) -> Iterator[GoldText]:
    """Split a text into parts that fit the segmenter's `longest`, at blanks outside of marks, as far as possible."""
    for start, end in halve(gold.text, [(mark.start, mark.end) for mark in gold.marks], segmenter):
        yield gold.part(start, end)


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """Counts of the marks and links of one input."""

    gold: int = 0
    """Marks whose gold entity is in the KB."""
    reachable: int = 0
    """Marks whose gold entity is a candidate."""
    right: int = 0
    """Marks whose gold entity has the best score."""
    first: int = 0
    """Marks whose gold entity has the best prior."""
    linked: int = 0
    """Linked mentions among the judged ones, without overlaps."""
    hits: int = 0
    """Linked mentions whose link is correct."""


class Linking:
    """Task that trains and scores the links of one knowledge layer; examples are `GoldText`."""

    score = "f1"

    def __init__(self, kb: str, rows: EntityRows, *, threshold: float | None = None) -> None:
        """`kb` is the name of its candidates; mentions whose best score is below the threshold are not linked."""
        self.kb, self.rows, self.threshold = kb, rows, threshold

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[GoldText], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Tokenize each text in parts that fit; in training, parts without gold of this KB are left out."""
        parts = [[part for part in parts_of(gold, segmenter) if self._is_used(part, learning)] for gold in examples]
        tokenized = iter(segmenter.tokenize_many([(part.text,) for some in parts for part in some]))
        return [[_marked(next(tokenized), part) for part in some] for some in parts]

    def _is_used(self, part: GoldText, learning: bool) -> bool:
        gold = [id for mark in part.marks for id in mark.gold]
        return not learning or bool((self.rows.rows_of(gold) >= 0).any()) or (part.judged != "right" and bool(gold))

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Return an empty module: the encoder's layer links."""
        if not any(getattr(getattr(part, "config", None), "kb", None) == self.kb for part in encoder.infusions):
            raise UsageError(f"the encoder has no knowledge layer of {self.kb} that can link; add [knowbert.{self.kb}]")
        return nn.Module()

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the mention of each mark as target, and the judged mentions to the candidates."""
        candidates: Any = batch.knowledge.get(CANDIDATES, {})
        if self.kb not in candidates:
            raise UsageError(f"the batch has no candidates of {self.kb}; give a KnowBertProvider of it")
        own = {**candidates[self.kb], "judged": torch.from_numpy(_judged(batch, candidates[self.kb]))}
        knowledge: Any = {**batch.knowledge, CANDIDATES: {**candidates, self.kb: own}}
        return replace(batch, knowledge=knowledge, target={"mentions": mentions_of(batch, own)})

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return zero; the layer's own loss replaces it by its name if the batch has one."""
        return {f"links {self.kb}": states.sum() * 0.0}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the `LinkCounts` of each input."""
        candidates: Any = batch.knowledge[CANDIDATES]
        arrays = {name: value.cpu().numpy() for name, value in candidates[self.kb].items()}
        scores = batch.outputs["links"][self.kb].float().cpu().numpy()
        mentions = batch.target["mentions"].tolist()
        answers, begin = [], 0
        for text, item in enumerate(batch.inputs):
            end = begin + len(item.marks)
            here = np.flatnonzero(arrays["text_of"] == text)
            answers.append(self._count(item, mentions[begin:end], here, arrays, scores))
            begin = end
        return answers

    def _count(
        self, item: Tokenization, mentions: list[int], here: NDArray[Any], arrays: dict[str, Any], scores: NDArray[Any]
    ) -> LinkCounts:
        gold = arrays["gold"]
        known = [bool((self.rows.rows_of(mark.gold) >= 0).any()) if mark.gold else False for mark in item.marks]
        with_gold = [mention for mention, is_known in zip(mentions, known, strict=True) if is_known]
        reachable = [mention for mention in with_gold if mention >= 0 and gold[mention].any()]
        best = scores.argmax(1) if scores.shape[1] else np.zeros(len(scores), np.int64)
        marked = [mention for mention in mentions if mention >= 0]
        judged = np.union1d(here[arrays["judged"][here]], marked).astype(np.int64)
        linked = _without_overlaps(judged, best, arrays["spans"], scores, self.threshold)
        return LinkCounts(
            gold=len(with_gold),
            reachable=len(reachable),
            right=sum(bool(gold[mention, best[mention]]) for mention in reachable),
            first=sum(bool(gold[mention, 0]) for mention in reachable),  # candidates are sorted by prior
            linked=len(linked),
            hits=sum(bool(gold[mention, best[mention]]) for mention in linked),
        )

    def scores(self, examples: Sequence[GoldText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return F1, precision and recall of links, and shares of marks: best by score, best by prior, reachable."""
        counts = [count for parts in answers for count in parts]
        total = {name: sum(getattr(count, name) for count in counts) for name in LinkCounts.__slots__}

        def share(part: int, whole: int) -> float:
            return part / whole if whole else 0.0

        return {
            "f1": share(2 * total["hits"], total["linked"] + total["gold"]),
            "precision": share(total["hits"], total["linked"]),
            "recall": share(total["hits"], total["gold"]),
            "accuracy": share(total["right"], total["gold"]),
            "prior": share(total["first"], total["gold"]),
            "offered": share(total["reachable"], total["gold"]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldInput(Tokenization):
    """Tokenized text, or a part of one, with its marks."""

    judged: Judged


def _marked(tokenized: Tokenization, part: GoldText) -> GoldInput:
    fields = {name: getattr(tokenized, name) for name in Tokenization.__slots__ if name != "marks"}
    return GoldInput(**fields, marks=part.marks, judged=part.judged)


def _judged(batch: Batch, candidates: dict[str, Tensor]) -> Bool[np.ndarray, " mention"]:
    """Return True for mentions whose candidates are known to be wrong unless they are gold."""
    text_of, spans = candidates["text_of"].numpy(), candidates["spans"].numpy()
    judged = np.zeros(len(text_of), np.bool_)
    for text, item in enumerate(batch.inputs):
        assert isinstance(item, GoldInput)
        if item.judged == "right":
            continue
        here = np.flatnonzero(text_of == text)
        if item.judged == "all":
            judged[here] = True
            continue
        for mark in item.marks:
            tokens = tokens_of_words(item, mark)
            if tokens is not None:
                first, last = tokens
                judged[here[(spans[here, 0] <= last) & (spans[here, 1] >= first)]] = True
    return judged


def _without_overlaps(
    judged: NDArray[np.int64],
    best: NDArray[np.int64],
    spans: NDArray[np.int64],
    scores: NDArray[np.float32],
    threshold: float | None,
) -> list[int]:
    """Return the linked mentions of one text; of those that share tokens the one with the best score."""
    found = [(float(scores[mention, best[mention]]), mention) for mention in judged.tolist() if scores.shape[1]]
    linked: list[int] = []
    for score, mention in sorted(found, key=lambda pair: (-pair[0], pair[1])):
        if score == -np.inf or (threshold is not None and score < threshold):
            continue
        first, last = spans[mention]
        if all(last < spans[other, 0] or first > spans[other, 1] for other in linked):
            linked.append(mention)
    return linked


def read_words(data: WordsData, segmenter: TextTokenizer) -> tuple[list[str], list[str]]:
    """Read training and validation texts for masked words, in parts that fit the encoder."""

    def texts(paths: tuple[str, ...]) -> list[str]:
        found = [find_file(data.root, path) for path in paths]
        return list(dict.fromkeys(read_texts(found, segmenter, unit=data.unit, fields=data.fields)))

    rest, dev = split_by(texts(data.train), data.develop, lambda text: text)
    if not rest:
        raise InputError(f"{', '.join(data.train)} has no text left to train on; lower develop in [words]")
    return rest[: data.most], dev + texts(data.dev) if data.dev else dev


def read_gold(links: Sequence[LinksData], kb: str) -> tuple[list[GoldText], list[GoldText]]:
    """Read training and validation texts linked to one KB, from all its files."""
    examples: list[GoldText] = []
    dev: list[GoldText] = []
    for data in links:
        if data.kb != kb:
            continue
        rest, kept = split_by(list(_read(data, data.train)), data.develop, lambda gold: gold.text)
        if not rest:
            raise InputError(f"{data.train} has no text left to train on; lower develop in its [[links]]")
        examples += rest[: data.most]
        dev += kept
        if data.dev is not None:
            dev += _read(data, data.dev)
    return examples, dev


def _read(data: LinksData, name: str) -> Iterator[GoldText]:
    broken: list[str] = []
    for path in find_files(data.root, name):
        if data.form == "senses":
            keys = SenseKeys.read(data.wordnet or None)
            for text in join_sentences(read_senses(path, skipped=broken), data.together):
                yield GoldText.of_senses(text, keys)
        else:
            for document in read_linked(path, skipped=broken):
                yield GoldText.of_links(document, data.judged)
    if broken:
        console.note(f"left out {len(broken):,} broken texts; the first: {broken[0]}")
