"""Wikipedia's vital articles as records: names from titles and leads, counts from their use in the leads.

The package has no hyperlinks, so counts are estimated from its 10,033 leads:

1. Names come from the title (`kb.readers.title_names`), the lead (`kb.readers.lead_names`) and WordNet
   (`kb.readers.synonyms`). A common noun also gets its lower-case form and its plural, where leads write them. Short
   forms ("Everest", "Einstein") are kept only where they are written alone as proper names.
2. Each use of a name in the lead of another article is shared among the entities of that name, by the similarity of
   the two leads (tf-idf), so that "Mercury" in a lead about planets counts for the planet.
3. The count of a name is a constant for its source plus these uses. Popularity is the number of other leads that speak
   of an entity by title; each such lead is a fact, "mentions".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from wellread.errors import InputError
from wellread.io.files import read_text
from wellread.kb.readers.lead_names import lead_names
from wellread.kb.readers.name_uses import NEVER, Uses, occurrences, stands_alone
from wellread.kb.readers.synonyms import Synonyms
from wellread.kb.readers.title_names import RANKS, Article, Source, is_surname_first, own_words, title_names
from wellread.kb.records import Entity, Record, Tally

VERSION = "2"
"""Version of the derivation; a KB of an older one is rebuilt (`kb.packaged`)."""

_COUNTS = {
    Source.TITLE: 10.0,
    Source.BASE: 5.0,
    Source.SUBJECT: 4.0,
    Source.LEAD: 2.0,
    Source.FORM: 1.0,
    Source.SHORT: 0.5,
}
"""Count of a name that no lead uses."""

_OF_INLINKS = 0.5
"""Fraction of the leads with the full title that counts for its shorter names too."""

_FREQUENT = 10
"""Number of leads with a lower-case word from which on WordNet's only sense of it is not trusted."""

_OTHERS_TITLE = 0.25
"""Count of a name that is the title of another article: "Turkey" for the Ottoman Empire."""

_ADJECTIVES = frozenset(
    ("Indian", "Southern", "Chihuahuan", "Sonoran", "Arabian", "Syrian", "Patagonian", "Great Victoria", "Rocky")
)
"""First words of places that are not called by them."""

_CAPITAL_OF_COMMON = 0.9
"""Count of the capitalised form of a common noun."""

_MOST_FREQUENT = 120
"""Number of leads with a lower-case word from which on it is too common for a name found in a lead only."""


def read_vital(folder: Path, tally: Tally, wordnet: Path | None = None) -> Iterator[Record]:
    """Yield the vital articles as entities `wp:Title`; with a WordNet folder, also their synonyms."""
    articles = _read_articles(folder / "summaries_en-us.json")
    tally.total_bytes = len(articles)
    corpus = _Corpus(articles)
    named = {title: corpus.names_of(article) for title, article in articles.items()}
    if wordnet is not None:
        corpus.add_synonyms(named, articles, Synonyms(wordnet, articles))
    _add_articles(named, articles)
    leads = {title: article.lead for title, article in articles.items()}
    contexts = {title: f"{title} {article.short} {article.lead}" for title, article in articles.items()}
    uses, speaks_of = Uses(leads, contexts, named).count(lambda name, title: _is_title(name, articles[title]))
    inlinks = Counter(other for others in speaks_of.values() for other in others)
    for title, article in articles.items():
        short = article.short.rstrip(".")
        yield Entity(
            f"wp:{title}",
            title,
            f"{short}. {article.lead}" if short else article.lead,
            article.topic,
            float(inlinks[title]),
            {
                name: _final(count, uses[name, title] + uses.get((f"the {name}", title), 0.0), inlinks[title])
                for name, count in named[title].items()
                if not name.startswith("the ")
            },
            tuple(("mentions", f"wp:{other}") for other in speaks_of[title]),
        )
        tally.read += 1
        tally.done_bytes += 1


def _is_title(name: str, article: Article) -> bool:
    """Return whether a name is the title or its base as written; in lower case only with several words."""
    titles = (article.title, article.base)
    return name in titles or (" " in name and name[:1].upper() + name[1:] in titles)


