"""Speed of an encoder: padded as transformers does it, packed on torch, on onnxruntime in floats and 8-bit integers.

Bars: 8 bits ≥ 1.8 × packed floats of torch for batches of questions and paragraphs, ≥ 4 × for one question; mean cosine
with states in floats ≥ .99. All run the packaged ELQ linker's encoder, adapters merged, on texts of the repository's
documents, with one thread. Seconds are those of one core, medians over rounds in which all take turns; a speed-up is
the median of the ratios within a round.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from benchmarks.report import Report, arguments
from wellread import assets
from wellread.encoders.files import load_tokenizer
from wellread.encoders.load import merge_adapters
from wellread.encoders.packing import Packing, encode
from wellread.errors import WellreadError
from wellread.models.elq.inference import HEADS
from wellread.models.elq.load import PACKAGED
from wellread.models.elq.model import Elq
from wellread.runtime import weights
from wellread.runtime.folding import fold
from wellread.runtime.graph import write_graph, write_int8_graph
from wellread.runtime.ranges import FILE, load_ranges
from wellread.runtime.session import EncoderSession

_DOCUMENTS = Path(__file__).resolve().parent.parent
_BASE, _OWN = "torch packed", "runtime int8"
_WORK = {
    "170 questions": (170, 7, 20, 1.8),  # a batch of the linker
    "32 questions": (32, 7, 20, 1.8),  # few of each length
    "32 sentences": (32, 25, 45, 1.8),
    "16 paragraphs": (16, 110, 130, 1.8),
    "one question": (1, 11, 11, 4.0),
    "one sentence": (1, 38, 38, None),
    "one paragraph": (1, 120, 120, None),
}
"""Number of texts, the least and the greatest number of their tokens, and the least speed-up."""

Windows = list[NDArray[np.int64]]


@torch.inference_mode()
def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("encoding", options.quick)
    torch.set_num_threads(1)
    draw = random.Random(0)
    try:
        tokens = _tokens()
    except WellreadError as error:
        print(f"encoding: no encoder here ({error})")
        return 0
    contenders = _encoders(report)
    rows = []
    for what, (count, least, greatest, bar) in _WORK.items():
        windows = sorted(_texts(tokens, [draw.randint(least, greatest) for _ in range(count)], draw), key=len)
        states = {name: run(windows) for name, run in contenders.items()}  # and warmed up
        rounds = 3 if options.quick else 60 if count == 1 else 15
        seconds = _take_turns({name: lambda r=run, w=windows: r(w) for name, run in contenders.items()}, rounds)
        ratios = {name: _ratio(seconds[_BASE], own) for name, own in seconds.items()}
        likeness = {name: _cosines(own, states[_BASE]) for name, own in states.items()}
        report.add(f"{what}, {_OWN} / {_BASE}", ratios[_OWN], "×", at_least=bar)
        report.add(f"{what}, mean cosine of {_OWN}", float(likeness[_OWN].mean()), at_least=0.99)
        for name, own in seconds.items():
            cosine = likeness[name]
            rows.append(
                f"| {what} | {name} | {statistics.median(own) * 1000:.1f} | {ratios[name]:.2f} "
                f"| {cosine.mean():.4f} | {cosine.min():.4f} |"
            )
    print("\n| texts | encoder | CPU ms | speed | cosine, mean | least |\n|---|---|---|---|---|---|")
    print("\n".join(rows))
    return report.show()


def _encoders(report: Report) -> dict[str, Callable[[Windows], NDArray[np.float32]]]:
    """The same encoder four times; the time to make each graph is reported."""
    model = Elq.from_pretrained(PACKAGED).eval().requires_grad_(False)
    merge_adapters(model.encoder)
    padded = AutoModel.from_pretrained(assets.fetch("minilm"), add_pooling_layer=False, trust_remote_code=False).eval()
    padded.load_state_dict(model.encoder.state_dict())
    begin = time.process_time()
    heads = weights.read_trained(PACKAGED / "model.safetensors", HEADS)
    merged = weights.merge_adapters(weights.read_encoder(assets.fetch("minilm")), heads[1])
    report.add("made: weights read and merged", time.process_time() - begin, "CPU s")
    begin = time.process_time()
    graph = write_int8_graph(fold(merged, load_ranges(PACKAGED / FILE, merged)))
    report.add("made: 8-bit graph", time.process_time() - begin, "CPU s")
    report.add("8-bit graph", len(graph) / 1e6, "MB")
    begin = time.process_time()
    small = EncoderSession(graph, merged.words, threads=1)
    assert small.dim == merged.dim  # the session is opened when first used
    report.add("opened: 8-bit session", time.process_time() - begin, "CPU s", at_most=0.1)
    whole = EncoderSession(write_graph(merged), merged.words, threads=1)
    return {
        "torch padded": lambda windows: _padded(padded, windows),
        _BASE: lambda windows: encode(model.encoder, *_packed(windows)).numpy(),
        "runtime fp32": whole.states,
        _OWN: small.states,
    }


def _padded(encoder: torch.nn.Module, windows: Windows) -> NDArray[np.float32]:
    there_mask = Packing.of([len(window) for window in windows]).there_mask()
    ids = torch.zeros(there_mask.shape, dtype=torch.long)
    ids[there_mask] = torch.from_numpy(np.concatenate(windows))
    states = encoder(input_ids=ids, attention_mask=there_mask.long()).last_hidden_state
    return np.asarray(states[there_mask].numpy())


def _packed(windows: Windows) -> tuple[torch.Tensor, Packing]:
    return torch.from_numpy(np.concatenate(windows)), Packing.of([len(window) for window in windows])


def _take_turns(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each in every round; who begins changes from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begin = time.process_time()
            contenders[name]()
            seconds[name].append(time.process_time() - begin)
    return seconds


def _ratio(base: list[float], own: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(base, own, strict=True))


def _cosines(states: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float32]:
    product = (states * wanted).sum(1)
    return np.asarray(product / np.linalg.norm(states, axis=1) / np.linalg.norm(wanted, axis=1))


def _tokens() -> list[int]:
    """The repository's documents as tokens."""
    files = [_DOCUMENTS / "README.md", *sorted((_DOCUMENTS / "docs").glob("*.md"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return load_tokenizer("minilm").encode(text, add_special_tokens=False).ids


def _texts(tokens: list[int], lengths: list[int], draw: random.Random) -> Windows:
    """Texts of these lengths from random places, each between BERT's first and last token."""
    firsts = [draw.randrange(len(tokens) - length) for length in lengths]
    return [
        np.array([101, *tokens[first : first + length - 2], 102]) for first, length in zip(firsts, lengths, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
