"""Vectors and attention for clients: encoders, and what knowledge changes in them, loaded when first asked for.

They are named when the server is started; a client chooses among the names, and names no path.
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
"""Explainers that are kept: each has an encoder of its own."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """What a text is to have vectors of, and by which encoder. Texts with the same are read together."""

    encoder: str
    of: Of = "texts"
    pooling: Pooling = "mean"
    unit: bool = False


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What a text is explained with, and whose attention is looked at."""

    encoder: str
    maps: tuple[str, ...] | None = None
    weight: float | None = None
    alpha: float | None = None


class ServedEncoder:
    """One encoder for vectors and attention: an asset's, a folder's, a run's or the hub's."""

    def __init__(self, name: str, encoder: str) -> None:
        self.name, self.encoder = name, encoder
        self._explainers: OrderedDict[ExplainOptions, Explainer] = OrderedDict()
        self._loading, self._at_work = Lock(), Lock()
        self._opened = ExitStack()

    def close(self) -> None:
        """Let go of the knowledge bases that the encoder looks in."""
        for explainer in self._explainers.values():
            explainer.close()
        self._opened.close()

    @cached_property
    def plain(self) -> bool:
        """Whether the encoder has learned nothing of maps, so that a client may say how much they weigh."""
        for folder in (Path(self.encoder), Path(self.encoder, "model")):
            try:
                if json.loads((folder / "config.json").read_bytes()).get("infusions"):
                    return False
            except (OSError, ValueError, AttributeError):
                continue
        return True

    @property
    def embedder(self) -> Embedder:
        """Loaded where it is not, with what it is lent."""
        with self._loading, self._telling(InputError, KnowledgeBaseError, UsageError):
            return self._embedder

    @cached_property
    def _embedder(self) -> Embedder:
        from wellread.inference.embedder import load_embedder

        return load_embedder(self.encoder, self._opened)

    def explainer(self, provided: ExplainOptions) -> Explainer:
        """Loaded where it is not; the two of last are kept."""
        from wellread.inference.explain import Explainer

        with self._loading, self._telling(InputError, KnowledgeBaseError):
            if provided not in self._explainers:
                options: dict[str, Any] = {"alpha": provided.alpha, "map_weight": provided.weight}
                self._explainers[provided] = Explainer.load(self.encoder, provided.maps, **options)
                while len(self._explainers) > _KEPT:
                    self._explainers.popitem(last=False)  # not closed: it may be at work
            self._explainers.move_to_end(provided)
            return self._explainers[provided]

    @contextmanager
    def _telling(self, *kinds: type[WellreadError]) -> Iterator[None]:
        """What is wrong with an encoder is for whoever named it, and the log: clients need not know where it lies."""
        try:
            yield
        except kinds as error:
            LOG.error("an encoder cannot be loaded", extra={"told": {"encoder": self.name, "why": str(error)}})
            raise AssetError(f"the encoder {self.name} cannot be loaded here; the server's log tells why") from None

    def embed(self, asked: Vectors, given: Sequence[Sequence[str]]) -> list[list[Rows]]:
        """The rows of each client's texts, those of each text together."""
        texts = [Document(text) for some in given for text in some]
        found: list[list[Rows]] = [[] for _ in texts]
        embedder = self.embedder
        with self._at_work:  # an encoder is lent what belongs to the texts that it reads
            for rows in embedder.embed(texts, of=asked.of, pooling=asked.pooling, unit=asked.unit):
                for number in sorted(set(rows.texts.tolist())):
                    found[number].append(_only(rows, number))
        each = iter([_joined(some) for some in found])
        return [[next(each) for _ in some] for some in given]

    def explain(self, provided: ExplainOptions, given: Sequence[tuple[str, str | None]]) -> list[Seen | Exception]:
        """What is seen of each client's text; a text that cannot be shown is that client's error alone."""
        explainer, found = self.explainer(provided), list[Any]()
        for text, second in given:
            try:
                with self._at_work:
                    found.append(replace(explainer.explain(text, second), model=self.name))
            except Exception as error:
                found.append(error)
        return found


def _only(rows: Rows, number: int) -> Rows:
    from wellread.inference.embed import Rows

    here = rows.texts == number
    places = here.nonzero()[0].tolist()
    more = {key: [values[place] for place in places] for key, values in rows.more.items()}
    return Rows(rows.vectors[here], rows.texts[here], rows.spans[here], [rows.names[place] for place in places], more)


def _joined(parts: Sequence[Rows]) -> Rows:
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
