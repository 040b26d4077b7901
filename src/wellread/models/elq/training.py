"""Training a linker: a recipe in, a run folder with a model in it out.

A recipe names a knowledge base and what to learn from: files of linked text, documents made from the KB itself
(`made`), or both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Literal

from wellread.data.formats import read_linked
from wellread.data.synthetic.catalogue import documents_from
from wellread.data.synthetic.variation import Variation, vary
from wellread.document import Document, Link
from wellread.encoders.load import set_dropout
from wellread.errors import InputError, UsageError
from wellread.index.entity_index import EntityIndex
from wellread.io import console
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.linker import find_model, open_index
from wellread.models.elq.model import Elq, ElqConfig
from wellread.models.elq.training_task import (
    EntityLoss,
    Example,
    LinkingLearner,
    Negatives,
    SeveralKbs,
    make_examples,
    mark_unsure,
    split_off,
)
from wellread.training.loop import seed_all, train
from wellread.training.schedule import Schedule

MODEL = "model"
"""The folder in a run that `Linker.load(model=...)` takes."""
_ALIASES = 6
"""Aliases of an entity that may take the place of a mention, the most used first."""


@dataclass(frozen=True, slots=True)
class Text:
    """A file of linked text to learn from (JSONL, AIDA or NIF)."""

    file: str
    develop: int = 0
    """Documents that are split off for development; the same ones in every run."""
    hold_out: int = 0
    """More documents that are left out of training, to fit a link scorer on; the same ones in every run."""
    most: int | None = None
    """Documents of an epoch, drawn anew for each; None: all of them in every epoch."""
    most_chars: int | None = None
    """Leave longer documents out."""
    repeat: int = 1
    """How often each document is seen in an epoch."""
    complete: bool = True
    """Whether every mention has its link. If not, the KB's names that have none are neither right nor wrong."""
    entities: bool = True
    """False for named-entity annotation that names no entities: its mentions teach spans only."""
    spans: bool = True
    """False where mentions are chosen by their words, e.g. terms of an ontology: they teach entities, not spans."""
    kb: str | None = None
    """Knowledge base of its entities, by name or path; None: the recipe's."""

    @property
    def unlinked(self) -> Literal["nil", "unknown"]:
        """Meaning of a mention without an id."""
        return "nil" if self.entities else "unknown"


@dataclass(frozen=True, slots=True)
class LinkerRecipe:
    """What a linker learns, from what, and how."""

    kb: str
    """A packaged knowledge base's name or a path."""
    text: tuple[Text, ...] = ()
    made: int = 0
    """Documents made from the knowledge base itself: descriptions, facts and aliases in sentences and questions."""
    made_develop: int = 0
    """Of these, documents for development."""
    model: ElqConfig = field(default_factory=ElqConfig)
    start: str | None = None
    """A trained linker to go on from: "elq", or a folder."""
    loss: EntityLoss = "softmax"
    negatives: Negatives = "hard"
    """hard: the nearest entities and those of the same name, searched at every step. batch: the batch's other ones."""
    nearest: int = 10
    leave_out: float = 0.1
    """The share of gold entities that a batch pretends not to have, to learn NIL from."""
    drop_names: float = 0.0
    """The share of mentions that are learned as if their candidates were not known by name."""
    variation: Variation = field(default_factory=Variation)
    """Changes of the text (other aliases, typos, lower case), drawn anew for every epoch."""
    dropout: float | None = None
    """Dropout of the encoder while it trains; None: its own. 0 is a quarter faster on a processor."""
    batch_pieces: int = 1024
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=3, learning_rate=5e-4))

    def __post_init__(self) -> None:
        if not self.text and not self.made:
            raise UsageError("the recipe has nothing to learn from; give a [[text]] with its file, or made = 10000")
        if not self.made_develop and not any(text.develop for text in self.text):
            raise UsageError("the recipe has nothing to develop on; give develop = 500 to a [[text]], or made_develop")
        if self.made_develop and self.made_develop >= self.made:
            raise UsageError(
                f"made_develop is {self.made_develop} of {self.made} made documents; leave some to learn from"
            )

    @property
    def is_made_up(self) -> bool:
        """True where only documents made from the KB are validated on: their scores say little about real text."""
        return self.made_develop > 0 and not any(text.develop for text in self.text)


def train_linker(recipe: LinkerRecipe, folder: str | Path, *, resume: bool = True) -> dict[str, float]:
    """Train in a folder, or go on there; its `model` is the linker with the best development F1."""
    with ExitStack() as opened:
        model = _model(recipe)
        if recipe.dropout is not None:
            set_dropout(model.encoder, recipe.dropout)
        kbs = dict.fromkeys([recipe.kb, *(text.kb for text in recipe.text if text.kb is not None)])
        learners = [_learner(recipe, model, name, opened.enter_context(open_kb(name))) for name in kbs]
        learner = SeveralKbs(learners, seed=recipe.schedule.seed) if len(learners) > 1 else learners[0]
        scores = train(learner, recipe.schedule, folder, recipe=recipe, resume=resume)
        model.eval()  # the loop leaves it as it learned: what dropout makes of scores is no calibration
        learners[0].predictions()
        model.save_pretrained(Path(folder) / MODEL)
    return scores