def _add_articles(named: Mapping[str, dict[str, float]], articles: Mapping[str, Article]) -> None:
    """Add "the Congo", a name of the river, to the other entities whose own leads write it too.

    Names with an article only serve to count uses: rivers have one, companies do not. As aliases they would hide longer
    names, "Jordan River" in "the Jordan River".
    """
    with_article = {name for names in named.values() for name in names if name.startswith("the ")}
    for title, names in named.items():
        for name in sorted({f"the {name}" for name in names} & with_article - set(names)):
            if name in articles[title].lead:
                names[name] = _COUNTS[Source.LEAD]


def _final(count: float, uses: float, inlinks: int) -> float:
    """Return the count of a name: a short form also counts for the leads that give the title in full."""
    known = _OF_INLINKS * inlinks if count in (_COUNTS[Source.SHORT], _COUNTS[Source.SUBJECT]) else 0.0
    return round(count + uses + known, 2)


def _read_articles(path: Path) -> dict[str, Article]:
    try:
        articles = {
            title: Article(title, *(str(article[field] or "") for field in ("extract", "description", "topic")))
            for title, article in json.loads(read_text(path)).items()
        }
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path} is not the vital articles' file ({error!r}); fetch it again: wellread fetch vital"
        ) from error
    if not articles:
        raise InputError(f"{path} has no articles; fetch it again: wellread fetch vital")
    return articles


_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_ALONE = re.compile(
    r"(?<![\w.'’-])(?P<before>[A-Z][\w'’-]*\.? )?(?P<article>[Tt]he )?(?P<name>[A-Z][\w'’-]*)(?= [a-z(]|[,.;:)'’\"]|$)"
)


_WITH_ARTICLE = re.compile(r"\b[Tt]he ([A-Z][a-z]+)(?=[,.;)]| (?:and|is|was|in|to|by|from|or|as|at)\b)")


