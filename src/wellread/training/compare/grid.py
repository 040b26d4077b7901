"""Comparison of arms: every task × arm × seed is a run folder, summarised in one table.

    folder/table.md, table.json, table.png     the result; updated whenever a seed is complete
    folder/notes/                              annotations, computed once and shared by all runs
    folder/RTE/all maps/0/                     a run: recipe, log, scores, curves

Finished runs are kept, so the same command resumes after a kill, with more seeds, or with more arms. The same seed
gives the same initial head and the same batches in every arm, so scores are paired by seed. Weights are deleted when a
run is finished, unless `keep` is set: a hundred runs of a small encoder take 40 GB.

A run that fails writes the reason to `failed.txt`, and the others continue. The table has no score for it, nor for any
mean that includes it. The same command retries it from the start, also if its score is not a number. An arm that does
not apply to a task (`arms.unfit`) is not run, and the table gives the reason.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
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
from wellread.tasks.registry import task_name
from wellread.training.compare.arms import Arms, unfit
from wellread.training.compare.comparison import folder_name, run_cells
from wellread.training.compare.tables import Cost, Failure, Table, Unfit, make_table
from wellread.training.run import Run
from wellread.training.stopping import stop_if_requested
from wellread.training.task import NOTES, train_task

FAILED = "failed.txt"
"""File in a run's folder with the reason of its failure."""
_START = "spawn"
"""Start method of worker processes."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a comparison: a task, an arm and a seed."""

    task: str
    arm: str
    seed: int
    recipe: TaskRecipe
    folder: Path
    unfit: str | None = None
    """Reason why the arm does not apply to the task; then it is not run."""

    def __str__(self) -> str:
        return f"{self.task}, {self.arm}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Score of a finished run, and the name of its metric."""

    score: float
    metric: str


