"""The one loop that every model learns in: a task hands over a `Learner`, and a run folder comes out.

1. A step takes `accumulate` batches, adds up their gradients, clips them, and moves the weights by AdamW.
2. Now and then the development data is scored; the best weights are kept, and patience may end the training.
3. Every few minutes, and after each evaluation, all that is needed to go on is saved in one file.

Chance is a function of (seed, step, batch): the generators are seeded anew for every batch. So a run that was killed
and started again ends with the same bits as one that was not, evaluating more often changes nothing, and processes
share out the batches of a step without changing what a batch draws. No state of a generator has to be saved.

Processes (`accelerate launch`, `torchrun`) each hold the whole model and take every n-th batch of a step; gradients are
added up before the step. This is done by hand and not by DDP, so that a learner may call its model's parts as it likes,
and a weight that no batch of the step uses stays as it is, as in one process. Models too large for one device are left
out.
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
"""How long processes wait for the one that reads the text, or evaluates; torch's own 10 to 30 minutes end a run."""
_REPORTS = 200
"""About how many lines of losses a log has, besides those of evaluations."""


Report = Mapping[str, Any]
"""A line of the log: step, epoch, loss, losses, rate, norm, speed, and where it was evaluated, dev."""


def seed_all(*seeds: int) -> None:
    """Seed torch, numpy and random from some numbers; also for building a model, before the loop begins."""
    # How many there are belongs to them: to numpy, (1,) and (1, 0) are one seed.
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
    """Train, or go on where a run in this folder stopped; the model ends with the best weights, whose scores return.

    `recipe` is the dataclass that the folder keeps as recipe.toml and that a resumed run is compared with (the schedule
    alone without it). `save_seconds` is how much work a kill may cost; it does not change the result.
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
            with listening() as asked:
                _Training(learner, schedule, run, distributed, save_seconds, on_report, asked).go()
        elif distributed.is_main_process:
            console.note(f"{run.folder} is finished; to train anew, give another folder")
        distributed.wait_for_everyone()
        about = load_weights(learner.model, run.best)
        return {name: float(value) for name, value in about["scores"].items()}
    finally:
        if distributed.is_main_process:
            run.close()


def distributed_state() -> PartialState:
    """The processes that train together, and which of them this one is."""
    # Told nothing, it takes processes without an accelerator for strangers to each other.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=cpu, timeout=_PATIENCE)


def check_distributed_state(schedule: Schedule, processes: int) -> None:
    """Refuse processes that cannot share out the batches of a step."""
    if schedule.accumulate % processes:
        raise UsageError(
            f"{processes} processes cannot share the {schedule.accumulate} batches of a step; "
            f"set accumulate to a multiple of {processes}, or start fewer processes"
        )


@dataclass
class _Place:
    """Where a training stands; with the weights and the optimizer's memory this is all that there is to know."""

    total: int
    step: int = 0
    epoch: int = 0
    batch: int = 0
    """The next batch of the epoch."""
    losses: dict[str, float] = field(default_factory=dict)
    """Sums since the last report, over `steps` steps."""
    steps: int = 0
    best_step: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)
    waited: int = 0
    """Evaluations since the best one."""


