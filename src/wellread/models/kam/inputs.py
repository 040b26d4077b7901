"""Inputs of KAM-BERT: relevance maps between the tokens of a text, and its auxiliary terms (eq. 5-8).

`M[i, j]` is the relevance of the words of tokens i and j. Special tokens have no word: all maps are 0 there. A
`KamProvider` has maps and optionally a choice of auxiliary terms. It annotates a dataset once (`prepare`: taggers,
parsers, linkers; cached), and builds the arrays of each batch (`collate`: numpy only).

    provider = KamProvider.build(MapsConfig(maps=("entity", "phrase")), tokenizer)
    texts = provider.segmenter.tokenize_many([("buy glipizide", "Fred Meyer Pharmacy Near Me"), ("One sentence.",)])
    annotations = provider.prepare(texts, cache="runs/annotations")
    inputs = provider.collate(texts, annotations)

Rows and columns of a map are the text's tokens in order, directly followed by those of its auxiliary terms; the rest is
0. Terms take part in the correlation map; other maps are 0 there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Int64

from wellread.data.formats import read_linked
from wellread.document import Document
from wellread.errors import UsageError
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.mentions.annotation_cache import Annotations, Links, Source, annotate, tagger
from wellread.models.kam.auxiliary_terms import TermChoice, WordCorrelation
from wellread.models.kam.maps import (
    CorrelationMap,
    EntityMap,
    FunctionMap,
    GraphMap,
    MapBatch,
    PhraseMap,
    PhraseReading,
    RelevanceMap,
    spread,
)
from wellread.text.stopwords import STOP_WORDS
from wellread.text.tokenization import TextTokenizer, Tokenization

__all__ = [
    "Annotations",
    "CorrelationMap",
    "EntityMap",
    "FunctionMap",
    "GraphMap",
    "KamInputs",
    "KamProvider",
    "Links",
    "MapName",
    "MapsConfig",
    "PhraseMap",
    "RelevanceMap",
    "TermChoice",
]

_T = TypeVar("_T")

MapName = Literal["entity", "phrase", "correlation", "graph"]
LinkFunction = Callable[[list[str]], Iterable[Document]]
"""Maps texts to documents with links, as `Linker.link_many` does."""


@dataclass(frozen=True, slots=True)
class MapsConfig:
    """Selection of maps and auxiliary terms, and their sources."""

    maps: tuple[MapName, ...] = ("entity", "phrase")
    entities: Literal["spacy", "stanza", "linker", "given"] = "spacy"
    """Source of the entity map's mentions."""
    reading: PhraseReading = "chunks"
    """Source of phrases: spaCy's noun chunks or dependency trees, or Stanza's constituency trees."""
    level: int = 1
    """Maximum level of a phrase in its tree; noun chunks have no level."""
    correlation: str | None = None
    """Folder of a table of `wellread correlate`, for the correlation map and auxiliary terms."""
    terms: int = 0
    """Maximum number of tokens of auxiliary terms; 0: no terms."""
    term_words: int | None = None
    """Maximum number of auxiliary terms; None: as many as tokens."""
    term_leave_out: Literal["nothing", "stop-words"] = "nothing"
    """Words that are never an auxiliary term."""
    kb: str | None = None
    """Knowledge base of the graph map and of the linker."""
    linker: str = "auto"
    """Model of the linker, if links are needed."""
    given: str | None = None
    """File of linked text, used instead of a linker."""
    spacy: str | None = None
    """spaCy model other than the default: a folder or an installed package."""
    stanza: str | None = None
    """Folder of Stanza's models."""

    def __post_init__(self) -> None:
        if len(set(self.maps)) < len(self.maps):
            raise UsageError(f"maps = {list(self.maps)} names a map twice; name each once")
        if self.level != 1 and self.reading == "chunks":
            raise UsageError(
                f"level = {self.level}, but noun chunks have no level; choose another reading, or level = 1"
            )
        if self.level < 0 or self.terms < 0:
            raise UsageError(f"level = {self.level} and terms = {self.terms}; expected 0 or more")
        if ("correlation" in self.maps or self.terms) and self.correlation is None:
            what = "the correlation map needs" if "correlation" in self.maps else "auxiliary terms need"
            raise UsageError(f'{what} a table; make one with wellread correlate and give correlation = "its folder"')
        if "graph" in self.maps and self.kb is None:
            raise UsageError('the graph map needs a knowledge base with triples; give kb = "vital", or a path')
        if "entity" in self.maps and self.entities == "linker" and self.kb is None:
            raise UsageError('entities = "linker" needs a knowledge base to link to; give kb = "vital", or a path')
        if "entity" in self.maps and self.entities == "given" and self.given is None:
            raise UsageError('entities = "given" needs a file of linked text; give given = "linked.jsonl"')

    @property
    def needs_kb(self) -> bool:
        """True if a knowledge base is needed, for its triples or to link to."""
        return "graph" in self.maps or ("entity" in self.maps and self.entities == "linker")

    @property
    def needs_linker(self) -> bool:
        """True if `KamProvider.build` needs a linker."""
        by_linker = "entity" in self.maps and self.entities == "linker"
        return by_linker or ("graph" in self.maps and self.given is None)


