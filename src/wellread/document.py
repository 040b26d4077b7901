"""Texts with mentions and links: the types that packages exchange.

Offsets are character offsets into the original text (Python's `str` indices), `end` exclusive, everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from wellread.errors import InputError


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entity proposed for a mention, with its prior (from the name alone) and the linker's score."""

    entity: str
    title: str
    prior: float
    score: float


@dataclass(frozen=True, slots=True)
class Mention:
    """A span that may name an entity, with its candidates best first; `label` is the label of a tagger."""

    start: int
    end: int
    text: str
    candidates: tuple[Candidate, ...] = ()
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A mention and the entity it was linked to; `entity` is None for NIL (named, but not in the KB).

    `score` is the probability of the link, `mention_score` (if the linker has one) that of the span alone.
    `found_by` is how the span was found: as a name of the KB ("exact", "case", "inflected", "typo", …: the `WAYS` of
    `mentions.proposals`), or by the "encoder" alone; None where neither is known.
    """

    start: int
    end: int
    text: str
    entity: str | None
    title: str | None = None
    score: float = 1.0
    candidates: tuple[Candidate, ...] = ()
    kb: str | None = None
    mention_score: float | None = None
    found_by: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its links, in order of their start."""

    text: str
    links: tuple[Link, ...] = ()
    id: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts, as `from_dict` takes them."""
        return asdict(self)

    def to_json(self) -> str:
        """Return one line of JSON; `Document.from_json(document.to_json()) == document`."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Document:
        """Build a document from the result of `to_dict`; spans are checked against the text."""
        try:
            links = tuple(
                Link(**{**link, "candidates": tuple(Candidate(**c) for c in link.get("candidates", ()))})
                for link in data.get("links", ())
            )
            document = cls(data["text"], links, data.get("id"), dict(data.get("meta") or {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"not a document written by wellread: {error}; expected an object with 'text' and 'links'"
            ) from error
        if not isinstance(document.text, str):
            raise InputError(f"the text of a document is {document.text!r}; expected a string")
        for link in links:
            _check_span(document.text, link)
        return document

    @classmethod
    def from_json(cls, line: str) -> Document:
        """Build a document from the result of `to_json`."""
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error}") from error
        return cls.from_dict(data)

    def _repr_html_(self) -> str:
        """Return the text as HTML for notebooks, with links marked; of overlapping links the first is shown."""
        return f'<div style="white-space: pre-wrap; line-height: 1.9">{"".join(self._html_parts())}</div>'

    def _html_parts(self) -> Iterator[str]:
        end = 0
        for link in sorted(self.links, key=lambda link: (link.start, -link.end)):
            if link.start < end:
                continue
            yield escape(self.text[end : link.start])
            title = "NIL" if link.entity is None else link.title or link.entity
            tooltip = "not in the knowledge base" if link.entity is None else f"{link.entity}, score {link.score:.2f}"
            yield (
                f'<mark title="{escape(tooltip)}" style="padding: 0.1em 0.3em; border-radius: 0.3em; '
                f'background: {"#eee" if link.entity is None else "#dbeafe"}; color: #111">'
                f"{escape(self.text[link.start : link.end])} "
                f'<small style="color: #1d4ed8">{escape(title)}</small></mark>'
            )
            end = link.end
        yield escape(self.text[end:])


def short(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters: `short("a long text", 7)` -> "a long…"."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def refuse_halves(text: str, where: str) -> None:
    """Raise an `InputError` for half a surrogate pair, which JSON escapes allow, but UTF-8 and tokenizers do not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} has half a surrogate pair at {error.start}; write it again as UTF-8") from error


def _check_span(text: str, link: Link) -> None:
    if not all(type(offset) is int for offset in (link.start, link.end)):
        raise InputError(f"the link {link.text!r} has the offsets {link.start!r}:{link.end!r}; expected whole numbers")
    if not 0 <= link.start <= link.end <= len(text) or text[link.start : link.end] != link.text:
        raise InputError(
            f"the link at {link.start}:{link.end} says {link.text!r} but the text of {len(text):,} characters there is "
            f"{text[max(link.start, 0) : max(link.end, 0)]!r}; offsets are characters of the original text, "
            "end exclusive"
        )
