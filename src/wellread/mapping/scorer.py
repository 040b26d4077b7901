"""Probability that an entity is the right one for a string: a conditional logit with "no entity" as one choice.

    p(entity | string) = exp(w · features(string, entity)) / (1 + sum over all candidates of exp(w · features))

(McFadden 1974). So two entities with the same name share the probability, and a string that resembles no name keeps
it. The weights belong to no KB: they were fitted to names of several KBs, changed as people change names, with a part
of the entities and aliases removed from the index (`training.name_scorer`); docs/decisions/0019 has how and how well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError
from wellread.io.files import write_atomically
from wellread.mapping.features import FEATURES, Matrix

Evidence = Literal["names", "meaning", "context"]
"""Features that are there: of names only, of meaning too, or of meaning and context."""
Floats = NDArray[np.float64]
PACKAGED = Path(__file__).parents[1] / "weights" / "mapping" / "scorer.json"
_FORMAT = "wellread name scorer 1"


@dataclass(frozen=True)
class NameScorer:
    """Weights of `FEATURES` for each kind of evidence."""

    weights: Mapping[Evidence, Floats]
    about: Mapping[str, Any] = field(default_factory=dict)
    """Training data and scores."""

    def utilities(self, pairs: Matrix, evidence: Evidence) -> Floats:
        """Return w · features of each pair."""
        return np.asarray(pairs @ self.weights[evidence], np.float64)

    def save(self, path: Path) -> None:
        """Write the weights as JSON."""
        data = {
            "format": _FORMAT,
            "features": FEATURES,
            "weights": {evidence: [round(float(one), 5) for one in row] for evidence, row in self.weights.items()},
            "about": dict(self.about),
        }
        with write_atomically(path) as file:
            file.write(json.dumps(data, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> NameScorer:
        """Read the weights; raise an InputError for those of other features."""
        try:
            data = json.loads(path.read_bytes())
            weights = {evidence: np.array(data["weights"][evidence], np.float64) for evidence in get_args(Evidence)}
            fits = data["format"] == _FORMAT and tuple(data["features"]) == FEATURES
            if not fits or any(row.shape != (len(FEATURES),) or not np.isfinite(row).all() for row in weights.values()):
                raise ValueError("its features are not those of this version")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path} is not a name scorer ({error}); install wellread again") from error
        return cls(weights, data.get("about", {}))


def choice_probabilities(utilities: Floats, groups: NDArray[np.int64], count: int) -> Floats:
    """Return the probability of each choice of its group; "no entity" has utility 0 in each of `count` groups."""
    highest = np.zeros(count)
    np.maximum.at(highest, groups, utilities)
    grown = np.exp(utilities - highest[groups])
    totals = np.exp(-highest) + np.bincount(groups, grown, count)
    return np.asarray(grown / totals[groups])


@cache
def packaged() -> NameScorer:
    """Return the packaged scorer."""
    return NameScorer.load(PACKAGED)
