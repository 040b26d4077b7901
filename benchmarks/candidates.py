"""Speed of finding mentions with candidates and priors as arrays, and of collating them as inputs of an encoder.

Bars: ≥ 200,000 words/s of WordNet from text to (spans, rows, priors) on one core, what is not in memory yet included
(the authors' code: 22,000-32,000), and ≥ 100,000 tokens/s of collated batches of 8 × 128 tokens (a training step on a
core reads about 820). Words are what blanks divide; seconds are those of the one core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import english, wordnet_kb
from benchmarks.report import Report, arguments, interleaved
from wellread.assets import find
from wellread.errors import WellreadError
from wellread.kb.packaged import kb_path
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder
from wellread.models.knowbert.config import CandidateConfig
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.text.tokenization import TextTokenizer, Tokenization

_TEXTS, _TOKENS = 8, 128


class _Rows:
    """Rows of entities in the order of their ids, without the vectors."""

    file = "benchmark"

    def __init__(self, kb: KnowledgeBase) -> None:
        ids = kb.connection.execute("SELECT id FROM entities ORDER BY id")
        self._row_of = {id: row for row, (id,) in enumerate(ids)}

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._row_of.get(id, -1) for id in ids], np.int64)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("candidates", options.quick)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        wordnet_kb()
        tokenizer = _tokenizer()
    except WellreadError as error:
        print(f"candidates: no WordNet or no tokenizer here ({error})")
        return 0
    source, texts = english(100_000 if options.quick else 12_000_000, kb_path("wordnet"))
    words = sum(len(text.split()) for text in texts)
    report.about = {"text": f"{words:,} words of {source}, {len(texts):,} paragraphs"}
    tokenized = TextTokenizer(tokenizer, longest=_TOKENS).tokenize_many([(text,) for text in texts[:8000]])
    for name in ("wordnet", "vital"):
        if kb_path(name).exists():
            with KnowledgeBase.open(kb_path(name)) as kb:
                _measure(report, name, kb, texts, words, tokenized, rounds=2 if options.quick else 5)
        else:
            report.add(name, "not built")
    return report.show()


def _tokenizer() -> object:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(find("minilm") / "tokenizer.json"))


def _measure(
    report: Report,
    name: str,
    kb: KnowledgeBase,
    texts: list[str],
    words: int,
    tokenized: list[Tokenization],
    rounds: int,
) -> None:
    vectors, reading = _Rows(kb), CandidateConfig().reading(kb)
    finder, provider = CandidateFinder(kb, reading), KnowBertProvider([(name, kb, vectors)])
    whole = TextTokenizer(_tokenizer()).tokenize_many([("",)])[0]
    inputs = [_with(whole, text) for text in texts]
    finder.find(texts), provider.prepare(inputs)  # what is met for the first time is looked up now
    begin = time.process_time()
    notes = provider.prepare(tokenized)
    batches = [tokenized[at : at + _TEXTS] for at in range(0, len(tokenized) - _TEXTS + 1, _TEXTS)]
    pieces = sum(len(one) for batch in batches for one in batch)
    print(f"  {name}: notes in {time.process_time() - begin:.1f} s", file=sys.stderr)
    seconds = interleaved(
        {
            "from the start": lambda: KnowBertProvider([(name, kb, vectors)]).prepare(inputs),
            "again": lambda: provider.prepare(inputs),
            "objects": lambda: sum(map(len, finder.mentions_of_many(texts))),
            "collated": lambda: [provider.collate(batch, notes) for batch in batches],
        },
        rounds,
        clock=time.process_time,
    )
    bar = 200_000 if name == "wordnet" else None
    report.add(f"{name}, arrays, from the start", words / seconds["from the start"], "words/s", at_least=bar)
    report.add(f"{name}, arrays, names met before", words / seconds["again"], "words/s", at_least=bar)
    report.add(f"{name}, objects, names met before", words / seconds["objects"], "words/s")
    report.add(
        f"{name}, collated, batches of {_TEXTS} × {_TOKENS}", pieces / seconds["collated"], "pieces/s", at_least=100_000
    )


def _with(tokenized: Tokenization, text: str) -> Tokenization:
    """An input of which only the text counts."""
    return replace(tokenized, texts=(text,))


if __name__ == "__main__":
    sys.exit(main())
