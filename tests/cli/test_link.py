"""`wellread link` as a person types it, and what it says when the text cannot be linked."""

import csv
import io
import json
import subprocess
import sys

import pytest

from tests.mentions.conftest import NAMES, entity
from wellread import Document
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kbs")
    build(lambda tally: map(entity, NAMES), folder / "names.kb", origin=Origin("test"))
    build(lambda tally: iter([Entity("w1", "city", "a large town")]), folder / "words.kb", origin=Origin("test"))
    return folder


@pytest.fixture
def run(wellread):
    """Links by names alone, which needs no model; `test_linker_elq.py` has the other."""

    def run(*arguments, stdin=""):
        model = ("--model", "prior") if "--kb" in arguments and "--model" not in arguments else ()
        return wellread("link", *model, *arguments, stdin=stdin)

    return run


def test_a_table_for_people(run, kbs):
    result = run("--kb", kbs / "names.kb", "NYC and 東京")
    assert result.code == 0
    assert all(word in result.out for word in ("NYC", "Q60", "New York City", "東京", "Q1490"))


def test_json_for_machines_round_trips(run, kbs):
    result = run("--kb", kbs / "names.kb", "--format", "json", "NYC and 東京")
    document = Document.from_json(result.out)
    assert [link.entity for link in document.links] == ["Q60", "Q1490"]


def test_several_kbs_are_layers_of_one_document(run, kbs):
    result = run("--kb", kbs / "names.kb", "--kb", kbs / "words.kb", "--format", "json", "New York City")
    document = Document.from_json(result.out)
    assert [(link.text, link.kb) for link in document.links] == [("New York City", "names"), ("City", "words")]


def test_the_text_may_come_from_a_file_or_a_pipe(run, kbs, tmp_path):
    (tmp_path / "in.txt").write_text("From Tokyo\n", "utf-8-sig")
    from_file = run("--kb", kbs / "names.kb", "--format", "json", "--file", tmp_path / "in.txt")
    from_pipe = run("--kb", kbs / "names.kb", "--format", "json", stdin="From Tokyo\n")
    assert from_file.out == from_pipe.out
    assert json.loads(from_file.out)["links"][0]["start"] == 5


def test_every_line_can_be_a_text_of_its_own(run, kbs):
    result = run("--kb", kbs / "names.kb", "--format", "json", "--lines", stdin="Tokyo\n\nNYC\n")
    assert [len(json.loads(line)["links"]) for line in result.out.splitlines()] == [1, 0, 1]


def test_a_page_is_written_whole(run, kbs, tmp_path):
    result = run("--kb", kbs / "names.kb", "--format", "html", "--to", tmp_path / "out.html", "<b>NYC</b>")
    page = (tmp_path / "out.html").read_text("utf-8")
    assert result.code == 0
    assert page.lower().startswith("<!doctype html>")
    assert "<b>NYC" not in page


def test_csv_has_a_row_for_every_link(run, kbs, tmp_path):
    lines = tmp_path / "texts.txt"
    lines.write_text("Tokyo, NYC\n\nNYC\n")
    found = run("--kb", kbs / "names.kb", "--format", "csv", "--lines", "--file", lines).out
    rows = list(csv.DictReader(io.StringIO(found)))
    assert [(row["id"], row["mention"], row["start"]) for row in rows] == [
        ("1", "Tokyo", "0"),
        ("1", "NYC", "7"),
        ("3", "NYC", "0"),
    ]


@pytest.mark.parametrize("name", ["tickets.csv", "tickets.TSV.gz", "t.parquet"])
def test_a_table_is_not_read_as_a_text(run, kbs, name):
    result = run("--kb", kbs / "names.kb", "--file", name)
    assert result.code == 2
    assert f"wellread annotate {name} --field COLUMN --to links.csv" in result.err


@pytest.mark.parametrize(("format", "expected"), [("brat", "T1\t"), ("conll", "B\t")])
def test_other_peoples_formats(run, kbs, format, expected):
    assert expected in run("--kb", kbs / "names.kb", "--format", format, "In NYC today").out


