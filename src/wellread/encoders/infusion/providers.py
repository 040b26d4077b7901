"""Who lends knowledge to the texts of a dataset, whatever an encoder makes of it; several lend side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wellread.text.tokenization import Tokenization


class KnowledgeProvider(Protocol):
    """What finds once what there is to know of the texts of a dataset, and then tells it batch by batch."""

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> Any:
        """What it must find in the texts first, kept in a folder if one is given."""
        ...

    def collate(
        self, tokenized: Sequence[Tokenization], notes: Any = None, *, draw: np.random.Generator | None = None
    ) -> dict[str, Any]:
        """What an encoder is told of a batch: arrays, or dicts of them, by the keyword that the encoder has for it.

        With a draw, what is told of hidden words may be left to chance: to learn from, never to be scored by.
        """
        ...


class CombinedProvider:
    """Several that lend to one encoder, each by keywords of its own."""

    def __init__(self, providers: Sequence[KnowledgeProvider]) -> None:
        self.providers = tuple(providers)

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> list[Any]:
        """The annotations of each."""
        return [provider.prepare(inputs, cache=cache) for provider in self.providers]

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: Sequence[Any] | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """What all of them tell."""
        known = [None] * len(self.providers) if notes is None else notes
        told: dict[str, Any] = {}
        for provider, mine in zip(self.providers, known, strict=True):
            told |= provider.collate(tokenized, mine, draw=draw)
        return told
