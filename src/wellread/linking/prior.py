"""Linking by name and popularity alone: what the names of a KB say, without reading the sentence.

It needs no torch, is the baseline that every other model has to beat, and the source of their candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from wellread.document import Document, Link, Mention
from wellread.errors import UsageError
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.mentions.matcher import Overlaps


class Annotator(Protocol):
    """Anything that finds mentions in texts (`mentions.annotators` has some)."""

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """The mentions of each text."""
        ...


class PriorBackend:
    """Links every name of a KB, or the mentions of an annotator, to what the name means most often."""

    def __init__(
        self,
        kb: KnowledgeBase,
        *,
        reading: MatchOptions | None,
        threshold: float,
        annotator: Annotator | None,
        name: str,
        nil: bool = False,
    ) -> None:
        self.threshold, self.annotator, self.name, self.nil = threshold, annotator, name, nil
        self.finder = CandidateFinder(kb, reading)

    def link_many(
        self, texts: Sequence[str], *, overlaps: Overlaps | None = None, nil: bool | None = None
    ) -> Iterator[Document]:
        """Return the links of each text.

        `overlaps` is the reading's unless given, and counts where there is no annotator. `nil` shows the annotator's
        mentions that the KB does not have.
        """
        shown = self.nil if nil is None else nil
        for text, mentions in zip(texts, self._mentions(texts, overlaps), strict=True):
            links = (self._decide(mention) for mention in mentions)
            kept = tuple(link for link in links if (shown if link.entity is None else link.score >= self.threshold))
            yield Document(text, kept, meta={"kb": self.name, "model": "prior"})

    def link_given(self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Document]:
        """Return one link for each given span, whatever its score; a name that the KB does not have is NIL."""
        for text, some in zip(texts, spans, strict=True):
            links = []
            for start, end in some:
                name = text[start:end]
                links.append(self._decide(Mention(start, end, name, tuple(self.finder.candidates(name)))))
            yield Document(text, tuple(links), meta={"kb": self.name, "model": "prior"})

    def _mentions(self, texts: Sequence[str], overlaps: Overlaps | None) -> Iterator[list[Mention]]:
        if self.annotator is None:
            yield from self.finder.mentions_of_many(texts, overlaps=overlaps)
            return
        found_in = list(self.annotator.annotate(texts))
        if len(found_in) != len(texts):
            raise UsageError(
                f"the annotator gave {len(found_in)} lists of mentions for {len(texts)} texts; it owes one each"
            )
        for found in found_in:
            yield [
                Mention(
                    mention.start, mention.end, mention.text, tuple(self.finder.candidates(mention.text)), mention.label
                )
                for mention in found
            ]

    def _decide(self, mention: Mention) -> Link:
        if not mention.candidates:
            return Link(mention.start, mention.end, mention.text, None, score=1.0, kb=self.name)
        best = mention.candidates[0]
        return Link(
            mention.start,
            mention.end,
            mention.text,
            best.entity,
            best.title,
            best.score,
            mention.candidates,
            self.name,
            found_by=self.finder.found_by(mention.text),
        )
