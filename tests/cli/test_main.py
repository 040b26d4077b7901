"""The command line as a whole: whatever goes wrong is one line on stderr, whatever the terminal can show."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from functools import partial

import pytest

from tests.kb.conftest import CITIES, build_kb


@pytest.fixture
def path(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    return tmp_path / "cities.kb"


def run(*arguments, **options):
    command = [sys.executable, "-m", "wellread.cli", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=60, **options)


def fails(result, code, message):
    assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["annotate", "a.txt", "--to", "x"], "error: Missing option '--kb'; see: wellread annotate --help"),
        (["lnk", "text"], "error: No such command 'lnk'; did you mean link? See: wellread --help"),
        (["kb", "serch", "x"], "Did you mean 'search'? See: wellread kb --help"),
        (["link", "--kbs", "x", "text"], "Did you mean '--kb'? See: wellread link --help"),
        (["train", "linkr", "a.toml"], "No such command 'linkr'; did you mean linker? See: wellread train --help"),
        (["kb", "search", "x"], "error: Missing argument 'QUERY'; see: wellread kb search --help"),
        (["kb", "build"], "see: wellread kb build --help"),
        (["sing"], "error: No such command 'sing'; see: wellread --help"),
        (["link", "--kb", "x", "--format", "xml", "text"], "; see: wellread link --help"),
        (["kb", "remove", "--colour"], "see: wellread kb remove --help"),
    ],
)
def test_a_slip_of_the_pen_is_one_line_that_names_the_help(wellread, arguments, message):
    done = wellread(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert message in done.err


def test_without_a_verb_the_help_is_shown(wellread):
    for arguments in ([], ["kb"]):
        assert "Commands:" in wellread(*arguments).err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
@pytest.mark.parametrize("verb", [["search", "paris"], ["export"], ["show", "Q90", "--json"]])
def test_an_output_that_takes_nothing_is_one_line(path, verb):
    with open("/dev/full", "w") as full:
        fails(run("kb", verb[0], path, *verb[1:], stdout=full), 6, "error: [Errno 28] No space left on device")


def test_an_output_that_was_closed_is_no_error(path):
    command = f'"{sys.executable}" -m wellread.cli kb stats "{path}" >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_knows_only_ascii_gets_all_it_can_show(path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = run("kb", "show", path, "Q1490", stdout=subprocess.PIPE, env=environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\\u6771\\u4eac" in shown.stdout
    fails(run("kb", "show", path, "東", env=environment), 5, "has no entity")


def unread(pipe):
    """How many bytes of a pipe nobody has taken yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_interrupted_command_says_what_to_do(path):
    command = [sys.executable, "-m", "wellread.cli", *"link --model prior --lines --format json --kb".split(), path]
    pipe = subprocess.PIPE
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=listen) as linking:
        os.write(linking.stdin.fileno(), b"Paris\n")
        while unread(linking.stdin):
            assert linking.poll() is None
            time.sleep(0.01)
        linking.send_signal(signal.SIGINT)
        _, said = linking.communicate(timeout=60)
    # The blank line before it is click's: it ends the line with ^C.
    assert said.strip() == "interrupted; run the same command again to resume"
    assert linking.returncode == 130


def test_groups_list_whole_sentences(wellread):
    shown = " ".join(wellread("kb", "--help").out.split())
    assert "merge Join several knowledge bases; entities with the same id become one." in shown
    linking = " ".join(wellread("evaluate", "--help").out.split())
    assert "linking Link the texts of FILE... and score" in linking
    assert " recipe " not in wellread("train", "--help").out.partition("Commands:")[2]
