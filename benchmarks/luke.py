"""How fast is LUKE: an encoder of ours with entities, against transformers' LUKE and against the encoder alone?

Bars, base size, one thread: 8 × (128 words + 32 entities), 50-100 % long: forward and training step ≥ 1.25 × as fast as
transformers' LUKE; 2 × (512 + 128): ≥ 1.4 ×; as in NER, 4 × (128 + 128), 30-100 % long: ≥ 1.5 ×. And ≤ 1.15 × the time
of a plain encoder (ours, packed) that reads words alone, as many as words and entities together. Weights are random,
the same in both; four of twelve layers (two in a quick run). In every round all contenders take turns, in an order that
is drawn anew; each figure is the median over rounds of the ratio of processor times in the same round. Theirs takes two
turns: how far its ratio to itself lies from 1 is the noise of the measure.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LukeConfig, LukeModel, PreTrainedModel, RobertaConfig, RobertaModel
from transformers.utils import logging

from benchmarks.infusion import take_turns
from benchmarks.report import Report, arguments
from wellread.encoders.infusion.infuse import infuse
from wellread.models.luke.conversion import from_hf

_CASES = (
    ("8 × (128 + 32)", 8, 128, 32, 0.5, 1.25),
    ("2 × (512 + 128)", 2, 512, 128, 0.5, 1.4),
    ("2 × (512 + 128), full", 2, 512, 128, 1.0, 1.4),
    ("4 × (128 + 128)", 4, 128, 128, 0.3, 1.5),
)
_PLAIN = 1.15
_AGAIN = "theirs again"
_ENTITIES = 1000


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("luke", options.quick)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    layers = 2 if options.quick else 4
    theirs, ours, plain = _models(layers)
    report.about = {"models": f"base size, {layers} layers, random weights, {_ENTITIES} entities"}
    noise = []
    for name, texts, words, entities, least, bar in _CASES[:1] if options.quick else _CASES:
        inputs = _draw(texts, words, entities, least)
        whole = _draw(texts, words + entities, 0, least, like=inputs)
        rounds = 2 if options.quick else 9
        for what, make in (("forward", _forward), ("training", _step)):
            works = {
                "plain": make(theirs, inputs),  # all others are held against it
                _AGAIN: make(theirs, inputs),
                "ours": make(ours, inputs),
                "encoder": make(plain, whole),
            }
            seconds, ratios = take_turns(works, rounds)
            noise.append(abs(ratios[_AGAIN] - 1))
            report.add(f"{what}, {name}, theirs", seconds * 1000, "ms")
            report.add(f"{what}, {name}, theirs / ours", 1 / ratios["ours"], "×", at_least=bar)
            of_plain = ratios["ours"] / ratios["encoder"]
            report.add(f"{what}, {name}, ours / plain encoder", of_plain, "×", at_most=_PLAIN)
    report.about["noise"] = f"theirs against itself: off by {statistics.median(noise):.3f}, at most {max(noise):.3f}"
    return report.show()


def _models(layers: int) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedModel]:
    """Transformers' LUKE, the same as ours, and an encoder of the same size that knows no entities."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": layers, "max_position_embeddings": 700, "layer_norm_eps": 1e-5}
    theirs = LukeModel(LukeConfig(**sizes, entity_vocab_size=_ENTITIES), add_pooling_layer=False)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = from_hf(Path(folder))
    ours.pooler = None
    plain = RobertaModel(RobertaConfig(**sizes, vocab_size=50267), add_pooling_layer=False)
    return theirs, ours, infuse(plain, [])


def _draw(
    texts: int, words: int, entities: int, least: float, like: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Random texts, the longest of full length; or words alone, as many as another batch has words and entities."""
    torch.manual_seed(1)
    if like is not None:
        counts = [like["attention_mask"].sum(1) + like["entity_attention_mask"].sum(1)]
    else:
        shares = torch.linspace(least, 1, texts)
        counts = [(full * shares).round().long().clamp(min=1) for full in (words, entities)]
        counts = [some[torch.randperm(texts)] for some in counts]
    masks = [torch.arange(int(some.max())) < some[:, None] for some in counts]
    ids = torch.randint(10, 50000, masks[0].shape)
    made = {"input_ids": torch.where(masks[0], ids, 1), "attention_mask": masks[0].long()}
    if like is not None:
        return made
    firsts = (torch.rand(masks[1].shape) * (counts[0][:, None] - 4)).long()
    places = firsts[..., None] + torch.arange(30)
    places = torch.where(torch.arange(30) < torch.randint(1, 5, masks[1].shape)[..., None], places, -1)
    return made | {
        "entity_ids": torch.randint(4, _ENTITIES, masks[1].shape) * masks[1],
        "entity_attention_mask": masks[1].long(),
        "entity_position_ids": torch.where(masks[1][..., None], places, -1),
    }


def _states(model: PreTrainedModel, given: dict[str, Any]) -> list[Tensor]:
    read = model(**given)
    entities = getattr(read, "entity_last_hidden_state", None)
    return [read.last_hidden_state, *([] if entities is None else [entities])]


def _forward(model: PreTrainedModel, given: dict[str, Any]) -> Callable[[], object]:
    @torch.inference_mode()
    def work() -> object:
        return _states(model.eval(), given)

    return work


def _step(model: PreTrainedModel, given: dict[str, Any]) -> Callable[[], object]:
    """Forward and backward with dropout; the optimizer's part is the same for all."""

    def work() -> None:
        sum(part.square().mean() for part in _states(model.train(), given)).backward()
        model.zero_grad()

    return work


if __name__ == "__main__":
    sys.exit(main())
