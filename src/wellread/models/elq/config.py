"""Configuration of ELQ models, without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from wellread import config as settings
from wellread.errors import InputError
from wellread.io.files import write_atomically
from wellread.models.folder import LINKER

WEIGHTS = "model.safetensors"

FEATURES = ("named", "log_prior")
"""Features of a candidate by name: 1 if the mention is one of its aliases, and the log prior of that alias."""


@dataclass(frozen=True, slots=True)
class ElqConfig:
    """Configuration of an ELQ model, saved as `config.json` beside its weights."""

    encoder: str = "minilm"
    """Text encoder: name of an asset, folder, or name on the Hugging Face hub."""
    entity_encoder: str | None = None
    """Entity encoder; None: the text encoder before training."""
    pooling: Literal["mean", "cls"] = "mean"
    """Pooling of an entity's tokens to its vector."""
    normalised: bool = True
    """Compare mentions and entities by cosine, times a learned scale, instead of by dot product."""
    separator: str = ": "
    """Separator between an entity's title and its description."""
    entity_pieces: int = 64
    """Maximum number of tokens of an entity; further ones are truncated."""
    longest: int = 10
    """Maximum number of tokens of a mention."""
    rank: int = 32
    """Rank of the text encoder's LoRA adapters; 0: all its weights are trained."""
    names: bool = True
    """Use aliases and priors of the KB in the scores of candidates."""
    trust: float = 0.0
    """Added at inference to the score of a candidate that has the mention as an alias. Higher values suit distinctive
    names (a catalogue), lower values texts with many names of entities that the KB does not have."""
    context: float = 0.0
    """Weight of a window's normalised mean state, which is added to the vectors of its mentions, so that entities
    with a description similar to the context score higher."""
    nil: bool = True
    """Include NIL ("none of the candidates") in the softmax."""
    whole_words: bool = True
    """Allow only mentions that begin and end at word boundaries."""
    calibration: tuple[float, float] = (1.0, 0.0)
    """Scale and shift that calibrate the scores of links (`linking.decoding.Calibration`)."""
    threshold: float = 0.5
    """Calibrated score with the best F1 on the validation data."""
    window: int | None = None
    """Maximum number of tokens of a window with [CLS] and [SEP], if the encoder was trained with fewer than 192."""
    precision: Literal["auto", "fp32", "int8"] = "auto"
    """Default precision of the text encoder; fp32 for converted models."""

    @classmethod
    def read(cls, folder: Path) -> ElqConfig:
        """Read the `config.json` in a folder; encoders that begin with "./" are relative to the folder."""
        try:
            data = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{folder} has no linker: {error}; give a folder written by wellread train linker"
            ) from error
        if isinstance(data, dict):
            data.pop("model_type", None)
        return settings.from_dict(cls, data)._with_encoders(lambda name: _absolute_name(folder, name))

    def write(self, folder: Path) -> None:
        """Write the `config.json` in a folder; encoders in the folder get relative paths, so that it can be moved."""
        portable = self._with_encoders(lambda name: _relative_name(folder, name))
        with write_atomically(folder / "config.json") as file:
            file.write(json.dumps({"model_type": LINKER, **asdict(portable)}, indent=2).encode() + b"\n")

    def _with_encoders(self, rename: Callable[[str], str]) -> ElqConfig:
        entity_encoder = None if self.entity_encoder is None else rename(self.entity_encoder)
        return replace(self, encoder=rename(self.encoder), entity_encoder=entity_encoder)


def _absolute_name(folder: Path, name: str) -> str:
    return str((folder / name).resolve()) if name.startswith("./") else name


def _relative_name(folder: Path, name: str) -> str:
    # "./" in a recipe is relative to the current directory.
    path, root = Path(_absolute_name(Path(), name)), folder.resolve()
    return f"./{path.relative_to(root).as_posix()}" if path.is_relative_to(root) else _absolute_name(Path(), name)
