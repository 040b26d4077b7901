"""Word sense disambiguation: the WordNet synset of each marked word, for any encoder.

1. The words to disambiguate are an input's `marks`, with lemma and part of speech; the knowledge provider gives their
   candidates with priors (`models.knowbert.inputs`).
2. An encoder with a KnowBERT layer of this KB links every mention: its best candidate is the answer, and the layer's
   own loss trains it. Any other encoder gets a head of the same form on its last states (`SenseHead`), for a fair
   comparison.
3. A word without candidates, or outside the input, gets WordNet's first sense.

Texts that are too long are split in halves. Scored by `evaluation.senses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.readers import wordnet_examples
from wellread.data.readers.raganato import (
    SenseMark,
    SenseText,
    document_of,
    join_sentences,
    read_data_sets,
    unknown_keys,
    write_keys,
)
from wellread.data.splits import split_by
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.evaluation.senses import SenseInstance, back_off
from wellread.index.entity_vectors import EntityVectors
from wellread.io import console
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.linking.sense_answers import instances_of, score_answers
from wellread.models.knowbert.config import NO_ENTITY, KnowBertConfig
from wellread.models.knowbert.definitions import Definitions
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.mention_linker import CandidateTensors, MentionLinker, MentionPacking
from wellread.models.knowbert.model import softmax_loss
from wellread.models.knowbert.sense_texts import PREFIX
from wellread.tasks.sense_definitions import DefinitionDraw
from wellread.tasks.task import Batch, in_full
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType, find_files
from wellread.tasks.word_spans import CANDIDATES, halve, mentions_of, takes_candidates, withhold_candidates
from wellread.text.tokenization import Mark, TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class SenseOptions:
    """Options of task = "senses"; data are files of Raganato's framework or JSONL (`data.readers.raganato`)."""

    kb: str = "wordnet"
    """Name or path of the knowledge base whose synsets are the senses."""
    wordnet: str = ""
    """WNDB folder whose index.sense maps keys to synsets; "" is the asset."""
    together: int = 1
    """Number of sentences of a document that are read as one text."""
    examples: bool = False
    """Train on WordNet's example sentences too (`data.readers.wordnet_examples`). Their candidates have equal priors,
    since they illustrate rare senses as often as frequent ones.
    """
    level: float = 0.0
    """Share of training words with equal priors: WordNet's were counted on SemCor, and leak its answers."""
    least: int = 1
    """Minimum number of words with several senses in a training text; others teach little for their length."""
    definitions: int = 0
    """Tokens of sense texts that are encoded with each training batch, so that entity vectors are trained with the
    encoder (`models.knowbert.definitions`); 0: entity vectors are as given.
    """
    by: Literal["links", "head"] | None = None
    """Source of the answers: the links of the encoder's knowledge layer, or a head on the last states; by default the
    links if there is such a layer.
    """
    dim: int = 200
    """Width of the head, as in a knowledge layer."""
    heads: int = 4
    inner: int = 1024
    prior_width: int = 100
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("together", "least", "dim", "heads", "inner", "prior_width"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        if self.dim % self.heads:
            raise UsageError(
                f"dim is {self.dim}, which is not divisible by {self.heads} heads; choose a multiple of heads"
            )
        if self.definitions < 0:
            raise UsageError(f"definitions is {self.definitions}; expected a number of tokens, 0 or more")
        for name in ("dropout", "level"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise UsageError(f"{name} is {share}; expected 0 or more, less than 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SenseInput(Tokenization):
    """Text, or part of one, with the instance of each mark."""

    instances: tuple[SenseInstance, ...]


class SenseHead(nn.Module):
    """Mention linker of a KnowBERT layer (its steps 1 to 4) on the last states of an encoder."""

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
        """Wrap a trained mention linker."""
        head = cls.__new__(cls)
        nn.Module.__init__(head)
        head.linker = linker
        return head

    def forward(
        self,
        states: Float[Tensor, "token dim"],
        packing: Packing,
        candidates: CandidateTensors,
        wanted: Int[Tensor, " mark"],
    ) -> Float[Tensor, "mark cand"]:
        """Return candidate scores of the wanted mentions; minus infinity for padding."""
        mentions = MentionPacking.of(candidates.text_of, len(packing.lengths))
        seen = self.linker.contextualize(self.linker.narrow(states), candidates, mentions)
        some = replace(candidates, entities=candidates.entities[wanted], priors=candidates.priors[wanted])
        return self.linker.score(mentions.drop_empty(seen)[wanted], some).scores


class Senses:
    """Sense of each marked word, in the WordNet KB of the given entity vectors."""

    score = "f1"

    def __init__(
        self,
        keys: SenseKeys,
        vectors: EntityVectors,
        options: SenseOptions | None = None,
        definitions: Definitions | None = None,
    ) -> None:
        self.keys, self.vectors = keys, vectors
        self.options = options or SenseOptions()
        self._encoder_takes = True
        self._definitions = None
        if definitions is not None:
            encoded = vectors.fingerprint.startswith(PREFIX)
            self._definitions = DefinitionDraw(definitions, self.options.definitions, encoded=encoded)

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[SenseText], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return each text, in halves if too long; no input if it has no marks, or in training no known sense."""
        wanted = [
            [mark for mark in one.marks if self.keys.synsets(mark.instance.gold) or not learning] for one in examples
        ]
        if learning and self.options.least > 1:
            least = self.options.least
            wanted = [marks if sum(map(self._is_ambiguous, marks)) >= least else [] for marks in wanted]
        parts = [list(_parts(one.text, marks, segmenter)) for one, marks in zip(examples, wanted, strict=True)]
        tokenized = iter(segmenter.tokenize_many([(text,) for some in parts for text, _ in some]))
        return [[self._marked(next(tokenized), marks) for _, marks in some] for some in parts]

    def _is_ambiguous(self, mark: SenseMark) -> bool:
        return len(self.keys.senses(mark.instance.lemma, mark.instance.kind)) > 1

    def _marked(self, tokenized: Tokenization, marks: Sequence[SenseMark]) -> SenseInput:
        values = {part.name: getattr(tokenized, part.name) for part in dataclasses.fields(Tokenization)}
        values["marks"] = tuple(
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
        return SenseInput(**values, instances=tuple(mark.instance for mark in marks))

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Return an empty module for an encoder that links by itself, else a `SenseHead`."""
        self._encoder_takes = takes_candidates(encoder)
        links = any(getattr(getattr(part, "config", None), "kb", None) == self.options.kb for part in encoder.infusions)
        by = self.options.by or ("links" if links else "head")
        if by == "head" and self.options.definitions:
            raise UsageError("only a knowledge layer learns from definitions; leave senses.definitions out")
        if by == "head":
            return SenseHead(int(encoder.config.hidden_size), EntityTable.of(self.vectors), self.options)
        if not links:
            raise UsageError(
                f"the encoder has no knowledge layer of {self.options.kb} whose links could answer; infuse one "
                '(infusion = "knowbert"), or set by = "head"'
            )
        return nn.Module()

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the candidates, and the mention of each mark, as the target."""
        candidates = cast(Any, batch.knowledge.get(CANDIDATES, {})).get(self.options.kb)
        if candidates is None:
            raise UsageError(
                f"the batch has no candidates of {self.options.kb}; use a knowledge provider of this knowledge base"
            )
        mentions = mentions_of(batch, candidates)
        if learning:
            candidates = _level(batch, candidates, mentions, self.options.level)
        if self._definitions is not None:
            batch, candidates = self._definitions.add(batch, candidates, mentions, learning=learning)
        if learning or self._definitions is not None:
            every = cast(Any, batch.knowledge[CANDIDATES]) | {self.options.kb: candidates}
            batch = replace(batch, knowledge={**batch.knowledge, CANDIDATES: every})
        target = {"offers": candidates, "mentions": mentions}
        return replace(batch if self._encoder_takes else withhold_candidates(batch), target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return -log of the probability of the right candidates; a linking encoder has its own loss instead."""
        wanted = batch.target["mentions"]
        wanted = wanted[wanted >= 0]
        gold = batch.target["offers"]["gold"][wanted].bool()
        known = gold.any(1)
        if not isinstance(head, SenseHead) or not bool(known.any()):
            name = "senses" if isinstance(head, SenseHead) else f"links {self.options.kb}"
            return {name: states.sum() * 0.0}  # a loss of the same name in every batch, as several processes need
        return {"senses": softmax_loss(in_full(self._scores(head, states, batch, wanted[known])), gold[known])}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return sense keys by instance id for each input; words without candidates are absent."""
        mentions = batch.target["mentions"]
        there = (mentions >= 0).nonzero()[:, 0]
        entities = batch.target["offers"]["entities"][mentions[there]]
        rows = mentions.new_full((len(mentions),), -1)
        if entities.numel():
            scores = self._scores(head, states, batch, mentions[there])
            best = scores.masked_fill(entities < 0, float("-inf")).argmax(1, keepdim=True)
            rows[there] = entities.gather(1, best)[:, 0]
        rows_iter = iter(rows.tolist())
        return [
            {
                instance.id: key
                for instance in cast(SenseInput, one).instances
                if (row := next(rows_iter)) >= 0 and (key := self.keys.key(instance.lemma, self._id(row))) is not None
            }
            for one in batch.inputs
        ]

    def _scores(self, head: nn.Module, states: Tensor, batch: Batch, wanted: Int[Tensor, " mark"]) -> Tensor:
        if not isinstance(head, SenseHead):
            links: Tensor = batch.outputs["links"][self.options.kb][wanted]
            return links
        candidates = CandidateTensors.of(batch.target["offers"], batch.packing, self.options.kb)
        scores: Tensor = head(states, batch.packing, candidates, wanted)
        return scores

    def _id(self, row: int) -> str:
        return self.vectors.ids.take([row])[0]

    def chosen(self, examples: Sequence[SenseText], answers: Sequence[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
        """Return the key of every instance by its id; the first sense where there is no answer."""
        return back_off(instances_of(examples), _given(answers), self.keys.first)

    def scores(self, examples: Sequence[SenseText], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the scores of `score_answers`."""
        return score_answers(instances_of(examples), _given(answers), self.keys)


def _given(answers: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, tuple[str, ...]]:
    return {id: (key,) for some in answers for one in some for id, key in one.items()}


def _level(
    batch: Batch, candidates: dict[str, Tensor], mentions: Int[Tensor, " mark"], share: float
) -> dict[str, Tensor]:
    """Set equal priors for a random share of words, and for all of WordNet's examples (`SenseOptions.level`)."""
    instances = [instance for one in batch.inputs for instance in cast(SenseInput, one).instances]
    level = torch.tensor([instance.source == wordnet_examples.SOURCE for instance in instances], dtype=torch.bool)
    if share:
        level |= torch.rand(len(level)) < share
    some = mentions[level]
    some = some[some >= 0]
    if not len(some):
        return candidates
    there = (candidates["entities"][some] != NO_ENTITY).to(candidates["priors"].dtype)
    priors = candidates["priors"].clone()
    priors[some] = there / there.sum(1, keepdim=True).clamp(min=1)
    return candidates | {"priors": priors}


def _parts(text: str, marks: Sequence[SenseMark], segmenter: TextTokenizer) -> Iterator[tuple[str, list[SenseMark]]]:
    """Yield the parts of a text that fit, with their marks; parts without marks are omitted."""
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


# registry


def _read(settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]) -> Iterator[SenseText]:
    """Yield the sentences of a file, or of all files that match a pattern: "semcor_*.jsonl.xz"."""
    options: SenseOptions = settings.options
    paths = find_files("", path)
    keys = SenseKeys.read(options.wordnet or None)
    for one, sentences in zip(paths, read_data_sets(paths, secret=True, skipped=broken), strict=True):
        texts = list(join_sentences(sentences, options.together))
        if unknown := unknown_keys(texts, keys):
            console.note(f"{one}: WordNet does not have {len(unknown):,} of the gold keys; the first: {unknown[0]}")
        yield from texts


def _extra_examples(settings: TaskSettings) -> Iterator[SenseText]:
    options: SenseOptions = settings.options
    return wordnet_examples.read_examples(options.wordnet or None) if options.examples else iter(())


def _split(texts: Sequence[SenseText], count: int) -> tuple[list[SenseText], list[SenseText]]:
    """Split by document: within a document a word mostly keeps its sense."""
    return split_by(texts, count, document_of)


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Senses:
    # Imported late: models.knowbert.recipe imports tasks.recipe. It reads `offers` and `encoder` only.
    from wellread.models.knowbert.recipe import open_candidate_kb

    options: SenseOptions = settings.options
    kb, vectors = open_candidate_kb(cast(Any, settings), options.kb)
    with kb:
        definitions = None
        if options.definitions:
            definitions = Definitions.of(kb, vectors.ids.take(range(len(vectors))), tokenizer)
    return Senses(SenseKeys.read(options.wordnet or None), vectors, options, definitions)


def _write(path: str | Path, task: Senses, examples: Sequence[SenseText], answers: Answers) -> None:
    write_keys(path, task.chosen(examples, answers))


TASKS = {
    "senses": TaskType(
        options="senses",
        read=_read,
        split=_split,
        build=_build,
        write=_write,
        has_gold=lambda text: text.has_gold,
        extra_examples=_extra_examples,
        candidate_kbs=lambda settings: (settings.options.kb,),
    )
}
