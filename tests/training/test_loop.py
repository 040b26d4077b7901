"""The loop: what a kill, an interruption or more processes must not change, and what a run folder holds."""

import json
import math
import multiprocessing
import os
import random
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from wellread import config
from wellread.errors import InputError, StorageError, TrainingError, UsageError
from wellread.evaluation.calibration import Predictions
from wellread.io import console
from wellread.plots import curves as plots
from wellread.training import loop
from wellread.training.checkpoint import load_weights
from wellread.training.loop import distributed_state, seed_all, train
from wellread.training.run import Run, read_log
from wellread.training.schedule import Schedule
from wellread.training.stopping import stop_if_requested

SCHEDULE = Schedule(steps=12, learning_rate=0.02, accumulate=2, evaluate_every=4, seed=3)


class Toy:
    """Which side of a line a point is on, with dropout, a batch norm and noise from every generator."""

    score = "accuracy"

    def __init__(self, *, pause=0.0, frozen=False):
        seed_all(7)
        # Without a bias before the norm: its gradient would be nothing but rounding, which Adam blows up to full steps.
        self.model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.model[0].requires_grad_(not frozen)
        self.points = torch.randn(40, 4)
        self.sides = (self.points.sum(1) > 0).float()
        self.pause = pause
        self.seen = []

    def batches(self, epoch):
        order = torch.randperm(40)
        return [order[start : start + 8] for start in range(0, 40, 8)]

    def loss(self, batch):
        self.seen.append(batch.tolist())
        time.sleep(self.pause)
        noise = random.random() + np.random.random()
        logits = self.model(self.points[batch] + 0.01 * noise).squeeze(1)
        cross = nn.functional.binary_cross_entropy_with_logits(logits, self.sides[batch])
        return {"cross": cross, "size": 1e-3 * logits.pow(2).mean()}

    def evaluate(self):
        assert not self.model.training
        assert not torch.is_grad_enabled()
        torch.rand(3), random.random(), np.random.random()
        return {"accuracy": float(((self.model(self.points).squeeze(1) > 0) == self.sides.bool()).float().mean())}


class Fickle(Toy):
    """One that has some of its losses in some batches alone, as a knowledge layer that has nothing to judge."""

    def loss(self, batch):
        cross, size = super().loss(batch).values()
        every = ({"cross": cross, "size": size}, {"late": size, "cross": cross}, {"cross": cross})
        return every[int(batch[0]) % 3]


class Unsure(Toy):
    def predictions(self):
        scores = torch.sigmoid(self.model(self.points).squeeze(1)).numpy()
        return Predictions(scores, self.sides.bool().numpy(), int(self.sides.sum()))


def weights(folder, name="best"):
    return load_file(Path(folder) / f"{name}.safetensors")


def assert_same(ours, theirs):
    """The same result to the last bit: weights, the optimizer's memory, scores and losses."""
    for name in ("best", "last"):
        mine, other = weights(ours, name), weights(theirs, name)
        assert mine.keys() == other.keys()
        assert mine
        assert all(torch.equal(mine[key], other[key]) for key in mine)
    assert Run(ours).scores() == Run(theirs).scores()
    fixed = [[{**line, "pieces_per_second": 0} for line in read_log(folder)] for folder in (ours, theirs)]
    assert fixed[0] == fixed[1]


@pytest.fixture
def undrawn(monkeypatch):
    """Plots have tests of their own, and take longer than these trainings."""
    monkeypatch.setattr(plots, "save", lambda figure, path: None)


pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    train(Toy(), SCHEDULE, folder)
    return folder


