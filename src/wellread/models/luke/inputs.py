"""The entities that texts are linked to, as they are lent to an encoder that takes entities as positions (LUKE).

1. The texts of a dataset are linked once, by a linker or by links that a user has, and kept (`annotations`).
2. For a batch (`told`: numpy only) characters become pieces; a mention that is not whole in a window is not told there,
   but in the neighbour that shares its pieces. Of more mentions than `most`, the first are told.
3. An entity that the vocabulary does not have is left out, or told as [UNK], by choice. One with a hidden word in its
   mention is told as [MASK], so that it does not give away what a masked language model is to guess.
4. How many links are not told, since they have no row or no place, is noted once.

    lender = LukeProvider(Links(linker.link_many, fingerprint="vital 3, elq"), EntityVocabulary.load("my-luke"))
    notes = lender.prepare(cut, cache="runs/notes")
    told = lender.collate(cut[:8], notes)["entities"]
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
"""Inputs whose links are looked at together."""


class LukeProvider:
    """Lends the entities of texts to an encoder, as rows of its vocabulary."""

    def __init__(
        self, links: Links, vocabulary: EntityVocabulary, *, most: int = 128, unknown: Unknown = "drop"
    ) -> None:
        if most < 1:
            raise UsageError(f"most is {most}; expected 1 entity or more")
        self.links, self.vocabulary, self.most, self.unknown = links, vocabulary, most, unknown
        self._noted = False

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> Annotations:
        """The links of all texts; found once and kept in a folder."""
        notes = annotate((text for one in inputs for text in one.texts), [self.links], folder=cache)
        if not self._noted:
            self._note_untold(inputs, notes)
        return notes

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: Annotations | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """The entities of a batch, text by text, by the keyword of the encoder."""
        notes = notes if notes is not None else self.prepare(tokenized)
        places, at, units, starts, ends = self._links_of(tokenized, notes)
        spans, whole = places.tokens(units, starts, ends)
        ids = self._ids(notes)[at]
        if (hidden := MaskedSpans.of(tokenized, places, None)) is not None:
            ids[(hidden.fates(units, starts, ends) == MASKED) & (ids >= 0)] = self.vocabulary.mask
        kept = self._first(places.input_of[units], whole & (ids >= 0))
        text_of = places.input_of[units[kept]]
        types = np.array(
            [tokenized[text].types[token] for text, token in zip(text_of, spans[kept, 0], strict=True)], np.int64
        )
        return {"entities": {"text_of": text_of, "ids": ids[kept], "spans": spans[kept], "types": types}}

    def _links_of(
        self, tokenized: Sequence[Tokenization], notes: Annotations
    ) -> tuple[TokenPositions, Offsets, Offsets, Offsets, Offsets]:
        """The links of a batch's texts: their numbers, units, first characters, and the ones behind their last."""
        places, marks = TokenPositions.of(tokenized), notes.marks(self.links.name, "mentions")
        rows = np.array([notes.row_of(text) for text in places.texts], np.int64)
        begins = marks.offsets[rows]
        counts = marks.offsets[rows + 1] - begins
        at = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        starts, ends = marks.values[at].astype(np.int64).T
        return places, at, np.repeat(np.arange(len(rows)), counts), starts, ends

    def _first(self, text_of: Offsets, may_mask: NDArray[np.bool_]) -> Offsets:
        """Of what may be told of each input, the first `most`."""
        kept = np.flatnonzero(may_mask)
        text_of = text_of[kept]
        return kept[np.arange(len(kept)) - np.searchsorted(text_of, text_of) < self.most]

    def _note_untold(self, inputs: Sequence[Tokenization], notes: Annotations) -> None:
        """Say how many links are told nowhere, and why."""
        ids, (numbers, names) = self._ids(notes), notes.names(self.links.name)
        counts = np.bincount(numbers, minlength=len(names))
        lacking = [place for place, name in enumerate(names) if name and name not in self.vocabulary]
        total, unknown = sum(counts[place] for place, name in enumerate(names) if name), sum(counts[lacking])
        told_mask = np.zeros(len(ids), np.bool_)
        for begin in range(0, len(inputs), _AT_ONCE):
            places, at, units, starts, ends = self._links_of(inputs[begin : begin + _AT_ONCE], notes)
            _, whole = places.tokens(units, starts, ends)
            told_mask[at[self._first(places.input_of[units], whole & (ids[at] >= 0))]] = True
        left = int(((ids >= 0) & ~told_mask).sum())
        parts = []
        if unknown:
            some = ", ".join(names[place] for place in sorted(lacking, key=lambda place: -counts[place])[:3])
            fate = "left out" if self.unknown == "drop" else "told as [UNK]"
            parts.append(
                f"{unknown:,} ({unknown / total:.1%}) have no row in the entity vocabulary and are {fate}: {some}"
            )
        if left:
            parts.append(f"{left:,} ({left / total:.1%}) are cut off, or beyond the {self.most} of an input")
        if parts:
            self._noted = True
            console.note(f"of {total:,} links {'; '.join(parts)}")

    def _ids(self, notes: Annotations) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The row of every link; -1: none is told."""

        def find() -> np.ndarray[Any, np.dtype[np.int64]]:
            numbers, names = notes.names(self.links.name)
            rows = self.vocabulary.rows_of(names, unknown=self.unknown)
            rows[[place for place, name in enumerate(names) if not name]] = -1  # NIL names nothing that could be told
            return np.asarray(rows[numbers] if len(names) else np.zeros(0, np.int64))

        return notes.once((self.links.name, "rows"), find)
