"""Linked text generated from a knowledge base, for a linker without labelled training text.

| share | kind | content |
|---|---|---|
| .45 | fact | a question or query about a fact: a relation in words, a name of its subject, its object or both |
| .20 | about | a question about an entity: its name with its kind, with words of its description, or alone |
| .27 | text | sentences of an entity's description with its name in them |
| .08 | plain | a question without a link |

An entity without usable facts (a plain catalogue) gets an "about" question instead. Entities are drawn uniformly, one
time in four replaced by a neighbour, which favours those with many facts. A name is drawn by its count; if it is
ambiguous, its prior decides in half of the cases which entity is meant, so that each meaning occurs in a mix of uniform
and prior. Nothing is scanned: an entity and a fact cost a few look-ups, in a KB of twenty entities or of a million.

Every text is matched with the names of the KB before it is returned, and its names are resolved so:

1. A name that was inserted is a link. If it is part of a longer name ("New York" before "city"), it is widened if that
   also means the entity; else the text is discarded.
2. Words of templates, relations and kinds are never links: a linker that links every name has no precision.
3. In sentences, a name is a link to the entity described, or to the one neighbour by a fact, if it may mean it; without
   such support, only where it can hardly mean anything else (prior of .9) and is written like a name or is long.
4. An everyday word in small letters ("film": in one description of fifty) is left unlinked though it is a name.
5. A capitalised name that is ambiguous and without support is most likely a mention, but of an unknown entity: its text
   is discarded. In lower case, at the beginning of a sentence or beside another capitalised word (part of a longer name
   that the KB does not have) it may be one or not: the text is kept if most of its names are resolved, and such spans
   are in `meta["unsure"]`, so that training can leave them out of the mention loss.

Templates are English. For other languages give your own (`templates.py` lists the slots) or none: with `templates=()`
all texts are made of descriptions and names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import Literal

from wellread.data.synthetic.kb_sampler import MOST_NAME_WORDS, Fact, KbSampler, Thing
from wellread.data.synthetic.templates import ENGLISH, plural
from wellread.document import Candidate, Document, Link, Mention
from wellread.errors import KnowledgeBaseError, UsageError
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder
from wellread.text.stopwords import STOP_WORDS
from wellread.text.words import as_signed, key

Kind = Literal["fact", "about", "text", "plain"]

SHARES: dict[Kind, float] = {"fact": 0.45, "about": 0.20, "text": 0.27, "plain": 0.08}

_BATCH = 256
"""Texts that are matched together, as one call costs as much as many."""

_SURE = 0.9
_LONG = 14
_MOST_CHARS = 350
_STUB = 12
_NEAR = 30
_SLOT = re.compile(r"\{(\w+)\}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"“(]?[^\W\d_a-z])|;\s+(?=[\"“])")
_LEAD = re.compile(r"((?:[^\W\d_a-z][\w.'’-]*\s+){1,5}[^\W\d_a-z][\w.'’-]*)(?=\s(?:is|was|are|were)\s)")
_CAPITAL_BEFORE = re.compile(r"[^\W\d_a-z][\w.'’-]*[\"”]?$")
_CAPITAL_AFTER = re.compile(r"[\"”]?\s+[^\W\d_a-z]")
_CONTEXT = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]{2,}){1,4}")


def documents_from(
    kb: KnowledgeBase, *, count: int, seed: int, templates: Sequence[str] = ENGLISH
) -> Iterator[Document]:
    """Return `count` linked documents generated from a KB; always the same for one KB, seed and templates.

    >>> next(documents_from(kb, count=1, seed=0))
    Document("who is the director of alien?", (Link(23, 28, "alien", "Q103569", "Alien"),))

    A smaller `count` returns the beginning of what a larger one returns. `meta` has the "kind" of each (see `SHARES`)
    and the "unsure" spans.
    """
    if count < 0:
        raise UsageError(f"count={count} documents cannot be made; give a number from 0 on")
    return islice(_endless(kb, seed, templates), count)


def _endless(kb: KnowledgeBase, seed: int, templates: Sequence[str]) -> Iterator[Document]:
    # A string seed is hashed in full: consecutive numbers give unrelated streams.
    rng = Random(f"catalogue {seed}")  # noqa: S311
    with kb.snapshot():
        sampler = KbSampler(kb)
        writer = _Writer(sampler, rng, templates)
    finder = CandidateFinder(kb)
    while True:
        with kb.snapshot():
            if kb.revision != sampler.revision:
                raise KnowledgeBaseError(f"{kb.path.name} was changed while documents were made from it; begin again")
            drafts = [draft for draft in (writer.draft() for _ in range(_BATCH)) if draft is not None]
            found = finder.mentions_of_many([draft.text if draft.home else "" for draft in drafts])
            settled = [_settled(draft, mentions, sampler) for draft, mentions in zip(drafts, found, strict=True)]
        documents = [document for document in settled if document is not None]
        lost = [draft.kind for draft, document in zip(drafts, settled, strict=True) if document is None]
        writer.owed = lost[: _BATCH // 4]
        if not documents:
            raise KnowledgeBaseError(
                f"no text can be made from {kb.path.name}: its names are everyday words or longer than "
                f"{MOST_NAME_WORDS} words, and it has no descriptions; add aliases or descriptions"
            )
        yield from documents


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a text: a name (`means`), words that may contain names (`is_open`), or words without names."""

    text: str
    means: Thing | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    """A text before it is matched with the names of the KB."""

    kind: Kind
    parts: tuple[_Part, ...]
    home: tuple[Thing, ...]
    """Entities that it is about, if any: their facts support the meanings of names in it."""
    in_small_letters: bool = False
    """Convert to lower case after its names are resolved: until then capitals mark names."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Template:
    parts: tuple[tuple[str, bool], ...]
    """(text, False) or (slot, True)"""
    slots: frozenset[str]

    @classmethod
    def of(cls, text: str) -> _Template:
        parts = tuple((part, place % 2 == 1) for place, part in enumerate(_SLOT.split(text)) if part)
        return cls(parts, frozenset(_SLOT.findall(text)))

    @property
    def kind(self) -> Kind:
        if not self.slots & {"subject", "object"}:
            return "plain"
        return "fact" if self.slots & {"object", "relation", "relations", "done", "does"} else "about"


class _Writer:
    """Draws the subject of a text, and words it."""

    def __init__(self, sampler: KbSampler, rng: Random, templates: Sequence[str]) -> None:
        self.sampler = sampler
        self.rng = rng
        self.templates: dict[Kind, list[_Template]] = {"fact": [], "about": [], "plain": []}
        for text in templates:
            template = _Template.of(text)
            if unknown := template.slots - _SLOTS:
                raise UsageError(
                    f"the template {text!r} has the slot {{{min(unknown)}}}; there are {', '.join(sorted(_SLOTS))}"
                )
            self.templates[template.kind].append(template)
        self.kinds = [kind for kind in SHARES if kind == "text" or self.templates[kind]]
        self.shares = list(accumulate(SHARES[kind] for kind in self.kinds))
        self.owed: list[Kind] = []
        """Kinds of discarded texts, to be generated again: otherwise difficult kinds would become rare."""

    def draft(self) -> _Draft | None:
        """Return a text, or None if the drawn entity does not yield one."""
        kind = self.owed.pop() if self.owed else self.rng.choices(self.kinds, cum_weights=self.shares)[0]
        thing = self.sampler.draw(self.rng)
        if self.rng.random() < 0.25 and (fact := self.sampler.fact(thing, self.rng)):
            thing = fact[0] if fact[2].num == thing.num else fact[2]
        if kind == "text":
            return self._from_description(thing)
        if not thing.names:
            return None if kind != "plain" else self._worded(kind, thing, thing.title, None)
        name = thing.name(self.rng)
        if self.rng.random() < 0.5:
            name, thing = self._meaning(name, thing)
        fact = self.sampler.fact(thing, self.rng) if kind != "about" else None
        worded = fact is not None and (self.sampler.relations[fact[1]] or self.rng.random() < 0.5)
        if kind == "fact" and not worded and self.templates["about"]:
            kind = "about"
        return self._worded(kind, thing, name, fact)

    def _meaning(self, name: str, thing: Thing) -> tuple[str, Thing]:
        """Draw the meaning of a name by its prior."""
        rows = self.sampler.kb.named(as_signed(key(name)))
        total = sum(row[1] for row in rows)
        if len(rows) < 2 or not total:
            return name, thing
        (row,) = self.rng.choices(rows, [row[1] for row in rows])
        return row[0], thing if row[2] == thing.id else self.sampler.by_id(row[2])

    def _worded(self, kind: Kind, thing: Thing, name: str, fact: Fact | None) -> _Draft | None:
        """Fill the first of a few templates whose slots can all be filled."""
        for _ in range(12):
            template = self.rng.choice(self.templates[kind])
            parts = [
                self._slot(text, thing, name, fact) if is_slot else _Part(text) for text, is_slot in template.parts
            ]
            filled = [part for part in parts if part is not None]
            if len(filled) == len(parts):
                home = () if kind == "plain" else (fact[0], fact[2]) if fact else (thing,)
                return _Draft(kind, tuple(self._typed(filled)), home, in_small_letters=self.rng.random() < 0.55)
        return None

    def _slot(self, slot: str, thing: Thing, name: str, fact: Fact | None) -> _Part | None:
        """Return the content of a slot; None if there is none."""
        subject, relation, object = fact or (thing, None, None)
        text: str | None = None
        match slot:
            case "subject" | "object":
                end = subject if slot == "subject" else object
                if end is None or not (end.num == thing.num or end.names):
                    return None
                return _Part(name if end.num == thing.num else end.name(self.rng), end)
            case "context":
                text = self._context(subject)
                return _Part(text, is_open=True) if text else None
            case "kind" | "kinds":
                kinds = self.sampler.kinds(subject)
                text = self.rng.choice(kinds) if kinds else None
                text = plural(text) if text and slot == "kinds" else text
            case "who":
                text = self.sampler.pronoun(subject)
            case "whose":
                text = self.sampler.pronoun(object) if object else None
            case "common":
                text = self.rng.choice(self.sampler.common_names) if self.sampler.common_names else None
            case _:
                text = self.sampler.relations[relation].get(slot) if relation is not None else None
        return _Part(text) if text else None

    def _context(self, thing: Thing) -> str | None:
        """Return a few consecutive words of a description that begin and end with a content word."""
        phrases = _CONTEXT.findall(thing.description[:_MOST_CHARS])
        if not phrases:
            return None
        parts = self.rng.choice(phrases).split(" ")
        while parts and parts[0].lower() in STOP_WORDS:
            parts.pop(0)
        while parts and parts[-1].lower() in STOP_WORDS:
            parts.pop()
        return " ".join(parts) if set(parts).isdisjoint(thing.title.split()) else None

    def _typed(self, parts: list[_Part]) -> Iterator[_Part]:
        """Vary as people type: with or without an initial capital and a final mark; "a" before a vowel is "an"."""
        with_capital = self.rng.random() < 0.6
        last = parts[-1]
        if self.rng.random() < 0.5 and last.means is None and last.text.endswith(("?", ".", "!")):
            parts = [*parts[:-1], _Part(last.text[:-1])]
        following = [part.text for part in parts[1:]] + [""]
        for place, (part, after) in enumerate(zip(parts, following, strict=True)):
            text = part.text
            if part.means is None and not part.is_open:
                if f" {text}".endswith(" a ") and after[:1].lower() in tuple("aeio"):
                    text = text[:-1] + "n "
                if place == 0:
                    text = text[:1].upper() + text[1:] if with_capital else text
                elif not with_capital:
                    text = text.lower()
            yield _Part(text, part.means, part.is_open)

    def _from_description(self, thing: Thing) -> _Draft | None:
        """Return some sentences of a description with the entity's name in them, or before them."""
        parts = (part.strip() for part in _SENTENCE.split(thing.description))
        sentences = list(dict.fromkeys(part for part in parts if len(part) > _STUB))
        if not sentences:
            if not thing.names:
                return None
            return _Draft("text", (_Part(thing.name(self.rng), thing),), (thing,))
        begin = self.rng.randrange(len(sentences))
        text = sentences[begin]
        for sentence in sentences[begin + 1 : begin + self.rng.randint(1, 3)]:
            if len(text) + len(sentence) < _MOST_CHARS and not sentence.startswith(('"', "“")):
                text += " " + sentence
        is_example = text.startswith(('"', "“"))
        text = text.strip('"“”')[: 2 * _MOST_CHARS]
        named = tuple(part for part in self._with_name(thing, text, is_example) if part.text)
        return _Draft("text", named, (thing,), in_small_letters=self.rng.random() < 0.15)

    def _with_name(self, thing: Thing, text: str, is_example: bool) -> list[_Part]:
        """Return the text with the entity's name marked, sometimes replaced by another; put before it if missing."""
        start, end = _own_span(thing, text)
        if end:
            name = text[start:end]
            if thing.names and (name not in thing.all_names or self.rng.random() < 0.3):
                name = thing.name(self.rng)
            return [_Part(text[:start], is_open=True), _Part(name, thing), _Part(text[end:], is_open=True)]
        if is_example or not thing.names:
            return [_Part(text, is_open=True)]
        between = self.rng.choice([": ", ", " if text[0].islower() else ". ", " - ", " ("])
        if between == " (":
            return [
                _Part(thing.name(self.rng), thing),
                _Part(between),
                _Part(text.rstrip("."), is_open=True),
                _Part(")"),
            ]
        return [_Part(thing.name(self.rng), thing), _Part(between), _Part(text, is_open=True)]


