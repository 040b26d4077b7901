"""The knowledge bases that come with wellread, made from its default assets, and where knowledge bases live by name.

`wordnet` is WordNet 3.0. `vital` is Wikipedia's 10,033 vital articles with their leads; the package has no links, so
their names are read off titles and leads, and an article's popularity is the number of other leads that speak of it
(each such lead is a fact, "mentions").
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wellread import assets
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.files import read_text
from wellread.kb import wordnet
from wellread.kb.build import Origin, build, state_of
from wellread.kb.names import follow, key, split, words
from wellread.kb.records import Entity, Record, Tally
from wellread.kb.store import KnowledgeBase


@dataclass(frozen=True, slots=True)
class Packaged:
    """A default KB: the asset it is made from and the reader that makes it."""

    asset: str
    licence: str
    read: Callable[[Path, Tally], Iterator[Record]]
    extra: dict[str, str]


def kb_path(name: str | Path) -> Path:
    """Where a KB is: a path as it stands; a plain name ("wordnet", "drugs") in the `kb` folder of wellread's home."""
    path = Path(name)
    if str(name).endswith("/") or not path.name or (path.name.startswith(".") and not path.is_file()):
        raise UsageError(f"{str(name)!r} cannot be a knowledge base; give a plain name (drugs) or a path (./drugs.kb)")
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return path
    return assets.home() / "kb" / f"{name}.kb"


def open_kb(name: str | Path, *, writable: bool = False) -> KnowledgeBase:
    """Open a KB by its name or path; a packaged one that was not built yet says how to build it."""
    path = kb_path(name)
    if str(name) in PACKAGED and not path.exists():
        raise KnowledgeBaseError(f"the {name} knowledge base is not built yet; build it with: wellread kb build {name}")
    return KnowledgeBase.open(path, writable=writable)


def build_packaged(name: str, to: str | Path | None = None, *, folder: str | Path | None = None, tally: Tally) -> Path:
    """Build a default KB, fetching its asset where needed; `folder` is another place with the same kind of data."""
    recipe = PACKAGED[name]
    where = Path(folder) if folder is not None else assets.fetch(recipe.asset)
    path = kb_path(to if to is not None else name)
    origin = Origin(name, recipe.licence, settings=state_of(where), extra=recipe.extra)
    build(lambda counting: recipe.read(where, counting), path, origin=origin, tally=tally)
    return path


def read_vital(folder: Path, tally: Tally) -> Iterator[Record]:
    """The vital articles as entities `wp:Title`."""
    articles = _read_articles(folder / "summaries_en-us.json")
    tally.total_bytes = len(articles)
    leads = {title: article.lead for title, article in articles.items()}
    named = {title: _aliases(title, article.short, article.lead) for title, article in articles.items()}
    _drop_common_words(named, leads)
    speaks_of = _mentions(leads, named)
    inlinks = Counter(other for others in speaks_of.values() for other in others)
    for title, article in articles.items():
        short = article.short.rstrip(".")
        yield Entity(
            f"wp:{title}",
            title,
            f"{short}. {article.lead}" if short else article.lead,
            article.topic,
            float(inlinks[title]),
            named[title],
            tuple(("mentions", f"wp:{other}") for other in speaks_of[title]),
        )
        tally.read += 1
        tally.done_bytes += 1


class _Article(NamedTuple):
    lead: str
    short: str
    topic: str


def _read_articles(path: Path) -> dict[str, _Article]:
    try:
        articles = {
            title: _Article(*(str(article[field] or "") for field in ("extract", "description", "topic")))
            for title, article in json.loads(read_text(path)).items()
        }
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path} is not the vital articles' file ({error!r}); fetch it again: wellread fetch vital"
        ) from error
    if not articles:
        raise InputError(f"{path} has no articles; fetch it again: wellread fetch vital")
    return articles


_TITLE, _BASE, _SEEN = 10.0, 5.0, 1.0
"""What a title, a title without its parenthesis, and a name read off the lead count for."""

