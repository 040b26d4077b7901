"""What the rooms hand to each other: a text and what was found in it.

Offsets are character offsets into the original text (Python's `str` indices), `end` exclusive, everywhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from wellread.errors import InputError


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entity that a mention may mean; `prior` is what the name alone says, `score` what the linker says."""

    entity: str
    title: str
    prior: float
    score: float


@dataclass(frozen=True, slots=True)
class Mention:
    """A span that may name something, with its candidates best first; `label` is a tagger's word for it."""

    start: int
    end: int
    text: str
    candidates: tuple[Candidate, ...] = ()
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A mention and the entity it was linked to; `entity` is None for NIL (named, but not in the KB).

    `score` is how sure the linker is of the whole, `mention_score` (where the linker tells it) of the span alone.
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
        """Plain lists and dicts, the same that `from_dict` takes."""
        return asdict(self)

    def to_json(self) -> str:
        """One line of JSON; `Document.from_json(document.to_json()) == document`."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Document:
        """The document that `to_dict` wrote; spans are checked against the text."""
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
        """The document that `to_json` wrote."""
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error}") from error
        return cls.from_dict(data)


def short(text: str, most: int) -> str:
    """At most so many characters: `short("a long text", 7)` -> "a long…"."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def refuse_halves(text: str, where: str) -> None:
    """A text that no UTF-8 can hold: JSON may name half of a surrogate pair, and tokenizers take that for no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} has half a surrogate pair at {error.start}; write it anew as UTF-8") from error


def _check_span(text: str, link: Link) -> None:
    if not all(type(offset) is int for offset in (link.start, link.end)):
        raise InputError(f"the link {link.text!r} has the offsets {link.start!r}:{link.end!r}; expected whole numbers")
    if not 0 <= link.start <= link.end <= len(text) or text[link.start : link.end] != link.text:
        raise InputError(
            f"the link at {link.start}:{link.end} says {link.text!r} but the text of {len(text):,} characters there is "
            f"{text[max(link.start, 0) : max(link.end, 0)]!r}; offsets are characters of the original text, "
            "end exclusive"
        )
