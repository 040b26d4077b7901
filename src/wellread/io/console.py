"""Terminal output: progress, tables, notes. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wellread.io.files import Progress

_LINE_EVERY = 10.0
"""Seconds between two progress lines without a terminal."""


_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    **{code: f"\\u{code:04x}" for code in (*range(0x80, 0xA0), 0x202D, 0x202E)},
    0x7F: "\u2421",
}
"""Replacements: control characters by their pictures (␛), C1 controls and text direction overrides by escapes."""


def visible(text: str) -> str:
    """Make control characters visible, as titles of a KB may contain escape sequences for the terminal.

    "a\\x1b]0;b\\x07" -> "a␛]0;b␇"
    """
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def on_screen(text: str) -> str:
    """Return a result for stdout: `visible` on a terminal, unchanged in a file or a pipe."""
    return visible(text) if sys.stdout.isatty() else text


def note(message: str) -> None:
    """Print one line to stderr; it is not part of the result."""
    print(visible(message), file=sys.stderr, flush=True)  # noqa: T201  # this is the one place that prints notes


@contextmanager
def progress_bar(title: str, progress: Progress) -> Iterator[None]:
    """Show `progress` while the block runs: a bar on a terminal, a line every ten seconds in a log."""
    stop = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    watcher = threading.Thread(target=show, args=(title, progress, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _show_bar(title: str, progress: Progress, stop: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    begin = time.monotonic()
    in_units = bool(getattr(progress, "unit", ""))
    amount = TextColumn("{task.fields[amount]}", markup=False) if in_units else DownloadColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(visible(title), total=None, amount="")
        while not stop.wait(0.1):
            step = _step(progress)
            total = None if step else progress.total_bytes or None  # without a total the bar only shows activity
            bar.update(
                task,
                description=visible(f"{title}{step}"),
                completed=progress.done_bytes,
                total=total,
                amount="" if step else _amount(progress, time.monotonic() - begin),
            )


def _show_lines(title: str, progress: Progress, stop: threading.Event) -> None:
    begin = time.monotonic()
    while not stop.wait(_LINE_EVERY):
        seconds = time.monotonic() - begin
        share = f": {100 * progress.done_bytes / progress.total_bytes:.0f} %" if progress.total_bytes else ": …"
        if amount := _amount(progress, seconds):
            share += f", {amount}"
        note(f"{title}{_step(progress) or share} after {seconds:.0f} s")


def _amount(progress: Progress, seconds: float) -> str:
    """Return what a progress in units has done so far: "1,024 of 10,033 entities, 240/s"."""
    done, total, unit = progress.done_bytes, progress.total_bytes, getattr(progress, "unit", "")
    if not unit or not total:
        return ""
    return f"{done:,} of {total:,} {unit}" + (f", {done / seconds:,.0f}/s" if done and seconds > 0 else "")


@contextmanager
def step_bar(title: str, done: int, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show finished steps while the block runs: a bar, or a line every ten seconds.

    The result is called with the number of steps and a message: `update(120, "loss 0.71, F1 0.84")`.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        message = TextColumn("{task.fields[message]}", markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), message)
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(visible(title), total=total, completed=done, message="")
            yield lambda step, text: bar.update(task, completed=step, message=visible(text))
        return
    begin = last = time.monotonic()

    def update(step: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY:
            left = (total - step) * (now - begin) / max(1, step - done)
            note(f"{title} {step:,} of {total:,}: {text}, {duration(left)} left")
            last = now

    yield update


def duration(seconds: float) -> str:
    """Format seconds: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _step(progress: Progress) -> str:
    """Return the current step besides reading, if the progress has one (`kb.records.Tally` does)."""
    step = getattr(progress, "step", "")
    return f": {step}" if step else ""


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None, *, one_line: str | None = None
) -> None:
    """Print a table to stdout, numbers right-aligned; nothing in it is read as markup.

    Cells of the column `one_line` are cut instead of folded on a narrow screen. Columns without names have no header.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else visible(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        show_header=any(columns),
    )
    for place, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(visible(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = [Text(visible(_shown(cell))) for cell in row]
        if one_line is not None:
            cut = cells[columns.index(one_line)]
            cut.no_wrap, cut.overflow = True, "ellipsis"
        table.add_row(*cells)
    wide = None if sys.stdout.isatty() else 160
    Console(width=wide).print(table)


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.3f}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return str(cell)
