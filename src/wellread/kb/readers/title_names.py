"""Names derived from an article's title: without qualifier, short forms, surnames, regnal names, spellings.

    "Mercury (planet)"     -> Mercury                    "Apple Inc."           -> Apple
    "Amazon River"         -> Amazon, the Amazon         "Ludwig van Beethoven" -> Beethoven, van Beethoven
    "Alexander I of Russia" -> Alexander I               "Republic (Plato)"     -> Plato's Republic

A rule that holds only for some titles ("Yellow River" is not called "Yellow") yields its name as `SHORT`, and
`kb.readers.vital` keeps it only if the texts use it as a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property


class Source(IntEnum):
    """Origin of a derived name, the most certain last; `kb.readers.vital` gives each a count."""

    SHORT = 1
    """A short form or surname, kept only if texts use it alone."""
    FORM = 2
    """Another spelling or order of the title: "First World War", "Cambridge University"."""
    LEAD = 3
    """A name in the lead after "also known as" or the like."""
    SUBJECT = 4
    """The subject of the lead's first sentence."""
    BASE = 5
    """The title without its qualifier."""
    TITLE = 6


Name = tuple[str, Source]

QUALIFIER = re.compile(r"^(.+?) \(([^()]+)\)$")
NUMERAL = re.compile(r"^[IVX]+$")
PARTICLES = frozenset("van von de da di del della der den du la le ten ter af dos das des do y e".split())
_CONNECTED = frozenset("of the ibn bin bint al ben abu".split())
_SUFFIXES = frozenset(("Jr.", "Sr.", "Jr", "Sr"))
RANKS = frozenset(
    "Pope Emperor Empress Prince Princess King Queen Saint Sultan Shah Mother Sir Lord Pasha Beg Khan".split()
)
_COMPANY = re.compile(
    r"^(.+?),? (?:Inc\.|Ltd\.|Corp\.|Corporation|Company|Motor Company|Motor Corporation|Group|Electronics|plc|AG|SE)$"
)
_GEOGRAPHIC = re.compile(
    r"^(?:(?:Mount|Lake|Cape) (?P<behind>[A-Z].+)|(?P<before>[A-Z].+) (?P<kind>River|Desert|Mountains|Islands|Canyon|"
    r"Ocean|Peninsula|dynasty|language|Galaxy|Falls|Prize|Palace|Museum))$"
)
_WITH_ARTICLE = frozenset(("River", "Desert", "Mountains", "Islands", "Peninsula", "Ocean"))
_WORLD_WAR = re.compile(r"^World War (I{1,2})$")
_REGNAL = re.compile(
    r"^((?:(?:Pope|Emperor|Empress|Prince|King|Queen) )?[A-Z]\S+(?: [A-Z]\S+)?? [IVX]+) (?:of|the) .+$"
)
_EAST_ASIAN = re.compile(r"Chin|Korea|Vietnam|Japan|Taiwan|Mongol|dynasty|Joseon|Goryeo|shogun|Myanmar|Burm|Hong Kong")
_LIFE = re.compile(r"\d\)$|BCE?\)$|from \d+ to \d+|\bborn \d")
_MIDDLE_NAMES = re.compile(
    r"American|British|English|Scottish|Irish|Welsh|Canad|Austral|New Zealand|German|Austrian|Dutch|Danish|Norwegian|"
    r"Swed|Finnish|Russian|Soviet|U\.S\.|United States|United Kingdom|Composer"
)
"""Descriptions of persons whose middle words are given names, not part of the surname."""


@dataclass(frozen=True)
class Article:
    """An article of the package: title, first paragraph, short description and topic."""

    title: str
    lead: str
    short: str
    topic: str

    @cached_property
    def base(self) -> str:
        """The title without a qualifier in parentheses."""
        found = QUALIFIER.match(self.title)
        return found[1] if found else self.title

    @cached_property
    def is_person(self) -> bool:
        """True for a human being with a name of several parts; bands and families are not."""
        if re.search(r"\b(?:band|duo|group|brothers|siblings|family|dynasty|comedians|monument)\b", self.short):
            return False
        if self.topic == "People":
            return True
        known = self.topic in ("Uncategorized", "Philosophy and religion")
        if known and _LIFE.search(self.short):
            return not re.search(r"(?i)empire|civili|period|conflict|country|entity|depression|science", self.short)
        pronouns = len(re.findall(r"\b(?:[Hh]e|[Ss]he|[Hh]is|[Hh]er|him)\b", self.lead))
        return known and pronouns >= 2 and re.match(r"[^.]{0,160}? was (?:an?|the|one) ", self.lead) is not None


def title_names(article: Article) -> Iterator[Name]:
    """Yield the names derived from a title, each with its source; a name may come more than once."""
    yield article.title, Source.TITLE
    base = article.base
    if base != article.title:
        yield base, Source.BASE
        yield from _works(article)
    first, comma, rest = base.partition(", ")
    if comma and _is_qualifier(first, rest):
        yield first, Source.BASE
        base = first
    if "–" in base:
        yield base.replace("–", "-"), Source.FORM
    if base.startswith("The "):
        without = base.removeprefix("The ")
        yield without, Source.BASE if " " in without else Source.SHORT
    if base.startswith("Saint "):
        yield from ((f"{st} {base.removeprefix('Saint ')}", Source.FORM) for st in ("St.", "St"))
    if base.startswith("Mount "):
        yield from ((f"{mt} {base.removeprefix('Mount ')}", Source.FORM) for mt in ("Mt.", "Mt"))
    if re.fullmatch(r"[A-Z]{2,}/[A-Z]{2,}", base):
        yield from ((part, Source.FORM) for part in base.split("/"))
    if numbered := re.match(r"^(?:\d+(?:th|st|nd|rd)|\d{4}) ([A-Z]\S+ .+)$", base):
        yield numbered[1], Source.FORM
    yield from _organisations(base)
    yield from _places(base)
    yield from _wars(base)
    if article.is_person:
        yield from _persons(base, article.short)


