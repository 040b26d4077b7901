"""Training schedule: the part of every recipe that the loop reads; free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from wellread.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """Settings of a training; runs with the same schedule, data and model end with the same weights."""

    epochs: float | None = None
    """Number of epochs; give this or `steps`."""
    steps: int | None = None
    """Number of optimizer steps; give this or `epochs`."""
    learning_rate: float = 3e-5
    """Peak learning rate, after warm-up."""
    rates: dict[str, float] = field(default_factory=dict)
    """Other learning rates, by prefix of the weight names: {"mention_head": 1e-3}."""
    weight_decay: float = 0.01
    """Weight decay of matrices; biases, norms and kernels (which start as the identity) have none."""
    eps: float | None = None
    """Epsilon of AdamW; 1e-8 by default (LUKE's authors: 1e-6)."""
    warmup: float = 0.1
    """Share of the steps with linearly increasing rate; then it decreases linearly to 0."""
    clip: float = 1.0
    """Maximum norm of the gradient over all weights."""
    accumulate: int = 1
    """Batches per step, over all processes: with 4, 1, 2 or 4 processes give the same result."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the forward pass; weights and optimizer state stay in fp32."""
    seed: int = 0
    evaluate_every: int | None = None
    """Steps between evaluations; by default one epoch. The last step is always evaluated."""
    patience: int | None = None
    """Stop after this many evaluations without improvement; by default never."""

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UsageError(f"epochs is {self.epochs} and steps is {self.steps}; give one of the two")
        for name in ("epochs", "steps", "learning_rate", "eps", "clip", "accumulate", "evaluate_every", "patience"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} is {value}; expected more than 0")
        for name, rate in self.rates.items():
            if not 0 <= rate < math.inf:
                raise UsageError(f"the rate of {name!r} is {rate}; expected 0 or more")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"warmup is {self.warmup}; expected a share of the steps, from 0 to 1")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"weight_decay is {self.weight_decay}; expected 0 or more")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; expected 0 or more")

    def total(self, batches: int) -> int:
        """Return the number of steps, given the batches of an epoch."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * batches / self.accumulate))

    def share(self, step: int, total: int) -> float:
        """Return the share of the learning rate in a step (from 1): warm-up to 1, then decay; never 0.

        >>> [Schedule(steps=4, warmup=0.5).share(step, 4) for step in (1, 2, 3, 4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        climb = round(self.warmup * total)
        if step <= climb:
            return step / climb
        return (total - step + 1) / (total - climb)
