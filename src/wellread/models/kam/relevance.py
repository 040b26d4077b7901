"""Knowledge as relevance between words: the maps of KAM-BERT before they are drawn over pieces.

Bai et al. 2022, "Enhancing Self-Attention with Knowledge-Assisted Attention Maps", equations 5-8:

- `EntityMap`: both words lie in one and the same mention; a word outside of mentions is not even relevant to itself;
- `PhraseMap`: both words are of the same phrase and segment;
- `CorrelationMap`: how much oftener than by chance the two occur together; also between auxiliary terms;
- `GraphMap`: an entity of one word and an entity of the other are joined by a fact;
- `FunctionMap`: whatever a user's function says.

All but phrases reach across segments (a mention never does: it lies in one text). A map answers for a batch at once:
[text, word, word], where the words of a text are followed by its auxiliary terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Float32, Int64
from numpy.typing import NDArray

from wellread.document import Document
from wellread.errors import InputError
from wellread.index.triples import Joined
from wellread.kb.store import KnowledgeBase
from wellread.mentions.annotation_cache import Annotations, Source, TaggerName, tagger
from wellread.models.kam.auxiliary_terms import Correlated, Vocabulary
from wellread.models.kam.phrases import Reading, phrases
from wellread.text.tokenization import Tokenization

Scores = Float32[np.ndarray, "text word word"]


@dataclass(frozen=True)
class Batch:
    """Inputs with their annotations and auxiliary terms, and how the words of one lead to the words of the other."""

    tokenized: Sequence[Tokenization]
    notes: Annotations
    terms: Sequence[tuple[str, ...]]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The words of each input."""
        return np.fromiter((len(one.words) for one in self.tokenized), np.int64, len(self.tokenized))

    @cached_property
    def width(self) -> int:
        """The words and terms of the input that has most."""
        return int(
            max((len(one.words) + len(terms) for one, terms in zip(self.tokenized, self.terms, strict=True)), default=0)
        )

    @cached_property
    def hidden(self) -> Bool[np.ndarray, "text word"]:
        """Words that nobody may tell of: a task hid them, and left an empty word in their place."""
        hidden = np.zeros((len(self.tokenized), self.width), np.bool_)
        for number, one in enumerate(self.tokenized):
            hidden[number, [place for place, word in enumerate(one.words) if not word]] = True
        return hidden

    @cached_property
    def gaps(self) -> Int64[np.ndarray, "text end"] | None:
        """Before each word and the end: how many hidden pieces of no word, as the "-" of "rock-and-roll"."""
        if not any(one.hidden for one in self.tokenized):
            return None
        gaps = np.zeros((len(self.tokenized), self.width + 1), np.int64)
        for number, one in enumerate(self.tokenized):
            for token in one.hidden:
                segment = one.segment_of[token]
                first, last = np.searchsorted(one.word_segment, (segment, segment + 1))
                behind = np.searchsorted(one.word_spans[first:last, 0], one.spans[token, 0])
                gaps[number, first + behind :] += 1
        return gaps

    @cached_property
    def segments(self) -> Segments:
        """All segments of all inputs, one after the other; one with words left out of its middle in parts."""
        columns: list[tuple[int, int, int, int, int, int]] = []
        for number, one in enumerate(self.tokenized):
            begins = np.searchsorted(one.word_segment, np.arange(len(one.texts) + 1)).tolist()
            for segment, text in enumerate(one.texts):
                row, first, place = self.notes.row_of(text), one.first_words[segment], begins[segment]
                for hole in one.omitted if segment == 0 else ():
                    columns.append((number, segment, row, first, place, hole.place - place))
                    first, place = first + hole.place - place + hole.words, hole.place
                columns.append((number, segment, row, first, place, begins[segment + 1] - place))
        return Segments(*np.array(columns, np.int64).reshape(-1, 6).T)


@dataclass(frozen=True, slots=True)
class Segments:
    """The columns of the segments of a batch, or of their parts without a hole."""

    text: NDArray[np.int64]
    number: NDArray[np.int64]
    row: NDArray[np.int64]
    """Its text in the annotations."""
    first: NDArray[np.int64]
    """The number its first word has there."""
    place: NDArray[np.int64]
    """The number its first word has in the input."""
    count: NDArray[np.int64]


class Relevance(Protocol):
    """A map: its name, the sources that must have annotated the texts, and the scores it gives."""

    name: str
    sources: tuple[Source, ...]

    def between(self, batch: Batch) -> Scores:
        """Relevance in [0, 1] between all words of each text, and its terms."""


class EntityMap:
    """1 where both words lie in one and the same mention (eq. 5)."""

    sources: tuple[Source, ...]

    def __init__(self, source: Source | Literal["spacy", "stanza"] = "spacy", name: str = "entity") -> None:
        self.name = name
        self.sources = (tagger(source) if isinstance(source, str) else source,)

    def between(self, batch: Batch) -> Scores:  # noqa: D102
        inside = _mentions(batch, self.sources[0].name).inside(batch.width).astype(np.float32)
        return np.asarray(np.minimum(inside.transpose(0, 2, 1) @ inside, np.float32(1)))