@dataclass(frozen=True, slots=True)
class KamInputs:
    """Arrays of a batch; `total` is the maximum number of tokens of a text with its auxiliary ones."""

    maps: Float32[np.ndarray, "text map total total"]
    """Row i is the text's i-th token, special ones included; auxiliary tokens follow directly, then zeros."""
    term_ids: Int64[np.ndarray, "text extra"]
    """Token ids of the auxiliary terms, from the left, padded with 0."""
    term_mask: Bool[np.ndarray, "text extra"]
    terms: list[tuple[str, ...]]
    """Auxiliary terms of each text, best first."""


class KamProvider:
    """Knowledge provider of KAM: maps, and auxiliary terms if it has a choice of them."""

    def __init__(
        self, maps: Sequence[RelevanceMap], segmenter: TextTokenizer, *, terms: TermChoice | None = None
    ) -> None:
        self.maps, self.segmenter, self.terms = tuple(maps), segmenter, terms
        self._tokens: dict[str, list[int]] = {}
        names = [each.name for each in self.maps]
        if len(set(names)) < len(names):
            raise UsageError(f"two maps have the same name among {', '.join(names)}; set name= of one of them")
        sources: dict[str, Source] = {}
        for source in (source for each in self.maps for source in each.sources):
            if sources.setdefault(source.name, source) is not source:
                raise UsageError(f"two sources are named {source.name!r}; share one of them, or set name= of one")
        self.sources = tuple(sources.values())

    @classmethod
    def build(
        cls, config: MapsConfig, tokenizer: Any, *, longest: int | None = None, linker: LinkFunction | None = None
    ) -> KamProvider:
        """Return the provider of a recipe; `linker` is a function such as `Linker.load(kb).link_many`."""
        kb = open_kb(config.kb) if config.kb is not None and config.needs_kb else None
        source = _sources(config, kb, linker)
        correlation = _correlation(config)
        makers: dict[MapName, Callable[[], RelevanceMap]] = {
            "entity": lambda: EntityMap(source(config.entities)),
            "phrase": lambda: PhraseMap(
                source("stanza-phrases" if config.reading == "constituency" else "spacy"),
                reading=config.reading,
                level=config.level,
            ),
            "correlation": lambda: CorrelationMap(_required(correlation)),
            "graph": lambda: GraphMap(_required(kb), source("given" if config.given is not None else "linker")),
        }
        terms = None
        if config.terms:
            leave_out = STOP_WORDS if config.term_leave_out == "stop-words" else ()
            terms = TermChoice(
                _required(correlation), tokens=config.terms, words=config.term_words, leave_out=leave_out
            )
        return cls([makers[name]() for name in config.maps], TextTokenizer(tokenizer, longest=longest), terms=terms)

    def prepare(
        self, inputs: Sequence[Tokenization | tuple[str, ...]], *, cache: str | Path | None = None
    ) -> Annotations:
        """Annotate the texts of a dataset by the sources of all maps, and choose their auxiliary terms.

        `cache` is a folder. Give inputs as they were tokenized: auxiliary terms depend on the words that were kept.
        """
        tokenized = [one for one in inputs if isinstance(one, Tokenization)]
        texts = [one.texts if isinstance(one, Tokenization) else one for one in inputs]
        notes = annotate((text for several in texts for text in several), self.sources, folder=cache)
        if self.terms is not None:
            if len(tokenized) < len(inputs):
                tokenized += self.segmenter.tokenize_many([one for one in inputs if not isinstance(one, Tokenization)])
            known = (self.terms.known(one.words) for one in tokenized)
            notes.terms.update(self.terms.choose_many(known, Path(cache) if cache is not None else None))
        return notes

    def build_inputs(self, tokenized: Sequence[Tokenization], notes: Annotations | None = None) -> KamInputs:
        """Return the maps and terms of a batch; without annotations its texts are annotated first."""
        if notes is None:
            notes = self.prepare(tokenized)
        terms = [self._fitting(one, notes) for one in tokenized]
        batch = MapBatch(tokenized, notes, [tuple(word for word, _ in row) for row in terms])
        extra_tokens = [[id for _, ids in row for id in ids] for row in terms]
        total = max((len(one) + len(row) for one, row in zip(tokenized, extra_tokens, strict=True)), default=0)
        # Index batch.width, after all words, has scores of 0.
        place = np.full((len(tokenized), total), batch.width, np.int64)
        term_ids = np.zeros((len(tokenized), max(map(len, extra_tokens), default=0)), np.int64)
        term_mask = np.zeros(term_ids.shape, np.bool_)
        for row, one in enumerate(tokenized):
            place[row, : len(one)] = np.where(one.word_of >= 0, one.word_of, batch.width)
            if extra_tokens[row]:
                at = [len(one.words) + number for number, (_, ids) in enumerate(terms[row]) for _ in ids]
                place[row, len(one) : len(one) + len(at)] = at
                term_ids[row, : len(at)] = extra_tokens[row]
                term_mask[row, : len(at)] = True
        scores = np.zeros((len(tokenized), len(self.maps), batch.width + 1, batch.width + 1), np.float32)
        for number, each in enumerate(self.maps):
            scores[:, number, :-1, :-1] = each.between(batch)
        return KamInputs(spread(scores, place), term_ids, term_mask, list(batch.terms))

    def collate(
        self,
        tokenized: Sequence[Tokenization],
        notes: Annotations | None = None,
        *,
        draw: np.random.Generator | None = None,
    ) -> dict[str, Any]:
        """Return the inputs by the encoder's keywords; masked words are zero in all maps, with or without `draw`."""
        made = self.build_inputs(tokenized, notes)
        inputs: dict[str, Any] = {"maps": made.maps} if self.maps else {}
        return inputs | ({"term_ids": made.term_ids, "term_mask": made.term_mask} if made.term_ids.size else {})

    def _fitting(self, tokenized: Tokenization, notes: Annotations) -> list[tuple[str, list[int]]]:
        """Return an input's auxiliary terms that fit, with their token ids; the first that does not ends the list."""
        if self.terms is None:
            return []
        known = self.terms.known(tokenized.words)
        chosen = notes.terms.get(known.tobytes())
        if chosen is None:
            chosen = notes.terms[known.tobytes()] = self.terms.choose(known)
        if new := [word for word in chosen if word not in self._tokens]:
            self._tokens.update(zip(new, self.segmenter.token_ids_of(new), strict=True))
        fitting, left = [], self.terms.tokens
        for word in chosen:
            ids = self._tokens[word]
            left -= len(ids)
            if left < 0:
                break
            if ids:  # the tokenizer may drop a word
                fitting.append((word, ids))
        return fitting


