"""Pretraining of KnowBERT: linking and masked words, with knowledge layers between those of the encoder.

1. The mention linker of each new layer is trained alone on text with gold links; all other weights are frozen. Then W2
   is set to the pseudo-inverse of W1 (`KnowBert.invert`). Several new layers are trained one after another, bottom up.
2. All weights are trained (entity vectors are not weights). A batch is either of masked words or of links, in given
   proportions. Knowledge layers have one learning rate, the encoder below and above the lowest of them two others.

A recipe may start from the folder of an earlier pretraining and add a layer; existing layers are kept. The output
`model/` is the encoder with its masked-language-model head, in the layout of transformers; its `knowledge.json` names
the entity vectors that the layers need.

Differences from the paper: no next-sentence task, one text per input; masked mentions as in `models.knowbert.inputs`.
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
from wellread.encoders.files import find_encoder, load_tokenizer
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.infusion.providers import KnowledgeProvider
from wellread.encoders.load import save_tokenizer, silence
from wellread.encoders.pretrained import build_auto
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.files import storage, write_atomically
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.model import KnowBert
from wellread.models.knowbert.pretraining_task import Linking, LinksData, WordsData, read_gold, read_words
from wellread.models.knowbert.recipe import candidate_options, describe_vectors, open_candidate_kb
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
"""Name of the masked-word task; the linking tasks are named by their KBs."""
KNOWLEDGE = "knowledge.json"


@dataclass(frozen=True, slots=True)
class PretrainingRecipe:
    """Recipe of a pretraining: knowledge layers, data and schedules."""

    pretrain: Literal["knowbert"]
    knowbert: dict[str, KnowBertConfig] = field(default_factory=dict)
    """Layers by KB; those that the encoder already has can be omitted."""
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    """`name` may be the `model` folder of an earlier pretraining."""
    offers: dict[str, CandidateOptions] = field(default_factory=dict)
    """Path, vectors and candidate options of KBs, where the defaults do not apply."""
    words: WordsData = field(default_factory=WordsData)
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    links: tuple[LinksData, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of the batches: { words = 0.8, wordnet = 0.2 }; by default the KBs divide the 0.2."""
    batch: int = 16
    """Texts per batch."""
    score: str = ""
    """Score that selects the best weights; by default "words.log_chance" (like perplexity, but higher is better), or
    without [words] the linking F1 of the first KB."""
    lower: float = 2e-5
    """Learning rate of the encoder up to its lowest knowledge layer."""
    upper: float = 5e-5
    """Learning rate of the encoder above it."""
    linker: Schedule | None = None
    """Schedule of the first stage, for each new layer; None skips it."""
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=1, learning_rate=1e-4))
    """Schedule of the second stage; its rate applies to knowledge layers, and to a head that the checkpoint lacks."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; expected 1 or more")
        if self.encoder.rank:
            raise UsageError(f"encoder.rank is {self.encoder.rank}, but pretraining trains all weights; leave it out")
        if not self.words.train and not self.links:
            raise UsageError("the recipe has nothing to train on; give [words] with train, or a [[links]]")
        if self.words.train and not (self.words.dev or self.words.develop):
            raise UsageError("[words] has nothing to validate on; give develop = 500, or dev")
        for links in self.links:
            if links.dev is None and not links.develop:
                raise UsageError(f"the links of {links.kb} have nothing to validate on; give develop = 200, or dev")
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
                f"score is {self.score!r}; expected one that is better if higher, such as {self.parts[0]}."
                f"{'log_chance' if self.parts[0] == WORDS else 'f1'}"
            )

    @property
    def parts(self) -> list[str]:
        """Names of the tasks: masked words, and the KBs with gold links."""
        return [*([WORDS] if self.words.train else []), *dict.fromkeys(links.kb for links in self.links)]

    @property
    def proportions(self) -> dict[str, float]:
        """Share of the batches of each task."""
        linking = [part for part in self.parts if part != WORDS]
        each = 0.2 / max(1, len(linking))
        return self.shares or {part: 0.8 if part == WORDS else each for part in self.parts}

    @property
    def best(self) -> str:
        """Score that selects the best weights."""
        return self.score or (f"{WORDS}.log_chance" if self.words.train else f"{self.parts[0]}.f1")


def pretrain(
    recipe: PretrainingRecipe,
    folder: str | Path,
    *,
    resume: bool = True,
    notes: str | Path | None = None,
    **options: Any,
) -> dict[str, float]:
    """Pretrain in a folder, or resume there; its `model` has the weights with the best validation score.

    `options` are passed to the training loop.
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
    """Network and tasks of a pretraining recipe."""

    def __init__(self, recipe: PretrainingRecipe, notes: str | Path | None) -> None:
        self.recipe = recipe
        self.existing = existing_layers(recipe.encoder.name)
        self.task = as_task(recipe, self.existing)
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
        """Encoder with its knowledge layers."""
        return cast(InfusedEncoder, self.network.encoder)

    @property
    def layers(self) -> list[KnowBert]:
        """Knowledge layers, bottom up."""
        found = [part for part in self.encoder.infusions if isinstance(part, KnowBert)]
        return sorted(found, key=lambda layer: layer.config.layer)

    def new_layers(self) -> list[KnowBert]:
        """Return the layers that the encoder did not have and that have gold links."""
        new = [layer for layer in self.layers if layer.config.kb not in self.existing]
        for layer in new:
            if above := [kb for kb, config in self.existing.items() if config.layer > layer.config.layer]:
                console.note(
                    f"the layer of {layer.config.kb} comes below that of {above[0]}, which was trained without it; add "
                    "knowledge bases from the bottom up"
                )
            if layer.config.kb not in self.recipe.parts:
                console.note(f"there is no text linked to {layer.config.kb}; its linker sees masked words alone")
        return [layer for layer in new if layer.config.kb in self.recipe.parts]

    @cached_property
    def provider(self) -> KnowledgeProvider | None:
        """Knowledge provider of the candidates of all layers."""
        return build_provider(self.task, self.tokenizer)

    @cached_property
    def parts(self) -> dict[str, TaskLearner]:
        """Learners of masked words and of links to each KB."""
        learners = {}
        for name in self.recipe.parts:
            task: Any
            examples: list[Any]
            dev: list[Any]
            if name == WORDS:
                task, (examples, dev) = self.masking, read_words(self.recipe.words, self.segmenter)
            else:
                task, (examples, dev) = self._linking(name), read_gold(self.recipe.links, name)
            learners[name] = TaskLearner(
                task,
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
                console.note(f"{name}: training on {len(learners[name].examples):,} texts, validating on {len(dev):,}")
        return learners

    def _linking(self, name: str) -> Linking:
        kb, vectors = open_candidate_kb(self.task, name)
        kb.close()
        layer = self.task.knowbert[name]
        return Linking(name, vectors, threshold=layer.threshold if layer.mode == "margin" else None)

    def train_linker(
        self, layer: KnowBert, folder: Path, schedule: Schedule, *, resume: bool = True, **options: Any
    ) -> dict[str, float]:
        """Run the first stage: train the mention linker of one layer on its links, then set W2."""
        kb = layer.config.kb
        self.network.requires_grad_(False)
        layer.linker.requires_grad_(True)
        learner = Mixture({kb: self.parts[kb]}, {kb: 1.0}, self.losses, score=f"{kb}.f1")
        scores = train(learner, schedule, folder / f"linker-{kb}", recipe=self.recipe, resume=resume, **options)
        layer.invert()
        return scores

    def free(self) -> None:
        """Make all weights trainable, for the second stage."""
        self.network.requires_grad_(True)

    def mixture(self) -> Mixture:
        """Return the mixture of tasks of the second stage."""
        return Mixture(self.parts, self.recipe.proportions, self.losses, score=self.recipe.best)

    @property
    def losses(self) -> list[str]:
        """Names of the losses."""
        return ["word", *(f"links {layer.config.kb}" for layer in self.layers)]

    def schedule(self) -> Schedule:
        """Return the schedule of the second stage, with the learning rates of the encoder's parts."""
        recipe, encoder = self.recipe, self.encoder
        lowest = self.layers[0].config.layer
        names = [f"encoder.{encoder.family.layers}.{number}." for number in range(encoder.config.num_hidden_layers)]
        rates = {"encoder.embeddings": recipe.lower}
        rates |= {name: recipe.lower if number <= lowest else recipe.upper for number, name in enumerate(names)}
        if self.has_head:
            rates["head"] = recipe.lower
        return replace(recipe.schedule, rates={**rates, **recipe.schedule.rates})

    def save(self, folder: Path) -> None:
        """Write the model to a temporary folder and move it into place."""
        part = folder.with_name(f".{folder.name}.part")
        with storage(folder):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            with silence():
                as_masked_lm(self.encoder, cast(WordHead, self.network.head)).save_pretrained(part)
            save_tokenizer(self.tokenizer, part, self.encoder.config)
            names = [layer.config.kb for layer in self.layers]
            saved = replace(self.recipe, offers=candidate_options(self.task, names))
            manifest = {"vectors": describe_vectors(self.task, names), "recipe": config.to_dict(saved)}
            with write_atomically(part / KNOWLEDGE) as file:
                file.write(json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)


def existing_layers(name: str) -> dict[str, KnowBertConfig]:
    """Return the knowledge layers that an encoder already has, by KB."""
    file = find_encoder(name) / "config.json"
    try:
        infusions = json.loads(file.read_bytes()).get("infusions", ())
        found = [dict(entry) for entry in infusions if entry.get("kind") == "knowbert"]
        layers = [config.from_dict(KnowBertConfig, {k: v for k, v in one.items() if k != "kind"}) for one in found]
    except (OSError, ValueError, AttributeError, InputError) as error:
        raise InputError(f"{file} cannot be read: {error}; give the folder of an encoder") from error
    return {layer.kb: layer for layer in layers}


def as_task(recipe: PretrainingRecipe, existing: Mapping[str, KnowBertConfig]) -> TaskRecipe:
    """Return the recipe of the masked-word task with the same encoder, layers and KBs."""
    layers = {**existing, **recipe.knowbert}
    if not layers:
        raise UsageError("the recipe has no knowledge layer; add [knowbert.NAME] with layer = N for a knowledge base")
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
    """Return the transformers model that consists of an encoder and a masked-language-model head."""
    model: Any = build_auto(AutoModelForMaskedLM, encoder.config)
    setattr(model, model.base_model_prefix, encoder)
    parameters: dict[str, nn.Parameter] = dict(model.named_parameters(remove_duplicate=False))
    for name, weight in head.state_dict().items():
        prefix = next(prefix for prefix in NAMES if name.startswith(prefix))
        targets = [target + name.removeprefix(prefix) for target in NAMES[prefix]]
        parameters[next(target for target in targets if target in parameters)].data.copy_(weight)
    model.tie_weights()
    return cast(PreTrainedModel, model)