class PhraseMap:
    """1 where both words are of the same phrase and segment (eq. 6); every word is of some phrase."""

    sources: tuple[Source, ...]

    def __init__(
        self, source: Source | None = None, *, level: int = 1, reading: Reading = "chunks", name: str = "phrase"
    ) -> None:
        usual: TaggerName = "stanza-phrases" if reading == "constituency" else "spacy"
        self.name, self.sources = name, (source or tagger(usual),)
        self.reading, self.level = reading, level

    def between(self, batch: Batch) -> Scores:  # noqa: D102
        here = batch.segments
        numbers = phrases(batch.notes, self.sources[0].name, self.reading, self.level)
        words, text = (
            _ranges(batch.notes.words.offsets[here.row] + here.first, here.count),
            np.repeat(here.text, here.count),
        )
        phrase = np.full((len(batch.tokenized), batch.width), _NO_PHRASE, np.int64)
        # One text may be both segments: what is a phrase in both is two phrases.
        phrase[text, _ranges(here.place, here.count)] = 2 * numbers[words] + np.repeat(here.number, here.count)
        same = phrase[:, :, None] == phrase[:, None, :]
        same &= (phrase != _NO_PHRASE)[:, :, None]
        broken = (same & batch.hidden[:, None, :]).any(axis=2)  # the parser saw what is hidden
        if batch.gaps is not None and batch.width:
            first, last = same.argmax(axis=2), batch.width - 1 - same[:, :, ::-1].argmax(axis=2)
            broken |= np.take_along_axis(batch.gaps, first, 1) < np.take_along_axis(batch.gaps, last, 1)
        same &= ~(broken[:, :, None] | broken[:, None, :])
        return np.asarray(same, np.float32)


class CorrelationMap:
    """How much oftener than by chance two words occur together (eq. 7), as a table of correlations says."""

    sources: tuple[Source, ...] = ()

    def __init__(self, correlation: Correlated, name: str = "correlation") -> None:
        self.name, self.vocabulary = name, Vocabulary(correlation)

    def between(self, batch: Batch) -> Scores:  # noqa: D102
        words = [(*one.words, *terms) for one, terms in zip(batch.tokenized, batch.terms, strict=True)]
        ids = np.full((len(words), batch.width), -1, np.int64)
        ids[_mask([len(row) for row in words], batch.width)] = self.vocabulary.ids_of(
            word for row in words for word in row
        )
        # A word that is there twice is asked for once, and each pair in one order only.
        order = np.sort(ids, axis=1)
        order[:, 1:][order[:, 1:] == order[:, :-1]] = -1
        order = np.sort(order, axis=1)
        most = int((order >= 0).sum(axis=1).max(initial=0))
        order = order[:, order.shape[1] - most :]
        one, other = np.triu_indices(most, 1)
        asked = order[:, one] >= 0
        scores = np.zeros((len(words), most, most), np.float32)
        text, pair = np.nonzero(asked)
        found = self.vocabulary.correlation.relevance_of(order[text, one[pair]], order[text, other[pair]])
        scores[text, one[pair], other[pair]] = scores[text, other[pair], one[pair]] = found
        text, place = np.nonzero(order >= 0)
        scores[text, place, place] = 1
        return _spread(scores, order, ids)


class GraphMap:
    """1 where an entity of one word and an entity of the other are joined by a fact, in either direction (eq. 8)."""

    sources: tuple[Source, ...]

    def __init__(self, kb: KnowledgeBase, source: Source, name: str = "graph") -> None:
        self.name, self.sources, self.kb = name, (source,), kb

    def between(self, batch: Batch) -> Scores:  # noqa: D102
        source = self.sources[0].name
        numbers, ids = batch.notes.names(source)
        joined = batch.notes.once((self.name, source, str(self.kb.path)), lambda: Joined.read(self.kb, ids))
        mentions = _mentions(batch, source)
        entity = mentions.padded(numbers)
        facts = joined.between(*np.broadcast_arrays(entity[:, :, None], entity[:, None, :])).astype(np.float32)
        inside = mentions.inside(batch.width).astype(np.float32)
        return np.minimum(inside.transpose(0, 2, 1) @ facts @ inside, np.float32(1))