class _Corpus:
    """Word counts over all leads, which decide on names that a title or lead suggests."""

    def __init__(self, articles: Mapping[str, Article]) -> None:
        self._titles = frozenset(articles) | {article.base for article in articles.values()}
        self._written: Counter[str] = Counter()
        self._leads_with: Counter[str] = Counter()
        self._with_article: Counter[str] = Counter()
        for article in articles.values():
            words = _WORD.findall(article.lead)
            self._written.update(words)
            self._with_article.update(_WITH_ARTICLE.findall(article.lead))
            self._leads_with.update({word for word in words if word[0].islower()})

    def names_of(self, article: Article) -> dict[str, float]:
        """Return every name of an article with its count before uses."""
        sources: dict[str, Source] = {}
        for name, source in self._proposed(article):
            name = " ".join(name.split())
            sources[name] = max(source, sources.get(name, source))
        found: dict[str, float] = {}
        for name, source in sources.items():
            if source < Source.BASE and not self._is_name(name, source, article):
                continue
            common = name[:1].lower() + name[1:]
            is_common = name != common and source != Source.SHORT and self._is_common(name, common, article)
            count = _COUNTS[source]
            if source in (Source.LEAD, Source.FORM) and name in self._titles:
                count = _OTHERS_TITLE
            found[name] = _CAPITAL_OF_COMMON if is_common else max(count, found.get(name, 0.0))
            if is_common:
                found[common] = max(count, found.get(common, 0.0))
        for name, count in list(self._plurals(found, article.lead)):
            found.setdefault(name, count)
        return found

    def add_synonyms(
        self, named: Mapping[str, dict[str, float]], articles: Mapping[str, Article], synonyms: Synonyms
    ) -> None:
        """Add the synonyms that are not a name of any article, nor a word that leads often use."""
        taken = {name.lower() for names in named.values() for name in names} | NEVER
        for title, article in articles.items():
            for name in synonyms.of(article):
                if name.lower() not in taken and self._leads_with[name] < _FREQUENT:
                    named[title][name] = _COUNTS[Source.FORM]

    def _proposed(self, article: Article) -> Iterator[tuple[str, Source]]:
        yield from title_names(article)
        yield from lead_names(article)
        if article.is_person:
            yield from ((word, Source.SHORT) for word in self._words_alone(article))

    def _words_alone(self, article: Article) -> Iterator[str]:
        """Yield words of a person's title that the lead uses alone: "Mao" of Mao Zedong, "Leonardo" (da Vinci).

        The first of two words is a given name in most titles, so it needs two uses, and none of the second.
        """
        parts = article.base.split()
        words = own_words(article)
        alone = Counter(
            found["name"].removesuffix("'s").removesuffix("’s")
            for found in _ALONE.finditer(article.lead)
            if not found["before"] and len(parts) > 1
        )
        plain = len(parts) > 1 and not parts[-2].islower() and not is_surname_first(article)
        given = parts[0] if plain and words >= {parts[0], parts[-1]} else ""
        for word in sorted(words & set(alone)):
            if word != given or (alone[word] > 1 and not alone[parts[-1]]):
                yield word

    def _is_common(self, name: str, common: str, article: Article) -> bool:
        """True where the lead writes the name in lower case, or for a title that most leads do."""
        if name[1:2].isupper():
            return False
        if name == article.title and self._written[common] > 2 * self._written[name] and not article.is_person:
            return True
        ends = (end for _, end in occurrences(common, article.lead))
        return any(not article.lead[end : end + 2].strip("es").isalnum() for end in ends)

    def _is_name(self, name: str, source: Source, article: Article) -> bool:
        folded = name.lower()
        if folded in NEVER or len(name) < 2 or name.isdigit() or (source < Source.SUBJECT and name in RANKS):
            return False
        if source == Source.LEAD and article.is_person and name in self._titles:
            return False  # mostly a place or a relative: "liberator of Chile and Peru"
        if name == article.base.removeprefix("The ") and " " not in name:
            return self._written[name] > 5 * self._written[folded]
        if " " in name:
            return source != Source.SHORT or self._is_used(name, article)
        if source == Source.SHORT:
            return self._written[name] > self._written[folded] and self._is_used(name, article)
        if name[0].isupper():
            acronym = len(name) > 1 and not name[1:].islower()
            return acronym or source == Source.FORM or self._written[name] >= self._written[folded]
        return self._leads_with[folded] < _MOST_FREQUENT or article.base.lower() in (folded, f"{folded}s")

    def _is_used(self, name: str, article: Article) -> bool:
        """True where a short form is in use: in the own lead, or for a surname that needs no proof."""
        base = article.base
        bare = name.removeprefix("the ").removeprefix("River ")
        if base.endswith(" River"):
            return self._written[bare] > self._written[bare.lower()] or bare != name
        if base in (f"{bare} Desert", f"{bare} Ocean", f"{bare} Mountains") and bare not in _ADJECTIVES:
            return self._with_article[bare] > 0 or base.endswith(" Desert")
        if bare != name:
            return self._is_used(bare, article)
        if base.startswith("University of ") and name in self._titles:
            return False  # a city with an article
        if base.startswith(("Lake ", "Mount ", "Cape ")) and name not in self._titles:
            return True
        parts = base.partition(", ")[0].split()
        if article.is_person and is_surname_first(article):
            if name == parts[0] and name not in self._titles and self._written[name] > 2:
                return True
        elif article.is_person and name.split()[-1] == parts[-1]:
            return True
        shown = article.lead.replace(base, "_").replace(f" in {name}", " _")
        return any(stands_alone(shown, *place) for place in occurrences(name, shown))

    def _plurals(self, found: Mapping[str, float], lead: str) -> Iterator[tuple[str, float]]:
        """Plurals of common nouns that the leads write; of other names than the title, only where the own lead does."""
        for name, count in found.items():
            last = name.split()[-1]
            if name[0].islower() and len(last) > 2 and last.isalpha() and not self._is_plural(last):
                plural = name[: len(name) - len(last)] + _plural(last)
                if plural in lead or (count >= _COUNTS[Source.BASE] and self._leads_with[plural]):
                    yield plural, min(count, _COUNTS[Source.FORM])

    def _is_plural(self, word: str) -> bool:
        return word.endswith("s") and self._leads_with[word[:-1]] > 0


def _plural(word: str) -> str:
    if re.search(r"(?:s|x|z|ch|sh)$", word):
        return f"{word}es"
    return f"{word[:-1]}ies" if re.search(r"[^aeiou]y$", word) else f"{word}s"
