"""Training loop of all models: from a `Learner` to a run folder.

1. A step accumulates the gradients of `accumulate` batches, clips them, and updates the weights with AdamW.
2. The validation data is scored regularly; the best weights are kept, and `patience` may stop the training.
3. A checkpoint with all that is needed to resume is saved every few minutes, and after each evaluation.

Randomness is a function of (seed, step, batch): the generators are seeded for every batch. So a resumed run ends with
the same bits as an uninterrupted one, more evaluations change nothing, and processes can share the batches of a step.
No generator state has to be saved.

With several processes (`accelerate launch`, `torchrun`) each has the whole model and takes every n-th batch of a step;
gradients are summed before the step. This replaces DDP, so that a learner may call parts of its model in any order, and
a weight that is unused in a step has no gradient, as in one process. Models too large for one device are not supported.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import broadcast, parse_flag_from_env, reduce, send_to_device  # type: ignore[import-untyped]
from torch import Tensor, nn

from wellread.errors import InputError, TrainingError, UsageError
from wellread.io import console
from wellread.training.checkpoint import (
    load_tensors,
    load_weights,
    optimizer_tensors,
    put,
    put_optimizer,
    save_tensors,
    trained,
)
from wellread.training.learner import Learner, Predicts
from wellread.training.optimizer import add_gradients, build_optimizer, join_names
from wellread.training.run import Run
from wellread.training.schedule import Schedule
from wellread.training.stopping import listening

_PATIENCE = timedelta(days=1)
"""Timeout of processes that wait for the main one to read texts or evaluate; torch's default of 10 to 30 minutes is too
short.
"""
_REPORTS = 200
"""Approximate number of loss lines in a log, besides evaluations."""


Report = Mapping[str, Any]
"""Line of the log: step, epoch, loss, losses, rate, norm, speed and, after an evaluation, dev."""


def seed_all(*seeds: int) -> None:
    """Seed torch, numpy and random from numbers; use it also before building a model."""
    # The length is included because numpy treats (1,) and (1, 0) as the same seed.
    value = int(np.random.SeedSequence((len(seeds), *seeds)).generate_state(1, np.uint64)[0])
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value % 2**32)


def train(
    learner: Learner,
    schedule: Schedule,
    folder: str | Path,
    *,
    recipe: Any = None,
    resume: bool = True,
    save_seconds: float = 120.0,
    on_report: Callable[[Report], None] | None = None,
) -> dict[str, float]:
    """Train, or resume the run in this folder; load the best weights into the model and return their scores.

    `recipe` is the dataclass that is saved as recipe.toml and compared when a run is resumed (by default the schedule).
    `save_seconds` is the interval between checkpoints; it does not change the result.
    """
    distributed = distributed_state()
    check_distributed_state(schedule, distributed.num_processes)
    run = Run(folder)
    try:
        if distributed.is_main_process:
            run.open(schedule if recipe is None else recipe, resume=resume)
        distributed.wait_for_everyone()
        if run.scores() is None:
            if distributed.num_processes > 1 and distributed.is_main_process:
                console.note(
                    f"{distributed.num_processes} processes share the {schedule.accumulate} batches of each step"
                )
            with listening() as signals:
                _Training(learner, schedule, run, distributed, save_seconds, on_report, signals).go()
        elif distributed.is_main_process:
            console.note(f"{run.folder} is finished; to train again, give another folder")
        distributed.wait_for_everyone()
        about = load_weights(learner.model, run.best)
        return {name: float(value) for name, value in about["scores"].items()}
    finally:
        if distributed.is_main_process:
            run.close()


def distributed_state() -> PartialState:
    """Return the distributed state: rank, world size and device."""
    # Without `cpu=True`, PartialState does not initialise a process group on CPU.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=cpu, timeout=_PATIENCE)


def check_distributed_state(schedule: Schedule, processes: int) -> None:
    """Raise `UsageError` if the processes cannot share the batches of a step equally."""
    if schedule.accumulate % processes:
        raise UsageError(
            f"{processes} processes cannot share the {schedule.accumulate} batches of a step; "
            f"set accumulate to a multiple of {processes}, or start fewer processes"
        )


@dataclass
class _Progress:
    """Progress of a training; with weights and optimizer state, the complete state of a run."""

    total: int
    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Index of the next batch of the epoch."""
    losses: dict[str, float] = field(default_factory=dict)
    """Sums since the last report, over `steps` steps."""
    steps: int = 0
    best_step: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)
    waited: int = 0
    """Evaluations since the best one."""


