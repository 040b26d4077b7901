"""Cost of an arm: weights, time of a training step, and memory of a step.

Runs of a comparison happen at different times under different load, so their durations are not comparable. Here the
arms take turns, step by step, on the same batches, and the median over steps is reported. A step is all that the loop
does with one batch: collate, forward in the schedule's precision, backward, clip, AdamW.

Memory is computed, not measured, since process memory on a CPU depends on the allocator: weights, gradients, AdamW's
two moments, and every tensor that the forward pass saves for the backward pass, once each. Temporary buffers are not
counted. The arms share the backbone's weights during the measurement, so that many arms fit in memory; the weights are
counted for each arm.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wellread.tasks.learner import TaskLearner
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.registry import find_task_type, read_parts
from wellread.training.compare.tables import Cost
from wellread.training.loop import seed_all
from wellread.training.optimizer import build_optimizer
from wellread.training.schedule import Schedule
from wellread.training.task import build_learner

_BATCHES = 4
"""Number of batches to measure, from the first examples."""


def measure_costs(arms: Mapping[str, TaskRecipe], notes: str | Path | None, *, rounds: int = 3) -> dict[str, Cost]:
    """Return the costs of the arms of one task, each step measured in turn with the others."""
    learners = _learners(arms, notes)
    weights = {f"{arm}/{name}": part for arm, one in learners.items() for name, part in _trained(one.model).items()}
    schedule = replace(next(iter(arms.values())).schedule, rates={})
    optimizer, _ = build_optimizer(_once(weights), schedule)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # shared weights must not change; the cost is the same
    seconds: dict[str, list[float]] = {arm: [] for arm in learners}
    kept = dict.fromkeys(learners, 0)
    batches = {arm: learner.batches(0) for arm, learner in learners.items()}
    count = len(next(iter(batches.values())))
    for turn in range(rounds):
        for number in range(count):
            for arm, learner in learners.items():
                seed_all(number)
                keeping = None if turn else _Keeping(learner.model)  # the first turn counts bytes, and warms up
                begin = time.perf_counter()
                _step(learner, batches[arm], number, optimizer, arms[arm].schedule, keeping)
                if keeping is None:
                    seconds[arm].append(time.perf_counter() - begin)
                else:
                    kept[arm] = max(kept[arm], keeping.bytes)
    return {arm: _cost(learner, seconds[arm], kept[arm]) for arm, learner in learners.items()}


def _step(
    learner: TaskLearner,
    batches: Sequence[Any],
    number: int,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    keeping: _Keeping | None,
) -> None:
    batch = batches[number]
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=schedule.precision == "bf16")
    with keeping or nullcontext(), autocast:
        parts = learner.loss(batch)
    torch.stack([part.float() for part in parts.values()]).sum().backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(_trained(learner.model).values(), schedule.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _learners(arms: Mapping[str, TaskRecipe], notes: str | Path | None) -> dict[str, TaskLearner]:
    """Build learners for a few batches, with shared backbone weights."""
    first = next(iter(arms.values()))
    examples, dev = read_parts(first.settings, find_task_type(first.task).metadata(first.settings))
    parts = examples[: _BATCHES * first.batch], dev[:1]
    learners: dict[str, TaskLearner] = {}
    backbone: nn.Module | None = None
    for arm, recipe in arms.items():
        learner, _ = build_learner(recipe, notes, parts)
        if backbone is None:
            backbone = learner.model
        else:
            _share(backbone, learner.model)
        learner.model.train()
        learners[arm] = learner
    return learners


def _share(source: nn.Module, target: nn.Module) -> None:
    """Replace weights by those of another model with the same name, shape and `requires_grad`."""
    for name, weight in source.named_parameters():
        owner, _, last = name.rpartition(".")
        try:
            module = target.get_submodule(owner)
        except AttributeError:
            continue
        own = module._parameters.get(last)
        if own is not None and own.shape == weight.shape and own.requires_grad == weight.requires_grad:
            module._parameters[last] = weight


class _Keeping:
    """Counts the bytes that the forward pass saves for the backward pass, without weights."""

    def __init__(self, model: nn.Module) -> None:
        self.bytes = 0
        self._seen = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    def __enter__(self) -> _Keeping:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _once(weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Keep each weight once, under its first name."""
    return {name: weight for weight, name in reversed({weight: name for name, weight in weights.items()}.items())}


def _cost(learner: TaskLearner, seconds: Sequence[float], kept: int) -> Cost:
    model = learner.model
    every, learned = (sum(map(Tensor.numel, some)) for some in (model.parameters(), _trained(model).values()))
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    size += sum(3 * weight.numel() * weight.element_size() for weight in _trained(model).values())
    added = sum(map(Tensor.numel, model.encoder.infusions.parameters()))
    return Cost(every, learned, added, statistics.median(seconds), size + kept, kept)
