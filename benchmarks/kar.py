"""How much does a knowledge layer cost: an encoder with one and with two of KnowBERT's, against transformers' own?

Bars, as multiples of the plain encoder's time: one layer ≤ 1.08 forward and ≤ 1.12 a training step, two ≤ 1.15 of
either. The encoder is BERT-base with random weights (two of its layers in a quick run), the batch 8 texts of 128 pieces
with 115 mentions of up to 30 candidates each: WordNet, entities of 200 numbers projected from 584, with parts of
speech; the second layer is of named entities, of 300 numbers as they are. `full`: every mention has 30 candidates, each
another entity, which no text has; `usual`: as many as words have senses. Each figure is the ratio of the median CPU
times of one thread over rounds in which all contenders take turns.

Memory: two processes at a time link with 25 thousand and with a million entities; what each has for itself must not
grow with the knowledge base.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedModel
from transformers.utils import logging

from benchmarks.report import Report, arguments, interleaved
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.packing import Packing
from wellread.io.arrays import Blocks, map_arrays, save_arrays
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable

_TEXTS, _TOKENS, _MENTIONS, _CANDIDATES = 8, 128, 115, 30
_ENTITIES, _RAW, _SENSES = 117_659, 584, 4
_FORWARD = {"one": 1.08, "two": 1.15}
_TRAINING = {"one": 1.12, "two": 1.15}
_SIZES = (25_000, 1_000_000)
_GROWTH = 8.0
"""MiB that a process may have more for forty times the entities."""


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("kar", options.quick)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    models = _models(options.folder, 2 if options.quick else 12)
    report.about = {"encoder": f"BERT-base, {models['plain'].config.num_hidden_layers} layers, random weights"}
    ids = torch.randint(1000, 30000, (_TEXTS, _TOKENS))
    rounds = 2 if options.quick else 7
    for name, full in (("full", True), ("usual", False)):
        candidates = {"wordnet": _candidates(full, 0), "named": _candidates(full, 1)}
        inputs = {
            "plain": {},
            "one": {"offers": {"wordnet": candidates["wordnet"]}},
            "two": {"offers": candidates},
        }
        for what, make, bars in (("forward", _forward, _FORWARD), ("training", _step, _TRAINING)):
            works = {key: make(models[key], {"input_ids": ids, **more}) for key, more in inputs.items()}
            _compare(report, f"{what}, {name}", works, rounds, bars)
    _memory(report, options.folder, (2_500, 25_000) if options.quick else _SIZES)
    return report.show()


def _models(folder: Path, layers: int) -> dict[str, PreTrainedModel]:
    """The same encoder in all of them."""
    torch.manual_seed(0)
    plain = BertModel(BertConfig(num_hidden_layers=layers, attn_implementation="sdpa"), add_pooling_layer=False)
    words = KnowBertConfig(kb="wordnet", layer=layers - 1, raw=_RAW, dim=200, kinds=5)
    names = KnowBertConfig(kb="named", layer=layers - 2, mode="margin", raw=300, dim=300, project=False)
    models = {"plain": plain, "one": infuse(copy.deepcopy(plain), [words])}
    models["two"] = infuse(copy.deepcopy(plain), [names, words])
    kinds = np.arange(_ENTITIES, dtype=np.uint8) % 5
    for model in (models["one"], models["two"]):
        for infusion in model.infusions:
            wide = infusion.config.raw
            infusion.take(_table(folder, _ENTITIES, wide, kinds if infusion.config.kinds else None))
    return models


def _table(folder: Path, count: int, wide: int, kinds: Any = None) -> EntityTable:
    """Random vectors, mapped from a file that is made once."""
    path = folder / f"vectors-{count}-{wide}.safetensors"
    if not path.exists():
        draw = np.random.default_rng(0)
        sizes = (min(10_000, count - begin) for begin in range(0, count, 10_000))
        blocks = (draw.standard_normal((size, wide), np.float32).astype(np.float16) for size in sizes)
        save_arrays(path, {"vectors": Blocks(np.float16, (count, wide), blocks)}, {})
    return EntityTable(map_arrays(path)["vectors"], kinds, folder, path.stem)


def _candidates(full: bool, seed: int, entities: int = _ENTITIES) -> dict[str, Tensor]:
    """Return mentions of one to three tokens, and their candidates."""
    draw = torch.Generator().manual_seed(seed)
    count = _TEXTS * _MENTIONS
    widths = torch.multinomial(torch.tensor([0.85, 0.1, 0.05]), count, replacement=True, generator=draw)
    firsts = torch.randint(1, _TOKENS - 4, (count,), generator=draw)
    rows = torch.randint(entities, (count, _CANDIDATES), generator=draw)
    if full:
        rows = torch.randperm(entities, generator=draw)[: count * _CANDIDATES].view(count, -1)
        counts = torch.full((count,), _CANDIDATES)
    else:
        many = torch.empty(count).geometric_(1 / _SENSES, generator=draw)
        counts = many.long().clamp(max=_CANDIDATES)
        counts[0] = _CANDIDATES
    there = torch.arange(_CANDIDATES) < counts[:, None]
    priors = torch.rand(count, _CANDIDATES, generator=draw) * there
    gold = torch.zeros(count, _CANDIDATES, dtype=torch.long)
    gold[:, 0] = 1
    return {
        "text_of": torch.arange(_TEXTS).repeat_interleave(_MENTIONS),
        "spans": torch.stack((firsts, firsts + widths), 1),
        "entities": rows.masked_fill(~there, -1),
        "priors": priors / priors.sum(1, keepdim=True),
        "gold": gold,
    }


def _compare(
    report: Report, what: str, works: Mapping[str, Callable[[], object]], rounds: int, bars: Mapping[str, float]
) -> None:
    for work in works.values():
        work()
    seconds = interleaved(works, rounds, clock=time.process_time)
    report.add(f"{what}, plain", seconds["plain"] * 1000, "ms")
    for name, bar in bars.items():
        report.add(f"{what}, {name} / plain", seconds[name] / seconds["plain"], "×", at_most=bar)


def _forward(model: PreTrainedModel, given: dict[str, Any]) -> Callable[[], object]:
    @torch.inference_mode()
    def work() -> object:
        return model.eval()(**given).last_hidden_state

    return work


def _step(model: PreTrainedModel, given: dict[str, Any]) -> Callable[[], object]:
    """Forward and backward with dropout, linking losses included; the optimizer's part is the same for all."""
    ids, packing = given["input_ids"].flatten(), Packing.of([_TOKENS] * _TEXTS)

    def work() -> None:
        model.train()
        if "offers" in given:
            read = model.read(ids, packing, offers=given["offers"])
            (read.states.square().mean() + sum(read.losses.values())).backward()
        else:
            model(**given).last_hidden_state.square().mean().backward()
        model.zero_grad()

    return work


