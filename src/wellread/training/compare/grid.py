"""Comparing arms: every task × arm × seed is a run folder, and the table comes of all of them.

    folder/table.md, table.json, table.png     what came out; written anew whenever a seed is complete
    folder/notes/                              annotations, made once and shared by all runs
    folder/RTE/all maps/0/                     a run: recipe, log, scores, curves

What is finished is kept, so the same command goes on after a kill, with more seeds, or with more arms. The same seed
begins with the same head and reads the same batches in every arm: scores are paired by it. Weights are deleted when a
run is finished, unless they are asked for: a hundred runs of a small encoder are 40 GB.

A run that fails says why in its `failed.txt`, and the others go on. The table has no score for it, and none for what
it would have a part in. The same command tries it again, from its beginning; so it does where the score is no number.
An arm that is not for a task (`arms.unfit`) is not run there: the table says why, and that is no failure.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for
from pathlib import Path

from wellread import config
from wellread.errors import StorageError, TrainingError, UsageError, WellreadError
from wellread.io import console
from wellread.io.cores import cores
from wellread.io.files import only_writer, storage, write_atomically
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.registry import name_of
from wellread.training.compare.arms import Arms, unfit
from wellread.training.compare.tables import Cost, Failure, Table, Unfit, make_table
from wellread.training.run import Run
from wellread.training.stopping import stop_if_requested
from wellread.training.task import NOTES, train_task

FAILED = "failed.txt"
"""The file in a run's folder that says why there is no score."""
_START = "spawn"
"""How processes begin."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a comparison."""

    task: str
    arm: str
    seed: int
    recipe: TaskRecipe
    folder: Path
    unfit: str | None = None
    """Why the arm is not for the task: then it is not run."""

    def __str__(self) -> str:
        return f"{self.task}, {self.arm}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The score of a finished run, and which one it is."""

    score: float
    metric: str


def plan(tasks: Mapping[str, Arms], seeds: Sequence[int], folder: str | Path) -> list[Trial]:
    """The runs of a comparison, seed by seed, so that an early table is a fair one."""
    names = {arm: _folder_name(arm) for arms in tasks.values() for arm in arms}
    if len(set(names.values())) < len(names):
        raise UsageError(f"two arms would share a folder among {', '.join(names)}; call one of them otherwise")
    to, why = Path(folder), {(task, arm): unfit(recipe) for task, arms in tasks.items() for arm, recipe in arms.items()}
    if all(why.values()):
        raise UsageError(f"no arm is for its task; the first: {next(iter(why.values()))}")
    trials = [
        Trial(
            *(task, arm, seed, _with_seed(recipe, seed), to / _folder_name(task) / names[arm] / str(seed)),
            unfit=why[task, arm],
        )
        for seed in seeds
        for task, arms in tasks.items()
        for arm, recipe in arms.items()
    ]
    for trial in trials:
        if trial.unfit is None:
            _check(trial)
    return trials


def compare(
    tasks: Mapping[str, Arms],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    jobs: int = 1,
    keep: bool = False,
    measure: bool = True,
    command: str = "",
) -> Table:
    """Train whatever is not finished yet, `jobs` runs at a time, and make the table; it tells which runs failed.

    `command` is what a report says that the table was made by.
    """
    folder = Path(folder)
    trials = plan(tasks, seeds, folder)
    refusal = StorageError(f"another process compares in {folder}; wait for it, or choose another folder with --to")
    with only_writer(folder, refusal, patience=1.0):
        _run_open(trials, folder, jobs, keep, command)
        costs = _costs(tasks, trials, folder / NOTES) if measure else {}
        table = interim(trials, costs, command=command)
        assert table is not None
        write_table(table, folder, draw=True)
    return table


def outcome(trial: Trial) -> Outcome | None:
    """What came out of a run, if it is at its end; the score may be no number."""
    result = Run(trial.folder).scores()
    if result is None:
        return None
    name, scores = str(result["score"]), result["scores"]
    parts = [other for other in scores if other != name]
    shown = name if name != "score" or not parts else " and ".join(parts)
    return Outcome(float(scores[name]), f"mean of {shown}" if name == "score" and len(parts) > 1 else shown)


def failure(trial: Trial) -> str | None:
    """Why a run has no score, if it failed: in words, on one line."""
    if (found := outcome(trial)) is not None:
        return None if math.isfinite(found.score) else f"its score ({found.metric}) is {found.score}, no number"
    try:
        return " ".join((trial.folder / FAILED).read_text("utf-8").split()) or "it does not say why"
    except OSError:
        return None


def is_finished(trial: Trial) -> bool:
    """Whether a run has a score."""
    return outcome(trial) is not None and failure(trial) is None