def _is_qualifier(first: str, rest: str) -> bool:
    """True where the comma sets a qualifier apart ("Austin, Texas"), False in a list ("Hand, foot, and mouth …")."""
    whole = ", " not in rest and " and " not in rest and not first.startswith("The ")
    return whole and (rest[0].isupper() or rest[0].isdigit()) and "University" not in first


def _works(article: Article) -> Iterator[Name]:
    """Yield the author's form of a work: "Republic (Plato)" -> "Plato's Republic"."""
    found = QUALIFIER.match(article.title)
    if found and article.topic in ("Arts", "Philosophy and religion", "Uncategorized"):
        author = found[2].removesuffix(" novel").removesuffix(" book").removesuffix(" series")
        if re.fullmatch(r"[A-Z][a-z]+", author) and author != "Genesis":
            yield f"{author}'s {found[1].removeprefix('The ')}", Source.FORM
            if symphony := re.fullmatch(r"Symphony No\. (\d+)", found[1]):
                ordinal = {"2": "Second", "3": "Third", "5": "Fifth", "9": "Ninth"}.get(symphony[1])
                if ordinal:
                    yield f"{author}'s {ordinal} Symphony", Source.FORM
                    yield f"{author}'s {ordinal}", Source.FORM


def _organisations(base: str) -> Iterator[Name]:
    if company := _COMPANY.match(base):
        yield company[1].removesuffix(" Motor"), Source.SHORT
    if university := re.fullmatch(r"University of ([A-Z][^,]+)", base):
        yield f"{university[1]} University", Source.FORM
        yield university[1], Source.SHORT
    elif university := re.fullmatch(r"([A-Z]\S+) University", base):
        yield university[1], Source.SHORT


def _places(base: str) -> Iterator[Name]:
    found = _GEOGRAPHIC.match(base)
    if found:
        short = found["behind"] or found["before"]
        yield short, Source.SHORT
        if found["kind"] in _WITH_ARTICLE:
            yield f"the {short}", Source.SHORT
        if found["kind"] == "River":
            yield f"River {short}", Source.SHORT


def _wars(base: str) -> Iterator[Name]:
    if war := _WORLD_WAR.match(base):
        number = len(war[1])
        ordinal, word = (("First", "One"), ("Second", "Two"))[number - 1]
        for name in (f"WW{war[1]}", f"WW {war[1]}", f"WW{number}", f"World War {number}", f"World War {word}"):
            yield name, Source.FORM
        yield f"{ordinal} World War", Source.FORM


def _persons(base: str, short: str) -> Iterator[Name]:
    """Surname, first and last name, initials; regnal names without their realm."""
    if regnal := _REGNAL.match(base):
        yield regnal[1], Source.FORM
    parts = base.split()
    if parts[0] in RANKS and len(parts) > 1:
        yield " ".join(parts[1:]), Source.FORM if NUMERAL.match(parts[-1]) else Source.SHORT
        return
    if parts[-1] in _SUFFIXES:
        parts = parts[:-1]
        yield " ".join(parts), Source.FORM
    if len(parts) < 2 or NUMERAL.match(parts[-1]) or parts[-1].islower() or parts[0][0].isdigit():
        return
    if _CONNECTED & {part.lower() for part in parts}:
        return
    yield parts[-1], Source.SHORT
    if len(parts) == 2 and _EAST_ASIAN.search(short):
        yield parts[0], Source.SHORT
    first = next((place for place, part in enumerate(parts) if part.lower() in PARTICLES and place), len(parts))
    if first < len(parts) - 1:
        yield " ".join(parts[first:]), Source.SHORT
        return
    if len(parts) > 2 and _MIDDLE_NAMES.search(short) and not parts[0].endswith("."):
        yield f"{parts[0]} {parts[-1]}", Source.FORM
        initials = [part if part.endswith(".") else f"{part[0]}." for part in parts[:-1]]
        yield f"{' '.join(initials)} {parts[-1]}", Source.FORM
        yield f"{''.join(initials)} {parts[-1]}", Source.FORM


def own_words(article: Article) -> frozenset[str]:
    """Return the words of a person's title that may stand for it: not realms ("of France") nor ranks ("Queen")."""
    plain = re.split(r",? (?:of|the|ibn|bint?|ben) |, ", article.base, maxsplit=1)[0]
    words = (word for word in plain.split() if len(word) > 2 and word[0].isupper() and not NUMERAL.match(word))
    return frozenset(words) - RANKS


def is_surname_first(article: Article) -> bool:
    """True where the last word of a title may not be a surname, so that its use in texts decides."""
    return _EAST_ASIAN.search(f"{article.short} {article.lead[:200]}") is not None
