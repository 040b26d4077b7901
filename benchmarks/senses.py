"""How fast are the words of a text linked to their senses, by the packaged linker: `python -m benchmarks.senses`.

Bar: ≥ 3,000 words/s of running text on two cores as the linker comes, which is with parts of speech from spaCy. Also
reported: without tags; the whole in relation to the forward pass of the encoder alone on the same windows; and
what the tagger alone takes. Words are what blanks divide, texts the leads of the vital articles (or what WordNet says
of its synsets, where that KB is not there). Runs are interleaved, medians are reported.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import wordnet_kb
from benchmarks.report import Report, arguments, interleaved
from wellread.data.batches import gather
from wellread.errors import WellreadError
from wellread.kb.packaged import kb_path
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.models.knowbert.inference import SingleLayer
from wellread.models.knowbert.linker import KnowBertBackend

_CORES, _TOKENS = 2, 2048


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("senses", options.quick)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:_CORES]))
    try:
        wordnet_kb()
        linkers = {tags: Linker.load("wordnet", "knowbert", tags=tags) for tags in ("auto", "none")}
    except WellreadError as error:
        print(f"senses: no WordNet or no linker here ({error})")
        return 0
    source, texts = _texts(2_000 if options.quick else 50_000)
    words = sum(len(text.split()) for text in texts)
    report.about = {"text": f"{words:,} words of {source}, {len(texts):,} texts"}
    backend = linkers["none"].backend
    tagger = linkers["auto"].backend.tagger
    assert isinstance(backend, KnowBertBackend)
    assert isinstance(backend.layers, SingleLayer)
    encoder, windows = backend.layers.encoder, _windows(backend, texts)
    runs: dict[str, Callable[[], object]] = {
        "as it comes": lambda: list(linkers["auto"].link_many(texts)),
        "without tags": lambda: list(linkers["none"].link_many(texts)),
        "encoder": lambda: [encoder.states(batch) for batch in gather(windows, largest=_TOKENS)],
    }
    if tagger is not None:
        runs["tagger"] = lambda: tagger.tag(texts)
    for run in runs.values():
        run()  # what is met for the first time is looked up now
    seconds = interleaved(runs, 1 if options.quick else 3)
    tagged = "with tags" if tagger is not None else "without spaCy"
    report.add(f"as it comes, {tagged}", words / seconds["as it comes"], "words/s", at_least=3000)
    report.add("without tags", words / seconds["without tags"], "words/s", at_least=3000)
    report.add("as it comes / encoder", seconds["as it comes"] / seconds["encoder"], "×")
    report.add("without tags / encoder", seconds["without tags"] / seconds["encoder"], "×")
    if tagger is not None:
        report.add("the tagger alone", words / seconds["tagger"], "words/s")
    for linker in linkers.values():
        linker.close()
    return report.show()


def _windows(backend: KnowBertBackend, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    tokenized = backend.window_tokenizer.tokenize(texts, words=False)
    return sorted((window.input.ids for some in tokenized for window in some), key=len)


def _texts(words: int) -> tuple[str, list[str]]:
    """Descriptions of the first entities of a KB, as many as have so many words."""
    path = kb_path("vital") if kb_path("vital").exists() else kb_path("wordnet")
    with KnowledgeBase.open(path) as kb:
        texts = [row[0] for row in kb.connection.execute("SELECT description FROM entities")]
    before = itertools.accumulate((len(text.split()) for text in texts), initial=0)
    return path.name, texts[: sum(count < words for count in before)]


if __name__ == "__main__":
    sys.exit(main())
