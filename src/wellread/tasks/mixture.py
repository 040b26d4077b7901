"""Training of several tasks with one model; each batch belongs to one task, in given proportions.

The order is deterministic: the task that is farthest behind its share comes next, so after any number of batches each
task is within one batch of its share. Each task cycles through its own examples, reshuffled every round. Batch n
depends on n alone, so a resumed run gets the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellread.data.batches import Lazy
from wellread.errors import UsageError
from wellread.tasks.learner import TaskLearner
from wellread.tasks.task import Batch, EncoderWithHead


@dataclass(frozen=True, slots=True)
class PartBatch:
    """Batch and the name of its task."""

    part: str
    batch: Batch

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.batch.tokens

    def to(self, device: torch.device) -> PartBatch:
        """Return a copy on the device."""
        return PartBatch(self.part, self.batch.to(device))


class Mixture:
    """Learner of several tasks that share one model, as the training loop takes it."""

    def __init__(
        self, parts: Mapping[str, TaskLearner], shares: Mapping[str, float], losses: Sequence[str], *, score: str
    ) -> None:
        """Combine learners by name; `shares` are proportions of batches, `score` is a name such as "words.accuracy".

        `losses` are the names of all losses. Every batch reports all of them, 0 for those of other tasks, so a logged
        loss is a mean over all batches. An epoch is one round of the first task.
        """
        self.parts, self.losses, self.score = dict(parts), tuple(losses), score
        if not parts or parts.keys() != shares.keys():
            raise UsageError(
                f"tasks are {', '.join(parts)}, but shares are given for {', '.join(shares)}; give one share per task"
            )
        if any(share <= 0 for share in shares.values()):
            raise UsageError(f"the shares of batches are {dict(shares)}; expected each to be more than 0")
        total = math.fsum(shares.values())
        self.shares = [shares[name] / total for name in self.parts]
        self._names = list(self.parts)
        self._order: list[tuple[int, int]] = []
        self._counts = [0] * len(self._names)
        self._rounds: dict[int, tuple[int, Sequence[Batch]]] = {}
        self._sizes = [len(part.batches(0)) for part in self.parts.values()]

    @property
    def model(self) -> EncoderWithHead:
        """Model that all tasks share."""
        return next(iter(self.parts.values())).model

    def batches(self, epoch: int) -> Sequence[PartBatch]:
        """Return the batches of one epoch, which continue those of the epochs before."""
        many = math.ceil(self._sizes[0] / self.shares[0])
        groups = self.order((epoch + 1) * many)[epoch * many :]
        return Lazy(groups, self._batch)

    def order(self, many: int) -> list[tuple[int, int]]:
        """Return (task number, batch number within the task) of the first `many` batches."""
        while len(self._order) < many:
            behind = [
                share * (len(self._order) + 1) - count for share, count in zip(self.shares, self._counts, strict=True)
            ]
            part = behind.index(max(behind))
            self._order.append((part, self._counts[part]))
            self._counts[part] += 1
        return self._order[:many]

    def _batch(self, group: Sequence[int]) -> PartBatch:
        part, number = group
        name = self._names[part]
        now, place = divmod(number, self._sizes[part])
        if self._rounds.get(part, (-1,))[0] != now:
            self._rounds[part] = now, self.parts[name].batches(now)
        return PartBatch(name, self._rounds[part][1][place])

    def loss(self, batch: PartBatch) -> dict[str, Tensor]:
        """Return the losses of the batch's task, and 0 for all others."""
        found = self.parts[batch.part].loss(batch.batch)
        if unknown := found.keys() - set(self.losses):
            raise UsageError(
                f"{batch.part} has an undeclared loss {min(unknown)!r}; expected one of {', '.join(self.losses)}"
            )
        nothing = next(iter(found.values())).new_zeros(())
        return {name: found.get(name, nothing) for name in self.losses}

    def evaluate(self) -> dict[str, float]:
        """Return the scores of all tasks, by names such as "words.accuracy"."""
        return {
            f"{name}.{score}": value for name, part in self.parts.items() for score, value in part.evaluate().items()
        }
