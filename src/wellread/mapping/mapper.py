"""`NameMapper`: maps strings to the entities of one KB, by name and, with an entity encoder, by meaning.

Names come first: strings whose best match is nearly certain by name are not encoded, unless they have a context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.errors import UsageError
from wellread.index.entity_index import EntityIndex
from wellread.index.entity_vectors import EntityEncoder
from wellread.kb.store import KnowledgeBase
from wellread.mapping.features import (
    FEATURES,
    Given,
    Matrix,
    best_values,
    entity_features,
    fill_gaps,
    found_by,
    name_features,
)
from wellread.mapping.name_index import NEAREST, NameIndex
from wellread.mapping.normal_form import normal_words
from wellread.mapping.results import THRESHOLD, EntityMatch, MappedString
from wellread.mapping.scorer import Evidence, NameScorer, choice_probabilities, packaged

BATCH = 1024
"""Strings mapped together."""
SURE = 0.9
"""Probability by name from which on meaning is not looked at."""
LONGEST = 500
"""Characters of a string that are compared; those of a context are cut to `_LONGEST_CONTEXT`."""
_LONGEST_CONTEXT = 2_000
_BEARERS = 12
"""Maximum entities of one name that are compared, the likeliest ones."""
_NEAREST = 10
"""Entities found by meaning."""
_MEANING, _GAP, _ONLY, _CONTEXT, _CONTEXT_GAP = (
    FEATURES.index(name) for name in ("by_meaning", "meaning_gap", "meaning_only", "by_context", "context_gap")
)
_COSINE = FEATURES.index("cosine")

Pair = tuple[int, int, int]
"""A string of the batch, a row of the name index, and a place among the row's bearers."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Entity vectors of a KB and their encoder."""

    index: EntityIndex
    encoder: EntityEncoder


@dataclass(frozen=True, slots=True)
class Scored:
    """Pairs of a batch with features and the kind of evidence of each string."""

    pairs: list[Pair]
    rows: Matrix
    evidence: list[Evidence]

    def __len__(self) -> int:
        return len(self.pairs)


