"""Training a linker: a recipe in, a run folder with a model in it out.

A recipe names a knowledge base and what to learn from: files of linked text, documents made from the KB itself
(`made`), or both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from wellread import console
from wellread.errors import InputError, UsageError
from wellread.formats import read_linked
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.knowledge.index import EntityIndex
from wellread.linker.elq import find_model, open_index
from wellread.models.elq import Elq, ElqConfig
from wellread.tasks.catalogue import documents_from
from wellread.tasks.linking import (
    EntityLoss,
    Example,
    LinkingLearner,
    Negatives,
    make_examples,
    mark_unsure,
    split_off,
)
from wellread.text import Document
from wellread.training.loop import seed_all, train
from wellread.training.schedule import Schedule

MODEL = "model"
"""The folder in a run that `Linker.load(model=...)` takes."""


@dataclass(frozen=True, slots=True)
class Text:
    """A file of linked text to learn from (JSONL, AIDA or NIF)."""

    file: str
    develop: int = 0
    """Documents that are split off for development; the same ones in every run."""
    most: int | None = None
    """Learn from so many documents at most."""
    most_chars: int | None = None
    """Leave longer documents out."""
    repeat: int = 1
    """How often each document is seen in an epoch."""
    complete: bool = True
    """Whether every mention has its link. If not, the KB's names that have none are neither right nor wrong."""


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


def train_linker(recipe: LinkerRecipe, folder: str | Path, *, resume: bool = True) -> dict[str, float]:
    """Train in a folder, or go on there; its `model` is the linker with the best development F1."""
    with open_kb(recipe.kb) as kb:
        model = _model(recipe)
        index = open_index(kb, model.config)
        examples, dev = _read(recipe, kb, model, index)
        learner = LinkingLearner(
            model,
            kb,
            index,
            examples,
            dev,
            seed=recipe.schedule.seed,
            batch_pieces=recipe.batch_pieces,
            negatives=recipe.negatives,
            loss=recipe.loss,
            nearest=recipe.nearest,
            leave_out=recipe.leave_out,
            incomplete=[_name(text) for text in recipe.text if not text.complete],
        )
        scores = train(learner, recipe.schedule, folder, recipe=recipe, resume=resume)
        model.eval()  # the loop leaves it as it learned: what dropout makes of scores is no calibration
        learner.predictions()
        model.save_pretrained(Path(folder) / MODEL)
    return scores


def _model(recipe: LinkerRecipe) -> Elq:
    seed_all(recipe.schedule.seed)
    return Elq.from_pretrained(find_model(recipe.start)) if recipe.start else Elq.create(recipe.model)


def _read(
    recipe: LinkerRecipe, kb: KnowledgeBase, model: Elq, index: EntityIndex
) -> tuple[list[Example], dict[str, list[Document]]]:
    """Examples to learn from, and documents to develop on by where they come from."""
    examples: list[Example] = []
    dev: dict[str, list[Document]] = {}
    for text in recipe.text:
        documents, kept = _documents(text)
        if kept:
            dev.setdefault(_name(text), []).extend(kept)
        if not text.complete:
            documents = mark_unsure(documents, kb)
        examples += make_examples(documents, model, index) * text.repeat
    if recipe.made:
        made = list(documents_from(kb, count=recipe.made, seed=recipe.schedule.seed))
        documents, kept = split_off(made, recipe.made_develop)
        if kept:
            dev.setdefault("made", []).extend(kept)
        examples += make_examples(documents, model, index)
    told = ", ".join(f"{len(documents):,} of {name}" for name, documents in dev.items())
    console.note(f"learning from {len(examples):,} windows, developing on {told}")
    return examples, dev


def _name(text: Text) -> str:
    return Path(text.file).name.split(".")[0]


def _documents(text: Text) -> tuple[list[Document], list[Document]]:
    skipped: list[str] = []
    documents = list(read_linked(text.file, skipped=skipped))
    if skipped:
        console.note(f"left out {len(skipped):,} broken documents; the first: {skipped[0]}")
    if text.most_chars is not None:
        documents = [document for document in documents if len(document.text) <= text.most_chars]
    documents, kept = split_off(documents, text.develop)
    if not documents:
        raise InputError(f"{text.file} has no document left to learn from; lower develop or raise most_chars")
    return documents[: text.most], kept
