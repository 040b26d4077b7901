"""Memory and time of pretraining LUKE with very many entities.

Bar: ≤ 6 GB of resident memory with 500,000 entities of 256 numbers, all included: the encoder (MiniLM), the table, its
gradient, the optimizer's memory, the exact softmax over all entities, checkpoints. A process of its own trains a few
steps of 16 windows with 128 pieces and 8 entities, half of them hidden; seconds of a step are processor time.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import numpy as np

from benchmarks.report import Report, arguments

_WINDOWS, _TOKENS, _ENTITIES = 64, 128, 8


def main(given: Sequence[str] | None = None) -> int:
    """Few entities, and many."""
    options = arguments(__doc__, given)
    report = Report("pretraining", options.quick)
    for entities in (1_000,) if options.quick else (4_000, 500_000):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            seconds, peak = alone.submit(pretrain, entities, 2 if options.quick else 5).result()
        report.add(f"{entities:,} entities: a step", seconds, "s")
        report.add(f"{entities:,} entities: resident at most", peak / 1e9, "GB", at_most=6)
    return report.show()


def pretrain(entities: int, steps: int) -> tuple[float, float]:
    """Seconds of the processor for a step, and the most memory that the process had."""
    from torch import Tensor

    from wellread.encoders.files import load_tokenizer
    from wellread.encoders.infusion.infuse import infuse
    from wellread.encoders.load import load_encoder
    from wellread.models.luke.config import LukeConfig
    from wellread.models.luke.linked_text import BEGINS, SPECIAL, LinkedWindows
    from wellread.models.luke.pretraining_task import EntityMasking, EntityMaskingLearner, LinkedBatch
    from wellread.models.luke.vocabulary import EntityVocabulary
    from wellread.tasks.masked_lm import word_head
    from wellread.tasks.task import EncoderWithHead
    from wellread.training.loop import train
    from wellread.training.schedule import Schedule

    draw = np.random.default_rng(0)
    ids = draw.integers(1_000, 30_000, (_WINDOWS, _TOKENS))
    roles = np.full(ids.shape, BEGINS, np.uint8)
    roles[:, [0, -1]] = SPECIAL
    firsts = np.arange(_ENTITIES) * 10 + 1
    count = _WINDOWS * _ENTITIES
    arrays = {
        "ids": ids.ravel(),
        "roles": roles.ravel(),
        "piece_ends": np.arange(_WINDOWS + 1) * _TOKENS,
        "rows": draw.integers(4, entities + 4, count),
        "spans": np.tile(np.stack((firsts, firsts + 1), 1), (_WINDOWS, 1)),
        "names": draw.integers(0, 1 << 40, count).astype(np.uint64),
        "entity_ends": np.arange(_WINDOWS + 1) * _ENTITIES,
        "pages": np.arange(_WINDOWS).astype(np.uint64),
    }
    windows = LinkedWindows((arrays,), np.stack((np.zeros(_WINDOWS, np.int64), np.arange(_WINDOWS)), 1))
    vocabulary = EntityVocabulary.of_ids(f"Q{number}" for number in range(entities))
    encoder = load_encoder("minilm")
    encoder = infuse(encoder, [LukeConfig(entities=len(vocabulary), aware=False, predicts=True)])
    masking = EntityMasking(load_tokenizer("minilm"), vocabulary, entities=0.5)
    learner = EntityMaskingLearner(masking, EncoderWithHead(encoder, word_head(encoder, None)), *windows.split(4))
    clock: list[float] = []
    loss = learner.loss

    def clocked(batch: LinkedBatch) -> dict[str, Tensor]:
        clock.append(time.process_time())
        return loss(batch)

    learner.loss = clocked  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        train(learner, Schedule(steps=steps, learning_rate=1e-4), folder)
    return median(np.diff(clock)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
