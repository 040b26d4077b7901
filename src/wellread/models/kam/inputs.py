"""Maps: knowledge as N × N relevance between the pieces of a text, ready for a model's attention (KAM-BERT, eq. 5-8).

`M[i, j]` is the relevance of the words that pieces i and j belong to. Special pieces have no word: all maps are 0
there. A `KamProvider` is made of maps and, if wanted, a choice of auxiliary terms. It annotates a dataset once
(`annotate`: taggers, parsers, linkers; cached) and draws the maps of each batch (`lend`: numpy only).

    lender = Lender.build(MapsConfig(maps=("entity", "phrase")), tokenizer)
    cut = lender.segmenter.cut_many([("buy glipizide", "Fred Meyer Pharmacy Near Me"), ("A sentence alone.",)])
    notes = lender.prepare(cut, cache="runs/notes")
    lent = lender.lend(cut, notes)

Rows and columns of a map are the text's pieces as they stand, directly followed by those of its auxiliary terms; what
lies beyond is 0. Terms take part in the correlation map; the other maps are 0 there.
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
from wellread.models.kam.auxiliary_terms import Correlated, TermChoice
from wellread.models.kam.phrases import Reading
from wellread.models.kam.relevance import (
    Batch,
    CorrelationMap,
    EntityMap,
    FunctionMap,
    GraphMap,
    PhraseMap,
    Relevance,
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
    "Relevance",
    "TermChoice",
]

T = TypeVar("T")

MapName = Literal["entity", "phrase", "correlation", "graph"]
Link = Callable[[list[str]], Iterable[Document]]
"""What `Linker.link_many` does: texts in, documents with links out."""


@dataclass(frozen=True, slots=True)
class MapsConfig:
    """Which knowledge is lent, and where it comes from."""

    maps: tuple[MapName, ...] = ("entity", "phrase")
    entities: Literal["spacy", "stanza", "linker", "given"] = "spacy"
    """Whose mentions the entity map has."""
    reading: Reading = "chunks"
    """How phrases are read: spaCy's noun chunks or dependency trees, or Stanza's constituency trees."""
    level: int = 1
    """How high in a tree a phrase may reach; noun chunks have no level."""
    correlation: str | None = None
    """A table of correlations (`wellread correlate`), for the correlation map and auxiliary terms."""
    terms: int = 0
    """Pieces of auxiliary terms at most; 0 is none."""
    term_words: int | None = None
    """Auxiliary terms at most; without it as many as pieces."""
    term_leave_out: Literal["nothing", "stop-words"] = "nothing"
    """What is never an auxiliary term."""
    kb: str | None = None
    """The knowledge base of the graph map and of the linker."""
    linker: str = "auto"
    """The linker's model, where links are asked for."""
    given: str | None = None
    """A file of linked text: the links that a user has, instead of a linker's."""
    spacy: str | None = None
    """Another spaCy model than the default: a folder or an installed one."""
    stanza: str | None = None
    """The folder of Stanza's models."""

    def __post_init__(self) -> None:
        if len(set(self.maps)) < len(self.maps):
            raise UsageError(f"maps = {list(self.maps)} names a map twice; name each once")
        if self.level != 1 and self.reading == "chunks":
            raise UsageError(f"level = {self.level}, and noun chunks have no level; give another reading, or level = 1")
        if self.level < 0 or self.terms < 0:
            raise UsageError(f"level = {self.level} and terms = {self.terms}; neither can be less than 0")
        if ("correlation" in self.maps or self.terms) and self.correlation is None:
            what = "the correlation map needs" if "correlation" in self.maps else "auxiliary terms need"
            raise UsageError(f'{what} a table; make one with wellread correlate and give correlation = "its folder"')
        if "graph" in self.maps and self.kb is None:
            raise UsageError('the graph map needs a knowledge base to know facts from; give kb = "vital", or a path')
        if "entity" in self.maps and self.entities == "linker" and self.kb is None:
            raise UsageError('entities = "linker" needs a knowledge base to link to; give kb = "vital", or a path')
        if "entity" in self.maps and self.entities == "given" and self.given is None:
            raise UsageError('entities = "given" needs the file that has them; give given = "linked.jsonl"')

    @property
    def needs_kb(self) -> bool:
        """Whether a knowledge base has a part in it, for its facts or to link to."""
        return "graph" in self.maps or ("entity" in self.maps and self.entities == "linker")

    @property
    def needs_linker(self) -> bool:
        """Whether `KamProvider.build` must be given a linker."""
        by_linker = "entity" in self.maps and self.entities == "linker"
        return by_linker or ("graph" in self.maps and self.given is None)


@dataclass(frozen=True, slots=True)
class KamInputs:
    """What the texts of a batch are lent; `total` is the most pieces of any text with its auxiliary ones."""

    maps: Float32[np.ndarray, "text map total total"]
    """Row i is the text's i-th piece, special ones included; auxiliary pieces follow directly. 0 beyond them."""
    term_ids: Int64[np.ndarray, "text extra"]
    """The pieces of the auxiliary terms, from the left; 0 where there is none."""
    term_mask: Bool[np.ndarray, "text extra"]
    terms: list[tuple[str, ...]]
    """The auxiliary terms of each text, best first."""


