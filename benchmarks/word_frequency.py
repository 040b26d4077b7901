"""Count the words of general English for `wellread/mentions/frequency.safetensors`.

    python -m benchmarks.word_frequency            # writes the file anew; needs `wellread fetch vital wordnet`

Counted are the leads of the vital Wikipedia articles and the glosses of WordNet: for each word how often it occurs, and
how often with a small first letter among its occurrences inside a sentence ("paris" hardly ever, "bank" mostly). The
words that WordNet explains are there even where they do not occur. Only hashes and counts are written, no text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from wellread import assets
from wellread.kb.packaged import open_kb
from wellread.text.frequency import PATH, FrequencyTable
from wellread.text.words import split, word_hash

_WORDS = 65_000
_OFTEN = 3
"""Occurrences that make a word known; rarer ones must be words that WordNet explains."""

_ENDS = np.array([word_hash(sign) for sign in ".!?:;\"'()"], np.uint64)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PATH)
    parser.add_argument("--words", type=int, default=_WORDS)
    options = parser.parse_args(given)
    table = count(list(_texts()), _lemmas(), options.words)
    table.save(options.to)
    print(f"{len(table):,} words, {options.to.stat().st_size:,} bytes: {options.to}")


def count(texts: Sequence[str], lemmas: np.ndarray, most: int) -> FrequencyTable:
    """The most frequent words of texts, and the words that WordNet explains."""
    hashes, small, inside = [], [], []
    for begin in range(0, len(texts), 500):
        words = split("\n.\n".join(texts[begin : begin + 500]))
        first = words.codes[words.starts]
        is_word = np.array([chr(code).isalpha() for code in range(int(first.max()) + 1)])[first]
        lower = np.array([chr(code).islower() for code in range(int(first.max()) + 1)])[first]
        inner = np.append(False, ~np.isin(words.hashes[:-1], _ENDS))
        hashes.append(words.hashes[is_word])
        small.append((lower & inner)[is_word])
        inside.append(inner[is_word])
    distinct, back = np.unique(np.concatenate(hashes), return_inverse=True)
    totals = np.bincount(back)
    lows = np.bincount(back, np.concatenate(small))
    inner_totals = np.bincount(back, np.concatenate(inside))
    rare = np.isin(distinct, lemmas, invert=True) & (totals < _OFTEN)
    best = np.argsort(np.where(rare, 0, -totals), kind="stable")[: min(most, int((~rare).sum()))]
    shares = lows[best] / np.maximum(inner_totals[best], 1)
    missing = np.setdiff1d(lemmas, distinct)[: max(0, most - len(best))]
    return FrequencyTable.build(
        np.append(distinct[best], missing),
        np.append(totals[best] / totals.sum() * 1e6, np.full(len(missing), 1e-9)),
        np.append(shares, np.ones(len(missing))),
    )


def _lemmas() -> np.ndarray:
    """Hashes of the words of WordNet that are one word, written small."""
    with open_kb("wordnet") as kb:
        names = [row[0] for row in kb.connection.execute("SELECT DISTINCT name FROM aliases")]
    small = [name for name in names if len(name) > 3 and name.isalpha() and name.islower()]
    return np.unique(np.array([word_hash(name) for name in small], np.uint64))


def _texts() -> Iterator[str]:
    articles = json.loads((assets.fetch("vital") / "summaries_en-us.json").read_text())
    yield from (str(article["extract"] or "") for article in articles.values())
    with open_kb("wordnet") as kb:
        yield from (row[0] for row in kb.connection.execute("SELECT description FROM entities"))


if __name__ == "__main__":
    main()
