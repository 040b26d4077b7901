"""Several tasks of one model, learned side by side: every batch is wholly of one of them, in given proportions.

The order is no chance: the task that is farthest behind its share comes next, so that after any number of batches each
has had its share but for a batch. Each task goes through its own examples again and again, in an order of its own for
every round. What the n-th batch is follows from n alone, so a run that is killed goes on with the same batches.
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
    """A batch, and which of the tasks it is of."""

    part: str
    batch: Batch

    @property
    def tokens(self) -> int:
        """How many pieces it has."""
        return self.batch.tokens

    def to(self, device: torch.device) -> PartBatch:
        """The same on a device."""
        return PartBatch(self.part, self.batch.to(device))


class Mixture:
    """What the loop trains: the learners of several tasks, by name, that have one model."""

    def __init__(
        self, parts: Mapping[str, TaskLearner], shares: Mapping[str, float], losses: Sequence[str], *, score: str
    ) -> None:
        """`shares` are those of all batches, `losses` the names of all losses; `score` is one like "words.accuracy".

        A round of the first task is an epoch. All losses are told of every batch, as 0 where it has none of them: what
        a log says of one is its mean over all batches, not over those of its task.
        """
        self.parts, self.losses, self.score = dict(parts), tuple(losses), score
        if not parts or parts.keys() != shares.keys():
            raise UsageError(f"there are tasks {', '.join(parts)} and shares of {', '.join(shares)}; give each a share")
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
        """The one that all tasks share."""
        return next(iter(self.parts.values())).model

    def batches(self, epoch: int) -> Sequence[PartBatch]:
        """Batches of all tasks; those that come after the ones of the epochs before."""
        many = math.ceil(self._sizes[0] / self.shares[0])
        groups = self.order((epoch + 1) * many)[epoch * many :]
        return Lazy(groups, self._batch)

    def order(self, many: int) -> list[tuple[int, int]]:
        """Of the first so many batches, the number of the task and of the batch among all of that task."""
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
        """The losses of its task."""
        found = self.parts[batch.part].loss(batch.batch)
        if unknown := found.keys() - set(self.losses):
            raise UsageError(f"{batch.part} has a loss {min(unknown)!r}; the losses are to be {', '.join(self.losses)}")
        nothing = next(iter(found.values())).new_zeros(())
        return {name: found.get(name, nothing) for name in self.losses}

    def evaluate(self) -> dict[str, float]:
        """The scores of all tasks, as in "words.accuracy"."""
        return {
            f"{name}.{score}": value for name, part in self.parts.items() for score, value in part.evaluate().items()
        }