class _Training:
    """State of one training run."""

    def __init__(
        self,
        learner: Learner,
        schedule: Schedule,
        run: Run,
        distributed: PartialState,
        save_seconds: float,
        on_report: Callable[[Report], None] | None,
        signals: list[int],
    ) -> None:
        self.learner, self.schedule, self.run, self.distributed = learner, schedule, run, distributed
        self.save_seconds, self.on_report, self.signals = save_seconds, on_report, signals
        self.model = learner.model.to(distributed.device)
        self.weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.names: dict[Tensor, str] = {weight: name for name, weight in self.weights.items()}
        self.optimizer, self.rates = build_optimizer(self.weights, schedule)
        self.batches = self._batches(0)
        self.place = _Progress(schedule.total(len(self.batches)))
        self.every = schedule.evaluate_every or max(1, math.ceil(len(self.batches) / schedule.accumulate))
        self.report_every = max(1, self.place.total // _REPORTS)
        self.saved_at = self.reported_at = time.monotonic()
        self.tokens = 0
        self.words = "no loss yet"

    def go(self) -> None:
        """Step, evaluate and save until the steps or the patience are exhausted."""
        if self.run.last.exists():
            self._resume()
        elif self.distributed.is_main_process:
            self.run.rewind(0)
        place, patience = self.place, self.schedule.patience or math.inf
        bar = console.step_bar("step", place.step, place.total) if self.distributed.is_main_process else _silence()
        self.model.train()
        with bar as show:
            while place.step < place.total and place.waited < patience:
                norm, stop = self._step()
                evaluated = place.step % self.every == 0 or place.step == place.total
                scores = self._evaluate() if evaluated else {}
                if evaluated or place.step % self.report_every == 0:
                    self.words = self._report(norm, scores)
                show(place.step, self.words)
                if evaluated or stop or time.monotonic() - self.saved_at >= self.save_seconds:
                    self._save()
                if stop and place.step < place.total and place.waited < patience:
                    self._stop()
        if self.distributed.is_main_process:
            self._finish()

    # a step

    def _step(self) -> tuple[float, bool]:
        """Update the weights once; return the gradient norm, and True if a stop was requested."""
        place, schedule, distributed = self.place, self.schedule, self.distributed
        place.step += 1
        rate = schedule.share(place.step, place.total)
        for group, highest in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = highest * rate
        sums: dict[str, float] = {}
        tokens = 0
        for number in range(schedule.accumulate):
            if place.batch == len(self.batches):
                place.epoch, place.batch = place.epoch + 1, 0
                self.batches = self._batches(place.epoch)
            if number % distributed.num_processes == distributed.process_index:
                seed_all(schedule.seed, place.step, number)
                batch = self.batches[place.batch]
                tokens += int(getattr(batch, "tokens", 0))
                for name, value in self._backward(batch).items():
                    sums[name] = sums.get(name, 0.0) + value / schedule.accumulate
            place.batch += 1
        stop = bool(self.signals)
        if distributed.num_processes > 1:
            add_gradients(list(self.weights.values()))
            sums = {name: sums.get(name, 0.0) for name in join_names(sums, distributed.device)}
            values = torch.tensor([*sums.values(), tokens, stop], dtype=torch.float64, device=distributed.device)
            *totals, tokens, stop = reduce(values, "sum").tolist()
            sums = dict(zip(sums, totals, strict=True))
        norm = float(nn.utils.clip_grad_norm_(self.weights.values(), schedule.clip))
        if not math.isfinite(norm):
            raise self._broken(f"the gradient is {norm}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for name, value in sums.items():  # losses absent in this step are unchanged
            place.losses[name] = place.losses.get(name, 0.0) + value
        place.steps += 1
        self.tokens += int(tokens)
        return norm, bool(stop)

    def _backward(self, batch: Any) -> dict[str, float]:
        """Add the gradients of one batch; return its losses."""
        device = self.distributed.device
        batch = batch if device.type == "cpu" else send_to_device(batch, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.schedule.precision == "bf16"):
            parts = self.learner.loss(batch)
        losses = {name: float(part.detach()) for name, part in parts.items()}
        if not all(map(math.isfinite, losses.values())):
            raise self._broken("the loss is " + ", ".join(f"{value} ({name})" for name, value in losses.items()))
        total = torch.stack([part.float() for part in parts.values()]).sum() / self.schedule.accumulate
        total.backward()  # type: ignore[no-untyped-call]
        return losses

    def _broken(self, what: str) -> TrainingError:
        return TrainingError(
            f"{what} at step {self.place.step}; try a lower learning_rate (now {self.schedule.learning_rate}), more "
            f"warmup (now {self.schedule.warmup}), or precision fp32, and look for broken examples in the batch"
        )

    def _batches(self, epoch: int) -> Sequence[Any]:
        seed_all(self.schedule.seed, epoch)
        batches = self.learner.batches(epoch)
        if not len(batches):
            raise InputError(f"epoch {epoch} has no batches; is the training data empty, or were all examples skipped?")
        return batches

    # evaluation and reports

    def _evaluate(self) -> dict[str, float]:
        """Score the validation data in the main process, and keep the weights if they are the best."""
        place, scores = self.place, dict[str, float]()
        if self.distributed.is_main_process:
            scores = self._scores()
        value = scores.get(self.learner.score, 0.0)
        if self.distributed.num_processes > 1:
            value = float(broadcast(torch.tensor([value], dtype=torch.float64, device=self.distributed.device)))
        if place.best_step and not _rank(value) > _rank(place.best_scores[self.learner.score]):
            place.waited += 1
            return scores
        place.best_step, place.waited = place.step, 0
        place.best_scores = scores or {self.learner.score: value}
        if self.distributed.is_main_process:
            save_tensors(self.run.best, trained(self.model), {"step": place.step, "scores": scores})
        return scores

    def _scores(self) -> dict[str, float]:
        with _at_rest(self.model):
            seed_all(self.schedule.seed)
            scores = {name: float(value) for name, value in self.learner.evaluate().items()}
        if self.learner.score not in scores:
            raise UsageError(
                f"the best weights are chosen by {self.learner.score!r}, which is not one of the scores; "
                f"there are: {', '.join(scores)}"
            )
        return scores

    def _report(self, norm: float, scores: Mapping[str, float]) -> str:
        """Write a line to the log, and return a summary of it."""
        place, now = self.place, time.monotonic()
        losses = {name: value / place.steps for name, value in place.losses.items()}
        line: dict[str, Any] = {
            "step": place.step,
            "epoch": place.epoch,
            "loss": sum(losses.values()),
            "losses": losses,
        }
        rate = self.schedule.learning_rate * self.schedule.share(place.step, place.total)
        line |= {"rate": rate, "norm": norm}
        speed = self.tokens / max(now - self.reported_at, 1e-9)
        line |= {"pieces_per_second": round(speed, 1)} if self.tokens else {}
        line |= {"dev": scores} if scores else {}
        place.losses, place.steps, self.tokens, self.reported_at = {}, 0, 0, now
        if self.distributed.is_main_process:
            self.run.report(line)
            if self.on_report is not None:
                self.on_report(line)
        best = place.best_scores.get(self.learner.score)
        best_text = "" if best is None else f", best {self.learner.score} {best:.3f} (step {place.best_step:,})"
        return f"loss {line['loss']:.4f}, rate {rate:.1e}{best_text}"

    # checkpoints

    def _save(self) -> None:
        self.saved_at = time.monotonic()
        if not self.distributed.is_main_process:
            return
        tensors = {f"model/{name}": part for name, part in trained(self.model).items()}
        memory = optimizer_tensors(self.optimizer, self.names)
        tensors |= {f"optimizer/{name}": tensor for name, tensor in memory.items()}
        save_tensors(self.run.last, tensors, asdict(self.place))

    def _resume(self) -> None:
        tensors, about = load_tensors(self.run.last)
        try:
            self.place = _Progress(**about)
        except TypeError as error:
            raise TrainingError(
                f"{self.run.last} is from another version of wellread; train in another folder"
            ) from error
        if self.place.total != (total := self.schedule.total(len(self.batches))):
            raise TrainingError(
                f"{self.run.folder} was started with data for {self.place.total:,} steps, now there is data for "
                f"{total:,}; give the same data to resume it, or another folder to start over"
            )
        put(self.model, _below("model/", tensors), self.run.last)
        put_optimizer(self.optimizer, self.names, _below("optimizer/", tensors))
        self.batches = self._batches(self.place.epoch)
        if self.distributed.is_main_process:
            self.run.rewind(self.place.step)
            console.note(f"resuming after step {self.place.step:,} of {self.place.total:,} in {self.run.folder}")

    def _stop(self) -> None:
        if self.distributed.is_main_process:
            console.note(
                f"stopped and saved after step {self.place.step:,} of {self.place.total:,}; start again to resume"
            )
        raise KeyboardInterrupt

    def _finish(self) -> None:
        """Write the final scores, with the best weights in the model."""
        place = self.place
        load_weights(self.model, self.run.best)
        predictions = None
        if isinstance(self.learner, Predicts):
            with _at_rest(self.model):
                seed_all(self.schedule.seed)
                predictions = self.learner.predictions()
        scores = {
            "score": self.learner.score,
            "step": place.best_step,
            "steps": place.step,
            "scores": place.best_scores,
        }
        self.run.finish(scores, predictions)


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Set eval mode without gradients, and restore the mode of each module afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def _silence() -> Iterator[Callable[[int, str], None]]:
    yield lambda step, words: None


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score