def _sources(config: MapsConfig, kb: KnowledgeBase | None, linker: LinkFunction | None) -> Callable[[str], Source]:
    """Return a function that makes the sources of a recipe by name, each once."""

    @cache
    def of(name: str) -> Source:
        if name == "spacy":
            return tagger("spacy", config.spacy)
        if name == "stanza" or name == "stanza-phrases":
            return tagger(name, config.stanza)
        if name == "given":
            return Links.given(read_linked(_required(config.given)))
        if linker is None:
            raise UsageError(
                "these maps need a linker; give one, as in KamProvider.build(…, linker=Linker.load(kb).link_many)"
            )
        about = _required(kb).metadata
        return Links(linker, fingerprint=f"{about['uid']} {about['revision']} {_state_of(config.linker)}")

    return of


def _state_of(model: str) -> str:
    """Return a linker's model and, if it is a folder, the state of its files, because it may be trained again."""
    files = sorted(path for path in Path(model).rglob("*") if path.is_file()) if Path(model).is_dir() else []
    return " ".join([model, *(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)])


def _correlation(config: MapsConfig) -> WordCorrelation | None:
    if config.correlation is None:
        return None
    from wellread.correlation.table import Correlation

    return Correlation.load(config.correlation)


def _required(value: _T | None) -> _T:
    """Return a value that `MapsConfig` has checked not to be None."""
    assert value is not None
    return value
