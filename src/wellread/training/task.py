"""Training of a task from a recipe, and loading of the trained model.

The run's `model/` has all that inference needs: the encoder with its infusions (`save_pretrained`, safetensors), the
head, the tokenizer, and `task.json` with the recipe and the metadata of the training file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from wellread import config
from wellread.document import Document, short
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.infusion.infuse import InfusedEncoder, infuse
from wellread.encoders.infusion.providers import CombinedProvider, KnowledgeProvider
from wellread.encoders.load import add_adapters, load_encoder, merge_adapters, save_tokenizer, silence
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.files import storage
from wellread.models.kam.inputs import KamProvider
from wellread.models.knowbert.recipe import (
    build_knowbert_provider,
    candidate_options,
    check_vectors,
    describe_vectors,
    layer_configs,
    load_entity_tables,
    restore_trained,
    save_defined_vectors,
    trained_infusions,
)
from wellread.models.luke.model import Luke, luke_in
from wellread.models.luke.recipe import build_entities, give_masks, keep_entities, luke_config, vocabulary_of
from wellread.tasks.learner import TaskLearner, ask
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.registry import find_task_type, read_examples, read_parts, task_name
from wellread.tasks.task import EncoderWithHead, Task, check_positions
from wellread.tasks.task_type import AnswerWriter, TaskMetadata
from wellread.text.tokenization import TextTokenizer
from wellread.training.loop import distributed_state, seed_all, train
from wellread.training.schedule import Schedule

if TYPE_CHECKING:
    from wellread.linking.linker import Linker

MODEL = "model"
"""Folder in a run that `load_task` reads."""
_PLACES = (
    *(f"maps.{name}" for name in ("correlation", "kb", "linker", "given", "spacy", "stanza")),
    *("offers", "luke.kb", "luke.given", "questions.contexts"),
)
"""Settings that are paths of knowledge, or of the passages of questions."""
_PARTS = ("head", "encoder.infusions")
"""Prefixes of weights that not every model has."""
NOTES = "notes"
"""Folder of the annotation cache."""


def train_task(
    recipe: TaskRecipe,
    folder: str | Path,
    *,
    resume: bool = True,
    notes: str | Path | None = None,
    keep_model: bool = True,
    **options: Any,
) -> dict[str, float]:
    """Train or resume a task in a folder; its `model` has the weights with the best validation score.

    `notes` is the annotation cache, which runs may share. `options` are those of `loop.train`.
    """
    folder = Path(folder)
    learner, facts = build_learner(recipe, notes or folder / NOTES)
    sizes = f"{len(learner.examples):,} examples of {task_name(recipe.task)}, validating on {len(learner.dev):,}"
    if distributed_state().is_main_process:
        console.note(f"training on {sizes}")
    scores = train(learner, schedule_of(recipe, learner.model), folder, recipe=recipe, resume=resume, **options)
    if keep_model and distributed_state().is_main_process:
        _save(folder / MODEL, learner.model, load_tokenizer(recipe.encoder.name), recipe, facts)
    return scores


def build_learner(
    recipe: TaskRecipe, notes: str | Path | None, parts: tuple[list[Any], list[Any]] | None = None
) -> tuple[TaskLearner, TaskMetadata]:
    """Build the learner of a recipe, and return it with the metadata of its task."""
    task_type, settings = find_task_type(recipe.task), recipe.settings
    facts = task_type.metadata(settings)
    examples, dev = read_parts(settings, facts) if parts is None else parts
    tokenizer = load_tokenizer(recipe.encoder.name)
    task = task_type.build(settings, facts, tokenizer)
    network = build_network(recipe, task)
    segmenter = TextTokenizer(tokenizer, longest=recipe.encoder.longest)
    seed, provider = recipe.schedule.seed, build_provider(recipe, tokenizer)
    learner = TaskLearner(
        task, network, segmenter, examples, dev, provider=provider, notes=notes, batch=recipe.batch, seed=seed
    )
    return learner, facts


def build_network(recipe: TaskRecipe, task: Task[Any]) -> EncoderWithHead:
    """Build the encoder with its infusions and the task's head; the head's initial weights depend on the seed alone.

    So the arms of a comparison start with the same head, whatever their infusions. Infusions that the encoder already
    has from pretraining keep their weights.
    """
    encoder = load_encoder(recipe.encoder.name)
    seed_all(recipe.schedule.seed)
    before = trained_infusions(encoder)
    encoder = infuse(encoder, infusions_of(recipe, before))
    restore_trained(recipe, cast(InfusedEncoder, encoder), before)
    made = luke_in(encoder)
    if made is not None:
        keep_entities(recipe, made, cast(Luke | None, before.get("luke")))
    if lost := sorted(before.keys() - trained_infusions(encoder).keys()):
        console.note(f"{recipe.encoder.name} was pretrained with {', '.join(lost)}, which this recipe does not use")
    load_entity_tables(recipe, cast(InfusedEncoder, encoder))
    check_positions(
        cast(InfusedEncoder, encoder), recipe.encoder.longest + (recipe.maps.terms if recipe.provides else 0)
    )
    if recipe.encoder.rank:
        add_adapters(encoder, recipe.encoder.rank)
        cast(InfusedEncoder, encoder).infusions.requires_grad_(True)
    if made is not None and recipe.luke.links:
        made.table.weight.requires_grad_(False)
    seed_all(recipe.schedule.seed, 1)
    return EncoderWithHead(cast(InfusedEncoder, encoder), task.head(cast(InfusedEncoder, encoder)))


def schedule_of(recipe: TaskRecipe, model: EncoderWithHead) -> Schedule:
    """Freeze the parts with a learning rate of 0; return the schedule with the rates of trained parts of the model."""
    none = tuple(part for part in _PARTS if not any(True for _ in model.get_submodule(part).parameters()))
    rates = {name: rate for name, rate in recipe.schedule.rates.items() if not name.startswith(none)}
    frozen = tuple(name for name, rate in rates.items() if not rate)
    for name, weight in model.named_parameters():
        if name.startswith(frozen) and max((one for one in rates if name.startswith(one)), key=len) in frozen:
            weight.requires_grad_(False)
    rates = {name: rate for name, rate in rates.items() if name not in frozen}
    return replace(recipe.schedule, rates=rates)


def infusions_of(recipe: TaskRecipe, before: Mapping[str, Infusion] | None = None) -> list[Any]:
    """Return the configurations for `infuse`; `before` are infusions that the encoder already has."""
    made: dict[str, Callable[[], list[Any]]] = {
        "kam": lambda: [replace(recipe.kam, maps=recipe.maps.maps)],
        "knowbert": lambda: layer_configs(recipe),
        "luke": lambda: [luke_config(recipe, before or {})],
    }
    return [infusion for name in recipe.infusions for infusion in made[name]()]


def build_provider(recipe: TaskRecipe, tokenizer: Tokenizer) -> KnowledgeProvider | None:
    """Build the knowledge provider of a recipe, if it needs one; a linker is loaded on first use."""
    providers: list[KnowledgeProvider] = []
    if recipe.provides:
        providers.append(
            KamProvider.build(recipe.maps, tokenizer, longest=recipe.encoder.longest, linker=_linker(recipe))
        )
    if names := candidate_kbs(recipe):
        providers.append(build_knowbert_provider(recipe, names))
    if "luke" in recipe.infusions and recipe.luke.links:
        providers.append(build_entities(recipe))
    return providers[0] if len(providers) == 1 else CombinedProvider(providers) if providers else None


def candidate_kbs(recipe: TaskRecipe) -> list[str]:
    """Return the knowledge bases whose candidates are needed, by the task or by the encoder's layers."""
    layers = recipe.knowbert if "knowbert" in recipe.infusions else ()
    return list(dict.fromkeys([*find_task_type(recipe.task).candidate_kbs(recipe.settings), *layers]))


