"""Pretraining of KnowBERT: an encoder learns to link and to guess masked words, with knowledge layers between its own.

1. The linker of each new layer learns alone, from text with gold links; all else is frozen. Then the way back is set to
   the pseudo-inverse of the way in (`KnowBert.invert`). Several new layers: one after another, from the bottom up.
2. All weights learn (entity vectors are none): batches of masked words and of links, each wholly of one of them, in
   given proportions; layers by one rate, the encoder below and above the lowest layer by two others.

A recipe may start from a folder that an earlier pretraining wrote and add a layer: those that are there stay. Its
`model/` is the encoder with its head for masked words, as transformers has it; `knowledge.json` says which entity
vectors its layers need.

Unlike the paper: no next sentences, one text an input; mentions with a hidden word as in `models.knowbert.inputs`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from wellread import config
from wellread.data.corpus import Unit
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.infusion.providers import KnowledgeProvider
from wellread.encoders.load import find_encoder, load_tokenizer, save_tokenizer, silence
from wellread.encoders.pretrained import build_auto
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.files import storage, write_atomically
from wellread.models.knowbert.model import KnowBert, KnowBertConfig
from wellread.models.knowbert.pretraining_data import read_gold, read_words
from wellread.models.knowbert.pretraining_task import Judged, Linking
from wellread.models.knowbert.recipe import about_vectors, candidate_options, open_candidate_kb
from wellread.tasks.learner import TaskLearner
from wellread.tasks.lm_head import NAMES, WordHead, load_word_head
from wellread.tasks.masked_lm import Masking
from wellread.tasks.mixture import Mixture
from wellread.tasks.recipe import CandidateOptions, Data, EncoderOptions, MaskingOptions, TaskRecipe
from wellread.tasks.task import EncoderWithHead
from wellread.text.tokenization import TextTokenizer
from wellread.training.loop import distributed_state, train
from wellread.training.schedule import Schedule
from wellread.training.stopping import stop_if_requested
from wellread.training.task import MODEL, NOTES, build_network, build_provider

WORDS = "words"
"""The name of the part that guesses masked words, among those of knowledge bases."""
KNOWLEDGE = "knowledge.json"


@dataclass(frozen=True, slots=True)
class WordsData:
    """The texts whose words are masked: files, folders and JSONL, compressed or not."""

    train: tuple[str, ...] = ()
    root: str = ""
    """The folder that all of them are in; "" is where you are."""
    dev: tuple[str, ...] = ()
    """Texts to develop on, in files of their own."""
    develop: int = 0
    """Or: so many of those to learn from, chosen by what they say."""
    most: int | None = None
    """Learn from so many texts at most, chosen by what they say too."""
    unit: Unit = "paragraph"
    fields: tuple[str, ...] = ("text",)
    """Of JSONL."""


@dataclass(frozen=True, slots=True)
class LinksData:
    """A file of text with gold links, in [[links]]."""

    kb: str
    """The knowledge base whose layer learns from it, by its name in [knowbert]."""
    train: str
    """A file, or a pattern of names such as "semcor_*.jsonl.xz"."""
    form: Literal["links", "senses"] = "links"
    """`links`: what `wellread kb build wikipedia --paragraphs` writes, JSONL, AIDA, NIF. `senses`: words with sense
    keys of WordNet (`data.readers.raganato`)."""
    root: str = ""
    dev: str | None = None
    develop: int = 0
    most: int | None = None
    judged: Judged = "right"
    """Of links, which mentions are known to mean nothing else: see `models.knowbert.pretraining_task`; `all` where
    every mention has its link. Only layers in margin mode learn from it."""
    together: int = 1
    """Of senses, sentences that are read as one text."""
    wordnet: str = ""
    """Of senses, the WNDB folder whose index.sense names them; "" is the asset."""


@dataclass(frozen=True, slots=True)
class PretrainingRecipe:
    """Which layers an encoder gets, what they learn from, and how."""

    pretrain: Literal["knowbert"]
    knowbert: dict[str, KnowBertConfig] = field(default_factory=dict)
    """The layers of knowledge bases by their names; those that the encoder has already need not be told again."""
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """`name` may be the `model` folder of an earlier pretraining."""
    offers: dict[str, CandidateOptions] = field(default_factory=dict)
    """Where the knowledge bases are, if not under their names."""
    words: WordsData = field(default_factory=WordsData)
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    links: tuple[LinksData, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    """Of all batches: { words = 0.8, wordnet = 0.2 }; if nothing is said, knowledge bases share the 0.2."""
    batch: int = 16
    """Texts read together."""
    score: str = ""
    """By which the best weights are chosen; "words.log_chance" (as perplexity, but more is better) if there are words
    to guess, else the F1 of the first knowledge base's links."""
    lower: float = 2e-5
    """The rate of the encoder up to its lowest knowledge layer."""
    upper: float = 5e-5
    """The rate of the encoder above it."""
    linker: Schedule | None = None
    """The first stage, for each new layer; without it there is none."""
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=1, learning_rate=1e-4))
    """The second stage; its rate is that of knowledge layers, and of a head that the encoder's checkpoint lacks."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; expected 1 or more")
        if self.encoder.rank:
            raise UsageError(f"encoder.rank is {self.encoder.rank}, but pretraining learns all weights; leave it out")
        if not self.words.train and not self.links:
            raise UsageError("the recipe has nothing to learn from; give [words] with train, or a [[links]]")
        if self.words.train and not (self.words.dev or self.words.develop):
            raise UsageError("[words] has nothing to develop on; give develop = 500, or dev")
        for links in self.links:
            if links.dev is None and not links.develop:
                raise UsageError(f"the links of {links.kb} have nothing to develop on; give develop = 200, or dev")
        if WORDS in self.knowbert:
            raise UsageError(f"no knowledge base can be called {WORDS!r}; give it another name in [offers]")
        if self.shares and self.shares.keys() != set(self.parts):
            raise UsageError(
                f"shares are of {', '.join(self.shares)}, but there is data of {', '.join(self.parts)}; give each a "
                "share, or leave shares out"
            )
        part, _, score = self.score.partition(".")
        if self.score and (part not in self.parts or score in ("", "perplexity")):
            raise UsageError(
                f"score is {self.score!r}; expected one of which more is better, such as {self.parts[0]}."
                f"{'log_chance' if self.parts[0] == WORDS else 'f1'}"
            )

    @property
    def parts(self) -> list[str]:
        """What is learned: masked words, and the links of knowledge bases."""
        return [*([WORDS] if self.words.train else []), *dict.fromkeys(links.kb for links in self.links)]

    @property
    def proportions(self) -> dict[str, float]:
        """The share of each part."""
        linking = [part for part in self.parts if part != WORDS]
        each = 0.2 / max(1, len(linking))
        return self.shares or {part: 0.8 if part == WORDS else each for part in self.parts}

    @property
    def best(self) -> str:
        """The score by which the best weights are chosen."""
        return self.score or (f"{WORDS}.log_chance" if self.words.train else f"{self.parts[0]}.f1")


def pretrain(
    recipe: PretrainingRecipe,
    folder: str | Path,
    *,
    resume: bool = True,
    notes: str | Path | None = None,
    **options: Any,
) -> dict[str, float]:
    """Pretrain in a folder, or go on there; its `model` has the weights with the best score on development texts.

    `options` are those of the loop.
    """
    folder = Path(folder)
    work = Pretraining(recipe, notes or folder / NOTES)
    if recipe.linker is not None:
        for layer in work.new_layers():
            work.train_linker(layer, folder, recipe.linker, resume=resume, **options)
            stop_if_requested()
    work.free()
    scores = train(work.mixture(), work.schedule(), folder, recipe=recipe, resume=resume, **options)
    if distributed_state().is_main_process:
        work.save(folder / MODEL)
    return scores


class Pretraining:
    """What a recipe asks for, before its first step: the reader, and the learners of its parts."""

    def __init__(self, recipe: PretrainingRecipe, notes: str | Path | None) -> None:
        self.recipe = recipe
        self.there = layers_there(recipe.encoder.name)
        self.task = as_task(recipe, self.there)
        self.tokenizer: Tokenizer = load_tokenizer(recipe.encoder.name)
        self.segmenter = TextTokenizer(self.tokenizer, longest=recipe.encoder.longest)
        self.masking = Masking(
            self.tokenizer, share=recipe.masking.share, units=recipe.masking.units, start=recipe.encoder.name
        )
        self.network: EncoderWithHead = build_network(self.task, self.masking)
        self.has_head = load_word_head(cast(WordHead, self.network.head), recipe.encoder.name)
        self._notes = notes
        for links in recipe.links:
            if links.kb not in self.task.knowbert:
                raise UsageError(f"there is text linked to {links.kb}, but no layer of it; add [knowbert.{links.kb}]")

    @property
    def encoder(self) -> InfusedEncoder:
        """The encoder with its layers."""
        return cast(InfusedEncoder, self.network.encoder)

    @property
    def layers(self) -> list[KnowBert]:
        """All knowledge layers, from the bottom up."""
        found = [part for part in self.encoder.infusions if isinstance(part, KnowBert)]
        return sorted(found, key=lambda layer: layer.config.layer)

    def new_layers(self) -> list[KnowBert]:
        """Those that the encoder did not have, and that there is gold for."""
        new = [layer for layer in self.layers if layer.config.kb not in self.there]
        for layer in new:
            if above := [kb for kb, one in self.there.items() if one.layer > layer.config.layer]:
                console.note(
                    f"the layer of {layer.config.kb} comes below that of {above[0]}, which has learned without it; add "
                    "knowledge bases from the bottom up"
                )
            if layer.config.kb not in self.recipe.parts:
                console.note(f"there is no text linked to {layer.config.kb}; its linker learns from masked words alone")
        return [layer for layer in new if layer.config.kb in self.recipe.parts]

    @cached_property
    def provider(self) -> KnowledgeProvider | None:
        """Who offers mentions and candidates of all layers' knowledge bases."""
        return build_provider(self.task, self.tokenizer)

    @cached_property
    def parts(self) -> dict[str, TaskLearner]:
        """The learners of masked words, and of links to each knowledge base."""
        made = {}
        for name in self.recipe.parts:
            task, read = (self._words, read_words) if name == WORDS else (self._linking, read_gold)
            examples, dev = read(self.recipe, name, self.segmenter)
            made[name] = TaskLearner(
                task(name),
                self.network,
                self.segmenter,
                examples,
                dev,
                provider=self.provider,
                notes=self._notes,
                batch=self.recipe.batch,
                seed=self.recipe.schedule.seed,
            )
            if distributed_state().is_main_process:
                console.note(f"{name}: learning from {len(made[name].examples):,} texts, developing on {len(dev):,}")
        return made

    def _words(self, name: str) -> Any:
        return self.masking

    def _linking(self, name: str) -> Any:
        kb, vectors = open_candidate_kb(self.task, name)
        kb.close()
        layer = self.task.knowbert[name]
        return Linking(name, vectors, threshold=layer.threshold if layer.mode == "margin" else None)

    # stages

    def train_linker(
        self, layer: KnowBert, folder: Path, schedule: Schedule, *, resume: bool = True, **options: Any
    ) -> dict[str, float]:
        """The first stage: the linker of one layer, from its links alone; then the way back is set."""
        kb = layer.config.kb
        self.network.requires_grad_(False)
        layer.linker.requires_grad_(True)
        learner = Mixture({kb: self.parts[kb]}, {kb: 1.0}, self.losses, score=f"{kb}.f1")
        scores = train(learner, schedule, folder / f"linker-{kb}", recipe=self.recipe, resume=resume, **options)
        layer.invert()
        return scores

    def free(self) -> None:
        """For the second stage: all weights learn."""
        self.network.requires_grad_(True)

    def mixture(self) -> Mixture:
        """What the second stage learns."""
        return Mixture(self.parts, self.recipe.proportions, self.losses, score=self.recipe.best)

    @property
    def losses(self) -> list[str]:
        """Their names."""
        return ["word", *(f"links {layer.config.kb}" for layer in self.layers)]

    def schedule(self) -> Schedule:
        """That of the second stage, with the rates of the encoder's parts."""
        recipe, encoder = self.recipe, self.encoder
        lowest = self.layers[0].config.layer
        below = [f"encoder.{encoder.family.layers}.{number}." for number in range(encoder.config.num_hidden_layers)]
        rates = {"encoder.embeddings": recipe.lower}
        rates |= {name: recipe.lower if number <= lowest else recipe.upper for number, name in enumerate(below)}
        if self.has_head:
            rates["head"] = recipe.lower
        return replace(recipe.schedule, rates={**rates, **recipe.schedule.rates})

    # what comes out

    def save(self, folder: Path) -> None:
        """Write a model beside its place and then move it there."""
        part = folder.with_name(f".{folder.name}.part")
        with storage(folder):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            with silence():
                as_masked_lm(self.encoder, cast(WordHead, self.network.head)).save_pretrained(part)
            save_tokenizer(self.tokenizer, part, self.encoder.config)
            names = [layer.config.kb for layer in self.layers]
            saved = replace(self.recipe, offers=candidate_options(self.task, names))
            told = {"vectors": about_vectors(self.task, names), "recipe": config.to_dict(saved)}
            with write_atomically(part / KNOWLEDGE) as file:
                file.write(json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n")
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)