class FunctionMap:
    """What a user's function says: from an input with n words to n × n numbers in [0, 1].

    >>> same_length = FunctionMap(lambda cut: [[len(one) == len(other) for other in cut.words] for one in cut.words])

    With a source the function is also given a `Document` for each segment, with what the source found as its links.
    """

    sources: tuple[Source, ...]

    def __init__(self, function: Callable[..., Any], source: Source | None = None, name: str = "function") -> None:
        self.name, self.function, self.sources = name, function, (source,) if source else ()

    def between(self, batch: Batch) -> Scores:  # noqa: D102
        scores = np.zeros((len(batch.tokenized), batch.width, batch.width), np.float32)
        for number, one in enumerate(batch.tokenized):
            count = len(one.words)
            scores[number, :count, :count] = self._checked(self.function(one, *self._documents(batch, one)), one)
        return scores

    def _documents(self, batch: Batch, tokenized: Tokenization) -> Iterator[tuple[Document, ...]]:
        if self.sources:
            yield tuple(batch.notes.document(self.sources[0].name, text) for text in tokenized.texts)

    def _checked(self, given: Any, tokenized: Tokenization) -> NDArray[np.float64]:
        count = len(tokenized.words)
        try:
            scores = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"the map {self.name!r} gave no matrix ({error}); {_EXPECTED}") from error
        if count == 0 and scores.size == 0:
            return np.zeros((0, 0))
        if scores.shape != (count, count):
            shape = " × ".join(map(str, scores.shape)) or "a single number"
            raise InputError(f"the map {self.name!r} gave {shape} for {count} words; {_EXPECTED}")
        if not ((scores >= 0) & (scores <= 1)).all():  # NaN is neither
            low, high = scores.min(), scores.max()
            raise InputError(
                f"the map {self.name!r} gave scores from {low:g} to {high:g}; {_EXPECTED}: divide by the largest, or "
                "take max(score, 0)"
            )
        return scores


_NO_PHRASE = np.iinfo(np.int64).min
_EXPECTED = "expected a score from 0 to 1 for each pair of cut.words"


@dataclass(frozen=True, slots=True)
class _Mentions:
    """The mentions of a batch: which text each is in, from which to which of the input's words, and its number."""

    texts: int
    text: NDArray[np.int64]
    slot: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    number: NDArray[np.int64]

    def padded(self, values: NDArray[np.int64]) -> Int64[np.ndarray, "text mention"]:
        """The value of each mention; -1 where there is none."""
        padded = np.full((self.texts, int(self.slot.max(initial=-1)) + 1), -1, np.int64)
        padded[self.text, self.slot] = values[self.number]
        return padded

    def inside(self, width: int) -> Bool[np.ndarray, "text mention word"]:
        """Whether each word lies in each mention."""
        first, last = np.zeros((2, self.texts, int(self.slot.max(initial=-1)) + 1, 1), np.int64)
        first[self.text, self.slot, 0], last[self.text, self.slot, 0] = self.first, self.last
        words = np.arange(width)
        return np.asarray((words >= first) & (words < last))


def _mentions(batch: Batch, source: str) -> _Mentions:
    """The mentions of which at least a word is left in the batch's inputs, and no part is hidden."""
    here, found = batch.segments, batch.notes.mentions(source)
    counts = found.offsets[here.row + 1] - found.offsets[here.row]
    number = _ranges(found.offsets[here.row], counts)
    shift, place, count, text = (np.repeat(each, counts) for each in (here.first, here.place, here.count, here.text))
    first, last = (np.clip(found.values[number, side] - shift, 0, count) + place for side in (0, 1))
    before = np.zeros((len(batch.tokenized), batch.width + 1), np.int64)
    np.cumsum(batch.hidden, axis=1, out=before[:, 1:])
    kept = (first < last) & (before[text, first] == before[text, last])
    if batch.gaps is not None:
        kept &= batch.gaps[text, first] == batch.gaps[text, np.maximum(last - 1, first)]
    text, first, last, number = text[kept], first[kept], last[kept], number[kept]
    slot = np.arange(len(text)) - np.searchsorted(text, text)
    return _Mentions(len(batch.tokenized), text, slot, first, last, number)


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each start on, as many as it counts: [5, 0], [2, 3] -> [5, 6, 0, 1, 2]."""
    return np.asarray(np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts))


def _mask(counts: Sequence[int] | NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    return np.asarray(np.arange(width) < np.asarray(counts, np.int64)[:, None])


def _spread(scores: Scores, order: NDArray[np.int64], ids: NDArray[np.int64]) -> Scores:
    """The scores of distinct ids for the ids as they stand in the texts; 0 for -1. A row of `order` is sorted."""
    texts, most = order.shape
    if not most:
        return np.zeros((texts, ids.shape[1], ids.shape[1]), np.float32)
    size = int(max(order.max(initial=0), ids.max(initial=0))) + 2
    rows = np.arange(texts)[:, None] * size
    place = np.searchsorted((order + 1 + rows).reshape(-1), (ids + 1 + rows).reshape(-1)).reshape(ids.shape)
    place = np.where(ids >= 0, place - np.arange(texts)[:, None] * most, most)
    edged = np.zeros((texts, most + 1, most + 1), np.float32)
    edged[:, :most, :most] = scores
    return spread(edged, place)


def spread(
    scores: Float32[np.ndarray, "text *map from from"], place: Int64[np.ndarray, "text to"]
) -> Float32[np.ndarray, "text *map to to"]:
    """`spread(scores, place)[t, …, i, j]` is `scores[t, …, place[t, i], place[t, j]]`."""
    result = np.empty((*scores.shape[:-2], place.shape[1], place.shape[1]), np.float32)
    for one, into, at in zip(scores, result, place, strict=True):
        # Whole rows first, which are copied at once; with another mode numpy would fill a copy of `out`.
        np.take(one.take(at, axis=-2), at, axis=-1, out=into, mode="clip")
    return result
