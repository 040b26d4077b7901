"""From a text to its mentions with candidates and priors, as KnowBERT asks for them (papers/knowbert: Candidates).

Spans that the matcher finds are looked up by their key. A form keeps to the part of speech whose rule made it: "ran"
has the verb's senses of "run" and not the noun's. Where the text is tagged, the tag decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby

import numpy as np

from wellread.kb.names import Case, as_signed, key
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase, rank
from wellread.mentions.compiled import ALL_KINDS, KIND_BITS
from wellread.mentions.match import Matcher, Overlaps
from wellread.mentions.stopwords import FUNCTION_WORDS, STOP_WORDS
from wellread.text import Candidate, Mention

_FENCE = "\n\uffff"
"""A sign that no name crosses: many short texts are matched as one with it between them. The blank before it keeps it
from being joined to a text that ends in a joiner."""

_TOGETHER = 1 << 16

_LookUp = Callable[[tuple[tuple[int, int], ...], str | None, str], tuple[Candidate, ...]]

Tags = Mapping[tuple[int, int], str]
"""(start, end) of a word -> its kind, e.g. {(4, 8): "v"}."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How mentions are looked for; `None` means the usual choice for the KB."""

    overlaps: Overlaps = "longest"
    case: Case = "folded"
    stop_words: Collection[str] | None = None
    """None: function words for WordNet (whose "be" has senses), auxiliaries too for names."""
    min_chars: int = 2
    max_words: int | None = None
    limit: int = MOST_CANDIDATES


class CandidateFinder:
    """Finds the mentions of a text and what each may mean; follows its KB when that changes."""

    def __init__(self, kb: KnowledgeBase, reading: Reading | None = None) -> None:
        self.kb = kb
        self.reading = reading or Reading()
        self.matcher = Matcher.of(kb)
        usual = FUNCTION_WORDS if kb.metadata.get("inflection") == "wordnet" else STOP_WORDS
        self._stop_words = usual if self.reading.stop_words is None else frozenset(self.reading.stop_words)
        self._remembered = lru_cache(1 << 16)(self._candidates)

    def mentions(self, text: str, *, tags: Tags | None = None) -> list[Mention]:
        """The mentions of one text in order of their start, each with its candidates best first."""
        return next(iter(self.mentions_of_many([text], tags=[tags or {}])))

    def mentions_of_many(self, texts: Sequence[str], *, tags: Sequence[Tags] | None = None) -> Iterator[list[Mention]]:
        """The mentions of each text; short texts are matched together."""
        place = 0
        while place < len(texts):
            size, end = 0, place
            while end < len(texts) and (end == place or size + len(texts[end]) <= _TOGETHER):
                size += len(texts[end])
                end += 1
            changing = self.kb.connection.in_transaction  # what an open change says may be taken back
            with self.kb.snapshot():
                matcher = self.matcher = self.matcher.refresh(self.kb)
                look_up = self._candidates if changing else self._remembered
                look_up = partial(look_up, matcher.revision)
                found = list(self._together(matcher, look_up, texts[place:end], tags[place:end] if tags else None))
            yield from found
            place = end

    def candidates(self, name: str) -> list[Candidate]:
        """The candidates of a span that somebody else found (a tagger, a label)."""
        return self.kb.candidates(name, case=self.reading.case, limit=self.reading.limit)

    def _together(
        self, matcher: Matcher, look_up: _LookUp, texts: Sequence[str], tags: Sequence[Tags] | None
    ) -> Iterator[list[Mention]]:
        found = matcher.find(
            _FENCE.join(texts),
            overlaps=self.reading.overlaps,
            case=self.reading.case,
            stop_words=self._stop_words,
            min_chars=self.reading.min_chars,
            max_words=self.reading.max_words,
        )
        rows = list(
            zip(found.starts.tolist(), found.ends.tolist(), found.keys.tolist(), found.kinds.tolist(), strict=True)
        )
        lengths = np.array([len(text) + len(_FENCE) for text in texts])
        borders = np.searchsorted(found.starts, np.append(0, np.cumsum(lengths))).tolist()
        offset = 0
        for place, text in enumerate(texts):
            spans = groupby(rows[borders[place] : borders[place + 1]], key=lambda row: row[:2])
            mentions = []
            for (start, end), rows_here in spans:
                name = text[start - offset : end - offset]
                tag = tags[place].get((start - offset, end - offset)) if tags else None
                candidates = look_up(tuple(row[2:] for row in rows_here), tag, name)
                if candidates:
                    mentions.append(Mention(start - offset, end - offset, name, candidates, tag))
            yield mentions
            offset += len(text) + len(_FENCE)

    def _candidates(
        self, revision: int, readings: tuple[tuple[int, int], ...], tag: str | None, name: str
    ) -> tuple[Candidate, ...]:
        """What any of the readings (key, kinds) of a span may mean; at one revision always the same."""
        case = self.reading.case
        joined: dict[int, int] = {}
        for node, kinds in readings:  # compiled and added forms may both lead to one name
            joined[node] = joined.get(node, 0) | kinds
        rows = []
        for node, kinds in joined.items():
            for row in self.kb.named(as_signed(node)):
                fits = kinds == ALL_KINDS or KIND_BITS.get(row[5], 0) & kinds
                spelled = case == "folded" or key(row[0], case) == key(name, case)
                if fits and spelled and (tag is None or row[5] == tag):
                    rows.append(row)
        return tuple(rank(rows, self.reading.limit, spelled=name))
