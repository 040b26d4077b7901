"""KnowBERT's knowledge provider: the mentions of texts and their candidates, as arrays for an encoder.

1. `prepare` finds all aliases of a KB in the texts of a dataset, once (cached). WordNet: lemmas of up to 6 words, prior
   = sense count + 1; other KBs: aliases of up to 5 words, prior = link count. Mentions may overlap.
2. Mentions that the data annotates (`Tokenization.marks`) get the candidates of their lemma and kind and replace what
   was found at the same tokens; a mark without candidates is not a mention. Names of persons, places and groups, which
   data sets of senses mark with these lemmas, have the first sense of the lemma as their only candidate.
3. `collate` (numpy only) maps characters to tokens for a batch and leaves out truncated mentions.
4. A mention with a masked word has the MASK entity as its only candidate, so that candidates do not reveal the word
   that a masked language model is to predict. With a `draw`: 80 % MASK, 10 % unchanged, 10 % the candidates of another
   name.

    provider = KnowBertProvider([("wordnet", kb, EntityVectors.open(folder))])
    notes = provider.prepare(tokenized, cache="runs/notes")
    arrays = provider.collate(tokenized[:8], notes)["offers"]["wordnet"]

Differences from the authors' code: all mentions with a masked word are treated alike, in all KBs. Names that consist
only of stop words are skipped (theirs, for Wikipedia: names that begin or end with one of spaCy's stop words,
`CandidateConfig(stop_words="knowbert")`); names with punctuation between their words are candidates (theirs: they are
not). For the lemmas person, location and group, "groups" and "Person" keep all senses (theirs: only the first, unless
the word is spelled as the lemma).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wellread.document import short
from wellread.errors import InputError, UsageError
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidate_lists import NONE
from wellread.models.knowbert.config import MASK_ENTITY, NO_ENTITY, CandidateConfig
from wellread.models.knowbert.mention_cache import (
    OTHER_KB,
    EntityRows,
    KbMentions,
    MentionCache,
    MentionFinder,
    mark_key,
)
from wellread.text.positions import MASKED, OTHER, STAYS, MaskedSpans, TokenPositions
from wellread.text.tokenization import Tokenization
from wellread.text.words import Offsets

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64


@dataclass(frozen=True, slots=True)
class CandidateArrays:
    """Mentions of a batch in one KB, sorted by input and first token, longer mentions first."""

    text_of: Int64[np.ndarray, " mention"]
    """Index of the input in the batch."""
    segment_of: Int64[np.ndarray, " mention"]
    characters: Int64[np.ndarray, "mention 2"]
    """(start, end) in the text of the segment."""
    spans: Int64[np.ndarray, "mention 2"]
    """First and last token, inclusive; special tokens count."""
    entities: Int64[np.ndarray, "mention cand"]
    """Rows of the KB's vectors, best prior first; padded with `NO_ENTITY`; `MASK_ENTITY` for masked mentions."""
    priors: Float32[np.ndarray, "mention cand"]
    gold: Int64[np.ndarray, "mention cand"]
    """1 for candidates that the data marks as correct."""

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `KnowBert` takes."""
        return {name: getattr(self, name) for name in ("text_of", "spans", "entities", "priors", "gold")}


class KnowBertProvider:
    """Knowledge provider of mentions and candidates from one or several KBs, given as (name, KB, vectors)."""

    def __init__(
        self,
        parts: Sequence[tuple[str, KnowledgeBase, EntityRows]],
        configs: Mapping[str, CandidateConfig] | None = None,
    ) -> None:
        configs = configs or {}
        self._finders = {
            name: MentionFinder(kb, vectors, configs.get(name, CandidateConfig())) for name, kb, vectors in parts
        }
        if len(self._finders) < len(parts):
            raise UsageError(f"two of {', '.join(name for name, _, _ in parts)} have one name; name each differently")
        if unknown := sorted(configs.keys() - self._finders.keys()):
            raise UsageError(
                f"there are settings for {', '.join(unknown)}, but the knowledge bases are {', '.join(self._finders)}; "
                "use one of these names"
            )

    def prepare(self, inputs: Sequence[Tokenization], *, cache: str | Path | None = None) -> MentionCache:
        """Find the mentions of all texts and the candidates of all marks; keep the mentions in the `cache` folder."""
        texts = sorted({text for item in inputs for text in item.texts})
        folder = Path(cache) if cache is not None else None
        marks = {(item.texts[mark.segment], mark) for item in inputs for mark in item.marks}
        found = {
            name: finder.add_marks(finder.find(texts, title=name, folder=folder), marks)
            for name, finder in self._finders.items()
        }
        return MentionCache({text: row for row, text in enumerate(texts)}, found)

    def find_candidates(
        self,
        tokenized: Sequence[Tokenization],
        notes: MentionCache | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, CandidateArrays]:
        """Return the candidates of a batch by KB; without `notes` the mentions of its texts are found now.

        With a `draw`, candidates of masked mentions are drawn (80/10/10), as in training.
        """
        notes = notes if notes is not None else self.prepare(tokenized)
        places = TokenPositions.of(tokenized)
        rows = notes.rows(places.texts)
        hidden = MaskedSpans.of(tokenized, places, draw)
        candidates = {}
        for name, found in notes.of_kb.items():
            mentions = _found(places, found, rows).with_marks(_marked(tokenized, places, found))
            candidates[name] = mentions.with_candidates(places, found, hidden, draw)
        return candidates

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: MentionCache | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """Return the same as arrays, by the encoder's keyword `offers`."""
        found = self.find_candidates(tokenized, notes, draw=draw)
        return {"offers": {name: candidates.as_arrays() for name, candidates in found.items()}}