def layers_there(name: str) -> dict[str, KnowBertConfig]:
    """The knowledge layers that an encoder has already, by their knowledge bases."""
    file = find_encoder(name) / "config.json"
    try:
        told = json.loads(file.read_bytes()).get("infusions", ())
        found = [dict(entry) for entry in told if entry.get("kind") == "knowbert"]
        settings = [config.from_dict(KnowBertConfig, {k: v for k, v in one.items() if k != "kind"}) for one in found]
    except (OSError, ValueError, AttributeError, InputError) as error:
        raise InputError(f"{file} cannot be read: {error}; give the folder of an encoder") from error
    return {one.kb: one for one in settings}


def as_task(recipe: PretrainingRecipe, there: Mapping[str, KnowBertConfig]) -> TaskRecipe:
    """The recipe of masked words with the same encoder, layers and knowledge bases."""
    layers = {**there, **recipe.knowbert}
    if not layers:
        raise UsageError("the recipe has no layer; say of which knowledge base, and after which layer: [knowbert.NAME]")
    return TaskRecipe(
        "masking",
        "knowbert",
        batch=recipe.batch,
        data=Data(develop=1),
        encoder=recipe.encoder,
        offers=recipe.offers,
        knowbert=layers,
        masking=recipe.masking,
        schedule=recipe.schedule,
    )


def as_masked_lm(encoder: InfusedEncoder, head: WordHead) -> PreTrainedModel:
    """An encoder and a head for masked words as the model that transformers has of both."""
    model: Any = build_auto(AutoModelForMaskedLM, encoder.config)
    setattr(model, model.base_model_prefix, encoder)
    theirs: dict[str, nn.Parameter] = dict(model.named_parameters(remove_duplicate=False))
    for name, weight in head.state_dict().items():
        begin = next(begin for begin in NAMES if name.startswith(begin))
        places = [there + name.removeprefix(begin) for there in NAMES[begin]]
        theirs[next(place for place in places if place in theirs)].data.copy_(weight)
    model.tie_weights()
    return cast(PreTrainedModel, model)
