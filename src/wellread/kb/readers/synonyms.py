"""Synonyms of article titles from WordNet's nouns, where both sides are unambiguous.

A title with one noun synset ("Myocardial infarction") has the other words of that synset as names ("heart attack")
if each has no other sense, is not a name of an article, and the gloss shares a word with the article.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from wellread.kb.readers.title_names import Article
from wellread.kb.readers.wordnet import read_nouns
from wellread.kb.records import Tally

_DESCRIBES = re.compile(
    r"^(?:family|genus|order|class|phylum|superfamily|subfamily|suborder|division|subdivision|capital of|atomic number|"
    r"battle of|Battle of) |capital$"
)
_LEAST = 3
"""Minimum letters of a synonym: chemical symbols are words of other languages."""


class Synonyms:
    """Words of the only synset of a title."""

    def __init__(self, folder: Path, titles: Collection[str]) -> None:
        """Read the nouns of a WordNet folder that concern the titles."""
        wanted = {title.lower() for title in titles}
        self._senses: Counter[str] = Counter()
        self._synsets: dict[str, tuple[str, tuple[str, ...]]] = {}
        for synset in read_nouns(folder, Tally()):
            words = {name.lower() for name in synset.aliases}
            self._senses.update(words)
            for word in words & wanted:
                self._synsets[word] = (synset.description, tuple(synset.aliases))

    def of(self, article: Article) -> Iterator[str]:
        """Yield the synonyms of a title with one sense."""
        title = article.title.lower()
        gloss, words = self._synsets.get(title, ("", ()))
        if self._senses[title] != 1 or not _share_a_word(gloss, f"{article.short} {article.lead}"):
            return
        for word in words:
            namesake = word[0].isupper() and word.endswith(f" {article.title}") and not article.is_person
            if self._senses[word.lower()] == 1 and len(word) >= _LEAST and not (_DESCRIBES.search(word) or namesake):
                yield word


def _share_a_word(gloss: str, text: str) -> bool:
    words, others = (set(re.findall(r"[a-z]{4,}", some.lower())) for some in (gloss, text))
    return bool(words & others - {"that", "with", "from", "which", "have", "having", "used", "other", "than", "into"})