def _learner(recipe: LinkerRecipe, model: Elq, name: str, kb: KnowledgeBase) -> LinkingLearner:
    """Build the learner of the texts that are linked to one of the recipe's KBs."""
    own = [text for text in recipe.text if (text.kb or recipe.kb) == name]
    index = open_index(kb, model.config)
    examples_of, dev = _read(recipe, own, kb, model, index, made=recipe.made if name == recipe.kb else 0)
    return LinkingLearner(
        model,
        kb,
        index,
        examples_of,
        dev,
        seed=recipe.schedule.seed,
        batch_pieces=recipe.batch_pieces,
        negatives=recipe.negatives,
        loss=recipe.loss,
        nearest=recipe.nearest,
        leave_out=recipe.leave_out,
        drop_names=recipe.drop_names,
        incomplete=[_name(text) for text in own if not text.complete],
    )


def _model(recipe: LinkerRecipe) -> Elq:
    seed_all(recipe.schedule.seed)
    return Elq.from_pretrained(find_model(recipe.start)) if recipe.start else Elq.create(recipe.model)


def _read(
    recipe: LinkerRecipe, texts: Sequence[Text], kb: KnowledgeBase, model: Elq, index: EntityIndex, *, made: int
) -> tuple[Callable[[int], list[Example]], dict[str, list[Document]]]:
    """Return a function from an epoch to its examples, and documents to validate on by where they come from."""
    sources: list[tuple[Text, list[Document]]] = []
    dev: dict[str, list[Document]] = {}
    for text in texts:
        documents, kept = _documents(text)
        if kept:
            dev.setdefault(_name(text), []).extend(kept)
        sources.append((text, documents if text.complete else mark_unsure(documents, kb)))
    if made:
        drawn = list(documents_from(kb, count=made, seed=recipe.schedule.seed))
        documents, kept = split_off(drawn, recipe.made_develop)
        if kept:
            dev.setdefault("made", []).extend(kept)
        sources.append((Text("made"), documents))
    count = sum(min(len(documents), text.most or len(documents)) * text.repeat for text, documents in sources)
    validation = ", ".join(f"{len(documents):,} of {name}" for name, documents in dev.items()) or "none of them"
    console.note(f"{kb.path.stem}: training on {count:,} documents an epoch, validating on {validation}")

    @lru_cache(1)
    def examples_of(epoch: int) -> list[Example]:
        return [
            example
            for place, (text, documents) in enumerate(sources)
            for example in _epoch(recipe, text, documents, kb, model, index, (recipe.schedule.seed, epoch, place))
        ]

    return examples_of, dev


def _epoch(
    recipe: LinkerRecipe,
    text: Text,
    documents: Sequence[Document],
    kb: KnowledgeBase,
    model: Elq,
    index: EntityIndex,
    seed: tuple[int, ...],
) -> list[Example]:
    """Draw, vary and tokenize the documents of one source for one epoch."""
    rng = Random(f"epoch {seed}")  # noqa: S311
    first = seed[1] == 0
    chosen = list(documents)
    if text.most is not None and text.most < len(chosen):
        chosen = rng.sample(chosen, text.most)
    if not recipe.variation:
        return make_examples(chosen, model, index, unlinked=text.unlinked, spans=text.spans, report=first) * text.repeat

    @lru_cache(1 << 14)
    def names(entity: str) -> list[str]:
        aliases = kb.get(entity).aliases if entity in kb else {}
        return sorted(aliases, key=lambda alias: -aliases[alias])[:_ALIASES]

    return [
        example
        for time in range(text.repeat)
        for example in make_examples(
            [vary(document, recipe.variation, rng, names) for document in chosen],
            model,
            index,
            unlinked=text.unlinked,
            spans=text.spans,
            report=first and time == 0,
        )
    ]


def _name(text: Text) -> str:
    return Path(text.file).name.split(".")[0]


def _documents(text: Text) -> tuple[list[Document], list[Document]]:
    skipped: list[str] = []
    documents = [_with_more(document) for document in read_linked(text.file, skipped=skipped)]
    if skipped:
        console.note(f"left out {len(skipped):,} broken documents; the first: {skipped[0]}")
    if text.most_chars is not None:
        documents = [document for document in documents if len(document.text) <= text.most_chars]
    documents, kept = split_off(documents, text.develop)
    documents, _ = split_off(documents, text.hold_out)
    if not documents:
        raise InputError(
            f"{text.file} has no document left to train on; lower develop or hold_out, or raise most_chars"
        )
    return documents, kept


def _with_more(document: Document) -> Document:
    """Add the links that a row lists as `more`: repeated mentions found by name, `[[start, end, id], ...]`."""
    more = document.meta.get("more")
    if not more:
        return document
    links = [Link(start, end, document.text[start:end], entity) for start, end, entity in more]
    by_place = sorted((*document.links, *links), key=lambda link: (link.start, link.end))
    return replace(document, links=tuple(by_place))
