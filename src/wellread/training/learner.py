"""The joint between a task and the loop: what a task must hand over to be learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from wellread.evaluation.calibration import Predictions


class Learner(Protocol):
    """What a task hands to the loop: a model, batches, a loss and a score."""

    @property
    def model(self) -> nn.Module:
        """Parameters with `requires_grad` train; the loop moves it to its device and sets train and eval mode."""
        ...

    @property
    def score(self) -> str:
        """Which of the scores of `evaluate` the best weights have most of."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch in their order: the same for the same epoch, else a resumed run would differ.

        May be lazy (`__len__` and `__getitem__`). A batch is anything that `accelerate` can send to a device: tensors
        in lists, dicts, tuples, or an object with `to(device)`. Its attribute `pieces`, if it has one, is counted.
        """
        ...

    def loss(self, batch: Any) -> Mapping[str, Tensor]:
        """The parts of the loss by name, each a mean over the batch; their sum is minimised. Always the same names."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """Scores on development data, more is better; called in eval mode without gradients."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """A learner that can also say how sure it was: then the run gets a precision-recall curve and a calibration."""

    def predictions(self) -> Predictions:
        """Development predictions, asked for once at the end, with the best weights."""
        ...
