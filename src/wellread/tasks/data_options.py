"""Options that all tasks share: files and encoder; free of torch, so that a wrong setting is reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wellread import config
from wellread.errors import InputError, UsageError
from wellread.io.files import path_name
from wellread.training.schedule import Schedule

Pooling = Literal["mean", "first", "both"]


@dataclass(frozen=True, slots=True)
class Data:
    """Files of a task, in the task's own format."""

    train: str = ""
    """Training examples, plain or compressed (the suffix .xz, .gz or .bz2 may be omitted)."""
    root: str = ""
    """Folder of `train` and `dev`; "" is the current folder."""
    dev: str | None = None
    """Validation examples in a file of their own."""
    develop: int = 0
    """Alternatively, the number of examples of `train` to validate on, selected by a hash of their text."""
    most: int | None = None
    """Maximum training examples, selected by a hash of their text; validation examples do not depend on it."""
    most_dev: int | None = None
    """Maximum number of examples of `dev`."""

    def __post_init__(self) -> None:
        if self.dev is None and self.develop < 1:
            raise UsageError('no validation data; give develop = 500, or dev = "a file"')
        if self.dev is not None and self.develop:
            raise UsageError(f"dev is {self.dev!r} and develop is {self.develop}; give one of the two")
        for name in ("most", "most_dev"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more, or leave it out")


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Encoder, and pooling of its states."""

    name: str = "minilm"
    """Name of an asset, folder in the Hugging Face layout, or hub name with its commit."""
    longest: int = 128
    """Maximum tokens of an input (one text or a pair)."""
    pooling: Pooling = "mean"
    """Pooling of an input: the `mean` of its tokens, its `first` token, or a comparison of `both` texts of a pair."""
    rank: int = 0
    """Rank of LoRA adapters, with the encoder's own weights frozen; 0 trains all weights."""

    def __post_init__(self) -> None:
        if self.longest < 8:
            raise UsageError(f"longest is {self.longest}; expected 8 tokens or more")
        if self.rank < 0:
            raise UsageError(f"rank is {self.rank}; expected 0 (train all weights) or more")


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Settings of a task's recipe that do not belong to one task or infusion."""

    batch: int = 16
    data: Data = field(default_factory=lambda: Data(develop=500))
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=3, learning_rate=5e-5))


def check_shared_settings(recipe: str | Path, changes: Sequence[str] = ()) -> None:
    """Raise the error of a wrong setting that all tasks share, before anything that needs torch is imported."""
    names = SharedSettings.__slots__
    table = config.read_table(recipe)
    try:
        settings = config.from_dict(SharedSettings, {name: table[name] for name in names if name in table})
    except InputError as error:
        raise InputError(f"{path_name(recipe)}: {error}") from None
    config.override(settings, [change for change in changes if change.partition("=")[0].partition(".")[0] in names])