def interim(
    trials: Sequence[Trial], costs: Mapping[tuple[str, str], Cost] | None = None, *, command: str = ""
) -> Table | None:
    """The table of the seeds that every arm of every task has finished, or failed in; None if there is none yet."""
    outcomes = [
        (trial, outcome(trial), failure(trial)) if trial.unfit is None else (trial, None, None) for trial in trials
    ]
    open_seeds = {trial.seed for trial, found, why in outcomes if found is None and why is None and trial.unfit is None}
    seeds = [seed for seed in dict.fromkeys(trial.seed for trial in trials) if seed not in open_seeds]
    if not seeds:
        return None
    scores: dict[str, dict[str, list[float]]] = {}
    metrics: dict[str, str] = {}
    failed: list[Failure] = []
    for trial, found, why in outcomes:
        if trial.seed in open_seeds:
            continue
        scores.setdefault(trial.arm, {}).setdefault(trial.task, []).append(math.nan if found is None else found.score)
        if found is not None:
            metrics[trial.task] = found.metric
        if why is not None:
            failed.append(Failure(trial.arm, trial.task, trial.seed, why))
    others = dict.fromkeys(Unfit(trial.arm, trial.task, trial.unfit) for trial in trials if trial.unfit is not None)
    table = make_table(scores, seeds, metrics=metrics, costs=costs, failed=failed, unfit=tuple(others))
    return replace(table, command=command)


def write_table(table: Table, folder: str | Path, *, draw: bool = False) -> None:
    """The table as Markdown and JSON, and as a picture."""
    for name, text in (("table.md", table.to_markdown()), ("table.json", table.to_json())):
        with write_atomically(Path(folder) / name) as file:
            file.write(text.encode())
    if draw:
        from wellread.plots.curves import draw_comparison, save

        save(draw_comparison(table.to_dict()), Path(folder) / "table")


def _with_seed(recipe: TaskRecipe, seed: int) -> TaskRecipe:
    return replace(recipe, schedule=replace(recipe.schedule, seed=seed))


def _folder_name(name: str) -> str:
    """A name as a folder's, on every system: "w/o graph" -> "w-o graph"."""
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]', "-", name).strip(" .") or "-"


def _check(trial: Trial) -> None:
    """A run that was made by another recipe must not be taken for this one; one that failed begins anew anyway."""
    made_by = Run(trial.folder).recipe
    if made_by.exists() and failure(trial) is None:
        differ = config.changed(made_by, trial.recipe)
        if differ:
            name, (old, new) = next(iter(differ.items()))
            raise UsageError(
                f"{trial.folder} holds a run with another recipe: {name} is {json.dumps(old)} there and "
                f"{json.dumps(new)} now; give the same settings to go on, or another folder with --to"
            )


# running


def run_trial(trial: Trial, notes: Path, keep: bool) -> float:
    """Train one run, or go on with it, or begin anew if it failed; returns the seconds that it took."""
    begin = time.monotonic()
    failed = failure(trial) is not None
    with storage(trial.folder):
        (trial.folder / FAILED).unlink(missing_ok=True)
    train_task(trial.recipe, trial.folder, notes=notes, keep_model=keep, resume=not failed)
    if not keep:
        run = Run(trial.folder)
        for path in (run.last, run.best):
            path.unlink(missing_ok=True)
    return time.monotonic() - begin


Ended = tuple[Trial, float, WellreadError | None]
"""A run that is at its end, its seconds, and what went wrong."""


def _run_open(trials: Sequence[Trial], folder: Path, jobs: int, keep: bool, command: str) -> None:
    """Train what is not finished; the table of what is there is written after every run."""
    runs = [trial for trial in trials if trial.unfit is None]
    open_trials = [trial for trial in runs if not is_finished(trial)]
    if done := len(runs) - len(open_trials):
        console.note(f"{done:,} of {len(runs):,} runs are finished already")
    clock = _Clock(len(open_trials), jobs)
    with contextlib.closing(_run_all(open_trials, folder / NOTES, jobs, keep)) as finished:
        for trial, seconds, error in finished:
            if error is not None:
                _record(trial, error, trials)
            console.note(f"{clock.tick(seconds)}: {trial}: {_told(trial)} in {seconds:.0f} s")
            if (table := interim(trials, command=command)) is not None:
                write_table(table, folder)


def _record(trial: Trial, error: WellreadError, trials: Sequence[Trial]) -> None:
    """Write down why a run failed, for the others to go on; or stop, where they would fail by the same.

    A full disk is full for all. What is wrong with the first run of all, but for its training, most likely is with all.
    """
    alone = isinstance(error, TrainingError) or any(map(is_finished, trials))
    if isinstance(error, StorageError) or not alone:
        raise error
    with write_atomically(trial.folder / FAILED) as file:
        file.write(f"{error}\n".encode())


