"""`wellread correlate`, from text to a table and back to the terminal."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from tests.kb.conftest import build_kb
from wellread import cli
from wellread.kb.records import Entity


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(["The river flows by the bank."] * 6 + ["A bank lends money."] * 6))
    return tmp_path


@pytest.fixture
def run(monkeypatch, capfdbinary):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["wellread", "correlate", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        code = 0
        try:
            cli.main()
        except SystemExit as leave:
            code = leave.code
        out, err = (stream.decode() for stream in capfdbinary.readouterr())
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_text_becomes_a_table_that_can_be_looked_into(run):
    done = run("a.txt", "--to", "t.pmi")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "t.pmi: 60 words in 12 documents",
        "8 words and 9 pairs are correlated; the largest PMI is 0.69",
    ]
    shown = run("show", "t.pmi", "RIVER", "money", "--number", "2")
    assert shown.code == 0
    assert "RIVER (in 6 events)" in shown.out
    assert "RIVER + money" in shown.out
    info = json.loads(run("show", "t.pmi", "river", "nowhere", "--json").out)
    assert [one["word"] for one in info["neighbours"]["river"]] == ["by", "flows", "the"]
    assert info["neighbours"]["river"][0] == {"word": "by", "relevance": 1.0, "together": 6, "events": 6}
    assert info["unknown"] == ["nowhere"]


def test_a_table_says_what_it_is(run):
    run("count", "a.txt", "--to", "t.pmi", "--measure", "npmi")
    assert "min_count 5, min_pair 3, measure npmi, neighbours 1000" in run("show", "t.pmi").out
    about = json.loads(run("show", "t.pmi", "--json").out)
    assert (about["words"], about["events"], about["corpora"][0]["sources"]) == (8, 12, ["a.txt"])


def test_more_text_is_added(run, work):
    run("a.txt", "--to", "t.pmi")
    (work / "b.txt").write_text("\n".join(["The sea is deep."] * 5))
    done = json.loads(run("b.txt", "--add-to", "t.pmi", "--json").out)
    assert (done["events"], done["words"], done["shards"]) == (17, 11, 1)


def test_a_count_started_again_says_what_was_there(run):
    run("a.txt", "--to", "t.pmi")
    again = run("a.txt", "--to", "t.pmi", "--min-pair", "4")
    assert again.err == "1 of 1 shards were counted before\n"


def test_a_kb_is_counted(run, work):
    build_kb(work / "x.kb", [Entity(f"Q{n}", "bank", "a bank lends" if n % 2 else "rivers flow") for n in range(20)])
    assert run("--kb", "x.kb", "--to", "t.pmi").out.startswith("t.pmi: 50 words in 20 documents")
    assert run("--kb", "x.kb", "--titles", "--to", "u.pmi").out.startswith("u.pmi: 70 words in 20 documents")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a.txt"], 2, "give the table's folder: --to FOLDER"),
        (["a.txt", "--to", "t.pmi", "--add-to", "u.pmi"], 2, "give the table's folder"),
        (["--to", "t.pmi"], 2, "give what to count"),
        (["a.txt", "--kb", "wordnet", "--to", "t.pmi"], 2, "give what to count"),
        (["a.txt", "--titles", "--to", "t.pmi"], 2, "--titles needs --kb"),
        (["a.txt", "--add-to", "t.pmi", "--min-pair", "2"], 2, "omit --min-pair"),
        (["a.txt", "--to", "t.pmi", "--memory", "lots"], 2, "write it like 4GB"),
        (["a.txt", "--to", "t.pmi", "--master", "local"], 2, "only Spark has a master"),
        (["no.txt", "--to", "t.pmi"], 3, "there is no no.txt"),
        (["show", "t.pmi", "river"], 3, "there is no table of correlations in t.pmi"),
    ],
)
def test_what_does_not_fit_is_one_line_that_says_what_to_do(run, arguments, code, message):
    done = run(*arguments)
    assert done.code == code
    assert done.err.startswith("error: ")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_an_unknown_word_is_reported(run):
    run("a.txt", "--to", "t.pmi")
    done = run("show", "t.pmi", "ocean")
    assert done.code == 3
    assert "ocean: not in the table (words in fewer than 5 events are left out); give another word" in done.err
    some = run("show", "t.pmi", "ocean", "river")
    assert (some.code, some.err) == (0, "ocean: not in the table (words in fewer than 5 events are left out)\n")


def test_help_has_examples(run):
    for arguments in (["--help"], ["count", "--help"], ["show", "--help"]):
        done = run(*arguments)
        assert done.code == 0
        assert "wellread correlate" in done.out.split("Example")[1]
