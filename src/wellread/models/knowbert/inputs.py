"""Offers: the mentions of texts and what each may mean, as they are lent to an encoder (KnowBERT: Candidates).

1. All names of a knowledge base are looked for in the texts, once for a dataset (`annotate`, cached). WordNet: lemmas
   of up to 6 words, prior = sense count + 1; others: aliases of up to 5 words, prior = link count. They may overlap.
2. Mentions that the data names (`Tokenization.marks`) get the candidates of their lemma and kind, in place of what was
   found at the same pieces; a mark of which nothing is known is no mention. Names of persons, places and groups, which
   data sets of senses mark with these lemmas, have the first sense of the lemma for their only candidate.
3. For a batch (`told`: numpy only) characters become pieces, and what was cut off is left out.
4. Of a mention that a hidden word is part of only the MASK entity is told, so that candidates do not give away what a
   masked language model is to guess. Where a draw is asked for, 10 % stay and 10 % get those of another name.

    lender = KnowBertProvider([("wordnet", kb, EntityVectors.open(folder))])
    notes = lender.prepare(cut, cache="runs/notes")
    told = lender.collate(cut[:8], notes)["offers"]["wordnet"]

Unlike the authors' code: all mentions with a hidden word share the word's fate, in all knowledge bases. Names that are
made of stop words alone are passed over (theirs, for Wikipedia: names that begin or end with one of spaCy's stop words,
`CandidateConfig(stop_words="knowbert")`); names with a sign of punctuation between their words are candidates (theirs:
are not). Of the lemmas person, location and group, "groups" and "Person" keep all senses (theirs: the first alone, for
all that is not spelled as the lemma).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy.typing import NDArray

from wellread.document import short
from wellread.errors import InputError, UsageError
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidate_lists import NONE
from wellread.models.knowbert.mention_cache import (
    MASK_ENTITY,
    NO_ENTITY,
    PASSED_OVER,
    CandidateConfig,
    Finder,
    MentionCache,
    Notes,
    Rows,
    asked_by,
)
from wellread.text.positions import MASKED, OTHER, STAYS, MaskedSpans, TokenPositions
from wellread.text.tokenization import Tokenization
from wellread.text.words import Offsets

__all__ = ["MASK_ENTITY", "NO_ENTITY", "CandidateArrays", "CandidateConfig", "KnowBertProvider", "MentionCache", "Rows"]


@dataclass(frozen=True, slots=True)
class CandidateArrays:
    """The mentions of a batch in one knowledge base, text by text in order of their first piece, the longer first."""

    text_of: Int64[np.ndarray, " mention"]
    """Which input of the batch."""
    segment_of: Int64[np.ndarray, " mention"]
    characters: Int64[np.ndarray, "mention 2"]
    """(start, end) in the segment's text."""
    spans: Int64[np.ndarray, "mention 2"]
    """First and last piece, inclusive, special ones counted."""
    entities: Int64[np.ndarray, "mention cand"]
    """Rows of the KB's vectors, best prior first; `NO_ENTITY` where there are no more, `MASK_ENTITY` where hidden."""
    priors: Float32[np.ndarray, "mention cand"]
    gold: Int64[np.ndarray, "mention cand"]
    """1 where the data says that a candidate is right."""

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """What an encoder takes of them."""
        return {name: getattr(self, name) for name in ("text_of", "spans", "entities", "priors", "gold")}


class KnowBertProvider:
    """Offers the mentions of texts to an encoder, from one or several knowledge bases by their names there."""

    def __init__(
        self,
        parts: Sequence[tuple[str, KnowledgeBase, Rows]],
        configs: Mapping[str, CandidateConfig] | None = None,
    ) -> None:
        configs = configs or {}
        self._finders = {name: Finder(kb, vectors, configs.get(name, CandidateConfig())) for name, kb, vectors in parts}
        if len(self._finders) < len(parts):
            raise UsageError(f"two of {', '.join(name for name, _, _ in parts)} have one name; name each differently")
        if unknown := sorted(configs.keys() - self._finders.keys()):
            raise UsageError(f"there are settings for {', '.join(unknown)}, but only {', '.join(self._finders)} offers")

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> MentionCache:
        """The mentions of all texts, and what the marks of the inputs may mean; found once and kept in a folder."""
        texts = sorted({text for one in inputs for text in one.texts})
        folder = Path(cache) if cache is not None else None
        marks = {(one.texts[mark.segment], mark) for one in inputs for mark in one.marks}
        found = {
            name: finder.marked(finder.notes(texts, title=name, folder=folder), marks)
            for name, finder in self._finders.items()
        }
        return MentionCache({text: row for row, text in enumerate(texts)}, found)

    def offers(
        self,
        tokenized: Sequence[Tokenization],
        notes: MentionCache | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, CandidateArrays]:
        """The offers of a batch by the name of their knowledge base; without notes its texts are read now.

        With a draw, what becomes of mentions with hidden words is left to chance.
        """
        notes = notes if notes is not None else self.prepare(tokenized)
        places = TokenPositions.of(tokenized)
        rows = notes.rows(places.texts)
        hidden = MaskedSpans.of(tokenized, places, draw)
        offered = {}
        for name, known in notes.of_kb.items():
            mentions = _found(places, known, rows).with_marks(_marked(tokenized, places, known))
            offered[name] = mentions.offers(places, known, hidden, draw)
        return offered

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: MentionCache | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """The same by the keyword of the encoder."""
        return {
            "offers": {name: offers.as_arrays() for name, offers in self.offers(tokenized, notes, draw=draw).items()}
        }


