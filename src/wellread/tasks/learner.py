"""Learner of any task: batches of examples with their knowledge, losses, answers and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellread.data.batches import Lazy, by_length, split_groups
from wellread.encoders.infusion.providers import CombinedProvider, KnowledgeProvider
from wellread.errors import InputError, UsageError
from wellread.models.kam.inputs import KamProvider
from wellread.models.kam.model import Kam
from wellread.tasks.task import Batch, Draws, EncoderWithHead, Task, as_tensors, make_batch
from wellread.text.tokenization import TextTokenizer, Tokenization

_AT_ONCE = 4096
"""Tokens per batch in inference."""


class TaskLearner:
    """Model with a task's training and validation examples, as the training loop takes it."""

    def __init__(
        self,
        task: Task[Any],
        model: EncoderWithHead,
        segmenter: TextTokenizer,
        examples: Sequence[Any],
        dev: Sequence[Any],
        *,
        provider: KnowledgeProvider | None = None,
        notes: str | Path | None = None,
        batch: int = 16,
        seed: int = 0,
    ) -> None:
        """Tokenize the examples; `provider` adds knowledge to every batch, `notes` is its annotation cache."""
        self.task, self.model, self.score, self.batch, self.seed = task, model, task.score, batch, seed
        self.provider, self._folder = provider, notes
        self.examples, self.tokenized = _usable(examples, task.tokenize(segmenter, examples, learning=True))
        self.dev, self.dev_tokenized = list(dev), task.tokenize(segmenter, dev, learning=False)
        _check_maps(model, provider)
        self._prepared = _PreparedProvider.of(provider, [*self.tokenized, *self.dev_tokenized], notes)

    @property
    def notes(self) -> Any:
        """Annotations of the texts by the knowledge provider."""
        return self._prepared.notes

    def batches(self, epoch: int) -> Sequence[Batch]:
        """Return batches of examples of similar length, shuffled for each epoch."""
        draw = np.random.default_rng((self.seed, epoch))
        lengths = [sum(map(len, some)) for some in self.tokenized]
        groups = by_length(lengths, draw, examples=self.batch)
        return Lazy(
            groups,
            lambda group: _collate(self.task, self.examples, self.tokenized, group, self._prepared, learning=True),
        )

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the task's losses, and those of infusions with a loss of their own."""
        states, batch, losses = self.model.read(batch)
        return {**self.task.loss(self.model.head, states, batch), **losses}

    def evaluate(self) -> dict[str, float]:
        """Return the task's scores on the validation examples."""
        return self.task.scores(self.dev, _answers(self.task, self.model, self.dev, self.dev_tokenized, self._prepared))

    def answer(self, segmenter: TextTokenizer, examples: Sequence[Any]) -> list[list[Any]]:
        """Return the answers to the inputs of other examples."""
        return ask(self.task, self.model, segmenter, examples, provider=self.provider, notes=self._folder)


def ask(
    task: Task[Any],
    model: EncoderWithHead,
    segmenter: TextTokenizer,
    examples: Sequence[Any],
    *,
    provider: KnowledgeProvider | None = None,
    notes: str | Path | None = None,
) -> list[list[Any]]:
    """Return a model's answers to the inputs of each example, in evaluation mode, as `Task.scores` takes them."""
    _check_maps(model, provider)
    tokenized = task.tokenize(segmenter, examples, learning=False)
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        return _answers(task, model, examples, tokenized, _PreparedProvider.of(provider, tokenized, notes))
    finally:
        for part, mode in modes:
            part.training = mode


def _check_maps(model: EncoderWithHead, provider: KnowledgeProvider | None) -> None:
    """Raise `UsageError` if a KAM provider does not have the maps that the encoder fuses, in order."""
    fused = next((part.config.maps for part in model.modules() if isinstance(part, Kam) and part.on), ())
    providers = (
        provider.providers if isinstance(provider, CombinedProvider) else () if provider is None else (provider,)
    )
    provided = next((tuple(one.name for one in each.maps) for each in providers if isinstance(each, KamProvider)), None)
    if (fused and not providers) or (provided is not None and provided != fused):
        wanted, there = (", ".join(names or ()) or "none" for names in (fused, provided))
        raise UsageError(
            f"the encoder fuses the maps {wanted} but the provider has {there}; give one of these maps, in order"
        )


@dataclass(frozen=True, slots=True)
class _PreparedProvider:
    """Knowledge provider with its annotations of the texts; without a provider, no knowledge."""

    provider: KnowledgeProvider | None
    notes: Any

    @classmethod
    def of(
        cls, provider: KnowledgeProvider | None, tokenized: Sequence[Sequence[Tokenization]], folder: str | Path | None
    ) -> _PreparedProvider:
        if provider is None:
            return cls(None, None)
        return cls(provider, provider.prepare([one for some in tokenized for one in some], cache=folder))

    def build_inputs(self, inputs: Sequence[Tokenization], *, learning: bool = False) -> dict[str, Any]:
        """Return the knowledge inputs as tensors; in training, knowledge of masked words is randomised."""
        if self.provider is None:
            return {}
        hides = learning and any(one.hidden or not all(one.words) for one in inputs)
        draw = np.random.default_rng(int(torch.randint(1 << 62, ()))) if hides else None
        tensors: dict[str, Any] = as_tensors(self.provider.collate(inputs, self.notes, draw=draw))
        return tensors


def _answers(
    task: Task[Any],
    model: EncoderWithHead,
    examples: Sequence[Any],
    tokenized: Sequence[Sequence[Tokenization]],
    prepared: _PreparedProvider,
) -> list[list[Any]]:
    answers: list[list[Any]] = [[] for _ in examples]
    device = next(model.parameters()).device
    with torch.no_grad():
        for group, batch in _batches(task, examples, tokenized, prepared):
            states, batch, _ = model.read(batch.to(device))
            found = task.answers(model.head, states, batch)
            for example, answer in zip(batch.example_of.tolist(), found, strict=True):
                answers[group[example]].append(answer)
    return answers


def _batches(
    task: Task[Any], examples: Sequence[Any], tokenized: Sequence[Sequence[Tokenization]], prepared: _PreparedProvider
) -> Iterator[tuple[list[int], Batch]]:
    lengths = [sum(map(len, some)) for some in tokenized]
    order = sorted((place for place in range(len(examples)) if lengths[place]), key=lengths.__getitem__)
    for group in split_groups(lengths, order, tokens=_AT_ONCE):
        yield group, _collate(task, examples, tokenized, group, prepared, learning=False)


def _collate(
    task: Task[Any],
    examples: Sequence[Any],
    tokenized: Sequence[Sequence[Tokenization]],
    group: Sequence[int],
    prepared: _PreparedProvider,
    *,
    learning: bool,
) -> Batch:
    chosen = [examples[place] for place in group]
    inputs = [tokenized[place] for place in group]
    if isinstance(task, Draws):
        inputs = [task.draw(one, some, learning=learning) for one, some in zip(chosen, inputs, strict=True)]
    provided = prepared.build_inputs([one for some in inputs for one in some], learning=learning)
    return task.prepare(make_batch(chosen, inputs, provided), learning=learning)


def _usable(
    examples: Sequence[Any], tokenized: Sequence[list[Tokenization]]
) -> tuple[list[Any], list[list[Tokenization]]]:
    """Return the examples that have inputs; a task gives none for examples that cannot be trained on."""
    there = [place for place, some in enumerate(tokenized) if some]
    if not there:
        raise InputError("no example is left to train on; is the file empty, or are all its texts too long?")
    return [examples[place] for place in there], [tokenized[place] for place in there]