_SLOTS = frozenset("subject object relation relations done does kind kinds who whose context common".split())


def _own_span(thing: Thing, text: str) -> tuple[int, int]:
    """Return the first span of a text that is a name of the entity, letter for letter; (0, 0) if there is none.

    The longer name at the beginning of an encyclopedia's first sentence counts, if it has all words of the title:
    "Stewart Armstrong Copeland is …" for Stewart Copeland.
    """
    for name in thing.all_names:
        start = text.find(name)
        end = start + len(name)
        if start >= 0 and not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum() and len(name) > 1:
            return start, end
    lead = _LEAD.match(text)
    if lead and thing.names and set(lead[1].split()).issuperset(thing.title.split()):
        return lead.span(1)
    return 0, 0


def _settled(draft: _Draft, mentions: Sequence[Mention], sampler: KbSampler) -> Document | None:
    """Return the document of a draft after its names are matched; None if one cannot be resolved."""
    text = draft.text
    links: dict[tuple[int, int], Link] = {}
    ranges: list[tuple[int, int]] = []
    place = 0
    for part in draft.parts:
        end = place + len(part.text)
        if part.means is not None:
            links[place, end] = Link(place, end, part.text, part.means.id, part.means.title)
        elif part.is_open:
            ranges.append((place, end))
        place = end
    loose = []
    for mention in mentions:
        touched = [span for span in links if span[0] < mention.end and mention.start < span[1]]
        if not touched:
            if any(start <= mention.start and mention.end <= end for start, end in ranges):
                loose.append(mention)
        elif touched[0][0] > mention.start or touched[0][1] < mention.end or len(touched) > 1:
            link = links.pop(touched[0])
            covers = mention.start <= link.start and link.end <= mention.end
            if len(touched) > 1 or not covers or all(found.entity != link.entity for found in mention.candidates):
                return None
            links[mention.start, mention.end] = Link(mention.start, mention.end, mention.text, link.entity, link.title)
    ids = sorted({candidate.entity for mention in loose for candidate in mention.candidates})
    support = sampler.joined_to([thing.num for thing in draft.home], ids) if ids else set()
    own = {thing.id for thing in draft.home}
    unsure: list[list[int]] = []
    for mention in loose:
        verdict = _meant(mention, own, support, sampler, text)
        if verdict == "unclear":
            return None
        if verdict == "unsure":
            unsure.append([mention.start, mention.end])
        elif isinstance(verdict, Candidate):
            span = mention.start, mention.end
            links[span] = Link(*span, mention.text, verdict.entity, verdict.title)
    if len(unsure) > len(links) + 1:
        return None
    if draft.in_small_letters and len(small := text.lower()) == len(text):
        text = small
        links = {span: Link(*span, small[slice(*span)], link.entity, link.title) for span, link in links.items()}
    meta = {"kind": draft.kind if links else "plain", "unsure": unsure}
    return Document(text, tuple(links[span] for span in sorted(links)), meta=meta)


