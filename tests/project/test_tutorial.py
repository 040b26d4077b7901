"""The tutorial is typed as it is written, but for the installation: files are saved, commands run in one shell.

From an empty virtual environment it is typed by `python -m benchmarks.newcomer`, which takes minutes.
"""

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from benchmarks.newcomer import PAGE, PORT, Step, steps_of, type_all

STEPS = steps_of(PAGE.read_text("utf-8"))


def test_steps_are_read_off_a_page():
    page = (
        "# Title\n\n    python3 -m venv .venv\n\n```shell\npip install x\n```\n\nSave this as `a.csv`:\n\n"
        "```csv\nid,title\n```\n\n```console\n$ ls | cat\na.csv\n$ true\n```\n\n```toml\nnot = 'saved'\n```\n"
    )
    assert steps_of(page) == [
        Step("python3 -m venv .venv", installs=True),
        Step("pip install x", installs=True),
        Step(file="a.csv", text="id,title\n"),
        Step("ls | cat", ("a.csv",)),
        Step("true"),
    ]


def test_an_error_is_reported_with_its_command_and_running_processes_end(tmp_path):
    (tmp_path / "here").mkdir()
    steps = [Step("sleep 1000 & echo $! > pid"), Step("echo so far"), Step("ls nowhere"), Step("touch later")]
    with pytest.raises(RuntimeError, match=r"(?s)ls nowhere.ended with an error.*nowhere"):
        type_all(steps, tmp_path / "here", os.environ)
    assert not (tmp_path / "here" / "later").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "here" / "pid").read_text()), 0)


def test_what_is_not_printed_is_missed(tmp_path):
    (tmp_path / "here").mkdir()
    typed = type_all([Step(f"echo one {PORT}", ("one", "two"))], tmp_path / "here", os.environ, port=9)
    assert (typed[0].out, typed[0].missing) == ("one 9\n", ["two"])


def test_the_tutorial_installs_builds_links_trains_serves_and_stops():
    commands = [step.command for step in STEPS]
    assert [step.file for step in STEPS if step.file] == ["tea.csv", "tea.toml"]
    assert len([step for step in STEPS if step.installs]) == 3
    for verb in ("fetch", "kb build", "index build", "link", "train linker", "serve", "kb add"):
        assert any(command.startswith(f"wellread {verb}") for command in commands), verb
    assert sum("curl" in command for command in commands) >= 3
    assert all(str(PORT) in command for command in commands if "curl" in command)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial asks the server by curl")
def test_typed_as_it_stands_it_does_what_it_says(tmp_path):
    from wellread.assets import is_cached

    if not is_cached("minilm"):
        pytest.skip("the encoder is not there; run: make assets")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "shop").mkdir()
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    typed = type_all([step for step in STEPS if not step.installs], tmp_path / "shop", env, port=port)
    assert [(one.step.command, one.out, one.missing) for one in typed if one.missing] == []
    assert any("<title>" in one.out for one in typed), "the page was not fetched"
    log = (tmp_path / "shop" / "serve.log").read_text("utf-8")
    assert '"route":"/link"' in log.replace(": ", ":")
    assert "chestnut" not in log
