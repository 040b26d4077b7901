"""WordNet's sense keys ("dog%1:05:00::") and the synsets of the WordNet KB that they name ("02084071-n").

`index.sense` of a WNDB folder has both. A key names one sense of one lemma; every word of a synset has its own key.
Lemmas are in lower case with "_" for blanks, as in keys; other spellings are converted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from wellread import assets
from wellread.errors import InputError
from wellread.io.files import read_text
from wellread.text.words import key as folded

_KINDS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
"""Part of speech by the number after "%"; satellites (5) are adjectives."""


class SenseKeys:
    """Keys of `index.sense` in the order of WordNet's senses, the most frequent first, with their synsets."""

    def __init__(self, senses: Iterable[tuple[str, str, int]]) -> None:
        """`senses` are (key, synset id, number of the sense)."""
        self._synset: dict[str, str] = {}
        self._numbered: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for key, synset, number in senses:
            self._synset[key] = synset
            self._numbered.setdefault((key.partition("%")[0], synset[-1]), []).append((number, key))
        self._words: dict[str, list[str]] | None = None

    @classmethod
    def read(cls, folder: str | Path | None = None) -> SenseKeys:
        """Read the keys of a WNDB folder, or of the `wordnet` asset, which is fetched if needed."""
        return _read(Path(folder) if folder is not None else assets.fetch("wordnet"))

    def __len__(self) -> int:
        return len(self._synset)

    def __contains__(self, key: str) -> bool:
        return key in self._synset

    def synsets(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the synsets of keys, each once; unknown keys have none."""
        return tuple(dict.fromkeys(self._synset[key] for key in keys if key in self._synset))

    def senses(self, lemma: str, kind: str | None = None) -> tuple[str, ...]:
        """Return the keys of a lemma, its first sense first: ("dog", "n") -> ("dog%1:05:00::", "dog%1:18:01::", …)."""
        kinds = (kind,) if kind is not None else tuple(dict.fromkeys(_KINDS.values()))
        lemma = as_lemma(lemma)
        return tuple(key for one in kinds for _, key in sorted(self._numbered.get((lemma, one), ())))

    def first(self, lemma: str, kind: str | None = None) -> str | None:
        """Return the first sense that WordNet lists for a lemma."""
        return next(iter(self.senses(lemma, kind)), None)

    def key(self, lemma: str, synset: str) -> str | None:
        """Return the key of a lemma in a synset; else that of the most similar word there, or any."""
        own = (key for key in self.senses(lemma, synset[-1]) if self._synset[key] == synset)
        found = next(own, None)
        if found is not None:
            return found
        words = self._words_of(synset)
        same = (key for key in words if folded(_words(key)) == folded(lemma.replace("_", " ")))
        return next(same, next(iter(words), None))

    def _words_of(self, synset: str) -> list[str]:
        if self._words is None:
            self._words = {}
            for key, other in self._synset.items():
                self._words.setdefault(other, []).append(key)
        return self._words.get(synset, [])


def as_lemma(word: str) -> str:
    """Return a word as in keys: "Primary election" -> "primary_election"."""
    return word.strip().replace(" ", "_").lower()


def kind_of(key: str) -> str:
    """Return the part of speech of a key as in the KB: "dog%1:05:00::" -> "n"; `InputError` if it is not a key."""
    _, sign, code = key.rpartition("%")
    if not sign or code[:1] not in _KINDS or code.count(":") != 4:
        raise InputError(f"{key!r} is not a sense key of WordNet; expected one such as dog%1:05:00::")
    return _KINDS[code[0]]


def _words(key: str) -> str:
    return key.rpartition("%")[0].replace("_", " ")


@lru_cache(2)
def _read(folder: Path) -> SenseKeys:
    file = folder / "index.sense"
    if not file.is_file():
        raise InputError(
            f"{folder} has no index.sense, which maps sense keys to synsets; give a WNDB folder, or fetch one: "
            "wellread fetch wordnet"
        )

    def senses() -> Iterable[tuple[str, str, int]]:
        for number, line in enumerate(read_text(file).splitlines(), 1):
            try:
                key, offset, order, _ = line.split()
                yield key, f"{offset}-{_KINDS[key.rpartition('%')[2][0]]}", int(order)
            except (ValueError, KeyError, IndexError) as error:
                raise InputError(f"{file}, line {number}, is not a sense ({error}); fetch it again") from error

    return SenseKeys(senses())
