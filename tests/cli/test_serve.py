"""`wellread serve` as a person types it: what it says before it serves, and when it cannot."""

import json
import logging
import re
import socket
import sys

import pytest

from tests.servers import write_kbs
from wellread.cli.serve import _encoders, _models
from wellread.errors import InputError, UsageError
from wellread.server import run
from wellread.server.run import allowed_hosts, bind_sockets, read_token


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    return write_kbs(tmp_path_factory.mktemp("kbs"))


@pytest.fixture
def quiet():
    """Servers set up logging for a process of their own."""
    loggers = [logging.getLogger(name) for name in ("wellread.server", "uvicorn.error")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_help_has_an_example(wellread):
    said = wellread("serve", "--help")
    assert (said.code, "Examples:" in said.out) == (0, True)


def test_models_are_of_one_knowledge_base_or_of_all():
    names = ["vital", "wordnet"]
    assert _models([], names) == {"vital": [], "wordnet": []}
    assert _models(["elq", "prior"], names) == {"vital": ["elq", "prior"], "wordnet": ["elq", "prior"]}
    assert _models(["elq", "wordnet=prior"], names) == {"vital": ["elq"], "wordnet": ["prior"]}
    assert _models(["runs/a=b"], names) == {"vital": ["runs/a=b"], "wordnet": ["runs/a=b"]}
    with pytest.raises(UsageError, match="has no model"):
        _models(["vital="], names)


def test_encoders_have_names(tmp_path):
    (tmp_path / "a=b").mkdir()
    (tmp_path / "run").mkdir()
    assert _encoders(["minilm", f"mine={tmp_path / 'run'}"]) == {"minilm": "minilm", "mine": str(tmp_path / "run")}
    assert _encoders([str(tmp_path / "a=b"), f"org/model@{'0' * 40}"]) == {
        "a=b": str(tmp_path / "a=b"),
        "model": f"org/model@{'0' * 40}",
    }
    for wrong, message in (
        (["auto=minilm"], "or the name auto; give NAME=MODEL"),
        (["mine="], "give NAME=MODEL"),
        (["minilm", "minilm"], "two encoders have the name minilm"),
        (["mine=./nowhere"], "./nowhere is not a folder"),
    ):
        with pytest.raises(UsageError, match=message):
            _encoders(wrong)


def test_loopback_goes_by_its_own_names_only():
    assert allowed_hosts("127.0.0.1") == allowed_hosts("localhost") == ("127.0.0.1", "localhost", "[::1]")
    assert allowed_hosts("::1", ("kb.example",))[-1] == "kb.example"
    assert allowed_hosts("127.0.0.2")[-1] == "127.0.0.2"  # all of 127.… is this machine alone
    assert allowed_hosts("0.0.0.0") == ()
    assert allowed_hosts("0.0.0.0", ("kb.example",)) == ("kb.example",)


@pytest.mark.parametrize("word", ["", "short", "two words of some length", "häßlich-und-lang-genug", "a" * 15])
def test_a_token_that_can_be_guessed_is_refused(tmp_path, word):
    (tmp_path / "token").write_text(word, "utf-8")
    with pytest.raises(InputError, match="make one with"):
        read_token(tmp_path / "token")


def test_a_token_is_a_word_in_a_file(tmp_path):
    (tmp_path / "token").write_text("a-word-of-some-length\n")
    assert read_token(tmp_path / "token") == "a-word-of-some-length"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--kb", "{}/citis.kb"], 5, "did you mean cities.kb?"),
        (["--kb", "{}/none.kb"], 5, "there is no knowledge base"),
        (["--kb", "{}/cities.kb", "--token-file", "{}/none"], 3, "none"),
        (["--kb", "{}/cities.kb", "--port", "70000"], 2, "see: wellread serve --help"),
    ],
)
def test_what_goes_wrong_is_one_line(wellread, kbs, arguments, code, message):
    said = wellread("serve", *(argument.format(kbs[0].parent) for argument in arguments))
    assert (said.code, len(said.err.strip().splitlines())) == (code, 1)
    assert message in said.err


def test_a_port_in_use_is_reported_before_anything_is_loaded(wellread, kbs):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = wellread("serve", "--kb", kbs[0], "--model", "prior", "--port", taken.getsockname()[1])
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "choose another --port" in said.err


def test_an_invalid_host_is_reported(wellread, kbs):
    said = wellread("serve", "--kb", kbs[0], "--host", "no such host")
    assert (said.code, len(said.err.splitlines()), "choose another --port or --host" in said.err) == (2, 1, True)


def test_localhost_has_one_port_at_all_its_addresses():
    with bind_sockets("localhost", 0) as sockets:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        for one in sockets:
            one.listen()
            socket.create_connection(one.getsockname()[:2], timeout=10).close()
    assert all(one.fileno() == -1 for one in sockets)


def test_loaded_models_are_reported_before_the_address(wellread, kbs, quiet, monkeypatch):
    async def stop(server):
        assert all(one.is_serving() for one in server.servers)

    monkeypatch.setattr(run.Server, "main_loop", stop)
    said = wellread("serve", "--kb", kbs[0], "--kb", kbs[1], "--model", "prior", "--port", 0)
    assert said.code == 0
    lines = said.err.splitlines()
    notes = [line for line in lines if not line.startswith("{")]
    assert notes[:2] == ["loading cities (4 entities), prior …", "loading words (2 entities), prior …"]
    assert re.fullmatch(r"ready after \d+ s, listening on http://127.0.0.1:[1-9]\d*/ — open it in a .+", notes[2])
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line["message"] for line in logged] == ["listening", "stopping", "stopped"]
    assert logged[0]["kbs"] == ["cities", "words"]
    assert f":{logged[0]['port']}/" in notes[2]


def test_a_missing_extra_is_named(wellread, kbs, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = wellread("serve", "--kb", kbs[0])
    assert (said.code, "-e '.[serve]'" in said.err) == (7, True)