def _told(trial: Trial) -> str:
    """What came out of a run, in a few words."""
    if (why := failure(trial)) is not None:
        return f"failed: {why};"
    found = outcome(trial)
    assert found is not None
    return f"{found.metric} {100 * found.score:.2f}"


def _run_all(trials: Sequence[Trial], notes: Path, jobs: int, keep: bool) -> Generator[Ended]:
    """Every run as it is at its end."""
    if jobs == 1:
        for number, trial in enumerate(trials, 1):
            console.note(f"run {number:,} of {len(trials):,}: {trial}")
            begin, failed = time.monotonic(), None
            try:
                run_trial(trial, notes, keep)
            except WellreadError as error:
                failed = error
            yield trial, time.monotonic() - begin, failed
            stop_if_requested()
        return
    with _workers(jobs) as pool:
        yield from _finished({pool.submit(_run_quietly, trial, notes, keep): trial for trial in trials})


def _finished(running: dict[Future[float], Trial]) -> Generator[Ended]:
    try:
        left = set(running)
        while left:
            done, left = wait(left, return_when=FIRST_COMPLETED)
            for future in done:
                if isinstance(error := future.exception(), WellreadError):
                    yield running[future], 0.0, error
                else:
                    yield running[future], future.result(), None
    except BrokenProcessPool as error:
        raise TrainingError(
            "a run was killed from outside, perhaps for want of memory; start again, it goes on; with fewer --jobs "
            "less is in memory at once"
        ) from error
    finally:
        for future in running:
            future.cancel()


@contextlib.contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of their own, each with its share of the cores; begun anew, so that torch counts its threads right."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // jobs))
    try:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context(_START), _follow_parent) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _follow_parent() -> None:
    """End with the process that began this one, even if that was killed: nobody would wait for the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_quietly(trial: Trial, notes: Path, keep: bool) -> float:
    """In a process beside others: what it says goes to a file in its folder."""
    with storage(trial.folder):
        trial.folder.mkdir(parents=True, exist_ok=True)
        with open(trial.folder / "said.txt", "a", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            return run_trial(trial, notes, keep)


class _Clock:
    """How long is left, by how long it took so far."""

    def __init__(self, total: int, jobs: int) -> None:
        self.total, self.jobs, self.seconds = total, jobs, list[float]()

    def tick(self, seconds: float) -> str:
        """A run is finished: "run 3 of 20, about 12 min left"."""
        self.seconds.append(seconds)
        done = len(self.seconds)
        left = (self.total - done) * sum(self.seconds) / done / self.jobs
        return f"run {done:,} of {self.total:,}, about {console.duration(left)} left"


def _costs(tasks: Mapping[str, Arms], trials: Sequence[Trial], notes: Path) -> dict[tuple[str, str], Cost]:
    """Of the arms that can be trained, as at least one run has shown."""
    from wellread.training.compare.cost import measure_costs

    trained = {(trial.arm, trial.task) for trial in trials if trial.unfit is None and is_finished(trial)}
    costs: dict[tuple[str, str], Cost] = {}
    for task, arms in tasks.items():
        some = {arm: recipe for arm, recipe in arms.items() if (arm, task) in trained}
        if some:
            console.note(f"measuring steps of {task}")
            costs |= {(arm, task): cost for arm, cost in measure_costs(some, notes).items()}
    return costs


def read_recipes(paths: Sequence[str | Path], changes: Sequence[str] = ()) -> dict[str, TaskRecipe]:
    """Recipes by the name of their task, or of their file where two have one task."""
    read = [(Path(path).stem, config.override(config.read(TaskRecipe, path), changes)) for path in paths]
    names = [name_of(recipe) for _, recipe in read]
    recipes = {stem if names.count(name) > 1 else name: one for name, (stem, one) in zip(names, read, strict=True)}
    if len(recipes) < len(read):
        raise UsageError(
            f"two recipes would be one column among {', '.join(map(str, paths))}; call the files otherwise"
        )
    return recipes


def seeds_of(recipes: Iterable[TaskRecipe], count: int) -> list[int]:
    """So many seeds, counted from that of the recipes."""
    first = {recipe.schedule.seed for recipe in recipes}
    if len(first) > 1:
        raise UsageError(f"the recipes have the seeds {', '.join(map(str, sorted(first)))}; give all the same one")
    if count < 1:
        raise UsageError(f"--seeds is {count}; expected 1 or more")
    return [min(first) + number for number in range(count)]
