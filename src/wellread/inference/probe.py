"""Models that can be asked for words: runs that learned masked ones, pretrained models, encoders that have a head.

    with ExitStack() as stack:
        prober = load_prober("runs/knowbert", stack)
        scores = prober.ask(Masking(prober.tokenizer), texts)

What a pretrained model with knowledge layers is lent comes with it, by what its folder tells.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from wellread.encoders.infusion.infuse import InfusedEncoder, infuse
from wellread.encoders.load import find_encoder, load_encoder, load_tokenizer, positions_of
from wellread.errors import InputError, UsageError
from wellread.models.knowbert.folder import MANIFESTS
from wellread.models.knowbert.model import KnowBert
from wellread.models.knowbert.recipe import load_knowbert_provider
from wellread.tasks.lama import Probing
from wellread.tasks.learner import ask
from wellread.tasks.lm_head import WordHead, load_word_head, words_of
from wellread.tasks.task import EncoderWithHead, Task
from wellread.text.tokenization import TextTokenizer
from wellread.training.task import MODEL, TaskModel, load_task

LONGEST = 512
"""Pieces of a sentence at most, for an encoder that is no run."""


@dataclass(frozen=True, slots=True)
class Prober:
    """A model that can be asked for words."""

    name: str
    network: EncoderWithHead
    segmenter: TextTokenizer
    provider: Any
    words: Collection[str]
    """Those that may be its answers."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self.segmenter.tokenizer

    def ask(self, task: Task[Any], examples: Sequence[Any]) -> dict[str, float]:
        """The scores of its answers to the examples of a task of masked words."""
        return task.scores(examples, ask(task, self.network, self.segmenter, examples, provider=self.provider))


def is_run(model: str | Path) -> bool:
    """Whether this is the folder of a task's run, or its `model`; else it is an encoder."""
    folder = Path(model)
    if _pretrained(folder) is not None:
        return False
    return (
        any((place / "task.json").exists() for place in (folder, folder / MODEL)) or (folder / "recipe.toml").exists()
    )


def _pretrained(folder: Path) -> Path | None:
    """The model in the folder of a run that pretrained it."""
    task, knowledge = (folder / MODEL / name for name in MANIFESTS)
    return folder / MODEL if knowledge.is_file() and not task.exists() else None


def load_prober(model: str | Path, stack: ExitStack, changes: Sequence[str] = ()) -> Prober:
    """A run whose task is "masking" or "lama", one of pretraining, or an encoder whose checkpoint has a head.

    `changes` say where a run's knowledge lies now, as those of `load_task`; an encoder has none. `stack` closes the
    knowledge bases that are looked in.
    """
    if is_run(model):
        return prober_of(model, load_task(model, changes))
    name = str(_pretrained(Path(model)) or model)
    tokenizer, encoder = load_tokenizer(name), load_encoder(name)
    infusions = getattr(encoder, "infusions", ())
    if not all(isinstance(part, KnowBert) for part in infusions):
        learned = dict.fromkeys(str(each["kind"]) for each in encoder.config.infusions)
        # Nothing in such a folder says what lends it knowledge, and without that another model would answer.
        raise UsageError(
            f"{model} takes knowledge ({', '.join(learned)}), and does not say where that comes from; "
            f'give the run that it is of, or train one, by a recipe with task = "masking" and encoder.name = "{model}"'
        )
    if not len(infusions):
        encoder = infuse(encoder, [])
    head = WordHead(cast(InfusedEncoder, encoder))
    if not load_word_head(head, name):
        raise InputError(
            f"{model} has no head for masked words, so it cannot be asked for any; train one, by a recipe with "
            f'task = "masking" and encoder.name = "{model}", and give its run'
        )
    provider = load_knowbert_provider(find_encoder(name), encoder, stack)
    segmenter = TextTokenizer(tokenizer, longest=min(LONGEST, positions_of(name)))
    network = EncoderWithHead(cast(InfusedEncoder, encoder), head).eval()
    return Prober(str(model), network, segmenter, provider, words_of(tokenizer))


def prober_of(model: str | Path, made: TaskModel) -> Prober:
    """A run that is loaded already, to be asked for words."""
    if not isinstance(made.network.head, WordHead):
        raise UsageError(
            f"{model} was trained for {made.recipe.task}, and cannot be asked for words; give a run with "
            'task = "masking", or an encoder that has a head for masked words'
        )
    words = made.task.words if isinstance(made.task, Probing) else words_of(made.segmenter.tokenizer)
    return Prober(str(model), made.network, made.segmenter, made.provider, words)