def test_a_run_folder_holds_recipe_log_weights_scores_and_plots(tmp_path, monkeypatch):
    monkeypatch.undo()
    learner = Unsure()
    scores = train(learner, SCHEDULE, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    plots = {f"{name}.{kind}" for name in ("curves", "precision-recall", "calibration") for kind in ("png", "svg")}
    assert names == {"recipe.toml", "log.jsonl", "last.safetensors", "best.safetensors", "scores.json"} | plots
    assert config.read(Schedule, tmp_path / "run" / "recipe.toml") == SCHEDULE
    result = Run(tmp_path / "run").scores()
    assert result["scores"] == scores == learner_scores(learner)
    assert (result["score"], result["steps"]) == ("accuracy", 12)
    assert 0 <= result["calibration"]["average_precision"] <= 1
    log = read_log(tmp_path / "run")
    assert [line["step"] for line in log] == list(range(1, 13))
    assert [line["step"] for line in log if "dev" in line] == [4, 8, 12]
    assert log[0]["losses"].keys() == {"cross", "size"}
    assert log[0]["loss"] == pytest.approx(sum(log[0]["losses"].values()))
    assert log[-1]["loss"] < log[0]["loss"]


def learner_scores(learner):
    learner.model.eval()
    with torch.no_grad():
        return learner.evaluate()


def test_the_weights_kept_are_those_of_the_best_score_and_the_first_of_equal_ones(tmp_path):
    class Scored(Toy):
        scores = (0.1, 0.7, math.nan, 0.7, 0.2)

        def evaluate(self):
            self.seen_weights = [*getattr(self, "seen_weights", []), self.model[0].weight.clone()]
            return {"accuracy": self.scores[len(self.seen_weights) - 1]}

    learner = Scored()
    assert train(learner, replace(SCHEDULE, steps=10, evaluate_every=2), tmp_path) == {"accuracy": 0.7}
    assert Run(tmp_path).scores()["step"] == 4
    assert torch.equal(weights(tmp_path)["0.weight"], learner.seen_weights[1])
    assert torch.equal(learner.model[0].weight, learner.seen_weights[1])
    fresh = Toy()
    assert load_weights(fresh.model, tmp_path / "best.safetensors") == {"step": 4, "scores": {"accuracy": 0.7}}
    assert torch.equal(fresh.model[0].weight, learner.seen_weights[1])


def test_patience_ends_a_training_that_gets_no_better(tmp_path):
    class Stuck(Toy):
        def evaluate(self):
            return {"accuracy": 0.5}

    train(Stuck(), replace(SCHEDULE, steps=100, evaluate_every=2, patience=3), tmp_path)
    assert Run(tmp_path).scores() == {"score": "accuracy", "step": 2, "steps": 8, "scores": {"accuracy": 0.5}}


def test_what_is_frozen_does_not_move_and_is_not_saved(tmp_path):
    learner = Toy(frozen=True)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    train(learner, SCHEDULE, tmp_path)
    assert torch.equal(learner.model[0].weight, before["0.weight"])
    assert not torch.equal(learner.model[3].weight, before["3.weight"])
    assert weights(tmp_path).keys() == before.keys() - {"0.weight", "0.bias"}


def test_every_batch_is_seen_once_an_epoch_and_in_another_order(tmp_path):
    learner = Toy()
    train(learner, replace(SCHEDULE, steps=None, epochs=3, accumulate=3, evaluate_every=None), tmp_path)
    assert len(learner.seen) == 15
    first, second, third = (
        [point for batch in learner.seen[start : start + 5] for point in batch] for start in (0, 5, 10)
    )
    assert sorted(first) == sorted(second) == sorted(third) == list(range(40))
    assert first != second != third
    assert [line["step"] for line in read_log(tmp_path) if "dev" in line] == [2, 4, 5]


def test_evaluating_more_often_changes_nothing_of_the_training(tmp_path, whole):
    train(Toy(), replace(SCHEDULE, evaluate_every=1), tmp_path)
    ours, theirs = weights(tmp_path, "last"), weights(whole, "last")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_another_seed_is_another_run(tmp_path, whole):
    train(Toy(), replace(SCHEDULE, seed=4), tmp_path)
    assert not torch.equal(weights(tmp_path, "last")["model/0.weight"], weights(whole, "last")["model/0.weight"])


def test_every_seed_begins_another_stream_in_every_generator():
    streams = []
    for seeds in [(0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0)]:
        seed_all(*seeds)
        streams.append((float(torch.rand(1)), random.random(), float(np.random.random())))
    for draws in zip(*streams, strict=True):
        assert len(set(draws)) == 6
    seed_all(0, 1)
    assert (float(torch.rand(1)), random.random(), float(np.random.random())) == streams[4]


# Going on.


class BrokenOff(Exception):  # noqa: N818  # it is no error
    pass


def break_off_at(step):
    def break_off(report):
        if report["step"] == step:
            raise BrokenOff

    return break_off


@pytest.mark.parametrize("save_seconds", [0.0, 1e9])
@pytest.mark.parametrize("step", [1, 4, 5, 11, 12])
def test_a_run_that_breaks_off_at_any_step_ends_as_if_it_had_not(tmp_path, whole, step, save_seconds):
    with pytest.raises(BrokenOff):
        train(Toy(), SCHEDULE, tmp_path, save_seconds=save_seconds, on_report=break_off_at(step))
    assert not (tmp_path / "scores.json").exists()
    train(Toy(), SCHEDULE, tmp_path, save_seconds=save_seconds)
    assert_same(tmp_path, whole)


def test_losses_between_two_reports_are_not_lost(tmp_path, monkeypatch):
    class Brittle(Toy):
        def loss(self, batch):
            if len(self.seen) == 11:  # in step 6; the checkpoint of step 5 is between two reports
                raise BrokenOff
            return super().loss(batch)

    monkeypatch.setattr("wellread.training.loop._REPORTS", 4)  # a line every three steps, and where it is evaluated
    train(Toy(), SCHEDULE, tmp_path / "whole")
    with pytest.raises(BrokenOff):
        train(Brittle(), SCHEDULE, tmp_path / "broken", save_seconds=0)
    train(Toy(), SCHEDULE, tmp_path / "broken")
    assert [line["step"] for line in read_log(tmp_path / "broken")] == [3, 4, 6, 8, 9, 12]
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_loss_that_the_last_step_lacks_is_still_logged(tmp_path, monkeypatch):
    train(Fickle(), SCHEDULE, tmp_path / "every")
    monkeypatch.setattr("wellread.training.loop._REPORTS", 4)
    train(Fickle(), SCHEDULE, tmp_path / "some")
    every, some = read_log(tmp_path / "every"), read_log(tmp_path / "some")
    assert len({tuple(line["losses"]) for line in every}) > 1
    begin = 0
    for line in some:
        steps = every[begin : line["step"]]
        assert line["losses"].keys() == {name for step in steps for name in step["losses"]}
        for name, value in line["losses"].items():
            assert value == pytest.approx(sum(step["losses"].get(name, 0.0) for step in steps) / len(steps))
        begin = line["step"]


# Processes of a server that has imported all there is: torch takes seconds, and the tests start five. There is one
# server, and who comes last says what it imports: what the many children of the other tests need as well.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "torch._dynamo", "tests.kb.test_faults", "tests.index.test_entity_index"])


def run_toy(folder, learner, pause, environment, threads):
    torch.set_num_threads(threads)  # sums of more threads are other sums, and a forked process has one
    os.environ.update(environment)
    plots.save = lambda figure, path: None
    with open(f"{folder}.{os.getpid()}.said", "w") as sys.stderr:
        train(learner(pause=pause), SCHEDULE, folder, save_seconds=0)


def start(folder, learner=Toy, pause=0.0, **environment):
    arguments = (folder, learner, pause, environment, torch.get_num_threads())
    process = PROCESSES.Process(target=run_toy, args=arguments)
    process.start()
    return process


def end(process, folder):
    process.join(100)
    said = Path(f"{folder}.{process.pid}.said").read_text()
    assert process.exitcode == 0, said
    return said


def wait_for_step(folder, step, process):
    for _ in range(3000):
        if any(line["step"] >= step for line in read_log(folder)):
            return
        assert process.is_alive()
        time.sleep(0.01)
    raise AssertionError("the training does not get on")


def test_a_run_killed_by_sigkill_and_started_again_ends_with_the_same_bits(tmp_path, whole):
    for step in (2, 5, 9):
        process = start(tmp_path, pause=0.05)
        wait_for_step(tmp_path, step, process)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "scores.json").exists()
    assert "resuming after step" in end(start(tmp_path), tmp_path)
    assert_same(tmp_path, whole)