class _Training:
    """One call of `train`: what it needs in its hands while it goes."""

    def __init__(
        self,
        learner: Learner,
        schedule: Schedule,
        run: Run,
        distributed: PartialState,
        save_seconds: float,
        on_report: Callable[[Report], None] | None,
        asked: list[int],
    ) -> None:
        self.learner, self.schedule, self.run, self.distributed = learner, schedule, run, distributed
        self.save_seconds, self.on_report, self.asked = save_seconds, on_report, asked
        self.model = learner.model.to(distributed.device)
        self.weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.names: dict[Tensor, str] = {weight: name for name, weight in self.weights.items()}
        self.optimizer, self.rates = build_optimizer(self.weights, schedule)
        self.batches = self._batches(0)
        self.place = _Place(schedule.total(len(self.batches)))
        self.every = schedule.evaluate_every or max(1, math.ceil(len(self.batches) / schedule.accumulate))
        self.report_every = max(1, self.place.total // _REPORTS)
        self.saved_at = self.reported_at = time.monotonic()
        self.tokens = 0
        self.words = "no loss yet"

    def go(self) -> None:
        """Step, evaluate, save, until the steps or the patience are at their end."""
        if self.run.last.exists():
            self._resume()
        elif self.distributed.is_main_process:
            self.run.rewind(0)
        place, patience = self.place, self.schedule.patience or math.inf
        bar = console.step_bar("step", place.step, place.total) if self.distributed.is_main_process else _silence()
        self.model.train()
        with bar as tell:
            while place.step < place.total and place.waited < patience:
                norm, stop = self._step()
                evaluated = place.step % self.every == 0 or place.step == place.total
                scores = self._evaluate() if evaluated else {}
                if evaluated or place.step % self.report_every == 0:
                    self.words = self._report(norm, scores)
                tell(place.step, self.words)
                if evaluated or stop or time.monotonic() - self.saved_at >= self.save_seconds:
                    self._save()
                if stop and place.step < place.total and place.waited < patience:
                    self._stop()
        if self.distributed.is_main_process:
            self._finish()

    # a step

    def _step(self) -> tuple[float, bool]:
        """Move the weights once; returns the norm of the gradient, and if somebody asked to stop."""
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
        stop = bool(self.asked)
        if distributed.num_processes > 1:
            add_gradients(list(self.weights.values()))
            sums = {name: sums.get(name, 0.0) for name in join_names(sums, distributed.device)}
            told = torch.tensor([*sums.values(), tokens, stop], dtype=torch.float64, device=distributed.device)
            *values, tokens, stop = reduce(told, "sum").tolist()
            sums = dict(zip(sums, values, strict=True))
        norm = float(nn.utils.clip_grad_norm_(self.weights.values(), schedule.clip))
        if not math.isfinite(norm):
            raise self._broken(f"the gradient is {norm}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for name, value in sums.items():  # a loss that this step has not keeps what it had
            place.losses[name] = place.losses.get(name, 0.0) + value
        place.steps += 1
        self.tokens += int(tokens)
        return norm, bool(stop)

    def _backward(self, batch: Any) -> dict[str, float]:
        """Add the gradients of one batch to those of the step; returns its losses."""
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
            raise InputError(
                f"epoch {epoch} has no batches; is the training data empty, or were all examples left out?"
            )
        return batches

    # now and then

    def _evaluate(self) -> dict[str, float]:
        """Score the development data on one process, and keep the weights if they are the best."""
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
                f"the best weights are chosen by {self.learner.score!r}, which is none of the scores; "
                f"there are: {', '.join(scores)}"
            )
        return scores

    def _report(self, norm: float, scores: Mapping[str, float]) -> str:
        """Write a line to the log; returns the same in a few words."""
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
        told = "" if best is None else f", best {self.learner.score} {best:.3f} (step {place.best_step:,})"
        return f"loss {line['loss']:.4f}, rate {rate:.1e}{told}"

    # saving and going on

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
            self.place = _Place(**about)
        except TypeError as error:
            raise TrainingError(
                f"{self.run.last} is of another version of wellread; train in another folder"
            ) from error
        if self.place.total != (total := self.schedule.total(len(self.batches))):
            raise TrainingError(
                f"{self.run.folder} was started with data for {self.place.total:,} steps, now there is data for "
                f"{total:,}; give the same data to go on with it, or another folder to train anew"
            )
        put(self.model, _below("model/", tensors), self.run.last)
        put_optimizer(self.optimizer, self.names, _below("optimizer/", tensors))
        self.batches = self._batches(self.place.epoch)
        if self.distributed.is_main_process:
            self.run.rewind(self.place.step)
            console.note(f"going on after step {self.place.step:,} of {self.place.total:,} in {self.run.folder}")

    def _stop(self) -> None:
        if self.distributed.is_main_process:
            console.note(
                f"stopped and saved after step {self.place.step:,} of {self.place.total:,}; start again to go on"
            )
        raise KeyboardInterrupt

    def _finish(self) -> None:
        """Say what came out, with the best weights in the model."""
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
    """The model in eval mode and without gradients; each part then goes back to the mode it had."""
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
