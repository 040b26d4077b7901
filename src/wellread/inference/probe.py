"""Models with a masked language model head: runs, pretrained models, and encoders whose checkpoint has a head.

    with ExitStack() as stack:
        prober = load_prober("runs/knowbert", stack)
        scores = prober.ask(Masking(prober.tokenizer), texts)

The knowledge of a pretrained model with knowledge layers is loaded as its folder describes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from wellread.encoders.files import find_encoder, load_tokenizer, positions_of
from wellread.encoders.infusion.infuse import InfusedEncoder, infuse
from wellread.encoders.load import load_encoder
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
"""Maximum tokens of a sentence, for an encoder that is not a run."""


@dataclass(frozen=True, slots=True)
class Prober:
    """Model with a masked language model head."""

    name: str
    network: EncoderWithHead
    segmenter: TextTokenizer
    provider: Any
    words: Collection[str]
    """Words that may be answers."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model."""
        return self.segmenter.tokenizer

    def ask(self, task: Task[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Return the scores of its answers to the examples of a masked-word task."""
        return task.scores(examples, ask(task, self.network, self.segmenter, examples, provider=self.provider))


def is_run(model: str | Path) -> bool:
    """Return True for the folder of a task's run, or its `model`; False for an encoder."""
    folder = Path(model)
    if _pretrained(folder) is not None:
        return False
    return (
        any((place / "task.json").exists() for place in (folder, folder / MODEL)) or (folder / "recipe.toml").exists()
    )


def _pretrained(folder: Path) -> Path | None:
    """Return the model in the folder of a pretraining run."""
    task, knowledge = (folder / MODEL / name for name in MANIFESTS)
    return folder / MODEL if knowledge.is_file() and not task.exists() else None


def load_prober(model: str | Path, stack: ExitStack, changes: Sequence[str] = ()) -> Prober:
    """Load a run with task "masking" or "lama", a pretraining run, or an encoder whose checkpoint has a head.

    `changes` are new paths of a run's knowledge, as in `load_task`; an encoder has none. `stack` closes the knowledge
    bases that are opened.
    """
    if is_run(model):
        return prober_of(model, load_task(model, changes))
    name = str(_pretrained(Path(model)) or model)
    tokenizer, encoder = load_tokenizer(name), load_encoder(name)
    infusions = getattr(encoder, "infusions", ())
    if not all(isinstance(part, KnowBert) for part in infusions):
        kinds = dict.fromkeys(str(each["kind"]) for each in encoder.config.infusions)
        # The folder does not describe its knowledge, and without it the answers would be those of another model.
        raise UsageError(
            f"{model} takes knowledge ({', '.join(kinds)}), but its folder does not describe the source; "
            f'give its run, or train one with a recipe with task = "masking" and encoder.name = "{model}"'
        )
    if not len(infusions):
        encoder = infuse(encoder, [])
    head = WordHead(cast(InfusedEncoder, encoder))
    if not load_word_head(head, name):
        raise InputError(
            f"{model} has no masked language model head; train one with a recipe that has "
            f'task = "masking" and encoder.name = "{model}", and give that run'
        )
    provider = load_knowbert_provider(find_encoder(name), encoder, stack)
    segmenter = TextTokenizer(tokenizer, longest=min(LONGEST, positions_of(name)))
    network = EncoderWithHead(cast(InfusedEncoder, encoder), head).eval()
    return Prober(str(model), network, segmenter, provider, words_of(tokenizer))


def prober_of(model: str | Path, made: TaskModel) -> Prober:
    """Return a loaded run as a prober."""
    if not isinstance(made.network.head, WordHead):
        raise UsageError(
            f"{model} was trained for {made.recipe.task}, which has no masked language model head; give a run with "
            'task = "masking", or an encoder whose checkpoint has such a head'
        )
    words = made.task.words if isinstance(made.task, Probing) else words_of(made.segmenter.tokenizer)
    return Prober(str(model), made.network, made.segmenter, made.provider, words)