def test_what_killed_checkpoints_left_is_swept_at_the_next_start(tmp_path, whole):
    for folder in (tmp_path, tmp_path / "model"):
        folder.mkdir(exist_ok=True)
        for name in (".tmpAb12xY", ".last.safetensors.part", ".curves.png.0123abcd.part", ".config.json.89abcdef.part"):
            (folder / name).write_bytes(b"half")
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".model.part" / "half").write_bytes(b"half")
    kept = tmp_path / "notes.part"
    kept.write_text("of a user")
    train(Toy(), SCHEDULE, tmp_path)
    assert kept.exists()
    assert {path.name for path in tmp_path.rglob(".*")} <= {".lock"}
    assert oct((tmp_path / "last.safetensors").stat().st_mode) == oct((tmp_path / "recipe.toml").stat().st_mode)


def test_an_interruption_in_the_last_moments_is_not_forgotten(tmp_path):
    def interrupt(report):
        if report["step"] == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    train(Toy(), SCHEDULE, tmp_path, on_report=interrupt)
    assert Run(tmp_path).scores() is not None
    with pytest.raises(KeyboardInterrupt):
        stop_if_requested()
    stop_if_requested()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_step_saves_and_says_how_to_go_on(tmp_path, whole, capsys, kind):
    def interrupt(report):
        if report["step"] == 6:
            os.kill(os.getpid(), kind)

    before = signal.getsignal(kind)
    with pytest.raises(KeyboardInterrupt):
        train(Toy(), SCHEDULE, tmp_path, on_report=interrupt)
    assert "stopped and saved after step 7 of 12; start again to resume" in capsys.readouterr().err
    assert signal.getsignal(kind) is before
    learner = Toy()
    train(learner, SCHEDULE, tmp_path)
    assert len(learner.seen) == 10  # steps 8 to 12 of two batches each
    assert_same(tmp_path, whole)


