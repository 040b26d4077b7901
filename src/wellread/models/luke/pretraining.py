"""Pretraining of LUKE: an encoder learns to guess masked words and masked entities of linked text.

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

1. The text (what `wellread kb build wikipedia --paragraphs` and `wellread link` write) becomes windows on disk, the
   entities that it links to (or those of a knowledge base) the vocabulary.
2. First only what is new learns, the encoder's own weights stay: the entity table, its projection, the entity head.
3. Then all weights do, at a lower rate.

A recipe may start from a folder that an earlier pretraining wrote (or `wellread convert luke`): its entities keep their
rows, new ones get rows behind them. `model/` is the encoder with its head for masked words, as transformers has it, and
`entity_vocab.json`.

Unlike the authors' code: attention may be entity-aware from the beginning (`aware`); biases of new heads start from how
often words and entities are in the text, which else takes the first hundreds of steps; [MASK2] ends as [MASK] does.
With `entities.loss = "candidates"`, which is their fine-tuning for entity disambiguation (they hide 90 % of the
entities: `masking.entities = 0.9`), words are masked too and the entity table learns (theirs is frozen).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
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
from wellread.encoders.infusion.infuse import InfusedEncoder, infuse
from wellread.encoders.load import find_encoder, load_encoder, load_tokenizer, save_tokenizer, silence
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.index.folder import vectors_folder
from wellread.io import console
from wellread.io.files import storage, write_atomically
from wellread.kb.packaged import open_kb
from wellread.models.knowbert.pretraining import as_masked_lm
from wellread.models.luke.entity_table import carry_over, copy_mask, start_table
from wellread.models.luke.linked_text import LinkedWindows
from wellread.models.luke.mention_windows import MentionTokenizer
from wellread.models.luke.model import Luke, LukeConfig, luke_in
from wellread.models.luke.name_candidates import NameCandidates
from wellread.models.luke.pretraining_task import EntityMasking, EntityMaskingLearner
from wellread.models.luke.vocabulary import SPECIAL, EntityVocabulary, Unknown
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
    """Files, or patterns of names such as "linked-*.jsonl.gz": JSONL, AIDA, NIF (`wellread.data.formats`)."""
    root: str = ""
    """The folder that all of them are in; "" is where you are."""
    develop: int = 500
    """Windows to develop on: those of some pages, chosen by what these are called."""
    most: int | None = None
    """Learn from so many windows at most, chosen likewise."""
    page: str = "doc"
    """What a line of JSONL calls the page that it is of; consecutive lines of a page are one text."""
    most_entities: int = 128
    """Of a window; one that would have more ends early."""
    unknown: Unknown = "drop"
    """What becomes of entities that are not in the vocabulary: `drop`, or `unk`, [UNK]."""

    def __post_init__(self) -> None:
        _check_counts(self, "develop", "most", "most_entities")


@dataclass(frozen=True, slots=True)
class EntityOptions:
    """Which entities there are, in [entities]."""

    kb: str = ""
    """Those of this knowledge base; "" are those that the text links to."""
    most: int = 500_000
    """So many at most, those that are linked to most often."""
    least: int = 1
    """Of those of the text, what it links to so often at least."""
    start: str = ""
    """A knowledge base whose entity vectors (`wellread index build`) the table starts from; "": from chance."""
    vectors: str | None = None
    """Their folder, if it is not beside the knowledge base."""
    loss: Literal["vocabulary", "candidates"] = "vocabulary"
    """Softmax of masked entities: over all rows, or over the candidates of their names (entity disambiguation)."""
    names: str = ""
    """For `candidates`: the knowledge base whose names give them; "": the one of `kb`."""
    candidates: int = 30
    """Candidates of a name at most, the likeliest."""

    def __post_init__(self) -> None:
        _check_counts(self, "most", "least", "candidates")
        if self.loss == "candidates" and not (self.names or self.kb):
            raise UsageError(
                'entities.loss is "candidates", but no knowledge base says what names may mean; give entities.names'
            )


@dataclass(frozen=True, slots=True)
class HiddenOptions:
    """What is hidden, in [masking]."""

    words: float = 0.15
    """Of the pieces, whole words at a time."""
    entities: float = 0.15
    """Of the entities of a window, at least one."""

    def __post_init__(self) -> None:
        for name in ("words", "entities"):
            if not 0 < (share := getattr(self, name)) < 1:
                raise UsageError(f"masking.{name} is {share}; expected a share to mask, between 0 and 1")


@dataclass(frozen=True, slots=True)
class LukePretrainingRecipe:
    """Which encoder reads which text with which entities, and how it learns."""

    pretrain: Literal["luke"]
    text: LinkedText
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """`name` may be the `model` folder of an earlier pretraining."""
    entities: EntityOptions = field(default_factory=EntityOptions)
    dim: int = 256
    """How wide a row of the entity table is."""
    aware: bool = False
    """Entity-aware attention; the authors switch it on only for tasks, where its queries start as copies."""
    masking: HiddenOptions = field(default_factory=HiddenOptions)
    batch: int = 16
    """Windows read together."""
    first: Schedule | None = None
    """The first stage, in which only what is new learns; without it there is none."""
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=1, learning_rate=1e-5))
    """The second stage, in which all weights do."""

    def __post_init__(self) -> None:
        _check_counts(self, "batch", "dim")
        if self.encoder.rank:
            raise UsageError(f"encoder.rank is {self.encoder.rank}, but pretraining learns all weights; leave it out")
        if not self.text.train:
            raise UsageError('the recipe has nothing to learn from; give [text] with train = ["linked.jsonl"]')


def pretrain_luke(
    recipe: LukePretrainingRecipe, folder: str | Path, *, resume: bool = True, **options: Any
) -> dict[str, float]:
    """Pretrain in a folder, or go on there; its `model` has the weights with the best score on development windows.

    `options` are those of the loop.
    """
    folder, distributed = Path(folder), distributed_state()
    for stage in (recipe.first, recipe.schedule):
        if stage is not None:
            check_distributed_state(stage, distributed.num_processes)  # before a corpus is read for it
    work = LukePretraining(recipe, folder / _WINDOWS)
    main = distributed.is_main_process
    if main and not (resume and (folder / _BEFORE).exists()):
        work.tell_before(folder / _BEFORE)
    if recipe.first is not None:
        work.freeze()
        train(work.learner, recipe.first, folder / _FIRST, recipe=recipe, resume=resume, **options)
        stop_if_requested()
    work.free()
    scores = train(work.learner, recipe.schedule, folder, recipe=recipe, resume=resume, **options)
    if main:
        work.save(folder / MODEL)
    return scores


class LukePretraining:
    """What a recipe asks for, before its first step: vocabulary, windows, reader, learner."""

    def __init__(self, recipe: LukePretrainingRecipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.tokenizer: Tokenizer = load_tokenizer(recipe.encoder.name)
        self.files = [file for name in recipe.text.train for file in find_files(recipe.text.root, name)]
        self.network, self.has_head = self._build()
        self.learner = self._learner()

    # the text

    def documents(self) -> Iterator[Document]:
        """All of them; broken ones are left out and told."""
        broken: list[str] = []
        for file in self.files:
            yield from read_linked(file, skipped=broken)
        if broken:
            console.note(f"left out {len(broken):,} broken texts; the first: {broken[0]}")

    @cached_property
    def vocabulary(self) -> EntityVocabulary:
        """The entities of the encoder that is started from, and those that the recipe names behind them."""
        wanted = self._wanted()
        if not self.has_table:
            return wanted
        known = EntityVocabulary.load(find_encoder(self.recipe.encoder.name))
        names = [name for name in wanted.names if name not in SPECIAL]
        if distributed_state().is_main_process:
            console.note(
                f"{sum(name in known for name in names):,} of {len(names):,} entities have rows in "
                f"{self.recipe.encoder.name}, by their ids; the others get new ones"
            )
        return known.grow(wanted.names)

    def _wanted(self) -> EntityVocabulary:
        wanted = self.recipe.entities
        if wanted.kb:
            with open_kb(wanted.kb) as kb:
                return EntityVocabulary.of_kb(kb, wanted.most)
        counts: Counter[str] = Counter()
        for document in self.documents():
            counts.update(link.entity for link in document.links if link.entity is not None)
        return EntityVocabulary.of_counts(counts, most=wanted.most, least=wanted.least)

    @cached_property
    def windows(self) -> LinkedWindows:
        """All text, cut; made once by the first of several processes."""
        text = self.recipe.text
        window_tokenizer = MentionTokenizer(
            self.tokenizer, longest=self.recipe.encoder.longest, most=text.most_entities
        )
        with distributed_state().main_process_first():
            made = LinkedWindows.build(
                self.documents(),
                window_tokenizer,
                self.vocabulary,
                self.folder,
                digest=_digest(self.files),
                unknown=text.unknown,
                page=text.page,
            )
        if distributed_state().is_main_process:
            console.note(made.told.report())
        return made

    # the model

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
            console.note(f"{recipe.encoder.name} has {left[0]}, which this recipe does without; set aware = true")
        made = cast(InfusedEncoder, encoder)
        check_positions(made, recipe.encoder.longest)
        seed_all(recipe.schedule.seed, 1)
        head = word_head(made, None)
        return EncoderWithHead(made, head), load_word_head(head, recipe.encoder.name)

    def _start(self, luke: Luke) -> None:
        options = self.recipe.entities
        with open_kb(options.start) as kb:
            vectors = EntityVectors.open(vectors_folder(kb, options.vectors))
        rows, at = self.vocabulary.start_rows(vectors, luke.config.dim)
        start_table(luke, rows, at)
        console.note(f"{len(at):,} of {len(self.vocabulary):,} rows start from vectors of {options.start}")

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
                f"{len(self.vocabulary):,} entities; learning from {len(rest):,} windows, developing on {len(dev):,}"
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
                f"none of the {len(keys):,} names in the text has a candidate in {options.names or options.kb}; give "
                "entities.names, a knowledge base with the ids that the text links to"
            )
        if distributed_state().is_main_process:
            console.note(f"{len(found.keys):,} of {len(keys):,} names in the text have candidates")
        return found

    @torch.no_grad()
    def _start_biases(self, learner: EntityMaskingLearner) -> None:
        """Let heads that have learned nothing yet know what is frequent."""
        tokens, rows = (torch.from_numpy(some).float() for some in learner.frequencies)
        if not self.has_head:
            bias = cast(WordHead, self.network.head).bias
            bias.fill_(float(tokens.min()))  # an encoder may have more embeddings than there are pieces
            bias[: len(tokens)] = tokens
        if not self.has_table and learner.luke.prediction is not None:
            learner.luke.prediction.bias.copy_(rows)

    def tell_before(self, path: Path) -> None:
        """The scores before anything is learned, kept beside the run."""
        self.network.eval()
        with torch.no_grad():
            scores = self.learner.evaluate()
        self.network.train()
        with write_atomically(path) as file:
            file.write(json.dumps(scores, indent=2).encode() + b"\n")
        console.note("before: " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()))

    # stages

    def freeze(self) -> None:
        """For the first stage: only what the encoder's checkpoint has not learns."""
        self.network.requires_grad_(False)
        self.learner.luke.requires_grad_(True)
        self.network.head.requires_grad_(not self.has_head)

    def free(self) -> None:
        """For the second stage: all weights learn."""
        self.network.requires_grad_(True)

    def save(self, folder: Path) -> None:
        """Write a model beside its place and then move it there."""
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
                told = {"entities": len(self.vocabulary), "recipe": config.to_dict(self.recipe)}
                file.write(json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n")
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)


def _check_counts(options: Any, *names: str) -> None:
    """Refuse at once what a corpus would be read for in vain, or what would cut off its end unsaid."""
    for name in names:
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"{name} is {value}; expected 1 or more")


def _digest(files: list[str]) -> str:
    """Another one for other files, or when one of them was changed."""
    try:
        about = [(file, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}; check the path") from error
    return hashlib.blake2b(repr(about).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
