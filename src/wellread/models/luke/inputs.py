"""Knowledge provider of LUKE: the entities that texts are linked to.

1. `prepare` links the texts of a dataset once, by a linker or with given links, and caches the result.
2. `collate` (numpy only) maps the mentions of a batch from characters to tokens. A mention that is not whole in a
   window is left out there; the neighbouring window that shares its tokens has it. At most `most` per input.
3. Entities outside the vocabulary are dropped or become [UNK], by choice. An entity with a masked word in its mention
   becomes [MASK], so that it does not reveal what a masked language model has to predict.
4. The number of links without a row or without whole tokens is logged once.

    provider = LukeProvider(Links(linker.link_many, fingerprint="vital 3, elq"), EntityVocabulary.load("my-luke"))
    annotations = provider.prepare(tokenized, cache="runs/notes")
    entities = provider.collate(tokenized[:8], annotations)["entities"]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.io import console
from wellread.mentions.annotation_cache import Annotations, Links, annotate
from wellread.models.luke.vocabulary import EntityVocabulary, Unknown
from wellread.text.positions import MASKED, MaskedSpans, TokenPositions
from wellread.text.tokenization import Tokenization
from wellread.text.words import Offsets

_AT_ONCE = 1024
"""Inputs whose links are checked together."""


class LukeProvider:
    """Knowledge provider that returns the linked entities of texts as rows of an entity vocabulary."""

    def __init__(
        self, links: Links, vocabulary: EntityVocabulary, *, most: int = 128, unknown: Unknown = "drop"
    ) -> None:
        if most < 1:
            raise UsageError(f"most is {most}; expected 1 entity or more")
        self.links, self.vocabulary, self.most, self.unknown = links, vocabulary, most, unknown
        self._logged = False

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> Annotations:
        """Return the links of all texts; find them once and cache them in a folder if one is given."""
        annotations = annotate((text for tokenized in inputs for text in tokenized.texts), [self.links], folder=cache)
        if not self._logged:
            self._log_left_out(inputs, annotations)
        return annotations

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: Annotations | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """Return {"entities": …} for a batch, in the form that `Luke` takes, given the annotations of `prepare`."""
        annotations = notes if notes is not None else self.prepare(tokenized)
        places, at, units, starts, ends = self._links_of(tokenized, annotations)
        spans, whole = places.tokens(units, starts, ends)
        ids = self._ids(annotations)[at]
        if (hidden := MaskedSpans.of(tokenized, places, None)) is not None:
            ids[(hidden.fates(units, starts, ends) == MASKED) & (ids >= 0)] = self.vocabulary.mask
        kept = self._first(places.input_of[units], whole & (ids >= 0))
        text_of = places.input_of[units[kept]]
        types = np.array(
            [tokenized[text].types[token] for text, token in zip(text_of, spans[kept, 0], strict=True)], np.int64
        )
        return {"entities": {"text_of": text_of, "ids": ids[kept], "spans": spans[kept], "types": types}}

    def _links_of(
        self, tokenized: Sequence[Tokenization], annotations: Annotations
    ) -> tuple[TokenPositions, Offsets, Offsets, Offsets, Offsets]:
        """Return the links of a batch: token positions, link numbers, units, and first and end characters."""
        places, marks = TokenPositions.of(tokenized), annotations.marks(self.links.name, "mentions")
        rows = np.array([annotations.row_of(text) for text in places.texts], np.int64)
        begins = marks.offsets[rows]
        counts = marks.offsets[rows + 1] - begins
        at = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        starts, ends = marks.values[at].astype(np.int64).T
        return places, at, np.repeat(np.arange(len(rows)), counts), starts, ends

    def _first(self, text_of: Offsets, allowed_mask: NDArray[np.bool_]) -> Offsets:
        """Return the first `most` allowed links of each input."""
        kept = np.flatnonzero(allowed_mask)
        text_of = text_of[kept]
        return kept[np.arange(len(kept)) - np.searchsorted(text_of, text_of) < self.most]

    def _log_left_out(self, inputs: Sequence[Tokenization], annotations: Annotations) -> None:
        """Log how many links are in no input, and the reason."""
        ids, (numbers, names) = self._ids(annotations), annotations.names(self.links.name)
        counts = np.bincount(numbers, minlength=len(names))
        lacking = [place for place, name in enumerate(names) if name and name not in self.vocabulary]
        total, unknown = sum(counts[place] for place, name in enumerate(names) if name), sum(counts[lacking])
        used_mask = np.zeros(len(ids), np.bool_)
        for begin in range(0, len(inputs), _AT_ONCE):
            places, at, units, starts, ends = self._links_of(inputs[begin : begin + _AT_ONCE], annotations)
            _, whole = places.tokens(units, starts, ends)
            used_mask[at[self._first(places.input_of[units], whole & (ids[at] >= 0))]] = True
        left = int(((ids >= 0) & ~used_mask).sum())
        parts = []
        if unknown:
            examples = ", ".join(names[place] for place in sorted(lacking, key=lambda place: -counts[place])[:3])
            fate = "left out" if self.unknown == "drop" else "replaced by [UNK]"
            parts.append(
                f"{unknown:,} ({unknown / total:.1%}) have no row in the entity vocabulary and are {fate}: {examples}"
            )
        if left:
            parts.append(
                f"{left:,} ({left / total:.1%}) are split by a window border, or exceed the {self.most} per input"
            )
        if parts:
            self._logged = True
            console.note(f"of {total:,} links {'; '.join(parts)}")

    def _ids(self, annotations: Annotations) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the row of every link, -1 for links that are left out."""

        def find() -> np.ndarray[Any, np.dtype[np.int64]]:
            numbers, names = annotations.names(self.links.name)
            rows = self.vocabulary.rows_of(names, unknown=self.unknown)
            rows[[place for place, name in enumerate(names) if not name]] = -1  # NIL has no entity
            return np.asarray(rows[numbers] if len(names) else np.zeros(0, np.int64))

        return annotations.once((self.links.name, "rows"), find)