def _memory(report: Report, folder: Path, sizes: Sequence[int]) -> None:
    found = {}
    for size in sizes:
        _table(folder, size, 300)
        made = _together(folder, size, 1)[0]["first"]
        results = _together(folder, size, 2)
        found[size] = max(each["private"] for each in results) / 2**20
        report.add(f"memory, {size:,} entities, private", found[size], "MiB")
        report.add(f"memory, {size:,} entities, of it dirty", max(each["dirty"] for each in results) / 2**20, "MiB")
        report.add(f"memory, {size:,} entities, first batch of the first process", made, "s")
        report.add(f"memory, {size:,} entities, first batch of another", results[0]["first"], "s")
    report.add("memory, growth", max(found.values()) - found[sizes[0]], "MiB", at_most=_GROWTH)


def _together(folder: Path, size: int, count: int) -> list[dict[str, float]]:
    """Return the measurements of processes that use the same table at the same time."""
    command = [sys.executable, "-m", "benchmarks.kar", "worker", str(folder), str(size)]
    root = Path(__file__).resolve().parents[1]
    workers = [
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    lines = []
    for asked in ("", "measure\n"):  # all are ready before the first measures, and all have measured before one ends
        for worker in workers:
            assert worker.stdin
            worker.stdin.write(asked)
            worker.stdin.flush()
        lines = [worker.stdout.readline() for worker in workers if worker.stdout]
    for worker in workers:
        worker.communicate()
    return [json.loads(line) for line in lines]


def _work(folder: str, size: str) -> int:
    """Link batches with a table; wait until the other process has; tell how much memory is private."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    plain = BertModel(BertConfig(num_hidden_layers=1), add_pooling_layer=False)
    config = KnowBertConfig(kb="wordnet", layer=0, raw=300, dim=300)
    model = infuse(plain, [config]).eval()
    model.infusions[0].take(_table(Path(folder), int(size), 300))
    ids = torch.randint(1000, 30000, (_TEXTS, _TOKENS))
    first = 0.0
    with torch.inference_mode():
        for seed in range(4):
            begin = time.perf_counter()
            model(input_ids=ids, offers={"wordnet": _candidates(False, seed, int(size))})
            first = first or time.perf_counter() - begin
    print("ready", flush=True)
    sys.stdin.readline()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Private_")}
    dirty = sizes["Private_Dirty"]
    print(json.dumps({"private": sizes["Private_Clean"] + dirty, "dirty": dirty, "first": first}), flush=True)
    sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(_work(*sys.argv[2:]) if sys.argv[1:2] == ["worker"] else main())