def test_case_overlaps_and_threshold_are_options(run, kbs):
    arguments = ("--kb", kbs / "names.kb", "--format", "json")
    entities = lambda result: [link["text"] for link in json.loads(result.out)["links"]]  # noqa: E731
    assert entities(run(*arguments, "--case", "exact", "nyc NYC")) == ["NYC"]
    assert entities(run(*arguments, "--overlaps", "all", "New York City")) == ["New York City", "New York"]
    assert entities(run(*arguments, "--threshold", "0.9", "New York City, NYC")) == ["New York City"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["--kb", "{}/none.kb", "x"], "", 5, "there is no knowledge base"),
        (["--kb", "{}/names.kb", ""], "", 3, "empty"),
        (["--kb", "{}/names.kb"], " \n", 3, "empty"),
        (["--kb", "{}/names.kb", "--file", "{}/none.txt"], "", 3, "none.txt"),
        (["--kb", "{}/names.kb", "--file", "{}"], "", 3, "folder"),
        (["--kb", "{}/names.kb", "--file", "a", "text"], "", 2, "not both"),
        (["--kb", "{}/names.kb", "--to", "{}/x.txt", "Tokyo"], "", 2, "--format"),
        (["--kb", "{}/names.kb", "--kb", "{}/./names.kb", "Tokyo"], "", 2, "given twice; give each --kb once"),
        (["--kb", "{}/names.kb", "--format", "brat", "--lines", "Tokyo"], "", 2, "omit --lines"),
        (["--kb", "{}/names.kb", "--threshold", "nan", "Tokyo"], "", 2, "nan is not a number"),
        (["--kb", "{}/names.kb", "--lines"], "Tokyo\n\udce9", 3, "standard input, line 2 is not UTF-8"),
    ],
)
def test_what_goes_wrong_is_one_line_that_names_the_fix(run, kbs, arguments, stdin, code, message):
    result = run(*(argument.format(kbs) for argument in arguments), stdin=stdin)
    assert result.code == code
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert "Traceback" not in result.err


