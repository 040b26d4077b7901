"""Protocol of knowledge providers, and a composite of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wellread.text.tokenization import Tokenization


class KnowledgeProvider(Protocol):
    """Gives an encoder the knowledge of each batch: KAM's maps, KnowBERT's candidates, LUKE's entities."""

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> Any:
        """Annotate the texts of a dataset; with a folder, the annotations are cached there."""
        ...

    def collate(
        self, tokenized: Sequence[Tokenization], notes: Any = None, *, draw: np.random.Generator | None = None
    ) -> dict[str, Any]:
        """Return the knowledge of a batch: arrays, or dicts of arrays, by the encoder's keyword for them.

        `notes` are the annotations of `prepare`. With `draw`, the knowledge of masked words may be randomized: for
        training only.
        """
        ...


class CombinedProvider:
    """Several providers for one encoder, each with keywords of its own."""

    def __init__(self, providers: Sequence[KnowledgeProvider]) -> None:
        self.providers = tuple(providers)

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> list[Any]:
        """Return the annotations of each provider."""
        return [provider.prepare(inputs, cache=cache) for provider in self.providers]

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: Sequence[Any] | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """Return the knowledge of all providers in one dict."""
        annotations = [None] * len(self.providers) if notes is None else notes
        inputs: dict[str, Any] = {}
        for provider, own in zip(self.providers, annotations, strict=True):
            inputs |= provider.collate(tokenized, own, draw=draw)
        return inputs
