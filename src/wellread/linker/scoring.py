"""The link scorer: the probability that a link is right, from the features of its span. Plain numpy.

Gradient-boosted trees, kept as arrays. Every tree has the same number of levels, so that all trees are walked at once:
a level costs a few look-ups for all spans, whatever the trees say.

The scorer is trained over several knowledge bases and kinds of text (`training.link_scorer`); its probabilities are
calibrated there, so that 0.8 means right four times in five for a question as for an abstract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from wellread.errors import InputError
from wellread.linker.decoding import Floats
from wellread.linker.features import FEATURES, Matrix

SCORER = "scorer.safetensors"
"""The file in a model's folder."""

_AT_ONCE = 512
"""Spans that are walked together: what fits the processor's cache."""


@dataclass(frozen=True, slots=True)
class LinkScorer:
    """Trees over features; a logit is the sum of the leaves reached, scaled and shifted."""

    feature: NDArray[np.int16]
    """[tree, node] column that a node tests; nodes are in heap order, children of n at 2n + 1 and 2n + 2."""
    border: NDArray[np.float32]
    """[tree, node] a span goes right where its feature is more than this."""
    leaf: NDArray[np.float32]
    """[tree, leaf] what a leaf adds to the logit."""
    scale: float = 1.0
    shift: float = 0.0
    threshold: float = 0.5
    """The probability from which on a link is given, unless another is asked for."""
    about: str = "{}"
    """JSON: data, scores, versions."""

    @property
    def levels(self) -> int:
        """Decisions from the root of a tree to a leaf."""
        return int(self.leaf.shape[1]).bit_length() - 1

    def logits(self, rows: Matrix) -> Floats:
        """Return the logit of each row of features."""
        found = np.empty(len(rows))
        for begin in range(0, len(rows), _AT_ONCE):
            found[begin : begin + _AT_ONCE] = self._walk(rows[begin : begin + _AT_ONCE])
        return found * self.scale + self.shift

    def probabilities(self, rows: Matrix) -> Floats:
        """Return the probability that each link is right."""
        return np.asarray(1 / (1 + np.exp(-np.clip(self.logits(rows), -30, 30))))

    def _walk(self, rows: Matrix) -> Floats:
        trees = np.arange(len(self.leaf))
        inner = self.feature.shape[1]
        feature, border = self.feature.ravel(), self.border.ravel()
        base = trees * inner
        node = np.zeros((len(rows), len(trees)), np.int64)
        own = (np.arange(len(rows)) * rows.shape[1])[:, None]
        flat = rows.ravel()
        for _ in range(self.levels):
            at = node + base
            node = 2 * node + 1 + (flat[own + feature[at]] > border[at])
        return np.asarray(self.leaf[trees, node - inner].sum(1), np.float64)

    def calibrated(self, scale: float, shift: float, threshold: float | None = None) -> LinkScorer:
        """Return the same trees with another calibration on top of this one."""
        return LinkScorer(
            self.feature,
            self.border,
            self.leaf,
            self.scale * scale,
            self.shift * scale + shift,
            self.threshold if threshold is None else threshold,
            self.about,
        )

    def save(self, path: Path) -> None:
        """Write the scorer as safetensors."""
        about = {
            "format": "wellread link scorer 1",
            "features": json.dumps(FEATURES),
            "scale": repr(self.scale),
            "shift": repr(self.shift),
            "threshold": repr(self.threshold),
            "about": self.about,
        }
        save_file({"feature": self.feature, "border": self.border, "leaf": self.leaf}, path, about)

    @classmethod
    def load(cls, path: Path) -> LinkScorer:
        """Read a scorer; one that was trained with other features is refused."""
        try:
            with safe_open(path, "numpy") as file:
                about: Mapping[str, str] = file.metadata() or {}
                arrays: dict[str, Any] = {name: file.get_tensor(name) for name in ("feature", "border", "leaf")}
            if tuple(json.loads(about["features"])) != FEATURES:
                raise InputError(
                    f"{path} was trained with other features than this version computes; adapt or train the linker "
                    "again with this version"
                )
            numbers = [float(about[name]) for name in ("scale", "shift", "threshold")]
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{path} is not a link scorer ({error}); copy or train the model again") from error
        return cls(arrays["feature"], arrays["border"], arrays["leaf"], *numbers, about.get("about", "{}"))


def scorer_of(folder: Path) -> LinkScorer | None:
    """Return the scorer in a model's folder; None where it has none."""
    path = folder / SCORER
    return LinkScorer.load(path) if path.is_file() else None