def test_a_file_in_another_encoding_is_refused_with_the_place(run, kbs, tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    result = run("--kb", kbs / "names.kb", "--file", tmp_path / "latin.txt")
    assert result.code == 3
    assert "not UTF-8" in result.err
    assert "byte 3" in result.err


def test_a_reader_that_goes_away_is_no_error(kbs):
    link = f"{sys.executable} -m wellread.cli link --model prior --kb {kbs / 'names.kb'} --format json --lines"
    text = "Tokyo and New York City\n" * 20_000
    result = subprocess.run(
        f"{link} | head -1", shell=True, input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""


def test_help_is_quick_and_every_verb_has_an_example():
    verbs = [["fetch"], ["link"], ["annotate"], ["evaluate", "linking"]]
    verbs += [["kb", verb] for verb in "build merge add remove show search stats check export".split()]
    code = f"""
import sys
from wellread import cli
for verb in {verbs}:
    sys.argv = ["wellread", *verb, "--help"]
    cli.main()
    slow = {{"torch", "numpy", "spacy", "requests", "rdflib", "transformers"}} & sys.modules.keys()
    print("\\x1e", *slow, "\\x1e")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    *pages, rest = said.split("\x1e")
    assert [("Example" in page, slow.split()) for page, slow in zip(pages[::2], pages[1::2], strict=True)] == [
        (True, []) for _ in verbs
    ]
    assert (rest, len(verbs)) == ("\n", 13)


@pytest.fixture
def twins(kbs, tmp_path):
    """Two knowledge bases whose files have the same name."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        build(
            lambda tally, folder=folder: iter([Entity(folder, "city", f"described in {folder}")]),
            tmp_path / folder / "same.kb",
            origin=Origin("test"),
        )
    return tmp_path


def test_knowledge_bases_with_one_name_go_by_their_paths(run, twins, kbs):
    given = ("--kb", twins / "a" / "same.kb", "--kb", twins / "b" / "same.kb", "--kb", kbs / "words.kb")
    document = Document.from_json(run(*given, "--format", "json", "city").out)
    names = [str(twins / "a" / "same.kb"), str(twins / "b" / "same.kb"), "words"]
    assert [link.kb for link in document.links] == names
    assert document.meta["kb"] == names
    table = run(*given, "city")
    assert all(words in table.out for words in ("described in a", "described in b", "a large town"))


def test_a_table_ends_before_it_is_endless(run, kbs):
    result = run("--kb", kbs / "words.kb", "city " * 502)
    assert result.out.count("a large town") == 500
    assert result.err == "… 2 more links; use --format json\n"


def test_conll_says_that_it_keeps_one_link_a_place(run, kbs):
    result = run("--kb", kbs / "names.kb", "--kb", kbs / "words.kb", "--format", "conll", "New York City")
    assert "the longest of all knowledge bases is written" in result.err
    assert "w1" not in result.out


def test_short_names_and_stop_words_are_found_on_demand(run, tmp_path):
    build(lambda tally: iter([Entity("1", "Who"), Entity("2", "X")]), tmp_path / "x.kb", origin=Origin("test"))
    linked = lambda *options: [  # noqa: E731
        link.entity
        for link in Document.from_json(
            run("--kb", tmp_path / "x.kb", "--format", "json", *options, "who is x").out
        ).links
    ]
    assert linked() == []
    assert linked("--stop-words", "none") == ["1"]
    assert linked("--min-chars", "1") == ["2"]


def test_lines_of_an_argument_are_those_of_a_file(run, kbs):
    text = "Tokyo\u2028NYC\r\nNYC\x0cTokyo\n"
    options = ("--kb", kbs / "names.kb", "--format", "json", "--lines")
    assert run(*options, text).out == run(*options, stdin=text).out
    assert run(*options, text).out.count("\n") == 2


def test_the_default_kb_is_used_and_named(wellread, tmp_path, monkeypatch):
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path))
    missing = wellread("link", "NYC")
    assert (missing.code, missing.err.splitlines()[-1]) == (
        5,
        "error: the vital knowledge base is not built yet; build it with: wellread kb build vital",
    )
    (tmp_path / "kb").mkdir()
    build(lambda tally: map(entity, NAMES), tmp_path / "kb" / "vital.kb", origin=Origin("test"))
    done = wellread("link", "--model", "prior", "--format", "json", "NYC")
    assert [link.kb for link in Document.from_json(done.out).links] == ["vital"]
    assert done.err == "knowledge base: vital, the default; choose another with --kb\n"
    assert "did you mean vital?" in wellread("link", "--kb", "vitl", "NYC").err


def test_a_table_given_as_a_kb_is_answered_with_the_command_that_builds_one(wellread, tmp_path):
    for name, source in (("my products.csv", "csv"), ("a.tsv", "csv"), ("b.jsonl", "jsonl")):
        (tmp_path / name).write_text("id\ttitle\n" * 3)
        done = wellread("link", "--kb", tmp_path / name, "x")
        assert (done.code, done.err.count("\n")) == (5, 1)
        assert f"build one from it with: wellread kb build {source} " in done.err
        assert "delete" not in done.err


def test_an_option_that_the_model_ignores_is_refused(run, kbs):
    done = run("--kb", kbs / "names.kb", "--trust", "6", "NYC")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "trust has no effect on model prior" in done.err


def test_lines_in_tables_have_their_number_and_text(run, kbs):
    result = run("--kb", kbs / "names.kb", "--lines", stdin="NYC is large\nnothing here\n")
    assert "1: NYC is large" in result.out
    assert result.err == "2: nothing here: no link found\n"


def test_csv_needs_no_arrow(run, kbs, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "wellread.linking.link_table", raising=False)
    result = run("--kb", kbs / "names.kb", "--format", "csv", "NYC")
    assert [row["entity"] for row in csv.DictReader(io.StringIO(result.out))] == ["Q60"]


def test_an_empty_argument_is_refused_before_anything_is_loaded(wellread):
    result = wellread("link", "--kb", "not-there", " ")
    assert (result.code, result.err) == (3, "error: the text is empty; give a text with words\n")