def _linker(recipe: TaskRecipe) -> Callable[[list[str]], Iterable[Document]] | None:
    kb = recipe.maps.kb
    if kb is None or not recipe.maps.needs_linker:
        return None

    @cache
    def load() -> Linker:
        from wellread.linking.linker import Linker

        return Linker.load(kb, recipe.maps.linker)

    return lambda texts: load().link_many(texts)


# the model


@dataclass(frozen=True, slots=True)
class TaskModel:
    """Trained task with its model: answers texts, and scores answers."""

    recipe: TaskRecipe
    facts: TaskMetadata
    task: Task[Any]
    network: EncoderWithHead
    segmenter: TextTokenizer
    provider: KnowledgeProvider | None

    def answer(self, texts: Sequence[str | tuple[str, ...]]) -> list[Any]:
        """Return an answer for each text or pair of texts: `model.answer([("It rained.", "It was wet.")])`."""
        task_type = find_task_type(self.recipe.task)
        if task_type.example is None:
            raise UsageError(
                f"{task_name(self.recipe.task)} needs more than texts; build its examples and pass them to answers()"
            )
        if isinstance(texts, str):
            raise UsageError(f"expected a list of texts, got one text; give [{short(texts, 40)!r}]")
        given = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        expected = task_type.texts(self.task)
        for number, some in enumerate(given):
            if len(some) != expected:
                raise UsageError(
                    f"item {number} has {len(some)} text{'s' * (len(some) != 1)}; {task_name(self.recipe.task)} takes "
                    + ("one; give a list of texts" if expected == 1 else "two; give a list of pairs of texts")
                )
        examples = [task_type.example(str(number), some) for number, some in enumerate(given)]
        return [task_type.show(self.task, task_type.join(self.task, some)) for some in self.answers(examples)]

    def answers(self, examples: Sequence[Any], *, notes: str | Path | None = None) -> list[list[Any]]:
        """Return the task's answers to the inputs of each example."""
        return ask(self.task, self.network, self.segmenter, examples, provider=self.provider, notes=notes)

    def has_gold(self, examples: Sequence[Any]) -> bool:
        """Return True if all examples have gold answers; those of test files have none."""
        return all(map(find_task_type(self.recipe.task).has_gold, examples))

    def score(self, examples: Sequence[Any], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the task's scores of the answers."""
        return self.task.scores(examples, answers)

    def read(self, path: str | Path) -> list[Any]:
        """Read the examples of a file in the task's format."""
        return read_examples(self.recipe.settings, self.facts, str(path))

    def write(self, path: str | Path, examples: Sequence[Any], answers: Sequence[Sequence[Any]]) -> None:
        """Write answers in the task's official format."""
        self.writer()(path, self.task, examples, answers)

    def writer(self) -> AnswerWriter:
        """Return the function that writes answers; raise `UsageError` if the task has no format for them."""
        write = find_task_type(self.recipe.task).write
        if write is None:
            raise UsageError(f"{task_name(self.recipe.task)} has no format for answers; omit --predictions")
        return write


def load_task(folder: str | Path, changes: Sequence[str] = ()) -> TaskModel:
    """Load the model of a run, given the run's folder or its `model`.

    `changes` are new paths of its knowledge, such as `["maps.correlation=other/words.pmi"]`; nothing else may change.
    """
    for change in changes:
        if not change.strip().startswith(_PLACES):
            raise UsageError(f"{change!r} cannot be changed after training; only these can:  {', '.join(_PLACES)}")
    folder = Path(folder)
    if not (folder / "task.json").exists():
        folder = folder / MODEL
    try:
        saved = json.loads((folder / "task.json").read_bytes())
        recipe = config.from_dict(TaskRecipe, saved["recipe"])
        facts: TaskMetadata = saved["facts"]
        head = load_file(folder / "head.safetensors")
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} has no trained task ({Path(str(error.filename)).name} is missing); give the folder of a run "
            "that wellread train has finished"
        ) from error
    except Exception as error:
        raise InputError(f"{folder} cannot be read: {error}; copy it again, or train it again") from error
    recipe = config.override(replace(recipe, encoder=replace(recipe.encoder, name=str(folder))), changes)
    tokenizer = load_tokenizer(str(folder))
    task = find_task_type(recipe.task).build(recipe.settings, facts, tokenizer)
    encoder = load_encoder(str(folder))
    if not isinstance(encoder, InfusedEncoder):
        encoder = infuse(encoder, [])
    infused = cast(InfusedEncoder, encoder)
    check_vectors(recipe, candidate_kbs(recipe))
    load_entity_tables(recipe, infused)
    give_masks(recipe, infused)
    network = EncoderWithHead(infused, task.head(infused))
    try:
        network.head.load_state_dict(head)
    except RuntimeError as error:
        raise InputError(f"{folder} has a head of another task: {error}; copy it again, or train it again") from error
    segmenter = TextTokenizer(tokenizer, longest=recipe.encoder.longest)
    return TaskModel(recipe, facts, task, network.eval(), segmenter, build_provider(recipe, tokenizer))


