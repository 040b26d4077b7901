"""Word senses: which synset of WordNet a word of a text means, for any encoder.

1. The words that are asked about are an input's `marks`, with lemma and part of speech; the lender offers each its
   candidates with priors (`models.knowbert.inputs`).
2. An encoder with a knowledge layer of this KB (KnowBERT) links every mention: its best candidate is the answer, and
   what it learns is its own loss. Any other encoder gets a head of the same form on its last states (`SenseHead`), so
   that both are asked the same question.
3. A word without candidates, or cut off, takes WordNet's first sense.

What does not fit in an input is read in halves. Scored by `evaluation.senses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from wellread.data.readers import wordnet_examples
from wellread.data.readers.raganato import SenseMark, SenseText
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.evaluation.senses import SenseInstance, answer_first, back_off, score_by_part, score_senses
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.knowbert.config import NO_ENTITY, KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.mention_linker import CandidateTensors, MentionLinker, MentionPacking
from wellread.models.knowbert.model import softmax_loss
from wellread.tasks.task import Batch, in_full
from wellread.tasks.word_spans import CANDIDATES, halve, mentions_of, takes_candidates, withhold_candidates
from wellread.text.tokenization import Mark, TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class SenseOptions:
    """Word senses, for task = "senses"; data are files of Raganato's framework or JSONL (`data.readers.raganato`)."""

    kb: str = "wordnet"
    """The knowledge base whose synsets are the senses, by its name or path."""
    wordnet: str = ""
    """The WNDB folder whose index.sense names them; "" is the asset."""
    together: int = 1
    """Sentences of a document that are read as one text."""
    examples: bool = False
    """Whether WordNet's own examples are learned from too, besides the data (`data.readers.wordnet_examples`); their
    candidates have equal priors, since examples of rare senses are as many as those of frequent ones."""
    level: float = 0.0
    """The share of words that are learned with equal priors: WordNet's were counted on SemCor, and know its answers."""
    by: Literal["links", "head"] | None = None
    """What answers: the links of the encoder's knowledge layer, or a head on the last states; None: links if it has
    such a layer."""
    dim: int = 200
    """The head's width, as that of a knowledge layer."""
    heads: int = 4
    inner: int = 1024
    prior_width: int = 100
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("together", "dim", "heads", "inner", "prior_width"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        if self.dim % self.heads:
            raise UsageError(f"dim is {self.dim}, which {self.heads} heads cannot share; let it be a multiple of heads")
        for name in ("dropout", "level"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise UsageError(f"{name} is {share}; expected 0 or more, less than 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SenseInput(Tokenization):
    """A text, or part of one, with the instance that each mark is."""

    instances: tuple[SenseInstance, ...]


class SenseHead(nn.Module):
    """The linker of a knowledge layer (steps 1 to 4 of KnowBERT's) on the last states of an encoder."""

    def __init__(self, width: int, table: EntityTable, options: SenseOptions) -> None:
        super().__init__()
        sizes = {name: getattr(options, name) for name in ("dim", "heads", "inner", "prior_width", "dropout")}
        self.linker = MentionLinker(KnowBertConfig(layer=0, raw=table.vectors.shape[1], **sizes), width)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)
        nn.init.normal_(self.linker.entities.mask, std=0.02)
        self.linker.entities.take(table)

    @classmethod
    def of(cls, linker: MentionLinker) -> SenseHead:
        """One that has learned already."""
        head = cls.__new__(cls)
        nn.Module.__init__(head)
        head.linker = linker
        return head

    def forward(
        self,
        states: Float[Tensor, "token dim"],
        packing: Packing,
        offers: CandidateTensors,
        asked: Int[Tensor, " mark"],
    ) -> Float[Tensor, "mark cand"]:
        """Scores of the candidates of the mentions that are asked for; minus infinity where there is none."""
        mentions = MentionPacking.of(offers.text_of, len(packing.lengths))
        seen = self.linker.contextualize(self.linker.narrow(states), offers, mentions)
        some = replace(offers, entities=offers.entities[asked], priors=offers.priors[asked])
        return self.linker.score(mentions.drop_empty(seen)[asked], some).scores


class Senses:
    """The sense of each marked word, by the WordNet KB whose entity vectors are given."""

    score = "f1"

    def __init__(self, keys: SenseKeys, vectors: EntityVectors, options: SenseOptions | None = None) -> None:
        self.keys, self.vectors = keys, vectors
        self.options = options or SenseOptions()
        self._encoder_takes = True

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[SenseText], *, learning: bool
    ) -> list[list[Tokenization]]:
        """The text of each, in halves where it is too long; none where nothing is asked, or to be learned."""
        wanted = [
            [mark for mark in one.marks if self.keys.synsets(mark.instance.gold) or not learning] for one in examples
        ]
        parts = [list(_parts(one.text, marks, segmenter)) for one, marks in zip(examples, wanted, strict=True)]
        tokenized = iter(segmenter.tokenize_many([(text,) for some in parts for text, _ in some]))
        return [[self._marked(next(tokenized), marks) for _, marks in some] for some in parts]

    def _marked(self, tokenized: Tokenization, marks: Sequence[SenseMark]) -> SenseInput:
        told = {part.name: getattr(tokenized, part.name) for part in dataclasses.fields(Tokenization)}
        told["marks"] = tuple(
            Mark(
                0,
                mark.start,
                mark.end,
                mark.instance.lemma.replace("_", " "),
                mark.instance.kind,
                self.keys.synsets(mark.instance.gold),
            )
            for mark in marks
        )
        return SenseInput(**told, instances=tuple(mark.instance for mark in marks))

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Nothing for an encoder that links by itself; else what links by its states."""
        self._encoder_takes = takes_candidates(encoder)
        links = any(getattr(getattr(part, "config", None), "kb", None) == self.options.kb for part in encoder.infusions)
        by = self.options.by or ("links" if links else "head")
        if by == "head":
            return SenseHead(int(encoder.config.hidden_size), EntityTable.of(self.vectors), self.options)
        if not links:
            raise UsageError(
                f"the encoder has no knowledge layer of {self.options.kb} whose links could answer; infuse one "
                '(infusion = "knowbert"), or let by be "head"'
            )
        return nn.Module()

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With the offers, and which of the mentions are asked for."""
        offers = cast(Any, batch.knowledge.get(CANDIDATES, {})).get(self.options.kb)
        if offers is None:
            raise UsageError(
                f"nobody offers candidates of {self.options.kb} for the words that are asked about; give a lender of "
                "its offers"
            )
        mentions = mentions_of(batch, offers)
        if learning:
            offers = _level(batch, offers, mentions, self.options.level)
            every = cast(Any, batch.knowledge[CANDIDATES]) | {self.options.kb: offers}
            batch = replace(batch, knowledge={**batch.knowledge, CANDIDATES: every})
        target = {"offers": offers, "mentions": mentions}
        return replace(batch if self._encoder_takes else withhold_candidates(batch), target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Minus the log-chance of a right candidate, where one is offered; an encoder that links learns by its own."""
        asked = batch.target["mentions"]
        asked = asked[asked >= 0]
        gold = batch.target["offers"]["gold"][asked].bool()
        known = gold.any(1)
        if not isinstance(head, SenseHead) or not bool(known.any()):
            name = "senses" if isinstance(head, SenseHead) else f"links {self.options.kb}"
            return {name: states.sum() * 0.0}  # a loss of the same name in every batch, as several processes need
        return {"senses": softmax_loss(in_full(self._scores(head, states, batch, asked[known])), gold[known])}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """For each input the sense keys by the ids of their instances; nothing for words without candidates."""
        mentions = batch.target["mentions"]
        there = (mentions >= 0).nonzero()[:, 0]
        entities = batch.target["offers"]["entities"][mentions[there]]
        rows = mentions.new_full((len(mentions),), -1)
        if entities.numel():
            scores = self._scores(head, states, batch, mentions[there])
            best = scores.masked_fill(entities < 0, float("-inf")).argmax(1, keepdim=True)
            rows[there] = entities.gather(1, best)[:, 0]
        told = iter(rows.tolist())
        return [
            {
                instance.id: key
                for instance in cast(SenseInput, one).instances
                if (row := next(told)) >= 0 and (key := self.keys.key(instance.lemma, self._id(row))) is not None
            }
            for one in batch.inputs
        ]

    def _scores(self, head: nn.Module, states: Tensor, batch: Batch, asked: Int[Tensor, " mark"]) -> Tensor:
        if not isinstance(head, SenseHead):
            links: Tensor = batch.told["links"][self.options.kb][asked]
            return links
        offers = CandidateTensors.of(batch.target["offers"], batch.packing, self.options.kb)
        scores: Tensor = head(states, batch.packing, offers, asked)
        return scores

    def _id(self, row: int) -> str:
        return self.vectors.ids.take([row])[0]

    def chosen(self, examples: Sequence[SenseText], answers: Sequence[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
        """The key of every instance, by its id; the first sense where none was answered."""
        return back_off(instances_of(examples), _given(answers), self.keys.first)

    def scores(self, examples: Sequence[SenseText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """As `score_answers` has them."""
        return score_answers(instances_of(examples), _given(answers), self.keys)


def score_answers(
    instances: Sequence[SenseInstance], given: Mapping[str, tuple[str, ...]], keys: SenseKeys
) -> dict[str, float]:
    """F1 with the back-off, of all, by part of speech and data set; that of first senses; what was answered."""
    scores = score_by_part(instances, back_off(instances, given, keys.first))
    first = score_senses(instances, answer_first(instances, keys.first))
    alone = score_senses(instances, given)
    parts = {f"f1_{name}": part.f1 for name, part in scores.items() if name != "all"}
    return {
        "f1": scores["all"].f1,
        **parts,
        "first_sense": first.f1,
        "answered": alone.answered / alone.count,
    }


def instances_of(examples: Sequence[SenseText]) -> list[SenseInstance]:
    """What is asked in texts."""
    return [mark.instance for one in examples for mark in one.marks]


def _given(answers: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, tuple[str, ...]]:
    return {id: (key,) for some in answers for one in some for id, key in one.items()}


def _level(batch: Batch, offers: dict[str, Tensor], mentions: Int[Tensor, " mark"], share: float) -> dict[str, Tensor]:
    """Offers with equal priors for a share of words, and for all of WordNet's examples.

    Those use rare senses as often as others.
    """
    instances = [instance for one in batch.inputs for instance in cast(SenseInput, one).instances]
    level = torch.tensor([instance.source == wordnet_examples.SOURCE for instance in instances], dtype=torch.bool)
    if share:
        level |= torch.rand(len(level)) < share
    some = mentions[level]
    some = some[some >= 0]
    if not len(some):
        return offers
    there = (offers["entities"][some] != NO_ENTITY).to(offers["priors"].dtype)
    priors = offers["priors"].clone()
    priors[some] = there / there.sum(1, keepdim=True).clamp(min=1)
    return offers | {"priors": priors}


def _parts(text: str, marks: Sequence[SenseMark], segmenter: TextTokenizer) -> Iterator[tuple[str, list[SenseMark]]]:
    """A text in parts that fit, with the marks of each; those without any are left out."""
    if not marks:
        return
    for start, end in halve(text, [(mark.start, mark.end) for mark in marks], segmenter):
        some = [
            replace(mark, start=mark.start - start, end=mark.end - start)
            for mark in marks
            if start <= mark.start and mark.end <= end
        ]
        if some:
            yield text[start:end], some
