"""The learner of every task: examples in batches of like length, lent their knowledge, read, and answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellread.data.batches import Lazy, by_length, cut_groups
from wellread.encoders.infusion.providers import Lenders, Lends
from wellread.errors import InputError, UsageError
from wellread.models.kam.inputs import Lender
from wellread.models.kam.model import Kam
from wellread.tasks.task import Batch, Draws, Reader, Task, as_tensors, make_batch
from wellread.text.segments import Segmented, Segmenter

_AT_ONCE = 4096
"""Pieces that are read together where nothing is learned."""


class TaskLearner:
    """What the loop trains: a reader on a task's examples, scored on its development examples."""

    def __init__(
        self,
        task: Task[Any],
        model: Reader,
        segmenter: Segmenter,
        examples: Sequence[Any],
        dev: Sequence[Any],
        *,
        lender: Lends | None = None,
        notes: str | Path | None = None,
        batch: int = 16,
        seed: int = 0,
    ) -> None:
        """`lender` lends knowledge to every batch; `notes` is the folder where its annotations are kept."""
        self.task, self.model, self.score, self.batch, self.seed = task, model, task.score, batch, seed
        self.lender, self._folder = lender, notes
        self.examples, self.cut = _usable(examples, task.cut(segmenter, examples, learning=True))
        self.dev, self.dev_cut = list(dev), task.cut(segmenter, dev, learning=False)
        _check_maps(model, lender)
        self._lending = _Lending.of(lender, [*self.cut, *self.dev_cut], notes)

    @property
    def notes(self) -> Any:
        """What is known of the texts."""
        return self._lending.notes

    def batches(self, epoch: int) -> Sequence[Batch]:
        """Examples of like length together, in an order of their own for every epoch."""
        draw = np.random.default_rng((self.seed, epoch))
        lengths = [sum(map(len, some)) for some in self.cut]
        groups = by_length(lengths, draw, examples=self.batch)
        return Lazy(
            groups, lambda group: _collate(self.task, self.examples, self.cut, group, self._lending, learning=True)
        )

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """The task's, and those of infusions that learn something by themselves."""
        states, batch, losses = self.model.read(batch)
        return {**self.task.loss(self.model.head, states, batch), **losses}

    def evaluate(self) -> dict[str, float]:
        """The task's scores on the development examples."""
        return self.task.scores(self.dev, _answers(self.task, self.model, self.dev, self.dev_cut, self._lending))

    def answer(self, segmenter: Segmenter, examples: Sequence[Any]) -> list[list[Any]]:
        """The answers to the inputs of other examples."""
        return ask(self.task, self.model, segmenter, examples, lender=self.lender, notes=self._folder)


def ask(
    task: Task[Any],
    model: Reader,
    segmenter: Segmenter,
    examples: Sequence[Any],
    *,
    lender: Lends | None = None,
    notes: str | Path | None = None,
) -> list[list[Any]]:
    """What a reader answers to the inputs of each example, as it is at rest: what `Task.scores` takes."""
    _check_maps(model, lender)
    cut = task.cut(segmenter, examples, learning=False)
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        return _answers(task, model, examples, cut, _Lending.of(lender, cut, notes))
    finally:
        for part, mode in modes:
            part.training = mode


def _check_maps(model: Reader, lender: Lends | None) -> None:
    """Whether an encoder that fuses maps is lent those, in their order; a lender of another make is trusted."""
    fused = next((part.config.maps for part in model.modules() if isinstance(part, Kam) and part.on), ())
    lenders = lender.lenders if isinstance(lender, Lenders) else () if lender is None else (lender,)
    lent = next((tuple(one.name for one in each.maps) for each in lenders if isinstance(each, Lender)), None)
    if (fused and not lenders) or (lent is not None and lent != fused):
        wanted, there = (", ".join(names or ()) or "none" for names in (fused, lent))
        raise UsageError(
            f"the encoder fuses the maps {wanted} and is lent {there}; give a lender of those, in their order"
        )


@dataclass(frozen=True, slots=True)
class _Lending:
    """A lender and what it knows of the texts; none lends nothing."""

    lender: Lends | None
    notes: Any

    @classmethod
    def of(cls, lender: Lends | None, cut: Sequence[Sequence[Segmented]], folder: str | Path | None) -> _Lending:
        if lender is None:
            return cls(None, None)
        return cls(lender, lender.annotate([one for some in cut for one in some], cache=folder))

    def lend(self, inputs: Sequence[Segmented], *, learning: bool = False) -> dict[str, Any]:
        """What is told of hidden words may be left to chance where one learns."""
        if self.lender is None:
            return {}
        hides = learning and any(one.hidden or not all(one.words) for one in inputs)
        draw = np.random.default_rng(int(torch.randint(1 << 62, ()))) if hides else None
        told: dict[str, Any] = as_tensors(self.lender.told(inputs, self.notes, draw=draw))
        return told


def _answers(
    task: Task[Any], model: Reader, examples: Sequence[Any], cut: Sequence[Sequence[Segmented]], lending: _Lending
) -> list[list[Any]]:
    answers: list[list[Any]] = [[] for _ in examples]
    device = next(model.parameters()).device
    with torch.no_grad():
        for group, batch in _reading(task, examples, cut, lending):
            states, batch, _ = model.read(batch.to(device))
            found = task.answers(model.head, states, batch)
            for example, answer in zip(batch.example_of.tolist(), found, strict=True):
                answers[group[example]].append(answer)
    return answers


def _reading(
    task: Task[Any], examples: Sequence[Any], cut: Sequence[Sequence[Segmented]], lending: _Lending
) -> Iterator[tuple[list[int], Batch]]:
    lengths = [sum(map(len, some)) for some in cut]
    order = sorted((place for place in range(len(examples)) if lengths[place]), key=lengths.__getitem__)
    for group in cut_groups(lengths, order, pieces=_AT_ONCE):
        yield group, _collate(task, examples, cut, group, lending, learning=False)


def _collate(
    task: Task[Any],
    examples: Sequence[Any],
    cut: Sequence[Sequence[Segmented]],
    group: Sequence[int],
    lending: _Lending,
    *,
    learning: bool,
) -> Batch:
    chosen = [examples[place] for place in group]
    inputs = [cut[place] for place in group]
    if isinstance(task, Draws):
        inputs = [task.draw(one, some, learning=learning) for one, some in zip(chosen, inputs, strict=True)]
    lent = lending.lend([one for some in inputs for one in some], learning=learning)
    return task.prepare(make_batch(chosen, inputs, lent), learning=learning)


def _usable(examples: Sequence[Any], cut: Sequence[list[Segmented]]) -> tuple[list[Any], list[list[Segmented]]]:
    """Examples that have something to learn from; a task gives those that have not no inputs."""
    there = [place for place, some in enumerate(cut) if some]
    if not there:
        raise InputError("no example is left to learn from; is the file empty, or are all its texts too long?")
    return [examples[place] for place in there], [cut[place] for place in there]
