"""Pretraining of LUKE: an encoder is trained to predict masked words and masked entities of linked text.

    pretrain = "luke"

    [text]
    train = ["linked.jsonl"]
    develop = 500

    [first]
    steps = 1000
    learning_rate = 5e-4

    [schedule]
    steps = 5000
    learning_rate = 1e-5

1. The text (output of `wellread kb build wikipedia --paragraphs` or `wellread link`) is split into windows on disk; the
   entities it links to, or those of a knowledge base, are the vocabulary.
2. First stage: only new weights are trained (entity table, its projection, entity head), the encoder is frozen.
3. Second stage: all weights are trained, at a lower rate.

The encoder of a recipe may be the folder of an earlier pretraining (or of `wellread convert luke`): its entities keep
their rows, and new ones are appended. The output `model/` is the encoder with its word head in transformers' format,
and `entity_vocab.json`.

Unlike the authors' code: attention may be entity-aware from the start (`aware`); output biases of new heads start from
the frequencies of words and entities, which otherwise takes the first hundreds of steps; [MASK2] is a copy of the
trained [MASK]. With `entities.loss = "candidates"`, their fine-tuning for entity disambiguation (they mask 90 % of the
entities: `masking.entities = 0.9`), words are masked too and the entity table is trained (theirs is frozen).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from tokenizers import Tokenizer

from wellread import config
from wellread.data.formats import read_linked
from wellread.document import Document
from wellread.encoders.files import find_encoder, load_tokenizer
from wellread.encoders.infusion.infuse import InfusedEncoder, infuse
from wellread.encoders.load import load_encoder, save_tokenizer, silence
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.index.folder import vectors_folder
from wellread.io import console
from wellread.io.files import storage, write_atomically
from wellread.kb.packaged import open_kb
from wellread.models.knowbert.pretraining import as_masked_lm
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.linked_text import LinkedWindows
from wellread.models.luke.mention_windows import MentionTokenizer
from wellread.models.luke.model import Luke, carry_over, copy_mask, luke_in, start_table
from wellread.models.luke.pretraining_task import EntityMasking, EntityMaskingLearner
from wellread.models.luke.vocabulary import SPECIAL, EntityVocabulary, NameCandidates, Unknown
from wellread.tasks.lm_head import WordHead, load_word_head
from wellread.tasks.masked_lm import word_head
from wellread.tasks.recipe import EncoderOptions
from wellread.tasks.task import EncoderWithHead, check_positions
from wellread.tasks.task_type import find_files
from wellread.training.loop import check_distributed_state, distributed_state, seed_all, train
from wellread.training.schedule import Schedule
from wellread.training.stopping import stop_if_requested
from wellread.training.task import MODEL

KNOWLEDGE = "knowledge.json"
_WINDOWS, _FIRST, _BEFORE = "windows", "first", "before.json"


@dataclass(frozen=True, slots=True)
class LinkedText:
    """Text with links, in [text]."""

    train: tuple[str, ...]
    """Files, or patterns such as "linked-*.jsonl.gz": JSONL, AIDA, NIF (`wellread.data.formats`)."""
    root: str = ""
    """Folder of the files; "" is the working directory."""
    develop: int = 500
    """Validation windows: all windows of some pages, selected by a hash of their names."""
    most: int | None = None
    """Maximum number of training windows, selected likewise."""
    page: str = "doc"
    """Field of a JSONL line with the name of its page; consecutive lines of a page are one text."""
    most_entities: int = 128
    """Maximum number of entities per window; a window with more ends early."""
    unknown: Unknown = "drop"
    """Treatment of entities outside the vocabulary: `drop`, or `unk` for [UNK]."""

    def __post_init__(self) -> None:
        _check_counts(self, "develop", "most", "most_entities")


@dataclass(frozen=True, slots=True)
class EntityOptions:
    """Vocabulary, initial vectors and loss of entities, in [entities]."""

    kb: str = ""
    """Knowledge base whose entities are the vocabulary; "" uses the entities that the text links to."""
    most: int = 500_000
    """Maximum number of entities, the most frequent."""
    least: int = 1
    """Minimum number of links to an entity, for entities of the text."""
    start: str = ""
    """Knowledge base whose entity vectors (`wellread index build`) initialise the table; "" for random values."""
    vectors: str | None = None
    """Folder of these vectors, if it is not next to the knowledge base."""
    loss: Literal["vocabulary", "candidates"] = "vocabulary"
    """Softmax of masked entities over all rows, or over the candidates of their names (entity disambiguation)."""
    names: str = ""
    """Knowledge base with the names for `candidates`; "" uses `kb`."""
    candidates: int = 30
    """Maximum number of candidates per name, the most likely."""

    def __post_init__(self) -> None:
        _check_counts(self, "most", "least", "candidates")
        if self.loss == "candidates" and not (self.names or self.kb):
            raise UsageError(
                'entities.loss is "candidates", which needs a knowledge base with names; set entities.names'
            )


@dataclass(frozen=True, slots=True)
class EntityMaskingOptions:
    """Shares of masked words and entities, in [masking]."""

    words: float = 0.15
    """Share of the tokens, as whole words."""
    entities: float = 0.15
    """Share of the entities of a window, at least one."""

    def __post_init__(self) -> None:
        for name in ("words", "entities"):
            if not 0 < (share := getattr(self, name)) < 1:
                raise UsageError(f"masking.{name} is {share}; expected a share to mask, between 0 and 1")


@dataclass(frozen=True, slots=True)
class LukePretrainingRecipe:
    """Recipe of a pretraining: encoder, text, entities and schedule."""

    pretrain: Literal["luke"]
    text: LinkedText
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """`name` may be the `model` folder of an earlier pretraining."""
    entities: EntityOptions = field(default_factory=EntityOptions)
    dim: int = 256
    """Width of a row of the entity table."""
    aware: bool = False
    """Entity-aware attention; the authors use it only in tasks, where its queries start as copies."""
    masking: EntityMaskingOptions = field(default_factory=EntityMaskingOptions)
    batch: int = 16
    """Windows per batch."""
    first: Schedule | None = None
    """First stage, in which only new weights are trained; None skips it."""
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=1, learning_rate=1e-5))
    """Second stage, in which all weights are trained."""

    def __post_init__(self) -> None:
        _check_counts(self, "batch", "dim")
        if self.encoder.rank:
            raise UsageError(f"encoder.rank is {self.encoder.rank}, but pretraining trains all weights; leave it out")
        if not self.text.train:
            raise UsageError('the recipe has no text to train on; set [text] with train = ["linked.jsonl"]')


def pretrain_luke(
    recipe: LukePretrainingRecipe, folder: str | Path, *, resume: bool = True, **options: Any
) -> dict[str, float]:
    """Pretrain in a folder, or resume there; `model` gets the weights with the best score on the validation windows.

    `options` are passed to the training loop.
    """
    folder, distributed = Path(folder), distributed_state()
    for stage in (recipe.first, recipe.schedule):
        if stage is not None:
            check_distributed_state(stage, distributed.num_processes)  # before the corpus is read
    work = LukePretraining(recipe, folder / _WINDOWS)
    main = distributed.is_main_process
    if main and not (resume and (folder / _BEFORE).exists()):
        work.save_initial_scores(folder / _BEFORE)
    if recipe.first is not None:
        work.freeze()
        train(work.learner, recipe.first, folder / _FIRST, recipe=recipe, resume=resume, **options)
        stop_if_requested()
    work.unfreeze()
    scores = train(work.learner, recipe.schedule, folder, recipe=recipe, resume=resume, **options)
    if main:
        work.save(folder / MODEL)
    return scores


class LukePretraining:
    """Vocabulary, windows, model and task of a recipe, before the first step."""

    def __init__(self, recipe: LukePretrainingRecipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.tokenizer: Tokenizer = load_tokenizer(recipe.encoder.name)
        self.files = [file for name in recipe.text.train for file in find_files(recipe.text.root, name)]
        self.network, self.has_head = self._build()
        self.learner = self._learner()

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all files; invalid ones are skipped and logged."""
        broken: list[str] = []
        for file in self.files:
            yield from read_linked(file, skipped=broken)
        if broken:
            console.note(f"skipped {len(broken):,} invalid texts; the first: {broken[0]}")

    @cached_property
    def vocabulary(self) -> EntityVocabulary:
        """Entities of the initial encoder, followed by those of the recipe."""
        wanted = self._wanted()
        if not self.has_table:
            return wanted
        known = EntityVocabulary.load(find_encoder(self.recipe.encoder.name))
        names = [name for name in wanted.names if name not in SPECIAL]
        if distributed_state().is_main_process:
            console.note(
                f"{sum(name in known for name in names):,} of {len(names):,} entities have rows in "
                f"{self.recipe.encoder.name}, by id; the others get new rows"
            )
        return known.grow(wanted.names)

    def _wanted(self) -> EntityVocabulary:
        wanted = self.recipe.entities
        if wanted.kb:
            with open_kb(wanted.kb) as kb:
                return EntityVocabulary.of_kb(kb, wanted.most)
        return EntityVocabulary.of_documents(self.documents(), most=wanted.most, least=wanted.least)

    @cached_property
    def windows(self) -> LinkedWindows:
        """Windows of all text, built once by the main process."""
        text = self.recipe.text
        window_tokenizer = MentionTokenizer(
            self.tokenizer, longest=self.recipe.encoder.longest, most=text.most_entities
        )
        with distributed_state().main_process_first():
            windows = LinkedWindows.build(
                self.documents(),
                window_tokenizer,
                self.vocabulary,
                self.folder,
                digest=_digest(self.files),
                unknown=text.unknown,
                page=text.page,
            )
        if distributed_state().is_main_process:
            console.note(windows.counts.report())
        return windows

    def _build(self) -> tuple[EncoderWithHead, bool]:
        recipe = self.recipe
        encoder = load_encoder(recipe.encoder.name)
        old = luke_in(encoder)
        self.has_table = old is not None
        seed_all(recipe.schedule.seed)
        rows, masks = len(self.vocabulary), self.vocabulary.masks
        settings = LukeConfig(entities=rows, dim=recipe.dim, aware=recipe.aware, predicts=True, masks=masks)
        encoder = infuse(encoder, [settings])
        luke = cast(Luke, luke_in(encoder))
        if recipe.entities.start:
            self._start(luke)
        if old is not None and (left := carry_over(luke, old)):
            console.note(
                f"{recipe.encoder.name} has {left[0]}, which this recipe does not use; set aware = true to keep it"
            )
        infused = cast(InfusedEncoder, encoder)
        check_positions(infused, recipe.encoder.longest)
        seed_all(recipe.schedule.seed, 1)
        head = word_head(infused, None)
        return EncoderWithHead(infused, head), load_word_head(head, recipe.encoder.name)

    def _start(self, luke: Luke) -> None:
        options = self.recipe.entities
        with open_kb(options.start) as kb:
            vectors = EntityVectors.open(vectors_folder(kb, options.vectors))
        rows, at = self.vocabulary.start_rows(vectors, luke.config.dim)
        start_table(luke, rows, at)
        console.note(f"{len(at):,} of {len(self.vocabulary):,} rows are initialised with vectors of {options.start}")

    def _learner(self) -> EntityMaskingLearner:
        recipe = self.recipe
        hidden = recipe.masking
        masking = EntityMasking(
            self.tokenizer,
            self.vocabulary,
            words=hidden.words,
            entities=hidden.entities,
            candidates=self._candidates(),
        )
        rest, dev = self.windows.split(recipe.text.develop, recipe.text.most)
        if distributed_state().is_main_process:
            console.note(
                f"{len(self.vocabulary):,} entities; {len(rest):,} training windows, {len(dev):,} validation windows"
            )
        learner = EntityMaskingLearner(masking, self.network, rest, dev, batch=recipe.batch, seed=recipe.schedule.seed)
        self._start_biases(learner)
        return learner

    def _candidates(self) -> NameCandidates | None:
        options = self.recipe.entities
        if options.loss == "vocabulary":
            return None
        with open_kb(options.names or options.kb) as kb:
            keys = self.windows.name_keys()
            found = NameCandidates.of_kb(kb, self.vocabulary, keys, most=options.candidates)
        if not len(found.keys):
            raise InputError(
                f"none of the {len(keys):,} names in the text has a candidate in {options.names or options.kb}; set "
                "entities.names to a knowledge base with the ids that the text links to"
            )
        if distributed_state().is_main_process:
            console.note(f"{len(found.keys):,} of {len(keys):,} names in the text have candidates")
        return found

    @torch.no_grad()
    def _start_biases(self, learner: EntityMaskingLearner) -> None:
        """Initialise the output biases of new heads with log frequencies."""
        tokens, rows = (torch.from_numpy(part).float() for part in learner.frequencies)
        if not self.has_head:
            bias = cast(WordHead, self.network.head).bias
            bias.fill_(float(tokens.min()))  # an encoder may have more embeddings than the tokenizer has tokens
            bias[: len(tokens)] = tokens
        if not self.has_table and learner.luke.prediction is not None:
            learner.luke.prediction.bias.copy_(rows)

    def save_initial_scores(self, path: Path) -> None:
        """Evaluate before training, and write the scores to a file of the run."""
        self.network.eval()
        with torch.no_grad():
            scores = self.learner.evaluate()
        self.network.train()
        with write_atomically(path) as file:
            file.write(json.dumps(scores, indent=2).encode() + b"\n")
        console.note("before training: " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()))

    def freeze(self) -> None:
        """Prepare the first stage: train only weights that are not in the encoder's checkpoint."""
        self.network.requires_grad_(False)
        self.learner.luke.requires_grad_(True)
        self.network.head.requires_grad_(not self.has_head)

    def unfreeze(self) -> None:
        """Prepare the second stage: train all weights."""
        self.network.requires_grad_(True)

    def save(self, folder: Path) -> None:
        """Write the model to a temporary folder, then move it to its place."""
        copy_mask(self.learner.luke, self.vocabulary)
        part = folder.with_name(f".{folder.name}.part")
        with storage(folder):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            with silence():
                as_masked_lm(self.network.encoder, cast(WordHead, self.network.head)).save_pretrained(part)
            save_tokenizer(self.tokenizer, part, self.network.encoder.config)
            self.vocabulary.save(part)
            with write_atomically(part / KNOWLEDGE) as file:
                metadata = {"entities": len(self.vocabulary), "recipe": config.to_dict(self.recipe)}
                file.write(json.dumps(metadata, indent=2, ensure_ascii=False).encode() + b"\n")
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)


def _check_counts(options: Any, *names: str) -> None:
    """Raise `UsageError` for counts below 1, before any text is read."""
    for name in names:
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"{name} is {value}; expected 1 or more")


def _digest(files: list[str]) -> str:
    """Return a hash of the files' names, sizes and modification times."""
    try:
        about = [(file, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}; check the path") from error
    return hashlib.blake2b(repr(about).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
