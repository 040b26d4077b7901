"""Interface between a task and the training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from wellread.evaluation.calibration import Predictions


class Learner(Protocol):
    """Model, batches, loss and score, as the training loop takes them."""

    @property
    def model(self) -> nn.Module:
        """Model to train; the loop moves it to its device and sets train and eval mode."""
        ...

    @property
    def score(self) -> str:
        """Name of the score by which the best weights are chosen."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """Return the batches of an epoch; the same for the same epoch, so that a resumed run is identical.

        May be lazy (`__len__` and `__getitem__`). A batch is anything that `accelerate` can send to a device: tensors
        in lists, dicts, tuples, or an object with `to(device)`. Its attribute `tokens`, if any, is logged.
        """
        ...

    def loss(self, batch: Any) -> Mapping[str, Tensor]:
        """Return the parts of the loss by name, each a mean over the batch; their sum is minimised."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """Return scores on validation data, higher is better; called in eval mode without gradients."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """Learner with confidences, for which the run gets a precision-recall curve and a calibration."""

    def predictions(self) -> Predictions:
        """Return validation predictions; called once at the end, with the best weights."""
        ...
