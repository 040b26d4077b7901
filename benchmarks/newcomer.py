"""How long is it from nothing to a running page with one's own catalogue: `python -m benchmarks.newcomer`.

Types docs/tutorial.md exactly as it is written, from a fresh clone and an empty virtual environment on, with a home of
its own, in one shell. Bar: under ten minutes by the clock, on two cores that have nothing else to do. Processor time is
reported too; on busy cores it includes threads that wait for each other (OpenMP spins) and is too high.
tests/project/test_tutorial.py types the same without the installation.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Report, arguments

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
PORT = 8765
"""The port that the page types."""
_BLOCK = re.compile(
    r"^```(?P<language>\w+)\n(?P<fenced>.*?)^```$|(?P<indented>(?:^ {4}\S[^\n]*\n)+)", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"Save this as `([\w.]+)`[^\n]*\n+\Z")


@dataclass(frozen=True)
class Step:
    """Command to type, with lines that its output must contain; or a file to save."""

    command: str = ""
    promised: tuple[str, ...] = ()
    file: str = ""
    text: str = ""
    installs: bool = False


def steps_of(page: str) -> list[Step]:
    """All that a reader does, in order: the installation, files to save, and lines after "$ " in "console" blocks."""
    steps = []
    for block in _BLOCK.finditer(page):
        language, text = block["language"], block["fenced"]
        if block["indented"]:
            steps += [Step(line.strip(), installs=True) for line in block["indented"].splitlines()]
        elif language == "shell":
            steps += [Step(line, installs=True) for line in text.splitlines()]
        elif language == "console":
            for command, *promised in map(str.splitlines, re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]):
                steps.append(Step(command, tuple(promised)))
        elif named := _FILE.search(page, 0, block.start()):
            steps.append(Step(file=named[1], text=text))
    return steps


@dataclass(frozen=True)
class Typed:
    """Result of a command; seconds are processor time."""

    step: Step
    out: str
    err: str
    seconds: float

    @property
    def missing(self) -> list[str]:
        """Promised lines that it did not print."""
        return [line for line in self.step.promised if line not in self.out]


def type_all(steps: Sequence[Step], folder: Path, env: Mapping[str, str], *, port: int = PORT) -> list[Typed]:
    """Run all steps in one shell in a folder, with another port if given; stop at an error and report it."""
    outputs = Path(tempfile.mkdtemp(dir=folder.parent))
    # A variable and a signal that leave nothing running, and errors that end the script where they happen.
    lines = ["set -eo pipefail", "trap 'kill -9 $(jobs -p) 2> /dev/null; wait' EXIT"]
    commands = []
    for step in steps:
        if step.file:
            (folder / step.file).write_text(step.text, "utf-8")
            continue
        number = len(commands)
        commands.append(step)
        command = step.command.replace(str(PORT), str(port))
        lines.append(f"{{ {command}\n}} > {outputs}/{number}.out 2> {outputs}/{number}.err")
        lines.append(f"times > {outputs}/{number}.times")
    script = outputs / "script.sh"
    script.write_text("\n".join([*lines, "wait", f"times > {outputs}/end.times"]), "utf-8")
    errors = _run(script, folder, env)
    typed, before = [], 0.0
    for number, step in enumerate(commands):
        out, err = (_read(outputs / f"{number}.{kind}") for kind in ("out", "err"))
        if not (outputs / f"{number}.times").exists():
            raise RuntimeError(f"{step.command}\nended with an error:\n{out}{err}{errors}")
        spent = _seconds(_read(outputs / f"{number}.times"))
        typed.append(Typed(step, out, err, spent - before))
        before = spent
    typed.append(Typed(Step("(the server, until it stopped)"), "", "", _seconds(_read(outputs / "end.times")) - before))
    shutil.rmtree(outputs)
    return typed


def _run(script: Path, folder: Path, env: Mapping[str, str]) -> str:
    """Run a script in a session of its own, of which nothing is left whatever happens; what it complains of."""
    pipe = subprocess.PIPE
    shell = subprocess.Popen(
        ["bash", script], cwd=folder, env=dict(env), stderr=pipe, text=True, start_new_session=True
    )
    try:
        return shell.communicate()[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _seconds(times: str) -> float:
    """Processor seconds of the children of a shell, from what `times` prints: "0m1.5s 0m0.2s" -> 1.7."""
    spent = re.findall(r"(\d+)m([\d.,]+)s", times.splitlines()[-1])
    return sum(60 * int(minutes) + float(seconds.replace(",", ".")) for minutes, seconds in spent)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("newcomer", options.quick)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        clone = Path(folder) / "wellread"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        own = ("PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
        env = {name: value for name, value in os.environ.items() if name not in own}
        begin = time.perf_counter()
        typed = type_all(steps_of(PAGE.read_text("utf-8")), clone, env | {"WELLREAD_HOME": f"{folder}/home"})
        wall = time.perf_counter() - begin
    for one in typed:
        assert not one.missing, f"{one.step.command}\nprinted\n{one.out}\nnot {one.missing}"
        report.add(one.step.command[:60], one.seconds, "s")
    report.add("in all, of the processor", sum(one.seconds for one in typed), "s")
    report.add("in all, by the clock", wall, "s", at_most=600)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
