"""Spelling variants of names: without punctuation, written as one word, and the words of names.

Three tables map the key of a variant to the key of the name:

`loose`  the words without punctuation: "Dr. Martens" -> "Dr Martens", "Alzheimer's disease" -> "Alzheimer disease"
`glued`  all letters as one word, for names with punctuation, hyphens or digits: "Wi-Fi" -> "wifi", "U.S." -> "us"
`stems`  the stems of its words in any order, for names of several words (`word_order`)

Texts are processed in the same way (`proposals`), so that either side may have the punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.mentions.typos import WordIndex, folded, is_correctable
from wellread.mentions.word_order import name_keys
from wellread.text.key_table import FormTable, KeyTable
from wellread.text.words import Keys, Offsets, Words, follow, glued, split_names, walk, word_hash

SIGNS = ".,'’‘ʼ`!?:;/&-\u2010\u2011–—−()[]\"“”„*·•®™"
"""Signs that may be missing from a name; others ("+", "#", "%") make it another name."""

ANY, CAPITAL, UPPER = 1, 2, 4
"""Spelling that a variant requires: any, with a capital first letter, or all capitals ("US", not "us")."""

MOST_PARTS = 4
"""Maximum words that are read as one."""

_SIGN_CODES = np.array(sorted(map(ord, SIGNS)), np.uint32)
_HYPHENS = np.array([ord(sign) for sign in "-\u2010\u2011"], np.uint32)
_APOSTROPHE, _S = np.uint64(word_hash("'")), np.uint64(word_hash("s"))

_ARTICLES = np.array([word_hash("a"), word_hash("i")], np.uint64)

_is_sign = np.zeros(1 << 16, np.bool_)
_is_sign[_SIGN_CODES] = True


@dataclass(frozen=True, slots=True)
class Variants:
    """Tables of spelling variants, and the words of names with their misspellings."""

    loose: FormTable
    glued: FormTable
    stems: FormTable
    words: WordIndex

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `of_arrays` takes."""
        tables = {"loose": self.loose, "glued": self.glued, "stems": self.stems}
        return self.words.arrays() | {
            f"{name}_{part}": array
            for name, table in tables.items()
            for part, array in (
                ("slots", table.table.slots),
                ("rows", table.table.values),
                ("keys", table.words),
                ("kinds", table.kinds),
                ("last", table.last),
            )
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Variants:
        """Return the tables over (mapped) arrays."""
        loose, glued, stems = (
            FormTable(
                KeyTable(arrays[f"{name}_slots"], arrays[f"{name}_rows"]),
                *(arrays[f"{name}_{part}"] for part in ("keys", "kinds", "last")),
            )
            for name in ("loose", "glued", "stems")
        )
        return cls(loose, glued, stems, WordIndex.of_arrays(arrays))

    def joined_with(self, added: Variants, changed: Keys) -> Variants:
        """Return both as one; names with `changed` keys are taken from `added` only."""
        return Variants(
            _joined(self.loose, added.loose, changed),
            _joined(self.glued, added.glued, changed),
            _joined(self.stems, added.stems, changed),
            self.words.joined_with([added.words]),
        )


class VariantBuilder:
    """Collects the variants of names, a chunk at a time."""

    def __init__(self) -> None:
        self.inner: list[Keys] = []
        """Inner nodes of longer loose names."""
        self._loose: list[tuple[Keys, Keys, NDArray[np.uint8]]] = []
        self._glued: list[tuple[Keys, Keys, NDArray[np.uint8]]] = []
        self._stems: list[tuple[Keys, Keys, NDArray[np.uint8]]] = []
        self._words: dict[int, str] = {}

    def add(self, names: Sequence[str], keys: Keys) -> None:
        """Add names and their keys."""
        if not names:
            return
        text, words, first = split_names(names)
        self._collect(text, words)
        owner = np.repeat(np.arange(len(names)), np.diff(np.append(first, len(words.starts))))
        signs = are_signs(words)
        possessive = np.zeros(len(signs), np.bool_)
        possessive[1:] = (words.hashes[1:] == _S) & (words.hashes[:-1] == _APOSTROPHE) & (owner[1:] == owner[:-1])
        has_sign = np.bincount(owner, signs, len(names)) > 0
        self._add_loose(words, owner, ~signs & has_sign[owner], keys)
        has_possessive = np.bincount(owner, possessive, len(names)) > 0
        self._add_loose(words, owner, ~signs & ~possessive & has_possessive[owner], keys)
        self._add_glued(words, owner, ~signs, has_sign, keys)
        stems = name_keys(words, first)
        some = np.flatnonzero(stems)
        self._stems.append((stems[some], keys[some], np.full(len(some), ANY, np.uint8)))

    def finish(self) -> Variants:
        """Return the tables."""
        words, self._words = self._words, {}
        return Variants(_table(self._loose), _table(self._glued), _table(self._stems), WordIndex.build(words))

    @property
    def ends(self) -> Keys:
        """Keys of the loose names."""
        return np.concatenate([ends for ends, _, _ in self._loose]) if self._loose else np.zeros(0, np.uint64)

    def _collect(self, text: str, words: Words) -> None:
        distinct, at = np.unique(words.hashes, return_index=True)
        spans = zip(distinct.tolist(), words.starts[at].tolist(), words.ends[at].tolist(), strict=True)
        for hash, start, end in spans:
            if hash not in self._words:
                word = folded(text[start:end])
                self._words[hash] = word if is_correctable(word) else ""

    def _add_loose(self, words: Words, owner: Offsets, kept: NDArray[np.bool_], keys: Keys) -> None:
        chosen = np.flatnonzero(kept)
        if not len(chosen):
            return
        owners, first, counts = np.unique(owner[chosen], return_index=True, return_counts=True)
        ends, inner = walk(words.hashes[chosen], first, counts)
        letters = np.add.reduceat(words.sizes[chosen], first)
        good = (ends != keys[owners]) & (letters >= 3)
        # "a dam" does not mean "A'dam".
        capital = ((counts == 1) & (letters <= 4)) | np.isin(words.hashes[chosen[first]], _ARTICLES)
        how = np.where(capital, CAPITAL, ANY).astype(np.uint8)
        self._loose.append((ends[good], keys[owners[good]], how[good]))
        self.inner += inner

    def _add_glued(
        self, words: Words, owner: Offsets, kept: NDArray[np.bool_], has_sign: NDArray[np.bool_], keys: Keys
    ) -> None:
        codes = words.codes
        behind = codes[np.minimum(words.ends, len(codes) - 1)]
        joint = np.zeros(len(owner), np.bool_)
        joint[:-1] = np.isin(behind[:-1], _HYPHENS) & (owner[1:] == owner[:-1])
        digit = _is_digit(codes[words.starts]) | _is_digit(codes[words.ends - 1])
        wanted = has_sign | (np.bincount(owner, joint | digit, len(has_sign)) > 0)
        chosen = np.flatnonzero(kept & wanted[owner])
        if not len(chosen):
            return
        owners, first, counts = np.unique(owner[chosen], return_index=True, return_counts=True)
        some = np.flatnonzero((counts > 1) & (counts <= MOST_PARTS))
        owners, first, counts = owners[some], first[some], counts[some]
        hashes, sizes = words.hashes[chosen[first]], words.sizes[chosen[first]]
        longest = sizes.copy()
        for part in range(1, MOST_PARTS):
            going = np.flatnonzero(counts > part)
            there = chosen[first[going] + part]
            hashes[going] = glued(hashes[going], sizes[going], words.hashes[there])
            sizes[going] += words.sizes[there]
            longest[going] = np.maximum(longest[going], words.sizes[there])
        lettered = np.zeros(len(has_sign), np.bool_)
        lettered[owner[~digit & kept]] = True
        good = np.flatnonzero(lettered[owners] & (sizes >= 2))
        upper = (longest[good] == 1) | (sizes[good] <= 3)
        how = np.where(upper, UPPER, ANY).astype(np.uint8)
        self._glued.append((follow(np.zeros(len(good), np.uint64), hashes[good]), keys[owners[good]], how))


def are_signs(words: Words) -> NDArray[np.bool_]:
    """Return which words are signs that may be missing from a name."""
    first = words.codes[words.starts]
    if words.codes.dtype != np.uint8:
        first = np.minimum(first, len(_is_sign) - 1)
    signs: NDArray[np.bool_] = _is_sign[first]
    return signs


def _is_digit(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    digits: NDArray[np.bool_] = (codes >= ord("0")) & (codes <= ord("9"))
    return digits


def _table(parts: list[tuple[Keys, Keys, NDArray[np.uint8]]]) -> FormTable:
    if not parts:
        return FormTable.build(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint8))
    return FormTable.build(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _joined(old: FormTable, new: FormTable, changed: Keys) -> FormTable:
    variants, keys, how = old.columns()
    there = ~np.isin(keys, changed)
    return _table([(variants[there], keys[there], how[there]), new.columns()])