class NameMapper:
    """Maps strings to the entities of a KB as it is when the mapper is made."""

    def __init__(self, index: NameIndex, meaning: Meaning | None = None, scorer: NameScorer | None = None) -> None:
        self.index, self.meaning = index, meaning
        self.scorer = packaged() if scorer is None else scorer
        self._numbers = {id: number for number, (id, _) in enumerate(index.entities)}

    @classmethod
    def load(cls, kb: KnowledgeBase, meaning: Meaning | None = None) -> NameMapper:
        """Index the names of a KB."""
        return cls(NameIndex.of_kb(kb), meaning)

    def map(
        self,
        strings: Iterable[str],
        context: Iterable[str | None] | None = None,
        *,
        best: int = 1,
        threshold: float = THRESHOLD,
    ) -> Iterator[MappedString]:
        """Yield each string with its `best` matches; equal strings of a batch are compared once."""
        if isinstance(strings, str):
            raise UsageError("map takes several strings; give a list, even of one")
        if best < 1:
            raise UsageError(f"best={best} matches were asked for; give 1 or more")
        if not 0 <= threshold <= 1:
            raise UsageError(f"threshold={threshold} is not a probability; give a number from 0 to 1")
        if isinstance(context, str):
            raise UsageError("context is one text for each string; give a list")
        if context is not None and self.meaning is None:
            raise UsageError("a context needs an entity encoder; map with a linker of model elq, or without context")
        stream = _paired(strings, context)
        while batch := list(islice(stream, BATCH)):
            if wrong := {type(text).__name__ for text, _ in batch if not isinstance(text, str)}:
                raise UsageError(f"map was given {', '.join(sorted(wrong))} among its strings; give each as a str")
            keys = [(text.strip()[:LONGEST], (about or "").strip()[:_LONGEST_CONTEXT]) for text, about in batch]
            distinct = list(dict.fromkeys(keys))
            found = dict(zip(distinct, self._map(distinct, best), strict=True))
            for (text, _), key in zip(batch, keys, strict=True):
                yield MappedString(text, found[key], threshold)

    def _map(self, batch: Sequence[tuple[str, str]], best: int) -> list[tuple[EntityMatch, ...]]:
        scored = self.score(batch)
        groups = np.array([pair[0] for pair in scored.pairs], np.int64)
        found: list[tuple[EntityMatch, ...]] = [()] * len(batch)
        if not len(groups):
            return found
        scores = choice_probabilities(self._utilities(scored), groups, len(batch))
        of_string: dict[int, list[int]] = defaultdict(list)
        for at, number in enumerate(groups.tolist()):
            of_string[number].append(at)
        for number, places in of_string.items():
            places.sort(key=lambda at: (-scores[at], scored.pairs[at][1:]))
            found[number] = tuple(self._match(scored, at, scores[at], batch[number][0]) for at in places[:best])
        return found

    def _match(self, scored: Scored, at: int, score: float, text: str) -> EntityMatch:
        _, row, place = scored.pairs[at]
        holder = self.index.bearers[row][place]
        id, title = self.index.entities[holder.entity]
        name = text if text in holder.spellings else holder.spellings[0]
        return EntityMatch(id, title, round(float(score), 4), name, found_by(scored.rows[at], name, text))

    def score(self, batch: Sequence[tuple[str, str]]) -> Scored:
        """Return the pairs of strings and entities to choose from; a string is a text and its context, "" for none."""
        given = [Given.of(text, normal_words(text)) for text, _ in batch]
        pairs, rows, nearest = self._by_name(given)
        evidence: list[Evidence] = ["names"] * len(batch)
        if self.meaning is not None:
            groups = np.array([pair[0] for pair in pairs], np.int64)
            scores = choice_probabilities(self.scorer.utilities(rows, "names"), groups, len(batch))
            top = np.zeros(len(batch))
            np.maximum.at(top, groups, scores)
            open_ = [at for at, (_, about) in enumerate(batch) if given[at].form and (about or top[at] < SURE)]
            for at in open_:
                evidence[at] = "context" if batch[at][1] else "meaning"
            if open_:
                pairs, rows = self._by_meaning(self.meaning, batch, given, open_, pairs, rows, nearest)
        return Scored(pairs, rows, evidence)

    def _utilities(self, scored: Scored) -> NDArray[np.float64]:
        kinds = np.array([scored.evidence[pair[0]] for pair in scored.pairs])
        found = np.zeros(len(kinds))
        for kind in self.scorer.weights:
            mask = kinds == kind
            found[mask] = self.scorer.utilities(scored.rows[mask], kind)
        return found

    def _by_name(self, given: Sequence[Given]) -> tuple[list[Pair], Matrix, Matrix]:
        """Return the entities with a similar name, each with its best name, and the best values for the gaps."""
        vectors = self.index.ngrams.encode([one.form for one in given])
        nearest = self.index.ngrams.nearest(vectors, NEAREST)
        named: list[tuple[int, int]] = []
        for number, one in enumerate(given):
            if one.form:
                found = self.index.rows_of(one.words)
                found.update(dict.fromkeys(nearest[number].tolist()))
                named += ((number, row) for row in found)
        pairs, rows = self._expand(given, named, vectors)
        groups = np.array([pair[0] for pair in pairs], np.int64)
        best = best_values(rows, groups, len(given))
        fill_gaps(rows, groups, best)
        return *self._best_names(pairs, rows), best

    def _expand(self, given: Sequence[Given], named: list[tuple[int, int]], vectors: Any) -> tuple[list[Pair], Matrix]:
        """Return the pairs of strings and bearers of rows, with their features."""
        numbers = np.array([number for number, _ in named], np.int64)
        rows = np.array([row for _, row in named], np.int64)
        cosines = self.index.ngrams.cosines(vectors, numbers, rows)
        features = name_features(self.index, given, named, cosines)
        pairs: list[Pair] = []
        source: list[int] = []
        for at, (number, row) in enumerate(named):
            count = min(_BEARERS, len(self.index.bearers[row]))
            pairs += ((number, row, place) for place in range(count))
            source += [at] * count
        spread = features[np.array(source, np.int64)]
        entity_features(self.index, spread, [(given[number].text, row, place) for number, row, place in pairs])
        return pairs, spread

    def _best_names(self, pairs: list[Pair], rows: Matrix) -> tuple[list[Pair], Matrix]:
        """Keep the most similar name of each entity."""
        utilities = self.scorer.utilities(rows, "names").tolist()
        best: dict[tuple[int, int], int] = {}
        for at, (number, row, place) in enumerate(pairs):
            key = number, self.index.bearers[row][place].entity
            if key not in best or utilities[at] > utilities[best[key]]:
                best[key] = at
        kept = sorted(best.values())
        return [pairs[at] for at in kept], rows[np.array(kept, np.int64)]

    def _by_meaning(
        self,
        meaning: Meaning,
        batch: Sequence[tuple[str, str]],
        given: Sequence[Given],
        open_: Sequence[int],
        pairs: list[Pair],
        rows: Matrix,
        best: Matrix,
    ) -> tuple[list[Pair], Matrix]:
        """Add the entities nearest by meaning, and the features of meaning and context, for some strings."""
        plain = meaning.encoder.encode([(batch[at][0], "") for at in open_])
        about = [at for at in open_ if batch[at][1]]
        contexts = meaning.encoder.encode([batch[at] for at in about]) if about else plain[:0]
        there = {(number, self.index.bearers[row][place].entity) for number, row, place in pairs}
        added: list[tuple[int, int]] = []
        for numbers, vectors in ((open_, plain), (about, contexts)):
            if not len(vectors):
                continue
            nearest = meaning.index.search(vectors, k=min(_NEAREST, max(1, len(meaning.index))))[1]
            for at, found in zip(numbers, nearest, strict=True):
                for id in meaning.index.entities(found):
                    entity = self._numbers.get(id)
                    if entity is not None and (at, entity) not in there:
                        there.add((at, entity))
                        added.append((at, entity))
        more_pairs, more_rows = self._names_of(given, added, best)
        pairs, rows = [*pairs, *more_pairs], np.concatenate([rows, more_rows])
        self._compare(meaning, pairs, rows, _MEANING, open_, plain)
        self._compare(meaning, pairs, rows, _CONTEXT, about, contexts)
        return pairs, rows

    def _names_of(
        self, given: Sequence[Given], added: list[tuple[int, int]], best: Matrix
    ) -> tuple[list[Pair], Matrix]:
        """Return pairs of strings and entities, each with its most similar name."""
        if not added:
            return [], np.zeros((0, len(FEATURES)), np.float32)
        wanted = set(added)
        named = [(at, row) for at, entity in added for row in self.index.of_entity[entity][:_BEARERS]]
        vectors = self.index.ngrams.encode([one.form for one in given])
        pairs, rows = self._expand(given, list(dict.fromkeys(named)), vectors)
        fill_gaps(rows, np.array([pair[0] for pair in pairs], np.int64), best)
        pairs, rows = self._best_names(pairs, rows)
        kept = [
            place
            for place, (at, row, holder) in enumerate(pairs)
            if (at, self.index.bearers[row][holder].entity) in wanted
        ]
        rows = rows[np.array(kept, np.int64)]
        rows[:, _ONLY] = rows[:, _COSINE] < 0.3
        return [pairs[place] for place in kept], rows

    def _compare(
        self,
        meaning: Meaning,
        pairs: Sequence[Pair],
        rows: Matrix,
        column: int,
        numbers: Sequence[int],
        vectors: NDArray[np.float32],
    ) -> None:
        """Fill a column with the similarity of vectors, and the next one with its distance to the string's highest."""
        if not len(numbers):
            return
        place = {number: at for at, number in enumerate(numbers)}
        some = [at for at, pair in enumerate(pairs) if pair[0] in place]
        ids = [self.index.entities[self.index.bearers[pairs[at][1]][pairs[at][2]].entity][0] for at in some]
        distinct = list(dict.fromkeys(ids))
        of_id = dict(zip(distinct, range(len(distinct)), strict=True))
        entities = meaning.index.vectors_of(meaning.index.rows_of(distinct))
        left = np.array([place[pairs[at][0]] for at in some], np.int64)
        right = np.array([of_id[id] for id in ids], np.int64)
        scores = np.einsum("ij,ij->i", vectors[left], entities[right])
        highest = np.full(len(numbers), -np.inf, np.float32)
        np.maximum.at(highest, left, scores)
        rows[np.array(some, np.int64), column] = scores
        rows[np.array(some, np.int64), column + 1] = scores - highest[left]


def _paired(strings: Iterable[str], context: Iterable[str | None] | None) -> Iterator[tuple[str, str | None]]:
    """Yield each string with its context; there must be as many of both."""
    if context is None:
        yield from zip(strings, repeat(None))
        return
    missing = object()
    for text, about in zip_longest(strings, context, fillvalue=missing):
        if text is missing or about is missing:
            raise UsageError("context has another number of texts than there are strings; give one for each string")
        if about is not None and not isinstance(about, str):
            raise UsageError(f"context has {type(about).__name__} among its texts; give each as a str, or None")
        yield text, about  # type: ignore[misc]