_KNOWN_AS = re.compile(
    r"(?:known|called|abbreviated|nicknamed|referred to)(?: \w+)? (?:as |the |\")*"
    r"((?:[A-Z][\w.’'-]*)(?: [A-Z][\w.’'-]*){0,4})"
)
_ACRONYM = re.compile(r"\(([A-Z](?:\.?[A-Z]){1,5}\.?)\)")
_YEARS = re.compile(r"\((?:born |died |c\. ?|fl\. ?|r\. ?)*\d+[^)]*\)$|\(\d+.*BC\)")
_SUBJECT = re.compile(r"^(?:The (?=[A-Z]))?((?!The )[A-Z][^,(;:.]{1,60}?)(?:,? \(|, | is | was | are | were )")


def _aliases(title: str, description: str, lead: str) -> dict[str, float]:
    """Names of an article: its title, and what title and lead give away with certainty."""
    base = re.sub(r" \([^)]*\)$", "", title)
    found = defaultdict(float, {title: _TITLE})
    if base != title:
        found[base] += _BASE
    if ", " in base:
        found[base.partition(", ")[0]] += _SEEN
    if _YEARS.search(description) and " " in base:  # a person: leads call people by their last name
        found[base.rpartition(" ")[2]] += _SEEN
    head = lead[:300]
    subject = _SUBJECT.match(lead)
    if subject and len(subject[1].split()) <= 6:
        found[subject[1]] += _SEEN
    for match in _KNOWN_AS.finditer(head):
        found[match[1].rstrip(".,'’-")] += _SEEN
    initials = "".join(word[0] for word in words(f"{subject[1] if subject else ''} {base}") if word[0].isupper())
    for match in _ACRONYM.finditer(head):
        if match[1].replace(".", "") in initials:
            found[match[1]] += _SEEN
    return {name: count for name, count in found.items() if name}


def _drop_common_words(named: dict[str, dict[str, float]], leads: dict[str, str]) -> None:
    """Forget last names that are written small more often than not: leads say "born" of people, not "Born"."""
    seen = Counter(word for lead in leads.values() for word in words(lead))
    for aliases in named.values():
        for name, count in list(aliases.items()):
            if count == _SEEN and " " not in name and seen[name.lower()] > seen[name]:
                del aliases[name]


def _mentions(leads: dict[str, str], named: dict[str, dict[str, float]]) -> dict[str, list[str]]:
    """Which articles each lead speaks of by title (or title without parenthesis), itself left out.

    Spelled as in the title: small letters would make the adverb "well" speak of wells.
    """
    owners: dict[int, set[str]] = {}
    for title, aliases in named.items():
        for name, count in aliases.items():
            if count >= _BASE:
                owners.setdefault(key(name, "exact"), set()).add(title)
    owned = {node: titles.pop() for node, titles in owners.items() if len(titles) == 1}
    nodes = np.array(sorted(owned), np.uint64)
    longest = max(len(words(title)) for title in named)
    found: dict[str, list[str]] = {}
    for title, lead in leads.items():
        hashes = split(lead, "exact").hashes
        spans = np.zeros(len(hashes), np.uint64)
        met: dict[str, None] = {}
        for length in range(1, min(longest, len(hashes)) + 1):
            spans = follow(spans[: len(hashes) - length + 1], hashes[length - 1 :])
            near = nodes[np.minimum(np.searchsorted(nodes, spans), len(nodes) - 1)]
            met.update((owned[node], None) for node in near[near == spans].tolist())
        met.pop(title, None)
        found[title] = list(met)
    return found


PACKAGED = {
    "wordnet": Packaged("wordnet", wordnet.LICENCE, wordnet.read_wordnet, {"inflection": "wordnet"}),
    "vital": Packaged("vital", "CC BY-SA 4.0 (Wikipedia)", read_vital, {}),
}
