"""Linker backend that uses only names and priors of a KB, not what a text says around them.

It does not need torch, and is the baseline for the other models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol

from wellread.document import Document, Link, Mention
from wellread.errors import UsageError
from wellread.kb.store import KnowledgeBase
from wellread.linking.name_score import name_score, starts_sentence
from wellread.mentions.candidates import CandidateFinder, MatchOptions, has_senses
from wellread.mentions.matcher import Overlaps


class Annotator(Protocol):
    """Interface of mention finders (`mentions.annotators` has implementations)."""

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """Yield the mentions of each text."""
        ...


class PriorBackend:
    """Links every name of a KB, or the mentions of an annotator, to the entity with the highest prior."""

    kind: Literal["prior"] = "prior"
    """Type of model."""

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
        # Every word has senses: the question is which one, not if the word means any.
        self._by_name = annotator is None and not has_senses(kb)

    def link_many(
        self, texts: Sequence[str], *, overlaps: Overlaps | None = None, nil: bool | None = None
    ) -> Iterator[Document]:
        """Yield the links of each text.

        The score of a name is `linking.name_score`; that of an annotator's mention, and of a word sense, is its prior.
        `overlaps` overrides that of `reading`, and has no effect with an annotator. `nil` includes the annotator's
        mentions that are not names of the KB.
        """
        keep_nil = self.nil if nil is None else nil
        for text, mentions in zip(texts, self._mentions(texts, overlaps), strict=True):
            links = map(self._link_name(text) if self._by_name else self._link_best, mentions)
            kept = tuple(link for link in links if (keep_nil if link.entity is None else link.score >= self.threshold))
            yield Document(text, kept, meta={"kb": self.name, "model": "prior"})

    def link_given(self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Document]:
        """Yield a document with one link for each given span, whatever its score; unknown names are NIL."""
        for text, some in zip(texts, spans, strict=True):
            links = []
            for start, end in some:
                name = text[start:end]
                links.append(self._link_best(Mention(start, end, name, tuple(self.finder.candidates(name)))))
            yield Document(text, tuple(links), meta={"kb": self.name, "model": "prior"})

    def _mentions(self, texts: Sequence[str], overlaps: Overlaps | None) -> Iterator[list[Mention]]:
        if self.annotator is None:
            yield from self.finder.mentions_of_many(texts, overlaps=overlaps)
            return
        found_in = list(self.annotator.annotate(texts))
        if len(found_in) != len(texts):
            raise UsageError(
                f"the annotator gave {len(found_in)} lists of mentions for {len(texts)} texts; it must give one for "
                "each text"
            )
        for found in found_in:
            yield [
                Mention(
                    mention.start, mention.end, mention.text, tuple(self.finder.candidates(mention.text)), mention.label
                )
                for mention in found
            ]

    def _link_name(self, text: str) -> Callable[[Mention], Link]:
        """Return a function that links a name found in a text, with the probability that this is right."""
        is_lower = text.lower() == text

        def link(mention: Mention) -> Link:
            if not mention.candidates:
                return self._link_best(mention)
            name = mention.text
            at_start = name[0].isupper() and starts_sentence(text, mention.start)
            return self._link_best(mention, name_score(mention.candidates[0].prior, name, at_start, is_lower))

        return link

    def _link_best(self, mention: Mention, score: float | None = None) -> Link:
        if not mention.candidates:
            return Link(mention.start, mention.end, mention.text, None, score=1.0, kb=self.name)
        best = mention.candidates[0]
        return Link(
            mention.start,
            mention.end,
            mention.text,
            best.entity,
            best.title,
            best.score if score is None else score,
            mention.candidates,
            self.name,
            found_by=self.finder.found_by(mention.text),
        )
