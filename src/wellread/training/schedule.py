"""How long, how fast and how carefully a model learns: the part of every recipe that the loop reads. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from wellread.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """The settings of a training; two runs with the same schedule, data and model end with the same weights."""

    epochs: float | None = None
    """How often every batch is seen; give this or `steps`."""
    steps: int | None = None
    """How many steps of the optimizer; give this or `epochs`."""
    learning_rate: float = 3e-5
    """The rate at its highest, after warm-up."""
    rates: dict[str, float] = field(default_factory=dict)
    """Other rates, by how the names of the weights begin: {"mention_head": 1e-3}."""
    weight_decay: float = 0.01
    """Of matrices; biases, norms and kernels, which start as the identity, have none."""
    eps: float | None = None
    """What AdamW adds to the size of gradients that it divides by; without it 1e-8 (LUKE's authors: 1e-6)."""
    warmup: float = 0.1
    """The share of the steps in which the rate climbs from 0; then it falls in a line to 0 at the end."""
    clip: float = 1.0
    """The longest gradient (its norm over all weights)."""
    accumulate: int = 1
    """How many batches make one step, over all processes: with 4 here, 1, 2 or 4 processes give the same result."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What the forward pass computes in; weights and the optimizer stay in fp32."""
    seed: int = 0
    evaluate_every: int | None = None
    """Steps between two evaluations; without it once an epoch. The last step is always evaluated."""
    patience: int | None = None
    """Stop after so many evaluations without a better score; without it never."""

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
        """How many steps there are when an epoch has so many batches."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * batches / self.accumulate))

    def share(self, step: int, total: int) -> float:
        """The share of the learning rate in a step (from 1): up to 1 in the warm-up, then down; never quite 0.

        >>> [Schedule(steps=4, warmup=0.5).share(step, 4) for step in (1, 2, 3, 4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        climb = round(self.warmup * total)
        if step <= climb:
            return step / climb
        return (total - step + 1) / (total - climb)
