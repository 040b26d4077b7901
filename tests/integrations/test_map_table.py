"""A column of a table is mapped: formats, columns, and what cannot be read."""

import csv
import gzip
import json
import os
import threading

import pytest

from wellread.errors import UsageError
from wellread.integrations.map_table import form_of, result_columns
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity

COMPANIES = [
    Entity("m1", "Siemens AG", "engineering", "company", 9, {"Siemens": 5}),
    Entity("m2", 'Smith, "Jones" & Co', "law", "company", 1),
    Entity("m3", "Bosch", "tools", "company", 5),
]


@pytest.fixture
def kb(tmp_path):
    path = tmp_path / "companies.kb"
    build(lambda tally: iter(COMPANIES), path, origin=Origin("test"))
    return path


@pytest.fixture
def run(wellread, kb, tmp_path, monkeypatch):
    """Map the column company of a file with this text, by names."""
    monkeypatch.chdir(tmp_path)

    def call(text, *more, name="in.csv", column="company", **how):
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return wellread("map", name, "--column", column, "--kb", kb, "--names-only", *more, **how)

    return call


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


def test_a_csv_keeps_its_columns_and_gets_the_match(run):
    done = run('id,company,note\n7,Siemens,"a, b"\n8,Simens AG,\n9,Zorblax,"x\ny"\n')
    assert done.code == 0, done.err
    rows = list(csv.DictReader(done.out.splitlines(keepends=True)))
    assert list(rows[0]) == ["id", "company", "note", "entity", "title", "score", "found_by"]
    assert [(row["id"], row["note"], row["entity"], row["title"], row["found_by"]) for row in rows] == [
        ("7", "a, b", "m1", "Siemens AG", "exact"),
        ("8", "", "m1", "Siemens AG", "typo"),
        ("9", "x\ny", "", "", "unmatched"),
    ]
    assert 0.5 <= float(rows[1]["score"]) <= 1
    assert "matched 2 of 3 rows (66.7 %)" in done.err
    assert "exact 1" in done.err


def test_the_output_may_be_another_format(run, tmp_path):
    table = "company\nSiemens\nSmith Jones and Co\nnobody\n"
    assert run(table, "--to", "out.jsonl", "--best", 2).code == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["entity"] for row in found] == ["m1", "m2", None]
    assert list(found[0]) == ["company", "entity", "title", "score", "found_by", "candidates"]
    assert run(table, "--to", "out.tsv").code == 0
    assert (tmp_path / "out.tsv").read_text().splitlines()[1].split("\t")[:3] == ["Siemens", "m1", "Siemens AG"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.tsv", "n\tcompany\n1\tBosch\n"),
        ("in.jsonl", '{"n": 1, "company": "Bosch"}\n{"n": [2], "company": null}\n'),
        ("in.csv.gz", gzip.compress(b"\xef\xbb\xbfcompany\r\nBosch\r\n")),
    ],
)
def test_tables_of_other_formats_are_read(run, name, text):
    done = run(text, name=name)
    assert done.code == 0, done.err
    assert rows_of(done.out)[0]["entity"] == "m3"


def test_standard_input_is_read_as_csv(wellread, kb):
    done = wellread("map", "-", "--column", "company", "--kb", kb, "--names-only", stdin="company\nBosch\n")
    assert rows_of(done.out)[0]["entity"] == "m3"


def test_a_pipe_is_read_once(wellread, kb, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("company\nBosch\n",), daemon=True)
    writer.start()
    done = wellread("map", tmp_path / "pipe", "--column", "company", "--kb", kb, "--names-only", "--from", "csv")
    assert rows_of(done.out)[0]["entity"] == "m3"
    writer.join(10)


def test_candidates_are_written_even_without_a_match(run):
    done = run("company\nBosch Siemens\n", "--best", 2, "--threshold", 1)
    (row,) = rows_of(done.out)
    assert row["found_by"] == "unmatched"
    assert {row["candidate_1_entity"], row["candidate_2_entity"]} == {"m1", "m3"}


def test_columns_of_the_table_are_not_overwritten(run):
    done = run("company,title,score\nBosch,Dr,7\n")
    (row,) = rows_of(done.out)
    assert (row["title"], row["score"], row["match_title"], row["match_entity"]) == ("Dr", "7", "Bosch", "m3")
    assert result_columns({"entity": 1, "match_title": 2}, 1)[0] == "match_match_entity"


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("compny\nBosch\n", {}, "line 2: there is no column 'company' among 'compny'; did you mean 'compny'?"),
        ("company\nBosch,1\n", {}, "line 2: 2 cells, expected 1: company"),
        ("", {}, "in.csv is empty"),
        ('company\n"Bosch\n', {}, "a quote is not closed"),
        (b"company\n\xff\n", {}, "in.csv, line 2 is not UTF-8"),
        ("company\nBosch\n", {"name": "in.xlsx"}, "the format of in.xlsx is not known"),
        ('{"company": ["a"]}\n', {"name": "in.jsonl"}, "line 1: 'company' is [\"a\"], expected a text"),
    ],
)
def test_a_wrong_table_is_refused_and_nothing_written(run, tmp_path, text, more, message):
    done = run(text, "--to", "out.csv", **more)
    assert done.code != 0
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out.csv").exists()


def test_wrong_options_are_refused(run, tmp_path):
    done = run("company\nBosch\n", "--context", "company")
    assert (done.code, "--names-only switches off" in done.err) == (2, True)
    assert run("company\nBosch\n", "--threshold", "nan").code == 2
    assert run("company\n", "--to", "out.csv").code == 0
    with pytest.raises(UsageError, match="name it"):
        form_of("table")


def test_a_table_without_rows_says_so(run):
    done = run("company,note\n")
    assert done.code == 0
    assert "has no rows" in done.err
