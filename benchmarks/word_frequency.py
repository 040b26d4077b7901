"""Count the words of general English for `wellread/mentions/frequency.safetensors`.

    python -m benchmarks.word_frequency            # writes the file anew; needs `wellread fetch vital wordnet`

Counted are the leads of the vital Wikipedia articles and the glosses of WordNet: for each word how often it occurs, and
how often with a small first letter among its occurrences inside a sentence ("paris" hardly ever, "bank" mostly). Only
hashes and counts are written, no text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from wellread import assets
from wellread.kb.names import split, word_hash
from wellread.kb.packaged import open_kb
from wellread.mentions.frequency import PATH, FrequencyTable

_WORDS = 40_000
_ENDS = np.array([word_hash(sign) for sign in ".!?:;\"'()"], np.uint64)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PATH)
    parser.add_argument("--words", type=int, default=_WORDS)
    options = parser.parse_args(given)
    table = count(list(_texts()), options.words)
    table.save(options.to)
    print(f"{len(table):,} words, {options.to.stat().st_size:,} bytes: {options.to}")


def count(texts: Sequence[str], most: int) -> FrequencyTable:
    """The `most` frequent words of texts."""
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
    best = np.argsort(-totals, kind="stable")[:most]
    shares = lows[best] / np.maximum(inner_totals[best], 1)
    return FrequencyTable.build(distinct[best], totals[best] / totals.sum() * 1e6, shares)


def _texts() -> Iterator[str]:
    articles = json.loads((assets.fetch("vital") / "summaries_en-us.json").read_text())
    yield from (str(article["extract"] or "") for article in articles.values())
    with open_kb("wordnet") as kb:
        yield from (row[0] for row in kb.connection.execute("SELECT description FROM entities"))


if __name__ == "__main__":
    main()