def _save(folder: Path, model: torch.nn.Module, tokenizer: Tokenizer, recipe: TaskRecipe, facts: TaskMetadata) -> None:
    """Write a model to a temporary folder, then move it to its place."""
    part = folder.with_name(f".{folder.name}.part")
    network = cast(EncoderWithHead, model)
    merge_adapters(network.encoder)
    with storage(folder):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with silence():
            cast(PreTrainedModel, network.encoder).save_pretrained(part)
        head = {name: tensor.detach().cpu().contiguous() for name, tensor in network.head.state_dict().items()}
        save_file(head, part / "head.safetensors")
        save_tokenizer(tokenizer, part, network.encoder.config)
        if "luke" in recipe.infusions:
            vocabulary_of(recipe).save(part)
        names = candidate_kbs(recipe)
        final = replace(recipe, offers=candidate_options(recipe, names))
        if recipe.senses.definitions and recipe.task == "senses":
            final = save_defined_vectors(final, recipe.senses.kb, network.encoder, tokenizer, part)
        trained_on = replace(final, encoder=replace(final.encoder, name=str(part)))
        described = describe_vectors(trained_on, names)
        saved_task = {"recipe": config.to_dict(final), "facts": dict(facts), "vectors": described}
        (part / "task.json").write_text(json.dumps(saved_task, indent=2, ensure_ascii=False) + "\n", "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