def test_a_finished_run_says_so_and_is_not_trained_again(whole, capsys):
    learner = Toy()
    scores = train(learner, SCHEDULE, whole)
    assert learner.seen == []
    assert scores == Run(whole).scores()["scores"] == learner_scores(learner)
    assert "is finished; to train again, give another folder" in capsys.readouterr().err


def test_a_folder_with_another_recipe_is_refused_with_what_differs(tmp_path):
    train(Toy(), SCHEDULE, tmp_path)
    kept = (tmp_path / "best.safetensors").read_bytes()
    with pytest.raises(UsageError) as caught:
        train(Toy(), replace(SCHEDULE, steps=6, patience=2), tmp_path)
    assert "steps is 12 there and 6 now; patience is not set there and 2 now" in str(caught.value)
    assert (tmp_path / "best.safetensors").read_bytes() == kept
    train(Toy(), replace(SCHEDULE, steps=6), tmp_path, resume=False)
    assert Run(tmp_path).scores()["steps"] == 6


def test_data_that_has_changed_is_refused(tmp_path):
    schedule = replace(SCHEDULE, steps=None, epochs=2)
    with pytest.raises(BrokenOff):
        train(Toy(), schedule, tmp_path, save_seconds=0, on_report=break_off_at(3))
    learner = Toy()
    learner.batches = lambda epoch: [torch.arange(8)] * 50
    with pytest.raises(TrainingError, match="started with data for 5 steps, now there is data for 50; give the same"):
        train(learner, schedule, tmp_path)


def test_a_folder_in_use_is_refused(tmp_path):
    other = Run(tmp_path)
    other.open(SCHEDULE, resume=True)
    with pytest.raises(UsageError, match="another training writes to"):
        train(Toy(), SCHEDULE, tmp_path)
    other.close()
    train(Toy(), SCHEDULE, tmp_path)


def test_a_checkpoint_of_another_model_or_a_broken_one_is_refused(tmp_path):
    train(Toy(), SCHEDULE, tmp_path)
    (tmp_path / "scores.json").unlink()
    with pytest.raises(TrainingError, match=r"another model: '0\.weight' is 8×4 there and not here; build the model"):
        train(Toy(frozen=True), SCHEDULE, tmp_path)
    (tmp_path / "last.safetensors").write_bytes(b"half a file")
    with pytest.raises(TrainingError, match="is not a complete checkpoint"):
        train(Toy(), SCHEDULE, tmp_path)


