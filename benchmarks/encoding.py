"""How fast does an encoder read: padded as transformers does it, packed, and packed in 8 bits?

Bars: 8 bits ≥ 1.8 × packed floats, for 32 questions (7 to 20 pieces) and for 16 paragraphs (128 pieces). The encoder is
MiniLM where the asset is there, reading the repository's own documents; else a random one of the same size that reads
random pieces. Likeness is the cosine of states in 8 bits and in floats. Seconds are those of one core, so that what
else the machine does counts less.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModel, BertConfig, BertModel, PreTrainedModel
from transformers.utils import logging

from benchmarks.report import Report, arguments, interleaved
from wellread import assets
from wellread.encoders.int8 import int8_available, quantise
from wellread.encoders.packing import Packing, encode, pack
from wellread.errors import WellreadError

_DOCUMENTS = Path(__file__).resolve().parent.parent
_SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


@torch.inference_mode()
def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("encoding", options.quick)
    torch.set_num_threads(1)
    plain, packed, pieces, source = _encoders()
    report.about = {"encoder": source}
    small = None
    if int8_available():
        begin = time.perf_counter()
        small = quantise(packed)
        report.add("made 8-bit", time.perf_counter() - begin, "s", at_most=2)
    draw = random.Random(0)
    lengths = {
        "questions": [min(20, max(7, round(draw.gauss(12, 3)))) for _ in range(32)],
        "paragraphs": [128] * 16,
    }
    for what, counts in lengths.items():
        packing = Packing.of(counts)
        ids = _read(pieces, counts, draw)
        there_mask = packing.there_mask()
        padded = torch.zeros(there_mask.shape, dtype=torch.long).masked_scatter(there_mask, ids)
        attended = there_mask.long()
        contenders = {
            "padded": lambda p=padded, m=attended: plain(input_ids=p, attention_mask=m).last_hidden_state,
            "packed": lambda i=ids, p=packing: encode(packed, i, p),
        }
        if small is not None:
            contenders["8-bit"] = lambda i=ids, p=packing: encode(small, i, p)
        states = {name: work() for name, work in contenders.items()}  # and warmed up
        torch.testing.assert_close(states["packed"], states["padded"][there_mask], atol=1e-4, rtol=1e-4)
        rounds = 2 if options.quick else 25 if what == "questions" else 9
        seconds = interleaved(contenders, rounds, clock=time.process_time)
        for name, took in seconds.items():
            report.add(f"{what} ({len(ids):,} pieces), {name}", took * 1000, "ms")
        report.add(f"{what}, packed / padded", seconds["padded"] / seconds["packed"], "×")
        if small is None:
            report.add(f"{what}, 8-bit", "not on this machine")
            continue
        report.add(f"{what}, 8-bit / padded", seconds["padded"] / seconds["8-bit"], "×")
        report.add(f"{what}, 8-bit / packed", seconds["packed"] / seconds["8-bit"], "×", at_least=1.8)
        alike = torch.cosine_similarity(states["8-bit"], states["packed"])
        means = torch.cosine_similarity(packing.mean(states["8-bit"]), packing.mean(states["packed"]))
        report.add(f"{what}, likeness of states, mean", float(alike.mean()))
        report.add(f"{what}, likeness of states, least", float(alike.min()))
        report.add(f"{what}, likeness of means of texts, least", float(means.min()))
    return report.show()


def _encoders() -> tuple[PreTrainedModel, PreTrainedModel, list[int], str]:
    """Padded, packed, what they read between the first and the last piece of a text, and what they are."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the pooler that nobody asks is left out
    try:
        folder = assets.fetch("minilm")
    except WellreadError as error:
        torch.manual_seed(0)
        plain = BertModel(BertConfig(**_SIZES), add_pooling_layer=False).eval()
        packed = BertModel(BertConfig(**_SIZES), add_pooling_layer=False).eval()
        packed.load_state_dict(plain.state_dict())
        pieces = torch.randint(1000, 30000, (10_000,)).tolist()
        return plain, pack(packed), pieces, f"random, as large as MiniLM; random pieces ({error})"
    plain, packed = (
        AutoModel.from_pretrained(folder, add_pooling_layer=False, trust_remote_code=False).eval() for _ in range(2)
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    files = [_DOCUMENTS / "README.md", *sorted((_DOCUMENTS / "docs").glob("*.md"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return plain, pack(packed), tokenizer.encode(text, add_special_tokens=False).ids, "MiniLM; wellread's documents"


def _read(pieces: list[int], lengths: list[int], draw: random.Random) -> torch.Tensor:
    """Texts of these lengths from random places, each between BERT's first and last piece."""
    ids = []
    for length in lengths:
        first = draw.randrange(len(pieces) - length)
        ids += [101, *pieces[first : first + length - 2], 102]
    return torch.tensor(ids)


if __name__ == "__main__":
    sys.exit(main())
