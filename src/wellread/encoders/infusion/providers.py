"""Who lends knowledge to the texts of a dataset, whatever an encoder makes of it; several lend side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wellread.text.segments import Segmented


class Lends(Protocol):
    """What finds once what there is to know of the texts of a dataset, and then tells it batch by batch."""

    def annotate(self, inputs: Sequence[Segmented], *, cache: str | Path | None = None) -> Any:
        """What it must find in the texts first, kept in a folder if one is given."""
        ...

    def told(
        self, cut: Sequence[Segmented], notes: Any = None, *, draw: np.random.Generator | None = None
    ) -> dict[str, Any]:
        """What an encoder is told of a batch: arrays, or dicts of them, by the keyword that the encoder has for it.

        With a draw, what is told of hidden words may be left to chance: to learn from, never to be scored by.
        """
        ...


class Lenders:
    """Several that lend to one encoder, each by keywords of its own."""

    def __init__(self, lenders: Sequence[Lends]) -> None:
        self.lenders = tuple(lenders)

    def annotate(self, inputs: Sequence[Segmented], *, cache: str | Path | None = None) -> list[Any]:
        """The annotations of each."""
        return [lender.annotate(inputs, cache=cache) for lender in self.lenders]

    def told(
        self,
        cut: Sequence[Segmented],
        notes: Sequence[Any] | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """What all of them tell."""
        known = [None] * len(self.lenders) if notes is None else notes
        told: dict[str, Any] = {}
        for lender, mine in zip(self.lenders, known, strict=True):
            told |= lender.told(cut, mine, draw=draw)
        return told
