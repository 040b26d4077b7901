"""`wellread kb embed`, from the command line to vectors that are opened again."""

import json
from functools import partial

import pytest

from tests.kb.conftest import build_kb
from tests.training.test_graph_vectors import ring
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.plots import curves as plots

QUICK = ("--set", "schedule.epochs=6", "--set", "entity_dim=8", "--set", "hold_out=0.2")


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "save", lambda figure, path: None)
    build_kb(tmp_path / "ring.kb", ring())
    return tmp_path


@pytest.fixture
def run(wellread):
    return partial(wellread, "kb", "embed", "--kb", "ring.kb")


def test_text_and_facts_become_one_row(run, encoder):
    done = run("--text", encoder, "--graph", "tucker", "--to", "both", *QUICK)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[:2] == [
        "both: 34 entities, 24 numbers each, revision 1",
        "without facts (zero graph vectors): 1",
    ]
    assert [word for word in ("dev", "test", "MRR", "hits@10") if word not in done.out] == []
    vectors = EntityVectors.open("both")
    assert (len(vectors), vectors.dim) == (34, 24)
    assert not vectors.rows[vectors.rows_of(["alone"])[0], 16:].any()
    again = run("--text", encoder, "--graph", "tucker", "--to", "both", *QUICK)
    assert "both/graph is finished" in again.err
    assert EntityVectors.open("both").fingerprint == vectors.fingerprint


def test_one_part_alone_and_json(run, work):
    info = json.loads(run("--text", "none", "--graph", "complex", *QUICK, "--json").out)
    assert (info["folder"], info["dim"], info["without_facts"]) == ("ring.kb.embedded", 8, 1)
    assert info["scores"]["test"]["queries"] > 5
    assert 0 < info["scores"]["test"]["mrr"] <= 1
    assert (work / "ring.kb.embedded" / "graph" / "recipe.toml").exists()


def test_a_recipe_is_a_file(run, work):
    (work / "mine.toml").write_text('graph = "distmult"\nloss = "softmax"\nentity_dim = 4\n[schedule]\nsteps = 3\n')
    done = run("--text", "none", "--graph", "mine.toml", "--to", "to")
    assert done.out.startswith("to: 34 entities, 4 numbers each"), done.err
    (work / "mine.toml").write_text('graph = "transe"\n')
    done = run("--text", "none", "--graph", "mine.toml", "--to", "other")
    assert (done.code, "mine.toml: 'graph'" in done.err) == (3, True), done.err


def test_other_settings_and_other_states_of_the_kb_are_refused_until_anew_is_said(run):
    first = ("--text", "none", "--to", "to", *QUICK)
    assert run(*first).code == 0
    other = run(*first, "--set", "batch=8")
    assert (other.code, "batch is 128 there and 8 now" in other.err) == (2, True)
    with KnowledgeBase.open("ring.kb", writable=True) as kb:
        kb.add(Entity("new", "newcomer", facts=(("next", "t0"),)))
    late = run(*first)
    assert (late.code, "revision 1 of ring.kb" in late.err, "--anew" in late.err) == (5, True, True)
    assert run(*first, "--anew").out.startswith("to: 35 entities, 8 numbers each, revision 2")


def test_what_cannot_be_is_one_line_and_an_exit_code(wellread, run):
    for arguments, code, says in (
        (("--text", "none", "--graph", "none"), 2, "are both none"),
        (("--graph", "none", "--set", "batch=8"), 2, "--graph is none"),
        (("--text", "none", "--graph", "transe"), 2, "choose tucker, complex, distmult, none, or give a recipe"),
        (("--text", "none", "--graph-weight", "0"), 2, "the weight of graph is 0.0"),
        (("--text", "none", "--set", "widht=3"), 2, "'widht' is not a setting"),
    ):
        done = run(*arguments)
        assert (done.code, says in done.err, len(done.err.splitlines())) == (code, True, 1), done.err
    missing = wellread("kb", "embed", "--kb", "nothing.kb")
    assert (missing.code, "there is no knowledge base at nothing.kb" in missing.err) == (5, True)
