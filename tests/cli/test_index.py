"""`wellread index`, from the command line to the folder and back; the encoder is a small one."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest

from tests.index.test_entity_vectors import BagOfWords, things
from tests.kb.conftest import build_kb
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.models.elq import load as elq


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """A home and a KB of our own, and an encoder that needs no model."""
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(elq, "load_tower", lambda model: BagOfWords(fingerprint=model or "bag 1"), raising=False)
    build_kb(tmp_path / "x.kb", things(40))
    return tmp_path


@pytest.fixture
def run(wellread):
    return partial(wellread, "index")


def test_a_build_says_what_it_did_what_it_chose_and_why(run):
    done = run("build", "--kb", "x.kb")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:3] == [
        "x.kb.vectors: 40 encoded, 0 kept",
        "40 entities, 16 numbers each: exact search, compression none",
        "why: up to 2,000 entities, all are compared, uncompressed",
    ]
    assert run("build", "--kb", "x.kb").out.startswith("x.kb.vectors: 0 encoded, 40 kept")


def test_a_build_encodes_only_what_changed(run):
    run("build", "--kb", "x.kb")
    with KnowledgeBase.open("x.kb", writable=True) as kb:
        kb.add(Entity("new", "newcomer"))
        kb.remove("e0")
    info = json.loads(run("build", "--kb", "x.kb", "--json").out)
    assert (info["encoded"], info["kept"], info["entities"]) == (1, 39, 40)
    assert (info["added_since_build"], info["gone_since_build"]) == (1, 1)


def test_another_folder_kind_and_model_are_used(run, work):
    done = run("build", "--kb", "x.kb", "--to", "there", "--kind", "exact", "--compression", "none", "--model", "mine")
    assert done.code == 0
    assert (work / "there" / "index.json").exists()
    assert not (work / "x.kb.vectors").exists()
    info = json.loads(run("info", "--kb", "x.kb", "--to", "there", "--json").out)
    assert (info["fingerprint"], info["why"], info["revision"], info["kb_revision"]) == ("mine", "as requested", 1, 1)


def test_info_says_when_the_index_is_late(run):
    missing = run("info", "--kb", "x.kb")
    assert missing.code == 5
    assert missing.err == "error: there is no index in x.kb.vectors; build it with: wellread index build --kb x.kb\n"
    run("build", "--kb", "x.kb")
    assert run("info", "--kb", "x.kb").out.endswith("revision: 1, up to date\n")
    with KnowledgeBase.open("x.kb", writable=True) as kb:
        kb.add(Entity("new", "newcomer"))
    late = run("info", "--kb", "x.kb").out.splitlines()[-1]
    assert late.endswith("the knowledge base is at 2: bring it up to date with: wellread index build --kb x.kb")


def test_what_cannot_be_is_one_line_and_an_exit_code(run, work):
    for arguments, code, says in (
        (("build", "--kb", "nothing.kb"), 5, "there is no knowledge base at nothing.kb"),
        (("build", "--kb", "x.kb", "--kind", "hnsw", "--compression", "pq"), 2, "choose the compression int8"),
        (("build", "--kb", "x.kb", "--kind", "tree"), 2, "see: wellread index build --help"),
        (("build",), 2, "Missing option '--kb'"),
        (("build", "--kb", "x.kb", "--to", "x.kb"), 6, "cannot write x.kb"),
    ):
        done = run(*arguments)
        assert done.code == code
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert says in done.err
        assert done.err.count("\n") == 1


def test_an_interrupted_build_goes_on_when_started_again(run, monkeypatch):
    from wellread.index import entity_vectors as vectors

    monkeypatch.setattr(vectors.EntityVectors.build.__func__, "__kwdefaults__", {"progress": None, "chunk": 8})
    monkeypatch.setattr(elq, "load_tower", lambda model: BagOfWords(fail_after=16), raising=False)
    stopped = run("build", "--kb", "x.kb")
    assert stopped.code == 130
    assert "run the same command again" in stopped.err
    monkeypatch.setattr(elq, "load_tower", lambda model: BagOfWords(), raising=False)
    assert run("build", "--kb", "x.kb").out.startswith("x.kb.vectors: 24 encoded, 16 kept")


@pytest.mark.parametrize("verb", [(), ("build",), ("info",)])
def test_every_help_page_has_an_example(run, verb):
    assert "Example" in run(*verb, "--help").out


def test_info_starts_without_torch():
    code = (
        "import sys, wellread.cli as cli; sys.argv = ['wellread', 'index', 'info', '--kb', 'nothing.kb']\n"
        "try: cli.main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, check=False)
    assert done.returncode == 0