@dataclass(frozen=True, slots=True)
class _Mentions:
    """Mentions of a batch that are not truncated, with their gold entities."""

    units: Offsets
    starts: Offsets
    ends: Offsets
    numbers: Offsets
    inputs: Offsets
    spans: Int64[np.ndarray, "mention 2"]
    gold: Int64[np.ndarray, "mention right"]
    """Rows of gold entities, padded with `NO_ENTITY`."""

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
        """Replace mentions at the tokens of a mark by the mark; one without candidates only removes them."""
        if marks is None:
            return self
        free = np.flatnonzero(~np.isin(self._token_keys(), marks._token_keys()))
        known = np.flatnonzero(marks.numbers != NONE)
        gold = np.full((len(known) + len(free), marks.gold.shape[1]), NO_ENTITY, np.int64)
        gold[: len(known)] = marks.gold[known]
        names = ("units", "starts", "ends", "numbers", "inputs", "spans")
        columns = {name: np.concatenate((getattr(marks, name)[known], getattr(self, name)[free])) for name in names}
        joined = _Mentions(**columns, gold=gold)
        # The sort is stable: marks precede found mentions with the same tokens.
        return joined._take(np.lexsort((-joined.spans[:, 1], joined.spans[:, 0], joined.inputs)))

    def with_candidates(
        self, places: TokenPositions, mentions: KbMentions, hidden: MaskedSpans | None, draw: np.random.Generator | None
    ) -> CandidateArrays:
        """Build the candidate arrays; candidates of masked mentions are replaced."""
        numbers, fates = self.numbers, None
        if hidden is not None:
            fates = hidden.fates(self.units, self.starts, self.ends)
            others = np.flatnonzero(fates == OTHER)
            if draw is not None and len(others):
                numbers = numbers.copy()
                numbers[others] = draw.choice(np.flatnonzero(mentions.table.sizes), len(others))
        entities, priors = mentions.table.take(numbers)
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

    def _token_keys(self) -> Offsets:
        """Return input, first and last token as one number; an input has less than a million tokens."""
        keys: Offsets = (self.inputs << 40) + (self.spans[:, 0] << 20) + self.spans[:, 1]
        return keys

    def _take(self, order: Offsets) -> _Mentions:
        names = ("units", "starts", "ends", "numbers", "inputs", "spans", "gold")
        return _Mentions(**{name: getattr(self, name)[order] for name in names})


def _found(places: TokenPositions, mentions: KbMentions, rows: Sequence[int]) -> _Mentions:
    """Return the found mentions that begin in the part of a text that its input has."""
    begins, counts = [], []
    offsets, lows, highs = mentions.offsets, places.lows.tolist(), places.highs.tolist()
    for row, low, high in zip(rows, lows, highs, strict=True):
        begin, end = int(offsets[row]), int(offsets[row + 1])
        starts = mentions.starts[begin:end]
        # A window of a long text takes only the mentions that begin in it.
        skipped = int(np.searchsorted(starts, low)) if low else 0
        begins.append(begin + skipped)
        counts.append(int(np.searchsorted(starts, high)) - skipped)
    many = np.array(counts, np.int64)
    at = np.arange(many.sum()) + np.repeat(np.array(begins, np.int64) - (np.cumsum(many) - many), many)
    starts, ends, numbers = (
        column[at].astype(np.int64) for column in (mentions.starts, mentions.ends, mentions.numbers)
    )
    nothing = np.zeros((len(at), 0), np.int64)
    return _Mentions.of(places, np.repeat(np.arange(len(rows)), many), starts, ends, numbers, nothing)


def _marked(tokenized: Sequence[Tokenization], places: TokenPositions, mentions: KbMentions) -> _Mentions | None:
    """Return the marks of a batch that belong to this KB; None if there are none."""
    marks, gold = [], []
    for unit, item in zip(places.first_unit.tolist(), tokenized, strict=True):
        for mark in item.marks:
            key = mark_key(item.texts[mark.segment], mark)
            number = mentions.marked.get(key)
            if number == OTHER_KB:
                continue
            if number is None:
                raise InputError(
                    f"the mark {short(key[0], 60)!r} was not annotated; give all inputs to "
                    "KnowBertProvider.prepare first"
                )
            marks.append((unit + mark.segment, mark.start, mark.end, number))
            gold.append([mentions.gold[id] for id in mark.gold])
    if not marks:
        return None
    gold_rows = np.full((len(gold), max(1, *map(len, gold))), NO_ENTITY, np.int64)
    for number, rows in enumerate(gold):
        gold_rows[number, : len(rows)] = rows
    units, starts, ends, numbers = np.array(marks, np.int64).T
    return _Mentions.of(places, units, starts, ends, numbers, gold_rows)
