"""Link scorer: the probability that a link is right, from the features of its span. Needs only numpy.

The scorer consists of gradient-boosted trees stored as arrays. All trees have the same depth, so that they are
evaluated together: each level is a few array look-ups for all spans and trees.

The scorer is trained on several knowledge bases and kinds of text (`training.link_scorer`). Its probabilities are
calibrated there: a score of 0.8 means that 80 % of such links are right, for questions as for abstracts.
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
from safetensors.numpy import save

from wellread.errors import InputError
from wellread.io.files import write_atomically
from wellread.linking.decoding import Floats
from wellread.linking.features import FEATURES, Matrix

SCORER = "scorer.safetensors"
"""File name of the scorer in a model's folder."""

_BATCH_SPANS = 128
"""Number of spans evaluated together; their arrays fit the processor's cache."""


@dataclass(frozen=True, slots=True)
class LinkScorer:
    """Decision trees over `FEATURES`; the logit is the sum of the leaves reached, scaled and shifted."""

    feature: NDArray[np.int16]
    """[tree, node] feature column that a node tests; nodes are in heap order, children of n at 2n + 1 and 2n + 2."""
    border: NDArray[np.float32]
    """[tree, node] threshold of a node; a feature above it leads to the right child."""
    leaf: NDArray[np.float32]
    """[tree, leaf] value that a leaf adds to the logit."""
    scale: float = 1.0
    shift: float = 0.0
    threshold: float = 0.5
    """Default probability that a link must exceed."""
    about: str = "{}"
    """JSON text about the training: data, scores, versions."""

    @property
    def levels(self) -> int:
        """Depth of the trees: number of decisions from the root to a leaf."""
        return int(self.leaf.shape[1]).bit_length() - 1

    def logits(self, rows: Matrix) -> Floats:
        """Return the logit of each row of features."""
        found = np.empty(len(rows))
        for begin in range(0, len(rows), _BATCH_SPANS):
            found[begin : begin + _BATCH_SPANS] = self._sum_leaves(rows[begin : begin + _BATCH_SPANS])
        return found * self.scale + self.shift

    def probabilities(self, rows: Matrix) -> Floats:
        """Return the probability that each link is right."""
        return np.asarray(1 / (1 + np.exp(-np.clip(self.logits(rows), -30, 30))))

    def _sum_leaves(self, rows: Matrix) -> Floats:
        """Return the sum of the leaves that each row reaches.

        `at` [row, tree] are node numbers, counted over the concatenated nodes of all trees.
        """
        trees, inner = self.feature.shape
        feature, border, flat = self.feature.ravel().astype(np.int32), self.border.ravel(), rows.ravel()
        roots = np.arange(trees, dtype=np.int32) * np.int32(inner)
        own = (np.arange(len(rows), dtype=np.int32) * np.int32(rows.shape[1]))[:, None]
        at = np.repeat(roots[None], len(rows), 0)
        for _ in range(self.levels):
            tested = feature.take(at)
            tested += own
            right_mask = flat.take(tested) > border.take(at)
            at *= 2  # the left child of n is 2n + 1, counted from the tree's root
            at += 1 - roots
            at += right_mask
        at += np.arange(trees, dtype=np.int32) - np.int32(inner)  # leaf numbers: a tree has nodes + 1 leaves
        return np.asarray(self.leaf.ravel().take(at).sum(1), np.float64)

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
        with write_atomically(path) as file:  # safetensors.save_file would make the file readable for its owner only
            file.write(save({"feature": self.feature, "border": self.border, "leaf": self.leaf}, about))

    @classmethod
    def load(cls, path: Path) -> LinkScorer:
        """Read a scorer; raise an InputError if it was trained with other features."""
        try:
            with safe_open(path, "numpy") as file:
                about: Mapping[str, str] = file.metadata() or {}
                feature, border, leaf = (file.get_tensor(name) for name in ("feature", "border", "leaf"))
            names = json.loads(about["features"])
            scale, shift, threshold = (float(about[name]) for name in ("scale", "shift", "threshold"))
            if names == list(FEATURES):
                _check(feature, border, leaf, (scale, shift, threshold))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{path} is not a link scorer ({error}); copy or train the model again") from error
        if names != list(FEATURES):
            raise InputError(
                f"{path} was trained with other features than this version computes; adapt or train the linker again "
                "with this version"
            )
        return cls(feature, border, leaf, scale, shift, threshold, about.get("about", "{}"))


def _check(
    feature: NDArray[Any], border: NDArray[Any], leaf: NDArray[Any], numbers: tuple[float, float, float]
) -> None:
    """Raise a ValueError for malformed trees, and for numbers that do not give probabilities."""
    leaves = leaf.shape[1] if leaf.ndim == 2 else 0
    nodes = (len(leaf), leaves - 1)
    if leaves < 1 or leaves & (leaves - 1) or feature.shape != nodes or border.shape != nodes:
        raise ValueError(f"its trees have the shapes {feature.shape}, {border.shape} and {leaf.shape}")
    if feature.dtype.kind not in "iu" or (feature.size and not 0 <= feature.min() <= feature.max() < len(FEATURES)):
        raise ValueError("a tree tests a feature that does not exist")
    if np.isnan(border).any() or not np.isfinite(leaf).all() or not np.isfinite(numbers).all():
        raise ValueError("its numbers are not finite")
    if not 0 <= numbers[2] <= 1:
        raise ValueError(f"the threshold is {numbers[2]}")


def scorer_of(folder: Path) -> LinkScorer | None:
    """Return the scorer in a model's folder; None if it has none."""
    path = folder / SCORER
    return LinkScorer.load(path) if path.is_file() else None