@dataclass(frozen=True, slots=True)
class _Mentions:
    """Mentions of a batch that are wholly there, and what is known to be right."""

    units: Offsets
    starts: Offsets
    ends: Offsets
    numbers: Offsets
    inputs: Offsets
    spans: Int64[np.ndarray, "mention 2"]
    gold: Int64[np.ndarray, "mention right"]
    """Rows of what a mention means; filled up with `NO_ENTITY`."""

    @classmethod
    def of(
        cls,
        places: TokenPositions,
        units: Offsets,
        starts: Offsets,
        ends: Offsets,
        numbers: Offsets,
        gold: NDArray[np.int64],
    ) -> _Mentions:
        spans, whole = places.tokens(units, starts, ends)
        units = units[whole]
        inputs = places.input_of[units]
        return cls(units, starts[whole], ends[whole], numbers[whole], inputs, spans[whole], gold[whole])

    def with_marks(self, marks: _Mentions | None) -> _Mentions:
        """With marks in place of what has the same pieces; a mark of which nothing is known leaves nothing there."""
        if marks is None:
            return self
        free = np.flatnonzero(~np.isin(self._spots(), marks._spots()))
        known = np.flatnonzero(marks.numbers != NONE)
        gold = np.full((len(known) + len(free), marks.gold.shape[1]), NO_ENTITY, np.int64)
        gold[: len(known)] = marks.gold[known]
        names = ("units", "starts", "ends", "numbers", "inputs", "spans")
        columns = {name: np.concatenate((getattr(marks, name)[known], getattr(self, name)[free])) for name in names}
        joined = _Mentions(**columns, gold=gold)
        # Sorting is stable: of equals, marks come first.
        return joined._take(np.lexsort((-joined.spans[:, 1], joined.spans[:, 0], joined.inputs)))

    def offers(
        self, places: TokenPositions, notes: Notes, hidden: MaskedSpans | None, draw: np.random.Generator | None
    ) -> CandidateArrays:
        """Candidates of all mentions; those of mentions with hidden words as it befits them."""
        numbers, fates = self.numbers, None
        if hidden is not None:
            fates = hidden.fates(self.units, self.starts, self.ends)
            others = np.flatnonzero(fates == OTHER)
            if draw is not None and len(others):
                numbers = numbers.copy()
                numbers[others] = draw.choice(np.flatnonzero(notes.table.sizes), len(others))
        entities, priors = notes.table.take(numbers)
        gold = (entities[:, :, None] == self.gold[:, None, :]) & (self.gold >= 0)[:, None, :]
        gold = gold.any(2)
        if fates is not None:
            masked = np.flatnonzero(fates == MASKED)
            entities[masked], priors[masked] = NO_ENTITY, 0
            entities[masked, 0], priors[masked, 0] = MASK_ENTITY, 1
            gold[fates != STAYS] = False
        segments = self.units - places.first_unit[self.inputs]
        characters = np.stack((self.starts, self.ends), axis=1)
        return CandidateArrays(self.inputs, segments, characters, self.spans, entities, priors, gold.astype(np.int64))

    def _spots(self) -> Offsets:
        """The input and pieces of each as one number; an input has less than a million pieces."""
        spots: Offsets = (self.inputs << 40) + (self.spans[:, 0] << 20) + self.spans[:, 1]
        return spots

    def _take(self, order: Offsets) -> _Mentions:
        names = ("units", "starts", "ends", "numbers", "inputs", "spans", "gold")
        return _Mentions(**{name: getattr(self, name)[order] for name in names})


def _found(places: TokenPositions, notes: Notes, rows: Sequence[int]) -> _Mentions:
    """The mentions of the batch's texts that begin where something of the text is left."""
    begins, counts = [], []
    offsets, lows, highs = notes.offsets, places.lows.tolist(), places.highs.tolist()
    for row, low, high in zip(rows, lows, highs, strict=True):
        begin, end = int(offsets[row]), int(offsets[row + 1])
        starts = notes.starts[begin:end]
        # Of a passage that is read in windows only a window's own mentions are looked at.
        skipped = int(np.searchsorted(starts, low)) if low else 0
        begins.append(begin + skipped)
        counts.append(int(np.searchsorted(starts, high)) - skipped)
    many = np.array(counts, np.int64)
    at = np.arange(many.sum()) + np.repeat(np.array(begins, np.int64) - (np.cumsum(many) - many), many)
    starts, ends, numbers = (column[at].astype(np.int64) for column in (notes.starts, notes.ends, notes.numbers))
    nothing = np.zeros((len(at), 0), np.int64)
    return _Mentions.of(places, np.repeat(np.arange(len(rows)), many), starts, ends, numbers, nothing)


def _marked(tokenized: Sequence[Tokenization], places: TokenPositions, notes: Notes) -> _Mentions | None:
    """The marks of a batch that speak of this knowledge base; None where there are none."""
    lines, gold = [], []
    for unit, one in zip(places.first_unit.tolist(), tokenized, strict=True):
        for mark in one.marks:
            asked = asked_by(one.texts[mark.segment], mark)
            number = notes.marked.get(asked)
            if number == PASSED_OVER:
                continue
            if number is None:
                raise InputError(
                    f"the mark {short(asked[0], 60)!r} was not annotated; give all inputs to "
                    "KnowBertProvider.prepare first"
                )
            lines.append((unit + mark.segment, mark.start, mark.end, number))
            gold.append([notes.gold[id] for id in mark.gold])
    if not lines:
        return None
    right = np.full((len(gold), max(1, *map(len, gold))), NO_ENTITY, np.int64)
    for place, rows in enumerate(gold):
        right[place, : len(rows)] = rows
    units, starts, ends, numbers = np.array(lines, np.int64).T
    return _Mentions.of(places, units, starts, ends, numbers, right)
