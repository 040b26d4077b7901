"""Training of ELQ linkers from a recipe, in a run folder that contains the trained model.

A recipe names a knowledge base and the training data: files of linked text, documents generated from the KB (`made`),
or both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random

from wellread.data.formats import read_linked
from wellread.data.synthetic.catalogue import documents_from
from wellread.data.synthetic.variation import vary
from wellread.document import Document, Link
from wellread.encoders.load import set_dropout
from wellread.errors import InputError
from wellread.index.entity_index import EntityIndex
from wellread.io import console
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.load import find_model, open_index
from wellread.models.elq.model import Elq
from wellread.models.elq.recipe import LinkerRecipe, Text
from wellread.models.elq.training_task import (
    Example,
    LinkingLearner,
    SeveralKbs,
    make_examples,
    mark_unsure,
    split_off,
)
from wellread.training.loop import seed_all, train

MODEL = "model"
"""Subfolder of a run with the model, for `Linker.load(model=...)`."""
_ALIASES = 6
"""Maximum number of an entity's aliases that can replace a mention; the most frequent are used."""


def train_linker(recipe: LinkerRecipe, folder: str | Path, *, resume: bool = True) -> dict[str, float]:
    """Train in a run folder, or resume there; return the scores. `model` in it has the best validation F1."""
    with ExitStack() as opened:
        model = _model(recipe)
        if recipe.dropout is not None:
            set_dropout(model.encoder, recipe.dropout)
        kbs = dict.fromkeys([recipe.kb, *(text.kb for text in recipe.text if text.kb is not None)])
        learners = [_learner(recipe, model, name, opened.enter_context(open_kb(name))) for name in kbs]
        learner = SeveralKbs(learners, seed=recipe.schedule.seed) if len(learners) > 1 else learners[0]
        scores = train(learner, recipe.schedule, folder, recipe=recipe, resume=resume)
        model.eval()  # the loop leaves it in training mode; dropout would distort the calibration
        learners[0].predictions()
        model.save_pretrained(Path(folder) / MODEL)
    return scores


def _learner(recipe: LinkerRecipe, model: Elq, name: str, kb: KnowledgeBase) -> LinkingLearner:
    """Build the learner for the texts of one of the recipe's KBs."""
    kb_texts = [text for text in recipe.text if (text.kb or recipe.kb) == name]
    index = open_index(kb, model.config)
    examples_of, dev = _read(recipe, kb_texts, kb, model, index, made=recipe.made if name == recipe.kb else 0)
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
        incomplete=[_name(text) for text in kb_texts if not text.complete],
    )


def _model(recipe: LinkerRecipe) -> Elq:
    seed_all(recipe.schedule.seed)
    return Elq.from_pretrained(find_model(recipe.start)) if recipe.start else Elq.create(recipe.model)


def _read(
    recipe: LinkerRecipe, texts: Sequence[Text], kb: KnowledgeBase, model: Elq, index: EntityIndex, *, made: int
) -> tuple[Callable[[int], list[Example]], dict[str, list[Document]]]:
    """Return a function from an epoch to its examples, and the validation documents by source."""
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
    documents = [_with_more_links(document) for document in read_linked(text.file, skipped=skipped)]
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


def _with_more_links(document: Document) -> Document:
    """Add the links that a row lists as `more`: repeated mentions found by name, `[[start, end, id], ...]`."""
    more = document.meta.get("more")
    if not more:
        return document
    links = [Link(start, end, document.text[start:end], entity) for start, end, entity in more]
    by_span = sorted((*document.links, *links), key=lambda link: (link.start, link.end))
    return replace(document, links=tuple(by_span))
