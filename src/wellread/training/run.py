"""Run folder: recipe, log, checkpoints and results of one training.

recipe.toml         the settings, defaults included
log.jsonl           a line per report: step, losses, rate, speed, validation scores
last.safetensors    checkpoint: weights, optimizer state, counters
best.safetensors    the trained weights with the best validation score
scores.json         that score and its step; written last, so its existence marks a finished run
*.png, *.svg        curves of losses and scores; for links also precision-recall and calibration
model/              the model for inference; written by the caller when the run is finished
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from wellread import config
from wellread.errors import InputError, UsageError
from wellread.evaluation.calibration import Predictions, calibrate, pr_curve, reliability
from wellread.io.files import storage, sweep_leftovers, write_atomically

_PICTURES = ("curves", "precision-recall", "calibration")


class Run:
    """Files of one run, with a lock: one training writes at a time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.recipe = self.folder / "recipe.toml"
        self.log = self.folder / "log.jsonl"
        self.last = self.folder / "last.safetensors"
        self.best = self.folder / "best.safetensors"
        self.result = self.folder / "scores.json"
        self.model = self.folder / "model"
        self._lock = FileLock(self.folder / ".lock")

    def open(self, recipe: Any, *, resume: bool) -> None:
        """Lock the folder for this recipe: a new run, or the same as before."""
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                raise UsageError(
                    f"another training writes to {self.folder}; wait until it ends, or give another folder"
                ) from None
        sweep_leftovers(self.folder, self.model)
        if not resume:
            self._forget()
        if self.recipe.exists():
            self._compare(recipe)
        else:
            with write_atomically(self.recipe) as file:
                file.write(config.to_toml(recipe).encode())

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _forget(self) -> None:
        """Delete the files of an earlier run, so that its model is not mistaken for that of the new recipe."""
        pictures = (self.folder / f"{name}.{kind}" for name in _PICTURES for kind in ("png", "svg"))
        with storage(self.folder):
            for path in (self.result, self.last, self.best, self.log, self.recipe, *pictures):
                path.unlink(missing_ok=True)
            if self.model.exists():
                shutil.rmtree(self.model)

    def _compare(self, recipe: Any) -> None:
        differ = config.changed(self.recipe, recipe)
        if differ:
            differences = "; ".join(
                f"{name} is {_shown(old)} there and {_shown(new)} now" for name, (old, new) in differ.items()
            )
            raise UsageError(
                f"{self.folder} holds a run with another recipe: {differences}; give these settings to resume it, "
                "or another folder to start over"
            )

    def scores(self) -> dict[str, Any] | None:
        """Return the results of a finished run, else None."""
        try:
            scores: dict[str, Any] = json.loads(self.result.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.result} cannot be read: {error}; delete it to have it written again") from error
        return scores

    def report(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log."""
        with storage(self.log), open(self.log, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def rewind(self, step: int) -> None:
        """Drop log lines after a step, since a run resumed from an older checkpoint repeats them."""
        lines = [line for line in read_log(self.folder) if line["step"] <= step]
        with write_atomically(self.log) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in lines)

    def finish(self, scores: Mapping[str, Any], predictions: Predictions | None) -> None:
        """Draw the plots, then write the scores, which mark the run as finished."""
        from wellread.plots.curves import draw_curves, draw_pr_curve, draw_reliability, save

        save(draw_curves(read_log(self.folder)), self.folder / "curves")
        extra = {}
        if predictions is not None:
            curve, bins = pr_curve(predictions), reliability(predictions.scores, predictions.right)
            best = (curve.best.threshold, curve.best.recall, curve.best.precision)
            save(draw_pr_curve(curve.recall, curve.precision, best=best), self.folder / "precision-recall")
            save(draw_reliability(bins.confidence, bins.accuracy, bins.count), self.folder / "calibration")
            extra = {"calibration": calibrate(predictions)}
        with write_atomically(self.result) as file:
            file.write(json.dumps({**scores, **extra}, indent=2).encode() + b"\n")


def read_log(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log; a truncated line is skipped."""
    path = Path(folder) / "log.jsonl"
    return list(_whole(path.read_bytes().splitlines())) if path.exists() else []


def _whole(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
