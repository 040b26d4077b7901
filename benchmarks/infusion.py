"""How much does infusion cost: an encoder with nothing infused, and with KAM, against transformers' own with SDPA?

Bars, as multiples of the plain encoder's time at equal lengths: KAM with 4 maps ≤ 1.05 forward at up to 64 pieces, 1.10
at 128, 1.20 at 256; with 8 auxiliary pieces ≤ 1.12, 1.15, 1.25; a training step ≤ 1.10 up to 128 pieces; nothing
infused ≤ 1. Where lengths lie between 50 and 100 % of the longest, nothing infused is ≥ 1.2 × as fast. The encoder is
BERT-base with random weights, six of its layers for 8 texts, two for 32 and in a quick run. In every round all
contenders take turns, in an order that is drawn anew; each figure is the median over rounds of the ratio of processor
times of one thread to the plain encoder's in the same round. The plain encoder takes two turns: how far its ratio to
itself lies from 1 is the noise of the measure. `--texts 8` or `--texts 32` runs a half of it; each takes half an hour,
less with some `--lengths` alone.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedModel
from transformers.utils import logging

from benchmarks.report import Report, arguments
from wellread.encoders.infusion.infuse import infuse
from wellread.models.kam.model import KamConfig

_MAPS = ("entity", "phrase", "correlation", "graph")
_TERMS = 8
_LAYERS = {8: 6, 32: 2}
"""Layers of the encoder, by how many texts it reads at once."""
_FORWARD = {32: 1.05, 64: 1.05, 128: 1.10, 256: 1.20}
_WITH_TERMS = {32: 1.12, 64: 1.12, 128: 1.15, 256: 1.25}
_TRAINING = {32: 1.10, 64: 1.10, 128: 1.10}
_UNEVEN = 1.2
_AGAIN = "plain again"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--texts", type=int, nargs="+", choices=tuple(_LAYERS), default=list(_LAYERS))
    parser.add_argument("--lengths", type=int, nargs="+", choices=tuple(_FORWARD), default=list(_FORWARD))
    own, rest = parser.parse_known_args(given)
    options = arguments(__doc__, rest)
    report = Report("infusion", options.quick)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    for texts in own.texts[:1] if options.quick else own.texts:
        layers = 2 if options.quick else _LAYERS[texts]
        models = _models(layers)
        report.about[f"encoder of {texts} texts"] = f"BERT-base, {layers} layers, random weights"
        for length in own.lengths[:2] if options.quick else own.lengths:
            rounds = 2 if options.quick else max(9, 8192 // (texts * length))
            _even(report, models, texts, length, rounds)
            _uneven(report, models, texts, length, rounds)
    again = [abs(row["value"] - 1) for row in report.rows if _AGAIN in row["what"]]
    report.about["noise"] = (
        f"the plain encoder against itself: off by {statistics.median(again):.3f}, at most {max(again):.3f}"
    )
    return report.show()


def _models(layers: int) -> dict[str, PreTrainedModel]:
    """The same weights in all of them; KAM has learned a little, so that no kernel is trivial."""
    torch.manual_seed(0)
    plain = BertModel(BertConfig(num_hidden_layers=layers, attn_implementation="sdpa"), add_pooling_layer=False)
    infusions = {"nothing": [], "kam": [KamConfig(maps=_MAPS)], "kam, skip": [KamConfig(maps=_MAPS, skip="mix")]}
    models = {name: infuse(copy.deepcopy(plain), kinds) for name, kinds in infusions.items()}
    with torch.no_grad():
        for model in models.values():
            for weight in model.infusions.parameters():
                weight.add_(torch.randn_like(weight) * 0.02)
    return {"plain": plain, **models}


def _even(report: Report, models: dict[str, PreTrainedModel], texts: int, length: int, rounds: int) -> None:
    ids = torch.randint(1000, 30000, (texts, length))
    maps = (torch.rand(texts, len(_MAPS), length, length) < 0.1).float()
    more = {"maps": maps}
    terms = {
        "maps": torch.nn.functional.pad(maps, (0, _TERMS, 0, _TERMS)),
        "term_ids": torch.randint(1000, 30000, (texts, _TERMS)),
    }
    asked: dict[str, tuple[str, dict[str, Tensor]]] = {
        "plain": ("plain", {}),
        _AGAIN: ("plain", {}),
        "nothing": ("nothing", {}),
        "kam": ("kam", more),
        "kam, terms": ("kam", terms),
        "kam, skip": ("kam, skip", more),
    }
    bars = {"nothing": 1.0, "kam": _FORWARD[length], "kam, terms": _WITH_TERMS[length]}
    what = f"{texts} × {length}"
    works = {name: _forward(models[model], {"input_ids": ids, **inputs}) for name, (model, inputs) in asked.items()}
    _compare(report, f"forward, {what}", works, rounds, bars)
    if length in _TRAINING:
        works = {name: _step(models[model], {"input_ids": ids, **inputs}) for name, (model, inputs) in asked.items()}
        _compare(report, f"training, {what}", works, rounds, {"nothing": 1.0, "kam": _TRAINING[length]})


def _uneven(report: Report, models: dict[str, PreTrainedModel], texts: int, length: int, rounds: int) -> None:
    lengths = torch.linspace(length // 2, length, texts).round().long()[torch.randperm(texts)]
    mask = torch.arange(length) < lengths[:, None]
    given = {"input_ids": torch.randint(1000, 30000, (texts, length)) * mask, "attention_mask": mask.long()}
    for what, make in (("forward", _forward), ("training", _step)):
        if what == "training" and length not in _TRAINING:
            continue
        works = {name: make(models[name.split()[0]], given) for name in ("plain", _AGAIN, "nothing")}
        _, ratios = take_turns(works, rounds)
        name = f"{what}, {texts} × {length // 2}-{length}, plain /"
        report.add(f"{name} {_AGAIN}", 1 / ratios[_AGAIN], "×")
        report.add(f"{name} nothing", 1 / ratios["nothing"], "×", at_least=_UNEVEN)


def _compare(
    report: Report, what: str, works: Mapping[str, Callable[[], object]], rounds: int, bars: Mapping[str, float]
) -> None:
    seconds, ratios = take_turns(works, rounds)
    report.add(f"{what}, plain", seconds * 1000, "ms")
    for name, ratio in ratios.items():
        report.add(f"{what}, {name} / plain", ratio, "×", at_most=bars.get(name))


def take_turns(works: Mapping[str, Callable[[], object]], rounds: int) -> tuple[float, dict[str, float]]:
    """Median CPU seconds of "plain", and the median ratio of each other to it in the same round; one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    turns, draw = list(works), random.Random(0)
    for work in works.values():
        work()
    for _ in range(rounds):
        draw.shuffle(turns)
        for name in turns:
            begin = time.process_time()
            works[name]()
            seconds[name].append(time.process_time() - begin)
    plain = seconds.pop("plain")
    ratios = {
        name: statistics.median(one / other for one, other in zip(times, plain, strict=True))
        for name, times in seconds.items()
    }
    return statistics.median(plain), ratios


def _forward(model: PreTrainedModel, given: dict[str, Any]) -> Callable[[], object]:
    @torch.inference_mode()
    def work() -> object:
        return model.eval()(**given).last_hidden_state

    return work


def _step(model: PreTrainedModel, given: dict[str, Any]) -> Callable[[], object]:
    """Forward and backward with dropout; the optimizer's part is the same for all."""

    def work() -> None:
        model.train()(**given).last_hidden_state.square().mean().backward()
        model.zero_grad()

    return work


if __name__ == "__main__":
    sys.exit(main())
