"""Frequency of words in general English, and their share of lower-case first letters.

A table of 65,000 words comes with the package: the words of the leads of the vital Wikipedia articles, of the glosses
of WordNet, and of WordNet itself (`benchmarks/word_frequency.py`). It holds hashes and counts only.

>>> frequency(np.array([word_hash("river")], np.uint64)).round(1), is_common(["river", "paris"])
(array([2.8], dtype=float32), array([ True, False]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from wellread.text.key_table import KeyTable
from wellread.text.words import Keys, word_hash

PATH = Path(__file__).with_name("frequency.safetensors")

FLOOR = -1.0
"""log10 per million of a word that is not in the table."""

_STEPS = 40
"""Steps of the stored logarithm for one power of ten."""

_HIGH = np.uint64(0xFFFFFFFF00000000)


@dataclass(frozen=True, slots=True)
class FrequencyTable:
    """Table of words by the upper half of their hashes, with about one wrong hit in 100,000 unknown words.

    `logs` and `shares` begin with a row for words that are not in the table.
    """

    table: KeyTable
    logs: NDArray[np.uint8]
    shares: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.logs) - 1

    @classmethod
    def build(cls, hashes: Keys, per_million: NDArray[np.floating], shares: NDArray[np.floating]) -> FrequencyTable:
        """Build a table from hashes of words, frequencies per million and shares of lower-case first letters."""
        halves, first = np.unique(hashes >> np.uint64(32) << np.uint64(32), return_index=True)
        logs = np.clip((np.log10(per_million[first]) - FLOOR) * _STEPS, 1, 255).round().astype(np.uint8)
        return cls._of(halves, logs, (shares[first] * 255).round().astype(np.uint8))

    @classmethod
    def _of(cls, halves: Keys, logs: NDArray[np.uint8], shares: NDArray[np.uint8]) -> FrequencyTable:
        rows = np.arange(1, len(halves) + 1, dtype=np.uint32)
        return cls(KeyTable.build(halves, rows), np.append(np.uint8(0), logs), np.append(np.uint8(0), shares))

    @classmethod
    def load(cls, path: Path = PATH) -> FrequencyTable:
        """Read the file that `save` wrote."""
        arrays = load_file(path)
        return cls._of(arrays["hashes"].astype(np.uint64) << np.uint64(32), arrays["logs"], arrays["shares"])

    def save(self, path: Path) -> None:
        """Write hashes (upper 32 bits), logarithms and shares."""
        halves = (self.table.keys >> np.uint64(32)).astype(np.uint32)
        about = {"source": "counts of words: vital Wikipedia articles (CC BY-SA 4.0) and WordNet 3.0 glosses"}
        save_file({"hashes": halves, "logs": self.logs[1:], "shares": self.shares[1:]}, path, about)

    def find(self, hashes: Keys) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return log10 of each word's frequency per million (`FLOOR` if unknown) and share of lower-case initials."""
        rows = self.table.find(hashes & _HIGH)
        logs = self.logs[rows].astype(np.float32) / np.float32(_STEPS) + np.float32(FLOOR)
        return logs, self.shares[rows].astype(np.float32) / np.float32(255)


@cache
def packaged() -> FrequencyTable:
    """Return the packaged table."""
    return FrequencyTable.load()


def frequency(hashes: Keys) -> NDArray[np.float32]:
    """Return log10 of each word's occurrences in a million words, `FLOOR` for those not in the table."""
    return packaged().find(hashes)[0]


def lower_share(hashes: Keys) -> NDArray[np.float32]:
    """Return each word's share of lower-case first letters inside sentences, 0 for those not in the table."""
    return packaged().find(hashes)[1]


def common(hashes: Keys, *, at_least: float = 0.0) -> NDArray[np.bool_]:
    """Return which words are common: at least so frequent (log10 per million) with a lower-case first letter."""
    logs, shares = packaged().find(hashes)
    found: NDArray[np.bool_] = logs + np.log10(np.maximum(shares, 1e-9)) >= at_least
    return found


def is_english(hashes: Keys) -> NDArray[np.bool_]:
    """Return which words are in the table: English words and well-known names."""
    found: NDArray[np.bool_] = packaged().table.find(hashes & _HIGH) != 0
    return found


def is_common(words: Sequence[str], *, at_least: float = 0.0) -> NDArray[np.bool_]:
    """Return `common` for words given as text."""
    return common(np.array([word_hash(word) for word in words], np.uint64), at_least=at_least)