def plan(tasks: Mapping[str, Arms], seeds: Sequence[int], folder: str | Path) -> list[Trial]:
    """Return the runs of a comparison, ordered by seed, so that an interim table is balanced."""
    names = {arm: folder_name(arm) for arms in tasks.values() for arm in arms}
    if len(set(names.values())) < len(names):
        raise UsageError(f"two arms would share a folder among {', '.join(names)}; rename one of them")
    to, why = Path(folder), {(task, arm): unfit(recipe) for task, arms in tasks.items() for arm, recipe in arms.items()}
    if all(why.values()):
        raise UsageError(f"no arm applies to its task; the first: {next(iter(why.values()))}")
    trials = [
        Trial(
            *(task, arm, seed, _with_seed(recipe, seed), to / folder_name(task) / names[arm] / str(seed)),
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
    """Train all unfinished runs, `jobs` at a time, and return the table, which lists failed runs.

    `command` is the command line that a report shows.
    """
    folder = Path(folder)
    trials = plan(tasks, seeds, folder)
    refusal = StorageError(f"another process compares in {folder}; wait for it, or choose another folder with --to")
    with only_writer(folder, refusal, patience=1.0):
        _run_open(trials, folder, jobs, keep, command)
        costs = _costs(tasks, trials, folder / NOTES) if measure else {}
        table = interim(trials, costs, command=command)
        assert table is not None
        table.write(folder, draw=True)
    return table


def outcome(trial: Trial) -> Outcome | None:
    """Return the score of a finished run, which may be NaN; None if it is not finished."""
    result = Run(trial.folder).scores()
    if result is None:
        return None
    name, scores = str(result["score"]), result["scores"]
    parts = [other for other in scores if other != name]
    shown = name if name != "score" or not parts else " and ".join(parts)
    return Outcome(float(scores[name]), f"mean of {shown}" if name == "score" and len(parts) > 1 else shown)


def failure(trial: Trial) -> str | None:
    """Return the reason of a failure in one line, or None."""
    if (found := outcome(trial)) is not None:
        return None if math.isfinite(found.score) else f"its score ({found.metric}) is {found.score}, not a number"
    try:
        return " ".join((trial.folder / FAILED).read_text("utf-8").split()) or "no reason given"
    except OSError:
        return None


def is_finished(trial: Trial) -> bool:
    """Return True if a run has a valid score."""
    return outcome(trial) is not None and failure(trial) is None


def interim(
    trials: Sequence[Trial], costs: Mapping[tuple[str, str], Cost] | None = None, *, command: str = ""
) -> Table | None:
    """Return the table of the seeds that are complete (finished or failed) in all runs; None if there are none."""
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


def _with_seed(recipe: TaskRecipe, seed: int) -> TaskRecipe:
    return replace(recipe, schedule=replace(recipe.schedule, seed=seed))


def _check(trial: Trial) -> None:
    """Raise `UsageError` if the folder has a run of another recipe; failed runs start over anyway."""
    made_by = Run(trial.folder).recipe
    if made_by.exists() and failure(trial) is None:
        differ = config.changed(made_by, trial.recipe)
        if differ:
            name, (old, new) = next(iter(differ.items()))
            raise UsageError(
                f"{trial.folder} holds a run with another recipe: {name} is {json.dumps(old)} there and "
                f"{json.dumps(new)} now; give the same settings to resume it, or another folder with --to"
            )


# running


def run_trial(trial: Trial, notes: Path, keep: bool) -> float:
    """Train or resume one run, or start over if it failed; return the seconds it took."""
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
"""Completed run, its duration in seconds, and its error."""


def _run_open(trials: Sequence[Trial], folder: Path, jobs: int, keep: bool, command: str) -> None:
    """Train unfinished runs; the table is updated after every run."""
    runs = [trial for trial in trials if trial.unfit is None]
    open_trials = [trial for trial in runs if not is_finished(trial)]
    if done := len(runs) - len(open_trials):
        console.note(f"{done:,} of {len(runs):,} runs are finished already")
    clock = _Clock(len(open_trials), jobs)
    with contextlib.closing(_run_all(open_trials, folder / NOTES, jobs, keep)) as finished:
        for trial, seconds, error in finished:
            if error is not None:
                _record(trial, error, trials)
            console.note(f"{clock.tick(seconds)}: {trial}: {_result(trial)} in {seconds:.0f} s")
            if (table := interim(trials, command=command)) is not None:
                table.write(folder)


def _record(trial: Trial, error: WellreadError, trials: Sequence[Trial]) -> None:
    """Record why a run failed, so that the others continue; raise errors that would stop all runs.

    These are storage errors, and errors other than training errors before any run has finished.
    """
    alone = isinstance(error, TrainingError) or any(map(is_finished, trials))
    if isinstance(error, StorageError) or not alone:
        raise error
    with write_atomically(trial.folder / FAILED) as file:
        file.write(f"{error}\n".encode())


def _result(trial: Trial) -> str:
    """Return the result of a run in a few words."""
    if (why := failure(trial)) is not None:
        return f"failed: {why};"
    found = outcome(trial)
    assert found is not None
    return f"{found.metric} {100 * found.score:.2f}"


def _run_all(trials: Sequence[Trial], notes: Path, jobs: int, keep: bool) -> Generator[Ended]:
    """Yield every run when it is complete."""
    if jobs == 1:
        numbered = enumerate(trials, 1)

        def run(number_and_trial: tuple[int, Trial]) -> float:
            number, trial = number_and_trial
            console.note(f"run {number:,} of {len(trials):,}: {trial}")
            return run_trial(trial, notes, keep)

        for (_, trial), seconds, result in run_cells(numbered, run):
            yield trial, seconds, result if isinstance(result, WellreadError) else None
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
            "a run was killed, perhaps for lack of memory; run the same command again to resume, with fewer --jobs "
            "to use less memory"
        ) from error
    finally:
        for future in running:
            future.cancel()


@contextlib.contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes, each with its share of the cores as OMP_NUM_THREADS."""
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
    """Exit when the parent process ends, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_quietly(trial: Trial, notes: Path, keep: bool) -> float:
    """Run in a worker process, with stderr redirected to a file in the run's folder."""
    with storage(trial.folder):
        trial.folder.mkdir(parents=True, exist_ok=True)
        with open(trial.folder / "said.txt", "a", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            return run_trial(trial, notes, keep)


class _Clock:
    """Estimate of the remaining time from the durations so far."""

    def __init__(self, total: int, jobs: int) -> None:
        self.total, self.jobs, self.seconds = total, jobs, list[float]()

    def tick(self, seconds: float) -> str:
        """Count a finished run, and return "run 3 of 20, about 12 min left"."""
        self.seconds.append(seconds)
        done = len(self.seconds)
        left = (self.total - done) * sum(self.seconds) / done / self.jobs
        return f"run {done:,} of {self.total:,}, about {console.duration(left)} left"


def _costs(tasks: Mapping[str, Arms], trials: Sequence[Trial], notes: Path) -> dict[tuple[str, str], Cost]:
    """Return the costs of the arms with at least one finished run."""
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
    """Read recipes, by the name of their task, or of their file if two have the same task."""
    read = [(Path(path).stem, config.override(config.read(TaskRecipe, path), changes)) for path in paths]
    names = [task_name(recipe.task) for _, recipe in read]
    recipes = {stem if names.count(name) > 1 else name: one for name, (stem, one) in zip(names, read, strict=True)}
    if len(recipes) < len(read):
        raise UsageError(f"two recipes have the same name among {', '.join(map(str, paths))}; rename the files")
    return recipes


def seeds_of(recipes: Iterable[TaskRecipe], count: int) -> list[int]:
    """Return `count` consecutive seeds from that of the recipes."""
    first = {recipe.schedule.seed for recipe in recipes}
    if len(first) > 1:
        raise UsageError(f"the recipes have the seeds {', '.join(map(str, sorted(first)))}; give all the same one")
    if count < 1:
        raise UsageError(f"--seeds is {count}; expected 1 or more")
    return [min(first) + number for number in range(count)]