class KamProvider:
    """Lends knowledge to inputs: its maps, and auxiliary terms if it has a choice of them."""

    def __init__(self, maps: Sequence[Relevance], segmenter: TextTokenizer, *, terms: TermChoice | None = None) -> None:
        self.maps, self.segmenter, self.terms = tuple(maps), segmenter, terms
        self._tokens: dict[str, list[int]] = {}
        names = [each.name for each in self.maps]
        if len(set(names)) < len(names):
            raise UsageError(f"two maps have one name among {', '.join(names)}; give one of them another name=")
        sources: dict[str, Source] = {}
        for source in (source for each in self.maps for source in each.sources):
            if sources.setdefault(source.name, source) is not source:
                raise UsageError(f"two sources are called {source.name!r}; share one, or give one another name=")
        self.sources = tuple(sources.values())

    @classmethod
    def build(
        cls, config: MapsConfig, tokenizer: Any, *, longest: int | None = None, linker: Link | None = None
    ) -> KamProvider:
        """The lender that a recipe asks for; `linker` is what links, e.g. `Linker.load(kb).link_many`."""
        kb = open_kb(config.kb) if config.kb is not None and config.needs_kb else None
        source = _sources(config, kb, linker)
        correlation = _correlation(config)
        makers: dict[MapName, Callable[[], Relevance]] = {
            "entity": lambda: EntityMap(source(config.entities)),
            "phrase": lambda: PhraseMap(
                source("stanza-phrases" if config.reading == "constituency" else "spacy"),
                reading=config.reading,
                level=config.level,
            ),
            "correlation": lambda: CorrelationMap(_there(correlation)),
            "graph": lambda: GraphMap(_there(kb), source("given" if config.given is not None else "linker")),
        }
        terms = None
        if config.terms:
            leave_out = STOP_WORDS if config.term_leave_out == "stop-words" else ()
            terms = TermChoice(_there(correlation), tokens=config.terms, words=config.term_words, leave_out=leave_out)
        return cls([makers[name]() for name in config.maps], TextTokenizer(tokenizer, longest=longest), terms=terms)

    def prepare(
        self, inputs: Sequence[Tokenization | tuple[str, ...]], *, cache: str | Path | None = None
    ) -> Annotations:
        """What the sources of all maps find in the texts, and the auxiliary terms; once for a dataset, and kept.

        `cache` is a folder. Give inputs as they were cut: their auxiliary terms are chosen by the words that were left.
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
        """The maps and terms of a batch; without annotations its texts are annotated now."""
        if notes is None:
            notes = self.prepare(tokenized)
        terms = [self._fitting(one, notes) for one in tokenized]
        batch = Batch(tokenized, notes, [tuple(word for word, _ in row) for row in terms])
        extra_tokens = [[id for _, ids in row for id in ids] for row in terms]
        total = max((len(one) + len(row) for one, row in zip(tokenized, extra_tokens, strict=True)), default=0)
        place = np.full(
            (len(tokenized), total), batch.width, np.int64
        )  # one place past the words, where all scores are 0
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
        """The same by the keywords of the encoder; of hidden words nothing is told, whatever is drawn."""
        provided = self.build_inputs(tokenized, notes)
        told = {"maps": provided.maps} if self.maps else {}
        return told | (
            {"term_ids": provided.term_ids, "term_mask": provided.term_mask} if provided.term_ids.size else {}
        )

    def _fitting(self, tokenized: Tokenization, notes: Annotations) -> list[tuple[str, list[int]]]:
        """The auxiliary terms of an input that fit, each with its pieces; the first that does not ends the list."""
        if self.terms is None:
            return []
        known = self.terms.known(tokenized.words)
        chosen = notes.terms.get(known.tobytes())
        if chosen is None:
            chosen = notes.terms[known.tobytes()] = self.terms.choose(known)
        if new := [word for word in chosen if word not in self._tokens]:
            self._tokens.update(zip(new, self.segmenter.token_ids_of(new), strict=True))
        fitting, room = [], self.terms.tokens
        for word in chosen:
            ids = self._tokens[word]
            room -= len(ids)
            if room < 0:
                break
            if ids:  # what the tokenizer makes nothing of has nothing to say
                fitting.append((word, ids))
        return fitting


def _sources(config: MapsConfig, kb: KnowledgeBase | None, linker: Link | None) -> Callable[[str], Source]:
    """The sources that a recipe names, each made once."""

    @cache
    def of(name: str) -> Source:
        if name == "spacy":
            return tagger("spacy", config.spacy)
        if name == "stanza" or name == "stanza-phrases":
            return tagger(name, config.stanza)
        if name == "given":
            return Links.given(read_linked(_there(config.given)))
        if linker is None:
            raise UsageError(
                "these maps need a linker; give one, as in Lender.build(…, linker=Linker.load(kb).link_many)"
            )
        about = _there(kb).metadata
        return Links(linker, fingerprint=f"{about['uid']} {about['revision']} {_state_of(config.linker)}")

    return of


def _state_of(model: str) -> str:
    """A linker's model, and if it is a folder what lies in it now: it may be learned anew under its old name."""
    files = sorted(path for path in Path(model).rglob("*") if path.is_file()) if Path(model).is_dir() else []
    return " ".join([model, *(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)])


def _correlation(config: MapsConfig) -> Correlated | None:
    if config.correlation is None:
        return None
    from wellread.correlation.table import Correlation

    return Correlation.load(config.correlation)


def _there(value: T | None) -> T:
    """What `MapsConfig` has seen to."""
    assert value is not None
    return value
