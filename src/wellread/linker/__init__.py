"""The front door: text in, links out.

>>> linker = Linker.load(kb="vital")
>>> [(link.text, link.title) for link in linker.link("Marie Curie was born in Warsaw.").links]
[('Marie Curie', 'Marie Curie'), ('Warsaw', 'Warsaw')]

`model="prior"` links by name and popularity alone: what the names of a KB say, without reading the sentence. It needs
no torch, is the baseline that every other model has to beat, and the source of their candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

from wellread.errors import UsageError
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder, Reading
from wellread.text import Document, Link, Mention

Model = Literal["prior"]
MentionsFrom = Literal["names", "spacy"]

_AT_ONCE = 256
"""Texts taken from a stream at a time."""


class Annotator(Protocol):
    """Anything that finds mentions in texts (`mentions.annotate` has some)."""

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """The mentions of each text."""
        ...


class Linker:
    """Links texts to one knowledge base."""

    def __init__(
        self,
        kb: KnowledgeBase,
        *,
        reading: Reading | None = None,
        threshold: float = 0.0,
        annotator: Annotator | None = None,
        name: str | None = None,
    ) -> None:
        self.kb = kb
        self.name = name if name is not None else kb.path.stem
        self.threshold = threshold
        self.annotator = annotator
        self.finder = CandidateFinder(kb, reading)

    @classmethod
    def load(
        cls,
        kb: str | Path | KnowledgeBase,
        model: Model = "prior",
        *,
        mentions: MentionsFrom | Annotator = "names",
        reading: Reading | None = None,
        threshold: float = 0.0,
        name: str | None = None,
    ) -> Linker:
        """A linker for a KB: a packaged one by its name ("wordnet", "vital"), or any by its path.

        `mentions="names"` finds every name of the KB; `"spacy"` takes spaCy's named entities, and those that the KB
        does not know become NIL links. Links with a score below `threshold` are left out. `name` is what links call the
        KB by, its file's name unless given.
        """
        if model != "prior":
            raise UsageError(f"there is no model {model!r}; choose prior")
        annotator: Annotator | None
        if mentions == "spacy":
            from wellread.mentions.annotate import SpacyAnnotator

            annotator = SpacyAnnotator()
        elif mentions == "names":
            annotator = None
        elif isinstance(mentions, str):
            raise UsageError(f"mentions={mentions!r} is not known; choose names or spacy, or give an annotator")
        else:
            annotator = mentions
        opened = kb if isinstance(kb, KnowledgeBase) else open_kb(kb)
        return cls(opened, reading=reading, threshold=threshold, annotator=annotator, name=name)

    def close(self) -> None:
        """Let go of the knowledge base."""
        self.kb.close()

    def __enter__(self) -> Linker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def link(self, text: str) -> Document:
        """The links of one text."""
        return next(self.link_many([text]))

    def link_many(self, texts: Iterable[str]) -> Iterator[Document]:
        """The links of each text, streamed: texts may be endless, memory is not."""
        if isinstance(texts, str):
            raise UsageError("link_many takes several texts; use link for one")
        stream = iter(texts)
        while batch := list(islice(stream, _AT_ONCE)):
            for text, mentions in zip(batch, self._mentions(batch), strict=True):
                links = (self._decide(mention) for mention in mentions)
                kept = tuple(link for link in links if link.entity is None or link.score >= self.threshold)
                yield Document(text, kept, meta={"kb": self.name, "model": "prior"})

    def _mentions(self, texts: Sequence[str]) -> Iterator[list[Mention]]:
        if self.annotator is None:
            yield from self.finder.mentions_of_many(texts)
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
            mention.start, mention.end, mention.text, best.entity, best.title, best.score, mention.candidates, self.name
        )