def _meant(
    mention: Mention, own: set[str], support: set[str], sampler: KbSampler, text: str
) -> Candidate | Literal["plain", "unsure", "unclear"]:
    """Return the meaning of a name in a sentence; "unsure" if it may not be a mention, "unclear" if it is ambiguous."""
    written_small = mention.text == mention.text.lower()
    one_word = " " not in mention.text
    before = text[max(0, mention.start - _NEAR) : mention.start].rstrip()
    begins = before[-1:] in ("", ".", "!", "?", '"', "“", ":")
    in_longer = one_word and not written_small and _has_capitals_beside(before, text[mention.end : mention.end + 3])
    is_own = any(candidate.entity in own for candidate in mention.candidates)
    if (written_small or (begins and one_word and not is_own)) and sampler.is_everyday(mention.text):
        return "plain"
    # A capital at the beginning of a sentence means nothing, and "Community" after "Economic" is part of a longer name.
    plain_word = one_word and mention.text.lower() in sampler.vocabulary
    if plain_word and (begins or in_longer) and not (written_small or is_own):
        return "unsure"
    for supporting in (own, support):
        among = [candidate for candidate in mention.candidates if candidate.entity in supporting]
        if len(among) == 1 or (among and among[0].prior >= 2 * among[1].prior):
            return among[0]
        if among:
            return "unsure" if written_small else "unclear"
    first = mention.candidates[0]
    if written_small:
        return first if first.prior >= _SURE and len(mention.text) >= _LONG and not one_word else "unsure"
    if one_word and (in_longer or not _is_title(first.title, mention.text)):
        return "unsure"
    return first if first.prior >= _SURE else "unclear"


def _has_capitals_beside(before: str, after: str) -> bool:
    return bool(_CAPITAL_BEFORE.search(before) or _CAPITAL_AFTER.match(after))


def _is_title(title: str, name: str) -> bool:
    """Return whether a name is a title, ignoring case and a qualifier in brackets: "Mercury (planet)" and "mercury"."""
    return title.split(" (", 1)[0].casefold() == name.casefold()
