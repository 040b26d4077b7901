"""Printed text cannot control the terminal, whatever a knowledge base contains."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from wellread.index.entity_vectors import Encoding
from wellread.io import console
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity

EVIL = "Ada\x1b]0;owned\x07\x9b31m\x7f\u202e\r\x08"
CONTROLS = {*range(0x20), 0x7F, *range(0x80, 0xA0), 0x202D, 0x202E} - {ord("\t"), ord("\n")}


@pytest.fixture
def kb(tmp_path):
    entities = [
        Entity("e1", EVIL, f"who {EVIL} was", f"kind{EVIL}", aliases={"Ada": 2.0, EVIL: 1.0}, facts=((EVIL, "e2"),)),
        Entity(f"e2{EVIL}", "Bob", "another", "person"),
        Entity("e2", "Cid", "another", "person"),
    ]
    build(lambda tally: iter(entities), tmp_path / "evil.kb", origin=Origin("test"))
    return tmp_path / "evil.kb"


def test_every_control_character_is_made_visible():
    for code in CONTROLS:
        assert not CONTROLS & set(map(ord, console.visible(f"a{chr(code)}é")))
    assert console.visible("two\nlines\tÀ 東京 🙂") == "two\nlines\tÀ 東京 🙂"
    assert console.visible("a\x1b]0;b\x07") == "a␛]0;b␇"


def test_progress_in_units_shows_their_number_and_rate(monkeypatch, capsys):
    monkeypatch.setattr(console, "_LINE_EVERY", 0.02)
    progress = Encoding(done_bytes=2_500, total_bytes=10_000)
    with console.progress_bar("encoding", progress):
        time.sleep(0.1)
    first = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(r"encoding: 25 %, 2,500 of 10,000 entities, [\d,]+/s after 0 s", first)


COMMANDS = [
    ("kb", "show", "KB", "e1"),
    ("kb", "show", "KB", "e1", "--json"),
    ("kb", "search", "KB", "Ada"),
    ("kb", "search", "KB", "Ada", "--json"),
    ("kb", "export", "KB"),
    ("kb", "show", "KB", f"gone{EVIL}"),
    ("link", "--kb", "KB", "--model", "prior", f"Who was Ada {EVIL}?"),
    ("link", "--kb", "KB", "--model", "prior", "--format", "json", f"Who was Ada {EVIL}?"),
    ("link", "--kb", "KB", "--model", "prior", "--format", "conll", f"Who was Ada {EVIL}?"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_no_command_sends_escape_sequences_of_a_title_to_the_terminal(kb, arguments):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "wellread", *(str(kb) if one == "KB" else one for one in arguments)]
    env = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.wait()
    os.close(ours)
    text = shown.replace(b"\r\n", b"\n").decode()
    assert "Ada" in text
    assert "Traceback" not in text
    for sequence in ("\x1b]0;", "\x9b", "\x07", "\x08", "\x7f", "\u202e", "\r"):
        assert sequence not in text


def test_files_and_pipes_keep_every_character(kb, wellread, tmp_path):
    assert (
        EVIL.partition("\x7f")[0]
        in wellread("link", "--kb", kb, "--model", "prior", "--format", "conll", f"Ada {EVIL}").out
    )
    assert "\x9b" in wellread("kb", "export", kb).out


def test_notes_and_tables_are_harmless(capsys):
    console.note(f"loss of {EVIL}")
    console.print_table((EVIL, "n"), [(EVIL, 1)], title=EVIL)
    shown = capsys.readouterr()
    assert not CONTROLS & set(map(ord, shown.out + shown.err))


def test_a_column_is_cut_to_one_line_on_request(capsys):
    console.print_table(("name", "what it is"), [("a", "word " * 60)], one_line="what it is")
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_columns_without_names_have_no_header(capsys):
    console.print_table(("", ""), [("language", "en")])
    assert len(capsys.readouterr().out.splitlines()) == 3
