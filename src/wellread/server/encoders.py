"""Encoders of /embed and /explain, loaded on first use.

They are named when the server starts; clients choose by name and cannot give paths.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from wellread.document import Document
from wellread.errors import AssetError, InputError, KnowledgeBaseError, UsageError, WellreadError
from wellread.server.middleware import LOG

if TYPE_CHECKING:
    from wellread.inference.embed import Embedder, Of, Pooling, Rows
    from wellread.inference.explain import Explainer
    from wellread.plots.attention import Seen

_KEPT = 2
"""Maximum cached explainers; each has its own encoder."""


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Options of an /embed request; requests with equal options are batched."""

    encoder: str
    of: Of = "texts"
    pooling: Pooling = "mean"
    unit: bool = False


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """Options of an /explain request; requests with equal options share an explainer."""

    encoder: str
    maps: tuple[str, ...] | None = None
    weight: float | None = None
    alpha: float | None = None


class ServedEncoder:
    """One encoder for vectors and attention: an asset, a folder, a run, or a model on the hub."""

    def __init__(self, name: str, encoder: str) -> None:
        self.name, self.encoder = name, encoder
        self._explainers: OrderedDict[ExplainOptions, Explainer] = OrderedDict()
        self._loading, self._in_use = Lock(), Lock()
        self._opened = ExitStack()

    def close(self) -> None:
        """Close the KBs that the encoder uses."""
        for explainer in self._explainers.values():
            explainer.close()
        self._opened.close()

    @cached_property
    def plain(self) -> bool:
        """True if the encoder has no infusions, so that a request may choose maps and their weight."""
        for folder in (Path(self.encoder), Path(self.encoder, "model")):
            try:
                if json.loads((folder / "config.json").read_bytes()).get("infusions"):
                    return False
            except (OSError, ValueError, AttributeError):
                continue
        return True

    @property
    def embedder(self) -> Embedder:
        """The embedder with its knowledge providers, loaded on first use."""
        with self._loading, self._hide_path(InputError, KnowledgeBaseError, UsageError):
            return self._embedder

    @cached_property
    def _embedder(self) -> Embedder:
        from wellread.inference.embedder import load_embedder

        return load_embedder(self.encoder, self._opened)

    def explainer(self, options: ExplainOptions) -> Explainer:
        """Return an explainer, loaded on first use; the last two are cached."""
        from wellread.inference.explain import Explainer

        with self._loading, self._hide_path(InputError, KnowledgeBaseError):
            if options not in self._explainers:
                weights: dict[str, Any] = {"alpha": options.alpha, "map_weight": options.weight}
                self._explainers[options] = Explainer.load(self.encoder, options.maps, **weights)
                while len(self._explainers) > _KEPT:
                    self._explainers.popitem(last=False)  # not closed: it may be in use
            self._explainers.move_to_end(options)
            return self._explainers[options]

    @contextmanager
    def _hide_path(self, *kinds: type[WellreadError]) -> Iterator[None]:
        """Log why an encoder cannot be loaded, and raise an error that does not show its path to clients."""
        try:
            yield
        except kinds as error:
            LOG.error("an encoder cannot be loaded", extra={"fields": {"encoder": self.name, "why": str(error)}})
            raise AssetError(f"the encoder {self.name} cannot be loaded; see the server's log") from None

    def embed(self, options: EmbedOptions, given: Sequence[Sequence[str]]) -> list[list[Rows]]:
        """Return the vectors of each request's texts."""
        texts = [Document(text) for some in given for text in some]
        found: list[list[Rows]] = [[] for _ in texts]
        embedder = self.embedder
        with self._in_use:  # the provider sets the knowledge of this batch on the encoder
            for rows in embedder.embed(texts, of=options.of, pooling=options.pooling, unit=options.unit):
                for number in sorted(set(rows.texts.tolist())):
                    found[number].append(_rows_of_text(rows, number))
        each = iter([_concatenate(some) for some in found])
        return [[next(each) for _ in some] for some in given]

    def explain(self, options: ExplainOptions, given: Sequence[tuple[str, str | None]]) -> list[Seen | Exception]:
        """Return the attention of each text, or the exception that it raised."""
        explainer, found = self.explainer(options), list[Any]()
        for text, second in given:
            try:
                with self._in_use:
                    found.append(replace(explainer.explain(text, second), model=self.name))
            except Exception as error:
                found.append(error)
        return found


def _rows_of_text(rows: Rows, number: int) -> Rows:
    from wellread.inference.embed import Rows

    here = rows.texts == number
    places = here.nonzero()[0].tolist()
    more = {key: [values[place] for place in places] for key, values in rows.more.items()}
    return Rows(rows.vectors[here], rows.texts[here], rows.spans[here], [rows.names[place] for place in places], more)


def _concatenate(parts: Sequence[Rows]) -> Rows:
    import numpy as np

    from wellread.inference.embed import Rows

    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Rows(np.zeros((0, 0), np.float32), np.zeros(0, np.int64), np.zeros((0, 2), np.int64), [])
    more = {key: [value for part in parts for value in part.more[key]] for key in parts[0].more}
    return Rows(
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.texts for part in parts]),
        np.concatenate([part.spans for part in parts]),
        [name for part in parts for name in part.names],
        more,
    )