# What goes wrong.


def test_a_full_disk_is_a_storage_error_and_the_last_checkpoint_stays(tmp_path, whole):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    kept = []

    def fill(report):
        if report["step"] == 6:
            kept.append((tmp_path / "last.safetensors").read_bytes())
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))

    try:
        with pytest.raises(StorageError, match=r"the disk is full: .*last\.safetensors was not written; free some"):
            train(Toy(), SCHEDULE, tmp_path, save_seconds=0, on_report=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert (tmp_path / "last.safetensors").read_bytes() == kept[0]
    assert not list(tmp_path.glob(".*.part"))
    train(Toy(), SCHEDULE, tmp_path)
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_stops_before_it_spoils_the_weights(tmp_path, where):
    class Broken(Toy):
        def loss(self, batch):
            parts = super().loss(batch)
            if len(self.seen) == 6:
                zero = 0 * parts["cross"]
                parts["cross"] = parts["cross"] / zero if where == "loss" else parts["cross"] + zero.abs().sqrt()
            return parts

    learner = Broken()
    with pytest.raises(TrainingError, match=rf"the {where} is .*(inf|nan).* at step 3; try a lower learning_rate"):
        train(learner, SCHEDULE, tmp_path, save_seconds=0)
    assert all(value.isfinite().all() for value in learner.model.state_dict().values())
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["step"] == 2


def test_what_cannot_be_trained_is_named(tmp_path):
    learner = Toy()
    learner.model.requires_grad_(False)
    with pytest.raises(UsageError, match="no trainable weight"):
        train(learner, SCHEDULE, tmp_path / "a")
    learner = Toy()
    learner.batches = lambda epoch: []
    with pytest.raises(InputError, match="epoch 0 has no batches; is the training data empty"):
        train(learner, SCHEDULE, tmp_path / "b")
    with pytest.raises(UsageError, match=r"no trainable weight begins with 'hed' \(in rates\); they begin with: 0, 1"):
        train(Toy(), replace(SCHEDULE, rates={"hed": 1.0}), tmp_path / "c")
    learner = Toy()
    learner.score = "f1"
    with pytest.raises(UsageError, match="chosen by 'f1', which is not one of the scores; there are: accuracy"):
        train(learner, SCHEDULE, tmp_path / "d")


# Schedule.


def test_the_rate_climbs_falls_and_may_differ_by_part(tmp_path):
    class Watched(Toy):
        moved = ()

        def loss(self, batch):
            self.moved = (*self.moved, (self.model[0].weight.clone(), self.model[3].weight.clone()))
            return super().loss(batch)

    learner = Watched()
    schedule = replace(SCHEDULE, steps=4, accumulate=1, warmup=0.5, rates={"0": 0.0}, weight_decay=0.5)
    train(learner, schedule, tmp_path)
    assert [line["rate"] / 0.02 for line in read_log(tmp_path)] == [0.5, 1, 1, 0.5]
    assert torch.equal(learner.moved[0][0], learner.moved[-1][0])
    assert not torch.equal(learner.moved[0][1], learner.moved[-1][1])


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_the_share_of_the_rate_has_its_peak_at_one_and_is_never_zero(warmup, total):
    shares = [Schedule(steps=total, warmup=warmup).share(step, total) for step in range(1, total + 1)]
    assert max(shares) == 1
    assert min(shares) > 0
    peak = shares.index(1)
    assert shares == sorted(shares[: peak + 1]) + sorted(shares[peak + 1 :], reverse=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "epochs is None and steps is None; give one of the two"),
        ({"steps": 1, "epochs": 1.0}, "epochs is 1.0 and steps is 1; give one"),
        ({"steps": 0}, "steps is 0; expected more than 0"),
        ({"steps": 1, "learning_rate": math.nan}, "learning_rate is nan; expected more than 0"),
        ({"steps": 1, "rates": {"x": -1.0}}, "the rate of 'x' is -1.0; expected 0 or more"),
        ({"steps": 1, "warmup": 2.0}, "warmup is 2.0; expected a share of the steps"),
        ({"steps": 1, "weight_decay": -1.0}, "weight_decay is -1.0; expected 0 or more"),
        ({"steps": 1, "eps": 0.0}, "eps is 0.0; expected more than 0"),
        ({"steps": 1, "seed": -1}, "seed is -1; expected 0 or more"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Schedule(**settings)


def test_half_precision_computes_in_it_and_keeps_weights_whole(tmp_path):
    class Watched(Toy):
        def loss(self, batch):
            self.kind = self.model[0](self.points[batch]).dtype
            return super().loss(batch)

    learner = Watched()
    train(learner, replace(SCHEDULE, precision="bf16"), tmp_path)
    assert learner.kind == torch.bfloat16
    assert learner.model[0].weight.dtype == torch.float32


def test_parts_go_back_to_the_mode_they_had(tmp_path):
    class Half(Toy):
        def loss(self, batch):
            self.modes = [part.training for part in self.model]
            return super().loss(batch)

    learner = Half()
    learner.model.train = lambda mode=True: (nn.Sequential.train(learner.model, mode), learner.model[1].eval())[0]
    train(learner, SCHEDULE, tmp_path)
    assert learner.modes == [True, False, True, True]


# Several processes.


def train_by_two(folder, learner=Toy):
    port = str(random.SystemRandom().randint(20000, 60000))
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    distributed = [
        start(folder, learner, **ranks, RANK=rank, LOCAL_RANK=rank, ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
        for rank in ("0", "1")
    ]
    for process in distributed:
        end(process, folder)


def test_processes_share_the_batches_of_a_step_and_end_as_one_does(tmp_path, whole):
    train_by_two(tmp_path)
    ours, theirs = weights(tmp_path, "last"), weights(whole, "last")
    for name in theirs:
        if "running" not in name and "tracked" not in name:  # a batch norm counts the batches of its own process
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_processes_that_have_other_losses_than_each_other_tell_all_of_them(tmp_path):
    train_by_two(tmp_path / "two", Fickle)
    train(Fickle(), SCHEDULE, tmp_path / "one")
    two, one = (read_log(tmp_path / name) for name in ("two", "one"))
    assert [line["losses"].keys() for line in two] == [line["losses"].keys() for line in one]
    assert len({tuple(sorted(line["losses"])) for line in one}) > 2
    for ours, theirs in zip(two, one, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3)


def test_batches_that_processes_cannot_share_are_an_error():
    from wellread.training.loop import check_distributed_state

    check_distributed_state(replace(SCHEDULE, accumulate=4), 2)
    with pytest.raises(
        UsageError, match="3 processes cannot share the 4 batches of a step; set accumulate to a multip"
    ):
        check_distributed_state(replace(SCHEDULE, accumulate=4), 3)


# What a person sees.


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_tells_steps_and_what_was_said_of_them(monkeypatch, capsys, terminal):
    monkeypatch.setattr(console, "_LINE_EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "200")
    with console.step_bar("step", 100, 2000) as tell:
        tell(1200, "loss 0.5, [F1] 0.9")
    said = capsys.readouterr().err
    assert ("1200/2000" if terminal else "step 1,200 of 2,000: loss 0.5, [F1] 0.9, 0 s left") in said
    assert "loss 0.5, [F1] 0.9" in said


def test_pieces_are_counted_where_batches_have_them(tmp_path):
    class Batch(list):
        tokens = 100

    learner = Toy()
    learner.batches = lambda epoch: [Batch(range(8))] * 3
    learner.loss = lambda batch: {"loss": learner.model(learner.points[list(batch)]).mean()}
    train(learner, SCHEDULE, tmp_path)
    assert all(line["pieces_per_second"] > 0 for line in read_log(tmp_path))


def test_processes_wait_for_one_that_reads_a_large_text(monkeypatch):
    options_given = {}
    monkeypatch.setattr(loop, "PartialState", lambda **options: options_given.update(options))
    distributed_state()
    assert options_given["timeout"] > timedelta(hours=12)
