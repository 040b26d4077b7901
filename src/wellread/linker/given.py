"""Linking spans that somebody else has found: a tagger, a person, another tool.

Each span gets a link, to the entity that the linker thinks best, or to None (NIL) where it thinks that none is meant,
or is not sure enough of the best. That a span is a mention at all is not asked: who gives it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wellread.linker.prior import PriorReader
from wellread.mentions.annotate import given
from wellread.text import Document, Link

if TYPE_CHECKING:
    from wellread.linker.decoding import Scored
    from wellread.linker.elq import ElqReader
    from wellread.linker.knowbert import KnowBertReader
    from wellread.linker.luke import LukeReader

Spans = Sequence[tuple[int, int]]
"""(start, end) in characters, end exclusive."""


def link_given(
    reader: PriorReader | ElqReader | KnowBertReader | LukeReader, texts: Sequence[str], spans: Sequence[Spans]
) -> Iterator[Document]:
    """The links of spans, one for each in the order of their places; a span outside its text is an `InputError`."""
    asked = [
        [(mention.start, mention.end) for mention in given(text, [(start, end, None) for start, end in set(some)])]
        for text, some in zip(texts, spans, strict=True)
    ]
    if isinstance(reader, PriorReader):
        yield from reader.link_given(texts, asked)
        return
    # A knowledge layer finds all names of its KB anyway, and knows nothing of others.
    scored = reader.score_given(texts, asked) if hasattr(reader, "score_given") else reader.score_many(texts)
    for one, some in zip(scored, asked, strict=True):
        yield _document(one, some)


def _document(scored: Scored, spans: Spans) -> Document:
    everything = scored.document(threshold=0.0, overlaps="keep", nil=True)
    sure = {(link.start, link.end) for link in scored.document(overlaps="keep", nil=True).links}
    found = {(link.start, link.end): link for link in everything.links}
    links = []
    for start, end in spans:
        link = found.get((start, end)) or Link(start, end, scored.text[start:end], None, kb=scored.kb)
        links.append(link if (start, end) in sure else replace(link, entity=None, title=None))
    return replace(everything, links=tuple(links))
