"""Time of building KAM's inputs (maps and terms) for a batch, compared with a training step of MiniLM on it.

Bars: `build_inputs` of 32 pairs of about 60 tokens, with entity, phrase, correlation and graph maps and 8 auxiliary
tokens, in ≤ 50 ms, and ≤ 5 % of a training step of the plain encoder on the same batch. Texts are paragraphs split
into sentences; links are by prior, correlations are counted on WordNet's glosses. Seconds are those of one core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.utils import logging

from benchmarks.data import english, wordnet_kb
from benchmarks.report import Report, arguments, interleaved
from wellread import assets
from wellread.correlation.counting import correlate
from wellread.data.corpus import Corpus
from wellread.errors import WellreadError
from wellread.linking.linker import Linker
from wellread.models.kam.inputs import Annotations, KamProvider, MapName, MapsConfig
from wellread.text.tokenization import Tokenization

_BATCH = 32
_ALL: tuple[MapName, ...] = ("entity", "phrase", "correlation", "graph")


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("maps", options.quick)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        path = wordnet_kb()
        encoder = assets.find("minilm")
        assets.find("spacy-en")
    except WellreadError as error:
        print(f"maps: something is missing here ({error})")
        return 0
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    source, pairs = _pairs(path, _BATCH * (2 if options.quick else 12))
    table = correlate(Corpus.of_kb("wordnet"), options.folder / "glosses.pmi")
    linker = Linker.load("wordnet", model="prior")

    def provider(*maps: MapName, terms: int = 0) -> KamProvider:
        config = MapsConfig(maps=maps, kb="wordnet", correlation=str(table.folder), terms=terms)
        return KamProvider.build(config, tokenizer, linker=linker.link_many)

    whole = provider(*_ALL, terms=8)
    cutting = _timed(lambda: whole.segmenter.tokenize_many(pairs))
    tokenized = whole.segmenter.tokenize_many(pairs)
    with TemporaryDirectory() as cache:
        annotating = _timed(lambda: whole.prepare(tokenized, cache=cache))
        again = _timed(lambda: whole.prepare(tokenized, cache=cache))
        notes = whole.prepare(tokenized, cache=cache)
    batches = [tokenized[place : place + _BATCH] for place in range(0, len(tokenized), _BATCH)]
    report.about = {
        "text": f"{len(pairs):,} pairs of {source}, {sum(map(len, tokenized)) / len(tokenized):.0f} pieces on average",
        "table": f"{len(table):,} words of WordNet's glosses",
    }
    report.add("cut 1,000 pairs", cutting / len(pairs) * 1e6, "ms")
    report.add("annotate (spaCy, links, terms)", 2 * len(pairs) / annotating, "texts/s")
    report.add("annotate again, from the cache", again * 1000, "ms")
    everything = "build all four maps and 8 tokens of terms"
    providers = {f"build {name}": provider(name) for name in _ALL} | {
        "build all four maps": provider(*_ALL),
        everything: whole,
    }
    contenders: dict[str, Callable[[], object]] = {
        name: partial(_build_inputs, one, batches, notes) for name, one in providers.items()
    }
    for work in contenders.values():
        work()
    seconds = interleaved(contenders, 2 if options.quick else 7, clock=time.process_time)
    for name, took in seconds.items():
        report.add(f"{name}, a batch", took / len(batches) * 1000, "ms", at_most=50 if name == everything else None)
    step = _step(encoder, batches[0])
    step()
    took = interleaved({"step": step}, 2 if options.quick else 5, clock=time.process_time)["step"]
    report.add("a training step of MiniLM on a batch", took * 1000, "ms")
    report.add("building inputs, of a step", 100 * seconds[everything] / len(batches) / took, "%", at_most=5)
    linker.close()
    return report.show()


def _pairs(kb: Path, count: int) -> tuple[str, list[tuple[str, str]]]:
    """Neighbouring sentences of some 20 words, so that a pair has about 60 pieces."""
    source, paragraphs = english(400_000, kb)
    sentences = [one for text in paragraphs for one in text.split(". ") if 100 <= len(one) <= 160]
    halves = sentences[: 2 * count]
    return source, list(zip(halves[::2], halves[1::2], strict=False))


def _build_inputs(provider: KamProvider, batches: Sequence[Sequence[Tokenization]], notes: Annotations) -> None:
    for batch in batches:
        provider.build_inputs(batch, notes)


def _timed(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _step(encoder: Path, tokenized: Sequence[Tokenization]) -> Callable[[], None]:
    """A step of the plain encoder with AdamW; what it learns does not matter."""
    model = AutoModel.from_pretrained(encoder, trust_remote_code=False).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one.ids) for one in tokenized], batch_first=True)
    types = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one.types) for one in tokenized], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(one)) for one in tokenized], batch_first=True)

    def step() -> None:
        states = model(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        states[:, 0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    sys.exit(main())
